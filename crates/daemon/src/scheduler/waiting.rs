//! Why a job waits, and for what.

use super::{Active, Booking, Phase, Scheduler};
use std::collections::BTreeSet;
use std::sync::Arc;
use tandem_core::{Limit, LimitOf, Reason, Span, Time};

/// Why a job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Its begin time has not come.
    Begins {
        /// The time, in microseconds since 1970.
        unix_us: u64,
        /// Now.
        now_us: u64,
    },
    /// So many jobs of its user are planned before it.
    OwnJobs(u32),
    /// For these devices, which others are about to leave.
    Handover {
        /// The devices.
        devices: Vec<u32>,
        /// Who is still there.
        leaving: Vec<u64>,
    },
    /// For devices.
    Devices {
        /// Why the policy gives it none.
        cause: WaitCause,
        /// How many it needs.
        needs: u32,
        /// The policy has paused it for others.
        paused: bool,
        /// What they are busy with.
        devices: Arc<DeviceSummary>,
        /// Now.
        now: Time,
    },
}

/// Why the policy gives a job no devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitCause {
    /// It does not fit into what is free.
    NoRoom,
    /// A job before it waits, and the policy does not pass it.
    Behind(u64),
    /// The policy ranks others higher.
    Outranked,
    /// The policy did not say.
    Undecided,
    /// Its user has the share that is due.
    FairShare,
    /// A limit of its user or account.
    Limit(LimitOf, Limit),
    /// Its reservation has not started, or is in use.
    Reserved,
}

/// What the devices are busy with, as far as those care who wait for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSummary {
    /// All devices.
    pub total: usize,
    /// Devices with jobs, of those that accept jobs.
    pub busy: usize,
    /// Devices that accept no jobs, and why.
    pub shut: Vec<(u32, ShutCause)>,
    /// The running job that is expected to end first, and when.
    pub next_end: Option<(u64, Time)>,
}

/// Why a device accepts no jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutCause {
    /// An operator drained it, for a reason if one was given.
    Drained(Option<String>),
    /// The same until some time, in microseconds since 1970.
    DrainedUntil(u64, Option<String>),
    /// It is not available by the back end.
    Closed(String),
    /// Processes that are not ours use it.
    Foreign,
    /// It is kept free for a job that has to be relocated.
    Reserved,
}

impl Scheduler {
    /// Why a job waits; `None` if it runs, is held, depends on others or was paused by a user.
    pub(super) fn waiting(&self, active: &Active, now: Time) -> Option<Waiting> {
        if active.job.user_paused || active.phase.is_present() {
            return None;
        }
        let Some(entry) = active.entry else {
            let most = self.setup.planned_per_user.filter(|_| self.jobs.is_outside(active));
            return most.map(Waiting::OwnJobs).or_else(|| self.begins(active));
        };
        let known = self.planner.find(Some(entry))?;
        if let Some(placement) = known.placement() {
            let devices: Vec<u32> = placement.gpus.iter().map(|gpu| gpu.0).collect();
            let leaving = self.devices.co_located(active.job.id, &devices).into_iter();
            let leaving = leaving.filter(|&other| {
                let entry = self.jobs.get(other).and_then(|other| other.entry);
                !placement.gpus.iter().any(|&gpu| self.planner.is_tenant(entry, gpu))
            });
            return Some(Waiting::Handover { leaving: leaving.collect(), devices });
        }
        let cause = match self.planner.engine().reason(entry) {
            Some(Reason::NoRoom { .. }) => WaitCause::NoRoom,
            Some(Reason::Behind(job)) => match self.planner.job_of(job) {
                // A job is not in its own way.
                other if other == active.job.id => WaitCause::Outranked,
                other => WaitCause::Behind(other),
            },
            Some(Reason::Outranked) => WaitCause::Outranked,
            Some(Reason::FairShare) => WaitCause::FairShare,
            Some(Reason::Limit(of, limit)) => WaitCause::Limit(of, limit),
            Some(Reason::Reserved) => WaitCause::Reserved,
            None => WaitCause::Undecided,
        };
        let paused = active.phase == Phase::Stopped;
        let devices = Arc::clone(self.summary.get_or_init(|| Arc::new(self.device_summary())));
        Some(Waiting::Devices { cause, needs: known.spec.gpus, paused, devices, now })
    }

    /// The begin time of a job that waits for it and for nothing else.
    fn begins(&self, active: &Active) -> Option<Waiting> {
        let begin = (active.job.request.begin_unix_s? * 1e6) as u64;
        let waits = active.begin.is_some() && active.unmet.is_empty() && begin > self.now.unix_us;
        let is_held = active.job.state == crate::job::JobState::Held;
        let now_us = self.now.unix_us;
        (waits && !is_held).then_some(Waiting::Begins { unix_us: begin, now_us })
    }

    /// What the devices are busy with at the last step.
    fn device_summary(&self) -> DeviceSummary {
        let count = self.setup.devices.len();
        let mut summary = DeviceSummary { total: count, ..DeviceSummary::default() };
        let mut running = BTreeSet::new();
        for device in (0..).take(count) {
            running.extend(self.devices.present(device));
            match self.shut_cause(device) {
                Some(cause) => summary.shut.push((device, cause)),
                None => {
                    let is_busy = self.devices.present(device).next().is_some()
                        || self.planner.tenants(device).next().is_some();
                    summary.busy += usize::from(is_busy);
                }
            }
        }
        let ends = running.into_iter().filter_map(|job| Some((self.expected_end(job)?, job)));
        summary.next_end = ends.min().map(|(at, job)| (job, at));
        summary
    }

    /// When a running job is expected to end, if anything is known about how long it takes.
    fn expected_end(&self, id: u64) -> Option<Time> {
        let active = self.jobs.get(id).filter(|active| active.phase == Phase::Running)?;
        let estimate = self.estimate(active);
        let is_known = !(estimate.basis.is_guess() || active.job.request.is_service());
        let estimate = is_known.then_some(estimate.median.0)?;
        let now = self.now.time();
        let left = estimate.checked_sub(active.done_us(now)).filter(|&left| left > 0)?;
        let rate = f64::from(active.rate().0.max(1)) / 1e6;
        Some(now + Span((left as f64 / rate) as u64))
    }

    /// Why a device accepts no jobs.
    pub fn shut_cause(&self, device: u32) -> Option<ShutCause> {
        if let Some((_, reason)) = self.devices.drained().find(|(drained, _)| *drained == device) {
            return Some(ShutCause::Drained(reason.map(str::to_owned)));
        }
        let drains = |booking: &&Booking| {
            booking.is_drain()
                && booking.devices.contains(&device)
                && booking.closes_us <= self.now.unix_us
        };
        if let Some(booking) = self.bookings().filter(drains).max_by_key(|one| one.end_us) {
            let reason = Some(booking.reason.clone()).filter(|reason| !reason.is_empty());
            return Some(ShutCause::DrainedUntil(booking.end_us, reason));
        }
        if let Some(reason) = self.devices.closed(device) {
            return Some(ShutCause::Closed(reason.to_owned()));
        }
        if self.setup.foreign_avoid && self.devices.foreign(device).is_some() {
            return Some(ShutCause::Foreign);
        }
        self.devices.is_shut(device).then_some(ShutCause::Reserved)
    }
}
