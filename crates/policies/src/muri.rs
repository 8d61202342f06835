//! Muri (SIGCOMM'22): jobs of equal gang size are grouped by up to four on the same GPUs, so that one uses
//! the GPU while another loads data or exchanges gradients.
//!
//! From the paper: at every scheduling interval jobs are ranked (`muri-s` by remaining time ×
//! GPUs, `muri-l` by attained GPU time) and enough of them are admitted to fill the cluster with groups of
//! four; groups are merged by maximum-weight matching in several rounds (Blossom) whose weight is the interleaving efficiency γ, as long as the groups need more GPUs
//! than there are; a group that does less work than its jobs would one after the other is dissolved (the
//! published code's `autopack`).
//!
//! Ours: a policy sees rates and not stages, so γ is the sum of the rates of a group over the number of
//! resources, which equals the paper's where a job's stages do not overlap. A group stays on the GPUs of one
//! of its members where it can. Between reviews pending jobs only take free GPUs. Jobs that cannot be
//! stopped keep their GPUs for themselves. A job that is restoring is not moved.

use crate::Entry;
use crate::kit::{
    Group, KeyedPolicy, Queue, Reviews, group_rates, interval, keyed, movable_jobs, partner,
    place_groups, place_in_order, place_ranked, rank_all,
};
use crate::spec::{PolicyParam, Value};
use std::collections::BTreeMap;
use tandem_core::{Draft, Job, JobId, Ratio, Reason, Time};
use tandem_matching::{Graph, PairCount, maximum_weight_matching};

/// Resources whose stages interleave, and so the most jobs of a group.
const GROUP_MAX: usize = 4;
const RESOURCES: i64 = 4;
/// Rounds of matching: two suffice for groups of four, the published code allows as many as jobs.
const ROUNDS_MAX: usize = 4;
/// Of one gang size, the most groups of one matching.
const GROUPS_MAX: usize = 512;

const INTERVAL: PolicyParam = interval("interval_s", 360);
const GROUP: PolicyParam = PolicyParam {
    name: "group",
    default: Value::Whole(GROUP_MAX as u64),
    help: "most jobs of a group, up to 4",
};

pub(crate) const MURI_S: Entry = Entry {
    name: "muri-s",
    summary: "groups of up to four by interleaving efficiency, shortest remaining time x GPUs first",
    params: &[INTERVAL, GROUP],
    tuning: &[],
    tenants_max: GROUP_MAX,
    build: |settings| {
        let service =
            |job: &Job, now| job.remaining(now).0.saturating_mul(u128::from(job.spec.gpus));
        keyed(Muri {
            key: service,
            reviews: Reviews::every(settings.whole(INTERVAL.name)),
            group_max: group_max(settings.whole(GROUP.name)),
            matchings: Matchings::default(),
        })
    },
};

pub(crate) const MURI_L: Entry = Entry {
    name: "muri-l",
    summary: "groups of up to four by interleaving efficiency, least attained GPU time first",
    params: &[INTERVAL, GROUP],
    tuning: &[],
    tenants_max: GROUP_MAX,
    build: |settings| {
        keyed(Muri {
            key: |job, now| u128::from(job.attained(now).0),
            reviews: Reviews::every(settings.whole(INTERVAL.name)),
            group_max: group_max(settings.whole(GROUP.name)),
            matchings: Matchings::default(),
        })
    },
};

fn group_max(setting: u64) -> usize {
    usize::try_from(setting).unwrap_or(GROUP_MAX).clamp(1, GROUP_MAX)
}

struct Muri {
    key: fn(&Job, Time) -> u128,
    reviews: Reviews,
    group_max: usize,
    matchings: Matchings,
}

/// The last matching of every gang size and round. Most reviews find the same jobs in the same order as the
/// one before, and a matching follows from its edges.
#[derive(Default)]
struct Matchings(BTreeMap<(u32, usize), LastMatching>);

#[derive(Default)]
struct LastMatching {
    nodes: usize,
    edges: Vec<(u32, u32, i64)>,
    mates: Vec<Option<u32>>,
}

impl Matchings {
    /// The mates of the nodes in a maximum-weight matching.
    fn solve(
        &mut self,
        of: (u32, usize),
        nodes: usize,
        edges: &[(u32, u32, i64)],
    ) -> &[Option<u32>] {
        let last = self.0.entry(of).or_default();
        if last.nodes != nodes || last.edges != edges {
            let edges = edges.to_vec();
            let graph = Graph::new(nodes, edges.clone()).expect("weights are small, ends differ");
            let mates = maximum_weight_matching(&graph, PairCount::Any).mates;
            *last = LastMatching { nodes, edges, mates };
        }
        &last.mates
    }
}

impl KeyedPolicy for Muri {
    type Key = u128;

    fn key(&self, job: &Job, now: Time) -> u128 {
        (self.key)(job, now)
    }

    fn plan(&mut self, queue: &mut Queue<u128>, draft: &mut Draft<'_>) {
        let shares = draft.placed().any(|job| partner(draft, job.id()).is_some());
        if queue.is_empty() && !shares {
            return;
        }
        if self.reviews.begin(draft.now()) {
            self.regroup(queue, draft);
        } else {
            place_in_order(queue, draft, true);
        }
        draft.explain_others(Reason::Outranked);
        draft.wake_at(self.reviews.after(draft.now()));
    }
}

impl Muri {
    /// Groups anew all jobs that may move.
    fn regroup(&mut self, queue: &Queue<u128>, draft: &mut Draft<'_>) {
        let ranked = rank_all(queue, draft, self.key);
        let movable = movable_jobs(draft);
        for &job in &movable {
            draft.drop(job);
        }
        let ranked: Vec<JobId> =
            ranked.into_iter().filter(|&job| draft.placement(job).is_none()).collect();
        let capacity = draft.free_count();
        let admitted = self.admit(draft, &ranked);
        let mut groups = Groups::of(draft, admitted);
        for round in 0..ROUNDS_MAX {
            let room = Room { capacity, group_max: self.group_max };
            if groups.needed <= capacity
                || !groups.merge_once(draft, room, round, &mut self.matchings)
            {
                break;
            }
        }
        let groups = groups.that_pay(draft, &ranked);
        let groups: Vec<Group> = groups.into_iter().map(Group::anywhere).collect();
        place_groups(draft, &groups);
        place_ranked(draft, ranked.iter().copied());
    }

    /// The highest-ranked jobs that could fill the free GPUs in groups of the largest size: each job that
    /// finds GPUs brings along the next ones of its gang size.
    fn admit(&self, draft: &mut Draft<'_>, ranked: &[JobId]) -> Vec<JobId> {
        let mut by_size: BTreeMap<u32, Vec<JobId>> = BTreeMap::new();
        for &job in ranked {
            by_size.entry(draft.job(job).spec.gpus).or_default().push(job);
        }
        let mut taken: BTreeMap<u32, usize> = BTreeMap::new();
        let mut position: BTreeMap<u32, usize> = BTreeMap::new();
        let mut seats = Vec::new();
        for &job in ranked {
            let gpus = draft.job(job).spec.gpus;
            let taken = taken.entry(gpus).or_default();
            let position = position.entry(gpus).or_default();
            *position += 1;
            if *position > *taken && draft.place_exclusive(job) {
                seats.push(job);
                *taken = (*taken + self.group_max).min(by_size[&gpus].len());
            }
        }
        for job in seats {
            draft.drop(job);
        }
        let admitted = |(size, jobs): (&u32, &Vec<JobId>)| jobs[..taken[size]].to_vec();
        by_size.iter().flat_map(admitted).collect()
    }
}

/// Groups by gang size while they are merged.
struct Groups {
    by_size: BTreeMap<u32, Vec<Vec<JobId>>>,
    /// GPUs that all of them need.
    needed: u32,
}

/// What limits mergers.
#[derive(Clone, Copy)]
struct Room {
    /// GPUs for all groups.
    capacity: u32,
    group_max: usize,
}

/// Two groups of one gang size that a matching joins.
struct Merger {
    size: u32,
    pair: (usize, usize),
    /// Their interleaving efficiency in parts per million.
    efficiency: i64,
}

impl Groups {
    fn of(draft: &Draft<'_>, jobs: Vec<JobId>) -> Self {
        let mut by_size: BTreeMap<u32, Vec<Vec<JobId>>> = BTreeMap::new();
        let mut needed = 0;
        for job in jobs {
            let gpus = draft.job(job).spec.gpus;
            needed += gpus;
            by_size.entry(gpus).or_default().push(vec![job]);
        }
        Self { by_size, needed }
    }

    /// One round of matching in every gang size, applied from the most efficient merger on until the groups
    /// fit; `false` if none is possible.
    fn merge_once(
        &mut self,
        draft: &Draft<'_>,
        room: Room,
        round: usize,
        matchings: &mut Matchings,
    ) -> bool {
        let mut mergers: Vec<Merger> = Vec::new();
        for (&size, groups) in &self.by_size {
            let groups = &groups[..groups.len().min(GROUPS_MAX)];
            let edges = edges(draft, groups, room.group_max);
            let mates = matchings.solve((size, round), groups.len(), &edges);
            let is_matched =
                |&(one, other, _): &(u32, u32, i64)| mates[one as usize] == Some(other);
            let merger = |(one, other, efficiency): (u32, u32, i64)| Merger {
                size,
                pair: (one as usize, other as usize),
                efficiency,
            };
            mergers.extend(edges.into_iter().filter(is_matched).map(merger));
        }
        // Wasted GPUs first: the order of the published code.
        let waste = |merger: &Merger| (1_000_000 - merger.efficiency) * i64::from(merger.size);
        mergers.sort_by_key(|merger| (waste(merger), merger.size, merger.pair));
        let mut merged = false;
        for Merger { size, pair: (one, other), .. } in mergers {
            if self.needed <= room.capacity {
                break;
            }
            let groups = self.by_size.get_mut(&size).expect("mergers are of known sizes");
            let joining = std::mem::take(&mut groups[other]);
            groups[one].extend(joining);
            self.needed -= size;
            merged = true;
        }
        for groups in self.by_size.values_mut() {
            groups.retain(|group| !group.is_empty());
        }
        merged
    }

    /// The groups in order of their highest rank, those that do less than one job's work dissolved.
    fn that_pay(self, draft: &Draft<'_>, ranked: &[JobId]) -> Vec<Vec<JobId>> {
        let rank: BTreeMap<JobId, usize> =
            ranked.iter().enumerate().map(|(rank, &job)| (job, rank)).collect();
        let mut groups: Vec<Vec<JobId>> = Vec::new();
        for group in self.by_size.into_values().flatten() {
            let total = group_rates(draft, &group, None).map(sum);
            if group.len() == 1 || total.is_some_and(|total| total >= 1_000_000) {
                groups.push(group);
            } else {
                groups.extend(group.into_iter().map(|job| vec![job]));
            }
        }
        groups.sort_by_key(|group| group.iter().map(|job| rank[job]).min());
        groups
    }
}

/// The pairs of groups that may merge, with their interleaving efficiency.
fn edges(draft: &Draft<'_>, groups: &[Vec<JobId>], group_max: usize) -> Vec<(u32, u32, i64)> {
    let number = |index: usize| u32::try_from(index).expect("groups are few");
    let mut edges = Vec::new();
    for (one, first) in groups.iter().enumerate() {
        for (other, second) in groups.iter().enumerate().skip(one + 1) {
            if first.len() + second.len() > group_max {
                continue;
            }
            let members: Vec<JobId> = first.iter().chain(second).copied().collect();
            let Some(rates) = group_rates(draft, &members, None) else { continue };
            let efficiency = sum(rates) / RESOURCES;
            edges.push((number(one), number(other), efficiency.max(1)));
        }
    }
    edges
}

/// Rates added up, in parts per million.
fn sum(rates: Vec<Ratio>) -> i64 {
    rates.into_iter().map(|rate| i64::from(rate.ppm().0)).sum()
}

#[cfg(test)]
mod tests {
    use crate::testing::simulate;

    #[test]
    fn a_group_is_formed_only_while_the_gpus_do_not_suffice() {
        // Two light jobs and two GPUs: one each. A third joins one of them at the next review.
        let rows = "a,0,1,1000,50,\nb,0,1,1000,50,\nc,10,1,900,50,\n";
        let times = simulate("muri-s", "1x2", rows);
        assert_eq!(times[2].0, 360.0);
        // c runs beside a or b at full speed: 50 % and 50 %.
        assert_eq!(times[2].1, 1260.0);
    }

    #[test]
    fn up_to_four_jobs_share_if_they_leave_each_other_alone() {
        let rows = "a,0,1,500,25,\nb,0,1,500,25,\nc,0,1,500,25,\nd,0,1,500,25,\ne,0,1,500,25,\n";
        let times = simulate("muri-s", "1x1", rows);
        let at_once = times.iter().filter(|time| **time == (0.0, 500.0)).count();
        assert_eq!(at_once, 4, "{times:?}");
        // The fifth waits for the end of the others, which is between reviews.
        assert_eq!(times[4], (500.0, 1000.0));
        let pairs = simulate("muri-s:group=2", "1x1", rows);
        assert_eq!(pairs.iter().filter(|time| time.0 == 0.0).count(), 2, "{pairs:?}");
    }

    #[test]
    fn a_group_that_does_less_than_one_job_is_dissolved() {
        // Four full jobs at 1/2 × 1/2 × 1/2 each would do half of the work of one.
        let rows = "a,0,1,100,100,\nb,0,1,100,100,\nc,0,1,100,100,\nd,0,1,100,100,\n";
        let times = simulate("muri-s", "1x1", rows);
        assert_eq!(times.iter().filter(|time| time.0 == 0.0).count(), 1, "{times:?}");
    }

    #[test]
    fn muri_s_ranks_by_remaining_time_and_muri_l_by_attained_time() {
        // The first has run for 360 s when the second, which does not fit beside it, is 10 s long.
        let rows = "long,0,1,1000,100,20000\nshort,10,1,100,100,20000\n";
        assert_eq!(simulate("muri-s", "1x1", rows)[1], (360.0, 460.0));
        assert_eq!(simulate("muri-l", "1x1", rows)[1], (360.0, 460.0));
        let rows = "short,0,1,700,100,20000\nlong,10,1,5000,100,20000\n";
        assert_eq!(simulate("muri-s", "1x1", rows)[0], (0.0, 700.0));
        assert_eq!(simulate("muri-l", "1x1", rows)[1].0, 360.0);
    }
}
