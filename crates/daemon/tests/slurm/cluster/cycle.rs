//! The daemon's loop with a back end that does nothing by itself.

use super::{setup, start};
use std::sync::{Arc, Mutex, mpsc};
use tandem_backends::{
    Backend, BackendEvent, Capabilities, ClusterJob, Device, KnownJob, Op, OpId, Owner,
    RecoveredRun, RunId,
};
use tandem_daemon::cycle::{Cycle, Message};
use tandem_daemon::job_sockets::JobSockets;
use tandem_daemon::journal::beliefs;
use tandem_daemon::meter::{Meter, MeterOptions};
use tandem_daemon::publish::Publisher;
use tandem_daemon::scheduler::{Now, Scheduler};
use tandem_daemon::store::Store;
use tandem_policies::PolicySpec;

struct SilentBackend {
    devices: Vec<Device>,
    ops: Arc<Mutex<Vec<Op>>>,
}

impl Backend for SilentBackend {
    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::CLUSTER
    }

    fn recover(&mut self, _: &[KnownJob]) -> Vec<(RunId, RecoveredRun)> {
        Vec::new()
    }

    fn apply(&mut self, _: OpId, op: Op) {
        self.ops.lock().unwrap().push(op);
    }

    fn forget(&mut self, _: RunId) {}
}

pub(crate) struct TestDaemon {
    pub(crate) cycle: Cycle,
    pub(crate) ops: Arc<Mutex<Vec<Op>>>,
    pub(crate) state: tempfile::TempDir,
    pub(crate) now: Now,
    _inbox: mpsc::Receiver<Message>,
    _runtime: tokio::runtime::Runtime,
}

impl TestDaemon {
    pub(crate) fn new(nodes: u32, each: u32, policy: &str) -> Self {
        let state = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (sender, inbox) = mpsc::channel();
        let setup = setup(nodes, each, policy);
        let ops = Arc::new(Mutex::new(Vec::new()));
        let backend = SilentBackend { devices: setup.devices.clone(), ops: ops.clone() };
        let now = Now { at_us: 1_000_000, unix_us: 1_700_000_000_000_000 };
        let start = start(setup, now, Vec::new());
        let mut store = Store::open(&state.path().join("state.db")).unwrap();
        store.write(|writing| writing.start(&start)).unwrap();
        let policy = PolicySpec::parse(policy).unwrap();
        let (scheduler, outcome) = Scheduler::begin(start, &policy, Box::new(beliefs()));
        let handle = runtime.handle().clone();
        let links = JobSockets::new(handle.clone(), state.path().join("none"), sender.clone(), 0);
        let publisher = Publisher::new(handle, 0, false, sender);
        let meter = Meter::new(MeterOptions::default());
        let mut cycle = Cycle::new(scheduler, store, Box::new(backend), meter, links, publisher, 0);
        cycle.begin(now, outcome).unwrap();
        Self { cycle, ops, state, now, _inbox: inbox, _runtime: runtime }
    }

    /// One turn of the loop, a second later.
    pub(crate) fn turn(&mut self, events: Vec<BackendEvent>) {
        self.now.at_us += 1_000_000;
        self.now.unix_us += 1_000_000;
        let mut batch: Vec<Message> = events.into_iter().map(Message::Backend).collect();
        self.cycle.turn(self.now, &mut batch);
    }

    pub(crate) fn database(&self) -> std::path::PathBuf {
        self.state.path().join("state.db")
    }

    /// Records of this kind cannot be written from now on.
    pub(crate) fn refuse(&self, kind: &str) {
        self.change(&format!(
            "CREATE TRIGGER full BEFORE INSERT ON journal WHEN NEW.kind = '{kind}'
             BEGIN SELECT RAISE(ABORT, 'full'); END"
        ));
    }

    /// They can be written again.
    pub(crate) fn accept(&self) {
        self.change("DROP TRIGGER full");
    }

    fn change(&self, sql: &str) {
        rusqlite::Connection::open(self.database()).unwrap().execute_batch(sql).unwrap();
    }

    /// The cluster's ids of the jobs in the store.
    pub(crate) fn kept(&self) -> Vec<String> {
        let (jobs, _) = self.cycle.store.active(|_| {}).unwrap();
        jobs.into_iter().filter_map(|kept| kept.job.external).collect()
    }
}

pub(crate) fn job(number: u32) -> ClusterJob {
    ClusterJob {
        external: format!("{number}#tag"),
        owner: Owner { uid: 1001, gid: 1002 },
        user: "ann".to_owned(),
        name: format!("train{number}"),
        gpus: 1,
        limit_s: Some(3600.0),
        exclusive: false,
        hints: String::new(),
        submit_unix_us: 7,
        waits: None,
    }
}

pub(crate) fn imported(number: u32) -> BackendEvent {
    BackendEvent::Imported(Box::new(job(number)))
}
