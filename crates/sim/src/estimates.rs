//! Errors of estimates, and estimates from history: a job's estimate is set when it is submitted, from the
//! jobs that have finished in this run.

use crate::trace::Names;
use crate::workload::{Estimates, Workload};
use serde::Serialize;
use tandem_core::{JobId, MICROS_PER_SECOND, Span};
use tandem_models::errors::spearman;
use tandem_models::history::{RunTimes, Traits};

/// Errors of the estimates of a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EstimateErrors {
    /// Rank correlation with the true durations; absent where it is undefined.
    pub spearman: Option<f64>,
    /// Half of the estimates are within this factor of the true duration.
    pub median_factor: f64,
    /// Mean of |estimate − duration|.
    pub mae_s: f64,
}

impl EstimateErrors {
    /// For the estimates of a run; `None` where they are the true durations.
    pub(crate) fn of(workload: &Workload, learned: Option<&HistoryEstimates>) -> Option<Self> {
        if workload.estimates == Estimates::True {
            return None;
        }
        let given = || workload.jobs.iter().map(|job| job.spec.estimate).collect();
        let estimates = learned.map_or_else(given, |learned| learned.estimates.clone());
        // Both sides are at least a microsecond, so that their ratio is defined.
        let durations = workload.jobs.iter().map(|job| job.duration.0.max(1));
        let pairs: Vec<(u64, u64)> =
            estimates.iter().map(|estimate| estimate.0.max(1)).zip(durations).collect();
        let factor = |&(one, other): &(u64, u64)| one.max(other) as f64 / one.min(other) as f64;
        let mut factors: Vec<f64> = pairs.iter().map(factor).collect();
        factors.sort_by(f64::total_cmp);
        let off: u128 = pairs.iter().map(|&(one, other)| u128::from(one.abs_diff(other))).sum();
        let median = factors.len().saturating_sub(1) / 2;
        Some(Self {
            spearman: spearman(&pairs),
            median_factor: factors.get(median).copied().unwrap_or(1.0),
            mae_s: off as f64 / MICROS_PER_SECOND as f64 / pairs.len().max(1) as f64,
        })
    }
}

/// The history of a run, and the estimate of each job.
pub(crate) struct HistoryEstimates {
    history: RunTimes,
    /// The model of each class by number. Traces have no job names, so the model replaces the name pattern.
    models: Vec<u32>,
    /// By `JobId`, for submitted jobs.
    estimates: Vec<Span>,
}

impl HistoryEstimates {
    /// `None` where the estimates are known beforehand.
    pub(crate) fn new(workload: &Workload) -> Option<Self> {
        if workload.estimates != Estimates::History {
            return None;
        }
        let mut names: Names = Names::default();
        let models =
            workload.trace.classes.iter().map(|class| names.intern(class.model.as_str())).collect();
        let estimates = Vec::with_capacity(workload.len());
        Some(Self { history: RunTimes::default(), models, estimates })
    }

    fn traits(&self, workload: &Workload, job: JobId) -> Traits {
        let spec = workload.spec(job);
        let class = spec.profile.class;
        let name = class.map(|class| self.models[class.index()]);
        Traits { user: spec.user, name, gpus: spec.gpus, class }
    }

    /// The estimate of a job that is submitted now; called in order of submission.
    #[inline(never)]
    pub(crate) fn estimate(&mut self, workload: &Workload, job: JobId) -> Span {
        let estimate = self.history.estimate(&self.traits(workload, job));
        self.estimates.push(estimate);
        estimate
    }

    #[inline(never)]
    pub(crate) fn finish(&mut self, workload: &Workload, job: JobId) {
        let traits = self.traits(workload, job);
        self.history.finish(&traits, workload.duration(job));
    }
}
