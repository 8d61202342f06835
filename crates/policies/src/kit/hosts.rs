//! Jobs with GPUs to themselves, which could share them with a second tenant.

use std::collections::BTreeMap;
use std::ops::Range;
use tandem_core::{Draft, GpuId, GpuTypeId, Job, JobId, Memory, Ppm, SubBatch, Work};

/// The GPUs of a partition with exactly one tenant, by tenant. Kept between plans for its allocations.
#[derive(Default)]
pub struct Hosts {
    hosts: Vec<Host>,
    gpus: Vec<(JobId, GpuId)>,
    known: bool,
}

/// A tenant on GPUs that are alike: of one type, with the same free memory.
pub struct Host {
    /// The tenant.
    pub job: JobId,
    /// Twice its remaining solo work, with the overhead of the sub-batches that it runs in.
    pub twice_remaining: Work,
    kind: GpuTypeId,
    free: Memory,
    gpus: Range<usize>,
}

impl Hosts {
    /// The plan has changed: the next [`Hosts::read`] starts over.
    pub fn forget(&mut self) {
        self.known = false;
    }

    /// Finds the hosts under the plan so far, unless they are known.
    pub fn read(&mut self, draft: &Draft<'_>) {
        if std::mem::replace(&mut self.known, true) {
            return;
        }
        let occupancy = draft.occupancy();
        let tenant = |gpu: GpuId| occupancy.tenants(gpu)[0];
        self.gpus.clear();
        // A tenant that has grown beyond the memory of its GPU takes no other, even one without memory.
        let lone = occupancy.single_tenant_gpus(draft.partition());
        let lone = lone.filter(|&gpu| occupancy.has_memory(gpu, Memory::default()));
        self.gpus.extend(lone.map(|gpu| (tenant(gpu), gpu)));
        self.gpus.sort_unstable();
        self.hosts.clear();
        let alike = |gpu: GpuId| {
            let described = draft.cluster().gpu(gpu);
            (described.kind, described.memory.saturating_sub(occupancy.memory_used(gpu)))
        };
        let mut first = 0;
        for gpus in self.gpus.chunk_by_mut(|one, other| one.0 == other.0) {
            let job = gpus[0].0;
            let twice_remaining = twice_remaining(draft, job);
            // Stable, so that GPUs that are alike stay in their order.
            gpus.sort_by_key(|&(_, gpu)| alike(gpu));
            for gpus in gpus.chunk_by(|one, other| alike(one.1) == alike(other.1)) {
                let (kind, free) = alike(gpus[0].1);
                let gpus = first..first + gpus.len();
                first = gpus.end;
                self.hosts.push(Host { job, twice_remaining, kind, free, gpus });
            }
        }
    }

    /// All hosts, in order of submission.
    pub fn all(&self) -> &[Host] {
        &self.hosts
    }

    /// The GPUs of a host, in (node, GPU) order.
    pub fn gpus(&self, host: &Host) -> impl Iterator<Item = GpuId> + '_ {
        self.gpus[host.gpus.clone()].iter().map(|(_, gpu)| *gpu)
    }
}

fn twice_remaining(draft: &Draft<'_>, job: JobId) -> Work {
    let placement = draft.placement(job).expect("a tenant has GPUs");
    let known = draft.job(job);
    let solo = known.twice_remaining(draft.now());
    known
        .spec
        .sub_batch_option(placement.sub_batches)
        .map_or(solo, |option| solo.times(option.slowdown))
}

impl Host {
    /// The number of its GPUs.
    pub fn gpu_count(&self) -> usize {
        self.gpus.len()
    }

    /// The options to run `job` in the free memory: whole batches if they fit, and with `accumulate` also
    /// the sub-batches that do.
    pub fn sub_batch_options<'g>(
        &self,
        draft: &Draft<'_>,
        job: &'g Job,
        accumulate: bool,
    ) -> impl Iterator<Item = SubBatch> + use<'g> {
        let (free, context) = (self.free, draft.rules().context);
        let options = job.spec.sub_batch_options().take(if accumulate { usize::MAX } else { 1 });
        options.filter(move |option| option.memory + context <= free)
    }

    /// The believed rates of `job` and of the host when co-located; `None` if the pair does not fit or
    /// one of the two does not accept its slow-down.
    pub fn rates(&self, draft: &Draft<'_>, job: &Job) -> Option<(Ppm, Ppm)> {
        draft.pair_rates(job, draft.job(self.job), self.kind)
    }
}

/// Jobs that are the only tenant of at least one of their GPUs under the plan so far, by gang size.
/// Jobs on lost or drained GPUs are left out.
pub fn hosts_by_size(draft: &Draft<'_>) -> BTreeMap<u32, Vec<JobId>> {
    let mut hosts: BTreeMap<u32, Vec<JobId>> = BTreeMap::new();
    let mut last = None;
    for gpu in draft.occupancy().single_tenant_gpus(draft.partition()) {
        let tenant = draft.tenants(gpu)[0];
        // GPUs of a job come in runs; a gang in several runs is added again and deduplicated below.
        if last.replace(tenant) != Some(tenant) {
            hosts.entry(draft.job(tenant).spec.gpus).or_default().push(tenant);
        }
    }
    let occupancy = draft.occupancy();
    let is_open = |host: &JobId| {
        let placement = draft.placement(*host);
        placement.is_some_and(|on| on.gpus.iter().all(|&gpu| !occupancy.is_closed(gpu)))
    };
    for jobs in hosts.values_mut() {
        jobs.sort_unstable();
        jobs.dedup();
        jobs.retain(is_open);
    }
    hosts
}
