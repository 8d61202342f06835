//! A fast evaluation for the scheduler's decisions: tenants are summarised as a few groups of similar
//! operators, each tenant in an independent random phase.
//!
//! The state of the GPU at a random time is an independent draw for each tenant: idle, or with an operator of
//! some group in flight for some time. The speeds in a state follow the rules of the event-driven evaluation.
//! Their mean over the states of a group gives the flight time of its operators, and that gives the
//! probability of each group. This fixed point is solved by iteration. The draws are a fixed sequence, so
//! that equal budgets give equal results and vectors can be compared. The model ignores that the phases of
//! tenants depend on each other.

use super::DeviceError;
use super::allocate::{BudgetEvaluator, Measurement};
use super::gpu::{DeviceGpu, SmScheduler};
use super::tenant::{DeviceTenant, Operator, OperatorKind};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::ops::Range;
use tandem_core::Ppm;

/// Groups of a tenant by operator width, for operators shorter and longer than a launch.
const WIDTHS: usize = 3;
/// Iterations of the fixed point.
const ROUNDS: usize = 4;
/// States drawn × tenants: fewer draws for more tenants, so that the cost of an evaluation is about constant.
const DRAWS: usize = 480;
const DRAWS_MIN: usize = 48;
/// Arbitrary, but fixed.
const DRAWS_SEED: u64 = 1;
/// Draws of the tenant that count beside those of a group.
const PRIOR: f64 = 4.0;
/// The smallest speed, so that nothing takes for ever.
const SPEED_MIN: f64 = 0.01;

/// Similar operators of a tenant, as one repeated operator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct OperatorGroup {
    count: f64,
    duration_ns: f64,
    /// SMs that it asks for.
    sms: f64,
    /// SMs that give full speed.
    enough: f64,
    beta: f64,
}

/// A summarised tenant.
#[derive(Clone, Debug)]
struct Digest {
    host_ns: f64,
    launch_ns: f64,
    /// Its groups among those of all tenants.
    groups: Range<usize>,
    alone_ns: f64,
    duty: f64,
}

/// A group under the current budgets.
#[derive(Clone, Copy, Debug, Default)]
struct GroupLoad {
    /// SMs that it asks for under the cap.
    demand: f64,
    /// Speed alone under the cap.
    free: f64,
    /// Flight time of an operator.
    flight_ns: f64,
    /// Cumulative probability of this group and those before it.
    until: f64,
    /// Sum of its speeds in the drawn states, and their number.
    sum: f64,
    drawn: f64,
}

/// An operator in flight in a drawn state.
#[derive(Clone, Copy, Debug, Default)]
struct Drawn {
    group: usize,
    age_ns: f64,
    speed: f64,
}

/// Summarised tenants on one GPU.
#[derive(Clone, Debug)]
pub struct Summary {
    gpu: DeviceGpu,
    digests: Vec<Digest>,
    groups: Vec<OperatorGroup>,
    /// Two numbers from 0 to 1 for every draw and tenant: the group, and the phase of its flight.
    draws: Vec<(f64, f64)>,
    loads: Vec<GroupLoad>,
    state: Vec<Drawn>,
}

impl Summary {
    /// Summarises tenants.
    pub fn new(gpu: &DeviceGpu, tenants: &[DeviceTenant]) -> Result<Self, DeviceError> {
        if tenants.is_empty() {
            return Err(DeviceError::NoTenants);
        }
        let mut groups = Vec::new();
        let digests: Vec<Digest> =
            tenants.iter().map(|tenant| digest(tenant, gpu, &mut groups)).collect();
        let count = (DRAWS / tenants.len()).max(DRAWS_MIN);
        Ok(Self {
            gpu: gpu.clone(),
            draws: draws(count, tenants.len()),
            loads: vec![GroupLoad::default(); groups.len()],
            state: Vec::with_capacity(tenants.len()),
            digests,
            groups,
        })
    }

    fn solve(&mut self, budgets: &[Ppm]) -> Vec<f64> {
        for (digest, &budget) in self.digests.iter().zip(budgets) {
            let cap = f64::from(self.gpu.cap(budget));
            for index in digest.groups.clone() {
                let group = &self.groups[index];
                let demand = group.sms.min(cap);
                let free = (demand / group.enough).min(1.0);
                let flight_ns = group.duration_ns / free;
                self.loads[index] = GroupLoad { demand, free, flight_ns, ..GroupLoad::default() };
            }
        }
        self.slow_to_fit();
        for round in 0..ROUNDS {
            self.draw_all();
            self.update(round < ROUNDS / 2);
        }
        self.digests.iter().map(|digest| digest.alone_ns / self.period_ns(digest)).collect()
    }

    /// The length of an iteration at the current flight times.
    fn period_ns(&self, digest: &Digest) -> f64 {
        let each = digest.groups.clone().map(|index| {
            self.groups[index].count * self.loads[index].flight_ns.max(digest.launch_ns)
        });
        digest.host_ns + each.sum::<f64>()
    }

    /// Starts from speeds at which the tenants together ask for no more SMs than there are.
    fn slow_to_fit(&mut self) {
        let wanted = |digest: &Digest| {
            let busy = digest.groups.clone().map(|index| {
                let GroupLoad { demand, flight_ns, .. } = self.loads[index];
                self.groups[index].count * flight_ns * demand
            });
            busy.sum::<f64>() / self.period_ns(digest)
        };
        let load = self.digests.iter().map(wanted).sum::<f64>() / f64::from(self.gpu.sms);
        let slower = load.max(1.0);
        self.loads.iter_mut().for_each(|load| load.flight_ns *= slower);
    }

    /// Draws all states at the current flight times and records the speeds.
    fn draw_all(&mut self) {
        for tenant in 0..self.digests.len() {
            let period_ns = self.period_ns(&self.digests[tenant]);
            let mut until = 0.0;
            for index in self.digests[tenant].groups.clone() {
                let load = &mut self.loads[index];
                until += self.groups[index].count * load.flight_ns / period_ns;
                (load.until, load.sum, load.drawn) = (until, 0.0, 0.0);
            }
        }
        for draw in 0..self.draws.len() / self.digests.len() {
            self.draw(draw);
            self.divide();
            for drawn in &self.state {
                let load = &mut self.loads[drawn.group];
                load.sum += drawn.speed;
                load.drawn += 1.0;
            }
        }
    }

    /// Draws one state, oldest operator first.
    fn draw(&mut self, draw: usize) {
        self.state.clear();
        let tenants = self.digests.len();
        let draws = &self.draws[draw * tenants..(draw + 1) * tenants];
        for (digest, &(which, part)) in self.digests.iter().zip(draws) {
            let mut groups = digest.groups.clone();
            let Some(group) = groups.find(|&index| which < self.loads[index].until) else {
                continue;
            };
            let age_ns = part * self.loads[group].flight_ns;
            let younger = self.state.iter().rev().take_while(|other| other.age_ns < age_ns);
            let seat = self.state.len() - younger.count();
            self.state.insert(seat, Drawn { group, age_ns, speed: 0.0 });
        }
    }

    /// The rules of the event-driven evaluation.
    fn divide(&mut self) {
        let (sms, loads, groups) = (f64::from(self.gpu.sms), &self.loads, &self.groups);
        let part = match self.gpu.scheduler {
            SmScheduler::Fifo => 1.0,
            SmScheduler::Prop => {
                let demand: f64 = self.state.iter().map(|drawn| loads[drawn.group].demand).sum();
                (sms / demand.max(f64::MIN_POSITIVE)).min(1.0)
            }
        };
        let (mut left, mut bandwidth, mut running) = (sms, 0.0, 0.0_f64);
        for drawn in &mut self.state {
            let (load, group) = (&loads[drawn.group], &groups[drawn.group]);
            let given = (load.demand * part).min(left);
            left -= given;
            drawn.speed = (given / group.enough).min(1.0);
            bandwidth += group.beta * drawn.speed;
            running += if given > 0.0 { 1.0 } else { 0.0 };
        }
        let slowed = 1.0 / (1.0 + self.gpu.constants.kappa * (running - 1.0).clamp(0.0, 2.0));
        for drawn in &mut self.state {
            let beta = groups[drawn.group].beta;
            let shared = if bandwidth > 1.0 { (1.0 - beta) + beta / bandwidth } else { 1.0 };
            drawn.speed *= shared * slowed;
        }
    }

    /// Replaces the flight times by those of the states: completely, or half of the way, because two tenants
    /// could otherwise oscillate for ever.
    fn update(&mut self, wholly: bool) {
        for digest in &self.digests {
            let loads = &mut self.loads[digest.groups.clone()];
            // The tenant's speed relative to its speed under the cap, over all of its groups: a group with
            // few draws says little by itself.
            let kept: f64 = loads.iter().map(|load| load.sum / load.free).sum();
            let drawn: f64 = loads.iter().map(|load| load.drawn).sum();
            let kept = if drawn > 0.0 { kept / drawn } else { 1.0 };
            for (load, group) in loads.iter_mut().zip(&self.groups[digest.groups.clone()]) {
                let speed = (load.sum + PRIOR * kept * load.free) / (load.drawn + PRIOR);
                let found = group.duration_ns / speed.max(SPEED_MIN);
                load.flight_ns = if wholly { found } else { (load.flight_ns * found).sqrt() };
            }
        }
    }
}

impl BudgetEvaluator for Summary {
    type Error = DeviceError;

    fn tenants(&self) -> usize {
        self.digests.len()
    }

    fn duties(&self) -> Option<Vec<f64>> {
        Some(self.digests.iter().map(|digest| digest.duty).collect())
    }

    fn measure(&mut self, budgets: &[Ppm]) -> Result<Measurement, DeviceError> {
        let y = self.solve(budgets);
        Ok(Measurement { y, ..Measurement::default() })
    }
}

/// A Latin hypercube: each of the two numbers of each tenant is spread evenly over the draws, in an order of
/// its own.
fn draws(count: usize, tenants: usize) -> Vec<(f64, f64)> {
    let mut rng = ChaCha8Rng::seed_from_u64(DRAWS_SEED);
    let mut column = || {
        let mut order: Vec<usize> = (0..count).collect();
        order.shuffle(&mut rng);
        order.into_iter().map(|index| (index as f64 + 0.5) / count as f64).collect::<Vec<f64>>()
    };
    let columns: Vec<(Vec<f64>, Vec<f64>)> = (0..tenants).map(|_| (column(), column())).collect();
    let row = |draw: usize| columns.iter().map(move |(which, part)| (which[draw], part[draw]));
    (0..count).flat_map(row).collect()
}

/// Adds the groups of a tenant to those of the others.
fn digest(tenant: &DeviceTenant, gpu: &DeviceGpu, groups: &mut Vec<OperatorGroup>) -> Digest {
    let (short, long): (Vec<&Operator>, Vec<&Operator>) =
        tenant.operators().iter().partition(|operator| operator.duration_ns < tenant.launch_ns);
    let first = groups.len();
    for mut operators in [short, long] {
        operators.sort_by(|a, b| a.sms.total_cmp(&b.sms));
        let total: f64 = operators.iter().map(|operator| operator.duration_ns).sum();
        let mut before = 0.0;
        let numbered: Vec<(usize, &Operator)> = operators
            .into_iter()
            .map(|operator| {
                let middle = before + operator.duration_ns / 2.0;
                before += operator.duration_ns;
                (((middle / total * WIDTHS as f64) as usize).min(WIDTHS - 1), operator)
            })
            .collect();
        for like in numbered.chunk_by(|(a, _), (b, _)| a == b) {
            groups.push(group(like.iter().map(|(_, operator)| *operator), gpu));
        }
    }
    let each = groups[first..].iter();
    let busy = each.map(|group| group.count * group.duration_ns.max(tenant.launch_ns));
    Digest {
        host_ns: tenant.host_ns,
        launch_ns: tenant.launch_ns,
        alone_ns: tenant.host_ns + busy.sum::<f64>(),
        groups: first..groups.len(),
        duty: tenant.duty(gpu),
    }
}

/// Means over operators, weighted by duration.
fn group<'a>(operators: impl Iterator<Item = &'a Operator>, gpu: &DeviceGpu) -> OperatorGroup {
    let (sms, constants) = (f64::from(gpu.sms), &gpu.constants);
    let mut group = OperatorGroup::default();
    for operator in operators {
        let (duration, width) = (operator.duration_ns, operator.sms.min(sms));
        let saturates = operator.kind == OperatorKind::Memory && width >= constants.sigma * sms;
        group.count += 1.0;
        group.duration_ns += duration;
        group.sms += duration * width;
        group.enough += duration * if saturates { constants.sigma * width } else { width };
        group.beta += duration * constants.beta(operator.kind);
    }
    group.sms /= group.duration_ns;
    group.enough /= group.duration_ns;
    group.beta /= group.duration_ns;
    group.duration_ns /= group.count;
    group
}
