//! The common part of the back end's threads: which runs there are, and what their records and
//! processes mean for them.

use super::look::{Look, look};
use super::process::{Halt, Identity, boot_id};
use super::record::{self, Claim, Outcome, SEAT, SPEC, Seated, Spec, Started};
use super::run::{Phase, Run, State, lock};
use super::watch::{News, Watcher};
use super::{OpenError, Options};
use crate::Sink;
use crate::event::{BackendEvent, Found};
use crate::op::RunId;
use crate::providers::{Device, Provider};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How many supervisors may die before they have a run.
const FAILURES: u32 = 3;

/// What the threads share.
pub(super) struct Inner {
    /// As given.
    pub(super) options: Options,
    /// Arguments that come before the subcommand of the second stage.
    pub(super) arguments: Vec<String>,
    /// The present boot.
    pub(super) boot: String,
    /// The cores of the daemon when it began.
    pub(super) cores: Vec<u32>,
    /// By index.
    pub(super) devices: Vec<Device>,
    /// Who knows the devices.
    pub(super) provider: Mutex<Box<dyn Provider>>,
    /// What is watched.
    pub(super) watcher: Watcher,
    /// Operations being carried out.
    pub(super) workers: AtomicUsize,
    sink: Sink,
    runs: Mutex<BTreeMap<RunId, Arc<Run>>>,
    stopping: AtomicBool,
    /// For threads that wait for nothing else.
    idle: (Mutex<()>, Condvar),
}

impl Inner {
    /// Without threads yet.
    pub(super) fn new(
        mut options: Options,
        mut provider: Box<dyn Provider>,
        sink: Sink,
    ) -> Result<Self, OpenError> {
        let system = |what: &str| {
            let what = what.to_owned();
            move |source| OpenError::System { what, source }
        };
        let (_, arguments) = options.supervisor.split_first().ok_or(OpenError::Supervisor)?;
        let arguments = arguments
            .iter()
            .map(|word| word.to_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>();
        record::make_directory(&options.state.join("runs"))
            .and_then(|()| options.state.canonicalize())
            .map(|state| options.state = state)
            .map_err(system(&format!("cannot use {}", options.state.display())))?;
        Ok(Inner {
            arguments: arguments.ok_or(OpenError::Supervisor)?,
            boot: boot_id().map_err(system("cannot read the boot id"))?,
            cores: crate::providers::cpu::allowed_cores(),
            devices: provider.list()?,
            provider: Mutex::new(provider),
            watcher: Watcher::new().map_err(system("cannot watch processes"))?,
            workers: AtomicUsize::new(0),
            sink,
            runs: Mutex::default(),
            stopping: AtomicBool::new(false),
            idle: (Mutex::new(()), Condvar::new()),
            options,
        })
    }

    /// Reports an event.
    pub(super) fn emit(&self, event: BackendEvent) {
        if !self.stopping() {
            (self.sink)(event);
        }
    }

    /// The back end is being dropped.
    pub(super) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Waits, but not beyond the life of the back end.
    pub(super) fn idle(&self, time: Duration) {
        let guard = lock(&self.idle.0);
        if !self.stopping() {
            drop(self.idle.1.wait_timeout(guard, time));
        }
    }

    /// Makes the threads end.
    pub(super) fn stop(&self) {
        {
            let _guard = lock(&self.idle.0);
            self.stopping.store(true, Ordering::SeqCst);
        }
        self.idle.1.notify_all();
        for run in self.runs() {
            // With the lock, so that nobody is between its look at the flag and its sleep.
            drop(run.state());
            run.changed.notify_all();
        }
        self.watcher.wake();
    }

    /// Waits for operations being carried out.
    pub(super) fn await_workers(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.workers.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            sleep(Duration::from_millis(1));
        }
    }

    /// All runs.
    pub(super) fn runs(&self) -> Vec<Arc<Run>> {
        lock(&self.runs).values().cloned().collect()
    }

    /// A run, if it is known.
    pub(super) fn known(&self, run: RunId) -> Option<Arc<Run>> {
        lock(&self.runs).get(&run).cloned()
    }

    /// A run, known from now on.
    pub(super) fn add(&self, run: RunId) -> Arc<Run> {
        lock(&self.runs).entry(run).or_insert_with(|| Arc::new(Run::new(run))).clone()
    }

    /// The body of the thread that watches.
    pub(super) fn watch(&self) {
        while !self.stopping() {
            for news in self.watcher.wait() {
                match news {
                    News::Directory(run) => self.advance(&run, &mut run.state()),
                    News::Ended(run, process) => {
                        let mut state = run.state();
                        if state.watched.as_ref() == Some(&process) {
                            state.watched = None;
                        }
                        self.advance(&run, &mut state);
                    }
                }
            }
        }
    }

    /// Starts a supervisor for the run of a directory.
    pub(super) fn spawn(&self, run: &Arc<Run>, state: &mut State, dir: &Path) -> io::Result<()> {
        let (program, arguments) =
            self.options.supervisor.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).arg("supervise").arg(dir);
        command.env_clear().current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.watcher.directory(run, dir);
        state.dir = Some(dir.to_owned());
        let child = command.spawn()?;
        let child = Identity::of(child.id(), &self.boot).ok_or(io::ErrorKind::NotFound)?;
        self.attend(run, state, &child);
        Ok(())
    }

    /// Waits for the end of a process of a run. `false` if it is over already.
    fn attend(&self, run: &Arc<Run>, state: &mut State, process: &Identity) -> bool {
        if state.watched.as_ref() == Some(process) {
            return true;
        }
        let Some(fd) = process.open(&self.boot) else {
            return false;
        };
        state.watched = Some(process.clone());
        if let Err(error) = self.watcher.process(run, process, fd) {
            tracing::error!(run = %run.id, %error, "cannot watch a process");
        }
        true
    }

    /// Looks at a run until what lives of it is being watched.
    fn follow(&self, run: &Arc<Run>, state: &mut State) -> Look {
        loop {
            let found = look(&self.options.state, run.id, &self.boot);
            let known = match &found {
                Look::Attended { dir, supervisor, started, .. } => {
                    self.learn(state, dir, Some(supervisor), started.as_ref());
                    self.attend(run, state, supervisor)
                }
                Look::Orphan { dir, supervisor, started } => {
                    self.learn(state, dir, Some(supervisor), Some(started));
                    self.attend(run, state, &started.process)
                }
                Look::Over { dir, started, .. } => {
                    self.learn(state, dir, None, started.as_ref());
                    true
                }
                Look::Free { .. } | Look::Gone { .. } | Look::Rebooted => true,
            };
            if known {
                return found;
            }
        }
    }

    /// Takes over what the records say.
    fn learn(
        &self,
        state: &mut State,
        dir: &Path,
        supervisor: Option<&Identity>,
        started: Option<&Started>,
    ) {
        if state.seated.is_none() || state.op.is_none() {
            let moved: Option<Seated> = record::read(dir, SEAT).unwrap_or(None);
            let spec: Option<Spec> = record::read(dir, SPEC).unwrap_or(None);
            if let Some(spec) = spec {
                state.op = state.op.or(Some(spec.op));
                let first = Seated { seat: spec.launch.seat, cores: spec.cores, nice: spec.nice };
                state.seated = Some(moved.unwrap_or(first));
            }
        }
        state.dir = Some(dir.to_owned());
        if let Some(supervisor) = supervisor {
            state.supervisor = Some(supervisor.clone());
        }
        if let Some(started) = started {
            state.process = Some(started.process.clone());
            state.enforcement = started.enforcement;
        }
    }

    /// Reports what is new about a run that was started.
    pub(super) fn advance(&self, run: &Arc<Run>, state: &mut State) {
        if matches!(state.phase, Phase::New | Phase::Over) {
            return;
        }
        match self.follow(run, state) {
            Look::Free { dir } => self.unclaimed(run, state, &dir),
            Look::Attended { running, .. } => {
                if running {
                    self.begun(run, state);
                }
            }
            Look::Orphan { .. } => self.begun(run, state),
            Look::Over { outcome: Outcome::Exited(exit), .. } => {
                self.begun(run, state);
                self.over(run, state, BackendEvent::Exited { run: run.id, exit });
            }
            Look::Over { outcome: Outcome::NotStarted { reason }, .. } => {
                let event = match state.op {
                    Some(op) => BackendEvent::NotStarted { op, run: run.id, reason },
                    None => BackendEvent::Lost { run: run.id, reason },
                };
                self.over(run, state, event);
            }
            Look::Gone { reason } => {
                // Nobody else ends what it left behind.
                for stat in state.survivors(&self.boot) {
                    let left =
                        Identity { pid: stat.pid, start: stat.start, boot: self.boot.clone() };
                    left.signal(&self.boot, Signal::KILL);
                }
                self.over(run, state, BackendEvent::Lost { run: run.id, reason });
            }
            Look::Rebooted => {
                let reason = "the machine was started again".to_owned();
                self.over(run, state, BackendEvent::Lost { run: run.id, reason });
            }
        }
    }

    /// The program has begun.
    pub(super) fn begun(&self, run: &Run, state: &mut State) {
        if state.phase != Phase::Starting {
            return;
        }
        state.phase = Phase::Running;
        self.watcher.leave_directory(run);
        if let (Some(op), Some(process)) = (state.op, &state.process) {
            let (pid, enforcement) = (process.pid, state.enforcement);
            self.emit(BackendEvent::Started { op, run: run.id, pid, enforcement });
        }
        run.changed.notify_all();
        self.idle.1.notify_all();
    }

    /// The end of a run.
    fn over(&self, run: &Run, state: &mut State, event: BackendEvent) {
        state.phase = Phase::Over;
        self.watcher.leave_directory(run);
        self.emit(event);
        run.changed.notify_all();
    }

    /// A run that should have a supervisor by now or soon, and has none.
    fn unclaimed(&self, run: &Arc<Run>, state: &mut State, dir: &Path) {
        if state.watched.as_ref().is_some_and(|child| child.lives(&self.boot)) {
            return;
        }
        state.failures += 1;
        let mut reason = "its supervisor ended before it began".to_owned();
        if state.failures < FAILURES {
            let ready = match state.dir.clone() {
                // The last attempt had a directory of its own.
                Some(before) if before != dir => {
                    self.watcher.leave_directory(run);
                    record::make_directory(dir)
                        .and_then(|()| record::read::<Spec>(&before, SPEC))
                        .and_then(|spec| record::write(dir, SPEC, &spec, false))
                }
                _ => Ok(()),
            };
            match ready.and_then(|()| self.spawn(run, state, dir)) {
                Ok(()) => return,
                Err(error) => reason = format!("cannot start its supervisor: {error}"),
            }
        }
        self.give_up(run, state, dir, reason);
    }

    /// Makes sure that nobody begins a run, and says so.
    pub(super) fn give_up(&self, run: &Arc<Run>, state: &mut State, dir: &Path, reason: String) {
        if let Ok(false) = record::claim(dir, &Claim::Void) {
            return self.advance(run, state);
        }
        tracing::warn!(run = %run.id, reason, "not begun");
        self.watcher.leave_directory(run);
        state.phase = Phase::New;
        state.failures = 0;
        if let Some(op) = state.op {
            self.emit(BackendEvent::Refused { op, run: run.id, reason });
        }
        run.changed.notify_all();
    }

    /// Ends a run that has not begun: whoever was to begin it finds it taken.
    pub(super) fn withdraw(&self, run: &Arc<Run>, state: &mut State) {
        if let Look::Free { dir } = look(&self.options.state, run.id, &self.boot)
            && let (Ok(true), Some(op)) = (record::claim(&dir, &Claim::Void), state.op)
        {
            if let Some(child) = &state.watched {
                child.signal(&self.boot, Signal::KILL);
            }
            let reason = "it was ended before it began".to_owned();
            self.over(run, state, BackendEvent::NotStarted { op, run: run.id, reason });
        } else {
            self.advance(run, state);
        }
    }

    /// Finds what became of a run, and watches it if it lives.
    pub(super) fn recover(&self, id: RunId) -> Found {
        let run = self.add(id);
        let mut state = run.state();
        let deadline = Instant::now() + Duration::from_secs(1);
        loop {
            let found = self.follow(&run, &mut state);
            state.phase = match &found {
                Look::Free { .. } => Phase::New,
                Look::Attended { running: false, .. } => Phase::Starting,
                Look::Attended { .. } | Look::Orphan { .. } => Phase::Running,
                Look::Over { .. } | Look::Gone { .. } | Look::Rebooted => Phase::Over,
            };
            return match found {
                Look::Free { dir } => {
                    // A supervisor may be on its way: it must not find the run free.
                    match record::claim(&dir, &Claim::Void) {
                        Ok(true) => {}
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(_) if Instant::now() > deadline => {}
                        Ok(false) | Err(_) => {
                            sleep(Duration::from_millis(1));
                            continue;
                        }
                    }
                    Found::NeverStarted
                }
                Look::Attended { running: false, dir, .. } => {
                    self.watcher.directory(&run, &dir);
                    // It may have begun before it was watched.
                    if dir.join(record::RUNNING).exists() {
                        self.watcher.leave_directory(&run);
                        continue;
                    }
                    Found::Starting
                }
                Look::Attended { started: Some(started), .. } | Look::Orphan { started, .. } => {
                    let paused = state.halt(&self.boot).0 == Halt::Still;
                    Found::Running { pid: started.process.pid, paused }
                }
                Look::Attended { started: None, .. } => Found::Starting,
                Look::Over { outcome: Outcome::Exited(exit), .. } => Found::Exited(exit),
                Look::Over { outcome: Outcome::NotStarted { reason }, .. } => {
                    Found::NotStarted { reason }
                }
                Look::Gone { reason } => Found::Lost { reason },
                Look::Rebooted => Found::Rebooted,
            };
        }
    }

    /// Deletes the records of a run that is over.
    pub(super) fn forget(&self, id: RunId) {
        if let Look::Attended { .. } | Look::Orphan { .. } =
            look(&self.options.state, id, &self.boot)
        {
            tracing::warn!(run = %id, "not forgotten: it is not over");
            return;
        }
        lock(&self.runs).remove(&id);
        for attempt in 0.. {
            match fs::remove_dir_all(record::directory(&self.options.state, id, attempt)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(error) => {
                    tracing::warn!(run = %id, %error, "cannot delete its records");
                    return;
                }
            }
        }
    }
}
