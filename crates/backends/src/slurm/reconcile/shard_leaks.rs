//! Slurm's books, where they do not agree with its lists.

use super::{ListedJob, Reconciled, Reconciler};
use crate::cluster::short_id;
use crate::slurm::commands::SlurmRequest;
use crate::slurm::jobs::{JobList, SlurmState};
use std::collections::BTreeMap;

/// A job that Slurm does not start although there is room makes us look into Slurm's books after this.
const IDLE_S: u64 = 10;
/// Slurm is asked to count its resources again at most this often.
const COUNT_EVERY_S: u64 = 60;

impl Reconciler {
    /// Has Slurm count its resources again if a job does not begin although by the list there is room:
    /// versions before 23.02.7 lose shards when the GPUs of a job are chosen twice.
    pub(super) fn mend(
        &mut self,
        entries: &BTreeMap<String, ListedJob<'_>>,
        listing: &JobList,
        now_s: u64,
        turn: &mut Reconciled,
    ) {
        let mut idle = Vec::new();
        for (key, ours) in &mut self.jobs {
            let Some(wanted) = &mut ours.wanted else { continue };
            let waits = entries.get(key).is_some_and(|entry| {
                entry.record.state == SlurmState::Pending
                    && !entry.record.is_held
                    && !ours.is_dropped
                    && matches!(
                        entry.record.reason.as_str(),
                        "Resources" | "ReqNodeNotAvail" | "Priority"
                    )
            });
            if !waits {
                wanted.idle_since_s = None;
                continue;
            }
            let since = *wanted.idle_since_s.get_or_insert(now_s);
            if now_s >= since + IDLE_S && !wanted.is_counted {
                idle.push(key.clone());
            }
        }
        if idle.is_empty() || now_s < self.counted_s + COUNT_EVERY_S {
            return;
        }
        let mut used: BTreeMap<u32, u32> = BTreeMap::new();
        for record in &listing.records {
            if matches!(
                record.state,
                SlurmState::Running | SlurmState::Suspended | SlurmState::Other
            ) {
                for device in self.devices(record) {
                    *used.entry(device).or_default() += 1;
                }
            }
        }
        for key in idle {
            let ours = self.jobs.get_mut(&key).expect("it was just there");
            let Some(wanted) = &mut ours.wanted else { continue };
            let is_open = wanted.devices.iter().all(|&device| {
                let place = self.places.get(device as usize);
                place.is_some_and(|place| self.closed[place.node].is_none())
                    && !used.contains_key(&device)
            });
            if is_open {
                wanted.is_counted = true;
                self.counted_s = now_s;
                let job = short_id(&key);
                tracing::warn!(
                    "Slurm does not start job {job} although its GPUs are idle: it has lost count of \
                     shares, or CPUs and memory are short; asking it to count again (scontrol reconfigure)"
                );
                turn.requests.push(SlurmRequest::Control("reconfigure".to_owned()));
                return;
            }
        }
    }
}
