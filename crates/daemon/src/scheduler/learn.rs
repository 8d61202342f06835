//! What jobs reported and what was measured.

use super::{Fact, Phase, RateSource, Report, Scheduler, ToJob, active, memory};
use crate::job::Caps;
use tandem_core::{Event, GpuId, Ppm, Progress, Time};

impl Scheduler {
    pub(super) fn learn(&mut self, fact: &Fact) {
        match fact {
            Fact::Hello { job, accum, stop } => {
                let Some(active) = self.jobs.get_mut(*job) else { return };
                active.job.caps = Caps { reports: true, accum: *accum, stop: *stop };
                let parts = active.job.accum.unwrap_or(active.job.sub_batches);
                // A daemon that has ended may have tried others.
                let was_tried = active.job.trial.take().is_some();
                if *accum && (parts != 1 || was_tried) {
                    self.processes.send(*job, ToJob::Accum(parts));
                }
                // A job that was asked to stop while it was not connected is asked again.
                if active.phase == Phase::Asked {
                    self.processes.send(*job, ToJob::Stop);
                }
                self.jobs.mark_changed(*job);
                self.describe(*job);
            }
            Fact::Bye { job, done } => {
                if let Some(active) = self.jobs.get_mut(*job) {
                    active.bye = Some(*done);
                }
            }
            Fact::Peak { job, bytes } => {
                if let Some(active) = self.jobs.get_mut(*job) {
                    active.job.memory_peak_bytes = active.job.memory_peak_bytes.max(*bytes);
                }
            }
            Fact::Progress { job, report, from } => self.report(*job, *report, *from),
            Fact::Total { job, total_us } => self.set_total(*job, *total_us),
            Fact::Memory { class, accum, bytes } => {
                self.learning.set_memory(class, *accum, *bytes);
                self.class_learned(class);
            }
            Fact::Solo { class, accum, steps_per_s } => {
                self.learning.set_solo(class, *accum, *steps_per_s);
                self.class_learned(class);
            }
            Fact::Duty { class, duty } => {
                self.learning.set_duty(class, *duty);
                self.class_learned(class);
            }
            Fact::Observed { class, beside, rate, noise } => {
                self.observe(class, beside, *rate, *noise);
            }
            Fact::Pair { class, beside, rate, noise } => {
                self.observe(class, &[vec![beside.clone()]], *rate, *noise);
            }
            Fact::Requests { job, window } => self.requests(*job, *window),
            Fact::Foreign { device, bytes, processes } => {
                let device = *device;
                let gpu = GpuId(device);
                self.planner.tell(Event::GpuReserved { gpu, memory: memory(*bytes) });
                let bytes = (*processes > 0).then_some(*bytes);
                let event = self.devices.set_foreign(device, bytes);
                event.into_iter().for_each(|event| self.planner.tell(event));
            }
        }
    }

    /// Something was learned about what a class does alone.
    fn class_learned(&mut self, class: &str) {
        self.learning.compare_siblings(class);
        if let Some(number) = self.learning.number(class) {
            let traits = self.learning.traits(class);
            self.planner.tell(Event::ClassDescribed { class: number, traits });
        }
        self.describe_class(class);
        self.request_sharing();
    }

    /// The engine learns from what was observed.
    fn observe(&mut self, class: &str, beside: &[Vec<String>], rate: f64, noise: f64) {
        let observation = self.learning.observe(class, beside, rate, noise);
        self.planner.tell(Event::Observed(observation));
        // A pair may turn out to gain nothing although nothing else happens.
        self.planner.replan();
        self.request_sharing();
    }

    pub(super) fn report(&mut self, id: u64, report: Report, source: RateSource) {
        let Some(active) = self.jobs.get_mut(id) else { return };
        let rate = if active.phase == Phase::Running { Ppm(report.rate_ppm) } else { Ppm::ZERO };
        let progress = Progress { done: report.done(), at: Time(report.at_us), rate };
        active.pace = active::Pace { progress, source };
        self.tell_progress(id);
    }

    pub(super) fn tell_progress(&mut self, id: u64) {
        let Some(active) = self.jobs.get(id) else { return };
        if let Some(job) = active.entry {
            self.planner.tell(Event::Progress { job, progress: active.pace.progress });
        }
    }
}
