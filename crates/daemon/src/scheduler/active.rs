//! A job that has not ended, and the phase of its process.

use super::RateSource;
use super::services::ServiceState;
use crate::class::JobLength;
use crate::job::{JobState, StoredJob};
use crate::request::Dependency;
use serde::{Deserialize, Serialize};
use tandem_backends::{DeviceAllocation, Enforcement, RunHandle, RunId};
use tandem_core::{JobId, PPM_ONE, Ppm, Progress, Span, Time, Work};

/// The phase of a job's process. Between two lasting phases an operation is under way, and nothing else is
/// requested of the process until it has completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// No process.
    #[default]
    Absent,
    /// About to start.
    Starting,
    /// Runs.
    Running,
    /// About to be paused.
    Pausing,
    /// Paused.
    Stopped,
    /// About to continue.
    Resuming,
    /// Asked to save a checkpoint and exit.
    Asked,
    /// About to end.
    Ending,
}

impl Phase {
    /// Whether the process may use its devices.
    pub fn is_present(self) -> bool {
        !matches!(self, Phase::Absent | Phase::Stopped)
    }
}

/// The progress of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) progress: Progress,
    /// How the rate beside the present co-located jobs was found out.
    pub(super) source: RateSource,
}

impl Default for Pace {
    fn default() -> Self {
        Self { progress: Progress::default(), source: RateSource::Prediction }
    }
}

impl Pace {
    /// Work done by `now`, in microseconds of running alone.
    pub(super) fn done_us(&self, now: Time) -> u64 {
        let micros = self.progress.done_by(now).0 / u128::from(PPM_ONE);
        u64::try_from(micros).unwrap_or(u64::MAX)
    }

    /// Makes no progress from `now` on.
    pub(super) fn halt(&mut self, now: Time) {
        self.set_rate(now, Ppm::ZERO);
    }

    /// Continues at another rate, which is predicted.
    pub(super) fn set_rate(&mut self, now: Time, rate: Ppm) {
        let done = self.progress.done_by(now);
        let source = RateSource::Prediction;
        *self = Self { progress: Progress { done, at: now, rate }, source };
    }
}

/// A job that has not ended.
#[derive(Clone, Debug)]
pub struct Active {
    /// As it is stored.
    pub job: StoredJob,
    /// The state as which it is counted.
    pub(super) counted: Option<JobState>,
    /// Its number in the engine, if it is eligible.
    pub(super) entry: Option<JobId>,
    /// The phase of its process.
    pub phase: Phase,
    /// The devices of its process, or of the process that was paused.
    pub allocation: Option<DeviceAllocation>,
    /// Its process, or its job in the cluster.
    pub handle: Option<RunHandle>,
    /// How its share is enforced.
    pub enforcement: Enforcement,
    pub(super) bye: Option<bool>,
    pub(super) pace: Pace,
    /// Since when it runs, and whether it shares a device.
    pub(super) since: Option<(Time, bool)>,
    /// When to see whether it takes longer than expected.
    pub(super) check_at: Option<Time>,
    /// Not before this.
    pub(super) begin: Option<Time>,
    /// Why the cluster would not start it now.
    pub(super) cluster_waits: Option<String>,
    /// Killed if it has not exited by then.
    pub(super) leave_by: Option<Time>,
    pub(super) unmet: Vec<Dependency>,
    /// What it has to do, as far as its arguments tell.
    pub(super) length: Option<JobLength>,
    /// Of a service.
    pub(super) service: ServiceState,
}

impl Active {
    /// The most of each device that it may use.
    pub fn budget(&self) -> Ppm {
        self.allocation.as_ref().map_or(Ppm::ONE, |allocation| Ppm(allocation.share_ppm))
    }

    /// Whether its work goes before that of the jobs beside it.
    pub fn goes_first(&self) -> bool {
        self.allocation.as_ref().is_some_and(|allocation| allocation.goes_first)
    }

    pub(super) fn new(job: StoredJob) -> Self {
        let unmet = job.dependencies.clone();
        let done = Work::of(Span(job.done_us));
        let length = match job.request.params.is_empty() {
            true => JobLength::of_command(&job.request.command),
            false => JobLength::of_command(&job.command_start()),
        };
        Self {
            job,
            entry: None,
            counted: None,
            phase: Phase::Absent,
            allocation: None,
            handle: None,
            enforcement: Enforcement::None,
            bye: None,
            pace: Pace { progress: Progress { done, ..Progress::default() }, ..Pace::default() },
            since: None,
            check_at: None,
            begin: None,
            cluster_waits: None,
            leave_by: None,
            unmet,
            length,
            service: ServiceState::default(),
        }
    }

    /// The state that users see.
    pub(super) fn state(&self) -> JobState {
        match self.phase {
            Phase::Absent if self.job.state == JobState::Held => JobState::Held,
            Phase::Absent => JobState::Pending,
            _ if self.job.ending.is_some() => JobState::Completing,
            Phase::Starting | Phase::Running | Phase::Resuming => JobState::Running,
            Phase::Pausing | Phase::Stopped => JobState::Paused,
            Phase::Asked | Phase::Ending => JobState::Completing,
        }
    }

    /// Stops counting the time on its devices, and adds up what was counted.
    pub(super) fn stop_clock(&mut self, now: Time) {
        if let Some((since, shared)) = self.since.take() {
            let span = now.since(since).0;
            self.job.ran_us += span;
            if shared {
                self.job.shared_us += span;
            }
        }
    }

    /// Adds up the time on its devices, and counts on.
    pub(super) fn lap(&mut self, now: Time) {
        if let Some((_, shared)) = self.since {
            self.stop_clock(now);
            self.since = Some((now, shared));
        }
    }

    /// The devices that its process may use at present.
    pub(super) fn devices_in_use(&self) -> &[u32] {
        let allocation = self.allocation.as_ref().filter(|_| self.phase.is_present());
        allocation.map_or(&[], |allocation| &allocation.devices)
    }

    /// Its present run, or the last one.
    pub(super) fn run(&self) -> RunId {
        RunId { job: self.job.id, run: self.job.runs }
    }

    /// Whether its process saves a checkpoint and exits when it is asked to. Jobs of a cluster are ended by it.
    pub(super) fn can_stop(&self) -> bool {
        self.job.caps.stop
            || (self.job.external.is_none() && self.job.request.stop_signal().is_some())
    }

    /// The process of a run on this machine.
    pub fn pid(&self) -> Option<u32> {
        match self.handle? {
            RunHandle::Process(pid) => Some(pid),
            RunHandle::ClusterJob(_) => None,
        }
    }

    /// Time on its devices without pauses, up to `now`.
    pub fn ran_us(&self, now: Time) -> u64 {
        self.job.ran_us + self.since.map_or(0, |(since, _)| now.since(since).0)
    }

    /// The part of it during which it shared a device.
    pub fn shared_us(&self, now: Time) -> u64 {
        let shared = self.since.filter(|(_, shared)| *shared);
        self.job.shared_us + shared.map_or(0, |(since, _)| now.since(since).0)
    }

    /// Speed relative to running alone, as it is known or believed.
    pub fn rate(&self) -> Ppm {
        self.pace.progress.rate
    }

    /// Whether that speed was measured.
    pub fn rate_is_measured(&self) -> bool {
        self.pace.source != RateSource::Prediction
    }

    /// How that speed was found out.
    pub fn rate_source(&self) -> RateSource {
        self.pace.source
    }

    /// Work done by `now`, in microseconds of running alone.
    pub fn done_us(&self, now: Time) -> u64 {
        self.pace.done_us(now)
    }
}
