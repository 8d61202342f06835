//! Races of budget vectors (successive halving): all run for a short round, the better ones for longer, and
//! so on until one batch remains, which uses all remaining events. `decide` chooses the vectors.

use super::allocate::{Goal, Measurement};
use super::batch::{AT_ONCE, Batches, CappedOperators, PausedRun, WIDTH};
use super::evaluate::Operators;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::Ppm;

/// The part of the vectors that continues after each round, and the growth of the rounds.
const KEPT: f64 = 0.6;
const GROWTH: f64 = 1.6;
/// The growth of the final round, for planning: in the end it takes all remaining events.
const LAST_GROWTH: f64 = 2.5;
/// Parts of the final round.
const PARTS: usize = 4;
/// The first round no longer counts for runs this many times as long.
const SETTLED: f64 = 2.5;
/// The shortest round when events run out, relative to the planned or the elapsed time.
const ROUND_MIN: f64 = 0.1;

/// A vector and its result for as long as it took part.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    pub(super) budgets: Vec<Ppm>,
    pub(super) broken: f64,
    pub(super) value: f64,
    /// The value after the first round, which is equally long for all in a race.
    pub(super) at_first: f64,
    /// The values over the parts of the final round, for those in it.
    pub(super) parts: Vec<f64>,
}

pub(super) fn budgets_of(ranked: &[Ranked]) -> Vec<Vec<Ppm>> {
    ranked.iter().map(|entrant| entrant.budgets.clone()).collect()
}

struct Entrant<const N: usize> {
    ranked: Ranked,
    /// Whether it stays in the race to the end.
    stays: bool,
    run: PausedRun<N>,
    /// Work of the tenants after the first round.
    done_at_first: Vec<f64>,
}

/// Comparisons of vectors by running the operators under them.
pub(super) struct Race<'a, const N: usize> {
    device: &'a Operators<'a>,
    goal: Goal,
    /// Remaining events of all races together.
    left: f64,
    /// Estimated events of a run per nanosecond, for planning; known after the first race.
    per_ns: Option<f64>,
    /// Number of vectors compared.
    evaluations: usize,
}

impl<'a, const N: usize> Race<'a, N> {
    /// Before the first race, with this many events for all.
    pub(super) fn new(device: &'a Operators<'a>, goal: Goal, events_max: f64) -> Self {
        Self { device, goal, left: events_max, per_ns: None, evaluations: 0 }
    }

    /// Remaining events.
    pub(super) fn left(&self) -> f64 {
        self.left
    }

    /// Accounts for costs elsewhere: compared vectors, and the equivalent in events. At least `least` events
    /// remain.
    pub(super) fn spend(&mut self, evaluations: usize, events: f64, least: f64) {
        self.evaluations += evaluations;
        self.left = (self.left - events).max(least);
    }

    /// Number of vectors compared.
    pub(super) fn evaluations(&self) -> usize {
        self.evaluations
    }

    /// The length of the first round for this many vectors, if a race takes this many events.
    pub(super) fn window_ns(&self, entrants: usize, events: f64) -> Option<f64> {
        self.per_ns.map(|per_ns| events / per_ns / race_events(entrants, 0.0, 1.0))
    }

    /// Ranks vectors, the best first. The first `stay` remain to the end, so that any vector ranked above
    /// them has beaten them over the longest time. Vectors without time for a first round of `round_min_ns`
    /// are left out, the last first; so are those with the same caps as an earlier one.
    pub(super) fn run(
        &mut self,
        mut vectors: Vec<Vec<Ppm>>,
        stay: usize,
        events: f64,
        round_min_ns: f64,
    ) -> Vec<Ranked> {
        let mut seen = BTreeSet::new();
        let mut is_new = |vector: &Vec<Ppm>| seen.insert(self.caps(vector));
        let is_new: Vec<bool> = vectors.iter().map(&mut is_new).collect();
        let stay = is_new[..stay].iter().filter(|is_new| **is_new).count();
        let mut is_new = is_new.into_iter();
        vectors.retain(|_| is_new.next().expect("one per vector"));
        let window_ns = |entrants| self.window_ns(entrants, events).unwrap_or(round_min_ns);
        while vectors.len() > WIDTH && window_ns(vectors.len()) < round_min_ns {
            vectors.pop();
        }
        let mut window_ns = window_ns(vectors.len()).max(round_min_ns);
        self.evaluations += vectors.len();

        let (device, mut asks) = (self.device, CappedOperators::default());
        let mut racing: Vec<Entrant<N>> = enter(device, &mut asks, vectors, stay);
        let mut batches = Batches::new(device, &asks);
        let (mut passed_ns, mut spent, mut beaten) = (0.0, 0.0, Vec::new());
        let mut first_ns = None;
        loop {
            let is_last = racing.len() <= WIDTH;
            if is_last {
                self.final_round(&mut batches, &mut racing, window_ns - passed_ns);
            } else {
                advance(&mut batches, &mut racing, window_ns - passed_ns);
            }
            let taken = batches.events() as f64 - spent;
            let per_ns = taken / slots(racing.len()) / (window_ns - passed_ns);
            self.per_ns = Some(per_ns);
            match first_ns {
                None => racing.iter_mut().for_each(|entrant| self.judge_first(entrant, window_ns)),
                Some(first_ns) => {
                    let from_ns = if window_ns < SETTLED * first_ns { 0.0 } else { first_ns };
                    racing.iter_mut().for_each(|entrant| self.judge(entrant, from_ns, window_ns));
                }
            }
            first_ns.get_or_insert(window_ns);
            (passed_ns, spent) = (window_ns, spent + taken);
            racing.sort_by(|a, b| by_rank(&a.ranked, &b.ranked));
            if is_last {
                break;
            }
            let kept = kept(racing.len());
            // Stable: the order of rank is kept.
            let (staying, mut others): (Vec<_>, Vec<_>) =
                racing.into_iter().partition(|entrant| entrant.stays);
            let out = others.split_off(kept - staying.len());
            beaten.splice(0..0, out.into_iter().map(|entrant| entrant.ranked));
            racing = [staying, others].into_iter().flatten().collect();
            let left = (events - spent).max(0.0) / per_ns;
            window_ns = if racing.len() <= WIDTH {
                passed_ns + (left / slots(racing.len())).max(ROUND_MIN * passed_ns)
            } else {
                // Shorter than planned if there were more events than estimated.
                let planned = race_events(racing.len(), window_ns, window_ns * GROWTH);
                window_ns * (1.0 + (GROWTH - 1.0) * (left / planned).clamp(ROUND_MIN, 1.0))
            };
        }
        self.left -= spent;
        racing.into_iter().map(|entrant| entrant.ranked).chain(beaten).collect()
    }

    /// The caps of a budget vector. Caps that cover all operators of a tenant count as one.
    fn caps(&self, budgets: &[Ppm]) -> Vec<u32> {
        let cap = |(tenant, &budget): (usize, &Ppm)| {
            let cap = self.device.gpu().cap(budget);
            if self.device.is_enough(tenant, cap) { u32::MAX } else { cap }
        };
        budgets.iter().enumerate().map(cap).collect()
    }

    /// A round in parts.
    fn final_round(&self, batches: &mut Batches<'_>, racing: &mut [Entrant<N>], span_ns: f64) {
        let span_ns = span_ns / PARTS as f64;
        for _ in 0..PARTS {
            let before: Vec<Vec<f64>> = racing.iter().map(|entrant| self.done(entrant)).collect();
            advance(batches, racing, span_ns);
            for (entrant, before) in racing.iter_mut().zip(before) {
                let after = self.done(entrant);
                let y: Vec<f64> = after
                    .iter()
                    .zip(before)
                    .map(|(after, before)| (after - before) / span_ns)
                    .collect();
                entrant.ranked.parts.push(self.goal.value(&y));
            }
        }
    }

    /// Work of the tenants, in nanoseconds alone.
    fn done(&self, entrant: &Entrant<N>) -> Vec<f64> {
        let tenants = 0..self.device.list().len();
        tenants.map(|tenant| entrant.run.done_ns(self.device, tenant)).collect()
    }

    fn judge_first(&self, entrant: &mut Entrant<N>, passed_ns: f64) {
        self.judge(entrant, 0.0, passed_ns);
        entrant.ranked.at_first = entrant.ranked.value;
        entrant.done_at_first = self.done(entrant);
    }

    /// Judges by the work since the start, or since the end of the first round: until the tenants' phases
    /// settle, speeds differ from later ones, and a full evaluation hardly sees that.
    fn judge(&self, entrant: &mut Entrant<N>, from_ns: f64, to_ns: f64) {
        let mut y = self.done(entrant);
        if from_ns > 0.0 {
            y.iter_mut().zip(&entrant.done_at_first).for_each(|(done, before)| *done -= before);
        }
        y.iter_mut().for_each(|done_ns| *done_ns /= to_ns - from_ns);
        let measured = Measurement { y, ..Measurement::default() };
        entrant.ranked.broken = self.goal.broken_by(&measured);
        entrant.ranked.value = self.goal.value(&measured.y);
    }
}

/// Advances all runs.
fn advance<const N: usize>(batches: &mut Batches<'_>, racing: &mut [Entrant<N>], span_ns: f64) {
    for entrants in racing.chunks_mut(AT_ONCE) {
        let mut runs: Vec<&mut PausedRun<N>> =
            entrants.iter_mut().map(|entrant| &mut entrant.run).collect();
        batches.advance(&mut runs, span_ns as f32);
    }
}

/// Enters vectors. The operators of each tenant and cap are computed once.
fn enter<const N: usize>(
    device: &Operators<'_>,
    asks: &mut CappedOperators,
    vectors: Vec<Vec<Ppm>>,
    stay: usize,
) -> Vec<Entrant<N>> {
    let mut known = BTreeMap::new();
    let mut first = |(tenant, &budget): (usize, &Ppm)| {
        let cap = device.gpu().cap(budget);
        *known.entry((tenant, cap)).or_insert_with(|| asks.add(device, tenant, cap))
    };
    let mut firsts = |vector: &Vec<Ppm>| vector.iter().enumerate().map(&mut first).collect();
    let firsts: Vec<Vec<u32>> = vectors.iter().map(&mut firsts).collect();
    let each = vectors.into_iter().zip(firsts);
    each.enumerate()
        .map(|(place, (budgets, first))| Entrant {
            run: PausedRun::new(asks, &first),
            done_at_first: Vec::new(),
            ranked: Ranked { budgets, broken: 0.0, value: 0.0, at_first: 0.0, parts: Vec::new() },
            stays: place < stay,
        })
        .collect()
}

/// Guarantees come first, then the objective; the best is smallest.
fn by_rank(a: &Ranked, b: &Ranked) -> Ordering {
    a.broken.total_cmp(&b.broken).then(b.value.total_cmp(&a.value))
}

/// The cost of this many runs: a batch costs the same however few runs it has.
fn slots(racing: usize) -> f64 {
    racing.next_multiple_of(WIDTH) as f64
}

/// How many of more than a batch continue: whole batches.
fn kept(racing: usize) -> usize {
    let batches = (racing as f64 * KEPT / WIDTH as f64).round() as usize;
    batches.max(1) * WIDTH
}

/// The events of a race of this many runs that have run up to `before` and whose next round ends at `window`.
fn race_events(mut racing: usize, mut before: f64, mut window: f64) -> f64 {
    let mut race_events = slots(racing) * (window - before);
    while racing > WIDTH {
        racing = kept(racing);
        before = window;
        window *= if racing > WIDTH { GROWTH } else { LAST_GROWTH };
        race_events += slots(racing) * (window - before);
    }
    race_events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::allocate::{BudgetEvaluator, Guarantee, Objective};
    use crate::device::gpu::DeviceGpu;
    use crate::device::tenant::{DeviceTenant, Operator, OperatorKind};

    fn tenant(count: u32, wide: u32) -> DeviceTenant {
        let operator = |index: u32| Operator {
            sms: f64::from(wide + index * 13 % 90),
            duration_ns: f64::from(3_000 + index * 7_919 % 90_000),
            kind: [OperatorKind::Compute, OperatorKind::Memory, OperatorKind::Unknown]
                [index as usize % 3],
        };
        DeviceTenant::new("t", (0..count).map(operator).collect()).unwrap()
    }

    fn goal(objective: Objective, tenants: usize) -> Goal {
        let guarantee = Guarantee { weight: 1.0, floor: 0.0, p99_ns: None };
        Goal { objective, guarantees: vec![guarantee; tenants] }
    }

    fn race<'a>(device: &'a Operators<'a>, goal: &'a Goal) -> Race<'a, 3> {
        Race::new(device, goal.clone(), 400_000.0)
    }

    #[test]
    fn the_initial_leader_is_beaten_by_a_better_vector() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let tenants = [tenant(17, 1), tenant(40, 20), tenant(29, 50)];
        let mut device = Operators::new(&gpu, &tenants, 1).unwrap();
        let goal = goal(Objective::Stp, 3);
        let vectors = [600_000, 100_000, 300_000, 200_000].map(|budget| vec![Ppm(budget); 3]);
        let mut value = |vector: &[Ppm]| device.measure(vector).unwrap().stp();
        let values: Vec<f64> = vectors.iter().map(|vector| value(vector)).collect();
        assert!(values[1] < values[3] && values[3] < values[2] && values[2] < values[0]);
        // Every number of vectors from two on, with the worst of them in front.
        for count in 2..=4 {
            let mut entered = vectors[..count].to_vec();
            entered.swap(0, 1);
            let ranked = race(&device, &goal).run(entered, 1, 0.0, 1e7);
            assert_eq!(ranked[0].budgets, vectors[0], "of {count}");
        }
    }

    #[test]
    fn kept_vectors_race_to_the_end_and_vectors_with_equal_caps_are_one() {
        let gpu = DeviceGpu::known("v100").unwrap();
        let tenants = [tenant(17, 1), tenant(40, 20), tenant(29, 50)];
        let device = Operators::new(&gpu, &tenants, 1).unwrap();
        let goal = goal(Objective::Stp, 3);
        // The worst stays; the next has the same caps.
        let mut entered = vec![vec![Ppm(100_000); 3], vec![Ppm(100_001); 3]];
        for a in 1..=5 {
            for b in 1..=5 {
                entered.push(vec![Ppm(200_000 * a), Ppm(200_000 * b), Ppm(600_000)]);
            }
        }
        let mut race = race(&device, &goal);
        // The rate of events is known after the first race.
        race.run(entered[..1].to_vec(), 0, 0.0, 1e6);
        let ranked = race.run(entered, 2, 200_000.0, 1e6);
        assert_eq!((ranked.len(), race.evaluations()), (26, 27));
        let last: Vec<&Ranked> =
            ranked.iter().filter(|entrant| !entrant.parts.is_empty()).collect();
        assert_eq!(last.len(), WIDTH);
        assert_eq!(last[WIDTH - 1].budgets, [Ppm(100_000); 3]);
        assert!(race.left() >= 0.9 * 200_000.0 - 20_000.0, "{}", race.left());
    }

    #[test]
    fn the_cost_of_a_race_is_planned() {
        // One batch, and one round.
        assert_eq!(race_events(5, 0.0, 2.0), 16.0);
        assert_eq!((kept(9), kept(16), kept(24), kept(512)), (8, 8, 16, 304));
        assert_eq!(race_events(16, 0.0, 1.0), 16.0 + 8.0 * (LAST_GROWTH - 1.0));
        for racing in WIDTH + 1..600 {
            assert!(kept(racing) < racing && kept(racing) >= WIDTH, "{racing}");
        }
    }
}
