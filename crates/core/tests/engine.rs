//! The engine driven as the daemon drives it: illegal plans are refused, events may come late or twice, and
//! every waiting job has a reason.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tandem_core::{
    Action, ClosedForm, Cluster, Draft, Engine, Event, GpuId, GpuTypeId, Illegal, Interference,
    Job, JobDescription, JobId, JobSpec, Learner, Memory, Observation, OnIllegal, PartitionId,
    Placement, Policy, Ppm, Profile, Progress, Ratio, Reason, Rules, Span, SubBatch, SubBatches,
    Tenant, Time, Tolerance, UserId, Work,
};

type Plan = Box<dyn FnMut(&mut Draft<'_>) + Send>;

/// Plans what the test says, once per step.
struct Puppet(Receiver<Plan>);

impl Policy for Puppet {
    fn enqueue(&mut self, _: &Job) {}
    fn dequeue(&mut self, _: &Job) {}
    fn plan(&mut self, draft: &mut Draft<'_>) {
        if let Ok(mut plan) = self.0.try_recv() {
            plan(draft);
        }
    }
}

struct Bench {
    engine: Engine,
    plans: Sender<Plan>,
}

impl Bench {
    /// One partition of two nodes of two GPUs with 1,000 MiB each.
    fn new(tenants_max: usize) -> Self {
        Self::with_model(tenants_max, Arc::new(ClosedForm))
    }

    fn with_model(tenants_max: usize, model: Arc<dyn Interference>) -> Self {
        let cluster = Arc::new(Cluster::uniform(2, 2, Memory::from_mib(1000)));
        let rules = Rules { tenants_max, ..Rules::default() };
        let (plans, receiver) = channel();
        let mut receiver = Some(receiver);
        let engine = Engine::new(cluster, rules, Box::new(model), OnIllegal::Refuse, || {
            Box::new(Puppet(receiver.take().expect("one partition")))
        });
        Self { engine, plans }
    }

    fn submit(&mut self, id: u32, gpus: u32, memory_mib: u64) {
        self.submit_with(id, gpus, memory_mib, SubBatches::default());
    }

    fn submit_with(&mut self, id: u32, gpus: u32, memory_mib: u64, sub_batches: SubBatches) {
        self.submit_spec(JobSpec { sub_batches, ..spec(id, gpus, memory_mib) });
    }

    fn submit_spec(&mut self, spec: JobSpec) {
        assert!(self.step(0, &[Event::Submitted(spec)], |_| {}).is_empty());
    }

    fn step(
        &mut self,
        seconds: u64,
        events: &[Event],
        plan: impl FnMut(&mut Draft<'_>) + Send + 'static,
    ) -> Vec<Action> {
        self.plans.send(Box::new(plan)).unwrap();
        self.engine.touch(PartitionId(0));
        let actions = self.engine.step(Time::from_secs(seconds), events).actions.to_vec();
        self.engine.state().assert_consistent();
        actions
    }

    fn refusal(&self) -> Option<Illegal> {
        self.engine.refused().1.cloned()
    }
}

fn spec(id: u32, gpus: u32, memory_mib: u64) -> JobSpec {
    JobSpec {
        id: JobId(id),
        user: UserId(0),
        partition: PartitionId(0),
        submit: Time(0),
        gpus,
        estimate: Span::from_secs(100),
        profile: Profile { memory: Memory::from_mib(memory_mib), ..Profile::default() },
        sub_batches: SubBatches::default(),
        tolerance: Tolerance::Any,
        promise: tandem_core::Promise::default(),
        priority: 0,
        stoppable: true,
        restore: Span::ZERO,
        share: tandem_core::JobShare::default(),
    }
}

fn on(gpus: &[u32]) -> Placement {
    Placement::on(gpus.iter().copied().map(GpuId))
}

#[test]
fn every_kind_of_illegal_plan_is_refused_and_changes_nothing() {
    let mut bench = Bench::new(2);
    bench.submit(0, 2, 400);
    bench.submit(1, 1, 700);
    bench.submit(2, 1, 100);
    bench.submit(3, 1, 100);
    bench.step(1, &[], |draft| draft.place(JobId(0), on(&[0, 1])));
    let mut try_plan = |plan: Plan| {
        let mut plan = plan;
        let actions = bench.step(2, &[], move |draft| plan(draft));
        assert_eq!(actions, []);
        assert_eq!(bench.engine.state().occupancy().tenants(GpuId(0)), [JobId(0)]);
        bench.refusal().unwrap()
    };
    let job = JobId(1);
    let gpu = GpuId(0);
    let refusals = [
        try_plan(Box::new(|draft| draft.place(JobId(1), on(&[2, 3])))),
        try_plan(Box::new(|draft| draft.place(JobId(1), on(&[4])))),
        try_plan(Box::new(|draft| draft.place(JobId(0), on(&[2, 2])))),
        try_plan(Box::new(|draft| draft.place(JobId(1), on(&[0])))),
        try_plan(Box::new(|draft| {
            draft.place(JobId(2), on(&[0]));
            draft.place(JobId(3), on(&[0]));
        })),
        try_plan(Box::new(|draft| draft.wake_at(Time::from_secs(2)))),
    ];
    let (wanted, available) = (Memory::from_mib(1100), Memory::from_mib(1000));
    let now = Time::from_secs(2);
    assert_eq!(
        refusals,
        [
            Illegal::BrokenGang { job, wanted: 1, given: 2 },
            Illegal::ForeignGpu { job, gpu: GpuId(4) },
            Illegal::SameGpuTwice { job: JobId(0), gpu: GpuId(2) },
            Illegal::MemoryOver { gpu, wanted, available },
            Illegal::TooManyTenants { gpu, tenants: 3, limit: 2 },
            Illegal::WakeNotAhead { wake: now, now },
        ]
    );
    assert_eq!(bench.engine.refused().0, 6);
}

#[test]
fn a_lost_gpu_or_an_ended_job_cannot_be_planned_for() {
    let mut bench = Bench::new(1);
    bench.submit(0, 1, 0);
    bench.submit(1, 1, 0);
    bench.step(1, &[Event::GpuDown { gpu: GpuId(0) }], |draft| draft.place(JobId(0), on(&[0])));
    assert_eq!(bench.refusal(), Some(Illegal::LostGpu { job: JobId(0), gpu: GpuId(0) }));
    bench.step(2, &[Event::GpuUp { gpu: GpuId(0) }], |draft| draft.place(JobId(0), on(&[0])));
    let ended = Event::Finished { job: JobId(0) };
    bench.step(3, &[ended], |draft| draft.place(JobId(0), on(&[0])));
    assert_eq!(bench.refusal(), Some(Illegal::NoSuchJob(JobId(0))));
}

#[test]
fn a_plan_becomes_actions_that_free_before_they_need_and_repeating_it_gives_none() {
    let mut bench = Bench::new(1);
    bench.submit(0, 4, 0);
    bench.submit(1, 2, 0);
    bench.submit(2, 1, 0);
    bench.step(1, &[], |draft| draft.place(JobId(0), on(&[0, 1, 2, 3])));
    let swap = |draft: &mut Draft<'_>| {
        draft.place(JobId(1), on(&[2, 3]));
        draft.place(JobId(2), on(&[0]));
        draft.drop(JobId(0));
    };
    let start = |job, placement| Action::Start { job, placement, restore: false };
    assert_eq!(
        bench.step(2, &[], swap),
        [Action::Stop { job: JobId(0) }, start(JobId(1), on(&[2, 3])), start(JobId(2), on(&[0])),]
    );
    let same = |draft: &mut Draft<'_>| draft.place(JobId(1), on(&[2, 3]));
    assert_eq!(bench.step(3, &[], same), []);
    let back = |draft: &mut Draft<'_>| {
        draft.drop(JobId(1));
        draft.place(JobId(1), on(&[2, 3]));
    };
    assert_eq!(bench.step(3, &[], back), []);
    let altered = |draft: &mut Draft<'_>| {
        draft.place(JobId(1), Placement { paused: true, ..on(&[2, 3]) });
        draft.place(JobId(2), on(&[1]));
    };
    let moved = Action::Move { job: JobId(2), placement: on(&[1]) };
    assert_eq!(bench.step(4, &[], altered), [Action::Pause { job: JobId(1) }, moved]);
    let resumed = bench.step(5, &[], |draft| draft.place(JobId(1), on(&[2, 3])));
    assert_eq!(resumed, [Action::Resume { job: JobId(1) }]);
}

#[test]
fn a_stopped_job_keeps_its_work_and_must_restore() {
    let mut bench = Bench::new(1);
    bench.submit(0, 2, 0);
    bench.step(0, &[], |draft| draft.place(JobId(0), on(&[0, 1])));
    let progress = Progress { done: Work::ZERO, at: Time(0), rate: Ppm(500_000) };
    let report = Event::Progress { job: JobId(0), progress };
    bench.step(10, std::slice::from_ref(&report), |draft| draft.drop(JobId(0)));
    let job = bench.engine.state().job(JobId(0));
    assert_eq!(job.remaining(Time::from_secs(50)), Work::of(Span::from_secs(95)));
    assert_eq!(job.attained(Time::from_secs(50)), Span::from_secs(20));
    // A report that arrives after the job has left its GPUs is ignored.
    bench.step(20, &[report], |_| {});
    let job = bench.engine.state().job(JobId(0));
    assert_eq!(job.remaining(Time::from_secs(50)), Work::of(Span::from_secs(95)));
    let actions = bench.step(30, &[], |draft| draft.place(JobId(0), on(&[2, 3])));
    assert!(matches!(&actions[..], [Action::Start { restore: true, .. }]));
}

#[test]
fn events_that_come_late_or_twice_do_no_harm() {
    let mut bench = Bench::new(1);
    bench.submit(0, 1, 0);
    bench.submit(1, 1, 0);
    bench.step(1, &[], |draft| draft.place(JobId(0), on(&[0])));
    let finished = Event::Finished { job: JobId(0) };
    let interrupted = Event::Interrupted { job: JobId(0), kept: Work::ZERO };
    let cancelled = Event::Cancelled { job: JobId(0) };
    bench.step(2, &[finished.clone(), finished, interrupted, cancelled], |_| {});
    assert!(bench.engine.state().find(JobId(0)).is_none(), "a job that has ended is removed");
    let cancelled = Event::Cancelled { job: JobId(1) };
    bench.step(3, &[cancelled.clone(), cancelled], |_| {});
    assert!(bench.engine.state().find(JobId(1)).is_none());
    assert_eq!(bench.engine.state().occupancy().free_count(PartitionId(0)), 4);
}

#[test]
fn waiting_jobs_have_reasons_and_others_have_none() {
    let mut bench = Bench::new(1);
    for id in 0..3 {
        bench.submit(id, 4, 0);
    }
    bench.step(1, &[], |draft| {
        assert!(draft.place_exclusive(JobId(0)));
        assert!(!draft.place_exclusive(JobId(1)));
        draft.explain(JobId(1), Reason::NoRoom { free: draft.free_count() });
        draft.explain_others(Reason::Behind(JobId(1)));
    });
    let reasons = [0, 1, 2, 9].map(|job| bench.engine.reason(JobId(job)));
    let no_room = Reason::NoRoom { free: 0 };
    assert_eq!(reasons, [None, Some(no_room), Some(Reason::Behind(JobId(1))), None]);
}

#[test]
fn budgets_are_checked_and_another_one_takes_a_restart() {
    let mut bench = Bench::new(2);
    bench.submit(0, 1, 100);
    let within = |ppm| Placement { budget: Ppm(ppm), ..on(&[0]) };
    for ppm in [0, 99_999, 1_000_001, u32::MAX] {
        bench.step(0, &[], move |draft| draft.place(JobId(0), within(ppm)));
        let illegal = Illegal::NoSuchBudget { job: JobId(0), budget: Ppm(ppm) };
        assert_eq!(bench.refusal(), Some(illegal));
    }
    let start = bench.step(0, &[], move |draft| draft.place(JobId(0), within(100_000)));
    let placement = within(100_000);
    assert_eq!(start, [Action::Start { job: JobId(0), placement, restore: false }]);
    assert_eq!(bench.step(1, &[], move |draft| draft.place(JobId(0), within(100_000))), []);
    let more = bench.step(2, &[], move |draft| draft.place(JobId(0), within(600_000)));
    assert_eq!(more, [Action::Move { job: JobId(0), placement: within(600_000) }]);
}

/// Each tenant gets its budget's share of all budgets.
struct BudgetShares;

impl Interference for BudgetShares {
    fn pair_rate(&self, _: &Profile, _: &Profile, _: GpuTypeId) -> Option<Ratio> {
        Some(Ratio::HALF)
    }

    fn is_pairwise(&self) -> bool {
        false
    }

    fn group_rate(&self, job: Tenant<'_>, others: &[Tenant<'_>], _: GpuTypeId) -> Option<Ratio> {
        let budgets = others.iter().map(|other| u64::from(other.budget.0)).sum::<u64>();
        let own = u64::from(job.budget.0);
        Some(Ratio::new(own, own + budgets))
    }
}

#[test]
fn tolerances_are_checked_against_the_group_rate_under_the_planned_budgets() {
    let mut bench = Bench::with_model(2, Arc::new(BudgetShares));
    for id in [0, 1] {
        // At least half of the speed alone.
        bench.submit_spec(JobSpec { tolerance: Tolerance::Slowdown(2_000_000), ..spec(id, 1, 0) });
    }
    let within = |ppm| Placement { budget: Ppm(ppm), ..on(&[0]) };
    bench.step(0, &[], move |draft| draft.place(JobId(0), within(600_000)));
    bench.step(1, &[], move |draft| {
        draft.place(JobId(1), within(200_000));
        // 200,000 of 800,000 is a quarter.
        let (job, other) = (draft.job(JobId(1)), draft.job(JobId(0)));
        assert_eq!(draft.rate_beside(job, [other], GpuTypeId(0)), None);
    });
    let rate = Ppm(250_000);
    let illegal = Illegal::NotTolerated { job: JobId(1), rate, gpu: GpuId(0) };
    assert_eq!(bench.refusal(), Some(illegal));
    let started = bench.step(2, &[], move |draft| draft.place(JobId(1), within(600_000)));
    assert_eq!(started.len(), 1);
    assert_eq!(bench.engine.refused().0, 1);
}

#[test]
fn a_job_in_sub_batches_takes_their_memory_and_nothing_else_is_believed() {
    let mut bench = Bench::new(2);
    let option =
        |count, mib| SubBatch { count, slowdown: Ratio::ONE, memory: Memory::from_mib(mib) };
    bench.submit(0, 1, 650);
    bench.submit_with(1, 1, 600, SubBatches::new([option(2, 400), option(4, 300)]));
    let parts = |sub_batches| Placement { sub_batches, ..on(&[0]) };
    bench.step(0, &[], |draft| draft.place(JobId(0), on(&[0])));
    for (sub_batches, mib) in [(1, 1250), (2, 1050)] {
        bench.step(0, &[], move |draft| draft.place(JobId(1), parts(sub_batches)));
        let (wanted, available) = (Memory::from_mib(mib), Memory::from_mib(1000));
        let over = Illegal::MemoryOver { gpu: GpuId(0), wanted, available };
        assert_eq!(bench.refusal(), Some(over));
    }
    bench.step(0, &[], move |draft| draft.place(JobId(1), parts(3)));
    let unknown = Illegal::NoSuchSubBatches { job: JobId(1), count: 3 };
    assert_eq!(bench.refusal(), Some(unknown));
    let start = bench.step(0, &[], move |draft| {
        draft.place(JobId(1), parts(4));
        assert_eq!(draft.occupancy().memory_used(GpuId(0)), Memory::from_mib(950));
    });
    assert_eq!(start, [Action::Start { job: JobId(1), placement: parts(4), restore: false }]);
    assert_eq!(bench.step(0, &[], move |draft| draft.place(JobId(1), parts(4))), []);
    // Whole batches need a restart, and the memory of the other job.
    let alone = bench.step(1, &[Event::Finished { job: JobId(0) }], move |draft| {
        draft.place(JobId(1), parts(1));
    });
    assert_eq!(alone, [Action::Move { job: JobId(1), placement: parts(1) }]);
    bench.step(2, &[Event::Finished { job: JobId(1) }], |_| {});
    let occupancy = bench.engine.state().occupancy();
    assert_eq!(occupancy.memory_used(GpuId(0)), Memory::default());
}

#[test]
fn a_job_that_cannot_be_stopped_stays_but_may_pause_and_change_its_sub_batches() {
    let mut bench = Bench::new(1);
    let option = SubBatch { count: 2, slowdown: Ratio::ONE, memory: Memory::from_mib(50) };
    let sub_batches = SubBatches::new([option]);
    bench.submit_spec(JobSpec { stoppable: false, sub_batches, ..spec(0, 1, 100) });
    bench.step(0, &[], |draft| draft.place(JobId(0), on(&[0])));
    let plans: [Plan; 3] = [
        Box::new(|draft| draft.drop(JobId(0))),
        Box::new(|draft| draft.place(JobId(0), on(&[1]))),
        Box::new(|draft| draft.place(JobId(0), Placement { budget: Ppm(500_000), ..on(&[0]) })),
    ];
    for (count, plan) in (1..).zip(plans) {
        assert_eq!(bench.step(1, &[], plan), []);
        assert_eq!(bench.engine.refused(), (count, Some(&Illegal::NotStoppable(JobId(0)))));
    }
    let paused = Placement { paused: true, ..on(&[0]) };
    let pause = bench.step(2, &[], move |draft| draft.place(JobId(0), paused.clone()));
    assert_eq!(pause, [Action::Pause { job: JobId(0) }]);
    let parts = Placement { sub_batches: 2, ..on(&[0]) };
    let placement = parts.clone();
    let altered = bench.step(3, &[], move |draft| draft.place(JobId(0), parts.clone()));
    assert_eq!(altered, [Action::Move { job: JobId(0), placement }]);
}

/// The description of [`spec`] with this much memory.
fn description(memory_mib: u64) -> JobDescription {
    spec(0, 1, memory_mib).description()
}

fn described(job: u32, memory_mib: u64) -> Event {
    Event::Described { job: JobId(job), description: description(memory_mib) }
}

#[test]
fn a_new_description_counts_at_once_whether_a_job_waits_or_runs() {
    let mut bench = Bench::new(2);
    bench.submit(0, 1, 100);
    bench.submit(1, 1, 100);
    bench.step(1, &[], |draft| draft.place(JobId(0), on(&[0])));
    let description = JobDescription { estimate: Span::from_secs(7), ..description(300) };
    let events =
        [0, 1, 9].map(|job| Event::Described { job: JobId(job), description: description.clone() });
    assert_eq!(bench.step(2, &events, |_| {}), []);
    for job in [0, 1] {
        assert_eq!(bench.engine.state().job(JobId(job)).spec.description(), description);
    }
    let used = |bench: &Bench| bench.engine.state().occupancy().memory_used(GpuId(0));
    assert_eq!(used(&bench), Memory::from_mib(300));
    bench.step(3, &[], |draft| draft.place(JobId(1), on(&[0])));
    assert_eq!(used(&bench), Memory::from_mib(600));
}

#[test]
fn a_job_that_outgrows_its_gpu_stays_and_takes_no_co_tenant() {
    let mut bench = Bench::new(2);
    bench.submit(0, 1, 100);
    bench.submit(1, 1, 0);
    bench.submit(2, 2, 600);
    bench.step(1, &[], |draft| draft.place(JobId(0), on(&[0])));
    bench.step(2, &[described(0, 5000), described(1, 0)], |draft| {
        draft.place(JobId(1), on(&[0]));
    });
    let (wanted, available) = (Memory::from_mib(5000), Memory::from_mib(1000));
    let over = Illegal::MemoryOver { gpu: GpuId(0), wanted, available };
    assert_eq!(bench.refusal(), Some(over));
    // To keep it where it is, or to pause it there, is legal.
    let same = bench.step(3, &[], |draft| {
        draft.drop(JobId(0));
        draft.place(JobId(0), on(&[0]));
    });
    assert_eq!(same, []);
    let paused = Placement { paused: true, ..on(&[0]) };
    let pause = bench.step(3, &[], move |draft| draft.place(JobId(0), paused.clone()));
    assert_eq!(pause, [Action::Pause { job: JobId(0) }]);
    assert_eq!(bench.engine.refused().0, 1);
    // A job that fits no GPU finds none, and the plans for others stay legal.
    bench.step(4, &[described(2, 2000)], |draft| {
        assert!(!draft.place_exclusive(JobId(2)));
        assert!(!draft.fits_every_gpu(JobId(2)));
        assert!(draft.place_exclusive(JobId(1)));
    });
    bench.step(5, &[Event::Finished { job: JobId(0) }], |_| {});
    assert_eq!(bench.engine.state().occupancy().memory_used(GpuId(0)), Memory::default());
}

#[test]
fn a_running_job_keeps_sub_batches_that_its_description_no_longer_lists() {
    let mut bench = Bench::new(2);
    let option = SubBatch { count: 2, slowdown: Ratio::ONE, memory: Memory::from_mib(50) };
    bench.submit_with(0, 1, 100, SubBatches::new([option]));
    let parts = || Placement { sub_batches: 2, ..on(&[0]) };
    bench.step(1, &[], move |draft| draft.place(JobId(0), parts()));
    let again = bench.step(2, &[described(0, 100)], move |draft| draft.place(JobId(0), parts()));
    assert_eq!(again, []);
    assert_eq!(bench.engine.refused().0, 0);
    assert_eq!(bench.engine.state().occupancy().memory_used(GpuId(0)), Memory::from_mib(100));
}

#[test]
fn adopted_jobs_keep_their_placement_or_wait_with_their_progress() {
    let mut bench = Bench::new(2);
    let done = Work::of(Span::from_secs(30));
    let adopted = |id, placement| Event::Adopted { spec: spec(id, 1, 700), placement, done };
    let events = [
        adopted(0, Some(on(&[1]))),
        // More than the memory of the GPU: adopted as reported.
        adopted(1, Some(on(&[1]))),
        adopted(2, None),
        adopted(3, Some(on(&[17]))),
        adopted(4, Some(on(&[0, 2]))),
        Event::Submitted(spec(5, 1, 0)),
    ];
    assert_eq!(bench.step(10, &events, |_| {}), []);
    let state = bench.engine.state();
    assert_eq!(state.occupancy().tenants(GpuId(1)), [JobId(0), JobId(1)]);
    assert_eq!(state.occupancy().memory_used(GpuId(1)), Memory::from_mib(1400));
    assert_eq!(state.occupancy().free_count(PartitionId(0)), 3);
    for id in 0..5 {
        let job = state.job(JobId(id));
        assert_eq!(job.remaining(Time::from_secs(50)), Work::of(Span::from_secs(70)));
        assert_eq!((job.placement().is_some(), job.must_restore), (id < 2, id >= 2));
    }
    let start = bench.step(11, &[], |draft| draft.place(JobId(2), on(&[0])));
    let placement = on(&[0]);
    assert_eq!(start, [Action::Start { job: JobId(2), placement, restore: true }]);
    bench.step(12, &[0, 1, 2].map(|job| Event::Finished { job: JobId(job) }), |_| {});
    assert_eq!(bench.engine.state().occupancy().free_count(PartitionId(0)), 4);
}

#[test]
fn a_drained_gpu_keeps_its_tenants_and_takes_no_other() {
    let mut bench = Bench::new(2);
    for id in 0..3 {
        bench.submit(id, 1, 100);
    }
    bench.step(1, &[], |draft| draft.place(JobId(0), on(&[0])));
    bench.step(2, &[Event::GpuDrained { gpu: GpuId(0) }], |draft| {
        assert_eq!((draft.free_count(), draft.single_tenant_count(), draft.up_count()), (3, 0, 4));
        draft.place(JobId(1), on(&[0]));
    });
    let drained = Illegal::DrainedGpu { job: JobId(1), gpu: GpuId(0) };
    assert_eq!(bench.refusal(), Some(drained));
    let paused = Placement { paused: true, ..on(&[0]) };
    let pause = bench.step(3, &[], move |draft| draft.place(JobId(0), paused.clone()));
    assert_eq!(pause, [Action::Pause { job: JobId(0) }]);
    bench.step(4, &[Event::Finished { job: JobId(0) }], |draft| {
        assert_eq!((draft.free_count(), draft.up_count()), (3, 3));
        draft.place(JobId(1), on(&[0]));
    });
    assert_eq!(bench.engine.refused().0, 2);
    bench.step(5, &[Event::GpuUp { gpu: GpuId(0) }], |draft| draft.place(JobId(1), on(&[0])));
    assert_eq!(bench.engine.state().occupancy().tenants(GpuId(0)), [JobId(1)]);
    // A GPU can be lost and drained in any order.
    let gpu = GpuId(3);
    let conditions = [Event::GpuDrained { gpu }, Event::GpuDown { gpu }, Event::GpuUp { gpu }];
    for event in conditions {
        bench.step(6, &[event], |_| {});
    }
    assert_eq!(bench.engine.state().occupancy().free_count(PartitionId(0)), 3);
}

#[test]
fn memory_of_foreign_processes_counts_until_it_is_free_again() {
    let mut bench = Bench::new(2);
    bench.submit(0, 1, 400);
    bench.submit(1, 1, 700);
    let reserved = |mib| Event::GpuReserved { gpu: GpuId(0), memory: Memory::from_mib(mib) };
    bench.step(1, &[reserved(900), reserved(500)], |draft| {
        assert!(draft.fits_every_gpu(JobId(0)) && !draft.fits_every_gpu(JobId(1)));
        draft.place(JobId(1), on(&[0]));
    });
    let (wanted, available) = (Memory::from_mib(1200), Memory::from_mib(1000));
    let over = Illegal::MemoryOver { gpu: GpuId(0), wanted, available };
    assert_eq!(bench.refusal(), Some(over));
    bench.step(2, &[], |draft| {
        assert!(draft.place_exclusive(JobId(1)));
        assert_eq!(draft.placement(JobId(1)), Some(&on(&[1])));
        draft.place(JobId(0), on(&[0]));
    });
    bench.step(3, &[reserved(1000)], |_| {});
    bench.step(4, &[Event::Finished { job: JobId(0) }, reserved(0)], |_| {});
    assert_eq!(bench.engine.state().occupancy().memory_used(GpuId(0)), Memory::default());
    assert_eq!(bench.engine.refused().0, 1);
}

/// A model that says with every observation whether a rate has moved.
struct Moving;

impl Interference for Moving {
    fn pair_rate(&self, _: &Profile, _: &Profile, _: GpuTypeId) -> Option<Ratio> {
        Some(Ratio::ONE)
    }
}

impl Learner for Moving {
    fn observe(&mut self, observation: &Observation) -> bool {
        observation.rate < Ratio::HALF
    }

    fn snapshot(&self) -> Arc<dyn Interference> {
        Arc::new(Moving)
    }
}

/// Reports what each plan is told about beliefs.
struct Believer(Sender<bool>);

impl Policy for Believer {
    fn enqueue(&mut self, _: &Job) {}
    fn dequeue(&mut self, _: &Job) {}
    fn plan(&mut self, draft: &mut Draft<'_>) {
        self.0.send(draft.beliefs_moved()).unwrap();
    }
}

#[test]
fn a_belief_that_moved_asks_for_a_plan_and_the_policy_is_told_once() {
    let (sender, told) = channel();
    let cluster = Arc::new(Cluster::uniform(1, 1, Memory::from_mib(1000)));
    let policy = || Box::new(Believer(sender.clone())) as Box<dyn Policy>;
    let model = Box::new(Moving);
    let mut engine = Engine::new(cluster, Rules::default(), model, OnIllegal::Refuse, policy);
    let observed = |percent: u64| {
        Event::Observed(Observation {
            job: Profile::default(),
            beside: vec![vec![Profile::default()]],
            gpu: GpuTypeId(0),
            rate: Ratio::new(percent, 100),
            noise: Ratio::new(1, 100),
        })
    };
    engine.step(Time(1), &[observed(90)]);
    assert_eq!(told.try_iter().count(), 0, "nothing moved");
    engine.step(Time(2), &[observed(40), observed(90)]);
    engine.touch(PartitionId(0));
    engine.step(Time(2), &[]);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), [true, false]);
}
