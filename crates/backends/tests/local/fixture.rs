//! The fixture of the tests: a back end in a directory of its own, and its events.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tandem_backends::local::{LocalBackend, LocalOptions};
use tandem_backends::providers::fake::Fake;
use tandem_backends::{
    Backend, BackendEvent, DeviceAllocation, Enforcement, Exit, ExitStatus, Launch, Op, OpId,
    Provider, RecoveredRun, RunHandle, RunId,
};

/// How long a test waits for something that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A back end and what it reports.
pub(crate) struct TestBackend {
    pub(crate) inner: LocalBackend,
    pub(crate) dir: PathBuf,
    pub(crate) seen: Vec<BackendEvent>,
    events: Receiver<BackendEvent>,
    _own: Option<Arc<tempfile::TempDir>>,
}

impl TestBackend {
    /// In a temporary directory, with fake devices.
    pub(crate) fn new() -> Self {
        let own = Arc::new(tempfile::tempdir().unwrap());
        let mut backend = TestBackend::at(own.path());
        backend._own = Some(own);
        backend
    }

    /// In a directory, which an earlier back end may have used.
    pub(crate) fn at(dir: &Path) -> Self {
        TestBackend::with(dir, Box::new(Fake::new(4, "fake", 1 << 30)), |_| {})
    }

    pub(crate) fn with(
        dir: &Path,
        provider: Box<dyn Provider>,
        change: impl FnOnce(&mut LocalOptions),
    ) -> Self {
        let (sender, events) = channel();
        let sender = Mutex::new(sender);
        let sink = Box::new(move |event| drop(sender.lock().unwrap().send(event)));
        let mut options = LocalOptions::new(dir.join("state"));
        change(&mut options);
        let inner = LocalBackend::new(options, provider, sink).unwrap();
        TestBackend { inner, dir: dir.to_owned(), seen: Vec::new(), events, _own: None }
    }

    /// A shell script as a run.
    pub(crate) fn script(&self, job: u64, script: &str) -> Launch {
        launch(&self.dir, job, &["/bin/sh", "-c", script])
    }

    /// Sends an operation.
    pub(crate) fn apply(&mut self, id: u64, op: Op) {
        self.inner.apply(OpId(id), op);
    }

    /// Starts a run.
    pub(crate) fn start(&mut self, launch: Launch) {
        self.apply(launch.run.job, Op::Start(Box::new(launch)));
    }

    /// The next event, without samples.
    pub(crate) fn next(&mut self) -> BackendEvent {
        self.next_within(PATIENCE).unwrap_or_else(|| panic!("no event after {:?}", self.seen))
    }

    /// The next event within some time.
    pub(crate) fn next_within(&mut self, time: Duration) -> Option<BackendEvent> {
        let deadline = Instant::now() + time;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).ok()?;
            if !matches!(event, BackendEvent::Sampled(_)) {
                self.seen.push(event.clone());
                return Some(event);
            }
        }
    }

    /// The next sample.
    pub(crate) fn sample(&mut self) -> tandem_backends::UsageSample {
        loop {
            if let BackendEvent::Sampled(sample) = self.events.recv_timeout(PATIENCE).unwrap() {
                return sample;
            }
        }
    }

    /// What the back end recovers of a run.
    pub(crate) fn recover(&mut self, job: u64) -> RecoveredRun {
        self.inner.recover(&[run_id(job).into()]).remove(0).1
    }

    /// Waits for a start.
    pub(crate) fn started(&mut self) -> u32 {
        match self.next() {
            BackendEvent::Started { handle: RunHandle::Process(pid), .. } => pid,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for an end.
    pub(crate) fn exited(&mut self) -> Exit {
        match self.next() {
            BackendEvent::Exited { exit, .. } => exit,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for a failed start.
    pub(crate) fn not_started(&mut self) -> String {
        match self.next() {
            BackendEvent::NotStarted { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    /// Runs a script to its end.
    pub(crate) fn run(&mut self, job: u64, script: &str) -> Exit {
        self.start(self.script(job, script));
        self.started();
        self.exited()
    }

    /// What a run printed.
    pub(crate) fn output(&self, job: u64) -> String {
        std::fs::read_to_string(self.dir.join(format!("{job}.out"))).unwrap()
    }

    /// The records of a run.
    pub(crate) fn records(&self, job: u64) -> PathBuf {
        self.dir.join(format!("state/runs/{job}.1"))
    }
}

/// A recovered run with this process.
pub(crate) fn running(pid: u32, paused: bool, enforcement: Enforcement) -> RecoveredRun {
    RecoveredRun::Running { handle: RunHandle::Process(pid), paused, enforcement }
}

/// The first run of a job.
pub(crate) fn run_id(job: u64) -> RunId {
    RunId { job, run: 1 }
}

/// An allocation of one device.
pub(crate) fn allocation(device: u32) -> DeviceAllocation {
    DeviceAllocation {
        devices: vec![device],
        share_ppm: 1_000_000,
        memory_bytes: 0,
        sub_batches: 1,
        goes_first: false,
    }
}

/// A command as a run; its output goes to `JOB.out` in the directory.
pub(crate) fn launch(dir: &Path, job: u64, command: &[&str]) -> Launch {
    Launch {
        run: run_id(job),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        dir: dir.to_owned(),
        stdout: dir.join(format!("{job}.out")),
        stderr: None,
        append: false,
        owner: None,
        allocation: allocation(0),
        memory_limit_bytes: None,
        process: Default::default(),
    }
}

/// Waits until a condition holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process exists and has not ended.
pub(crate) fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A code as a status.
pub(crate) fn code(code: i32) -> ExitStatus {
    ExitStatus::Code(code)
}
