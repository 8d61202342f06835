//! Reservations: their GPUs are closed to other jobs, and theirs are placed there, first come, first served.

use super::Gate;
use crate::cluster::GpuId;
use crate::draft::Draft;
use crate::job::{Job, JobId};
use crate::plan::Placement;
use crate::shares::Reservation;
use std::collections::BTreeSet;

impl Gate {
    /// Jobs of reservations that are over or cancelled wait like others.
    pub(super) fn free_reserved(&mut self, draft: &Draft<'_>) {
        let freed = |job: &&JobId| !self.is_reserved(draft.job(**job));
        let freed: Vec<JobId> = self.reserved.iter().filter(freed).copied().collect();
        for job in freed {
            self.reserved.remove(&job);
            let job = draft.job(job);
            self.users.entry(job.spec.user).or_default().add(job);
        }
    }

    /// Closes the GPUs of reservations and opens those that are over; stops other jobs when one starts.
    pub(super) fn close_reserved(&mut self, draft: &mut Draft<'_>) {
        let now = draft.now();
        let mut held = BTreeSet::new();
        let shares = self.shares.clone();
        for reservation in shares.reservations.iter().filter(|one| now < one.end) {
            let next = [reservation.closes, reservation.start, reservation.end];
            if let Some(next) = next.into_iter().filter(|&next| next > now).min() {
                draft.wake_at(next);
            }
            if now < reservation.closes.min(reservation.start) {
                continue;
            }
            held.extend(gpus(draft, reservation));
            if now >= reservation.start {
                stop_others(draft, reservation);
            }
        }
        for &gpu in self.held.difference(&held) {
            draft.hold(gpu, false);
        }
        for &gpu in held.difference(&self.held) {
            draft.hold(gpu, true);
        }
        self.held = held;
    }

    /// Places the jobs of reservations that have started.
    pub(super) fn place_reserved(&mut self, draft: &mut Draft<'_>) {
        let now = draft.now();
        let shares = self.shares.clone();
        for reservation in &shares.reservations {
            if now < reservation.start || now >= reservation.end {
                continue;
            }
            let is_its =
                |job: &&JobId| draft.job(**job).spec.share.reservation == Some(reservation.id);
            let jobs: Vec<JobId> = self.reserved.iter().filter(is_its).copied().collect();
            for job in jobs {
                let (count, memory) = draft.demand(job);
                let fits = |gpu: &GpuId| {
                    draft.tenants(*gpu).is_empty()
                        && draft.occupancy().is_held(*gpu)
                        && draft.occupancy().has_memory(*gpu, memory)
                };
                let free: Vec<GpuId> =
                    gpus(draft, reservation).filter(fits).take(count as usize).collect();
                if free.len() == count as usize {
                    draft.place(job, Placement::on(free));
                }
            }
        }
    }
}

/// The GPUs of a reservation in the partition of a plan.
fn gpus(draft: &Draft<'_>, reservation: &Reservation) -> impl Iterator<Item = GpuId> + use<> {
    let range = draft.cluster().partition(draft.partition()).gpus.clone();
    let gpus = reservation.gpus.clone().into_iter();
    gpus.filter(move |gpu| range.contains(&gpu.0))
}

/// Stops the jobs on the GPUs of a reservation that are not its own, where that is possible.
fn stop_others(draft: &mut Draft<'_>, reservation: &Reservation) {
    let is_other =
        |job: &Job| job.spec.stoppable && job.spec.share.reservation != Some(reservation.id);
    for gpu in gpus(draft, reservation) {
        let tenants = draft.tenants(gpu).to_vec();
        for job in tenants {
            if is_other(draft.job(job)) {
                draft.drop(job);
            }
        }
    }
}
