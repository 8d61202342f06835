//! Gavel (OSDI'20): a linear program divides the GPU time among jobs and pairs of jobs, and rounds realise it.
//!
//! From the paper: the allocation X gives every job, and with packing every pair, the fraction of time during
//! which it runs, with `types=true` on each GPU type. `objective=fairness` maximises the smallest normalised throughput, weighted by
//! GPUs; `objective=jct` minimises the total completion time. A new allocation is
//! computed when jobs come or go. In each round the combinations run whose fraction is largest relative to
//! the rounds that they have received.
//!
//! Ours: the total completion time is linearised, each job's throughput counts 1 / remaining time. After the
//! fairness of the poorest job the rest of the capacity goes to total throughput, by a small term instead of
//! further programs. The program has at most [`JOBS_MAX`] jobs, the poorest or the shortest, and for each at
//! most [`PARTNERS_MAX`] partners of its gang size, the best. GPUs that a round leaves free go to pending jobs
//! in order of submission. All jobs are equally fast on a GPU type. A gang that no type can hold runs on
//! several, at the speed of the slowest. A job that is restoring is not moved.

mod program;

use crate::Entry;
use crate::kit::{
    Group, KeyedPolicy, Queue, Reviews, group_rates, interval, keyed, movable_jobs, partner,
    place_groups, place_in_order, place_ranked, remaining_ms,
};
use crate::spec::{PolicyParam, Value};
use program::{Combination, Program};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::{Draft, GpuId, GpuTypeId, Job, JobId, Reason, Time};

/// Jobs of one program.
const JOBS_MAX: usize = 64;
/// Pairs of one job in a program.
const PARTNERS_MAX: usize = 3;

const INTERVAL: PolicyParam = interval("interval_s", 360);
const OBJECTIVE: PolicyParam = PolicyParam {
    name: "objective",
    default: Value::Choice { word: "fairness", of: &["fairness", "jct"] },
    help: "what the allocation optimises: the poorest job, or the total completion time",
};
const PACKING: PolicyParam = PolicyParam {
    name: "packing",
    default: Value::Flag(true),
    help: "let two jobs of a gang size share their GPUs",
};

const TYPES: PolicyParam = PolicyParam {
    name: "types",
    default: Value::Flag(false),
    help: "divide the time on each GPU type instead of on all GPUs alike; jobs then move between types",
};

pub(crate) const ENTRY: Entry = Entry {
    name: "gavel",
    summary: "fractions of time by a linear program over jobs and pairs, realised in rounds",
    params: &[INTERVAL, OBJECTIVE, PACKING, TYPES],
    tuning: &[],
    tenants_max: 2,
    build: |settings| {
        keyed(Gavel {
            reviews: Reviews::every(settings.whole(INTERVAL.name)),
            minimises_jct: settings.choice(OBJECTIVE.name) == "jct",
            packs: settings.flag(PACKING.name),
            by_type: settings.flag(TYPES.name),
            jobs: Vec::new(),
            allocation: Vec::new(),
        })
    },
};

struct Gavel {
    reviews: Reviews,
    minimises_jct: bool,
    packs: bool,
    by_type: bool,
    /// The jobs of the present allocation, by id.
    jobs: Vec<JobId>,
    allocation: Vec<Share>,
}

/// What the allocation gives a combination, and what it has received.
struct Share {
    jobs: Vec<JobId>,
    /// The GPU type; `None` for any, and for a gang on several.
    kind: Option<GpuTypeId>,
    fraction: f64,
    rounds: u32,
}

impl Share {
    /// Due before others with a smaller number.
    fn priority(&self) -> f64 {
        // A combination that has received nothing comes before all that have.
        self.fraction / (f64::from(self.rounds) + 1e-6)
    }
}

impl KeyedPolicy for Gavel {
    type Key = ();

    fn key(&self, _: &Job, _: Time) {}

    fn plan(&mut self, queue: &mut Queue<()>, draft: &mut Draft<'_>) {
        let shares = draft.placed().any(|job| partner(draft, job.id()).is_some());
        // On GPUs of several types jobs also take turns where each has a GPU.
        let may_swap =
            draft.placed().next().is_some() && Kinds::of(draft, self.by_type).0.len() > 1;
        if queue.is_empty() && !shares && !may_swap {
            return;
        }
        if self.reviews.begin(draft.now()) {
            self.run_round(queue, draft);
        } else {
            place_in_order(queue, draft, true);
        }
        draft.explain_others(Reason::Outranked);
        draft.wake_at(self.reviews.after(draft.now()));
    }
}

impl Gavel {
    fn run_round(&mut self, queue: &Queue<()>, draft: &mut Draft<'_>) {
        let movable = movable_jobs(draft);
        let mut jobs: Vec<JobId> = queue.iter().map(|((), job)| job).collect();
        jobs.extend(&movable);
        jobs.sort_unstable();
        for &job in &movable {
            draft.drop(job);
        }
        if jobs != self.jobs {
            self.allocation = self.allocate(draft, &jobs);
            self.jobs = jobs;
        }
        let groups = self.choose(draft);
        place_groups(draft, &groups);
        place_ranked(draft, self.jobs.iter().copied());
    }

    /// Fractions of time for the jobs that may move, on the GPUs that they leave free.
    fn allocate(&self, draft: &Draft<'_>, jobs: &[JobId]) -> Vec<Share> {
        let now = draft.now();
        let mut chosen = jobs.to_vec();
        chosen.sort_by_key(|&job| {
            let job = draft.job(job);
            let jct = remaining_ms(job, now).saturating_mul(i64::from(job.spec.gpus));
            let attained = i64::try_from(job.attained(now).0).unwrap_or(i64::MAX);
            (if self.minimises_jct { jct } else { attained }, job.id())
        });
        chosen.truncate(JOBS_MAX);
        let kinds = Kinds::free(draft, self.by_type);
        let combinations = self.combinations(draft, &chosen, &kinds);
        let value = |&job: &JobId| {
            let job = draft.job(job);
            match self.minimises_jct {
                true => 1000.0 / remaining_ms(job, now) as f64,
                false => f64::from(job.spec.gpus),
            }
        };
        let program = Program {
            capacities: kinds.0.iter().map(|kind| f64::from(kind.gpus)).collect(),
            values: chosen.iter().map(value).collect(),
            maximises_least: !self.minimises_jct,
            combinations,
        };
        let fractions = program.solve();
        let shares = program.combinations.iter().zip(fractions).map(|(combination, fraction)| {
            let jobs = combination.members.iter().map(|&(index, _)| chosen[index]).collect();
            let kind = match combination.gpus[..] {
                [(kind, _)] => kinds.0[kind].id,
                _ => None,
            };
            Share { jobs, kind, fraction, rounds: 0 }
        });
        shares.filter(|share| share.fraction > 1e-6).collect()
    }

    /// Every job alone, and with packing each with its best partners, on every GPU type.
    fn combinations(&self, draft: &Draft<'_>, jobs: &[JobId], kinds: &Kinds) -> Vec<Combination> {
        let gang = |index: usize| draft.job(jobs[index]).spec.gpus;
        let mut all: Vec<Combination> = (0..jobs.len())
            .flat_map(|index| {
                let homes = kinds.homes(gang(index));
                homes.into_iter().map(move |home| Combination {
                    gpus: home.gpus,
                    members: vec![(index, home.speed)],
                })
            })
            .collect();
        if !self.packs {
            return all;
        }
        for (position, kind) in kinds.0.iter().enumerate() {
            for (pair, rates) in best_pairs(draft, jobs, kind.id) {
                let (one, other) = pair;
                if gang(one) > kind.gpus && kinds.0.len() > 1 {
                    continue;
                }
                let gpus = vec![(position, f64::from(gang(one)))];
                let members = vec![(one, rates.0 * kind.speed), (other, rates.1 * kind.speed)];
                all.push(Combination { gpus, members });
            }
        }
        all
    }

    /// The combinations of this round: the highest priority first, each job once, as far as the GPUs suffice.
    fn choose(&mut self, draft: &Draft<'_>) -> Vec<Group> {
        let mut free = Kinds::free(draft, self.by_type);
        let mut order: Vec<usize> = (0..self.allocation.len()).collect();
        order.sort_by(|&one, &other| {
            let (one, other) = (&self.allocation[one], &self.allocation[other]);
            let by_priority = other.priority().total_cmp(&one.priority());
            by_priority.then_with(|| {
                (Reverse(one.jobs.len()), &one.jobs).cmp(&(Reverse(other.jobs.len()), &other.jobs))
            })
        });
        let mut taken: BTreeSet<JobId> = BTreeSet::new();
        let mut groups = Vec::new();
        for index in order {
            let share = &mut self.allocation[index];
            let gpus = draft.job(share.jobs[0]).spec.gpus;
            if share.jobs.iter().any(|job| taken.contains(job)) {
                continue;
            }
            // What its jobs tolerate may have changed since the allocation.
            if group_rates(draft, &share.jobs, share.kind).is_none() || !free.take(gpus, share.kind)
            {
                continue;
            }
            share.rounds += 1;
            taken.extend(&share.jobs);
            groups.push(Group { jobs: share.jobs.clone(), kind: share.kind });
        }
        groups
    }
}

/// Pairs of jobs by position, with their rates relative to each alone.
type Pairs = BTreeMap<(usize, usize), (f64, f64)>;

/// For every job its best partners on GPUs of a type.
fn best_pairs(draft: &Draft<'_>, jobs: &[JobId], kind: Option<GpuTypeId>) -> Pairs {
    let gang = |index: usize| draft.job(jobs[index]).spec.gpus;
    let mut rates = Pairs::new();
    for one in 0..jobs.len() {
        for other in one + 1..jobs.len() {
            if gang(one) != gang(other) {
                continue;
            }
            let both = group_rates(draft, &[jobs[one], jobs[other]], kind);
            let Some(both) = both else { continue };
            let both = (both[0].as_f64(), both[1].as_f64());
            // A pair that does less than one job is never part of an optimum.
            if both.0 + both.1 > 1.0 {
                rates.insert((one, other), both);
            }
        }
    }
    let mut best: BTreeSet<(usize, usize)> = BTreeSet::new();
    for job in 0..jobs.len() {
        let of_job = rates.iter().filter(|((one, other), _)| *one == job || *other == job);
        let mut of_job: Vec<_> = of_job.collect();
        of_job.sort_by(|one, other| {
            let sum = |rates: &(f64, f64)| rates.0 + rates.1;
            sum(other.1).total_cmp(&sum(one.1)).then(one.0.cmp(other.0))
        });
        best.extend(of_job.iter().take(PARTNERS_MAX).map(|(pair, _)| **pair));
    }
    rates.retain(|pair, _| best.contains(pair));
    rates
}

/// A GPU type of the partition.
struct Kind {
    /// `None` for all types alike.
    id: Option<GpuTypeId>,
    /// Relative to the fastest type of the partition.
    speed: f64,
    gpus: u32,
}

/// Where a gang can run: GPU types by position with the number of GPUs of each, and its speed there.
struct Home {
    gpus: Vec<(usize, f64)>,
    speed: f64,
}

/// The GPU types of a partition in the order of their ids.
struct Kinds(Vec<Kind>);

impl Kinds {
    /// All types, and how many GPUs of each are free under the plan so far.
    fn free(draft: &Draft<'_>, by_type: bool) -> Self {
        let mut kinds = Self::of(draft, by_type);
        if let [kind] = &mut kinds.0[..] {
            kind.gpus = draft.free_count();
            return kinds;
        }
        for gpu in draft.occupancy().free_gpus(draft.partition()) {
            let id = Some(draft.cluster().gpu(gpu).kind);
            kinds.0.iter_mut().filter(|kind| kind.id == id).for_each(|kind| kind.gpus += 1);
        }
        kinds
    }

    /// All types, without GPUs; one for all GPUs unless `by_type`.
    fn of(draft: &Draft<'_>, by_type: bool) -> Self {
        if !by_type {
            return Self(vec![Kind { id: None, speed: 1.0, gpus: 0 }]);
        }
        let cluster = draft.cluster();
        let nodes = cluster.partition(draft.partition()).nodes.clone();
        let of_node =
            |node: u32| cluster.gpu(GpuId(cluster.nodes()[node as usize].gpus.start)).kind;
        let ids: BTreeSet<GpuTypeId> = nodes.map(of_node).collect();
        let factor = |id: GpuTypeId| cluster.types()[id.index()].factor.as_f64();
        let fastest = ids.iter().map(|&id| factor(id)).fold(f64::MIN_POSITIVE, f64::max);
        let kind = |&id: &GpuTypeId| Kind { id: Some(id), speed: factor(id) / fastest, gpus: 0 };
        Self(ids.iter().map(kind).collect())
    }

    /// The types that can hold a gang, or if none can, all of them together.
    fn homes(&self, gang: u32) -> Vec<Home> {
        let gang_gpus = f64::from(gang);
        if let [only] = &self.0[..] {
            return vec![Home { gpus: vec![(0, gang_gpus)], speed: only.speed }];
        }
        let kinds = || self.0.iter().enumerate();
        let home = |(position, kind): (usize, &Kind)| Home {
            gpus: vec![(position, gang_gpus)],
            speed: kind.speed,
        };
        let homes: Vec<Home> = kinds().filter(|(_, kind)| kind.gpus >= gang).map(home).collect();
        let free: u32 = self.0.iter().map(|kind| kind.gpus).sum();
        if !homes.is_empty() || free == 0 {
            return homes;
        }
        let part = |kind: &Kind| gang_gpus * f64::from(kind.gpus) / f64::from(free);
        let gpus = kinds().map(|(position, kind)| (position, part(kind))).collect();
        let slowest = self.0.iter().map(|kind| kind.speed).fold(1.0, f64::min);
        vec![Home { gpus, speed: slowest }]
    }

    /// Takes GPUs of a type, or of any type the most frequent first; `false` if there are too few.
    fn take(&mut self, gpus: u32, kind: Option<GpuTypeId>) -> bool {
        let mut usable: Vec<&mut Kind> =
            self.0.iter_mut().filter(|one| kind.is_none_or(|kind| one.id == Some(kind))).collect();
        if usable.iter().map(|kind| kind.gpus).sum::<u32>() < gpus {
            return false;
        }
        usable.sort_by_key(|kind| Reverse(kind.gpus));
        let mut left = gpus;
        for kind in usable {
            let taken = kind.gpus.min(left);
            kind.gpus -= taken;
            left -= taken;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{mean_jct_s, run, simulate, simulate_on, workload};
    use std::sync::Arc;
    use tandem_core::{Cluster, ClusterBuilder, Memory, Ratio};

    #[test]
    fn a_pair_that_gains_runs_together_and_without_packing_jobs_take_turns() {
        let rows = "a,0,1,720,50,\nb,0,1,720,50,\n";
        // Together at full speed.
        let packed = simulate("gavel", "1x1", rows);
        assert_eq!(packed, [(0.0, 720.0), (0.0, 720.0)]);
        // In turns of a round; every resumption pays the restore.
        let alone = simulate("gavel:packing=false", "1x1", rows);
        assert_eq!((alone[0].0, alone[1].0), (0.0, 360.0), "{alone:?}");
    }

    #[test]
    fn a_round_goes_to_the_job_that_lacks_most_of_its_fraction() {
        // Half of the time each: a, b, a, b, a in rounds of 360 s, the later ones with a restore of 40 s. At
        // 1440 s both lack 40 s; when a has ended, b need not wait for a round.
        let rows = "a,0,1,720,100,\nb,0,1,720,100,\n";
        let times = simulate("gavel:packing=false", "1x1", rows);
        assert_eq!(times, [(0.0, 1520.0), (360.0, 1600.0)]);
    }

    #[test]
    fn a_pair_that_does_less_than_one_job_takes_turns() {
        let rows = "a,0,1,720,100,\nb,0,1,720,100,\n";
        let columns = "job_id,submit_s,gpus,duration_s,gpu_util,memory_mib";
        let run = run(&workload("1x1", columns, rows), "gavel");
        assert!(run.outcomes.iter().all(|outcome| outcome.shared.0 == 0));
    }

    #[test]
    fn the_jct_objective_serves_the_shortest_job_first() {
        let rows = "long,0,1,3600,100,\nshort,0,1,100,100,\n";
        let times = simulate("gavel:objective=jct", "1x1", rows);
        assert_eq!(times[1], (0.0, 100.0));
        let columns = "job_id,submit_s,gpus,duration_s,gpu_util,memory_mib";
        let rows = "a,0,1,3000,100,\nb,0,1,400,100,\nc,0,1,900,100,\nd,0,1,2000,100,\n";
        let workload = workload("1x1", columns, rows);
        assert!(mean_jct_s(&workload, "gavel:objective=jct") < mean_jct_s(&workload, "gavel"));
    }

    /// One partition: nodes of fast GPUs and of GPUs of half the speed.
    fn fast_and_slow(fast_gpus: u32, slow_gpus: u32) -> Arc<Cluster> {
        let mut builder = ClusterBuilder::default();
        let fast = builder.gpu_type("fast", Ratio::ONE);
        let slow = builder.gpu_type("slow", Ratio::new(1, 2));
        builder.partition("all");
        builder.node(fast_gpus, fast, Memory::from_mib(24_576));
        builder.node(slow_gpus, slow, Memory::from_mib(24_576));
        Arc::new(builder.taking_every_job().build())
    }

    #[test]
    fn jobs_take_turns_on_the_fast_gpu() {
        // Half of the time on each GPU is 0.75 of the fast one for both, in rounds of 360 s. Work done by 360 s:
        // a 360, b 180. Both move, restore 40 s; by 720 s: a 360 + 160, b 180 + 320. Both move back; a ends at
        // 720 + 40 + 200. By 1080 s b has 500 + 160; alone it gets the fast GPU and ends at 1080 + 40 + 60.
        let rows = "a,0,1,720,100,\nb,0,1,720,100,\n";
        let times = simulate_on("gavel:types=true,packing=false", fast_and_slow(1, 1), rows);
        assert_eq!(times, [(0.0, 960.0), (0.0, 1180.0)]);
        // All GPUs alike: nobody waits, so nobody moves.
        let times = simulate_on("gavel:packing=false", fast_and_slow(1, 1), rows);
        assert_eq!(times, [(0.0, 720.0), (0.0, 1440.0)]);
    }

    #[test]
    fn the_jct_objective_gives_the_fast_gpu_to_the_shorter_job() {
        // From the second round on. The long job moves away: work done 360 + 160 by 720 s.
        let rows = "long,0,1,7200,100,\nshort,10,1,300,100,\n";
        let times = simulate_on("gavel:types=true,objective=jct", fast_and_slow(1, 1), rows);
        assert_eq!(times[0].0, 0.0);
        // By 360 s short has done 175 on the slow GPU; then 40 s of restore and 125 on the fast one.
        assert_eq!(times[1], (10.0, 525.0));
    }

    #[test]
    fn a_gang_that_no_type_can_hold_runs_on_several_at_the_slowest_speed() {
        let rows = "wide,0,3,100,100,\nnarrow,0,1,1000,100,\n";
        let times = simulate_on("gavel:types=true,packing=false", fast_and_slow(2, 2), rows);
        assert_eq!(times[0], (0.0, 200.0));
    }
}
