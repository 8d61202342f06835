//! The inputs of the scheduler. Everything that influences a decision is one of these, so a journal of them
//! replays a run.

use super::Booking;
use crate::job::{JobState, RequestWindow};
use crate::request::{Dependency, DependencyName, JobRequest, Selector};
use serde::{Deserialize, Serialize};
use tandem_backends::BackendEvent;
use tandem_core::{Span, Time, Work};
use utoipa::ToSchema;

/// An instant: on the scheduler's own clock, which never jumps, and on the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// Microseconds on the scheduler's clock.
    pub at_us: u64,
    /// Microseconds since 1970.
    pub unix_us: u64,
}

impl Now {
    /// On the scheduler's clock.
    pub fn time(self) -> Time {
        Time(self.at_us)
    }
}

/// One command, event or measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A user submitted a job, or several tasks at once.
    Submit(Box<Submission>),
    /// A job is cancelled.
    Cancel {
        /// The job.
        job: u64,
        /// The user's name.
        by: String,
    },
    /// Several jobs are changed in the same way.
    Change {
        /// How.
        action: JobAction,
        /// The jobs.
        jobs: Vec<u64>,
        /// The user's name.
        by: String,
    },
    /// A job is queued again, from its checkpoint if it can save one.
    Requeue {
        /// The job.
        job: u64,
        /// The user's name.
        by: String,
    },
    /// A pending job is held.
    Hold {
        /// The job.
        job: u64,
    },
    /// A held job is released.
    Release {
        /// The job.
        job: u64,
    },
    /// A running job is paused until it is resumed; it keeps its devices.
    Pause {
        /// The job.
        job: u64,
    },
    /// A paused job is resumed.
    Resume {
        /// The job.
        job: u64,
    },
    /// A user sets the number of sub-batches of a job; the policy decides if absent.
    Accum {
        /// The job.
        job: u64,
        /// Sub-batches per batch.
        accum: Option<u32>,
    },
    /// A device is drained: it takes no new jobs.
    Drain {
        /// The device.
        device: u32,
        /// Why, as the operator says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A device is no longer drained.
    Undrain {
        /// The device.
        device: u32,
    },
    /// Devices are reserved.
    Reserve(Box<Booking>),
    /// A reservation is cancelled.
    Unreserve {
        /// Its number.
        id: u32,
    },
    /// An event of the back end.
    Backend(BackendEvent),
    /// A measurement.
    Fact(Fact),
}

/// A change of a job that a user may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobAction {
    /// Cancel it.
    Cancel,
    /// Hold it.
    Hold,
    /// Release it.
    Release,
    /// Pause it.
    Pause,
    /// Resume it.
    Resume,
    /// End its process and queue it again, from its checkpoint if it can save one.
    Requeue,
}

/// A submission.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// The id of its first job.
    pub first: u64,
    /// The user id of its owner.
    pub uid: u32,
    /// The user's primary group.
    pub gid: u32,
    /// The user's name.
    pub user: String,
    /// The request, without the environment, on which no decision depends.
    pub request: JobRequest,
    /// Final states of dependencies that had ended before.
    pub over: Vec<(u64, JobState)>,
    /// The cluster's id of the job, if it comes from a cluster.
    #[serde(default)]
    pub external: Option<String>,
    /// When it was submitted to the cluster, in microseconds since 1970.
    #[serde(default)]
    pub submit_unix_us: Option<u64>,
    /// Why the cluster would not start it now, if it comes from a cluster.
    #[serde(default)]
    pub waits: Option<String>,
    /// Ids of the jobs on which it depends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub depends: Vec<Dependency>,
}

impl Submission {
    /// What it depends on. Journals of version 2 have it only as text, with plain numbers.
    pub(super) fn dependencies(&self) -> Vec<Dependency> {
        if !self.depends.is_empty() {
            return self.depends.clone();
        }
        let plain = |name: DependencyName| match name.jobs {
            Selector::Jobs(jobs) => jobs,
            _ => Vec::new(),
        };
        let names = self.request.dependencies().unwrap_or_default().into_iter();
        names
            .flat_map(|name| {
                let after = name.after;
                plain(name).into_iter().map(move |job| Dependency::on(after, job))
            })
            .collect()
    }
}

impl Submission {
    /// How many jobs it becomes.
    pub(crate) fn jobs(&self) -> usize {
        self.request.tasks().map_or(0, |tasks| tasks.count())
    }

    /// What it adds to what its user has, given its number of jobs.
    pub(crate) fn load(&self, jobs: u64) -> super::UserLoad {
        let waits = self.depends.len() as u64;
        super::UserLoad {
            jobs,
            dependencies: jobs * waits,
            bytes: self.request.stored_bytes,
            webhooks: if self.request.webhook.is_some() { jobs } else { 0 },
        }
    }
}

/// A measurement: a fact about a job or a class that may change a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// A job connected and said what it supports.
    Hello {
        /// The job.
        job: u64,
        /// It computes its batches in as many sub-batches as it is told.
        accum: bool,
        /// It saves a checkpoint and exits when it is asked to.
        stop: bool,
    },
    /// A job said that it is about to exit.
    Bye {
        /// The job.
        job: u64,
        /// All its work is done.
        done: bool,
    },
    /// Peak memory of a job on a device, at the end of its run.
    Peak {
        /// The job.
        job: u64,
        /// The memory.
        bytes: u64,
    },
    /// Progress and rate of a job.
    Progress {
        /// The job.
        job: u64,
        /// Its report.
        report: Report,
        /// How its rate was measured.
        #[serde(default)]
        from: RateSource,
    },
    /// The total work of a job by its own progress: steps done, and steps in all.
    Total {
        /// The job.
        job: u64,
        /// In microseconds of running alone.
        total_us: u64,
    },
    /// The fraction of time in which a class uses its devices alone.
    Duty {
        /// The class.
        class: String,
        /// From 0 to 1.
        duty: f64,
    },
    /// The memory of a class on each of its devices, once it was steady.
    Memory {
        /// The class.
        class: String,
        /// With its batches in this number of sub-batches.
        accum: u32,
        /// The peak.
        bytes: u64,
    },
    /// The speed of a class alone.
    Solo {
        /// The class.
        class: String,
        /// With its batches in this number of sub-batches.
        accum: u32,
        /// Steps per second.
        steps_per_s: f64,
    },
    /// The rate of a class among co-located jobs, relative to running alone.
    Observed {
        /// The class.
        class: String,
        /// Classes of the co-located jobs on each GPU, where that differs.
        beside: Vec<Vec<String>>,
        /// The rate.
        rate: f64,
        /// Standard deviation of the measurement.
        noise: f64,
    },
    /// The rate of a class beside one other, in journals of version 1.
    Pair {
        /// The class.
        class: String,
        /// The one beside it.
        beside: String,
        /// The rate.
        rate: f64,
        /// Standard deviation of the measurement.
        noise: f64,
    },
    /// A service answered requests.
    Requests {
        /// The job.
        job: u64,
        /// Number of requests, length of the window and latencies.
        window: RequestWindow,
    },
    /// Memory of foreign processes on a device.
    Foreign {
        /// The device.
        device: u32,
        /// Their memory.
        bytes: u64,
        /// Number of processes.
        processes: u32,
    },
}

/// How the rate of a job was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RateSource {
    /// From steps that it reported or printed.
    #[default]
    Steps,
    /// From its use of its devices, alone and beside others.
    Usage,
    /// Not measured beside the present co-located jobs: predicted.
    Prediction,
}

/// Progress and rate of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Work done at `at_us`, in whole microseconds of running alone,
    pub done_us: u64,
    /// and millionths of one.
    pub done_millionths: u32,
    /// The instant on the scheduler's clock; in the future while a job restores its state.
    pub at_us: u64,
    /// Its speed relative to running alone from then on, in parts per million.
    pub rate_ppm: u32,
}

impl Report {
    /// Work done.
    pub fn done(&self) -> Work {
        Work::of(Span(self.done_us)) + Work(u128::from(self.done_millionths))
    }
}
