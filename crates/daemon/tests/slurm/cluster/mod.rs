//! A fake cluster that keeps the queue: tests make its events by hand.

pub(crate) mod cycle;

use std::collections::{BTreeMap, BTreeSet};
use tandem_backends::{
    BackendEvent, Device, Enforcement, Exit, ExitStatus, Op, OpId, RecoveredRun, RunHandle, RunId,
};
use tandem_daemon::job::{JobState, StoredJob};
use tandem_daemon::journal::beliefs;
use tandem_daemon::request::JobRequest;
use tandem_daemon::scheduler::{
    Active, Input, JOURNAL_VERSION, Kept, Now, Phase, Scheduler, Setup, Start, StepOutcome,
    Submission,
};
use tandem_policies::PolicySpec;

pub(crate) struct TestCluster {
    pub(crate) scheduler: Scheduler,
    pub(crate) now: Now,
    /// All operations so far.
    pub(crate) ops: Vec<Op>,
    pub(crate) outcome: StepOutcome,
    setup: Setup,
    each: u32,
    next_job: u64,
    jobs: BTreeMap<u64, StoredJob>,
    /// Jobs that must not share.
    alone: BTreeSet<u64>,
}

/// Nodes of `each` GPUs.
pub(crate) fn setup(nodes: u32, each: u32, policy: &str) -> Setup {
    let device = |index| Device {
        index,
        name: format!("n{}:g{}", index / each, index % each),
        kind: "gpu".to_owned(),
        memory_bytes: 16 << 30,
        node: format!("n{}", index / each),
    };
    Setup {
        devices: (0..nodes * each).map(device).collect(),
        policy: policy.to_owned(),
        share: true,
        pause_frees_device: false,
        may_pause: true,
        gangs_share: false,
        moves: false,
        measures_memory: false,
        keeps_queue: true,
        people: Default::default(),
        process: Default::default(),
        class_rules: tandem_daemon::class::ClassRules::default(),
        live_budgets: false,
        learn: true,
        believe_rates: true,
        restore_s: 0.0,
        kill_grace_ms: 1000,
        planned_per_user: None,
        tasks_per_step: None,
        stop_grace_ms: 1000,
        sockets: "/nowhere".into(),
        foreign_avoid: true,
    }
}

pub(crate) fn start(setup: Setup, now: Now, jobs: Vec<Kept>) -> Start {
    Start {
        version: JOURNAL_VERSION,
        now,
        setup,
        next_job: jobs.iter().map(|kept| kept.job.id + 1).max().unwrap_or(1),
        jobs,
        classes: BTreeMap::new(),
        next_op: now.at_us,
        drained: Vec::new(),
        closed: Vec::new(),
        bookings: Vec::new(),
        used: Default::default(),
        over: BTreeMap::new(),
        failed_arrays: Default::default(),
        unfinished: Vec::new(),
    }
}

/// A job of one GPU that says nothing about its memory.
pub(crate) fn submission(id: u64) -> Submission {
    Submission {
        depends: Vec::new(),
        first: id,
        uid: 1001,
        gid: 1001,
        user: "ann".to_owned(),
        request: JobRequest {
            command: vec![format!("slurm:{id}")],
            class: Some("ann/train".to_owned()),
            gpus: 1.0,
            ..JobRequest::default()
        },
        over: Vec::new(),
        external: Some(format!("{id}#tag")),
        submit_unix_us: Some(7),
        waits: None,
    }
}

pub(crate) fn exit(status: ExitStatus) -> Exit {
    Exit { status, cpu_s: 0.0, rss_max_bytes: 0, oom: false, at_unix_us: 0, cause: None }
}

pub(crate) fn kept(job: &StoredJob, found: Option<RecoveredRun>) -> Kept {
    Kept { job: job.clone(), request: job.request.clone(), found, alike: 0 }
}

impl TestCluster {
    pub(crate) fn new(nodes: u32, each: u32, policy: &str) -> Self {
        let now = Now { at_us: 1_000_000, unix_us: 1_700_000_000_000_000 };
        let start = start(setup(nodes, each, policy), now, Vec::new());
        Self::begin(start, each, BTreeMap::new(), BTreeSet::new())
    }

    pub(crate) fn begin(
        start: Start,
        each: u32,
        jobs: BTreeMap<u64, StoredJob>,
        alone: BTreeSet<u64>,
    ) -> Self {
        let policy = PolicySpec::parse(&start.setup.policy).unwrap();
        let (now, setup, next_job) = (start.now, start.setup.clone(), start.next_job);
        let (scheduler, outcome) = Scheduler::begin(start, &policy, Box::new(beliefs()));
        let ops = Vec::new();
        let mut cluster = Self { scheduler, now, ops, outcome, setup, each, next_job, jobs, alone };
        cluster.note();
        cluster
    }

    /// Restarts the daemon, a minute later.
    pub(crate) fn restart(self, kept: Vec<Kept>) -> Self {
        self.restart_without(kept, &[])
    }

    /// The same, with unavailable devices.
    pub(crate) fn restart_without(self, kept: Vec<Kept>, closed: &[u32]) -> Self {
        let now = Now { at_us: self.now.at_us + 60_000_000, ..self.now };
        let closed = closed.iter().map(|&device| (device, "down".to_owned())).collect();
        let next_job = self.next_job;
        let start = Start { closed, next_job, ..start(self.setup, now, kept) };
        Self::begin(start, self.each, self.jobs, self.alone)
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now.at_us += seconds * 1_000_000;
        self.now.unix_us += seconds * 1_000_000;
    }

    /// A second later.
    pub(crate) fn step(&mut self, inputs: &[Input]) {
        self.pass(1);
        self.outcome = self.scheduler.step(self.now, inputs);
        self.note();
    }

    /// Steps while the scheduler asks for it, at most three times.
    pub(crate) fn again(&mut self) {
        for _ in 0..3 {
            if self.outcome.wake.is_some() {
                self.step(&[]);
            }
        }
    }

    fn note(&mut self) {
        for job in &self.outcome.changed {
            self.jobs.insert(job.id, job.clone());
        }
        self.ops.extend(self.outcome.ops.iter().map(|(_, op)| op.clone()));
        for device in 0..self.setup.devices.len() as u32 {
            let present: Vec<u64> = self.scheduler.present(device).collect();
            let tenants: Vec<u64> = self.scheduler.tenants(device).collect();
            for jobs in [present, tenants] {
                let is_alone = jobs.len() == 1 || !jobs.iter().any(|job| self.alone.contains(job));
                assert!(is_alone, "device {device}: {jobs:?}");
            }
        }
    }

    pub(crate) fn submit(&mut self, change: impl FnOnce(&mut Submission)) -> u64 {
        let id = self.next_job;
        self.next_job += 1;
        let mut submission = submission(id);
        change(&mut submission);
        let request = &submission.request;
        if request.gpus > 1.0 || request.exclusive || request.gpu_memory_bytes.is_none() {
            self.alone.insert(id);
        }
        self.step(&[Input::Submit(Box::new(submission))]);
        id
    }

    pub(crate) fn import(&mut self, gpus: u32) -> u64 {
        self.submit(|submission| submission.request.gpus = f64::from(gpus))
    }

    pub(crate) fn active(&self, job: u64) -> &Active {
        self.scheduler.job(job).unwrap_or_else(|| panic!("job {job} is over"))
    }

    /// Its record, as last reported.
    pub(crate) fn job(&self, job: u64) -> &StoredJob {
        &self.jobs[&job]
    }

    pub(crate) fn state(&self, job: u64) -> JobState {
        self.jobs[&job].state
    }

    pub(crate) fn phase(&self, job: u64) -> Phase {
        self.scheduler.job(job).map_or(Phase::Absent, |active| active.phase)
    }

    pub(crate) fn devices(&self, job: u64) -> Vec<u32> {
        self.active(job)
            .allocation
            .as_ref()
            .map_or_else(Vec::new, |allocation| allocation.devices.clone())
    }

    pub(crate) fn run(&self, job: u64) -> RunId {
        RunId { job, run: self.active(job).job.runs }
    }

    pub(crate) fn started(&mut self, job: u64) {
        let (op, run) = (OpId(0), self.run(job));
        let (handle, enforcement) = (RunHandle::ClusterJob(job), Enforcement::None);
        self.step(&[Input::Backend(BackendEvent::Started { op, run, handle, enforcement })]);
        assert_eq!(self.phase(job), Phase::Running, "job {job}");
    }

    pub(crate) fn ended(&mut self, job: u64, exit: Exit) {
        let run = self.run(job);
        self.step(&[Input::Backend(BackendEvent::Exited { run, exit })]);
        assert!(self.scheduler.job(job).is_none(), "job {job} is over");
    }

    pub(crate) fn finish(&mut self, job: u64) {
        self.ended(job, exit(ExitStatus::Code(0)));
    }

    pub(crate) fn requeued(&self, job: u64) -> Input {
        Input::Backend(BackendEvent::Requeued { run: self.run(job) })
    }

    pub(crate) fn requeue(&mut self, job: u64) {
        self.step(&[self.requeued(job)]);
    }

    pub(crate) fn cancel(&mut self, job: u64) {
        self.step(&[Input::Cancel { job, by: "ann".to_owned() }]);
    }

    pub(crate) fn withdraw(&mut self, job: u64) {
        let (external, reason) = (format!("{job}#tag"), "scancel".to_owned());
        self.step(&[Input::Backend(BackendEvent::Withdrawn { external, reason })]);
    }

    /// The events of a node that becomes unavailable or available.
    pub(crate) fn closing(&self, node: u32, closes: bool) -> Vec<Input> {
        let closed = closes.then(|| "down".to_owned());
        let of = |device| BackendEvent::Device { device, unavailable: closed.clone() };
        (node * self.each..(node + 1) * self.each)
            .map(|device| Input::Backend(of(device)))
            .collect()
    }

    pub(crate) fn close(&mut self, node: u32) {
        self.step(&self.closing(node, true));
    }

    pub(crate) fn open(&mut self, node: u32) {
        self.step(&self.closing(node, false));
    }

    /// No job is left, and no device is reserved.
    pub(crate) fn assert_idle(&mut self) {
        self.again();
        assert_eq!(self.scheduler.jobs().count(), 0);
        for device in 0..self.setup.devices.len() as u32 {
            assert!(!self.scheduler.is_shut(device), "device {device} is reserved for no job");
            assert_eq!(self.scheduler.tenants(device).count(), 0);
        }
        assert_eq!(self.scheduler.relocating().count(), 0);
    }
}
