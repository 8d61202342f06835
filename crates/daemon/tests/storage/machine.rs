//! A machine whose processes and supervisors are played: they outlive the daemon, keep records of their ends
//! and count every start, so that a checker can tell what really ran.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tandem_backends::{
    Backend, BackendEvent, Capabilities, Device, Enforcement, Exit, ExitStatus, KnownJob, Op, OpId,
    RecoveredRun, RunHandle, RunId,
};

/// What happens to a run.
#[derive(Clone, Debug, PartialEq)]
enum Life {
    /// It starts then.
    Starts { at: u64, op: OpId },
    /// It runs and ends then, by itself.
    Runs { ends: u64 },
    /// It is paused, with so much left.
    Paused { left: u64 },
    /// It ended, and its supervisor recorded how.
    Ended(ExitStatus),
    /// It ended, and nobody knows how.
    Lost,
    /// It ran when the power failed.
    Rebooted,
}

impl Life {
    fn is_alive(&self) -> bool {
        !matches!(self, Life::Ended(_) | Life::Lost | Life::Rebooted)
    }
}

/// One start of a job, for the checker.
#[derive(Clone, Debug)]
pub(crate) struct StartOfRun {
    pub(crate) run: RunId,
    /// Others of the same job were alive.
    pub(crate) beside: Vec<RunId>,
    /// An earlier run of the job had completed.
    pub(crate) after_success: bool,
}

/// What outlives the daemon.
pub(crate) struct Machine {
    pub(crate) now: u64,
    runs: BTreeMap<RunId, Life>,
    /// Runs that ended by themselves with exit code 0, with a record of it.
    pub(crate) succeeded: Vec<RunId>,
    pub(crate) starts: Vec<StartOfRun>,
    /// For the daemon.
    events: Vec<BackendEvent>,
    /// How long a job runs and how it ends, by its id.
    pub(crate) fate: fn(u64) -> (u64, i32),
}

/// A machine that daemons share one after the other.
pub(crate) type SharedMachine = Arc<Mutex<Machine>>;

impl Machine {
    pub(crate) fn new(fate: fn(u64) -> (u64, i32)) -> SharedMachine {
        let machine = Machine {
            now: 0,
            runs: BTreeMap::new(),
            succeeded: Vec::new(),
            starts: Vec::new(),
            events: Vec::new(),
            fate,
        };
        Arc::new(Mutex::new(machine))
    }

    /// When something happens next.
    pub(crate) fn next(&self) -> Option<u64> {
        let time = |life: &Life| match life {
            Life::Starts { at, .. } => Some(*at),
            Life::Runs { ends } => Some(*ends),
            _ => None,
        };
        let due = if self.events.is_empty() { None } else { Some(self.now) };
        self.runs.values().filter_map(time).min().into_iter().chain(due).min()
    }

    /// Lets everything happen up to now.
    pub(crate) fn advance(&mut self, now: u64) {
        self.now = self.now.max(now);
        let due: Vec<RunId> = self.runs.keys().copied().collect();
        for run in due {
            loop {
                match self.runs[&run].clone() {
                    Life::Starts { at, op } if at <= self.now => {
                        let (length, _) = (self.fate)(run.job);
                        self.runs.insert(run, Life::Runs { ends: at + length });
                        let handle = RunHandle::Process(u32::try_from(run.job).unwrap());
                        let enforcement = Enforcement::None;
                        self.events.push(BackendEvent::Started { op, run, handle, enforcement });
                    }
                    Life::Runs { ends } if ends <= self.now => {
                        let (_, code) = (self.fate)(run.job);
                        self.end(run, ExitStatus::Code(code));
                    }
                    _ => break,
                }
            }
        }
    }

    fn end(&mut self, run: RunId, status: ExitStatus) {
        if status == ExitStatus::Code(0) {
            self.succeeded.push(run);
        }
        self.runs.insert(run, Life::Ended(status));
        let exit = exit(status);
        self.events.push(BackendEvent::Exited { run, exit });
    }

    /// A supervisor dies, and its job with it; gives the job.
    pub(crate) fn kill_supervisor(&mut self, nth: usize) -> Option<u64> {
        let alive: Vec<RunId> =
            self.runs.iter().filter(|(_, life)| life.is_alive()).map(|(run, _)| *run).collect();
        let run = *alive.get(nth % alive.len().max(1))?;
        self.runs.insert(run, Life::Lost);
        let reason = "its supervisor was killed".to_owned();
        self.events.push(BackendEvent::Lost { run, reason });
        Some(run.job)
    }

    /// The power failed: nothing runs any more. Records of ends were synced.
    pub(crate) fn fail_power(&mut self) {
        self.events.clear();
        for life in self.runs.values_mut().filter(|life| life.is_alive()) {
            *life = Life::Rebooted;
        }
    }

    /// What the daemon is told.
    pub(crate) fn take_events(&mut self) -> Vec<BackendEvent> {
        std::mem::take(&mut self.events)
    }

    fn start(&mut self, op: OpId, run: RunId) {
        if self.runs.contains_key(&run) {
            return;
        }
        let of_job = |other: &RunId| other.job == run.job && *other != run;
        let alive =
            |(other, life): (&RunId, &Life)| (of_job(other) && life.is_alive()).then_some(*other);
        let beside = self.runs.iter().filter_map(alive).collect();
        let after_success = self.succeeded.iter().any(of_job);
        self.starts.push(StartOfRun { run, beside, after_success });
        self.runs.insert(run, Life::Starts { at: self.now + 1000, op });
    }
}

fn exit(status: ExitStatus) -> Exit {
    Exit { status, cpu_s: 0.0, rss_max_bytes: 0, oom: false, at_unix_us: 0, cause: None }
}

/// The machine as a daemon drives it.
pub(crate) struct Played {
    pub(crate) machine: SharedMachine,
    pub(crate) devices: Vec<Device>,
}

impl Backend for Played {
    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { measures_memory: false, ..Capabilities::LOCAL }
    }

    fn recover(&mut self, jobs: &[KnownJob]) -> Vec<(RunId, RecoveredRun)> {
        let mut machine = self.machine.lock().unwrap();
        // What was not heard is found.
        machine.events.clear();
        let mut found = Vec::new();
        for job in jobs.iter().filter(|job| job.has_run) {
            let handle = RunHandle::Process(u32::try_from(job.run.job).unwrap());
            let enforcement = Enforcement::None;
            let what = match machine.runs.get(&job.run) {
                None => RecoveredRun::NeverStarted,
                Some(Life::Starts { .. }) => RecoveredRun::Starting,
                Some(Life::Runs { .. }) => {
                    RecoveredRun::Running { handle, paused: false, enforcement }
                }
                Some(Life::Paused { .. }) => {
                    RecoveredRun::Running { handle, paused: true, enforcement }
                }
                Some(Life::Ended(status)) => RecoveredRun::Exited(exit(*status)),
                Some(Life::Rebooted) => RecoveredRun::Rebooted,
                Some(Life::Lost) => RecoveredRun::Lost { reason: "lost".to_owned() },
            };
            found.push((job.run, what));
        }
        found
    }

    fn records(&self) -> Vec<RunId> {
        self.machine.lock().unwrap().runs.keys().copied().collect()
    }

    fn apply(&mut self, id: OpId, op: Op) {
        let mut machine = self.machine.lock().unwrap();
        let (run, now) = (op.run(), machine.now);
        let life = machine.runs.get(&run).cloned();
        match (op, life) {
            (Op::Start(_), _) => machine.start(id, run),
            (Op::Pause { .. }, Some(Life::Runs { ends })) => {
                machine.runs.insert(run, Life::Paused { left: ends.saturating_sub(now) });
                machine.events.push(BackendEvent::Paused { op: id, run, took_us: 5 });
            }
            (Op::Resume { .. }, Some(Life::Paused { left })) => {
                machine.runs.insert(run, Life::Runs { ends: now + left });
                machine.events.push(BackendEvent::Resumed { op: id, run });
            }
            (Op::End { .. }, Some(life)) if life.is_alive() => {
                machine.end(run, ExitStatus::Signal(15));
            }
            _ => {}
        }
    }

    fn forget(&mut self, run: RunId) {
        let mut machine = self.machine.lock().unwrap();
        if machine.runs.get(&run).is_some_and(|life| !life.is_alive()) {
            machine.runs.remove(&run);
        }
    }
}
