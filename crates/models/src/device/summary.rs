//! A quick evaluation for the scheduler's own decisions: tenants summarised as a few groups of like
//! operators, each tenant in a random phase of its own.
//!
//! The state of the GPU at a random instant is taken to be an independent draw for each tenant: idle, or
//! with an operator of some group in flight for some time. The speeds in such a state follow the
//! rules of the event-driven evaluation; their mean over the states of a group says how long its
//! operators are in flight, and that in turn how likely each group is. This is solved by iteration. The
//! draws are a fixed sequence, so that the same budgets always give the same answer and vectors can be
//! compared. What it does not see is that tenants' phases depend on each other.

use super::DeviceError;
use super::allocate::{Measurement, Throughput};
use super::gpu::{Gpu, Scheduler};
use super::tenant::{Kind, Operator, Tenant};
use tandem_core::Ppm;

/// Groups of a tenant by width of its operators; those shorter and longer than a launch each.
const WIDTHS: usize = 3;
/// Iterations of the fixed point.
const ROUNDS: usize = 4;
/// States drawn × tenants: fewer draws for more tenants, so that an evaluation costs about the same.
const DRAWS: usize = 480;
const DRAWS_MIN: usize = 48;
/// A speed that is never quite zero, so that nothing takes for ever.
const SPEED_MIN: f64 = 0.01;

/// Like operators of a tenant, as one that is repeated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Group {
    count: f64,
    duration_ns: f64,
    /// SMs wanted.
    sms: f64,
    /// SMs that give full speed.
    enough: f64,
    beta: f64,
}

/// A tenant in summary.
#[derive(Clone, Debug)]
struct Digest {
    host_ns: f64,
    launch_ns: f64,
    groups: Vec<Group>,
    alone_ns: f64,
    duty: f64,
}

/// An operator in flight in a drawn state.
#[derive(Clone, Copy, Debug, Default)]
struct Drawn {
    tenant: usize,
    group: usize,
    age_ns: f64,
    speed: f64,
}

/// Tenants in summary on one GPU.
#[derive(Clone, Debug)]
pub struct Summary {
    sms: f64,
    kappa: f64,
    scheduler: Scheduler,
    gpu: Gpu,
    digests: Vec<Digest>,
    /// Two numbers from 0 to 1 for every draw and tenant: which group, and which part of its flight.
    draws: Vec<(f64, f64)>,
    /// For every tenant and group: nanoseconds in flight.
    flight_ns: Vec<Vec<f64>>,
    state: Vec<Drawn>,
}

impl Summary {
    /// Summarises tenants.
    pub fn new(gpu: &Gpu, tenants: &[Tenant]) -> Result<Self, DeviceError> {
        if tenants.is_empty() {
            return Err(DeviceError::NoTenants);
        }
        let digests: Vec<Digest> = tenants.iter().map(|tenant| digest(tenant, gpu)).collect();
        let count = (DRAWS / tenants.len()).max(DRAWS_MIN);
        Ok(Self {
            sms: f64::from(gpu.sms),
            kappa: gpu.constants.kappa,
            scheduler: gpu.scheduler,
            gpu: gpu.clone(),
            draws: draws(count, tenants.len()),
            flight_ns: digests.iter().map(|digest| vec![0.0; digest.groups.len()]).collect(),
            state: Vec::with_capacity(tenants.len()),
            digests,
        })
    }

    fn solve(&mut self, budgets: &[Ppm]) -> Vec<f64> {
        let caps: Vec<f64> = budgets.iter().map(|&v| f64::from(self.gpu.cap(v))).collect();
        for (tenant, digest) in self.digests.iter().enumerate() {
            for (group, flight) in digest.groups.iter().zip(&mut self.flight_ns[tenant]) {
                let speed = (group.sms.min(caps[tenant]) / group.enough).min(1.0);
                *flight = group.duration_ns / speed.max(SPEED_MIN);
            }
        }
        for _ in 0..ROUNDS {
            self.round(&caps);
        }
        let y = |(digest, flight): (&Digest, &Vec<f64>)| digest.alone_ns / digest.period_ns(flight);
        self.digests.iter().zip(&self.flight_ns).map(y).collect()
    }

    /// Draws all states under the present flight times and replaces these by what the states imply.
    fn round(&mut self, caps: &[f64]) {
        let tenants = self.digests.len();
        let mut sums: Vec<Vec<(f64, f64)>> =
            self.digests.iter().map(|digest| vec![(0.0, 0.0); digest.groups.len()]).collect();
        let periods: Vec<f64> =
            self.digests.iter().zip(&self.flight_ns).map(|(d, f)| d.period_ns(f)).collect();
        for draw in 0..self.draws.len() / tenants {
            self.draw(draw, &periods);
            self.divide(caps);
            for drawn in &self.state {
                let (sum, count) = &mut sums[drawn.tenant][drawn.group];
                *sum += drawn.speed;
                *count += 1.0;
            }
        }
        for (tenant, digest) in self.digests.iter().enumerate() {
            for (index, group) in digest.groups.iter().enumerate() {
                let (sum, count) = sums[tenant][index];
                if count > 0.0 {
                    let found = group.duration_ns / (sum / count).max(SPEED_MIN);
                    let flight = &mut self.flight_ns[tenant][index];
                    // The mean of old and new keeps two tenants from taking turns for ever.
                    *flight = 0.5 * (*flight + found);
                }
            }
        }
    }

    /// Puts one state together, oldest operator first.
    fn draw(&mut self, draw: usize, periods: &[f64]) {
        self.state.clear();
        let tenants = self.digests.len();
        for tenant in 0..tenants {
            let (which, part) = self.draws[draw * tenants + tenant];
            let mut at_ns = which * periods[tenant];
            for (group, flight) in self.flight_ns[tenant].iter().enumerate() {
                let total = flight * self.digests[tenant].groups[group].count;
                if at_ns < total {
                    let age_ns = part * flight;
                    let seat = self.state.partition_point(|other| other.age_ns >= age_ns);
                    self.state.insert(seat, Drawn { tenant, group, age_ns, speed: 0.0 });
                    break;
                }
                at_ns -= total;
            }
        }
    }

    /// The rules of the event-driven evaluation.
    fn divide(&mut self, caps: &[f64]) {
        let digests = &self.digests;
        let group = |drawn: &Drawn| &digests[drawn.tenant].groups[drawn.group];
        let demand = |drawn: &Drawn| group(drawn).sms.min(caps[drawn.tenant]);
        let part = match self.scheduler {
            Scheduler::Fifo => 1.0,
            Scheduler::Prop => {
                (self.sms / self.state.iter().map(demand).sum::<f64>().max(1.0)).min(1.0)
            }
        };
        let (mut left, mut bandwidth, mut running) = (self.sms, 0.0, 0.0_f64);
        for drawn in &mut self.state {
            let given = (demand(drawn) * part).min(left);
            left -= given;
            drawn.speed = (given / group(drawn).enough).min(1.0);
            bandwidth += group(drawn).beta * drawn.speed;
            running += if drawn.speed > 0.0 { 1.0 } else { 0.0 };
        }
        let slowed = 1.0 / (1.0 + self.kappa * (running - 1.0).clamp(0.0, 2.0));
        for drawn in &mut self.state {
            let beta = group(drawn).beta;
            let shared = if bandwidth > 1.0 { (1.0 - beta) + beta / bandwidth } else { 1.0 };
            drawn.speed *= shared * slowed;
        }
    }
}

impl Digest {
    /// An iteration, if operators are in flight for so long.
    fn period_ns(&self, flight_ns: &[f64]) -> f64 {
        let each = self.groups.iter().zip(flight_ns);
        let busy = each.map(|(group, flight)| group.count * flight.max(self.launch_ns));
        self.host_ns + busy.sum::<f64>()
    }
}

impl Throughput for Summary {
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

/// Two Kronecker sequences for each tenant, with the fractional parts of roots of primes: spread evenly,
/// and those of different tenants unrelated.
fn draws(count: usize, tenants: usize) -> Vec<(f64, f64)> {
    let mut primes: Vec<u32> = Vec::new();
    let mut next = 2_u32;
    while primes.len() < 2 * tenants {
        if primes.iter().all(|prime| !next.is_multiple_of(*prime)) {
            primes.push(next);
        }
        next += 1;
    }
    let point = |draw: usize, prime: u32| ((draw as f64 + 0.5) * f64::from(prime).sqrt()).fract();
    let both = |draw: usize, tenant: usize| {
        (point(draw, primes[2 * tenant]), point(draw, primes[2 * tenant + 1]))
    };
    (0..count)
        .flat_map(|draw| (0..tenants).map(move |tenant| (draw, tenant)))
        .map(|(d, t)| both(d, t))
        .collect()
}

fn digest(tenant: &Tenant, gpu: &Gpu) -> Digest {
    let (short, long): (Vec<&Operator>, Vec<&Operator>) =
        tenant.operators().iter().partition(|operator| operator.duration_ns < tenant.launch_ns);
    let mut groups = Vec::new();
    for mut operators in [short, long] {
        operators.sort_by(|a, b| a.sms.total_cmp(&b.sms));
        let total: f64 = operators.iter().map(|operator| operator.duration_ns).sum();
        let mut before = 0.0;
        let part = |duration: f64| ((duration / total * WIDTHS as f64) as usize).min(WIDTHS - 1);
        let numbered: Vec<(usize, &Operator)> = operators
            .into_iter()
            .map(|operator| {
                let index = part(before + operator.duration_ns / 2.0);
                before += operator.duration_ns;
                (index, operator)
            })
            .collect();
        for like in numbered.chunk_by(|(a, _), (b, _)| a == b) {
            groups.push(group(like.iter().map(|(_, operator)| *operator), gpu));
        }
    }
    let mut digest = Digest {
        host_ns: tenant.host_ns,
        launch_ns: tenant.launch_ns,
        groups,
        alone_ns: 0.0,
        duty: tenant.duty(gpu),
    };
    let alone: Vec<f64> = digest.groups.iter().map(|group| group.duration_ns).collect();
    digest.alone_ns = digest.period_ns(&alone);
    digest
}

/// Means over operators, weighted by how long they take.
fn group<'a>(operators: impl Iterator<Item = &'a Operator>, gpu: &Gpu) -> Group {
    let (sms, constants) = (f64::from(gpu.sms), &gpu.constants);
    let mut group = Group::default();
    for operator in operators {
        let (duration, width) = (operator.duration_ns, operator.sms.min(sms));
        let saturates = operator.kind == Kind::Memory && width >= constants.sigma * sms;
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
