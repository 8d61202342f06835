//! How good estimates are, and those that a run makes for itself: a job's is set when it is submitted,
//! from the jobs that have finished in this run by then.

use crate::trace::Names;
use crate::workload::{Estimates, Workload};
use serde::Serialize;
use tandem_core::{JobId, MICROS_PER_SECOND, Span};
use tandem_models::errors::spearman;
use tandem_models::history::{History, Traits};

/// How good the estimates of a run were.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EstimateErrors {
    /// Rank correlation with the true durations; absent where it is undefined.
    pub spearman: Option<f64>,
    /// Half of the estimates are within this factor of the truth.
    pub median_factor: f64,
    /// Mean of |estimate − duration|.
    pub mae_s: f64,
}

impl EstimateErrors {
    /// Of the estimates of a run; `None` where they are the truth.
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

/// The history of a run, and what it said about each job.
pub(crate) struct HistoryEstimates {
    history: History,
    /// The number of the model of each class: no trace has names of jobs, so that the model stands in
    /// for the pattern of the name.
    models: Vec<u32>,
    /// By `JobId`, of jobs that were submitted.
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
        Some(Self { history: History::default(), models, estimates })
    }

    fn traits(&self, workload: &Workload, job: JobId) -> Traits {
        let spec = workload.spec(job);
        let class = spec.profile.class;
        let name = class.map(|class| self.models[class.index()]);
        Traits { user: spec.user, name, gpus: spec.gpus, class }
    }

    /// What the scheduler is told about a job that is submitted now; called in order of submission.
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
