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

/// One thing that was asked for, happened or was found out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A user handed in a job, or several at once.
    Submit(Box<Submission>),
    /// A job is withdrawn.
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
    /// A job that waits is kept waiting.
    Hold {
        /// The job.
        job: u64,
    },
    /// A held job may go on.
    Release {
        /// The job.
        job: u64,
    },
    /// A running job is paused, on its devices, until it is resumed.
    Pause {
        /// The job.
        job: u64,
    },
    /// It goes on.
    Resume {
        /// The job.
        job: u64,
    },
    /// In how many parts a job computes its batches; the policy decides if absent.
    Accum {
        /// The job.
        job: u64,
        /// The parts.
        accum: Option<u32>,
    },
    /// A device takes no new jobs.
    Drain {
        /// The device.
        device: u32,
        /// Why, as the operator says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// It does again.
    Undrain {
        /// The device.
        device: u32,
    },
    /// Devices are kept for some users for some time.
    Reserve(Box<Booking>),
    /// A reservation is cancelled.
    Unreserve {
        /// Its number.
        id: u32,
    },
    /// The back end reports.
    Backend(BackendEvent),
    /// Something was measured.
    Fact(Fact),
}

/// A change of a job that a user may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobAction {
    /// End it.
    Cancel,
    /// Keep it from starting.
    Hold,
    /// Let it start.
    Release,
    /// Stop its process for a while.
    Pause,
    /// Continue its process.
    Resume,
    /// End its process and queue it again, from its checkpoint if it can save one.
    Requeue,
}

/// A submission.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// The number of its first job.
    pub first: u64,
    /// Whose it is.
    pub uid: u32,
    /// The user's primary group.
    pub gid: u32,
    /// The user's name.
    pub user: String,
    /// What was asked for, without the environment, which decides nothing.
    pub request: JobRequest,
    /// How the jobs that it depends on ended, of those that were over already.
    pub over: Vec<(u64, JobState)>,
    /// The cluster's id of the job, if it comes from a cluster.
    #[serde(default)]
    pub external: Option<String>,
    /// When it was submitted to the cluster, in microseconds since 1970.
    #[serde(default)]
    pub submit_unix_us: Option<u64>,
    /// What it depends on, by number.
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

/// Something that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fact {
    /// A job introduced itself.
    Hello {
        /// The job.
        job: u64,
        /// It computes its batches in as many parts as it is told.
        accum: bool,
        /// It saves its state and leaves when it is asked to.
        stop: bool,
    },
    /// A job took its leave.
    Bye {
        /// The job.
        job: u64,
        /// All its work is done.
        done: bool,
    },
    /// The most memory that a job took on a device, when its run has ended.
    Peak {
        /// The job.
        job: u64,
        /// The memory.
        bytes: u64,
    },
    /// How far a job is and how fast it goes.
    Progress {
        /// The job.
        job: u64,
        /// Its report.
        report: Report,
        /// How its rate was measured.
        #[serde(default)]
        from: RateSource,
    },
    /// How much a job has to do in all, by its own progress: steps done, and steps asked for.
    Total {
        /// The job.
        job: u64,
        /// In microseconds of running alone.
        total_us: u64,
    },
    /// How much of the time a class uses its devices.
    Duty {
        /// The class.
        class: String,
        /// From 0 to 1.
        duty: f64,
    },
    /// What a class takes on each of its devices; it has been steady for a while.
    Memory {
        /// The class.
        class: String,
        /// With its batches in this number of sub-batches.
        accum: u32,
        /// The most that was seen.
        bytes: u64,
    },
    /// How fast a class runs alone.
    Solo {
        /// The class.
        class: String,
        /// With its batches in this number of sub-batches.
        accum: u32,
        /// Steps per second.
        steps_per_s: f64,
    },
    /// How fast a class runs among co-located jobs, relative to running alone.
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
    /// How fast a class runs beside one other: in journals of version 1.
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
        /// How many in which time, and how long they took.
        window: RequestWindow,
    },
    /// Memory of processes on a device that are not ours.
    Foreign {
        /// The device.
        device: u32,
        /// Their memory.
        bytes: u64,
        /// How many they are.
        processes: u32,
    },
}

/// How the rate of a job was found out.
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

/// How far a job is and how fast it goes.
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
