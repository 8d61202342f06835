//! The sharing modes that are compared, and whether any of them pays.

use super::DeviceError;
use super::allocate::{
    BudgetAllocation, BudgetEvaluator, Effort, Goal, Measurement, Unallocated, allocate,
    allocate_from, part,
};
use super::decide::{Decision, decide};
use super::evaluate::{DeviceSharing, Operators};
use super::summary::Summary;
use super::tenant::DeviceTenant;
use tandem_core::{BUDGET_MIN, Ppm};

/// Co-location that gives less than this over running one after the other is not worth its risk.
pub const SHARING_PAYS_FROM: f64 = 1.05;

/// Up to this many tenants a search from every start takes about a second.
const THOROUGH_MAX: usize = 3;

/// A sharing mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One tenant after the other.
    Sequential,
    /// Time slicing, no concurrency.
    Slice,
    /// Concurrently, each within an equal part.
    Equal,
    /// Concurrently, each within twice that.
    Double,
    /// Concurrently without caps.
    Uncapped,
    /// Concurrently within budgets for the objective, found in milliseconds.
    Search,
    /// The same, found by full evaluations.
    Thorough,
    /// Concurrently within given budgets.
    Given(Vec<Ppm>),
}

impl Mode {
    /// All modes with a fixed name.
    pub const ALL: [Mode; 6] =
        [Mode::Sequential, Mode::Slice, Mode::Equal, Mode::Double, Mode::Uncapped, Mode::Search];

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Mode::Sequential => "sequential",
            Mode::Slice => "slice",
            Mode::Equal => "equal",
            Mode::Double => "double",
            Mode::Uncapped => "uncapped",
            Mode::Search | Mode::Thorough => "search",
            Mode::Given(_) => "given",
        }
    }

    /// The budgets of modes that define them.
    fn budgets(&self, tenants: usize) -> Option<Vec<Ppm>> {
        match self {
            Mode::Equal => Some(vec![part(1, tenants); tenants]),
            Mode::Double => Some(vec![part(2, tenants); tenants]),
            Mode::Uncapped => Some(vec![Ppm::ONE; tenants]),
            Mode::Given(budgets) => Some(budgets.clone()),
            Mode::Sequential | Mode::Slice | Mode::Search | Mode::Thorough => None,
        }
    }
}

/// The result of a mode.
#[derive(Clone, Debug, PartialEq)]
pub struct ModeResult {
    /// The mode.
    pub mode: Mode,
    /// Speeds of the tenants.
    pub measured: Measurement,
    /// Their budgets; the whole GPU if the mode sets none.
    pub budgets: Vec<Ppm>,
    /// Number of budget vectors tried.
    pub evaluations: usize,
}

impl ModeResult {
    /// Standard error of the STP over the halves of the window.
    pub fn noise(&self) -> f64 {
        self.measured.noise(|y| y.iter().sum())
    }

    /// Time of one iteration of every tenant one after the other ÷ time until every tenant has made one,
    /// concurrently.
    pub fn makespan_ratio(&self, tenants: &[DeviceTenant]) -> f64 {
        let alone: Vec<f64> = tenants.iter().map(DeviceTenant::alone_ns).collect();
        if self.mode == Mode::Sequential {
            return 1.0;
        }
        let shared = alone.iter().zip(&self.measured.y).map(|(alone, y)| alone / y);
        alone.iter().sum::<f64>() / shared.fold(0.0, f64::max)
    }
}

/// Evaluates one mode. Only the searches use the goal.
pub fn compare(
    device: &mut Operators<'_>,
    mode: &Mode,
    goal: &Goal,
) -> Result<ModeResult, Unallocated<DeviceError>> {
    let tenants = device.tenants();
    let whole = vec![Ppm::ONE; tenants];
    let outcome = |measured, budgets, evaluations| ModeResult {
        mode: mode.clone(),
        measured,
        budgets,
        evaluations,
    };
    if let Some(budgets) = mode.budgets(tenants) {
        let sharing = DeviceSharing::Budgets(&budgets);
        let measured = device.evaluate(sharing).map_err(Unallocated::Measure)?;
        return Ok(outcome(measured, budgets, 1));
    }
    match mode {
        Mode::Search => {
            let Decision { mut budgets, rivals, evaluations } = decide(device, goal)?;
            let evaluate = |budgets: &[Ppm]| {
                device.evaluate(DeviceSharing::Budgets(budgets)).map_err(Unallocated::Measure)
            };
            let mut measured = evaluate(&budgets)?;
            // Never below a fixed mode: where a race could be wrong, the full evaluation decides.
            for rival in rivals {
                let other = evaluate(&rival)?;
                let is_kept = goal.failing(&other).is_empty();
                if is_kept && goal.value(&other.y) > goal.value(&measured.y) {
                    (measured, budgets) = (other, rival);
                }
            }
            Ok(outcome(measured, budgets, evaluations))
        }
        Mode::Thorough => {
            let BudgetAllocation { budgets, measured, evaluations, .. } = thorough(device, goal)?;
            Ok(outcome(measured, budgets, evaluations))
        }
        Mode::Slice => {
            let measured = device.evaluate(DeviceSharing::Slice).map_err(Unallocated::Measure)?;
            Ok(outcome(measured, whole, 1))
        }
        _ => {
            // By definition: each has the GPU for its part of the time.
            let y = vec![1.0 / tenants as f64; tenants];
            let measured = Measurement { y, ..Measurement::default() };
            Ok(outcome(measured, whole, 0))
        }
    }
}

/// A search without a time limit. For few tenants it climbs from every start; for many it starts from the
/// result of the summary, if there is one, and stays near it.
pub fn thorough(
    device: &mut Operators<'_>,
    goal: &Goal,
) -> Result<BudgetAllocation, Unallocated<DeviceError>> {
    if device.tenants() <= THOROUGH_MAX {
        return allocate(device, goal, Effort::THOROUGH);
    }
    let mut summary = Summary::new(device.gpu(), device.list()).map_err(Unallocated::Measure)?;
    let hint = allocate(&mut summary, goal, Effort::QUICK).map(|found| found.budgets);
    let hints: Vec<Vec<Ppm>> = hint.into_iter().collect();
    allocate_from(&hints, device, goal, Effort::BOUNDED)
}

/// Whether sharing pays in any of these modes.
pub fn pays(outcomes: &[ModeResult]) -> bool {
    outcomes.iter().any(|outcome| outcome.measured.stp() > SHARING_PAYS_FROM)
}

/// Whether this is a valid budget.
pub fn is_budget(budget: Ppm) -> bool {
    (BUDGET_MIN..=Ppm::ONE).contains(&budget)
}
