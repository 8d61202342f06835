//! What happens to a job when its process has ended, and to the jobs that waited for it.

use super::Scheduler;
use super::active::Phase;
use super::eligibility::Settlement;
use crate::job::{ArrayTask, Caps, Ending, JobState};
use tandem_backends::{Exit, ExitCause, ExitStatus, RunId};
use tandem_core::{Event, Span};

/// Factor on the observed peak for a job that ran out of memory.
const OOM_GROWTH: f64 = 1.5;
/// When a run is retried that could not start for a transient reason.
const POSTPONED: Span = Span(30_000_000);
/// The exit code of a job that ran out of memory.
const OOM_EXIT_CODE: i32 = 253;

/// Whether the exit of a job that was asked to stop means that it saved a checkpoint: exit code 0, its own word,
/// or its stop signal, after which many programs exit as if they had not caught it.
fn saved(status: ExitStatus, bye: Option<bool>, signal: Option<i32>) -> bool {
    match status {
        ExitStatus::Code(0) => true,
        ExitStatus::Code(code) => bye == Some(false) || signal.is_some_and(|own| code == 128 + own),
        ExitStatus::Signal(number) => bye == Some(false) || signal == Some(number),
    }
}

impl Scheduler {
    pub(super) fn exited(&mut self, run: RunId, exit: &Exit) {
        let Some(active) = self.jobs.of_run(run) else { return };
        if active.phase == Phase::Absent {
            return;
        }
        let id = run.job;
        let was_asked = active.job.asked;
        active.leave_by = None;
        active.job.cpu_s += exit.cpu_s;
        active.job.exit_code = Some(exit.status.code());
        active.job.signal = match exit.status {
            ExitStatus::Signal(signal) => Some(signal),
            ExitStatus::Code(_) => None,
        };
        let (cause, bye) = (active.job.ending.clone(), active.bye.take());
        let peak = active.job.memory_peak_bytes.max(exit.rss_max_bytes);
        let (oom_retried, retried) = (active.job.oom_retried, active.job.retried);
        let retries = active.job.request.retries;
        let signal = active.job.request.stop_signal();
        let is_service = active.job.request.is_service();
        self.gone(id);
        self.processes.forget(run);
        if let (None, Some(cause)) = (&cause, exit.cause) {
            self.end_by_cluster(id, cause);
            return;
        }
        match (cause, exit.status) {
            // It was done before it could be stopped.
            (Some(_), ExitStatus::Code(0)) if bye == Some(true) => {
                self.end_job(id, JobState::Completed, None);
            }
            (Some(ending), status) => {
                self.end_as_asked(id, &ending, was_asked && saved(status, bye, signal));
            }
            (None, _) if exit.oom && oom_retried && is_service => {
                self.restart_service(run, "out of memory");
            }
            (None, _) if exit.oom && oom_retried => {
                self.jobs.get_mut(id).expect("its run has just ended").job.exit_code =
                    Some(OOM_EXIT_CODE);
                self.end_job(id, JobState::Oom, Some("out of memory, also alone".to_owned()));
            }
            (None, _) if exit.oom => self.retry_alone(id, peak),
            (None, status) if was_asked && bye != Some(true) && saved(status, bye, signal) => {
                self.continue_later(id);
            }
            (None, ExitStatus::Code(0)) => self.end_job(id, JobState::Completed, None),
            // It did not exit in time and was killed.
            (None, ExitStatus::Signal(9 | 15)) if was_asked => self.continue_later(id),
            (None, status) => {
                let reason = match status {
                    ExitStatus::Code(code) => format!("exit code {code}"),
                    ExitStatus::Signal(signal) => format!("signal {signal}"),
                };
                if is_service {
                    self.restart_service(run, &reason);
                } else if retried < retries {
                    self.jobs.get_mut(id).expect("its run has just ended").job.retried += 1;
                    self.re_enter(id, format!("{reason}; tried again"), false);
                } else {
                    self.end_job(id, JobState::Failed, Some(reason));
                }
            }
        }
    }

    /// The cluster ended a run, which is final.
    fn end_by_cluster(&mut self, id: u64, cause: ExitCause) {
        let (state, reason) = match cause {
            ExitCause::Cancelled => (JobState::Cancelled, "cancelled in the cluster"),
            ExitCause::TimedOut => (JobState::Timeout, "its time was up"),
            ExitCause::OutOfMemory => {
                let active = self.jobs.get_mut(id).expect("its run has just ended");
                active.job.exit_code = Some(OOM_EXIT_CODE);
                (JobState::Oom, "out of memory")
            }
        };
        self.end_job(id, state, Some(reason.to_owned()));
    }

    pub(super) fn not_started(&mut self, run: RunId, reason: &str, transient: bool) {
        let Some(active) = self.jobs.of_run(run) else { return };
        if transient && active.job.ending.is_none() {
            self.postpone(run, reason);
        } else {
            self.ended_without_exit(run, JobState::Failed, format!("exec: {reason}"));
        }
    }

    /// A run could not start for a transient reason. The job leaves the queue for a while, so that other jobs
    /// get the devices.
    fn postpone(&mut self, run: RunId, reason: &str) {
        let id = run.job;
        self.gone(id);
        self.processes.forget(run);
        let active = self.jobs.get_mut(id).expect("its run did not start");
        if active.job.ran_us == 0 {
            active.job.start_us = None;
        }
        if active.cluster_waits.is_some() {
            self.leave_queue(id);
        } else {
            self.wait_outside(id, POSTPONED, reason);
        }
    }

    pub(super) fn lost(&mut self, run: RunId, reason: &str) {
        self.ended_without_exit(run, JobState::Unknown, reason.to_owned());
    }

    /// A run ended without an exit code: a job that was to be ended ends as asked, any other with this state.
    fn ended_without_exit(&mut self, run: RunId, state: JobState, reason: String) {
        let Some(active) = self.jobs.of_run(run) else { return };
        let cause = active.job.ending.clone();
        let is_service = active.job.request.is_service();
        self.gone(run.job);
        self.processes.forget(run);
        match cause {
            Some(ending) => self.end_as_asked(run.job, &ending, false),
            None if is_service => self.restart_service(run, &reason),
            None => self.end_job(run.job, state, Some(reason)),
        }
    }

    /// The process of a job that was to be ended is gone.
    fn end_as_asked(&mut self, id: u64, ending: &Ending, has_saved: bool) {
        match (ending.end(), ending) {
            (Some((state, reason)), _) => self.end_job(id, state, Some(reason)),
            (None, Ending::Requeue { by }) if has_saved => {
                self.re_enter(id, format!("requeued by {by}; continues from its checkpoint"), true);
            }
            (None, ending) => {
                let by = if let Ending::Requeue { by } = ending { by } else { "nobody" };
                self.re_enter(id, format!("requeued by {by}; begins again"), false);
            }
        }
    }

    /// The cluster requeued a job: its progress is lost, it starts again on its devices.
    pub(super) fn requeued(&mut self, run: RunId) {
        let Some(active) = self.jobs.of_run(run) else { return };
        if active.phase == Phase::Absent {
            return;
        }
        active.pace = super::active::Pace::default();
        active.job.done_us = 0;
        active.job.caps = Caps::default();
        active.bye = None;
        // A job that is being ended does not start again.
        if active.phase == Phase::Ending {
            self.jobs.mark_changed(run.job);
            return;
        }
        self.set_phase(run.job, Phase::Starting, None);
        self.jobs.set_reason(run.job, Some("requeued by the cluster".to_owned()));
        self.relocate_if_closed(run.job);
    }

    /// A pending job of the cluster is no longer Tandem's to place.
    pub(super) fn withdrawn(&mut self, external: &str, reason: &str) {
        if let Some(id) = self.jobs.of_external(external)
            && self.jobs.expect(id).phase == Phase::Absent
        {
            match self.jobs.expect(id).job.ending.clone() {
                Some(ending) => self.end_as_asked(id, &ending, false),
                None => self.end_job(id, JobState::Cancelled, Some(reason.to_owned())),
            }
        }
    }

    /// An operation failed: the process is as it was before.
    pub(super) fn refused(&mut self, run: RunId, reason: &str, transient: bool) {
        let Some(active) = self.jobs.of_run(run) else { return };
        let reason = format!("refused: {reason}");
        let id = run.job;
        match active.phase {
            Phase::Pausing => {
                active.job.user_paused = false;
                self.set_phase(id, Phase::Running, None);
                self.jobs.set_reason(id, Some(reason));
            }
            Phase::Resuming => {
                self.set_phase(id, Phase::Stopped, None);
                self.jobs.set_reason(id, Some(reason));
            }
            Phase::Starting => self.not_started(run, &reason, transient),
            _ => {}
        }
    }

    /// The process is gone from its devices.
    fn gone(&mut self, id: u64) {
        self.set_phase(id, Phase::Absent, None);
        if let Some(active) = self.jobs.get_mut(id) {
            active.handle = None;
            active.pace.halt(self.now.time());
            active.job.caps = Caps::default();
        }
    }

    /// It saved a checkpoint and continues when it gets devices again; the engine may have placed it by now.
    fn continue_later(&mut self, id: u64) {
        self.jobs.set_reason(id, None);
        self.jobs.mark_changed(id);
        self.processes.mark(id);
    }

    /// Queues a job again, with its progress if it has saved it.
    fn re_enter(&mut self, id: u64, reason: String, keeps_progress: bool) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        active.job.placed = false;
        active.job.ending = None;
        active.job.entered_us = None;
        if !keeps_progress {
            active.job.done_us = 0;
            active.job.total_us = None;
            active.pace = super::active::Pace::default();
            self.learning.forget_running(id);
        }
        if let Some(entry) = self.jobs.take_entry(id) {
            self.planner.tell(Event::Finished { job: entry });
        }
        self.try_enter(id);
        self.jobs.set_reason(id, Some(reason));
    }

    fn retry_alone(&mut self, id: u64, peak: u64) {
        let active = self.jobs.get_mut(id).expect("its run has just ended");
        active.job.oom_retried = true;
        let class = active.job.class.clone();
        let capacity = self.setup.devices.iter().map(|device| device.memory_bytes).max();
        // With the margin that is added to what was seen it still has to fit the largest device.
        let most = capacity.unwrap_or(u64::MAX) / 4 * 3;
        let raised = ((peak as f64 * OOM_GROWTH) as u64).min(most);
        if self.setup.learn && raised > 0 {
            let parts = active.job.sub_batches;
            self.learning.set_memory(&class, parts, raised);
        }
        self.re_enter(id, "out of memory; tried again alone".to_owned(), false);
    }

    /// Ends a job.
    pub(super) fn end_job(&mut self, id: u64, state: JobState, reason: Option<String>) {
        let Some(mut active) = self.jobs.remove(id) else { return };
        let job = &mut active.job;
        job.state = state;
        job.reason = reason;
        job.end_us = Some(self.now.unix_us);
        job.placed = false;
        job.ending = None;
        job.going = None;
        job.done_us = active.pace.done_us(self.now.time());
        if let Some(entry) = active.entry {
            self.planner.tell(match state {
                JobState::Cancelled => Event::Cancelled { job: entry },
                _ => Event::Finished { job: entry },
            });
        }
        if state == JobState::Completed && job.done_us > 0 {
            let (class, length) = (job.class.clone(), active.length);
            let is_news = self.learning.finished(&class, id, Span(job.done_us), length);
            self.describe_if(&class, is_news);
        } else if let Some(class) = self.learning.forget_running(id) {
            self.describe_if(&class, true);
        }
        self.processes.unmark(id);
        let (task, has_started) = (job.task, job.start_us.is_some());
        self.jobs.push_ended(active.job);
        self.unfolding.job_ended(id, state);
        for dependent in self.jobs.dependents(id) {
            self.settlements.push_back(Settlement::Job { dependent, ended: id, state });
        }
        if let Some(task) = task {
            self.meet_array_dependencies(task.first, state);
            if !has_started {
                self.settle_starts_on(task.first);
            }
            self.jobs.forget_dependents(task.first);
        }
        self.jobs.forget_dependents(id);
        if let Some(ArrayTask { first, at_a_time: Some(_), .. }) = task {
            self.jobs.end_array_task(first, id);
            self.enter_next_tasks(first);
        }
    }

    /// Lets tasks of an array become eligible in the place of others.
    pub(super) fn enter_next_tasks(&mut self, first: u64) {
        while let Some(id) = self.jobs.next_task(first) {
            self.try_enter(id);
        }
    }
}
