//! Gavel (OSDI'20): a linear program divides the GPU time among jobs and pairs of jobs, and rounds realise it.
//!
//! From the paper: the allocation X gives every job, and with packing every pair, the fraction of time during
//! which it runs. `objective=fairness` maximises the smallest normalised throughput, weighted by
//! GPUs; `objective=jct` minimises the total completion time. A new allocation is
//! computed when jobs come or go. In each round the combinations run whose fraction is largest relative to
//! the rounds that they have received.
//!
//! Ours: the total completion time is linearised, each job's throughput counts 1 / remaining time. After the
//! fairness of the poorest job the rest of the capacity goes to total throughput, by a small term instead of
//! further programs. The program has at most [`JOBS_MAX`] jobs, the poorest or the shortest, and for each at
//! most [`PARTNERS_MAX`] partners of its gang size, the best. GPUs that a round leaves free go to pending jobs
//! in order of submission. The rates of a pair do not depend on the GPU type; all GPUs of a partition count
//! the same. A job that is restoring is not moved.

mod program;

use crate::Entry;
use crate::kit::{
    KeyedPolicy, Queue, Reviews, group_rates, interval, keyed, movable_jobs, partner, place_groups,
    place_in_order, place_ranked, remaining_ms,
};
use crate::spec::{PolicyParam, Value};
use program::{Combination, Program};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::{Draft, Job, JobId, Reason, Time};

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

pub(crate) const ENTRY: Entry = Entry {
    name: "gavel",
    summary: "fractions of time by a linear program over jobs and pairs, realised in rounds",
    params: &[INTERVAL, OBJECTIVE, PACKING],
    tuning: &[],
    tenants_max: 2,
    build: |settings| {
        keyed(Gavel {
            reviews: Reviews::every(settings.whole(INTERVAL.name)),
            minimises_jct: settings.choice(OBJECTIVE.name) == "jct",
            packs: settings.flag(PACKING.name),
            jobs: Vec::new(),
            allocation: Vec::new(),
        })
    },
};

struct Gavel {
    reviews: Reviews,
    minimises_jct: bool,
    packs: bool,
    /// The jobs of the present allocation, by id.
    jobs: Vec<JobId>,
    allocation: Vec<Share>,
}

/// What the allocation gives a combination, and what it has received.
struct Share {
    jobs: Vec<JobId>,
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
        if queue.is_empty() && !shares {
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
        let combinations = self.combinations(draft, &chosen);
        let value = |&job: &JobId| {
            let job = draft.job(job);
            match self.minimises_jct {
                true => 1000.0 / remaining_ms(job, now) as f64,
                false => f64::from(job.spec.gpus),
            }
        };
        let program = Program {
            capacity: f64::from(draft.free_count()),
            values: chosen.iter().map(value).collect(),
            maximises_least: !self.minimises_jct,
            combinations,
        };
        let fractions = program.solve();
        let shares = program.combinations.iter().zip(fractions).map(|(combination, fraction)| {
            let jobs = combination.members.iter().map(|&(index, _)| chosen[index]).collect();
            Share { jobs, fraction, rounds: 0 }
        });
        shares.filter(|share| share.fraction > 1e-6).collect()
    }

    /// Every job alone, and with packing each with its best partners.
    fn combinations(&self, draft: &Draft<'_>, jobs: &[JobId]) -> Vec<Combination> {
        let gpus = |index: usize| draft.job(jobs[index]).spec.gpus;
        let alone =
            |index| Combination { gpus: f64::from(gpus(index)), members: vec![(index, 1.0)] };
        let mut all: Vec<Combination> = (0..jobs.len()).map(alone).collect();
        if !self.packs {
            return all;
        }
        let mut pairs: BTreeSet<(usize, usize)> = BTreeSet::new();
        let mut rates: BTreeMap<(usize, usize), (f64, f64)> = BTreeMap::new();
        for one in 0..jobs.len() {
            for other in one + 1..jobs.len() {
                if gpus(one) != gpus(other) {
                    continue;
                }
                let Some(both) = group_rates(draft, &[jobs[one], jobs[other]]) else { continue };
                let both = (both[0].as_f64(), both[1].as_f64());
                // A pair that does less than one job is never part of an optimum.
                if both.0 + both.1 > 1.0 {
                    rates.insert((one, other), both);
                }
            }
        }
        for job in 0..jobs.len() {
            let of_job = rates.iter().filter(|((one, other), _)| *one == job || *other == job);
            let mut of_job: Vec<_> = of_job.collect();
            of_job.sort_by(|one, other| {
                let sum = |rates: &(f64, f64)| rates.0 + rates.1;
                sum(other.1).total_cmp(&sum(one.1)).then(one.0.cmp(other.0))
            });
            pairs.extend(of_job.iter().take(PARTNERS_MAX).map(|(pair, _)| **pair));
        }
        let pair = |(one, other): (usize, usize)| {
            let (of_one, of_other) = rates[&(one, other)];
            let members = vec![(one, of_one), (other, of_other)];
            Combination { gpus: f64::from(gpus(one)), members }
        };
        all.extend(pairs.into_iter().map(pair));
        all
    }

    /// The combinations of this round: the highest priority first, each job once, as far as the GPUs suffice.
    fn choose(&mut self, draft: &Draft<'_>) -> Vec<Vec<JobId>> {
        let mut free = draft.free_count();
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
            if gpus > free || share.jobs.iter().any(|job| taken.contains(job)) {
                continue;
            }
            // What its jobs tolerate may have changed since the allocation.
            if group_rates(draft, &share.jobs).is_none() {
                continue;
            }
            free -= gpus;
            share.rounds += 1;
            taken.extend(&share.jobs);
            groups.push(share.jobs.clone());
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{mean_jct_s, run, simulate, workload};

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
}
