//! Estimates that a run makes for itself: a job's is set when it is submitted, from the jobs that have
//! finished in this run by then.

use crate::trace::Names;
use crate::workload::{Estimates, Workload};
use serde::Serialize;
use tandem_core::{JobId, Span};
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

/// The history of a run, and what it said about each job.
pub(crate) struct Learned {
    history: History,
    /// The number of the model of each class: no trace has names of jobs, so that the model stands in
    /// for the pattern of the name.
    models: Vec<u32>,
    /// By `JobId`, of jobs that were submitted.
    estimates: Vec<Span>,
}

impl Learned {
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
    pub(crate) fn estimate(&mut self, workload: &Workload, job: JobId) -> Span {
        let estimate = self.history.estimate(&self.traits(workload, job));
        self.estimates.push(estimate);
        estimate
    }

    pub(crate) fn finish(&mut self, workload: &Workload, job: JobId) {
        let traits = self.traits(workload, job);
        self.history.finish(&traits, workload.duration(job));
    }

    pub(crate) fn errors(&self, workload: &Workload) -> EstimateErrors {
        let durations = workload.jobs.iter().map(|job| job.duration.0);
        let pairs: Vec<(u64, u64)> =
            self.estimates.iter().map(|estimate| estimate.0.max(1)).zip(durations).collect();
        let mut factors: Vec<f64> = pairs
            .iter()
            .map(|&(estimate, duration)| {
                estimate.max(duration) as f64 / estimate.min(duration) as f64
            })
            .collect();
        factors.sort_by(f64::total_cmp);
        let off: u128 = pairs.iter().map(|(one, other)| u128::from(one.abs_diff(*other))).sum();
        EstimateErrors {
            spearman: spearman(&pairs),
            median_factor: factors.get(factors.len().saturating_sub(1) / 2).copied().unwrap_or(1.0),
            mae_s: off as f64 / 1e6 / pairs.len().max(1) as f64,
        }
    }
}
