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
        let class = self.learning.number(&active.job.class);
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
        let description = self.description(active, class);
        let JobDescription { estimate, profile, sub_batches, tolerance, promise, stoppable } =
            description;
        let (share, priority) = self.share_of(&active.job);
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
            promise,
            priority,
            stoppable,
            restore: Span((self.setup.restore_s * 1e6) as u64),
            share,
        }
    }

    /// What is known about a job at present.
    pub(super) fn description(&self, active: &Active, class: Option<ClassId>) -> JobDescription {
        let (job, request) = (&active.job, &active.job.request);
        let gang = request.gang();
        let estimate = self.estimate(active).median;
        let declared = request.gpu_memory_bytes.map(memory);
        let measured = self.learning.memory(&job.class);
        let is_known = !self.setup.learn || self.is_known(active);
        let tolerance = match request.tolerance() {
            _ if job.oom_retried || !is_known => Tolerance::Alone,
            _ if self.setup.learn && self.why_service_alone(active).is_some() => Tolerance::Alone,
            _ if gang > 1 && !self.setup.gangs_share => Tolerance::Alone,
            tolerance => tolerance,
        };
        let share = request.share_ppm();
        // A job that has not spoken yet is expected to do as others of its class.
        let may_split = job.caps.accum || !job.caps.reports;
        let sub_batches =
            if may_split { self.learning.ways(&job.class) } else { SubBatches::default() };
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
            promise: self.promise(active),
            // A service is never taken from its devices.
            stoppable: !request.is_service() && self.may_be_stopped(active),
        }
    }

    fn may_be_stopped(&self, active: &Active) -> bool {
        self.setup.pause_frees_device || (active.can_stop() && self.setup.moves)
    }

    /// Why a job shares its devices with nobody; `None` if it may.
    pub fn why_alone(&self, id: u64) -> Option<&'static str> {
        let active = self.jobs.get(id)?;
        if active.job.request.tolerance() == Tolerance::Alone {
            Some("as requested")
        } else if active.job.oom_retried {
            Some("after it ran out of memory")
        } else if let Some(why) = self.why_service_alone(active).filter(|_| self.setup.learn) {
            Some(why)
        } else if self.setup.learn && !self.is_known(active) {
            Some("until its class is known")
        } else if active.job.request.gang() > 1 && !self.setup.gangs_share {
            Some("as jobs on several GPUs do here")
        } else {
            None
        }
    }

    /// Whether enough is known about a job's class to share its devices.
    pub(super) fn is_known(&self, active: &Active) -> bool {
        if !self.setup.measures_memory {
            return active.job.request.gpu_memory_bytes.is_some();
        }
        let Some(class) = self.learning.get(&active.job.class) else { return false };
        // A job that reports steps must also have shown its solo speed, and any other how much it uses its
        // devices. On cores that tells of every job what it leaves to others.
        let shows_use = class.duty.is_some();
        let is_measured = match active.job.caps.reports {
            _ if active.job.request.is_service() => shows_use,
            true => !class.solo.is_empty() && (shows_use || !self.setup.are_cores()),
            false if self.setup.are_cores() => shows_use,
            false => !class.solo.is_empty() || shows_use,
        };
        !class.memory.is_empty() && is_measured
    }

    /// Tells the engine what has become known about a job.
    pub(super) fn describe(&mut self, id: u64) {
        let Some(active) = self.jobs.get(id) else { return };
        if let Some(job) = active.entry {
            let class = self.learning.find(&active.job.class);
            let description = self.description(active, class);
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
