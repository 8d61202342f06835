//! A gang whose GPUs have different co-located jobs runs at the rate of its slowest GPU: in the simulated
//! world, in the scheduler, in `info`, in `explain` and in plans.

use super::responses;
use crate::cycle::{Present, Turns};
use crate::history::History;
use crate::job::{JobState, StoredJob};
use crate::meter::Meter;
use crate::request::JobRequest;
use crate::scheduler::{
    Input, JOURNAL_VERSION, Kept, LearnedClass, Now, RecoveredRun, Scheduler, Setup, Start,
    Submission,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tandem_backends::{Device, Enforcement, RunHandle};
use tandem_core::{
    Action, Cluster, Event, GpuId, GpuTypeId, Interference, JobId, Memory, Placement, Ppm, Profile,
    Ratio, Time,
};
use tandem_policies::PolicySpec;
use tandem_sim::trace::{ReadOptions, parse};
use tandem_sim::{DrivenWorld, Workload, WorkloadOptions, WorldOptions};

const POLICY: &str = "sjf-ffs";
/// The devices of each job; the first is the gang.
const DEVICES: [&[u32]; 3] = [&[0, 1], &[0], &[1]];
/// The gang beside the second job and beside the third.
const RATES: [[u64; 3]; 3] = [[100, 90, 60], [80, 100, 100], [70, 100, 100]];
const NOW: Now = Now { at_us: 5_000_000, unix_us: 1_700_000_000_000_000 };

/// Pair rates by class, in percent.
struct RatesByClass;

impl Interference for RatesByClass {
    fn pair_rate(&self, job: &Profile, beside: &Profile, _: GpuTypeId) -> Option<Ratio> {
        let (a, b) = job.class.zip(beside.class)?;
        Some(Ratio::new(RATES[a.index()][b.index()], 100))
    }
}

fn placement(devices: &[u32]) -> Placement {
    Placement::on(devices.iter().map(|&device| GpuId(device)))
}

/// What the simulated world makes of it.
fn world_rates() -> Vec<Ppm> {
    let text = "job_id,submit_s,gpus,duration_s,model\n1,0,2,100,a\n2,0,1,1000,b\n3,0,1,1000,c\n";
    let trace = parse(text.as_bytes(), "trace", &ReadOptions::default()).unwrap();
    let cluster = Arc::new(Cluster::uniform(1, 2, Memory::from_mib(1000)));
    let workload = Workload::new(trace, cluster, "trace", &WorkloadOptions::default()).unwrap();
    let mut world = DrivenWorld::new(&workload, &RatesByClass, WorldOptions::default());
    let start = |(job, devices): (u32, &&[u32])| Action::Start {
        job: JobId(job),
        placement: placement(devices),
        restore: false,
    };
    let starts: Vec<Action> = (0..).zip(&DEVICES).map(start).collect();
    world.act(Time(0), &starts);
    let rate = |event| match event {
        Event::Progress { progress, .. } => progress.rate,
        other => panic!("{other:?} does not happen here"),
    };
    world.collect(Time(0)).into_iter().map(rate).collect()
}

fn request(job: usize) -> JobRequest {
    JobRequest {
        command: vec!["train".to_owned()],
        gpus: DEVICES[job].len() as f64,
        class: Some(["a", "b", "c"][job].to_owned()),
        estimate_s: Some([100.0, 1000.0, 1000.0][job]),
        ..JobRequest::default()
    }
}

fn setup() -> Setup {
    let device = |index| Device {
        node: String::new(),
        index,
        name: format!("gpu{index}"),
        kind: "gpu".to_owned(),
        memory_bytes: 1 << 30,
    };
    Setup {
        devices: (0..2).map(device).collect(),
        policy: POLICY.to_owned(),
        share: true,
        pause_frees_device: true,
        may_pause: true,
        gangs_share: true,
        moves: true,
        measures_memory: true,
        keeps_queue: false,
        people: Default::default(),
        process: Default::default(),
        class_rules: crate::class::ClassRules::default(),
        live_budgets: false,
        learn: false,
        believe_rates: true,
        restore_s: 0.0,
        kill_grace_ms: 0,
        planned_per_user: None,
        tasks_per_step: None,
        stop_grace_ms: 0,
        sockets: "/nowhere".into(),
        foreign_avoid: true,
    }
}

/// A class whose speed alone is known: otherwise a predicted rate is not shown.
fn measured_alone() -> LearnedClass {
    LearnedClass { solo: BTreeMap::from([(1, 10.0)]), ..LearnedClass::default() }
}

/// A scheduler that finds the first `count` of the jobs running.
fn scheduler(count: usize, max_slowdown: Option<f64>) -> Scheduler {
    let kept = |(job, id): (usize, u64)| {
        let request = Arc::new(JobRequest { max_slowdown, ..request(job) });
        let job = StoredJob {
            id,
            class: crate::class::of_request(&request),
            request: request.clone(),
            state: JobState::Running,
            devices: DEVICES[job].to_vec(),
            placed: true,
            runs: 1,
            sub_batches: 1,
            entered_us: Some(id),
            ..StoredJob::default()
        };
        let enforcement = Enforcement::None;
        let found = Some(RecoveredRun::Running {
            handle: RunHandle::Process(1),
            paused: false,
            enforcement,
        });
        Kept { job, request, found, alike: 0 }
    };
    let start = Start {
        version: JOURNAL_VERSION,
        now: NOW,
        setup: setup(),
        jobs: (0..count).zip(1..).map(kept).collect(),
        classes: ["a", "b", "c"].map(|name| (name.to_owned(), measured_alone())).into(),
        next_job: 10,
        next_op: 0,
        drained: Vec::new(),
        closed: Vec::new(),
        bookings: Vec::new(),
        used: Default::default(),
        over: BTreeMap::new(),
        failed_arrays: Default::default(),
        unfinished: Vec::new(),
    };
    let model: Arc<dyn Interference> = Arc::new(RatesByClass);
    let policy = PolicySpec::parse(POLICY).unwrap();
    let (scheduler, outcome) = Scheduler::begin(start, &policy, Box::new(model));
    assert_eq!(outcome.actions, [], "everybody stays");
    scheduler
}

#[test]
fn a_gang_runs_at_the_rate_of_its_slowest_gpu_everywhere() {
    let world = world_rates();
    assert_eq!(world, [Ppm(600_000), Ppm(800_000), Ppm(700_000)]);
    let mut scheduler = scheduler(3, None);
    // The engine is told of new rates at the next step.
    assert_eq!(scheduler.step(NOW, &[]).actions, []);
    let (meter, turns, history) = (Meter::default(), Turns::default(), History::default());
    let present = Present {
        scheduler: &scheduler,
        now: NOW,
        devices: &[],
        meter: &meter,
        turns: &turns,
        history: &history,
        trouble: None,
    };
    for ((id, entry), &rate) in (1..).zip((0..).map(JobId)).zip(&world) {
        let of_world = f64::from(rate.0) / 1e6;
        assert_eq!(scheduler.engine().state().job(entry).progress.rate, rate, "the engine, {id}");
        let view = scheduler.view(id, NOW.time()).unwrap();
        assert_eq!((view.rate, view.predicted, view.measured), (of_world, of_world, false));
        let job = &scheduler.job(id).unwrap().job;
        let info = responses::info(job, Some(&view), None, &present);
        assert_eq!(info.slowdown_predicted, Some(1.0 / of_world), "info, {id}");
    }
    let policy = PolicySpec::parse(POLICY).unwrap();
    let question = crate::forecast::of_job(&present, 1, true).unwrap();
    let slowdown = question.answer(&policy).slowdown.unwrap();
    assert!((slowdown * 0.6 - 1.0).abs() < 1e-6, "explain and forecast: {slowdown}");
}

#[test]
fn explain_says_at_which_rates_a_device_would_be_shared() {
    let scheduler = scheduler(2, None);
    let (meter, turns, history) = (Meter::default(), Turns::default(), History::default());
    let present = Present {
        scheduler: &scheduler,
        now: NOW,
        devices: &[],
        meter: &meter,
        turns: &turns,
        history: &history,
        trouble: None,
    };
    let caller = crate::command::Caller::local(0, 0, "root".to_owned());
    // The class of the second job again.
    let question = crate::forecast::of_request(&present, &caller, request(1)).unwrap();
    let answer = question.answer(&PolicySpec::parse(POLICY).unwrap());
    assert_eq!(answer.devices[0].reason, "jobs 1 and 2 are there, as many as the policy allows");
    let second = &answer.devices[1].reason;
    assert!(second.ends_with("this one would run at 0.80, the others at 0.90 in all"), "{second}");
}

#[test]
fn a_plan_counts_the_slowest_gpu_of_a_gang_and_not_the_product_over_its_gpus() {
    let is_joined = |max_slowdown| {
        let mut scheduler = scheduler(2, Some(max_slowdown));
        let submission = Submission {
            depends: Vec::new(),
            first: 10,
            uid: 0,
            gid: 0,
            user: "root".to_owned(),
            request: request(2),
            over: Vec::new(),
            external: None,
            waits: None,
            submit_unix_us: None,
        };
        let outcome = scheduler.step(NOW, &[Input::Submit(Box::new(submission))]);
        assert_eq!(scheduler.engine().refused().0, 0);
        !outcome.actions.is_empty()
    };
    // 1 / 0.6 is 1.67, the product over both GPUs would be 1 / 0.54 = 1.85.
    assert!(is_joined(1.7));
    assert!(!is_joined(1.6));
}
