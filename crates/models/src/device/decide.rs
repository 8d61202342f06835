//! A decision in milliseconds: many vectors of budgets race, event by event.
//!
//! All run for a short while, the better ones for longer, and so on until one is left. For two
//! and three tenants these are all vectors of steps, because single vectors can be better than
//! all of their neighbours. For more, or where iterations are too long for that, they are what the
//! summary proposes, and then the neighbours of the best. What it may cost is a number of events
//! and not a time, so that the same tenants always get the same budgets.

use super::DeviceError;
use super::allocate::{Effort, Goal, Measurement, Promise, STEPS, Unallocated, part, proposals};
use super::batch::{Asks, Batch, Paused, WIDTH};
use super::evaluate::{Operators, Sharing};
use super::modes::thorough;
use super::run::with_lanes;
use super::summary::Summary;
use super::tenant::Tenant;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::Ppm;

/// Tenants for which all vectors of steps are looked at.
const GRID_MAX: usize = 3;
/// The shortest first look at a vector of the grid, in iterations of the slowest tenant alone.
const GRID_ITERATIONS: f64 = 0.1;
/// The shortest first look at any other: some of these iterations, and no longer than this.
const GLANCE_ITERATIONS: f64 = 4.0;
const GLANCE_NS_MAX: f64 = 8e6;
/// The part of the vectors that goes on after each look, and how much longer the next look is.
const KEPT: f64 = 0.6;
const GROWTH: f64 = 1.6;
/// What a decision may cost; a nanosecond each, or a little less, on the machine of docs/device.md.
const COST: f64 = 5_500_000.0;
/// What an event costs: so much, and so much more for each lane of a run, of which there are as many as
/// tenants or a few more.
const COST_OF_EVENT: f64 = 3.2;
const COST_OF_LANE: f64 = 2.5;
/// What an evaluation by the summary costs, in the same way.
const COST_OF_SUMMARY: f64 = 16_000.0;
const COST_OF_TENANT: f64 = 5_400.0;
/// Evaluations by the summary; how many of the vectors that it likes best race; and the part of the cost
/// that is left for races at least, however many tenants there are.
const PROPOSE: Effort = Effort { evaluations: 56, ..Effort::QUICK };
const PROPOSED: usize = 8;
const RACES_MIN: f64 = 0.3;
/// The part of all races that is spent on the plain vectors.
const PLAIN: f64 = 0.05;
/// Without the grid: the part that is spent on proposals, and on the neighbours of the best so far, once
/// and again.
const PROPOSALS: f64 = 0.15;
const NEIGHBOURS: [f64; 2] = [0.4, 0.4];
/// Runners-up that meet the neighbours of the best.
const RUNNERS_UP: usize = 2;
/// Where promises have to be checked, only this part of it all is spent; races aim higher than
/// what was promised by this factor, because they are short; and so many vectors are checked before a
/// thorough search is made.
const PROMISED: f64 = 0.25;
const MARGIN: f64 = 1.01;
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
/// evaluated in full, and where it breaks one, or tenants answer requests, which a race knows nothing
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
type Found = (Vec<Vec<Ppm>>, usize);

fn choose(device: &Operators<'_>, goal: &Goal, is_promised: bool) -> Result<Found, DeviceError> {
    let cost = if is_promised { PROMISED * COST } else { COST };
    let mut aim = goal.clone();
    aim.promises.iter_mut().for_each(|promise| promise.floor *= MARGIN);
    with_lanes!(device.list().len(), LANES => {
        let cost_of_event = COST_OF_EVENT + COST_OF_LANE * LANES as f64;
        let events_max = cost / cost_of_event;
        Race::<LANES> { device, goal, aim, cost_of_event, events_max, per_ns: None, evaluations: 0 }
            .search()
    })
}

/// An iteration of the slowest tenant alone.
fn slowest_ns(device: &Operators<'_>) -> f64 {
    device.list().iter().map(Tenant::alone_ns).fold(0.0, f64::max)
}

/// All vectors of steps, and the speeds of the tenants under these caps with nobody beside them, which
/// they cannot exceed together. Of steps that are enough for all operators of a tenant, the least.
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

/// The same with one budget set to another step.
fn neighbours(budgets: &[Ppm]) -> Vec<Vec<Ppm>> {
    let mut vectors = Vec::new();
    for (tenant, budget) in budgets.iter().enumerate() {
        for step in STEPS.into_iter().filter(|step| step != budget) {
            let mut vector = budgets.to_vec();
            vector[tenant] = step;
            vectors.push(vector);
        }
    }
    vectors
}

/// A vector, and what it achieved for as long as it took part.
#[derive(Clone)]
struct Ranked {
    budgets: Vec<Ppm>,
    broken: f64,
    value: f64,
}

fn budgets_of(ranked: Vec<Ranked>) -> Vec<Vec<Ppm>> {
    ranked.into_iter().map(|entrant| entrant.budgets).collect()
}

struct Entrant<const N: usize> {
    ranked: Ranked,
    run: Paused<N>,
}

/// Comparisons of vectors by how the operators run under them.
struct Race<'a, const N: usize> {
    device: &'a Operators<'a>,
    goal: &'a Goal,
    /// The goal, with a margin for promises.
    aim: Goal,
    cost_of_event: f64,
    /// Events that all races together may take.
    events_max: f64,
    /// Events of a run in a nanosecond, roughly, to plan with; known from the first race on.
    per_ns: Option<f64>,
    /// Vectors that were looked at.
    evaluations: usize,
}

impl<const N: usize> Race<'_, N> {
    fn search(mut self) -> Result<Found, DeviceError> {
        let tenants = self.device.list().len();
        let plain = [1, 2, tenants].map(|times| vec![part(times, tenants); tenants]);
        let glance_ns = (GLANCE_ITERATIONS * slowest_ns(self.device)).min(GLANCE_NS_MAX);
        let plain = self.run(plain.to_vec(), PLAIN, glance_ns);
        let found = if tenants <= GRID_MAX { self.grid(&plain) } else { None };
        let found = match found {
            Some(found) => found,
            None => self.climb(plain, glance_ns)?,
        };
        Ok((budgets_of(found), self.evaluations))
    }

    /// Runs with all vectors of steps that could be better than the plain ones. `None` if there are too
    /// many of them for so few events.
    fn grid(&mut self, plain: &[Ranked]) -> Option<Vec<Ranked>> {
        // A plain vector that breaks a promise is no measure.
        let least = if plain[0].broken > 0.0 { f64::NEG_INFINITY } else { plain[0].value };
        let is_hopeful = |y: Vec<f64>| {
            self.goal.value(&y) > least
                && self.goal.failing(&Measurement { y, ..Measurement::default() }).is_empty()
        };
        let mut vectors = budgets_of(plain.to_vec());
        for (budgets, y) in grid(self.device) {
            if is_hopeful(y) {
                vectors.push(budgets);
            }
        }
        let window_ns = self.window_ns(vectors.len(), 1.0 - PLAIN)?;
        let is_long = window_ns >= GRID_ITERATIONS * slowest_ns(self.device);
        is_long.then(|| self.run(vectors, 1.0 - PLAIN, 0.0))
    }

    /// Runs with what the summary proposes, and then with the neighbours of the best.
    fn climb(&mut self, plain: Vec<Ranked>, glance_ns: f64) -> Result<Vec<Ranked>, DeviceError> {
        let mut summary = Summary::new(self.device.gpu(), self.device.list())?;
        let proposed = proposals(&mut summary, self.goal, PROPOSE)?;
        let each = COST_OF_SUMMARY + COST_OF_TENANT * self.device.list().len() as f64;
        let left = self.events_max - proposed.len() as f64 * each / self.cost_of_event;
        self.events_max = left.max(RACES_MIN * self.events_max);
        self.evaluations += proposed.len();

        let mut vectors = budgets_of(plain);
        vectors.extend(proposed.into_iter().take(PROPOSED));
        let mut ranked = self.run(vectors, PROPOSALS, glance_ns);
        for part in NEIGHBOURS {
            ranked.truncate(1 + RUNNERS_UP);
            let mut vectors = budgets_of(ranked);
            vectors.extend(neighbours(&vectors[0]));
            ranked = self.run(vectors, part, glance_ns);
        }
        Ok(ranked)
    }

    /// How long the first look at each of so many may be, if a race takes some part of all events.
    fn window_ns(&self, entrants: usize, part: f64) -> Option<f64> {
        self.per_ns.map(|per_ns| part * self.events_max / per_ns / looks(entrants, 1.0))
    }

    /// Ranks vectors, the best first. Those for which there is no time if each gets `glance_ns` at least
    /// are left out, the last first.
    fn run(&mut self, mut vectors: Vec<Vec<Ppm>>, part: f64, glance_ns: f64) -> Vec<Ranked> {
        let mut seen = BTreeSet::new();
        vectors.retain(|vector| seen.insert(vector.clone()));
        let window_ns = |entrants| self.window_ns(entrants, part).unwrap_or(glance_ns);
        while vectors.len() > 2 && window_ns(vectors.len()) < glance_ns {
            vectors.pop();
        }
        let mut window_ns = window_ns(vectors.len()).max(glance_ns);
        self.evaluations += vectors.len();

        let (device, mut asks) = (self.device, Asks::default());
        let mut racing: Vec<Entrant<N>> = enter(device, &mut asks, vectors);
        let mut batch = Batch::<N>::new(device, &asks);
        let (mut passed_ns, mut spent, mut ranked) = (0.0, 0.0, Vec::new());
        loop {
            for entrants in racing.chunks_mut(WIDTH) {
                let mut runs: Vec<&mut Paused<N>> =
                    entrants.iter_mut().map(|entrant| &mut entrant.run).collect();
                batch.go_on(&mut runs, (window_ns - passed_ns) as f32);
            }
            let events = batch.events() as f64 - spent;
            let slots = racing.len().next_multiple_of(WIDTH) as f64;
            if window_ns > passed_ns {
                self.per_ns = Some(events / slots / (window_ns - passed_ns));
            }
            (passed_ns, spent) = (window_ns, spent + events);
            racing.iter_mut().for_each(|entrant| self.judge(entrant, passed_ns));
            racing.sort_by(|a, b| by_rank(&a.ranked, &b.ranked));
            let beaten = racing.split_off(kept(racing.len()));
            ranked.splice(0..0, beaten.into_iter().map(|entrant| entrant.ranked));
            if racing.len() < 2 {
                ranked.splice(0..0, racing.into_iter().map(|entrant| entrant.ranked));
                return ranked;
            }
            // Shorter than planned if more has happened than was foreseen.
            let planned = window_ns * (looks(racing.len(), GROWTH) - racing.len() as f64);
            let left = (part * self.events_max - spent).max(0.0);
            let per_ns = self.per_ns.unwrap_or(f64::INFINITY);
            window_ns *= 1.0 + (GROWTH - 1.0) * (left / (planned * per_ns)).min(1.0);
        }
    }

    fn judge(&self, entrant: &mut Entrant<N>, passed_ns: f64) {
        let speed = |tenant| entrant.run.done_ns(self.device, tenant) / passed_ns;
        let y = (0..self.device.list().len()).map(speed).collect();
        let measured = Measurement { y, ..Measurement::default() };
        entrant.ranked.broken = self.aim.broken_by(&measured);
        entrant.ranked.value = self.aim.value(&measured.y);
    }
}

/// Lets vectors take part. What operators ask is noted once for each tenant and cap.
fn enter<const N: usize>(
    device: &Operators<'_>,
    asks: &mut Asks,
    vectors: Vec<Vec<Ppm>>,
) -> Vec<Entrant<N>> {
    let mut known = BTreeMap::new();
    let mut first = |(tenant, &budget): (usize, &Ppm)| {
        let cap = device.gpu().cap(budget);
        *known.entry((tenant, cap)).or_insert_with(|| asks.add(device, tenant, cap))
    };
    let mut firsts = |vector: &Vec<Ppm>| vector.iter().enumerate().map(&mut first).collect();
    let firsts: Vec<Vec<u32>> = vectors.iter().map(&mut firsts).collect();
    let each = vectors.into_iter().zip(firsts);
    each.map(|(budgets, first)| Entrant {
        run: Paused::new(asks, &first),
        ranked: Ranked { budgets, broken: 0.0, value: 0.0 },
    })
    .collect()
}

/// Promises come first, then the objective; the best is least.
fn by_rank(a: &Ranked, b: &Ranked) -> Ordering {
    a.broken.total_cmp(&b.broken).then(b.value.total_cmp(&a.value))
}

/// How many of so many go on.
fn kept(racing: usize) -> usize {
    if racing > 2 { (racing as f64 * KEPT) as usize } else { 0 }
}

/// What a race of so many takes whose first look is up to this, beyond what all have run before: 1 if it
/// is their first.
fn looks(mut racing: usize, first: f64) -> f64 {
    let (mut window, mut before, mut looks) = (first, 0.0, 0.0);
    loop {
        looks += racing as f64 * (window - before);
        racing = kept(racing);
        if racing < 2 {
            return looks;
        }
        (before, window) = (window, window * GROWTH);
    }
}
