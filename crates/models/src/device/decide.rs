//! A decision in milliseconds: many vectors of budgets race, event by event.
//!
//! All run for a short while, the better ones for longer, and so on until one is left. For two
//! and three tenants these are all vectors of steps, because single vectors can be better than
//! all of their neighbours; for more, or where iterations are too long for that, the summary
//! proposes. What it may cost is a number of events and not a time, so that the same tenants
//! always get the same budgets.

use super::DeviceError;
use super::allocate::{Effort, Goal, Measurement, Promise, STEPS, Unallocated, part, proposals};
use super::evaluate::{Operators, Sharing};
use super::modes::thorough;
use super::run::{Ask, Run, with_lanes};
use super::summary::Summary;
use super::tenant::Tenant;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use tandem_core::Ppm;

/// Tenants for which all vectors of steps are looked at.
const GRID_MAX: usize = 3;
/// The shortest look at a vector of the grid, in iterations of the slowest tenant alone.
const GRID_ITERATIONS: f64 = 0.5;
/// The part of the vectors that goes on after each look, and how much longer the next look is.
const KEPT: f64 = 0.6;
const GROWTH: f64 = 1.6;
/// The shortest look at a vector that was proposed: some iterations of the slowest tenant alone, and
/// no longer than this.
const GLANCE_ITERATIONS: f64 = 4.0;
const GLANCE_NS_MAX: f64 = 8e6;
/// Vectors that the summary may try.
const PROPOSE: Effort = Effort { evaluations: 64, ..Effort::QUICK };
/// What a decision may cost, and what an event does: so much, and so much more for each lane
/// of a run, of which there are as many as tenants or a few more.
const COST: f64 = 4_400_000.0;
const COST_OF_EVENT: f64 = 11.0;
const COST_OF_LANE: f64 = 3.0;
/// The part of it that is spent on the grid's plain vectors.
const PLAIN: f64 = 0.05;
/// Without the grid: the part that is spent on proposals, on the neighbours of the best so far, once and
/// again, and on comparing what was found with the best plain vector. The rest is for the summary.
const PROPOSALS: f64 = 0.16;
const NEIGHBOURS: [f64; 2] = [0.14, 0.14];
const DUEL: f64 = 0.1;
/// Where promises have to be checked, only this part of it all is spent.
const PROMISED: f64 = 0.25;
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
type Found = (Vec<Vec<Ppm>>, usize);

fn choose(device: &Operators<'_>, goal: &Goal, is_promised: bool) -> Result<Found, DeviceError> {
    let tenants = device.list().len();
    let cost = if is_promised { PROMISED * COST } else { COST };
    let lanes = with_lanes!(tenants, LANES => LANES as f64);
    let events_max = cost / (COST_OF_EVENT + COST_OF_LANE * lanes);
    let plain = [1, 2, tenants].map(|times| vec![part(times, tenants); tenants]);
    let race = Race { device, goal, events_max, per_ns: events_per_ns(device, &plain[1])? };
    if tenants <= GRID_MAX
        && let Some(found) = race.grid(&plain)?
    {
        return Ok(found);
    }
    race.proposals(&plain)
}

/// How often anything happens.
fn events_per_ns(device: &Operators<'_>, budgets: &[Ppm]) -> Result<f64, DeviceError> {
    let caps: Vec<u32> = budgets.iter().map(|&budget| device.gpu().cap(budget)).collect();
    let asks: Vec<Vec<Ask>> =
        caps.iter().enumerate().map(|(index, &cap)| device.asks(index, cap)).collect();
    let asks: Vec<&[Ask]> = asks.iter().map(Vec::as_slice).collect();
    let window_ns = glance_ns(device);
    let events = with_lanes!(device.list().len(), LANES => {
        let mut run = Run::<LANES>::new(device, &asks, false);
        run.until(window_ns, |_| {})?;
        run.events()
    });
    Ok(events.max(1) as f64 / window_ns)
}

fn glance_ns(device: &Operators<'_>) -> f64 {
    (GLANCE_ITERATIONS * slowest_ns(device)).min(GLANCE_NS_MAX)
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
#[derive(Clone, Copy)]
struct Race<'a> {
    device: &'a Operators<'a>,
    goal: &'a Goal,
    /// Events that it may take.
    events_max: f64,
    /// Events in a nanosecond, roughly: to plan with before there are any.
    per_ns: f64,
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

struct Entrant<'a, const N: usize> {
    ranked: Ranked,
    run: Run<'a, N>,
}

/// What operators ask, by tenant and cap: most vectors have their caps in common with others.
type Asks = BTreeMap<(usize, u32), Vec<Ask>>;

impl Race<'_> {
    /// Some part of it.
    fn part(self, part: f64) -> Self {
        Self { events_max: self.events_max * part, ..self }
    }

    /// Runs with all vectors of steps that could be better than the plain ones. `None` if there are too
    /// many of them for so few events.
    fn grid(self, plain: &[Vec<Ppm>]) -> Result<Option<Found>, DeviceError> {
        let first = self.part(PLAIN).run(plain.to_vec(), 0.0)?;
        // A plain vector that breaks a promise is no measure.
        let least = if first[0].broken > 0.0 { f64::NEG_INFINITY } else { first[0].value };
        let is_hopeful = |y: Vec<f64>| {
            self.goal.value(&y) > least
                && self.goal.failing(&Measurement { y, ..Measurement::default() }).is_empty()
        };
        let mut vectors = budgets_of(first);
        for (budgets, y) in grid(self.device) {
            if is_hopeful(y) && !plain.contains(&budgets) {
                vectors.push(budgets);
            }
        }
        let race = self.part(1.0 - PLAIN);
        if race.window_ns(vectors.len()) < GRID_ITERATIONS * slowest_ns(self.device) {
            return Ok(None);
        }
        let evaluations = vectors.len();
        Ok(Some((budgets_of(race.run(vectors, 0.0)?), evaluations)))
    }

    /// Runs with what the summary proposes, and then with the neighbours of the best.
    fn proposals(self, plain: &[Vec<Ppm>]) -> Result<Found, DeviceError> {
        let mut summary = Summary::new(self.device.gpu(), self.device.list())?;
        let proposed = proposals(&mut summary, self.goal, PROPOSE)?;
        let mut evaluations = proposed.len();
        let glance_ns = glance_ns(self.device);
        let race = |vectors, part| self.part(part).run(vectors, glance_ns).map(budgets_of);

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

    /// Ranks vectors, the best first. Those for which there is no time if each gets `glance_ns` at least
    /// are left out, the last first.
    fn run(&self, vectors: Vec<Vec<Ppm>>, glance_ns: f64) -> Result<Vec<Ranked>, DeviceError> {
        with_lanes!(self.device.list().len(), LANES => self.run_in::<LANES>(vectors, glance_ns))
    }

    fn run_in<const N: usize>(
        &self,
        mut vectors: Vec<Vec<Ppm>>,
        glance_ns: f64,
    ) -> Result<Vec<Ranked>, DeviceError> {
        let mut seen = Vec::new();
        vectors.retain(|vector| {
            let is_new = !seen.contains(vector);
            seen.push(vector.clone());
            is_new
        });
        while vectors.len() > 2 && self.window_ns(vectors.len()) < glance_ns {
            vectors.pop();
        }
        let mut window_ns = self.window_ns(vectors.len()).max(glance_ns);
        let asks = self.asks(&vectors);
        let enter = |budgets: Vec<Ppm>| Entrant {
            run: self.begin::<N>(&asks, &budgets),
            ranked: Ranked { budgets, broken: 0.0, value: 0.0 },
        };
        let mut racing: Vec<Entrant<'_, N>> = vectors.into_iter().map(enter).collect();
        let (mut ranked, mut spent) = (Vec::new(), 0);
        loop {
            let before: u64 = racing.iter().map(|entrant| entrant.run.events()).sum();
            let (pairs, odd) = racing.as_chunks_mut::<2>();
            for [one, other] in pairs {
                Run::both_until(&mut one.run, &mut other.run, window_ns)?;
            }
            for one in odd {
                one.run.until(window_ns, |_| {})?;
            }
            let events: u64 = racing.iter().map(|entrant| entrant.run.events()).sum();
            spent += events - before;
            let per_ns = events as f64 / (racing.len() as f64 * window_ns);
            racing.iter_mut().for_each(|entrant| self.judge(entrant));
            racing.sort_by(|a, b| by_rank(&a.ranked, &b.ranked));
            let beaten: Vec<Ranked> =
                racing.drain(kept(racing.len())..).map(|entrant| entrant.ranked).collect();
            ranked.splice(0..0, beaten);
            if racing.len() < 2 {
                ranked.splice(0..0, racing.into_iter().map(|entrant| entrant.ranked));
                return Ok(ranked);
            }
            // Shorter than planned if more has happened than was foreseen.
            let planned = window_ns * per_ns * (looks(racing.len(), GROWTH) - racing.len() as f64);
            let left = (self.events_max - spent as f64).max(0.0);
            window_ns *= 1.0 + (GROWTH - 1.0) * (left / planned).min(1.0);
        }
    }

    /// How long the first look at each of so many may be.
    fn window_ns(&self, entrants: usize) -> f64 {
        self.events_max / self.per_ns / looks(entrants, 1.0)
    }

    fn asks(&self, vectors: &[Vec<Ppm>]) -> Asks {
        let mut asks = Asks::new();
        for (index, &budget) in vectors.iter().flat_map(|vector| vector.iter().enumerate()) {
            let cap = self.device.gpu().cap(budget);
            asks.entry((index, cap)).or_insert_with(|| self.device.asks(index, cap));
        }
        asks
    }

    fn begin<'b, const N: usize>(&'b self, asks: &'b Asks, budgets: &[Ppm]) -> Run<'b, N> {
        let each = budgets.iter().enumerate();
        let of = |(index, &budget): (usize, &Ppm)| {
            asks[&(index, self.device.gpu().cap(budget))].as_slice()
        };
        Run::new(self.device, &each.map(of).collect::<Vec<_>>(), false)
    }

    fn judge<const N: usize>(&self, entrant: &mut Entrant<'_, N>) {
        let measured = Measurement { y: entrant.run.speeds(), ..Measurement::default() };
        entrant.ranked.broken = self.goal.broken_by(&measured);
        entrant.ranked.value = self.goal.value(&measured.y);
    }
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
