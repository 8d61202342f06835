//! A job: specification, state and progress.

use crate::budget::Promise;
use crate::cluster::{PartitionId, id};
use crate::plan::Placement;
use crate::shares::{JobShare, Limit, LimitOf};
use crate::sub_batch::{SubBatch, SubBatches};
use crate::units::{Memory, PPM_ONE, Ppm, Ratio, Span, Time, Utilisation, Work};

id!(
    /// A job. Ids are in order of submission.
    JobId
);
id!(
    /// A user.
    UserId
);
id!(
    /// A class of jobs with equal behaviour: model, data set, batch size, precision.
    ClassId
);

/// The known load of a job on a GPU: the input of every interference model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The class it belongs to, if any.
    pub class: Option<ClassId>,
    /// Memory on each of its GPUs when alone.
    pub memory: Memory,
    /// Share of time during which it keeps the GPU busy when alone.
    pub gpu_util: Option<Utilisation>,
    /// Share of the memory bandwidth that it uses when alone.
    pub bandwidth_util: Option<Utilisation>,
}

/// The slow-down that a job accepts beside co-located jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tolerance {
    /// Any slow-down.
    #[default]
    Any,
    /// A slow-down of at most this, in parts per million.
    Slowdown(u32),
    /// No co-located jobs.
    Alone,
}

impl Tolerance {
    /// Whether a job with this tolerance may share GPUs at `rate`.
    pub fn accepts(self, rate: Ppm) -> bool {
        match self {
            Tolerance::Any => true,
            // Rates are rounded to parts per million: allow for half of one.
            Tolerance::Slowdown(most) => {
                let one = u64::from(PPM_ONE);
                u64::from(rate.0) * u64::from(most) + u64::from(most) / 2 >= one * one
            }
            Tolerance::Alone => false,
        }
    }
}

/// The highest priority of a job; the lowest is its negative.
///
/// The same range holds in requests, in traces and in policies. Two steps double the weight of a job, so
/// that the highest priority counts 1,024 times as much as priority 0.
pub const PRIORITY_MAX: i8 = 20;

/// What the scheduler is told when a job is submitted. The true duration is not part of it: only the world
/// knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSpec {
    /// Dense, in order of submission.
    pub id: JobId,
    /// Its owner.
    pub user: UserId,
    /// Its partition.
    pub partition: PartitionId,
    /// When it was submitted.
    pub submit: Time,
    /// Gang size: it runs on exactly this many GPUs or not at all.
    pub gpus: u32,
    /// Estimated solo duration on the reference GPU.
    pub estimate: Span,
    /// Its load on a GPU.
    pub profile: Profile,
    /// The sub-batches in which it can run.
    pub sub_batches: SubBatches,
    /// The slow-down that it accepts.
    pub tolerance: Tolerance,
    /// What else it was promised beside others.
    pub promise: Promise,
    /// From −[`PRIORITY_MAX`] to [`PRIORITY_MAX`]; 0 is the default, and two steps double the weight.
    pub priority: i8,
    /// Whether it can be stopped and continued later. No plan drops or moves a job that cannot.
    pub stoppable: bool,
    /// The expected cost of a restore after a stop. Only the world knows the true cost.
    pub restore: Span,
    /// What it counts for among the jobs of others.
    pub share: JobShare,
}

/// The part of a [`JobSpec`] that may change while a job waits or runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobDescription {
    /// Estimated solo duration on the reference GPU.
    pub estimate: Span,
    /// Its load on a GPU.
    pub profile: Profile,
    /// The sub-batches in which it can run.
    pub sub_batches: SubBatches,
    /// The slow-down that it accepts.
    pub tolerance: Tolerance,
    /// What else it was promised beside others.
    pub promise: Promise,
    /// Whether it can be stopped and continued later.
    pub stoppable: bool,
}

impl JobSpec {
    /// The current description.
    pub fn description(&self) -> JobDescription {
        JobDescription {
            estimate: self.estimate,
            profile: self.profile,
            sub_batches: self.sub_batches.clone(),
            tolerance: self.tolerance,
            promise: self.promise,
            stoppable: self.stoppable,
        }
    }

    pub(crate) fn describe(&mut self, description: JobDescription) {
        let JobDescription { estimate, profile, sub_batches, tolerance, promise, stoppable } =
            description;
        self.estimate = estimate;
        self.profile = profile;
        self.sub_batches = sub_batches;
        self.tolerance = tolerance;
        self.promise = promise;
        self.stoppable = stoppable;
    }

    /// All sub-batch options, whole batches first, each with less memory than the one before.
    pub fn sub_batch_options(&self) -> impl Iterator<Item = SubBatch> + '_ {
        let whole = self.whole();
        let smaller = self.sub_batches.as_slice().iter().copied();
        std::iter::once(whole).chain(smaller.filter(move |option| option.memory < whole.memory))
    }

    /// The option of `count` sub-batches, if there is one.
    #[inline]
    pub fn sub_batch_option(&self, count: u32) -> Option<SubBatch> {
        match count {
            1 => Some(self.whole()),
            _ => self.sub_batch_options().find(|option| option.count == count),
        }
    }

    fn whole(&self) -> SubBatch {
        SubBatch { count: 1, slowdown: Ratio::ONE, memory: self.profile.memory }
    }
}

/// The state of a job. Jobs that have ended are removed from the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchedulingState {
    /// In the queue since the given instant.
    Waiting {
        /// Submission, or the last stop.
        since: Time,
    },
    /// On GPUs since the given instant.
    Placed {
        /// Which GPUs, and how.
        placement: Placement,
        /// When it was placed.
        since: Time,
    },
}

/// Work done up to `at`, and the rate since then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Work done by `at`.
    pub done: Work,
    /// The time of `done`; in the future while a job restores its state.
    pub at: Time,
    /// Rate from `at` on.
    pub rate: Ppm,
}

impl Progress {
    /// Work done by `now`, without rounding.
    pub fn done_by(&self, now: Time) -> Work {
        self.done + Work::done(self.rate, now.since(self.at))
    }
}

/// Why a job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The free GPUs cannot hold its gang.
    NoRoom {
        /// Free GPUs of the partition.
        free: u32,
    },
    /// A job ahead of it in the queue waits, and the policy does not backfill.
    Behind(JobId),
    /// Jobs that the policy ranks higher hold the GPUs.
    Outranked,
    /// Its user has the share that is due, and others wait.
    FairShare,
    /// It, or an earlier job of its user, would exceed a limit.
    Limit(LimitOf, Limit),
    /// It waits for its reservation.
    Reserved,
}

/// A job in the engine.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its specification.
    pub spec: JobSpec,
    /// Its state.
    pub state: SchedulingState,
    /// Its progress as reported.
    pub progress: Progress,
    /// Time spent on GPUs before the present placement.
    held: Span,
    /// It has run before and must restore its state when it starts again.
    pub must_restore: bool,
}

impl Job {
    pub(crate) fn new(spec: JobSpec) -> Self {
        let since = spec.submit;
        Self {
            spec,
            state: SchedulingState::Waiting { since },
            progress: Progress::default(),
            held: Span::ZERO,
            must_restore: false,
        }
    }

    /// Its id.
    pub fn id(&self) -> JobId {
        self.spec.id
    }

    /// Its current placement, if any.
    pub fn placement(&self) -> Option<&Placement> {
        match &self.state {
            SchedulingState::Placed { placement, .. } => Some(placement),
            SchedulingState::Waiting { .. } => None,
        }
    }

    /// Estimated remaining solo work at `now`: estimate − work done, or half of the work done once that
    /// reaches the estimate.
    pub fn remaining(&self, now: Time) -> Work {
        Work(self.twice_remaining(now).0 / 2)
    }

    /// Twice [`Job::remaining`], which is an exact integer also after the estimate.
    pub fn twice_remaining(&self, now: Time) -> Work {
        let done = self.progress.done_by(now);
        let estimate = Work::of(self.spec.estimate);
        if done < estimate { Work(2 * (estimate - done).0) } else { done }
    }

    /// Attained GPU time by `now`: time on GPUs × number of GPUs.
    pub fn attained(&self, now: Time) -> Span {
        let present = match self.state {
            SchedulingState::Placed { since, .. } => now.since(since),
            SchedulingState::Waiting { .. } => Span::ZERO,
        };
        Span((self.held + present).0.saturating_mul(u64::from(self.spec.gpus)))
    }

    pub(crate) fn place(&mut self, placement: Placement, now: Time) {
        if let SchedulingState::Placed { since, .. } = self.state {
            self.held += now.since(since);
        }
        self.halt(now);
        self.state = SchedulingState::Placed { placement, since: now };
    }

    /// Continues where it is under another budget; the driver reports the next rate.
    pub(crate) fn set_budget(&mut self, budget: Ppm) {
        if let SchedulingState::Placed { placement, .. } = &mut self.state {
            placement.budget = budget;
        }
    }

    /// Returns the job to the queue with its progress saved.
    pub(crate) fn unplace(&mut self, now: Time) {
        self.halt(now);
        if let SchedulingState::Placed { since, .. } = self.state {
            self.held += now.since(since);
            self.must_restore = true;
        }
        self.state = SchedulingState::Waiting { since: now };
    }

    /// Stops progress; the driver reports the next rate.
    fn halt(&mut self, now: Time) {
        self.progress = Progress { done: self.progress.done_by(now), at: now, rate: Ppm::ZERO };
    }
}

#[cfg(test)]
impl JobSpec {
    /// A job on one GPU that declares nothing.
    pub(crate) fn plain(id: u32) -> Self {
        Self {
            id: JobId(id),
            user: UserId(0),
            partition: PartitionId(0),
            submit: Time(0),
            gpus: 1,
            estimate: Span::from_secs(60),
            profile: Profile::default(),
            sub_batches: SubBatches::default(),
            tolerance: Tolerance::Any,
            promise: Promise::default(),
            priority: 0,
            stoppable: true,
            restore: Span::ZERO,
            share: JobShare::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(estimate_s: u64, done_s: u64) -> Job {
        let estimate = Span::from_secs(estimate_s);
        let mut job = Job::new(JobSpec { gpus: 2, estimate, ..JobSpec::plain(0) });
        job.progress.done = Work::of(Span::from_secs(done_s));
        job
    }

    #[test]
    fn a_job_beyond_its_estimate_is_expected_to_need_half_of_its_work_again() {
        let remaining = |estimate, done| job(estimate, done).remaining(Time(0));
        assert_eq!(remaining(100, 40), Work::of(Span::from_secs(60)));
        assert_eq!(remaining(100, 100), Work::of(Span::from_secs(50)));
        assert_eq!(remaining(100, 300), Work::of(Span::from_secs(150)));
    }

    #[test]
    fn progress_is_exact_through_changes_of_rate_and_stands_still_while_restoring() {
        let start = Progress { done: Work::ZERO, at: Time(10), rate: Ppm(333_333) };
        assert_eq!(start.done_by(Time(5)), Work::ZERO);
        assert_eq!(start.done_by(Time(13)), Work(999_999));
    }
}
