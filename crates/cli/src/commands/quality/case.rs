//! A case: a trace under fixed conditions, on which policies are compared.

use crate::args::{parse_estimates, parse_load, parse_penalty};
use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tandem_core::Ratio;
use tandem_sim::{Estimates, LoadFactor, LowerBound, SimRun};

/// As written to the state file. Numbers are kept as texts, so that no digit is lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct QualityCase {
    pub(super) trace: String,
    pub(super) table: String,
    pub(super) load: String,
    pub(super) spread: String,
    pub(super) estimates: String,
    pub(super) beliefs: String,
    /// Memory of every GPU instead of that of the cluster; jobs may then run in sub-batches.
    pub(super) gpu_mib: Option<u64>,
}

impl QualityCase {
    pub(super) fn load(&self) -> Result<LoadFactor, Failure> {
        parse_load(&self.load).map_err(Failure::bad_input)
    }

    pub(super) fn spread_keeps(&self) -> Result<Ratio, Failure> {
        parse_penalty(&self.spread).map_err(Failure::bad_input)
    }

    pub(super) fn estimates(&self) -> Result<Estimates, Failure> {
        parse_estimates(&self.estimates).map_err(Failure::bad_input)
    }

    /// `window, lucid, ×1.5, spread 0.2`.
    pub(super) fn name(&self) -> String {
        let QualityCase { trace, table, load, spread, .. } = self;
        format!("{trace}, {table}, ×{load}, spread {spread}")
    }
}

/// The results of a policy on a case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) avg_jct_s: f64,
    pub(super) median_jct_s: f64,
    pub(super) p99_jct_s: f64,
    pub(super) goodput: f64,
    pub(super) shared_gpu_time: f64,
    /// Lower bounds on the mean JCT of this case, the latter for the jobs on a GPU of this policy.
    pub(super) least_exclusive_s: f64,
    pub(super) least_sharing_s: f64,
}

impl Figures {
    pub(super) fn new(run: &SimRun, bound: LowerBound) -> Self {
        let metrics = &run.metrics;
        Self {
            avg_jct_s: metrics.avg_jct_s,
            median_jct_s: metrics.median_jct_s,
            p99_jct_s: metrics.p99_jct_s,
            goodput: metrics.goodput,
            shared_gpu_time: metrics.shared_gpu_time,
            least_exclusive_s: bound.exclusive_s,
            least_sharing_s: bound.sharing_s,
        }
    }
}

/// All results, by case and policy.
#[derive(Debug, Default)]
pub(super) struct CaseResults(BTreeMap<QualityCase, BTreeMap<String, Figures>>);

impl CaseResults {
    pub(super) fn insert(&mut self, case: &QualityCase, policy: &str, figures: Figures) {
        self.0.entry(case.clone()).or_default().insert(policy.to_owned(), figures);
    }

    pub(super) fn has(&self, case: &QualityCase, policy: &str) -> bool {
        self.0.get(case).is_some_and(|policies| policies.contains_key(policy))
    }

    /// The results of a case that was planned and run.
    pub(super) fn of(&self, case: &QualityCase, policy: &str) -> Figures {
        let found = self.0.get(case).and_then(|policies| policies.get(policy));
        *found.expect("whatever is shown was planned, and whatever was planned has run")
    }

    pub(super) fn mean(&self, case: &QualityCase, policy: &str) -> f64 {
        self.of(case, policy).avg_jct_s
    }

    /// The policy of `policies` with the lowest mean JCT, and that mean.
    pub(super) fn best<'a>(
        &self,
        case: &QualityCase,
        policies: impl IntoIterator<Item = &'a str>,
    ) -> Option<(&'a str, f64)> {
        let means = policies.into_iter().map(|policy| (policy, self.mean(case, policy)));
        means.min_by(|one, other| one.1.total_cmp(&other.1))
    }

    /// The lowest of the bounds of `policies`, which none of them can fall below.
    pub(super) fn least<'a>(
        &self,
        case: &QualityCase,
        policies: impl IntoIterator<Item = &'a str>,
    ) -> f64 {
        let bounds = policies.into_iter().map(|policy| self.of(case, policy).least_sharing_s);
        bounds.fold(f64::INFINITY, f64::min)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&QualityCase, &str, &Figures)> {
        let cases = self.0.iter();
        cases.flat_map(|(case, policies)| {
            policies.iter().map(move |(policy, figures)| (case, policy.as_str(), figures))
        })
    }
}
