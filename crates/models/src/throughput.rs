//! The time of an iteration, alone or in a gang, and the cost of gradient accumulation.
//!
//! The form is that of Pollux (OSDI'21): computing takes α + β·b for a local batch of b, and overlaps with
//! communication to a degree given by γ, from not at all (1) to nearly all (10).

use crate::errors::Errors;
use crate::least_squares::{bounded, line};
use serde::Serialize;
use thiserror::Error;

/// The limits of γ.
const GAMMA: (f64, f64) = (1.0, 10.0);

/// The placement of a gang, as far as it affects speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Gang {
    /// Number of GPUs.
    pub gpus: u32,
    /// Number of nodes.
    pub nodes: u32,
}

impl Gang {
    /// One GPU.
    pub const ONE: Gang = Gang { gpus: 1, nodes: 1 };
}

/// Seconds to compute the gradient of a batch: α + β·b.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Compute {
    /// α, seconds for any batch size.
    pub alpha: f64,
    /// β, seconds per example.
    pub beta: f64,
}

impl Compute {
    /// Least squares over (batch, seconds); `None` with fewer than two batch sizes.
    pub fn fit(points: &[(f64, f64)]) -> Option<Self> {
        line(points).map(|(alpha, beta)| Self { alpha, beta })
    }

    /// Seconds for a batch.
    pub fn seconds(&self, batch: f64) -> f64 {
        self.alpha + self.beta * batch
    }
}

/// Seconds to exchange gradients: affine in the gang size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Net {
    /// Seconds between two GPUs.
    pub base: f64,
    /// Seconds for each further GPU.
    pub per_gpu: f64,
}

impl Net {
    fn seconds(&self, gpus: u32) -> f64 {
        self.base + self.per_gpu * f64::from(gpus.saturating_sub(2))
    }
}

/// The throughput of a class.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// Computing.
    pub compute: Compute,
    /// How well computing and communication overlap.
    pub gamma: f64,
    /// Communication inside a node.
    pub inside: Net,
    /// Communication across nodes.
    pub across: Net,
}

impl Throughput {
    /// For a job that was measured on one GPU only: communication is assumed to be free.
    pub fn alone(compute: Compute) -> Self {
        Self { compute, gamma: GAMMA.0, inside: Net::default(), across: Net::default() }
    }

    /// Seconds of communication; zero on one GPU.
    fn net_seconds(&self, gang: Gang) -> f64 {
        match gang {
            Gang { gpus: ..=1, .. } => 0.0,
            Gang { nodes: ..=1, gpus } => self.inside.seconds(gpus),
            Gang { gpus, .. } => self.across.seconds(gpus),
        }
    }

    /// Seconds of an iteration of `count` sub-batches of `batch` examples each. Communication happens once,
    /// with the last of them.
    pub(crate) fn iteration_seconds(&self, batch: f64, count: u32, gang: Gang) -> f64 {
        let compute = self.compute.seconds(batch);
        let last = overlap(compute, self.net_seconds(gang), self.gamma);
        f64::from(count.saturating_sub(1)) * compute + last
    }

    /// The slow-down of gradient accumulation: how much longer an iteration over `batch` examples takes in
    /// `count` sub-batches.
    pub fn price(&self, batch: f64, count: u32, gang: Gang) -> f64 {
        let pieces = self.iteration_seconds(batch / f64::from(count.max(1)), count, gang);
        // At least 1 by Minkowski's inequality, up to rounding.
        (pieces / self.iteration_seconds(batch, 1, gang)).max(1.0)
    }
}

/// (a^γ + b^γ)^(1/γ), scaled by the larger so that no power overflows.
fn overlap(a: f64, b: f64, gamma: f64) -> f64 {
    let (small, large) = if a < b { (a, b) } else { (b, a) };
    // The common case of one GPU, exactly.
    if small <= 0.0 { large } else { large * (1.0 + (small / large).powf(gamma)).powf(1.0 / gamma) }
}

/// One measured step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    /// The placement.
    pub gang: Gang,
    /// Examples per GPU.
    pub batch: f64,
    /// Seconds of the whole step.
    pub seconds: f64,
    /// Seconds of communication that did not overlap with computing.
    pub sync_seconds: f64,
}

impl StepTime {
    /// Seconds of computing.
    fn compute_seconds(&self) -> f64 {
        self.seconds - self.sync_seconds
    }

    /// The seconds to fit. On one GPU there is no communication, so that what was measured as such is left
    /// out.
    fn target(&self) -> f64 {
        if self.gang.gpus <= 1 { self.compute_seconds() } else { self.seconds }
    }
}

/// Why a fit is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ThroughputFitError {
    /// α and β are two unknowns.
    #[error("at least two batch sizes on one GPU are needed")]
    OneBatchSize,
}

/// A fitted model and its errors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The model.
    pub model: Throughput,
    /// Its errors on one GPU, in seconds.
    pub one_gpu: Errors,
    /// Its errors within a node, if there are such steps.
    pub inside: Option<Errors>,
    /// Its errors across nodes, if there are such steps.
    pub across: Option<Errors>,
    /// The measured communication share across nodes (see [`network`](crate::network)): the median at batches
    /// of at least half of the largest, which jobs use.
    pub across_share: Option<f64>,
}

/// Fits α and β to the steps on one GPU, then the rest to all other steps.
pub fn fit(steps: &[StepTime]) -> Result<Fit, ThroughputFitError> {
    let of = |wanted: &dyn Fn(Gang) -> bool| -> Vec<StepTime> {
        steps.iter().copied().filter(|step| wanted(step.gang)).collect()
    };
    let one = of(&|gang| gang.gpus <= 1);
    let inside = of(&|gang| gang.gpus > 1 && gang.nodes <= 1);
    let across = of(&|gang| gang.gpus > 1 && gang.nodes > 1);
    let points: Vec<_> = one.iter().map(|step| (step.batch, step.compute_seconds())).collect();
    let compute = Compute::fit(&points).ok_or(ThroughputFitError::OneBatchSize)?;
    let model = fit_net(compute, &[inside.as_slice(), &across].concat());
    let errors = |steps: &[StepTime]| {
        let pair =
            |step: &StepTime| (model.iteration_seconds(step.batch, 1, step.gang), step.target());
        Errors::of(&steps.iter().map(pair).collect::<Vec<_>>())
    };
    Ok(Fit {
        model,
        one_gpu: errors(&one),
        inside: (!inside.is_empty()).then(|| errors(&inside)),
        across: (!across.is_empty()).then(|| errors(&across)),
        across_share: median_share(&across),
    })
}

fn median_share(steps: &[StepTime]) -> Option<f64> {
    let largest = steps.iter().map(|step| step.batch).fold(0.0, f64::max);
    let large = steps.iter().filter(|step| step.batch >= largest / 2.0);
    let mut shares: Vec<f64> = large.map(|step| step.sync_seconds / step.seconds).collect();
    shares.sort_by(f64::total_cmp);
    shares.get(shares.len() / 2).copied()
}

/// Minimises relative errors, because step times span orders of magnitude. The sum of squares has several
/// minima along γ; the best of a few starting points counts.
fn fit_net(compute: Compute, steps: &[StepTime]) -> Throughput {
    if steps.is_empty() {
        return Throughput::alone(compute);
    }
    let model = |[inside, inside_more, across, across_more, gamma]: [f64; 5]| Throughput {
        compute,
        gamma,
        inside: Net { base: inside, per_gpu: inside_more },
        across: Net { base: across, per_gpu: across_more },
    };
    let longest = steps.iter().map(|step| step.seconds).fold(0.0, f64::max);
    let bounds = [(0.0, longest), (0.0, longest), (0.0, longest), (0.0, longest), GAMMA];
    let typical = steps.iter().map(|step| step.sync_seconds).sum::<f64>() / steps.len() as f64;
    let fit_from = |gamma: f64| {
        let start = [typical / 2.0, typical / 20.0, typical, typical / 20.0, gamma];
        bounded(start, bounds, |&at, out| {
            let model = model(at);
            out.clear();
            out.extend(steps.iter().map(|step| {
                model.iteration_seconds(step.batch, 1, step.gang) / step.seconds - 1.0
            }));
        })
    };
    let fits = [1.0, 1.5, 2.5, 5.0, 10.0].map(fit_from);
    let best = fits.into_iter().min_by(|(_, a), (_, b)| a.total_cmp(b));
    model(best.expect("there are starting points").0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gangs() -> impl Iterator<Item = Gang> {
        let of = |&(gpus, nodes): &(u32, u32)| Gang { gpus, nodes };
        [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2), (8, 2), (6, 3), (16, 4)].iter().map(of)
    }

    fn steps(truth: &Throughput) -> Vec<StepTime> {
        let at = |gang, batch| {
            let seconds = truth.iteration_seconds(batch, 1, gang);
            let sync_seconds = seconds - truth.compute.seconds(batch);
            StepTime { gang, batch, seconds, sync_seconds }
        };
        gangs().flat_map(|gang| [8.0, 16.0, 32.0, 64.0].map(|batch| at(gang, batch))).collect()
    }

    #[test]
    fn a_fit_finds_the_parameters_that_made_the_steps() {
        let truth = Throughput {
            compute: Compute { alpha: 0.05, beta: 0.002 },
            gamma: 2.2,
            inside: Net { base: 0.02, per_gpu: 0.004 },
            across: Net { base: 0.12, per_gpu: 0.01 },
        };
        let fit = fit(&steps(&truth)).unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-4;
        let model = fit.model;
        assert!(near(model.compute.alpha, 0.05) && near(model.compute.beta, 0.002), "{model:?}");
        assert!((model.gamma - 2.2).abs() < 0.01, "{model:?}");
        assert!(near(model.across.base, 0.12) && near(model.across.per_gpu, 0.01), "{model:?}");
        assert!(fit.across.unwrap().r2.unwrap() > 0.9999);
    }

    #[test]
    fn one_batch_size_is_not_enough() {
        let step = StepTime { gang: Gang::ONE, batch: 8.0, seconds: 1.0, sync_seconds: 0.0 };
        assert_eq!(fit(&[step, step]), Err(ThroughputFitError::OneBatchSize));
        assert_eq!(fit(&[]), Err(ThroughputFitError::OneBatchSize));
    }

    #[test]
    fn accumulation_costs_the_fixed_part_of_every_further_sub_batch() {
        let model = Throughput::alone(Compute { alpha: 1.0, beta: 0.5 });
        assert_eq!(model.price(8.0, 4, Gang::ONE), (4.0 + 4.0) / 5.0);
        let nothing = Throughput::alone(Compute::default());
        assert_eq!(nothing.price(8.0, 4, Gang::ONE), 1.0);
    }

    fn models() -> impl Strategy<Value = Throughput> {
        let seconds = || prop_oneof![Just(0.0), 1e-6..10.0_f64];
        (seconds(), seconds(), 1.0..10.0_f64, seconds(), seconds(), seconds(), seconds()).prop_map(
            |(alpha, beta, gamma, a, b, c, d)| Throughput {
                compute: Compute { alpha, beta },
                gamma,
                inside: Net { base: a, per_gpu: b },
                across: Net { base: c, per_gpu: d },
            },
        )
    }

    proptest! {
        #[test]
        fn one_sub_batch_costs_nothing_and_more_are_never_faster(
            model in models(), batch in 1.0..4096.0_f64, power in 0u32..12
        ) {
            for gang in gangs() {
                prop_assert_eq!(model.price(batch, 1, gang), 1.0);
                let (fewer, more) =
                    (model.price(batch, 1 << power, gang), model.price(batch, 2 << power, gang));
                prop_assert!(fewer >= 1.0 && more >= fewer * (1.0 - 1e-9), "{} {}", fewer, more);
                // Before the guard against rounding.
                let pieces = model.iteration_seconds(batch / f64::from(1_u32 << power), 1 << power, gang);
                prop_assert!(pieces >= model.iteration_seconds(batch, 1, gang) * (1.0 - 1e-9));
            }
        }

        #[test]
        fn any_steps_give_a_model_within_its_bounds(
            rows in prop::collection::vec((1u32..9, 1u32..4, 1.0..512.0_f64, 1e-6..100.0_f64, 0.0..1.0_f64), 0..20)
        ) {
            let steps: Vec<StepTime> = rows.into_iter().map(|(gpus, nodes, batch, seconds, share)| StepTime {
                gang: Gang { gpus, nodes: nodes.min(gpus) }, batch, seconds, sync_seconds: seconds * share,
            }).collect();
            if let Ok(fit) = fit(&steps) {
                let Throughput { compute, gamma, inside, across } = fit.model;
                let parts = [compute.alpha, compute.beta, inside.base, inside.per_gpu, across.base, across.per_gpu];
                prop_assert!(parts.iter().all(|&part| part >= 0.0 && part.is_finite()), "{:?}", fit);
                prop_assert!((GAMMA.0..=GAMMA.1).contains(&gamma));
            }
        }
    }
}
