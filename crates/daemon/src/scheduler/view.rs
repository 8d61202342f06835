//! The present state of jobs and devices, to be read.

use super::{Active, Estimate, EstimateBasis, Phase, RateSource, Scheduler, Waiting, estimates};
use crate::command::Caller;
use crate::job::StoredJob;
use crate::request::JobRequest;
use std::sync::Arc;
use tandem_backends::Enforcement;
use tandem_core::{Engine, GpuTypeId, JobSpec, Profile, Span, Time, UserId, Work};

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
    /// How the speed was found out; `None` if nothing is known about it.
    pub rate_source: Option<RateSource>,
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
    /// Expected time alone; if it has run longer, half as much again as it has run.
    pub estimate_us: Option<u64>,
    /// Where that comes from.
    pub estimate_basis: EstimateBasis,
    /// Why it waits for devices.
    pub waiting: Option<Waiting>,
}

/// Work of jobs that the engine does not know yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutsideWork {
    /// All of it.
    pub(crate) all: Work,
    /// The part of jobs whose durations are guesses, and how many those are.
    pub(crate) guessed: Work,
    pub(crate) guesses: u64,
}

impl Scheduler {
    /// A job that is not over.
    pub fn job(&self, id: u64) -> Option<&Active> {
        self.jobs.get(id)
    }

    /// The tasks of an array that have not ended, in order.
    pub fn tasks(&self, first: u64) -> impl Iterator<Item = &Active> {
        self.jobs.tasks(first)
    }

    /// Jobs that are not over, in order.
    pub fn jobs(&self) -> impl Iterator<Item = &Active> {
        self.jobs.iter()
    }

    /// How many jobs are not over.
    pub fn active_jobs(&self) -> usize {
        self.jobs.count_all() + self.unfolding.left()
    }

    /// What the jobs of a user that are not over amount to.
    pub fn load(&self, uid: u32) -> super::UserLoad {
        self.jobs.load(uid)
    }

    /// How many jobs are in each state, by its name.
    pub fn by_state(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.jobs.by_state()
    }

    /// Jobs that have a process, in order.
    pub fn all_with_process(&self) -> impl Iterator<Item = &Active> {
        self.jobs.all_with_process()
    }

    /// Services, in order.
    pub fn services(&self) -> impl Iterator<Item = &Active> {
        self.jobs.services()
    }

    /// How many jobs of a user have a process.
    pub(crate) fn jobs_with_process(&self, uid: u32) -> u64 {
        self.jobs.with_process(uid)
    }

    /// How many jobs of a user's submissions are still to be added.
    pub(crate) fn still_to_be_added(&self, uid: u32) -> usize {
        self.unfolding.left_of(uid)
    }

    /// Whether jobs of the submission that begins with a job are still to be added.
    pub(crate) fn is_unfolding(&self, first: u64) -> bool {
        self.unfolding.has(first)
    }

    /// The number of the next job.
    pub fn next_job(&self) -> u64 {
        self.jobs.next()
    }

    /// The devices as the engine sees them, with `more` devices added to the last node.
    pub(crate) fn cluster_with(&self, more: u32) -> tandem_core::Cluster {
        let mut setup = self.setup.clone();
        if let Some(last) = setup.devices.last().cloned() {
            setup.devices.extend((0..more).map(|_| last.clone()));
        }
        super::start::cluster(&setup)
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
    pub fn classes(&self) -> &super::ClassTable {
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

    /// Why a device is unavailable by the back end.
    pub fn closed(&self, device: u32) -> Option<&str> {
        self.devices.closed(device)
    }

    /// Jobs that have to be relocated.
    pub fn relocating(&self) -> impl Iterator<Item = u64> + '_ {
        self.devices.relocating()
    }

    /// Devices that an operator drained, with the reasons that were given.
    pub fn drained(&self) -> impl Iterator<Item = (u32, Option<&str>)> + '_ {
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

    /// Work of jobs of a user that the engine does not know yet, before one of them or all of them.
    pub(crate) fn work_outside(&self, uid: u32, before: Option<u64>) -> OutsideWork {
        let mut sum = OutsideWork::default();
        // Tasks of an array take the same time: one estimate is enough.
        let mut last: Option<(&Active, Estimate)> = None;
        for active in self.jobs.outside(uid).take_while(|one| Some(one.job.id) != before) {
            let job = &active.job;
            let is_alike = |(other, _): &(&Active, Estimate)| {
                Arc::ptr_eq(&other.job.request, &job.request)
                    && other.job.class == job.class
                    && other.length == active.length
                    && (other.job.total_us, job.total_us) == (None, None)
            };
            let estimate = last.filter(is_alike).map(|(_, estimate)| estimate);
            let estimate = estimate.unwrap_or_else(|| self.estimate(active));
            last = Some((active, estimate));
            let left = estimate.median.0.saturating_sub(job.done_us);
            let work = Work::of(Span(left));
            sum.all += work;
            if estimate.basis.is_guess() {
                sum.guessed += work;
                sum.guesses += 1;
            }
        }
        sum
    }

    /// The specification of a job that the engine does not know yet, if it did; `None` if it knows it.
    pub(crate) fn spec_of_outside(
        &self,
        id: u64,
        entry: tandem_core::JobId,
        now: Time,
    ) -> Option<(JobSpec, Estimate)> {
        let active = self.jobs.get(id).filter(|active| self.jobs.is_outside(active))?;
        let number = self.learning.find(&active.job.class);
        let user = self.jobs.find_user(active.job.uid).unwrap_or(UserId(u32::MAX));
        Some((self.spec_of(active, user, number, entry, now), self.estimate(active)))
    }

    /// The specification of a request if it were submitted at `now`.
    pub(crate) fn spec_of_request(
        &self,
        caller: &Caller,
        request: JobRequest,
        id: tandem_core::JobId,
        now: Time,
    ) -> (JobSpec, Estimate) {
        let Caller { uid, gid, user, .. } = caller.clone();
        let mut job =
            StoredJob { uid, gid, user, request: Arc::new(request), ..StoredJob::default() };
        job.class = self.class_of(&job).0;
        let number = self.learning.find(&job.class);
        let user = self.jobs.find_user(uid).unwrap_or(UserId(u32::MAX));
        let active = Active::new(job);
        (self.spec_of(&active, user, number, id, now), self.estimate(&active))
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
            rate_source: self.rate_source(active),
            enforcement: active.enforcement,
            share: f64::from(active.budget().0) / 1e6,
            sub_batches: active.allocation.as_ref().map_or(1, |seat| seat.sub_batches),
            ran_us: active.ran_us(now),
            shared_us: active.shared_us(now),
            done_us: active.done_us(now),
            estimate_us: known.map(|known| {
                let estimate = Span(known.spec.estimate.0);
                estimates::grown(estimate, Span(active.done_us(now))).0
            }),
            estimate_basis: self.estimate(active).basis,
            waiting: self.waiting(active, now),
            beside,
        })
    }

    /// Jobs that the engine has placed on a device.
    pub fn tenants(&self, device: u32) -> impl Iterator<Item = u64> + '_ {
        self.planner.tenants(device)
    }
}
