//! The engine, the only entry point for simulator and daemon. Events go in, the policy plans for the
//! partitions that they affect, and actions come out.

use crate::action::Action;
use crate::check::{Illegal, check};
use crate::cluster::{Cluster, GpuId, PartitionId};
use crate::diff::diff;
use crate::draft::Draft;
use crate::event::Event;
use crate::interference::{Interference, Learner};
use crate::job::{JobDescription, JobId, Reason};
use crate::occupancy::GpuCondition;
use crate::plan::{Placement, Plan};
use crate::policy::Policy;
use crate::state::{ClusterState, Rules};
use crate::units::Time;
use std::sync::Arc;

/// What to do with an illegal plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnIllegal {
    /// It is a bug: panic. For tests and simulation.
    Panic,
    /// Keep every placement, count the refusal and continue. For the daemon.
    Refuse,
}

/// The result of a step.
#[derive(Debug)]
pub struct Step<'a> {
    /// Actions to carry out now, in this order.
    pub actions: &'a [Action],
    /// When to step again even if nothing happens before.
    pub wake: Option<Time>,
}

/// The scheduler without clock, threads or I/O.
pub struct Engine {
    state: ClusterState,
    learner: Box<dyn Learner>,
    partitions: Vec<PartitionPlanner>,
    touched: Vec<PartitionId>,
    actions: Vec<Action>,
    now: Time,
    /// The earliest wake-up of all partitions; out of date while `wakes_changed`.
    next_wake: Option<Time>,
    wakes_changed: bool,
    /// The plan of the last partition, reused for its allocations.
    plan: Plan,
    on_illegal: OnIllegal,
    decisions: u64,
    refused: Option<Illegal>,
    refused_count: u64,
}

/// The policy of one partition and its last results.
struct PartitionPlanner {
    policy: Box<dyn Policy>,
    touched: bool,
    /// A believed rate has moved since the last plan.
    beliefs_moved: bool,
    sharing_requested: bool,
    wake: Option<Time>,
    /// As of the last plan; those of jobs that have been placed since do not count.
    reasons: Vec<(JobId, Reason)>,
    reason_for_others: Option<Reason>,
}

impl Engine {
    /// An engine for an empty cluster; `policy` makes one instance per partition.
    pub fn new(
        cluster: Arc<Cluster>,
        rules: Rules,
        learner: Box<dyn Learner>,
        on_illegal: OnIllegal,
        mut policy: impl FnMut() -> Box<dyn Policy>,
    ) -> Self {
        let planner = |policy| PartitionPlanner {
            policy,
            touched: false,
            beliefs_moved: false,
            sharing_requested: false,
            wake: None,
            reasons: Vec::new(),
            reason_for_others: None,
        };
        let partitions: Vec<PartitionPlanner> =
            cluster.partitions().iter().map(|_| planner(policy())).collect();
        Self {
            partitions,
            state: ClusterState::new(cluster, rules),
            learner,
            touched: Vec::new(),
            actions: Vec::new(),
            now: Time(0),
            next_wake: None,
            wakes_changed: false,
            plan: Plan::default(),
            on_illegal,
            decisions: 0,
            refused: None,
            refused_count: 0,
        }
    }

    /// Applies the events up to `now` and plans. Time never runs backwards.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tandem_core::*;
    ///
    /// /// First in, first out, without backfilling.
    /// #[derive(Default)]
    /// struct Fifo(Vec<JobId>);
    ///
    /// impl Policy for Fifo {
    ///     fn enqueue(&mut self, job: &Job) {
    ///         self.0.push(job.id());
    ///         self.0.sort();
    ///     }
    ///     fn dequeue(&mut self, job: &Job) {
    ///         self.0.retain(|&queued| queued != job.id());
    ///     }
    ///     fn plan(&mut self, draft: &mut Draft<'_>) {
    ///         self.0.iter().take_while(|&&job| draft.place_exclusive(job)).count();
    ///         draft.explain_others(Reason::NoRoom { free: draft.free_count() });
    ///     }
    /// }
    ///
    /// let cluster = Arc::new(Cluster::uniform(1, 2, Memory::from_mib(16_384)));
    /// let (rules, model) = (Rules::default(), Box::new(ClosedForm));
    /// let policy = || Box::new(Fifo::default()) as Box<dyn Policy>;
    /// let mut engine = Engine::new(cluster, rules, model, OnIllegal::Refuse, policy);
    /// let job = |id| {
    ///     Event::Submitted(JobSpec {
    ///         id: JobId(id),
    ///         gpus: 2,
    ///         estimate: Span::from_secs(60),
    ///         // …
    ///         # user: UserId(0),
    ///         # partition: PartitionId(0),
    ///         # submit: Time(0),
    ///         # profile: Profile::default(),
    ///         # sub_batches: SubBatches::default(),
    ///         # tolerance: Tolerance::Any,
    ///         # promise: Promise::default(),
    ///         # priority: 0,
    ///         # stoppable: true,
    ///         # restore: Span::ZERO,
    ///         # share: JobShare::default(),
    ///     })
    /// };
    /// let step = engine.step(Time(0), &[job(0), job(1)]);
    /// assert!(matches!(step.actions, [Action::Start { job: JobId(0), .. }]));
    /// assert_eq!(engine.reason(JobId(1)), Some(Reason::NoRoom { free: 0 }));
    /// let step = engine.step(Time::from_secs(60), &[Event::Finished { job: JobId(0) }]);
    /// assert!(matches!(step.actions, [Action::Start { job: JobId(1), .. }]));
    /// ```
    pub fn step(&mut self, now: Time, events: &[Event]) -> Step<'_> {
        assert!(now >= self.now, "time must not run backwards: {now:?} after {:?}", self.now);
        self.now = now;
        for event in events {
            self.apply(event);
        }
        if self.next_wake.is_some_and(|wake| wake <= now) {
            self.touch_woken();
        }
        self.actions.clear();
        // In order of id, so that the order of events does not matter.
        self.touched.sort_unstable();
        for index in 0..self.touched.len() {
            self.plan(self.touched[index]);
        }
        self.touched.clear();
        if self.wakes_changed {
            self.next_wake = self.partitions.iter().filter_map(|planner| planner.wake).min();
            self.wakes_changed = false;
        }
        Step { actions: &self.actions, wake: self.next_wake }
    }

    /// Jobs and occupancy as they are now.
    pub fn state(&self) -> &ClusterState {
        &self.state
    }

    /// The model of co-location that plans are made with.
    pub fn learner(&self) -> &dyn Learner {
        self.learner.as_ref()
    }

    /// Number of plans so far.
    pub fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Number of refused plans, and why the last one was refused.
    pub fn refused(&self) -> (u64, Option<&Illegal>) {
        (self.refused_count, self.refused.as_ref())
    }

    /// Why a job waits; `None` if it does not wait.
    pub fn reason(&self, job: JobId) -> Option<Reason> {
        let known = self.state.find(job).filter(|known| known.placement().is_none())?;
        let planner = &self.partitions[known.spec.partition.index()];
        if let Some(reason) = planner.policy.reason(known) {
            return Some(reason);
        }
        let named = planner.reasons.iter().find(|(named, _)| *named == job);
        named.map(|(_, reason)| *reason).or(planner.reason_for_others)
    }

    /// Requests a plan for a partition at the next step.
    pub fn touch(&mut self, partition: PartitionId) {
        let planner = &mut self.partitions[partition.index()];
        if !std::mem::replace(&mut planner.touched, true) {
            self.touched.push(partition);
        }
    }

    /// Requests a plan for a partition at the next step in which sharing is decided, although no review of its
    /// policy is due: a live driver knows when something about sharing has become known.
    pub fn request_sharing(&mut self, partition: PartitionId) {
        self.partitions[partition.index()].sharing_requested = true;
        self.touch(partition);
    }

    fn touch_woken(&mut self) {
        for index in 0..self.partitions.len() {
            if self.partitions[index].wake.is_some_and(|wake| wake <= self.now) {
                self.touch(PartitionId(u32::try_from(index).expect("partitions are u32")));
            }
        }
    }

    /// A believed rate has moved: the pairs of every partition may not be the best ones any more.
    #[cold]
    fn touch_believers(&mut self) {
        for index in 0..self.partitions.len() {
            self.partitions[index].beliefs_moved = true;
            self.touch(PartitionId(u32::try_from(index).expect("partitions are u32")));
        }
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Submitted(spec) => {
                let job = self.state.submit(spec.clone());
                self.enqueue(job);
            }
            Event::Adopted { spec, placement, done } => {
                let job = self.state.adopt(spec.clone(), placement.clone(), *done, self.now);
                match self.is_placed(job) {
                    true => self.touch(spec.partition),
                    false => self.enqueue(job),
                }
            }
            Event::Described { job, description } => self.describe(*job, description),
            // Reports may arrive late or twice: those that no longer apply are ignored.
            Event::Progress { job, progress } if self.is_placed(*job) => {
                self.state.job_mut(*job).progress = *progress;
            }
            Event::Interrupted { job, kept } if self.is_placed(*job) => {
                self.state.vacate(*job);
                self.state.unplace(*job, self.now);
                self.state.job_mut(*job).progress.done = *kept;
                self.enqueue(*job);
            }
            Event::Progress { .. } | Event::Interrupted { .. } => {}
            Event::Finished { job } | Event::Cancelled { job } => self.end(*job),
            Event::ClassAdded { class, name } => self.learner.add_class(*class, name),
            Event::ClassDescribed { class, traits } => self.learner.describe_class(*class, traits),
            Event::Observed(observation) => {
                if self.learner.observe(observation) {
                    self.touch_believers();
                }
            }
            Event::SharesChanged(shares) => {
                for index in 0..self.partitions.len() {
                    self.partitions[index].policy.shares_changed(shares);
                    self.touch(PartitionId(u32::try_from(index).expect("partitions are u32")));
                }
            }
            Event::GpuDown { gpu } => {
                let tenants = self.state.occupancy().tenants(*gpu);
                assert!(
                    tenants.is_empty(),
                    "tenants of a GPU are interrupted before the GPU is lost"
                );
                self.set_condition(*gpu, GpuCondition::Lost);
            }
            Event::GpuDrained { gpu } => self.set_condition(*gpu, GpuCondition::Drained),
            Event::GpuUp { gpu } => self.set_condition(*gpu, GpuCondition::Up),
            Event::GpuReserved { gpu, memory } => {
                self.state.occupancy.reserve(*gpu, *memory);
                self.touch(self.state.cluster().partition_of(*gpu));
            }
        }
    }

    fn enqueue(&mut self, job: JobId) {
        let known = self.state.job(job);
        let partition = known.spec.partition;
        self.partitions[partition.index()].policy.enqueue(known);
        self.touch(partition);
    }

    fn dequeue(&mut self, job: JobId) {
        let known = self.state.job(job);
        self.partitions[known.spec.partition.index()].policy.dequeue(known);
    }

    fn is_placed(&self, job: JobId) -> bool {
        self.state.find(job).is_some_and(|known| known.placement().is_some())
    }

    fn end(&mut self, job: JobId) {
        let Some(known) = self.state.find(job) else { return };
        let partition = known.spec.partition;
        self.partitions[partition.index()].policy.job_ended(known, self.now);
        if known.placement().is_none() {
            self.dequeue(job);
        }
        self.state.end(job);
        self.touch(partition);
    }

    #[cold]
    fn describe(&mut self, job: JobId, description: &JobDescription) {
        let Some(known) = self.state.find(job) else { return };
        let partition = known.spec.partition;
        // The policy's queue finds the job by its old description.
        let waits = known.placement().is_none();
        if waits {
            self.dequeue(job);
        }
        self.state.describe(job, description.clone());
        match waits {
            true => self.enqueue(job),
            false => self.touch(partition),
        }
    }

    #[cold]
    fn set_condition(&mut self, gpu: GpuId, condition: GpuCondition) {
        self.state.occupancy.set_condition(gpu, condition);
        self.touch(self.state.cluster().partition_of(gpu));
    }

    fn plan(&mut self, partition: PartitionId) {
        self.decisions += 1;
        let (state, plan) = (&mut self.state, &mut self.plan);
        plan.clear();
        let planner = &mut self.partitions[partition.index()];
        planner.touched = false;
        let interference: &dyn Interference = self.learner.as_ref();
        let moved = std::mem::take(&mut planner.beliefs_moved);
        let mut draft = Draft::new(state, interference, self.now, partition, moved, plan);
        draft.set_sharing_requested(std::mem::take(&mut planner.sharing_requested));
        planner.policy.plan(&mut draft);
        if let Err(illegal) = check(state, interference, partition, plan, self.now) {
            assert!(self.on_illegal == OnIllegal::Refuse, "illegal plan: {illegal}");
            state.roll_back(plan);
            plan.clear();
            self.refused = Some(illegal);
            self.refused_count += 1;
        } else {
            planner.reason_for_others = plan.reason_for_others;
            std::mem::swap(&mut planner.reasons, &mut plan.reasons);
        }
        if planner.wake != plan.wake {
            planner.wake = plan.wake;
            self.wakes_changed = true;
        }
        self.carry_out();
    }

    /// Turns the legal plan into actions and updates the jobs.
    fn carry_out(&mut self) {
        if self.plan.changes().is_empty() {
            return;
        }
        let mut actions = std::mem::take(&mut self.actions);
        let first = actions.len();
        diff(&self.state, &mut self.plan, &mut actions);
        for action in &actions[first..] {
            self.apply_action(action);
        }
        self.actions = actions;
    }

    /// Updates the jobs for an action that the driver is about to carry out. The draft has updated the
    /// occupancy already.
    fn apply_action(&mut self, action: &Action) {
        match action {
            Action::Stop { job } => {
                self.state.unplace(*job, self.now);
                let known = self.state.job(*job);
                self.partitions[known.spec.partition.index()].policy.enqueue(known);
            }
            Action::Start { job, placement, .. } => {
                self.dequeue(*job);
                self.state.place(*job, placement.clone(), self.now);
            }
            Action::Move { job, placement } => self.state.place(*job, placement.clone(), self.now),
            Action::Budget { job, placement } => self.state.set_budget(*job, placement.budget),
            Action::Pause { job } => self.set_paused(*job, true),
            Action::Resume { job } => self.set_paused(*job, false),
        }
    }

    fn set_paused(&mut self, job: JobId, paused: bool) {
        let present = self.state.job(job).placement().expect("only a placed job is paused");
        let placement = Placement { paused, ..present.clone() };
        self.state.place(job, placement, self.now);
    }
}
