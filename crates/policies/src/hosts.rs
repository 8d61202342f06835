//! Who could take a guest: the jobs that have GPUs to themselves.

use std::ops::Range;
use tandem_core::{Draft, GpuId, GpuTypeId, Job, JobId, Memory, Ppm};

/// The GPUs of a partition with exactly one tenant, by who that is.
#[derive(Default)]
pub(crate) struct Hosts {
    hosts: Vec<Host>,
    seats: Vec<(HostKey, GpuId)>,
    known: bool,
}

/// Resident, kind of GPU, memory left on it.
type HostKey = (JobId, GpuTypeId, Memory);

/// A resident on GPUs that are alike.
pub(crate) struct Host {
    pub(crate) job: JobId,
    kind: GpuTypeId,
    room: Memory,
    seats: Range<usize>,
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
        self.seats.clear();
        self.seats.extend(occupancy.lone_gpus(draft.partition()).map(|gpu| {
            let described = draft.cluster().gpu(gpu);
            let room = Memory(described.memory.0 - occupancy.memory_used(gpu).0);
            ((occupancy.tenants(gpu)[0], described.kind, room), gpu)
        }));
        self.seats.sort_unstable();
        self.hosts.clear();
        let mut first = 0;
        for alike in self.seats.chunk_by(|(one, _), (other, _)| one == other) {
            let ((job, kind, room), _) = alike[0];
            let seats = first..first + alike.len();
            first = seats.end;
            self.hosts.push(Host { job, kind, room, seats });
        }
    }

    /// In order of submission.
    pub(crate) fn all(&self) -> &[Host] {
        &self.hosts
    }

    /// The GPUs of a host, in (node, GPU) order.
    pub(crate) fn gpus(&self, host: &Host) -> impl Iterator<Item = GpuId> + '_ {
        self.seats[host.seats.clone()].iter().map(|(_, gpu)| *gpu)
    }
}

impl Host {
    /// How many GPUs it has to itself.
    pub(crate) fn gpu_count(&self) -> usize {
        self.seats.len()
    }

    /// The believed rates of `guest` and of the resident side by side; `None` if they do not fit.
    pub(crate) fn rates(&self, draft: &Draft<'_>, guest: &Job) -> Option<(Ppm, Ppm)> {
        if guest.spec.profile.memory + draft.rules().context > self.room {
            return None;
        }
        let (guest, resident) = (&guest.spec.profile, &draft.job(self.job).spec.profile);
        let of_guest = draft.interference().rate(guest, resident, self.kind)?;
        let of_resident = draft.interference().rate(resident, guest, self.kind)?;
        Some((of_guest.ppm(), of_resident.ppm()))
    }
}
