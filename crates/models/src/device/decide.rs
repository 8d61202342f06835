//! A decision in milliseconds: the summary proposes budgets, and the operators choose among them.
//!
//! Many vectors are evaluated event by event for a short while, the better half of them for twice as
//! long, and so on until one is left. What that may cost is a number of events and not a time, so that the
//! same tenants always get the same budgets.

use super::DeviceError;
use super::allocate::{Effort, Goal, Measurement, Promise, STEPS, Unallocated, part, proposals};
use super::evaluate::{Operators, Sharing, Trial};
use super::modes::thorough;
use super::summary::Summary;
use super::tenant::Tenant;
use tandem_core::Ppm;

/// The shortest look at a vector: some iterations of the slowest tenant alone, and no longer than this.
const GLANCE_ITERATIONS: f64 = 4.0;
const GLANCE_NS_MAX: f64 = 8e6;
/// Vectors that the summary may try.
const PROPOSE: Effort = Effort { evaluations: 64, ..Effort::QUICK };
/// What a decision may cost: events, times this constant more than the tenants, as the cost of an event
/// grows with them.
const COST: f64 = 540_000.0;
const COST_BASE: usize = 3;
/// The part of it that is spent on proposals, on the neighbours of the best so far, once and again, and
/// on comparing what was found with the best plain vector.
const PROPOSALS: f64 = 0.3;
const NEIGHBOURS: [f64; 2] = [0.25, 0.25];
const DUEL: f64 = 0.2;
/// Where promises have to be checked, only this part of it all is spent.
const PROMISED: f64 = 0.3;
/// Proposals that differ by no more than this in any budget are alike; one of them is enough, as the
/// neighbours of the best are looked at later.
const ALIKE: u32 = 100_000;
/// Runners-up that meet the neighbours of the best.
const RUNNERS_UP: usize = 2;
/// Vectors that are checked for promises before a thorough search is made.
const CHECKED: usize = 2;

/// Budgets that were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// One for each tenant.
    pub budgets: Vec<Ppm>,
    /// Vectors that were looked at, however shortly.
    pub evaluations: usize,
}

/// Chooses budgets within milliseconds. They keep every promise: where there are any, what is chosen is
/// evaluated in full, and where it breaks one, or tenants answer requests, which the summary knows nothing
/// of, the search is thorough and takes seconds.
pub fn decide(
    device: &mut Operators<'_>,
    goal: &Goal,
) -> Result<Decision, Unallocated<DeviceError>> {
    let is_answering = device.list().iter().any(|tenant| tenant.requests.is_some());
    if !is_answering {
        let is_promised = goal.promises.iter().any(Promise::is_one);
        let (ranked, evaluations) =
            choose(device, goal, is_promised).map_err(Unallocated::Measure)?;
        for budgets in ranked.into_iter().take(CHECKED) {
            let keeps = |measured: Measurement| goal.failing(&measured).is_empty();
            let checked = || device.evaluate(Sharing::Budgets(&budgets)).map(keeps);
            if !is_promised || checked().map_err(Unallocated::Measure)? {
                return Ok(Decision { budgets, evaluations });
            }
        }
    }
    let found = thorough(device, goal)?;
    Ok(Decision { budgets: found.budgets, evaluations: found.evaluations })
}

/// Vectors of budgets, the best first, and how many were looked at.
fn choose(
    device: &Operators<'_>,
    goal: &Goal,
    is_promised: bool,
) -> Result<(Vec<Vec<Ppm>>, usize), DeviceError> {
    let tenants = device.list().len();
    let mut summary = Summary::new(device.gpu(), device.list())?;
    let proposed = proposals(&mut summary, goal, PROPOSE)?;
    let mut evaluations = proposed.len();
    let plain = [1, 2, tenants].map(|times| vec![part(times, tenants); tenants]);
    let cost = COST / (tenants + COST_BASE) as f64 * if is_promised { PROMISED } else { 1.0 };
    let race = |vectors, part: f64| Race { device, goal, events_max: cost * part }.run(vectors);

    let mut vectors = plain.to_vec();
    for vector in proposed {
        if !vectors.iter().any(|other| is_alike(other, &vector)) {
            vectors.push(vector);
        }
    }
    let first = race(vectors, PROPOSALS)?;
    let mut ranked = first.clone();
    for part in NEIGHBOURS {
        let mut near = neighbours(&ranked[0]);
        ranked.truncate(1 + RUNNERS_UP);
        evaluations += near.len();
        ranked.append(&mut near);
        ranked = race(ranked, part)?;
    }
    // A plain vector that lost by bad luck gets another chance.
    let best_plain = first.iter().find(|vector| plain.contains(vector));
    if let Some(best_plain) = best_plain.filter(|vector| **vector != ranked[0]) {
        let winner = race(vec![ranked[0].clone(), best_plain.clone()], DUEL)?.swap_remove(0);
        ranked.retain(|vector| *vector != winner);
        ranked.insert(0, winner);
    }
    Ok((ranked, evaluations))
}

fn is_alike(a: &[Ppm], b: &[Ppm]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.0.abs_diff(b.0) <= ALIKE)
}

/// The same with one budget set to another step, the nearest steps first.
fn neighbours(budgets: &[Ppm]) -> Vec<Vec<Ppm>> {
    let mut vectors = Vec::new();
    for (tenant, budget) in budgets.iter().enumerate() {
        for step in STEPS.into_iter().filter(|step| step != budget) {
            let mut vector = budgets.to_vec();
            vector[tenant] = step;
            vectors.push((step.0.abs_diff(budget.0), vector));
        }
    }
    // Stable: among equals an earlier tenant goes first.
    vectors.sort_by_key(|(distance, _)| *distance);
    vectors.into_iter().map(|(_, vector)| vector).collect()
}

/// A comparison of vectors by how the operators run under them.
struct Race<'a> {
    device: &'a Operators<'a>,
    goal: &'a Goal,
    /// Events that it may take.
    events_max: f64,
}

struct Entrant<'a> {
    budgets: Vec<Ppm>,
    trial: Trial<'a>,
    broken: f64,
    value: f64,
}

impl Race<'_> {
    /// Ranks vectors, the best first. Those for which there is no time are left out, the last first.
    fn run(&self, mut vectors: Vec<Vec<Ppm>>) -> Result<Vec<Vec<Ppm>>, DeviceError> {
        let mut seen = Vec::new();
        vectors.retain(|vector| {
            let is_new = !seen.contains(vector);
            seen.push(vector.clone());
            is_new
        });
        let iterations_ns = self.device.list().iter().map(Tenant::alone_ns);
        let glance_ns = (GLANCE_ITERATIONS * iterations_ns.fold(0.0, f64::max)).min(GLANCE_NS_MAX);
        let mut first = self.device.trial(&vectors[0]);
        first.until(glance_ns)?;
        let glances = self.events_max / (first.events() as f64).max(1.0);
        while vectors.len() > 2 && looks(vectors.len()) > glances {
            vectors.pop();
        }
        let mut window_ns = glance_ns * (glances / looks(vectors.len())).max(1.0);
        let mut racing: Vec<Entrant<'_>> = vectors
            .into_iter()
            .map(|budgets| Entrant {
                trial: self.device.trial(&budgets),
                budgets,
                broken: 0.0,
                value: 0.0,
            })
            .collect();
        let mut ranked = Vec::new();
        loop {
            for entrant in &mut racing {
                self.look(entrant, window_ns)?;
            }
            racing.sort_by(|a, b| a.broken.total_cmp(&b.broken).then(b.value.total_cmp(&a.value)));
            let kept = if racing.len() > 2 { racing.len() / 2 } else { 0 };
            let beaten: Vec<Vec<Ppm>> =
                racing.drain(kept..).map(|entrant| entrant.budgets).collect();
            ranked.splice(0..0, beaten);
            if racing.len() < 2 {
                ranked.splice(0..0, racing.into_iter().map(|entrant| entrant.budgets));
                return Ok(ranked);
            }
            window_ns *= 2.0;
        }
    }

    fn look(&self, entrant: &mut Entrant<'_>, window_ns: f64) -> Result<(), DeviceError> {
        entrant.trial.until(window_ns)?;
        let measured = Measurement { y: entrant.trial.speeds(), ..Measurement::default() };
        entrant.broken = self.goal.broken_by(&measured);
        entrant.value = self.goal.value(&measured.y);
        Ok(())
    }
}

/// First looks that a race of so many costs: each later round is half as many for as long again.
fn looks(entrants: usize) -> f64 {
    let entrants = entrants as f64;
    entrants * (1.0 + (entrants.log2() - 1.0).max(0.0) / 2.0)
}
