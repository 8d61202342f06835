//! AntMan (OSDI'20): jobs with a guarantee get whole GPUs in order of submission; a job that finds none runs
//! opportunistically on GPUs whose tenant leaves enough unused.
//!
//! From the paper: no preemption of jobs with a guarantee; an opportunistic job goes to the GPUs
//! with the lowest load that have the memory for it (its local and global scheduler); it becomes an
//! ordinary tenant when it is alone.
//!
//! Ours: the paper's jobs carry a quota, traces do not, so every job has a guarantee if whole GPUs are free and
//! is opportunistic otherwise. AntMan's kernels of opportunistic jobs run only in idle cycles, which protects
//! the host; here both run at the pair's rates, so a job shares only if the two utilisations add up to at most
//! the whole GPU, where a host loses little. Memory is not scaled: the sum has to fit.

use crate::Entry;
use crate::kit::{Host, Hosts, KeyedPolicy, Next, Queue, keyed};
use tandem_core::{Draft, Job, Placement, Reason, Time, Utilisation};

pub(crate) const ENTRY: Entry = Entry {
    name: "antman",
    summary: "order of submission, opportunistic sharing where utilisations add up to at most 100 %",
    params: &[],
    tuning: &[],
    tenants_max: 2,
    build: |_| keyed(AntMan { hosts: Hosts::default() }),
};

struct AntMan {
    /// Kept between plans for its allocations.
    hosts: Hosts,
}

impl KeyedPolicy for AntMan {
    type Key = ();

    fn key(&self, _: &Job, _: Time) {}

    fn plan(&mut self, queue: &mut Queue<()>, draft: &mut Draft<'_>) {
        let hosts = &mut self.hosts;
        hosts.forget();
        queue.walk(|job, size| {
            if draft.place_exclusive(job) {
                hosts.forget();
                return Next::Job;
            }
            if size > draft.single_tenant_count() {
                return Next::after_no_room(draft, job);
            }
            hosts.read(draft);
            let pending = draft.job(job);
            let load = |host: &Host| draft.job(host.job).spec.profile.gpu_util;
            let accepting = hosts.all().iter().filter(|host| accepts(draft, host, pending));
            let idlest = accepting.min_by_key(|host| (load(host), host.job));
            if let Some(placement) = idlest.map(|host| Placement::on(hosts.gpus(host))) {
                draft.place(job, placement);
                hosts.forget();
            }
            Next::Job
        });
        draft.explain_others(Reason::NoRoom { free: draft.free_count() });
    }
}

/// Whether `host` shares none of its GPUs yet and leaves enough of all of them to `job`.
fn accepts(draft: &Draft<'_>, host: &Host, job: &Job) -> bool {
    let tenant = &draft.job(host.job).spec;
    let loads = tenant.profile.gpu_util.zip(job.spec.profile.gpu_util);
    tenant.gpus == job.spec.gpus
        && host.gpu_count() == job.spec.gpus as usize
        && loads.is_some_and(|(one, other)| one.0 + other.0 <= Utilisation::FULL.0)
        && host.sub_batch_options(draft, job, false).next().is_some()
        && host.rates(draft, job).is_some()
}

#[cfg(test)]
mod tests {
    use crate::testing::simulate;

    #[test]
    fn an_opportunistic_job_joins_the_least_loaded_host_that_leaves_enough() {
        let rows = "a,0,1,1000,60,\nb,0,1,1000,30,\nc,1,1,100,40,\n";
        let columns = "job_id,submit_s,gpus,duration_s,gpu_util,memory_mib";
        let run = crate::testing::run(&crate::testing::workload("1x2", columns, rows), "antman");
        // c joins b: 30 % and 40 %.
        let shared: Vec<u64> = run.outcomes.iter().map(|outcome| outcome.shared.0).collect();
        assert_eq!(shared, [0, 100_000_000, 100_000_000]);
    }

    #[test]
    fn a_job_waits_in_order_of_submission_if_no_host_leaves_enough() {
        for (why, rows) in [
            ("load", "a,0,1,100,70,\nb,1,1,50,40,\nc,2,1,10,40,\n"),
            ("memory", "a,0,1,100,10,20000\nb,1,1,50,10,20000\nc,2,1,10,10,20000\n"),
            ("unknown load", "a,0,1,100,,\nb,1,1,50,,\nc,2,1,10,,\n"),
        ] {
            let times = simulate("antman", "1x1", rows);
            assert_eq!(times[1].0, 100.0, "{why}: {times:?}");
        }
    }
}
