//! Recovers runs after a restart of the daemon, and deletes their records.

use super::probe::{Probe, probe};
use super::process::StopState;
use super::record::{self, Claim, RunEnd, RunSpec, SPEC};
use super::run::{RunPhase, lock};
use super::shared::LocalShared;
use crate::crash;
use crate::event::RunHandle;
use crate::op::RunId;
use crate::recovery::RecoveredRun;
use rustix::process::Signal;
use std::fs;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

impl LocalShared {
    /// Finds out what happened to a run, and watches it if it is alive.
    pub(super) fn recover(&self, id: RunId) -> RecoveredRun {
        let run = self.add(id);
        let mut state = run.state();
        let deadline = Instant::now() + Duration::from_secs(1);
        loop {
            let found = self.follow(&run, &mut state);
            state.phase = match &found {
                Probe::Unclaimed { .. } => RunPhase::New,
                Probe::Supervised { running: false, .. } => RunPhase::Starting,
                Probe::Supervised { .. } | Probe::Orphaned { .. } => RunPhase::Running,
                Probe::Ended { .. } | Probe::Lost { .. } | Probe::Rebooted => RunPhase::Ended,
                Probe::Unknown { .. } if Instant::now() < deadline => {
                    sleep(Duration::from_millis(20));
                    continue;
                }
                // The watcher probes it again; an event will follow.
                Probe::Unknown { .. } => RunPhase::Starting,
            };
            return match found {
                Probe::Unclaimed { dir } => {
                    // A supervisor may be starting: it must not claim the run.
                    match record::claim(&dir, &Claim::Void) {
                        Ok(true) => {}
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        Err(_) if Instant::now() > deadline => {}
                        Ok(false) | Err(_) => {
                            sleep(Duration::from_millis(1));
                            continue;
                        }
                    }
                    RecoveredRun::NeverStarted
                }
                Probe::Supervised { running: false, dir, .. } => {
                    self.watcher.watch_directory(&run, &dir);
                    // It may have started before the directory was watched.
                    if dir.join(record::RUNNING).exists() {
                        self.watcher.unwatch_directory(&run);
                        continue;
                    }
                    RecoveredRun::Starting
                }
                Probe::Supervised { started: Some(started), .. }
                | Probe::Orphaned { started, .. } => {
                    let paused = state.stop_state(&self.boot).0 == StopState::Stopped;
                    // The last daemon may have died while it stopped the run. Nothing else would continue the
                    // threads that are stopped already.
                    if !paused && let Err(error) = state.signal(&self.boot, Signal::CONT) {
                        tracing::warn!(run = %id, %error, "cannot be continued");
                    }
                    let handle = RunHandle::Process(started.process.pid);
                    let enforcement = started.enforcement;
                    RecoveredRun::Running { handle, paused, enforcement }
                }
                Probe::Supervised { started: None, .. } | Probe::Unknown { .. } => {
                    RecoveredRun::Starting
                }
                Probe::Ended { end: RunEnd::Exited(exit), .. } => RecoveredRun::Exited(exit),
                Probe::Ended { end: RunEnd::NotStarted { reason, transient }, .. } => {
                    RecoveredRun::NotStarted { reason, transient }
                }
                Probe::Lost { reason } => RecoveredRun::Lost { reason },
                Probe::Rebooted => RecoveredRun::Rebooted,
            };
        }
    }

    /// Runs that have records.
    pub(super) fn records(&self) -> Vec<RunId> {
        let Ok(entries) = fs::read_dir(self.options.state.join("runs")) else {
            return Vec::new();
        };
        let run =
            |entry: io::Result<fs::DirEntry>| record::run_of(entry.ok()?.file_name().to_str()?);
        let mut runs: Vec<RunId> = entries.filter_map(run).collect();
        runs.sort_unstable();
        runs.dedup();
        runs
    }

    /// Removes the control group of a run if its supervisor was killed before it could. To be called before
    /// the records are deleted, which name the group.
    fn remove_cgroup(&self, id: RunId) {
        let dir = record::directory(&self.options.state, id, 0);
        if let Ok(Some(RunSpec { cgroup: Some(cgroup), .. })) = record::read(&dir, SPEC) {
            crash::point();
            cgroup.remove();
        }
    }

    /// Deletes the records of a run that has ended.
    pub(super) fn forget(&self, id: RunId) {
        if let Probe::Supervised { .. } | Probe::Orphaned { .. } =
            probe(&self.options.state, id, &self.boot)
        {
            tracing::warn!(run = %id, "not forgotten: it has not ended");
            return;
        }
        lock(&self.runs).remove(&id);
        self.remove_cgroup(id);
        let dir = |attempt| record::directory(&self.options.state, id, attempt);
        let attempts = (0..).take_while(|&attempt| dir(attempt).exists()).count();
        // The last one first, so that an interruption leaves no gap.
        for attempt in (0..u32::try_from(attempts).unwrap_or(u32::MAX)).rev() {
            crash::point();
            if let Err(error) = fs::remove_dir_all(dir(attempt)) {
                tracing::warn!(run = %id, %error, "cannot delete its records");
                return;
            }
        }
    }
}
