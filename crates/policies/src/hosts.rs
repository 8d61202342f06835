//! Who could take a guest: the jobs that have GPUs to themselves.

use std::collections::BTreeMap;
use std::ops::Range;
use tandem_core::{Draft, GpuId, GpuTypeId, Job, JobId, Memory, Ppm, SubBatch, Work};

/// The GPUs of a partition with exactly one tenant, by who that is.
#[derive(Default)]
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    gpus: Vec<(JobId, GpuId)>,
    known: bool,
}

/// A resident on GPUs that are alike: of one kind, with the same memory left.
pub(crate) struct Host {
    pub(crate) job: JobId,
    /// Twice its remaining solo time in the way in which it runs.
    pub(crate) twice_left: Work,
    kind: GpuTypeId,
    room: Memory,
    gpus: Range<usize>,
}

impl Hosts {
    /// The occupancy has changed.
    pub(crate) fn forget(&mut self) {
        self.known = false;
    }

    /// Looks at the occupancy, unless it is known.
    pub(crate) fn read(&mut self, draft: &Draft<'_>) {
        if std::mem::replace(&mut self.known, true) {
            return;
        }
        let occupancy = draft.occupancy();
        let tenant = |gpu: GpuId| occupancy.tenants(gpu)[0];
        self.gpus.clear();
        // Whoever has grown beyond the memory of a GPU leaves nothing, not even to who needs nothing.
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
            let twice_left = twice_left(draft, job);
            // Stable, so that GPUs that are alike stay in their order.
            gpus.sort_by_key(|&(_, gpu)| alike(gpu));
            for gpus in gpus.chunk_by(|one, other| alike(one.1) == alike(other.1)) {
                let (kind, room) = alike(gpus[0].1);
                let gpus = first..first + gpus.len();
                first = gpus.end;
                self.hosts.push(Host { job, twice_left, kind, room, gpus });
            }
        }
    }

    /// In order of submission.
    pub(crate) fn all(&self) -> &[Host] {
        &self.hosts
    }

    /// The GPUs of a host, in (node, GPU) order.
    pub(crate) fn gpus(&self, host: &Host) -> impl Iterator<Item = GpuId> + '_ {
        self.gpus[host.gpus.clone()].iter().map(|(_, gpu)| *gpu)
    }
}

fn twice_left(draft: &Draft<'_>, job: JobId) -> Work {
    let placement = draft.placement(job).expect("a tenant is placed");
    let known = draft.job(job);
    let left = known.twice_remaining(draft.now());
    known.spec.sub_batch_option(placement.sub_batches).map_or(left, |way| left.times(way.slowdown))
}

impl Host {
    /// How many GPUs it has to itself.
    pub(crate) fn gpu_count(&self) -> usize {
        self.gpus.len()
    }

    /// The ways to run `guest` beside it: whole batches if they fit, and with `accumulate` also those
    /// in parts that do.
    pub(crate) fn ways<'g>(
        &self,
        draft: &Draft<'_>,
        guest: &'g Job,
        accumulate: bool,
    ) -> impl Iterator<Item = SubBatch> + use<'g> {
        let (room, context) = (self.room, draft.rules().context);
        let ways = guest.spec.sub_batch_options().take(if accumulate { usize::MAX } else { 1 });
        ways.filter(move |way| way.memory + context <= room)
    }

    /// The believed rates of `guest` and of the resident side by side; `None` if they are known not to
    /// fit, or not to want it.
    pub(crate) fn rates(&self, draft: &Draft<'_>, guest: &Job) -> Option<(Ppm, Ppm)> {
        draft.pair_rates(guest, draft.job(self.job), self.kind)
    }
}

/// Jobs that have GPUs to themselves under the plan so far, all of them or some, and none that is closed, by
/// gang size.
pub(crate) fn lone_by_size(draft: &Draft<'_>) -> BTreeMap<u32, Vec<JobId>> {
    let mut hosts: BTreeMap<u32, Vec<JobId>> = BTreeMap::new();
    let mut last = None;
    for gpu in draft.occupancy().single_tenant_gpus(draft.partition()) {
        let tenant = draft.tenants(gpu)[0];
        // GPUs of a job come in runs; a gang in several pieces is met again and filtered below.
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
