//! Jobs that may be given a place.

use super::{ListedJob, ManagedJob, Reconciled, Reconciler};
use crate::cluster::ClusterJob;
use crate::event::BackendEvent;
use crate::op::Owner;
use crate::slurm::commands::SlurmRequest;
use crate::slurm::dependency::{DependencyState as Dependency, judge};
use crate::slurm::jobs::{JobList, JobRecord, SlurmState};
use crate::slurm::syntax;
use std::collections::BTreeMap;

impl Reconciler {
    fn size_max(&self) -> u32 {
        let sizes = self.nodes.iter().map(|node| node.types.len());
        u32::try_from(sizes.max().unwrap_or(0)).expect("GPUs of a node are counted in u32")
    }

    /// GPUs that a job needs, those that it shuts others out of counted: a job on several nodes has them
    /// to itself, since Slurm takes the same GPUs of each.
    fn gang(&self, record: &JobRecord) -> Option<u32> {
        let note = record.note.as_ref()?;
        let each = if note.nodes > 1 { self.size_max() } else { note.gpus_per_node };
        note.nodes.checked_mul(each)
    }

    /// Jobs that may be given a place and are not known yet.
    pub(super) fn offer(
        &mut self,
        entries: &BTreeMap<String, ListedJob<'_>>,
        listing: &JobList,
        now_s: u64,
        turn: &mut Reconciled,
    ) {
        let mut going: BTreeMap<u64, u32> = BTreeMap::new();
        for entry in entries.values() {
            let record = entry.record;
            let is_over = matches!(record.state, SlurmState::Ended(_));
            // Those that nobody here knows count in Slurm too, once they are released.
            let is_held = record.state == SlurmState::Pending && record.is_held;
            let is_known = self.jobs.get(&entry.key).is_some_and(|ours| !ours.is_refused);
            if let Some(array) = record.array
                && (is_known || !is_held)
                && !is_over
            {
                *going.entry(array).or_default() += 1;
            }
        }
        let mut waiting: Vec<&ListedJob<'_>> = entries
            .values()
            .filter(|entry| {
                let record = entry.record;
                record.state == SlurmState::Pending
                    && record.is_held
                    && record.eligible_s <= now_s
                    && !self.jobs.contains_key(&entry.key)
            })
            .collect();
        waiting.sort_by_key(|entry| (entry.record.array.unwrap_or(entry.record.id), entry.task));
        for entry in waiting {
            let record = entry.record;
            match judge(&record.dependency, entry.task, &listing.records, now_s) {
                Dependency::Met => {}
                Dependency::Waits => continue,
                Dependency::Never => {
                    turn.requests.extend(hand_back(entry));
                    continue;
                }
            }
            if let (Some(array), Some(most)) = (record.array, record.at_a_time) {
                let going = going.entry(array).or_default();
                if *going >= most {
                    continue;
                }
                *going += 1;
            }
            let Some(gpus) = self.gang(record) else { continue };
            let ours =
                ManagedJob { seen: Some((record.id, record.submit_s)), ..ManagedJob::default() };
            self.jobs.insert(entry.key.clone(), ours);
            turn.events.push(BackendEvent::Imported(Box::new(ClusterJob {
                external: entry.key.clone(),
                owner: Owner { uid: record.uid, gid: record.gid },
                user: record.user.clone(),
                name: record.name.clone(),
                gpus,
                limit_s: record.limit_min.map(|minutes| minutes as f64 * 60.0),
                hints: record.comment.clone(),
                // What srun asks for again within its own job is a GPU, not a share of one.
                exclusive: !record.is_batch,
                submit_unix_us: record.submit_s.saturating_mul(1_000_000),
            })));
        }
    }
}

/// Makes a job Slurm's own again: what it asked for, then the release. It cannot begin before its dependency
/// is met, which it never is.
fn hand_back(entry: &ListedJob<'_>) -> Vec<SlurmRequest> {
    let Some(note) = &entry.record.note else { return Vec::new() };
    let address = &entry.address;
    let asks = format!("update jobid={address} {}", note.asked);
    // RequestedGpus for once: versions before 23.02.7 would merge a second time with the first.
    let asks = syntax::gres(&entry.record.asked).is_empty().then_some(asks);
    asks.into_iter().chain([format!("release {address}")]).map(SlurmRequest::Control).collect()
}
