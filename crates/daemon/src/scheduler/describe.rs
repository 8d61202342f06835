//! The description of a job for the engine, updated when more is known.

use super::{Active, Scheduler, memory};
use tandem_core::{
    ClassId, Event, JobDescription, JobId, JobSpec, PartitionId, Ppm, Profile, Span, SubBatches,
    Time, Tolerance, UserId, Utilisation,
};

impl Scheduler {
    /// The specification of a job for the engine.
    pub(super) fn spec(&mut self, id: u64, entry: JobId) -> JobSpec {
        let active = self.jobs.expect(id);
        let class = Some(self.learning.number(&active.job.class));
        let submit = active.job.entered_us.map_or(self.now.time(), Time);
        let user = self.jobs.user(self.jobs.expect(id).job.uid);
        self.spec_of(self.jobs.expect(id), user, class, entry, submit)
    }

    pub(super) fn spec_of(
        &self,
        active: &Active,
        user: UserId,
        class: Option<ClassId>,
        id: JobId,
        submit: Time,
    ) -> JobSpec {
        let description = self.description(active, user, class);
        let JobDescription { estimate, profile, sub_batches, tolerance, stoppable } = description;
        JobSpec {
            id,
            user,
            partition: PartitionId(0),
            submit,
            gpus: active.job.request.gang(),
            estimate,
            profile,
            sub_batches,
            tolerance,
            priority: active.job.request.priority,
            stoppable,
            restore: Span((self.setup.restore_s * 1e6) as u64),
        }
    }

    /// What is known about a job at present.
    pub(super) fn description(
        &self,
        active: &Active,
        user: UserId,
        class: Option<ClassId>,
    ) -> JobDescription {
        let (job, request) = (&active.job, &active.job.request);
        let gang = request.gang();
        let seconds = |seconds: f64| Span((seconds * 1e6).round() as u64);
        let limit = request.time_limit_s.map(seconds);
        let estimate = request.estimate_s.map(seconds).unwrap_or_else(|| {
            let learned = self.learning.estimate(&job.class, user, gang);
            match (learned, limit) {
                (Some(learned), Some(limit)) => learned.min(limit),
                (one, other) => one.or(other).unwrap_or_else(|| self.learning.unknown(user, gang)),
            }
        });
        let declared = request.gpu_memory_bytes.map(memory);
        let measured = self.learning.memory(&job.class);
        let is_known = !self.setup.learn || self.is_known(active);
        let tolerance = match request.tolerance() {
            _ if job.oom_retried || !is_known => Tolerance::Alone,
            _ if gang > 1 && !self.setup.gangs_share => Tolerance::Alone,
            tolerance => tolerance,
        };
        let share = request.share_ppm();
        let sub_batches =
            if job.caps.accum { self.learning.ways(&job.class) } else { SubBatches::default() };
        JobDescription {
            estimate: estimate.max(Span(1)),
            profile: Profile {
                class,
                memory: declared.or(measured).unwrap_or_default(),
                // A job that asks for a part of a GPU uses no more.
                gpu_util: (share < Ppm::ONE.0).then_some(Utilisation(share / 10)),
                bandwidth_util: None,
            },
            sub_batches,
            tolerance,
            stoppable: self.setup.pause_frees_device || (job.caps.stop && self.setup.moves),
        }
    }

    /// Whether enough is known about a job's class to share its devices.
    pub(super) fn is_known(&self, active: &Active) -> bool {
        if !self.setup.measures_memory {
            return active.job.request.gpu_memory_bytes.is_some();
        }
        let Some(class) = self.learning.get(&active.job.class) else { return false };
        // A job that reports steps must also have shown its solo speed.
        !class.memory.is_empty() && (!active.job.caps.reports || !class.solo.is_empty())
    }

    /// Tells the engine what has become known about a job.
    pub(super) fn describe(&mut self, id: u64) {
        let Some(active) = self.jobs.get(id) else { return };
        if let Some(job) = active.entry {
            let user = self.jobs.find_user(active.job.uid).unwrap_or(UserId(0));
            let class = self.learning.find(&active.job.class);
            let description = self.description(active, user, class);
            self.planner.tell(Event::Described { job, description });
        }
    }

    pub(super) fn describe_class(&mut self, class: &str) {
        let of_class = |active: &&Active| active.job.class == class && active.entry.is_some();
        let jobs: Vec<u64> =
            self.jobs.iter().filter(of_class).map(|active| active.job.id).collect();
        for id in jobs {
            self.describe(id);
        }
    }
}
