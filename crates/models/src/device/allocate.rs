//! Searches for the best budgets for an objective. It only needs the tenants' speeds under given budgets, so
//! that it works with a model and with live measurements.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use tandem_core::{BUDGET_MIN, PPM_ONE, Ppm};

/// Budgets that are tried when one tenant is varied.
pub(super) const STEPS: [Ppm; 8] = [
    Ppm(100_000),
    Ppm(200_000),
    Ppm(300_000),
    Ppm(400_000),
    Ppm(500_000),
    Ppm(600_000),
    Ppm(800_000),
    Ppm(1_000_000),
];
/// Amounts moved from one tenant to another when two are varied.
const SHIFTS: [u32; 2] = [100_000, 50_000];
/// Largest number of rounds over all tenants.
const ROUNDS_MAX: usize = 4;
/// Largest number of moves between pairs: under small noise, gains could go on for ever.
const SHIFTS_MAX: usize = 64;
/// Values closer than this are equal.
const TIE: f64 = 1e-9;
/// The smallest speed in a logarithm: without progress it would be infinite.
const Y_MIN: f64 = 1e-9;

/// The result of an evaluation of budgets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// Speed of each tenant relative to running alone.
    pub y: Vec<f64>,
    /// The same over each of several windows, or parts of one; fewer than two mean no noise.
    pub parts: Vec<Vec<f64>>,
    /// 99th percentile of the latency of tenants that serve requests.
    pub p99_ns: Vec<Option<f64>>,
    /// Length of the measurement.
    pub window_ns: f64,
}

impl Measurement {
    /// System throughput (STP): the sum of all speeds relative to running alone; one after the other is 1.
    pub fn stp(&self) -> f64 {
        self.y.iter().sum()
    }

    /// The smallest speed.
    pub fn worst(&self) -> f64 {
        self.y.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Standard error of `value` over the parts.
    pub fn noise(&self, value: impl Fn(&[f64]) -> f64) -> f64 {
        standard_error(self.parts.iter().map(|part| value(part)))
    }
}

/// Standard error of the mean; zero for fewer than two values.
pub(super) fn standard_error(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count() as f64;
    if count < 2.0 {
        return 0.0;
    }
    let mean = values.clone().sum::<f64>() / count;
    let spread: f64 = values.map(|value| (value - mean).powi(2)).sum();
    (spread / (count - 1.0) / count).sqrt()
}

/// Evaluates budgets: a model, or a GPU.
pub trait BudgetEvaluator {
    /// Why an evaluation failed.
    type Error;

    /// Number of tenants.
    fn tenants(&self) -> usize;

    /// Share of the GPU that each keeps busy alone, if known.
    fn duties(&self) -> Option<Vec<f64>> {
        None
    }

    /// Evaluates budgets.
    fn measure(&mut self, budgets: &[Ppm]) -> Result<Measurement, Self::Error>;
}

/// What is maximised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Objective {
    /// Σ w·ln y: no tenant starves.
    #[default]
    Nash,
    /// Σ w·y: total throughput.
    Stp,
}

/// Weight and guarantees of a tenant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guarantee {
    /// Its weight.
    pub weight: f64,
    /// The smallest share of its solo speed; zero guarantees nothing.
    pub floor: f64,
    /// The largest 99th percentile of its latency.
    pub p99_ns: Option<f64>,
}

impl Guarantee {
    /// Whether it guarantees anything.
    pub(super) fn is_one(&self) -> bool {
        self.floor > 0.0 || self.p99_ns.is_some()
    }
}

/// Objective and guarantees of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// What is maximised.
    pub objective: Objective,
    /// One guarantee for each tenant.
    pub guarantees: Vec<Guarantee>,
}

impl Goal {
    /// The objective at these speeds.
    pub fn value(&self, y: &[f64]) -> f64 {
        let terms = self.guarantees.iter().zip(y).map(|(guarantee, &y)| match self.objective {
            Objective::Nash => guarantee.weight * y.max(Y_MIN).ln(),
            Objective::Stp => guarantee.weight * y,
        });
        terms.sum()
    }

    /// Relative violation of a tenant's guarantees; zero if they are kept.
    fn broken(&self, tenant: usize, measured: &Measurement) -> f64 {
        let Guarantee { floor, p99_ns, .. } = self.guarantees[tenant];
        let speed = if floor > 0.0 { (floor - measured.y[tenant]).max(0.0) / floor } else { 0.0 };
        let latency = match (p99_ns, measured.p99_ns.get(tenant).copied().flatten()) {
            (Some(guaranteed), Some(found)) => (found / guaranteed - 1.0).max(0.0),
            _ => 0.0,
        };
        speed + latency
    }

    /// The sum over all tenants.
    pub(super) fn broken_by(&self, measured: &Measurement) -> f64 {
        (0..measured.y.len()).map(|tenant| self.broken(tenant, measured)).sum()
    }

    /// The tenants whose guarantees are violated.
    pub fn failing(&self, measured: &Measurement) -> Vec<usize> {
        (0..measured.y.len()).filter(|&tenant| self.broken(tenant, measured) > 0.0).collect()
    }
}

/// Limits of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Number of starting vectors to climb from, the best first.
    pub starts: usize,
    /// Largest number of evaluations; then the best so far counts.
    pub evaluations: usize,
    /// Whether the best vector tried is returned, even if it gained less than the noise: right for a model,
    /// which is deterministic, and wrong for measurements, where it would be the luckiest one.
    pub best_seen: bool,
}

impl Effort {
    /// For a model whose evaluation takes milliseconds, where the search may take seconds.
    pub const THOROUGH: Effort =
        Effort { starts: usize::MAX, evaluations: 10_000, best_seen: true };
    /// For a model and many tenants, where a thorough search would take minutes.
    pub(super) const BOUNDED: Effort = Effort { starts: 1, evaluations: 240, best_seen: true };
    /// For decisions with the summary: 10 ms for eight tenants.
    pub const QUICK: Effort = Effort { starts: usize::MAX, evaluations: 160, best_seen: true };
    /// For live measurements, where an evaluation takes a window of real time.
    pub const LIVE: Effort = Effort { starts: 1, evaluations: 100, best_seen: false };
}

/// Budgets that keep every guarantee.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetAllocation {
    /// One for each tenant.
    pub budgets: Vec<Ppm>,
    /// The evaluation of the budgets.
    pub measured: Measurement,
    /// Its objective.
    pub value: f64,
    /// Its standard error.
    pub noise: f64,
    /// Number of budget vectors tried.
    pub evaluations: usize,
}

/// Why there are no budgets.
#[derive(Clone, Debug, PartialEq)]
pub enum Unallocated<E> {
    /// No vector tried keeps every guarantee.
    Guarantees {
        /// The tenants whose guarantees are violated in the closest vector.
        tenants: Vec<usize>,
        /// The evaluation of the closest vector.
        closest: Measurement,
        /// Number of budget vectors tried.
        evaluations: usize,
    },
    /// An evaluation failed.
    Measure(E),
}

/// A budget vector and its value.
#[derive(Clone, Debug)]
struct SearchPoint {
    budgets: Vec<Ppm>,
    measured: Measurement,
    broken: f64,
    value: f64,
    noise: f64,
}

impl SearchPoint {
    fn sum(&self) -> u64 {
        self.budgets.iter().map(|budget| u64::from(budget.0)).sum()
    }
}

struct BudgetSearch<'a, T: BudgetEvaluator> {
    source: &'a mut T,
    goal: &'a Goal,
    known: BTreeMap<Vec<Ppm>, Measurement>,
    evaluations_max: usize,
}

/// Finds budgets for the tenants of `source`: the best of some starting vectors, then changes of one tenant,
/// then shifts between two. Ties go to the smaller sum of budgets, then to the earlier tenant.
pub fn allocate<T: BudgetEvaluator>(
    source: &mut T,
    goal: &Goal,
    effort: Effort,
) -> Result<BudgetAllocation, Unallocated<T::Error>> {
    allocate_from(&[], source, goal, effort)
}

/// The same with additional starting vectors.
pub(super) fn allocate_from<T: BudgetEvaluator>(
    more: &[Vec<Ppm>],
    source: &mut T,
    goal: &Goal,
    effort: Effort,
) -> Result<BudgetAllocation, Unallocated<T::Error>> {
    let mut starts = starts(source.tenants(), source.duties().as_deref(), goal);
    starts.extend_from_slice(more);
    let evaluations_max = effort.evaluations;
    let mut search = BudgetSearch { source, goal, known: BTreeMap::new(), evaluations_max };
    let mut best = search.run(&starts, effort.starts).map_err(Unallocated::Measure)?;
    if effort.best_seen {
        best = search.best_seen(best);
    }
    let evaluations = search.known.len();
    let SearchPoint { budgets, measured, broken, value, noise } = best;
    if broken > 0.0 {
        let tenants = goal.failing(&measured);
        return Err(Unallocated::Guarantees { tenants, closest: measured, evaluations });
    }
    Ok(BudgetAllocation { budgets, measured, value, noise, evaluations })
}

/// The vectors that `allocate` would try, the best first, for another evaluation to choose from.
pub(super) fn proposals<T: BudgetEvaluator>(
    source: &mut T,
    goal: &Goal,
    effort: Effort,
) -> Result<Vec<Vec<Ppm>>, T::Error> {
    let starts = starts(source.tenants(), source.duties().as_deref(), goal);
    let evaluations_max = effort.evaluations;
    let mut search = BudgetSearch { source, goal, known: BTreeMap::new(), evaluations_max };
    search.run(&starts, effort.starts)?;
    let known = std::mem::take(&mut search.known);
    let mut points: Vec<SearchPoint> =
        known.iter().map(|(budgets, measured)| search.judge(budgets, measured.clone())).collect();
    points.sort_by(by_rank);
    Ok(points.into_iter().map(|point| point.budgets).collect())
}

/// Starting vectors: equal parts, twice as much, everything, in proportion to what each keeps busy, and
/// tenants with guarantees first.
fn starts(tenants: usize, duties: Option<&[f64]>, goal: &Goal) -> Vec<Vec<Ppm>> {
    let mut starts: Vec<Vec<Ppm>> = [1, 2].map(|times| vec![part(times, tenants); tenants]).into();
    starts.push(vec![Ppm::ONE; tenants]);
    if let Some(duties) = duties {
        let sum = duties.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        starts.push(duties.iter().map(|duty| budget(2.0 * duty / sum)).collect());
    }
    if goal.guarantees.iter().any(Guarantee::is_one) {
        let everything_or_least =
            |guarantee: &Guarantee| if guarantee.is_one() { Ppm::ONE } else { BUDGET_MIN };
        starts.push(goal.guarantees.iter().map(everything_or_least).collect());
    }
    starts
}

/// `times` of `tenants` parts of the GPU, as a valid budget.
pub(super) fn part(times: usize, tenants: usize) -> Ppm {
    budget(times as f64 / tenants.max(1) as f64)
}

/// A share of the GPU as a budget.
fn budget(share: f64) -> Ppm {
    let ppm = (share * f64::from(PPM_ONE)).round() as u32;
    Ppm(ppm).clamp(BUDGET_MIN, Ppm::ONE)
}

impl<T: BudgetEvaluator> BudgetSearch<'_, T> {
    fn point(&mut self, budgets: &[Ppm]) -> Result<SearchPoint, T::Error> {
        let measured = match self.known.get(budgets) {
            Some(known) => known.clone(),
            None => {
                let measured = self.source.measure(budgets)?;
                self.known.insert(budgets.to_owned(), measured.clone());
                measured
            }
        };
        Ok(self.judge(budgets, measured))
    }

    fn judge(&self, budgets: &[Ppm], measured: Measurement) -> SearchPoint {
        let broken = self.goal.broken_by(&measured);
        let value = self.goal.value(&measured.y);
        let noise = measured.noise(|y| self.goal.value(y));
        SearchPoint { budgets: budgets.to_owned(), measured, broken, value, noise }
    }

    /// The best vector tried; `top` among equals.
    fn best_seen(&self, top: SearchPoint) -> SearchPoint {
        self.known.iter().fold(top, |best, (budgets, measured)| {
            let point = self.judge(budgets, measured.clone());
            if is_better(&point, &best, 0.0) { point } else { best }
        })
    }

    /// Climbs from the best of the starts, then from the others, and returns the best point.
    fn run(&mut self, starts: &[Vec<Ppm>], climbs: usize) -> Result<SearchPoint, T::Error> {
        let mut points = Vec::new();
        for start in starts {
            points.push(self.point(start)?);
        }
        // Stable, so that an earlier start goes first among equals.
        points.sort_by(by_rank);
        let mut points = points.into_iter().take(climbs.max(1));
        let first = points.next().expect("there are starts");
        let mut best = self.climb(first)?;
        for start in points {
            let top = self.climb(start)?;
            if is_better(&top, &best, 2.0 * self.gain_noise(&top, &best)) {
                best = top;
            }
        }
        Ok(best)
    }

    fn climb(&mut self, mut best: SearchPoint) -> Result<SearchPoint, T::Error> {
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for tenant in 0..best.budgets.len() {
                moved |= self.vary_one(&mut best, tenant)?;
            }
            if !moved {
                break;
            }
        }
        for _ in 0..SHIFTS_MAX {
            if !self.vary_two(&mut best)? {
                break;
            }
        }
        Ok(best)
    }

    /// Moves to `budgets` if they are better than `best` beyond the noise.
    fn try_move(&mut self, best: &mut SearchPoint, budgets: &[Ppm]) -> Result<bool, T::Error> {
        if self.known.len() >= self.evaluations_max && !self.known.contains_key(budgets) {
            return Ok(false);
        }
        let point = self.point(budgets)?;
        let is_gain = is_better(&point, best, 2.0 * self.gain_noise(&point, best));
        if is_gain {
            *best = point;
        }
        Ok(is_gain)
    }

    /// Standard error of the gain over the parts in which both were measured, so that common variation, such
    /// as the phases of the tenants, cancels.
    fn gain_noise(&self, candidate: &SearchPoint, best: &SearchPoint) -> f64 {
        let pairs = candidate.measured.parts.iter().zip(&best.measured.parts);
        standard_error(pairs.map(|(new, old)| self.goal.value(new) - self.goal.value(old)))
    }

    fn vary_one(&mut self, best: &mut SearchPoint, tenant: usize) -> Result<bool, T::Error> {
        let mut moved = false;
        for step in STEPS {
            if step != best.budgets[tenant] {
                let mut budgets = best.budgets.clone();
                budgets[tenant] = step;
                moved |= self.try_move(best, &budgets)?;
            }
        }
        Ok(moved)
    }

    fn vary_two(&mut self, best: &mut SearchPoint) -> Result<bool, T::Error> {
        let mut moved = false;
        for shift in SHIFTS {
            for taker in 0..best.budgets.len() {
                for giver in (0..best.budgets.len()).filter(|&giver| giver != taker) {
                    let more = best.budgets[taker].0 + shift;
                    let less = best.budgets[giver].0.saturating_sub(shift);
                    if more <= PPM_ONE && less >= BUDGET_MIN.0 {
                        let mut budgets = best.budgets.clone();
                        (budgets[taker], budgets[giver]) = (Ppm(more), Ppm(less));
                        moved |= self.try_move(best, &budgets)?;
                    }
                }
            }
        }
        Ok(moved)
    }
}

/// Guarantees come first, then the objective; the best is smallest.
fn by_rank(a: &SearchPoint, b: &SearchPoint) -> Ordering {
    a.broken.total_cmp(&b.broken).then(b.value.total_cmp(&a.value))
}

/// Guarantees come first, then the objective, if it gains more than `least`; ties go to the smaller sum of
/// budgets.
fn is_better(candidate: &SearchPoint, best: &SearchPoint, least: f64) -> bool {
    let broken = candidate.broken - best.broken;
    if broken.abs() > TIE {
        return broken < 0.0;
    }
    let gain = candidate.value - best.value;
    gain > least.max(TIE) || (gain.abs() <= TIE && candidate.sum() < best.sum())
}
