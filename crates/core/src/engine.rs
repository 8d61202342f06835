//! The engine: the only way in for the simulator and for the daemon. Events go in, the policy plans
//! for the partitions that they touch, and actions come out.

use crate::action::Action;
use crate::check::{Illegal, check};
use crate::cluster::{Cluster, GpuId, PartitionId};
use crate::diff::diff;
use crate::draft::Draft;
use crate::event::Event;
use crate::interference::Interference;
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
    /// A bug: stop at once. For tests and simulation.
    Panic,
    /// Keep every placement as it is, count it and go on. For the daemon.
    Refuse,
}

/// What a step asks its driver to do.
#[derive(Debug)]
pub struct Step<'a> {
    /// To be carried out now, in this order.
    pub actions: &'a [Action],
    /// When to step again even if nothing happens.
    pub wake: Option<Time>,
}

/// The scheduler without clock, threads or I/O.
pub struct Engine {
    state: ClusterState,
    interference: Box<dyn Interference>,
    partitions: Vec<PartitionPlanner>,
    /// Where policies sit that hear of jobs of other partitions.
    listeners: Vec<usize>,
    touched: Vec<PartitionId>,
    actions: Vec<Action>,
    now: Time,
    /// The earliest wake of all partitions; stale while `wakes_changed`.
    next_wake: Option<Time>,
    wakes_changed: bool,
    /// The plan of the last partition, kept for its allocations.
    plan: Plan,
    on_illegal: OnIllegal,
    decisions: u64,
    refused: Option<Illegal>,
    refused_count: u64,
}

/// What the engine keeps for one partition beside its state.
struct PartitionPlanner {
    policy: Box<dyn Policy>,
    touched: bool,
    wake: Option<Time>,
    /// As the last plan gave them; those of jobs that have been placed since do not count.
    reasons: Vec<(JobId, Reason)>,
    reason_for_others: Option<Reason>,
}

impl Engine {
    /// An engine on an empty cluster; `policy` makes one instance per partition.
    pub fn new(
        cluster: Arc<Cluster>,
        rules: Rules,
        interference: Box<dyn Interference>,
        on_illegal: OnIllegal,
        mut policy: impl FnMut() -> Box<dyn Policy>,
    ) -> Self {
        let planner = |policy| PartitionPlanner {
            policy,
            touched: false,
            wake: None,
            reasons: Vec::new(),
            reason_for_others: None,
        };
        let partitions: Vec<PartitionPlanner> =
            cluster.partitions().iter().map(|_| planner(policy())).collect();
        let hears = |&index: &usize| partitions[index].policy.wants_jobs_ended_elsewhere();
        Self {
            listeners: (0..partitions.len()).filter(hears).collect(),
            partitions,
            state: ClusterState::new(cluster, rules),
            interference,
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

    /// Takes in what happened up to `now` and says what to do. Time never runs backwards.
    pub fn step(&mut self, now: Time, events: &[Event]) -> Step<'_> {
        assert!(now >= self.now, "time runs forwards: {now:?} after {:?}", self.now);
        self.now = now;
        for event in events {
            self.apply(event);
        }
        if self.next_wake.is_some_and(|wake| wake <= now) {
            self.touch_woken();
        }
        self.actions.clear();
        // Partitions are planned in order of id, so that the order of events cannot be seen.
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

    /// The present.
    pub fn state(&self) -> &ClusterState {
        &self.state
    }

    /// How often a policy has planned.
    pub fn decisions(&self) -> u64 {
        self.decisions
    }

    /// How many plans were refused, and why the last one was.
    pub fn refused(&self) -> (u64, Option<&Illegal>) {
        (self.refused_count, self.refused.as_ref())
    }

    /// Why a job waits; `None` if it does not.
    pub fn reason(&self, job: JobId) -> Option<Reason> {
        let known = self.state.find(job).filter(|known| known.placement().is_none())?;
        let planner = &self.partitions[known.spec.partition.index()];
        let named = planner.reasons.iter().find(|(named, _)| *named == job);
        named.map(|(_, reason)| *reason).or(planner.reason_for_others)
    }

    /// Plans for a partition at the next step although nothing happened there.
    pub fn touch(&mut self, partition: PartitionId) {
        let planner = &mut self.partitions[partition.index()];
        if !std::mem::replace(&mut planner.touched, true) {
            self.touched.push(partition);
        }
    }

    fn touch_woken(&mut self) {
        for index in 0..self.partitions.len() {
            if self.partitions[index].wake.is_some_and(|wake| wake <= self.now) {
                self.touch(PartitionId(u32::try_from(index).expect("partitions are u32")));
            }
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
            // Reports may arrive late or twice: what no longer applies is passed over.
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
            Event::Observed(observation) => self.interference.observe(observation),
            Event::GpuDown { gpu } => {
                let tenants = self.state.occupancy().tenants(*gpu);
                assert!(tenants.is_empty(), "tenants of a lost GPU are interrupted before it is");
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
        for &index in self.listeners.iter().filter(|&&index| index != partition.index()) {
            self.partitions[index].policy.job_ended_elsewhere(known, self.now);
        }
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
        // A queue finds a job by what it knew about it.
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
        let interference = self.interference.as_ref();
        planner.policy.plan(&mut Draft::new(state, interference, self.now, partition, plan));
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

    /// Turns the plan, which is legal, into actions and brings the jobs in line with them.
    fn carry_out(&mut self) {
        if self.plan.changes().is_empty() {
            return;
        }
        let mut actions = std::mem::take(&mut self.actions);
        let first = actions.len();
        diff(&self.state, &mut self.plan, &mut actions);
        for action in &actions[first..] {
            self.follow(action);
        }
        self.actions = actions;
    }

    /// Brings the jobs in line with an action that the driver is about to carry out; the draft has
    /// brought the occupancy in line already.
    fn follow(&mut self, action: &Action) {
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
