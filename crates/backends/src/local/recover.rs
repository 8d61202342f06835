//! What became of runs while nobody watched.

use super::inner::Inner;
use super::look::{Look, look};
use super::process::Halt;
use super::record::{self, Claim, Outcome, SPEC, Spec};
use super::run::{Phase, lock};
use crate::crash;
use crate::event::Found;
use crate::op::RunId;
use rustix::process::Signal;
use std::fs;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

impl Inner {
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
                Look::Unknown { .. } if Instant::now() < deadline => {
                    sleep(Duration::from_millis(20));
                    continue;
                }
                // It is looked at again; an event says what it was.
                Look::Unknown { .. } => Phase::Starting,
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
                    // A daemon that died may have told it to stand still, and not all of it does yet:
                    // nobody else would let it go on.
                    if !paused && let Err(error) = state.signal(&self.boot, Signal::CONT) {
                        tracing::warn!(run = %id, %error, "not told to go on");
                    }
                    let (pid, enforcement) = (started.process.pid, started.enforcement);
                    Found::Running { pid, paused, enforcement }
                }
                Look::Attended { started: None, .. } | Look::Unknown { .. } => Found::Starting,
                Look::Over { outcome: Outcome::Exited(exit), .. } => Found::Exited(exit),
                Look::Over { outcome: Outcome::NotStarted { reason, passing }, .. } => {
                    Found::NotStarted { reason, passing }
                }
                Look::Gone { reason } => Found::Lost { reason },
                Look::Rebooted => Found::Rebooted,
            };
        }
    }

    /// Runs of which there are records.
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

    /// Removes the control group of a run, which its supervisor did unless it was killed. Before its
    /// records are deleted: without them nobody knows of it.
    fn remove_group(&self, id: RunId) {
        let dir = record::directory(&self.options.state, id, 0);
        if let Ok(Some(Spec { group: Some(group), .. })) = record::read(&dir, SPEC) {
            crash::point();
            group.remove();
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
        self.remove_group(id);
        let dir = |attempt| record::directory(&self.options.state, id, attempt);
        let attempts = (0..).take_while(|&attempt| dir(attempt).exists()).count();
        // The last one first: whoever is interrupted here leaves no gap.
        for attempt in (0..u32::try_from(attempts).unwrap_or(u32::MAX)).rev() {
            crash::point();
            if let Err(error) = fs::remove_dir_all(dir(attempt)) {
                tracing::warn!(run = %id, %error, "cannot delete its records");
                return;
            }
        }
    }
}
