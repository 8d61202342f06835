//! The cheapest way to free GPUs of one node.

use crate::tandem::value::JobValues;
use tandem_core::{Draft, GpuId, JobId, NodeId};

/// Jobs to preempt for GPUs.
#[derive(Clone, Debug, Default)]
pub(super) struct Clearing {
    /// The value that preempting them loses.
    pub(super) loss: i64,
    pub(super) victims: Vec<JobId>,
    /// GPUs that are free then: of the node, or of the partition where whole nodes are cleared.
    pub(super) free: u32,
}

/// Tenants of some GPUs of a node, which free these GPUs only together.
#[derive(Debug, Default)]
struct TenantGroup {
    jobs: Vec<JobId>,
    gpus: u32,
    loss: i64,
}

/// The value that preempting `jobs` loses.
pub(super) fn loss_of(values: &JobValues, jobs: &[JobId]) -> i64 {
    jobs.iter().map(|&job| values.of(job).loss).fold(0, i64::saturating_add)
}

/// GPUs of a node that are neither lost nor drained.
pub(super) fn up_gpus<'a>(draft: &'a Draft<'_>, node: NodeId) -> impl Iterator<Item = GpuId> + 'a {
    let gpus = draft.cluster().nodes()[node.index()].gpus.clone().map(GpuId);
    gpus.filter(|&gpu| !draft.occupancy().is_closed(gpu))
}

/// The least loss for which `wanted` GPUs of a node are free; `None` if it has fewer.
pub(super) fn clear(
    draft: &Draft<'_>,
    values: &JobValues,
    node: NodeId,
    wanted: u32,
) -> Option<Clearing> {
    let (mut free, groups) = tenant_groups(draft, values, node);
    if free >= wanted {
        return Some(Clearing { free, ..Clearing::default() });
    }
    let cleared = cheapest(&groups, (wanted - free) as usize)?;
    free += cleared.iter().map(|group| group.gpus).sum::<u32>();
    let mut victims: Vec<JobId> =
        cleared.iter().flat_map(|group| group.jobs.iter().copied()).collect();
    victims.sort_unstable();
    victims.dedup();
    Some(Clearing { loss: loss_of(values, &victims), victims, free })
}

/// The number of free GPUs of a node, and its tenants by the GPUs that they free together.
fn tenant_groups(draft: &Draft<'_>, values: &JobValues, node: NodeId) -> (u32, Vec<TenantGroup>) {
    let mut free = 0;
    // Few, so that a search is faster than a map.
    let mut groups: Vec<TenantGroup> = Vec::new();
    for gpu in up_gpus(draft, node) {
        let tenants = draft.tenants(gpu);
        let Some(first) = tenants.first() else {
            free += 1;
            continue;
        };
        let index = groups.iter().position(|group| group.jobs[0] == *first);
        let index = index.unwrap_or_else(|| {
            groups.push(TenantGroup::default());
            groups.len() - 1
        });
        let group = &mut groups[index];
        group.gpus += 1;
        for &job in tenants {
            if !group.jobs.contains(&job) {
                group.jobs.push(job);
                group.loss = group.loss.saturating_add(values.of(job).loss);
            }
        }
    }
    (free, groups)
}

/// The groups with the least loss that have at least `wanted` GPUs together: a knapsack over the number
/// of GPUs, exact for up to 64 groups.
fn cheapest(groups: &[TenantGroup], wanted: usize) -> Option<Vec<&TenantGroup>> {
    // One bit for each.
    let groups = &groups[..groups.len().min(64)];
    // By number of GPUs up to `wanted`: the least loss that frees as many, and its groups.
    let mut best: Vec<Option<(i64, u64)>> = vec![None; wanted + 1];
    best[0] = Some((0, 0));
    for (index, group) in groups.iter().enumerate() {
        for had in (0..wanted).rev() {
            let Some((loss, chosen)) = best[had] else { continue };
            let has = (had + group.gpus as usize).min(wanted);
            let then = (loss.saturating_add(group.loss), chosen | 1 << index);
            if best[has].is_none_or(|other| then < other) {
                best[has] = Some(then);
            }
        }
    }
    let (_, chosen) = best[wanted]?;
    let is_chosen = |(index, _): &(usize, &TenantGroup)| chosen >> index & 1 == 1;
    Some(groups.iter().enumerate().filter(is_chosen).map(|(_, group)| group).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_groups_are_found_exactly() {
        let group = |job, gpus, loss| TenantGroup { jobs: vec![JobId(job)], gpus, loss };
        // Per GPU the gang of eight is the cheapest, but one GPU of it costs all of it.
        let groups = [group(1, 8, 80), group(2, 1, 20), group(3, 1, 30), group(4, 2, 45)];
        let chosen = |wanted| {
            let chosen = cheapest(&groups, wanted)?;
            Some(chosen.iter().map(|group| group.jobs[0].0).collect::<Vec<_>>())
        };
        assert_eq!(chosen(1), Some(vec![2]));
        assert_eq!(chosen(2), Some(vec![4]));
        assert_eq!(chosen(3), Some(vec![2, 4]));
        assert_eq!(chosen(5), Some(vec![1]));
        assert_eq!(chosen(12), Some(vec![1, 2, 3, 4]));
        assert_eq!(chosen(13), None);
    }
}
