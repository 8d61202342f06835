//! A decision in milliseconds: many budget vectors race, event by event (successive halving).
//!
//! For two and three tenants the race has all vectors of steps, because a single vector can be better than
//! all of its neighbours, and then vectors between the steps near the best. For more tenants, or long
//! iterations, it has the proposals of the summary, and then the neighbours of the best. The fixed modes are
//! in every final race, and a vector is chosen only if it is ahead of them by more than the noise. The cost
//! limit is a number of events and not a time, so that equal tenants always get equal budgets.

use super::DeviceError;
use super::allocate::{
    BudgetAllocation, Effort, Goal, Guarantee, Measurement, Objective, STEPS, Unallocated, part,
    proposals, standard_error,
};
use super::evaluate::{DeviceSharing, Operators};
use super::modes::{is_budget, thorough};
use super::race::{Race, Ranked, budgets_of};
use super::run::with_lanes;
use super::summary::Summary;
use super::tenant::DeviceTenant;
use tandem_core::Ppm;

/// Up to this many tenants, all vectors of steps race.
const GRID_MAX: usize = 3;
/// The shortest first round of a vector of the grid, in iterations of the slowest tenant alone.
const GRID_ITERATIONS: f64 = 0.1;
/// The shortest first round of any other vector: this many iterations, and no longer than this time.
const FIRST_ROUND_ITERATIONS: f64 = 2.0;
const FIRST_ROUND_NS_MAX: f64 = 4e6;
/// Cost limit of a decision; a unit is about a nanosecond on the machine of docs/device.md.
const COST: f64 = 5_000_000.0;
/// Cost of an event, and of each lane of a run. A run has as many lanes as tenants or a few more.
const COST_OF_EVENT: f64 = 3.3;
const COST_OF_LANE: f64 = 0.9;
/// Cost of an evaluation by the summary, and of each tenant in it.
const COST_OF_SUMMARY: f64 = 16_000.0;
const COST_OF_TENANT: f64 = 5_400.0;
/// Equal budgets of all tenants in the first race, besides the fixed modes, in halves of an equal part: a
/// batch costs the same however few vectors it has.
const OPENING: [usize; 4] = [3, 5, 6, 8];
/// How far a vector of the grid may fall behind the best of the short first race, per tenant: a share of the
/// speed for `nash`, of the solo speed for `stp`.
const GRID_MARGIN: f64 = 0.02;
/// The part of the events that is reserved for vectors between the steps, near the best of the grid; the
/// number of these; and their distances.
const FINE: f64 = 0.45;
const FINE_BASES: usize = 2;
const FINE_SHIFTS: [i32; 2] = [50_000, 100_000];
/// Without the grid: evaluations by the summary; how many of its best vectors race, and of those of the first
/// race; and the smallest part of the cost that is reserved for races.
const PROPOSE: Effort = Effort { evaluations: 24, ..Effort::QUICK };
const PROPOSED: usize = 12;
const OPENED: usize = 4;
const RACES_MIN: f64 = 0.3;
/// Budgets of the busiest tenants where the others have the whole GPU.
const HELD_BACK: [Ppm; 3] = [Ppm(100_000), Ppm(200_000), Ppm(400_000)];
/// The part that is spent on all of these, and then on the neighbours of the best, repeatedly. The rest is
/// for the final race.
const PROPOSALS: f64 = 0.15;
const NEIGHBOURS: [f64; 3] = [0.2, 0.2, 0.15];
/// Runners-up that race with the neighbours of the best.
const RUNNERS_UP: usize = 2;
/// Vectors of a race that reach the final one, besides the fixed modes.
const FINALISTS: usize = 5;
/// The necessary lead over the best fixed mode: twice the noise, within these bounds, relative to the speeds.
/// A race cannot resolve less than the first, and more than the second is not noise.
const LEAD_NOISE: f64 = 2.0;
const LEAD_MIN: f64 = 0.002;
const LEAD_MAX: f64 = 0.004;
/// Fixed modes that are behind by less than this are rivals: a race could be wrong about them.
const RIVAL: f64 = 0.01;
/// If guarantees have to be checked, only this part of the cost is spent on races; races aim higher than the
/// guarantee by this factor, because they are short; and this many vectors are checked before a thorough
/// search.
const GUARANTEED: f64 = 0.36;
const MARGIN: f64 = 1.01;
const CHECKED: usize = 2;

/// The chosen budgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// One for each tenant.
    pub budgets: Vec<Ppm>,
    /// The budgets of fixed modes that are hardly worse: a full evaluation may find them better.
    pub rivals: Vec<Vec<Ppm>>,
    /// Number of vectors compared.
    pub evaluations: usize,
}

/// Chooses budgets within milliseconds. They keep every guarantee: if there are any, the choice is evaluated
/// in full. If it violates one, or if tenants serve requests, which races ignore, a thorough search takes
/// seconds.
pub fn decide(
    device: &mut Operators<'_>,
    goal: &Goal,
) -> Result<Decision, Unallocated<DeviceError>> {
    let is_answering = device.list().iter().any(|tenant| tenant.requests.is_some());
    if !is_answering {
        let has_guarantees = goal.guarantees.iter().any(Guarantee::is_one);
        let RaceResult { ranked, rivals, evaluations } =
            choose(device, goal, has_guarantees).map_err(Unallocated::Measure)?;
        for budgets in ranked.into_iter().take(CHECKED) {
            let keeps = |measured: Measurement| goal.failing(&measured).is_empty();
            let checked = || device.evaluate(DeviceSharing::Budgets(&budgets)).map(keeps);
            if !has_guarantees || checked().map_err(Unallocated::Measure)? {
                return Ok(Decision { budgets, rivals, evaluations });
            }
        }
    }
    let found = thorough(device, goal)?;
    let BudgetAllocation { budgets, evaluations, .. } = found;
    Ok(Decision { budgets, rivals: Vec::new(), evaluations })
}

/// The result of the races.
struct RaceResult {
    /// Budget vectors, the best first.
    ranked: Vec<Vec<Ppm>>,
    /// Fixed modes that are hardly behind.
    rivals: Vec<Vec<Ppm>>,
    /// Number of vectors compared.
    evaluations: usize,
}

fn choose(
    device: &Operators<'_>,
    goal: &Goal,
    has_guarantees: bool,
) -> Result<RaceResult, DeviceError> {
    let cost = if has_guarantees { GUARANTEED * COST } else { COST };
    let mut aim = goal.clone();
    aim.guarantees.iter_mut().for_each(|guarantee| guarantee.floor *= MARGIN);
    let tenants = device.list().len();
    let fixed = [1, 2, tenants].map(|times| vec![part(times, tenants); tenants]).to_vec();
    let round_min_ns = (FIRST_ROUND_ITERATIONS * slowest_ns(device)).min(FIRST_ROUND_NS_MAX);
    with_lanes!(tenants, LANES => {
        let cost_of_event = COST_OF_EVENT + COST_OF_LANE * LANES as f64;
        let race = Race::<LANES>::new(device, aim, cost / cost_of_event);
        DecisionSearch { device, goal, cost_of_event, race, fixed, round_min_ns }.run()
    })
}

/// An iteration of the slowest tenant alone.
fn slowest_ns(device: &Operators<'_>) -> f64 {
    device.list().iter().map(DeviceTenant::alone_ns).fold(0.0, f64::max)
}

/// All vectors of steps, with the solo speeds under these caps, which are upper bounds. Of steps that cover
/// all operators of a tenant, only the smallest.
fn grid(device: &Operators<'_>) -> Vec<(Vec<Ppm>, Vec<f64>)> {
    let mut vectors = vec![(Vec::new(), Vec::new())];
    for tenant in 0..device.list().len() {
        let mut steps = Vec::new();
        for step in STEPS {
            let cap = device.gpu().cap(step);
            steps.push((step, device.capped_speed(tenant, cap)));
            if device.is_enough(tenant, cap) {
                break;
            }
        }
        let with = |(budgets, y): &(Vec<Ppm>, Vec<f64>)| {
            let add = |&(step, speed): &(Ppm, f64)| {
                ([budgets.as_slice(), &[step]].concat(), [y.as_slice(), &[speed]].concat())
            };
            steps.iter().map(add).collect::<Vec<_>>()
        };
        vectors = vectors.iter().flat_map(with).collect();
    }
    vectors
}

/// Vectors with one budget set to another step, the nearest steps first.
fn neighbours(budgets: &[Ppm]) -> Vec<Vec<Ppm>> {
    let mut vectors = Vec::new();
    for (tenant, budget) in budgets.iter().enumerate() {
        for step in STEPS.into_iter().filter(|step| step != budget) {
            let mut vector = budgets.to_vec();
            vector[tenant] = step;
            vectors.push((step.0.abs_diff(budget.0), vector));
        }
    }
    // Stable: an earlier tenant first among equals.
    vectors.sort_by_key(|(distance, _)| *distance);
    vectors.into_iter().map(|(_, vector)| vector).collect()
}

/// Vectors between the steps: one budget more or less, or a part of it moved to another tenant.
fn near(budgets: &[Ppm]) -> Vec<Vec<Ppm>> {
    let with = |changes: &[(usize, i32)]| {
        let mut vector = budgets.to_vec();
        for &(tenant, by) in changes {
            vector[tenant] = Ppm(vector[tenant].0.saturating_add_signed(by));
        }
        vector.iter().all(|&budget| is_budget(budget)).then_some(vector)
    };
    let mut vectors = Vec::new();
    for by in FINE_SHIFTS {
        for taker in 0..budgets.len() {
            vectors.extend(with(&[(taker, by)]));
            vectors.extend(with(&[(taker, -by)]));
            for giver in (0..budgets.len()).filter(|&giver| giver != taker) {
                vectors.extend(with(&[(taker, by), (giver, -by)]));
            }
        }
    }
    vectors
}

/// Vectors that hold the busiest tenants back: one of them, two, and so on.
fn held_back(device: &Operators<'_>) -> Vec<Vec<Ppm>> {
    let duties: Vec<f64> = device.list().iter().map(|tenant| tenant.duty(device.gpu())).collect();
    let mut order: Vec<usize> = (0..duties.len()).collect();
    // Stable: an earlier tenant first among equals.
    order.sort_by(|&a, &b| duties[b].total_cmp(&duties[a]));
    let mut vectors = Vec::new();
    for budget in HELD_BACK {
        let mut vector = vec![Ppm::ONE; duties.len()];
        for &tenant in &order[..duties.len() - 1] {
            vector[tenant] = budget;
            vectors.push(vector.clone());
        }
    }
    vectors
}

/// Combinations of the single changes of `base` that gained in a race: the best two, the best three, and so
/// on.
fn together(base: &[Ppm], ranked: &[Ranked]) -> Vec<Vec<Ppm>> {
    let Some(least) = ranked.iter().find(|entrant| entrant.budgets == base) else {
        return Vec::new();
    };
    let mut best: Vec<Option<(f64, Ppm)>> = vec![None; base.len()];
    for entrant in ranked {
        let mut changed = (0..base.len()).filter(|&tenant| entrant.budgets[tenant] != base[tenant]);
        if let (Some(tenant), None) = (changed.next(), changed.next()) {
            let gain = entrant.at_first - least.at_first;
            if gain > best[tenant].map_or(0.0, |(most, _)| most) {
                best[tenant] = Some((gain, entrant.budgets[tenant]));
            }
        }
    }
    let mut changes: Vec<(f64, usize, Ppm)> = best
        .into_iter()
        .enumerate()
        .filter_map(|(tenant, best)| best.map(|(gain, budget)| (gain, tenant, budget)))
        .collect();
    // Stable, as above.
    changes.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut vector = base.to_vec();
    let mut vectors = Vec::new();
    for (_, tenant, budget) in changes {
        vector[tenant] = budget;
        vectors.push(vector.clone());
    }
    vectors.drain(..vectors.len().min(1));
    vectors
}

/// The search of one decision.
struct DecisionSearch<'a, const N: usize> {
    device: &'a Operators<'a>,
    goal: &'a Goal,
    cost_of_event: f64,
    race: Race<'a, N>,
    /// The budgets of equal, double and uncapped, which are in every final race.
    fixed: Vec<Vec<Ppm>>,
    /// The shortest first round.
    round_min_ns: f64,
}

impl<const N: usize> DecisionSearch<'_, N> {
    fn run(mut self) -> Result<RaceResult, DeviceError> {
        let tenants = self.device.list().len();
        let mut vectors = self.fixed.clone();
        vectors.extend(OPENING.map(|halves| vec![part(halves, 2 * tenants); tenants]));
        let opening = self.race.run(vectors, 0, 0.0, self.round_min_ns);
        let found = if tenants <= GRID_MAX { self.grid(&opening[0]) } else { None };
        let found = match found {
            Some(found) => found,
            None => self.climb(&opening)?,
        };
        Ok(self.settle(found))
    }

    /// Races of all vectors of steps that could be better than the best so far, and of their surroundings.
    /// `None` if there are too many of them for the remaining events.
    fn grid(&mut self, opening: &Ranked) -> Option<Vec<Ranked>> {
        // A vector that violates a guarantee is no reference.
        let hope = GRID_MARGIN * self.device.list().len() as f64;
        let least = if opening.broken > 0.0 { f64::NEG_INFINITY } else { opening.value - hope };
        let is_hopeful = |y: Vec<f64>| {
            self.goal.value(&y) > least
                && self.goal.failing(&Measurement { y, ..Measurement::default() }).is_empty()
        };
        let mut vectors = self.fixed.clone();
        for (budgets, y) in grid(self.device) {
            if is_hopeful(y) {
                vectors.push(budgets);
            }
        }
        let events = self.race.left() * (1.0 - FINE);
        let window_ns = self.race.window_ns(vectors.len(), events)?;
        if window_ns < GRID_ITERATIONS * slowest_ns(self.device) {
            return None;
        }
        let stay = self.fixed.len();
        let best = budgets_of(&self.race.run(vectors, stay, events, window_ns));
        let bases = best.iter().take(FINE_BASES);
        let fine: Vec<Vec<Ppm>> = bases.flat_map(|base| near(base)).collect();
        let finalists = best.into_iter().take(FINALISTS).chain(fine);
        Some(self.last(finalists))
    }

    /// Races of the proposals of the summary, of the neighbours of the best, and of the best changes
    /// combined.
    fn climb(&mut self, opening: &[Ranked]) -> Result<Vec<Ranked>, DeviceError> {
        let mut summary = Summary::new(self.device.gpu(), self.device.list())?;
        let proposed = proposals(&mut summary, self.goal, PROPOSE)?;
        let each = COST_OF_SUMMARY + COST_OF_TENANT * self.device.list().len() as f64;
        let events = proposed.len() as f64 * each / self.cost_of_event;
        self.race.spend(proposed.len(), events, RACES_MIN * self.race.left());

        let mut vectors = budgets_of(opening);
        vectors.truncate(OPENED);
        vectors.extend(proposed.into_iter().take(PROPOSED));
        vectors.extend(held_back(self.device));
        let events = self.race.left();
        let mut ranked = self.race.run(vectors, 0, PROPOSALS * events, self.round_min_ns);
        let mut changes = Vec::new();
        for part in NEIGHBOURS {
            let base = ranked[0].budgets.clone();
            ranked.truncate(1 + RUNNERS_UP);
            let mut vectors = budgets_of(&ranked);
            vectors.append(&mut changes);
            vectors.extend(neighbours(&base));
            ranked = self.race.run(vectors, 1, part * events, self.round_min_ns);
            changes = together(&base, &ranked);
        }
        changes.extend(budgets_of(&ranked).into_iter().take(FINALISTS));
        Ok(self.last(changes))
    }

    /// The race of these and the fixed modes with all remaining events.
    fn last(&mut self, vectors: impl IntoIterator<Item = Vec<Ppm>>) -> Vec<Ranked> {
        let vectors = self.fixed.iter().cloned().chain(vectors).collect();
        self.race.run(vectors, self.fixed.len(), self.race.left(), self.round_min_ns)
    }

    /// Puts the best fixed mode first if no vector is ahead of it by more than the noise.
    fn settle(&self, mut found: Vec<Ranked>) -> RaceResult {
        let is_fixed = |entrant: &Ranked| self.fixed.contains(&entrant.budgets);
        let place = found.iter().position(is_fixed).expect("fixed modes are in every last race");
        let (best, fixed) = (&found[0], &found[place]);
        let gains = best.parts.iter().zip(&fixed.parts).map(|(best, fixed)| best - fixed);
        // The gain of the objective if all speeds rise by this much.
        let speeds = match self.goal.objective {
            Objective::Nash => self.goal.guarantees.iter().map(|guarantee| guarantee.weight).sum(),
            Objective::Stp => fixed.value,
        };
        let noise = LEAD_NOISE * standard_error(gains);
        let lead = noise.clamp(LEAD_MIN * speeds, LEAD_MAX * speeds);
        if fixed.broken <= best.broken && best.value - fixed.value < lead {
            found[..=place].rotate_right(1);
        }
        let least = found[0].value - RIVAL * speeds;
        let rivals = found[1..].iter().filter(|rival| is_fixed(rival) && rival.value > least);
        RaceResult {
            rivals: rivals.map(|rival| rival.budgets.clone()).collect(),
            ranked: budgets_of(&found),
            evaluations: self.race.evaluations(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::gpu::DeviceGpu;
    use crate::device::tenant::{Operator, OperatorKind};

    fn budgets<const N: usize>(percent: [u32; N]) -> Vec<Ppm> {
        percent.map(|percent| Ppm(percent * 10_000)).to_vec()
    }

    fn ranked(budgets: Vec<Ppm>, at_first: f64) -> Ranked {
        Ranked { budgets, broken: 0.0, value: at_first, at_first, parts: Vec::new() }
    }

    #[test]
    fn changes_that_gained_alone_are_made_together_the_best_first() {
        let base = budgets([50, 50, 50]);
        let mut race = vec![
            ranked(base.clone(), 1.0),
            ranked(budgets([60, 50, 50]), 1.1),
            ranked(budgets([80, 50, 50]), 1.2),
            ranked(budgets([50, 40, 50]), 0.9),
            ranked(budgets([50, 50, 30]), 1.4),
            // Two changes say nothing about either.
            ranked(budgets([50, 20, 20]), 9.0),
        ];
        assert_eq!(together(&base, &race), [budgets([80, 50, 30])]);
        race.push(ranked(budgets([50, 60, 50]), 1.3));
        assert_eq!(together(&base, &race), [budgets([50, 60, 30]), budgets([80, 60, 30])]);
        assert!(together(&budgets([10, 10, 10]), &race).is_empty());
    }

    #[test]
    fn nearby_vectors_are_valid_budgets() {
        let vectors = near(&budgets([10, 100]));
        assert!(vectors.iter().flatten().all(|&budget| is_budget(budget)));
        assert!(vectors.contains(&budgets([15, 95])) && vectors.contains(&budgets([10, 90])));
        assert!(!vectors.contains(&budgets([10, 100])));
        assert_eq!(vectors.len(), 6);
    }

    #[test]
    fn the_busiest_tenants_are_held_back_first() {
        let tenant = |sms| {
            let operator = Operator { duration_ns: 1e6, sms, kind: OperatorKind::Compute };
            DeviceTenant::new("t", vec![operator]).unwrap()
        };
        let (gpu, tenants) = (DeviceGpu::known("v100").unwrap(), [20.0, 80.0, 40.0].map(tenant));
        let vectors = held_back(&Operators::new(&gpu, &tenants, 1).unwrap());
        assert_eq!(vectors[..2], [budgets([100, 10, 100]), budgets([100, 10, 10])]);
        assert_eq!(vectors.len(), 2 * HELD_BACK.len());
    }

    /// The choice for a vector that leads over `double` by this much, in four parts of a race.
    fn settled(objective: Objective, leads: [f64; 4]) -> RaceResult {
        let (gpu, goal) = (DeviceGpu::known("v100").unwrap(), goal(objective));
        let operator = Operator { duration_ns: 1e6, sms: 20.0, kind: OperatorKind::Compute };
        let tenants = [
            DeviceTenant::new("t", vec![operator]).unwrap(),
            DeviceTenant::new("u", vec![operator]).unwrap(),
        ];
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let race = Race::<2>::new(&device, goal.clone(), 1e3);
        let fixed = vec![budgets([50, 50]), budgets([100, 100])];
        let search = DecisionSearch {
            device: &device,
            goal: &goal,
            cost_of_event: 1.0,
            race,
            fixed,
            round_min_ns: 1.0,
        };
        let mut best = ranked(budgets([60, 60]), 1.0 + leads.iter().sum::<f64>() / 4.0);
        best.parts = leads.map(|lead| 1.0 + lead).to_vec();
        let mut double = ranked(budgets([100, 100]), 1.0);
        double.parts = vec![1.0; 4];
        let equal = Ranked { parts: vec![0.9; 4], ..ranked(budgets([50, 50]), 0.9) };
        search.settle(vec![best, double, equal])
    }

    fn goal(objective: Objective) -> Goal {
        let guarantee = Guarantee { weight: 1.0, floor: 0.0, p99_ns: None };
        Goal { objective, guarantees: vec![guarantee; 2] }
    }

    #[test]
    fn a_lead_within_the_noise_is_not_enough() {
        let first = |leads| settled(Objective::Stp, leads).ranked[0].clone();
        // Clearly ahead; by too little for a race to resolve; by less than it varies; by more than noise may
        // be.
        assert_eq!(first([0.005; 4]), budgets([60, 60]));
        assert_eq!(first([0.001; 4]), budgets([100, 100]));
        assert_eq!(first([0.0135, -0.0065, 0.0135, -0.0065]), budgets([100, 100]));
        assert_eq!(first([0.03, -0.01, 0.03, -0.01]), budgets([60, 60]));
        // Two logarithms rise by twice as much as the speeds.
        assert_eq!(first([0.003; 4]), budgets([60, 60]));
        assert_eq!(settled(Objective::Nash, [0.003; 4]).ranked[0], budgets([100, 100]));
        // A mode that is hardly behind is a rival, and the chosen one is not.
        assert_eq!(settled(Objective::Stp, [0.005; 4]).rivals, [budgets([100, 100])]);
        assert!(settled(Objective::Stp, [0.001; 4]).rivals.is_empty());
        assert!(settled(Objective::Stp, [0.02; 4]).rivals.is_empty());
    }
}
