//! The events of a back end.

use crate::cluster::ClusterJob;
use crate::op::{OpId, RunId};
use crate::providers::DeviceSample;
use serde::{Deserialize, Serialize};

/// One event. Serialised names are part of the journal and stay as they are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BackendEvent {
    /// The run has started: its process runs the job's program, or the cluster says so.
    Started {
        /// The operation.
        op: OpId,
        /// The run.
        run: RunId,
        /// Its process, or its job in the cluster.
        #[serde(flatten)]
        handle: RunHandle,
        /// How its share is enforced.
        enforcement: crate::Enforcement,
    },
    /// The run will never exist: its program cannot be executed, or a file cannot be opened.
    NotStarted {
        /// The operation.
        op: OpId,
        /// The run.
        run: RunId,
        /// The error, in one line.
        reason: String,
        /// The cause may go away by itself, as a full disk does: another run may succeed later.
        #[serde(default, rename = "passing")]
        transient: bool,
    },
    /// Every thread of the run is stopped.
    Paused {
        /// The operation.
        op: OpId,
        /// The run.
        run: RunId,
        /// From the request to the confirmation.
        took_us: u64,
    },
    /// The run continues.
    Resumed {
        /// The operation.
        op: OpId,
        /// The run.
        run: RunId,
    },
    /// An operation failed; the run is as it was.
    Refused {
        /// The operation.
        op: OpId,
        /// The run.
        run: RunId,
        /// Why, in one line.
        reason: String,
        /// The cause may go away by itself, as a full disk does.
        #[serde(default, rename = "passing")]
        transient: bool,
    },
    /// A run ended.
    Exited {
        /// The run.
        run: RunId,
        /// How.
        exit: Exit,
    },
    /// A run no longer exists and left no record of its end.
    Lost {
        /// The run.
        run: RunId,
        /// What is known about it, in one line.
        reason: String,
    },
    /// The cluster requeued a run: its progress is lost, it will start again on its devices.
    Requeued {
        /// The run.
        run: RunId,
    },
    /// A job is pending in the cluster and waits to be placed.
    #[serde(rename = "offered")]
    Imported(Box<ClusterJob>),
    /// A pending job of the cluster is no longer Tandem's to place: it was cancelled, released or has ended.
    Withdrawn {
        /// The cluster's id of the job.
        external: String,
        /// What is known about it, in one line.
        reason: String,
    },
    /// The cluster keeps a pending job from starting, or no longer does: it may be placed.
    Waits {
        /// The cluster's id of the job.
        external: String,
        /// Why, in one line; `None` if it may be placed.
        reason: Option<String>,
    },
    /// The cluster gives a run other devices than it was told to.
    Placed {
        /// The run.
        run: RunId,
        /// Its devices.
        devices: Vec<u32>,
    },
    /// A device accepts jobs again, or none at present.
    Device {
        /// The device.
        device: u32,
        /// Why it accepts none; `None` if it does.
        #[serde(rename = "closed")]
        unavailable: Option<String>,
    },
    /// A sample of the resource usage of runs and devices.
    Sampled(UsageSample),
}

/// What the system calls a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunHandle {
    /// A process of this machine, which leads a process group.
    #[serde(rename = "pid")]
    Process(u32),
    /// A job of the cluster, by the number under which it knows itself there.
    #[serde(rename = "cluster_job")]
    ClusterJob(u64),
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// CPU time of the run and its children.
    pub cpu_s: f64,
    /// The largest resident memory of one of its processes.
    pub rss_max_bytes: u64,
    /// It ran out of memory, according to the system or to its own error output.
    pub oom: bool,
    /// When it ended, in microseconds since 1970.
    pub at_unix_us: u64,
    /// Why the cluster ended it, if the cluster did. Final: such a run is not retried.
    #[serde(default, rename = "verdict")]
    pub cause: Option<ExitCause>,
}

/// Why a cluster ended a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitCause {
    /// A user or an operator cancelled it.
    Cancelled,
    /// It reached its time limit.
    TimedOut,
    /// It exceeded its memory limit.
    OutOfMemory,
}

/// The exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl ExitStatus {
    /// The exit code as a shell shows it: 128 + signal for a signal.
    pub fn code(self) -> i32 {
        match self {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) => 128 + signal,
        }
    }
}

/// The resource usage of runs and devices at one instant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UsageSample {
    /// By index.
    pub devices: Vec<DeviceSample>,
    /// Runs whose processes exist.
    pub runs: Vec<RunSample>,
}

/// The resource usage of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSample {
    /// The run.
    pub run: RunId,
    /// CPU time so far of the processes that exist and of the children they have waited for.
    pub cpu_s: f64,
    /// Memory that counts against its devices at present: device memory, or resident memory.
    pub memory_bytes: u64,
    /// Time so far in which its threads were ready to run and waited for a core; `None` where its devices are
    /// no cores.
    #[serde(default)]
    pub wait_s: Option<f64>,
    /// CPU time so far of the threads to which `wait_s` belongs: those that exist.
    #[serde(default)]
    pub threads_s: f64,
    /// Part of the last interval in which it used its GPU, where that is known.
    #[serde(default)]
    pub device_use: Option<f64>,
    /// Every thread is stopped.
    pub stopped: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Enforcement;
    use crate::op::{DeviceAllocation, Launch, Owner};
    use crate::recovery::RecoveredRun;
    use serde_json::json;

    /// Events of a journal that an earlier version wrote, and how they read.
    #[test]
    fn journals_of_earlier_versions_stay_readable() {
        let run = RunId { job: 1, run: 2 };
        let read = |text: &str| serde_json::from_str::<BackendEvent>(text).expect("it is valid");
        let job = ClusterJob {
            external: "5#a".to_owned(),
            owner: Owner { uid: 1, gid: 2 },
            user: "ann".to_owned(),
            name: "job".to_owned(),
            gpus: 1,
            limit_s: None,
            exclusive: false,
            hints: String::new(),
            submit_unix_us: 7,
            waits: None,
        };
        let text = r#"{"offered":{"external":"5#a","owner":{"uid":1,"gid":2},"user":"ann","name":"job","gpus":1,
            "limit_s":null,"exclusive":false,"hints":"","submit_unix_us":7}}"#;
        assert_eq!(read(text), BackendEvent::Imported(Box::new(job)));
        let text = r#"{"started":{"op":7,"run":{"job":1,"run":2},"pid":99,"enforcement":"none"}}"#;
        let (op, handle, enforcement) = (OpId(7), RunHandle::Process(99), Enforcement::None);
        assert_eq!(read(text), BackendEvent::Started { op, run, handle, enforcement });
        let text = r#"{"device":{"device":3,"closed":"down"}}"#;
        let unavailable = Some("down".to_owned());
        assert_eq!(read(text), BackendEvent::Device { device: 3, unavailable });
        let text = r#"{"exited":{"run":{"job":1,"run":2},"exit":{"status":{"signal":15},"cpu_s":0.0,
            "rss_max_bytes":0,"oom":false,"at_unix_us":0,"verdict":"timed_out"}}}"#;
        let BackendEvent::Exited { exit, .. } = read(text) else { panic!("not an exit") };
        assert_eq!((exit.status, exit.cause), (ExitStatus::Signal(15), Some(ExitCause::TimedOut)));
        let text = r#"{"refused":{"op":7,"run":{"job":1,"run":2},"reason":"full","passing":true}}"#;
        let reason = "full".to_owned();
        assert_eq!(read(text), BackendEvent::Refused { op: OpId(7), run, reason, transient: true });
        let text = r#"{"not_started":{"reason":"full","passing":true}}"#;
        let recovered =
            |text: &str| serde_json::from_str::<RecoveredRun>(text).expect("it is valid");
        let found = recovered(text);
        assert_eq!(found, RecoveredRun::NotStarted { reason: "full".to_owned(), transient: true });
        let found = recovered(r#"{"running":{"pid":99,"paused":true}}"#);
        assert_eq!(found, RecoveredRun::Running { handle, paused: true, enforcement });
    }

    #[test]
    fn a_job_of_a_cluster_has_no_process() {
        let (op, run, enforcement) = (OpId(1), RunId { job: 1, run: 2 }, Enforcement::None);
        let handle = RunHandle::ClusterJob(5_000_000_000);
        let event = BackendEvent::Started { op, run, handle, enforcement };
        let text = serde_json::to_string(&event).expect("it can be written");
        assert!(text.contains(r#""cluster_job":5000000000"#) && !text.contains("pid"), "{text}");
        assert_eq!(serde_json::from_str::<BackendEvent>(&text).expect("it was written"), event);
    }

    /// Its allocation had a niceness, which was always 0.
    #[test]
    fn a_launch_of_an_earlier_version_is_readable() {
        let launch = json!({
            "run": { "job": 1, "run": 2 }, "command": ["true"], "env": {}, "dir": "/", "stdout": "out",
            "stderr": null, "append": false, "owner": null, "memory_limit_bytes": null,
            "seat": { "devices": [0], "share_ppm": 1, "memory_bytes": 2, "sub_batches": 3, "nice": 0 },
        });
        let launch: Launch = serde_json::from_value(launch).expect("it is valid");
        let allocation = DeviceAllocation {
            devices: vec![0],
            share_ppm: 1,
            memory_bytes: 2,
            sub_batches: 3,
            goes_first: false,
        };
        assert_eq!(launch.allocation, allocation);
    }
}
