//! The present state of jobs and devices, to be read.

use super::{Active, Phase, Scheduler};
use crate::job::Job;
use crate::request::JobRequest;
use std::sync::Arc;
use tandem_backends::Enforcement;
use tandem_core::{Engine, GpuTypeId, JobSpec, Profile, Reason, Time, UserId};

/// A job as it does at present.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Of its process.
    pub phase: Phase,
    /// Its process, if it runs on this machine.
    pub pid: Option<u32>,
    /// Others on its devices.
    pub beside: Vec<u64>,
    /// Speed relative to running alone, 0 to 1.
    pub rate: f64,
    /// The speed was measured beside the present co-located jobs; otherwise it is a belief.
    pub measured: bool,
    /// What the engine's model predicts beside these jobs.
    pub predicted: f64,
    /// What its share means.
    pub enforcement: Enforcement,
    /// The most of each device that it may use.
    pub share: f64,
    /// Parts in which it computes its batches.
    pub sub_batches: u32,
    /// Time on its devices so far.
    pub ran_us: u64,
    /// The part of it during which it shared a device.
    pub shared_us: u64,
    /// Work done so far, in microseconds of running alone.
    pub done_us: u64,
    /// Expected time alone.
    pub estimate_us: Option<u64>,
    /// Why it waits for devices.
    pub waiting: Option<Waiting>,
}

/// Why a job waits for devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Its gang does not fit into what is free.
    NoRoom {
        /// Devices that are free.
        free: u32,
        /// Devices that it needs.
        needs: u32,
    },
    /// A job before it waits, and the policy does not pass it.
    Behind(u64),
    /// Jobs that the policy ranks higher hold the devices.
    Outranked,
    /// Others are about to leave the devices that it was given.
    Handover,
    /// The policy did not say.
    Undecided,
}

impl Waiting {
    /// In a few words.
    pub fn text(self) -> String {
        match self {
            Waiting::NoRoom { free, needs } => format!("needs {needs} devices, {free} free"),
            Waiting::Behind(job) => format!("behind job {job}"),
            Waiting::Outranked => "jobs of more value hold the devices".to_owned(),
            Waiting::Handover => "its devices are being freed".to_owned(),
            Waiting::Undecided => "waits for devices".to_owned(),
        }
    }
}

impl Scheduler {
    /// A job that is not over.
    pub fn job(&self, id: u64) -> Option<&Active> {
        self.jobs.get(id)
    }

    /// Jobs that are not over, in order.
    pub fn jobs(&self) -> impl Iterator<Item = &Active> {
        self.jobs.iter()
    }

    /// The number of the next job.
    pub fn next_job(&self) -> u64 {
        self.jobs.next()
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.planner.engine()
    }

    /// Its configuration.
    pub fn setup(&self) -> &super::Setup {
        &self.setup
    }

    /// What is known about classes.
    pub fn classes(&self) -> &super::Classes {
        &self.learning
    }

    /// Believed rate of a class beside another, if both were heard of.
    pub fn believed(&self, class: &str, beside: &str) -> Option<f64> {
        let profile =
            |name| Some(Profile { class: Some(self.learning.find(name)?), ..Profile::default() });
        let (class, beside) = (profile(class)?, profile(beside)?);
        let rate = self.planner.engine().learner().pair_rate(&class, &beside, GpuTypeId(0));
        rate.map(|rate| rate.as_f64())
    }

    /// Jobs whose processes may use a device.
    pub fn present(&self, device: u32) -> impl Iterator<Item = u64> + '_ {
        self.devices.present(device)
    }

    /// Whether a device accepts no new jobs, for whatever reason.
    pub fn is_shut(&self, device: u32) -> bool {
        self.devices.is_shut(device)
    }

    /// Whether an operator drained a device.
    pub fn is_drained(&self, device: u32) -> bool {
        self.devices.is_drained(device)
    }

    /// Why a device is unavailable by the back end.
    pub fn closed(&self, device: u32) -> Option<&str> {
        self.devices.closed(device)
    }

    /// Jobs that have to be relocated.
    pub fn relocating(&self) -> impl Iterator<Item = u64> + '_ {
        self.devices.relocating()
    }

    /// Devices that an operator drained.
    pub fn drained(&self) -> impl Iterator<Item = u32> + '_ {
        self.devices.drained()
    }

    /// Memory of processes on a device that are not ours.
    pub fn foreign(&self, device: u32) -> Option<u64> {
        self.devices.foreign(device)
    }

    /// The job of a number in the engine.
    pub fn job_of(&self, entry: tandem_core::JobId) -> u64 {
        self.planner.job_of(entry)
    }

    /// Jobs that the engine knows, in the order in which they became eligible.
    pub(crate) fn entered(&self) -> impl Iterator<Item = (tandem_core::JobId, u64)> + '_ {
        let is_current = |entry: tandem_core::JobId, id: u64| {
            self.jobs.get(id).is_some_and(|active| active.entry == Some(entry))
        };
        self.planner.entries().filter(move |&(entry, id)| is_current(entry, id))
    }

    /// The specification of a request if it were submitted at `now`.
    pub(crate) fn spec_of_request(
        &self,
        uid: u32,
        request: JobRequest,
        id: tandem_core::JobId,
        now: Time,
    ) -> JobSpec {
        let class = crate::class::of_request(&request);
        let job = Job { uid, class, request: Arc::new(request), ..Job::default() };
        let number = self.learning.find(&job.class);
        let user = self.jobs.find_user(uid).unwrap_or(UserId(u32::MAX));
        self.spec_of(&Active::new(job), user, number, id, now)
    }

    /// How a job does at `now`.
    pub fn view(&self, id: u64, now: Time) -> Option<View> {
        let active = self.jobs.get(id)?;
        let beside = if active.phase.is_present() { self.co_located(id) } else { Vec::new() };
        let known = self.planner.find(active.entry);
        Some(View {
            phase: active.phase,
            pid: active.pid(),
            predicted: self.predicted_rate(active).as_f64(),
            rate: f64::from(active.rate().0) / 1e6,
            measured: active.rate_is_measured(),
            enforcement: active.enforcement,
            share: active.allocation.as_ref().map_or(1.0, |seat| f64::from(seat.share_ppm) / 1e6),
            sub_batches: active.allocation.as_ref().map_or(1, |seat| seat.sub_batches),
            ran_us: active.ran_us(now),
            shared_us: active.shared_us(now),
            done_us: active.done_us(now),
            estimate_us: known.map(|known| known.spec.estimate.0),
            waiting: self.waiting(active),
            beside,
        })
    }

    fn waiting(&self, active: &Active) -> Option<Waiting> {
        let entry = active.entry?;
        if active.phase.is_present() || active.job.user_paused {
            return None;
        }
        let known = self.planner.find(Some(entry))?;
        if known.placement().is_some() {
            return Some(Waiting::Handover);
        }
        Some(match self.planner.engine().reason(entry) {
            Some(Reason::NoRoom { free }) => Waiting::NoRoom { free, needs: known.spec.gpus },
            Some(Reason::Behind(job)) => Waiting::Behind(self.planner.job_of(job)),
            Some(Reason::Outranked) => Waiting::Outranked,
            None => Waiting::Undecided,
        })
    }

    /// Jobs that the engine has placed on a device.
    pub fn tenants(&self, device: u32) -> impl Iterator<Item = u64> + '_ {
        self.planner.tenants(device)
    }
}
