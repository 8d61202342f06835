//! What every back end of a cluster needs. The cluster keeps the queue and runs the jobs; Tandem imports
//! its pending jobs, decides where and when each of them runs, and reconciles the cluster with that.

pub(crate) mod control_loop;
pub(crate) mod desired;

use crate::op::Owner;
use serde::{Deserialize, Serialize};

/// A pending job of the cluster that Tandem imports: it waits there until Tandem places it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterJob {
    /// The cluster's id of the job with a tag, so that it is never given to another job.
    pub external: String,
    /// The user it belongs to.
    pub owner: Owner,
    /// The user's name.
    pub user: String,
    /// Its name, as the user gave it.
    pub name: String,
    /// GPUs that it occupies, including those that no other job can use beside it.
    pub gpus: u32,
    /// Its time limit, which the cluster enforces.
    pub limit_s: Option<f64>,
    /// It cannot share its GPUs.
    pub exclusive: bool,
    /// The user's hints about it, unparsed.
    pub hints: String,
    /// When it was submitted, in microseconds since 1970.
    pub submit_unix_us: u64,
    /// Why the cluster would not start it now; `None` if it may be placed.
    #[serde(default)]
    pub waits: Option<String>,
}

/// The id by which users of the cluster know a job: without the tag that makes it unique.
pub fn short_id(external: &str) -> &str {
    external.split('#').next().unwrap_or(external)
}
