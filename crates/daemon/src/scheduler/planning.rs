//! The engine, and the jobs by their numbers in it.

use super::classes::ClassTable;
use tandem_core::{Action, Engine, Event, GpuId, Job, JobId, PartitionId, Placement, Time};

/// The engine with what it is yet to be told.
pub(super) struct Planner {
    engine: Engine,
    /// Jobs by their numbers in the engine.
    entries: Vec<u64>,
    /// For the engine, at this step or the next.
    events: Vec<Event>,
    wake: Option<Time>,
    /// What the engine decided in this step.
    actions: Vec<Action>,
}

impl Planner {
    pub(super) fn new(engine: Engine) -> Self {
        let (entries, events, actions) = (Vec::new(), Vec::new(), Vec::new());
        Self { engine, entries, events, wake: None, actions }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// When the policy asked to be woken.
    pub(super) fn wake(&self) -> Option<Time> {
        self.wake
    }

    pub(super) fn tell(&mut self, event: Event) {
        self.events.push(event);
    }

    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Plans at the next step although nothing happened.
    pub(super) fn replan(&mut self) {
        self.engine.touch(PartitionId(0));
    }

    /// Decides about sharing at the next step, although no review is due.
    pub(super) fn request_sharing(&mut self) {
        self.engine.request_sharing(PartitionId(0));
    }

    /// The number in the engine of a job that enters it.
    pub(super) fn enter(&mut self, job: u64) -> JobId {
        let entry = JobId(u32::try_from(self.entries.len()).expect("entries are counted in u32"));
        self.entries.push(job);
        entry
    }

    /// The job of a number in the engine.
    pub(super) fn job_of(&self, entry: JobId) -> u64 {
        self.entries[entry.index()]
    }

    /// All numbers that were ever given, with their jobs.
    pub(super) fn entries(&self) -> impl Iterator<Item = (JobId, u64)> + '_ {
        (0..).map(JobId).zip(self.entries.iter().copied())
    }

    /// A job as the engine knows it.
    pub(super) fn find(&self, entry: Option<JobId>) -> Option<&Job> {
        self.engine.state().find(entry?)
    }

    /// Where the engine wants a job to be.
    pub(super) fn placement(&self, entry: Option<JobId>) -> Option<&Placement> {
        self.find(entry)?.placement()
    }

    /// Jobs that the engine has placed on a device.
    pub(super) fn tenants(&self, device: u32) -> impl Iterator<Item = u64> + '_ {
        let tenants = self.engine.state().occupancy().tenants(GpuId(device));
        tenants.iter().map(|&entry| self.job_of(entry))
    }

    /// Whether the engine has placed a job on a device.
    pub(super) fn is_tenant(&self, entry: Option<JobId>, gpu: GpuId) -> bool {
        let tenants = self.engine.state().occupancy().tenants(gpu);
        entry.is_some_and(|entry| tenants.contains(&entry))
    }

    /// Lets the engine decide; gives the actions of this call. A policy that asked to be woken is woken at
    /// exactly that instant on its clock, as its slices are counted from there, although a real clock
    /// strikes a little later.
    pub(super) fn plan(&mut self, now: Time, classes: &mut ClassTable) -> &[Action] {
        let first = self.actions.len();
        self.step(self.wake.filter(|&wake| wake <= now).unwrap_or(now), classes);
        if self.wake.is_some_and(|wake| wake <= now) {
            // Whole slices were missed, as after the machine slept: they are not made up for.
            self.step(now, classes);
        }
        &self.actions[first..]
    }

    fn step(&mut self, at: Time, classes: &mut ClassTable) {
        let new_classes = classes.take_new();
        let mut events: Vec<Event> =
            new_classes.map(|(class, name)| Event::ClassAdded { class, name }).collect();
        events.append(&mut self.events);
        let step = self.engine.step(at, &events);
        self.wake = step.wake;
        self.actions.extend_from_slice(step.actions);
    }

    pub(super) fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    pub(super) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }
}
