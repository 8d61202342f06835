//! A simulated world that plays the machine, and the daemon's loop driven through it by a clock that is moved
//! by hand.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use tandem_backends::{
    Backend, BackendEvent, Capabilities, Device, Enforcement, Exit, ExitStatus, KnownJob, Op, OpId,
    RecoveredRun, RunHandle, RunId,
};
use tandem_core::{
    Action, Cluster, Event, GpuId, Interference, JobId, Learner, Memory, Observation, Placement,
    Profile, Time,
};
use tandem_daemon::command::{Caller, UserCommand};
use tandem_daemon::cycle::{Cycle, Message};
use tandem_daemon::job_sockets::JobSockets;
use tandem_daemon::meter::{Meter, MeterOptions};
use tandem_daemon::publish::Publisher;
use tandem_daemon::request::{CheckedRequest, JobRequest};
use tandem_daemon::scheduler::{
    Fact, Input, JOURNAL_VERSION, Now, Report, Scheduler, Setup, Start,
};
use tandem_daemon::store::Store;
use tandem_policies::PolicySpec;
use tandem_sim::interference::{Beliefs, Learning, ModelFile, PairTable, trace_beliefs};
use tandem_sim::trace::{ReadOptions, parse};
use tandem_sim::{DrivenWorld, Estimates, Workload, WorkloadOptions, WorldOptions};

const GPUS: u32 = 4;
const MEMORY_MIB: u64 = 16_384;

/// A workload, its true rates and what is believed about them before the first observation.
pub(crate) struct Case {
    pub(crate) workload: &'static Workload,
    pub(crate) truth: Arc<dyn Interference>,
    pub(crate) beliefs: Beliefs,
}

/// A trace of `count` jobs of three classes, and a table of their pair rates.
pub(crate) fn case(seed: u64, count: u32) -> Case {
    let mut state = seed * 2 + 1;
    let mut random = |below: u64| {
        // xorshift: any stream does.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut text =
        "job_id,submit_s,gpus,duration_s,model,dataset,batch,amp,memory_mib\n".to_owned();
    let mut at = 0;
    for id in 1..=count {
        at += random(60);
        // Every class appears at the beginning, in order, so that both sides number them alike.
        let class = if id <= 3 { u64::from(id) - 1 } else { random(3) };
        let gpus = [1, 1, 1, 2, 4][random(5) as usize];
        let duration = 10 + random(400);
        let memory = 1000 * (1 + random(6));
        text += &format!("{id},{at},{gpus},{duration},m{class},d,1,0,{memory}\n");
    }
    case_of(&text, [[0.95, 0.9, 0.6], [0.9, 0.7, 0.5], [0.7, 0.6, 0.4]], seed)
}

/// A trace of jobs of three classes with the given pair rates: of the class of the row beside that of the
/// column.
pub(crate) fn case_of(text: &str, rates: [[f64; 3]; 3], seed: u64) -> Case {
    let trace = parse(text.as_bytes(), "trace", &ReadOptions::default()).unwrap();
    let mut rows = ",model1,dataset1,gpu_num1,batchsize1,amp1,speed1,\
                    model2,dataset2,gpu_num2,batchsize2,amp2,speed2,gpu_util,gmem_util,gmem\n"
        .to_owned();
    for (a, b) in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)] {
        let (of_a, of_b): (f64, f64) = (rates[a][b], rates[b][a]);
        rows += &format!("0,m{a},d,1,1,0,{of_a},m{b},d,1,1,0,{of_b},1,1,1\n");
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), rows).unwrap();
    let table = PairTable::read(&file.path().to_string_lossy()).unwrap();
    let truth: Arc<dyn Interference> = Arc::new(table.for_trace(&trace).unwrap());
    let (shipped, learning) =
        (ModelFile::shipped(), Learning { train_pairs: 1.0, seed, online: true });
    let model = shipped.for_gpu(Some("v100"), "shipped").unwrap();
    let beliefs =
        trace_beliefs(&trace, truth.clone(), Some(&table), None, Some(model), learning).unwrap();
    let cluster = Arc::new(Cluster::uniform(1, GPUS, Memory::from_mib(MEMORY_MIB)));
    let options = WorkloadOptions { estimates: Estimates::True, ..WorkloadOptions::default() };
    let workload = Workload::new(trace, cluster, "trace", &options).unwrap();
    // Lives as long as the test: the world and the back end that plays it share it.
    Case { workload: Box::leak(Box::new(workload)), truth, beliefs }
}

/// The simulated world as a back end: whatever it is asked to do is done at once.
struct Played {
    world: Arc<Mutex<DrivenWorld<'static>>>,
    now: Arc<Mutex<Time>>,
    sender: mpsc::Sender<Message>,
    devices: Vec<Device>,
    on_gpus: BTreeSet<u64>,
    known: BTreeSet<u64>,
}

impl Played {
    fn act(&mut self, action: Action) {
        let now = *self.now.lock().unwrap();
        self.world.lock().unwrap().act(now, &[action]);
    }

    fn report(&self, event: BackendEvent) {
        self.sender.send(Message::Backend(event)).unwrap();
    }
}

fn job_of(run: RunId) -> JobId {
    JobId(u32::try_from(run.job - 1).unwrap())
}

fn placement(devices: &[u32]) -> Placement {
    Placement::on(devices.iter().map(|&device| GpuId(device)))
}

impl Backend for Played {
    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::LOCAL
    }

    fn recover(&mut self, _: &[KnownJob]) -> Vec<(RunId, RecoveredRun)> {
        Vec::new()
    }

    fn apply(&mut self, op: OpId, what: Op) {
        let run = what.run();
        let job = job_of(run);
        match what {
            Op::Start(launch) => {
                let placement = placement(&launch.allocation.devices);
                self.known.insert(run.job);
                self.on_gpus.insert(run.job);
                self.act(Action::Start { job, placement, restore: false });
                let enforcement = Enforcement::None;
                self.report(BackendEvent::Started {
                    op,
                    run,
                    handle: RunHandle::Process(1),
                    enforcement,
                });
            }
            Op::Pause { .. } => {
                self.on_gpus.remove(&run.job);
                self.act(Action::Stop { job });
                self.report(BackendEvent::Paused { op, run, took_us: 0 });
            }
            Op::Resume { allocation, .. } => {
                let placement = placement(&allocation.devices);
                if self.on_gpus.insert(run.job) {
                    self.act(Action::Start { job, placement, restore: true });
                } else {
                    self.act(Action::Move { job, placement });
                }
                self.report(BackendEvent::Resumed { op, run });
            }
            Op::Signal { .. } | Op::End { .. } | Op::Place { .. } | Op::Withdraw { .. } => {
                panic!("nothing is ended here")
            }
        }
    }

    fn forget(&mut self, _: RunId) {}
}

fn setup(policy: &str) -> Setup {
    let device = |index| Device {
        node: String::new(),
        index,
        name: format!("gpu{index}"),
        kind: "gpu".to_owned(),
        memory_bytes: MEMORY_MIB << 20,
    };
    Setup {
        devices: (0..GPUS).map(device).collect(),
        policy: policy.to_owned(),
        share: true,
        pause_frees_device: true,
        may_pause: true,
        gangs_share: true,
        moves: true,
        measures_memory: true,
        keeps_queue: false,
        people: Default::default(),
        process: Default::default(),
        class_rules: tandem_daemon::class::ClassRules::default(),
        live_budgets: false,
        learn: false,
        believe_rates: false,
        restore_s: 40.0,
        kill_grace_ms: 0,
        planned_per_user: None,
        tasks_per_step: None,
        stop_grace_ms: 0,
        sockets: "/nowhere".into(),
        foreign_avoid: true,
    }
}

fn request(workload: &Workload, job: JobId) -> JobRequest {
    let spec = workload.spec(job);
    let class = workload.trace.classes.get(spec.profile.class.unwrap().0);
    JobRequest {
        command: vec!["train".to_owned()],
        gpus: f64::from(spec.gpus),
        class: Some(class.model.clone()),
        estimate_s: Some(spec.estimate.0 as f64 / 1e6),
        gpu_memory_bytes: Some((spec.profile.memory.mib() as u64) << 20),
        ..JobRequest::default()
    }
}

fn now(at: Time) -> Now {
    Now { at_us: at.0, unix_us: 1_700_000_000_000_000 + at.0 }
}

/// Drives the daemon's loop through the workload; gives its actions by instant. The engine plans with
/// `interference` and is told `observations` when they are due.
pub(crate) fn daemon(
    policy: &PolicySpec,
    case: &Case,
    interference: Box<dyn Learner>,
    observations: &[(Time, Observation)],
    state: &std::path::Path,
) -> Vec<(Time, Vec<String>)> {
    let Case { workload, truth, .. } = case;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (sender, inbox) = mpsc::channel();
    let truth_for_world: &'static Arc<dyn Interference> = Box::leak(Box::new(truth.clone()));
    let driven = DrivenWorld::new(workload, truth_for_world.as_ref(), WorldOptions::default());
    let world = Arc::new(Mutex::new(driven));
    let clock = Arc::new(Mutex::new(Time(0)));
    let setup = setup(&policy.text);
    let backend = Played {
        world: world.clone(),
        now: clock.clone(),
        sender: sender.clone(),
        devices: setup.devices.clone(),
        on_gpus: BTreeSet::new(),
        known: BTreeSet::new(),
    };
    let mut store = Store::open(&state.join("state.db")).unwrap();
    let start = Start {
        version: JOURNAL_VERSION,
        now: now(Time(0)),
        setup,
        jobs: Vec::new(),
        classes: Default::default(),
        next_job: 1,
        next_op: 0,
        drained: Vec::new(),
        closed: Vec::new(),
        bookings: Vec::new(),
        used: Default::default(),
        over: Default::default(),
        failed_arrays: Default::default(),
        unfinished: Vec::new(),
    };
    store.write(|writing| writing.start(&start)).unwrap();
    let (scheduler, outcome) = Scheduler::begin(start, policy, interference);
    let links = JobSockets::new(runtime.handle().clone(), state.join("none"), sender.clone(), 0);
    let publisher = Publisher::new(runtime.handle().clone(), 0, false, sender.clone());
    let meter = Meter::new(MeterOptions::default());
    let mut cycle = Cycle::new(scheduler, store, Box::new(backend), meter, links, publisher, 0);
    cycle.begin(now(Time(0)), outcome).unwrap();
    let caller = Caller::local(0, 0, "root".to_owned());
    let (mut arrived, mut finished) = (0, 0);
    let mut observations = observations.iter().peekable();
    while finished < workload.len() {
        let arrival = workload.jobs.get(arrived).map(|job| job.spec.submit);
        let completion = world.lock().unwrap().next_completion();
        let times = [arrival, completion, cycle.wake()];
        let at = times.into_iter().flatten().min().expect("nobody waits for ever");
        *clock.lock().unwrap() = at;
        let mut batch = Vec::new();
        let events = world.lock().unwrap().collect(at);
        messages(&events, at, &mut batch, &mut finished);
        while let Some((_, observation)) = observations.next_if(|(due, _)| *due <= at) {
            batch.push(Message::Input(Input::Fact(observed(workload, observation))));
        }
        while let Some(job) = workload.jobs.get(arrived).filter(|job| job.spec.submit <= at) {
            let request = request(workload, job.spec.id);
            let request = Box::new(CheckedRequest::new(request).unwrap());
            let (reply, _) = tokio::sync::oneshot::channel();
            let command = UserCommand::Submit(request);
            batch.push(Message::Command { caller: caller.clone(), command, reply });
            arrived += 1;
        }
        cycle.turn(now(at), &mut batch);
        // What was asked for has been done at once: one turn after the other until nothing follows.
        loop {
            let mut batch: Vec<Message> = inbox.try_iter().collect();
            if batch.is_empty() {
                break;
            }
            cycle.turn(now(at), &mut batch);
        }
        // Those who were left behind speed up.
        world.lock().unwrap().act(at, &[]);
    }
    drop(cycle);
    assert_eq!(observations.next(), None, "all were due");
    journalled_actions(state)
}

/// The actions in the journal, by instant.
fn journalled_actions(state: &std::path::Path) -> Vec<(Time, Vec<String>)> {
    let journal = rusqlite::Connection::open(state.join("state.db")).unwrap();
    let mut select = journal
        .prepare("SELECT at_us, body FROM journal WHERE kind = 'actions' ORDER BY seq")
        .unwrap();
    let rows = select
        .query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))
        .unwrap()
        .map(Result::unwrap);
    let mut acts: Vec<(Time, Vec<String>)> = Vec::new();
    for (at, body) in rows {
        let actions: Vec<String> = serde_json::from_str(&body).unwrap();
        if !actions.is_empty() {
            acts.push((Time(u64::try_from(at).unwrap()), actions));
        }
    }
    acts
}

/// An observation as a meter would tell it, by the names of classes.
fn observed(workload: &Workload, observation: &Observation) -> Fact {
    let name =
        |profile: &Profile| workload.trace.classes.get(profile.class.unwrap().0).model.clone();
    Fact::Observed {
        class: name(&observation.job),
        beside: observation.beside.iter().map(|on| on.iter().map(name).collect()).collect(),
        rate: observation.rate.as_f64(),
        noise: observation.noise.as_f64(),
    }
}

/// What the world tells, as jobs and processes would tell it.
fn messages(events: &[Event], at: Time, batch: &mut Vec<Message>, finished: &mut usize) {
    for event in events {
        match event {
            Event::Progress { job, progress } => {
                let millionth = 1_000_000;
                let report = Report {
                    done_us: u64::try_from(progress.done.0 / millionth).unwrap(),
                    done_millionths: u32::try_from(progress.done.0 % millionth).unwrap(),
                    at_us: progress.at.0,
                    rate_ppm: progress.rate.0,
                };
                let from = tandem_daemon::scheduler::RateSource::Steps;
                let fact = Fact::Progress { job: u64::from(job.0) + 1, report, from };
                batch.push(Message::Input(Input::Fact(fact)));
            }
            Event::Finished { job } => {
                *finished += 1;
                let run = RunId { job: u64::from(job.0) + 1, run: 1 };
                let exit = Exit {
                    cause: None,
                    status: ExitStatus::Code(0),
                    cpu_s: 0.0,
                    rss_max_bytes: 0,
                    oom: false,
                    at_unix_us: at.0,
                };
                batch.push(Message::Backend(BackendEvent::Exited { run, exit }));
            }
            other => panic!("{other:?} does not happen here"),
        }
    }
}
