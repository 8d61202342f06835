//! The rules of the simulated world on cases small enough to compute by hand, with policies made for them.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{cluster, simulate, times, workload};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::{
    ClusterBuilder, Draft, GpuId, Interference, Job, JobId, Memory, Placement, Policy, Ppm, Ratio,
    Span, Time,
};
use tandem_models::device::DutyShares;
use tandem_policies::{Entry, PolicySpec};
use tandem_sim::{
    Estimates, FaultOptions, Network, RunOptions, Workload, WorkloadOptions, WorldOptions, run,
};

/// Places every job on the GPUs from number 0 on, whatever other tenants are there.
struct Pile(Vec<JobId>);

const PILE: Entry = Entry {
    name: "pile",
    summary: "everybody on the first GPUs",
    params: &[],
    tuning: &[],
    tenants_max: 8,
    build: |_| Box::new(Pile(Vec::new())),
};

impl Policy for Pile {
    fn enqueue(&mut self, job: &Job) {
        self.0.push(job.id());
    }
    fn dequeue(&mut self, job: &Job) {
        self.0.retain(|&waiting| waiting != job.id());
    }
    fn plan(&mut self, draft: &mut Draft<'_>) {
        for &job in &self.0 {
            let gpus = (0..draft.job(job).spec.gpus).map(GpuId);
            draft.place(job, Placement::on(gpus));
        }
    }
}

/// Applies `turn` to the only job at every event and every ten seconds.
struct Script(fn(&mut Draft<'_>, JobId, u64));

impl Policy for Script {
    fn enqueue(&mut self, _: &Job) {}
    fn dequeue(&mut self, _: &Job) {}
    fn plan(&mut self, draft: &mut Draft<'_>) {
        if draft.find(JobId(0)).is_none() {
            return;
        }
        let seconds = draft.now().0 / 1_000_000;
        (self.0)(draft, JobId(0), seconds);
        if seconds < 50 {
            draft.wake_at(Time::from_secs((seconds / 10 + 1) * 10));
        }
    }
}

const HEADER: &str = "job_id,submit_s,gpus,duration_s,gpu_util,memory_mib\n";

fn run_times(
    entry: &'static Entry,
    rows: &str,
    spec: &str,
    options: &RunOptions,
) -> Vec<(f64, f64)> {
    let workload = workload(&format!("{HEADER}{rows}"), cluster(spec));
    let options = RunOptions { verify: true, ..options.clone() };
    times(&simulate(&workload, &PolicySpec::of(entry), &options))
}

#[test]
fn two_tenants_slow_each_other_down_and_the_survivor_speeds_up() {
    // 80 % + 80 %: both run at 0.625. The short one ends at 10 / 0.625 = 16 s. By then the long one has done
    // 10 of its 30 s; the other 20 it runs alone.
    let times = run_times(&PILE, "a,0,1,10,80,\nb,0,1,30,80,\n", "1x1", &RunOptions::default());
    assert_eq!(times, [(0.0, 16.0), (0.0, 36.0)]);
}

#[test]
fn progress_is_not_rounded_when_rates_change_and_ends_round_up() {
    // Rate 100/150, as whole ppm 666,667. One second shared leaves 9.333333 s.
    let rows = "a,0,1,10,75,\nb,2,1,1,75,\n";
    let times = run_times(&PILE, rows, "1x1", &RunOptions::default());
    // b: 1 s at 666,667 ppm is 1.49999925 s, rounded up to the microsecond.
    assert_eq!(times[1], (2.0, 3.5));
    // a: 2 s alone, 1.5 s at 666,667 ppm, the rest alone: 10 − 2 − 1.0000005 = 6.9999995.
    assert_eq!(times[0], (0.0, 10.5));
}

#[test]
fn a_gang_runs_at_the_pace_of_its_slowest_gpu() {
    let rows = "a,0,2,10,100,\nb,0,1,5,100,\n";
    let times = run_times(&PILE, rows, "1x2", &RunOptions::default());
    assert_eq!(times, [(0.0, 15.0), (0.0, 10.0)]);
}

#[test]
fn three_tenants_take_the_product_of_their_pair_rates() {
    let rows = "a,0,1,10,100,\nb,0,1,10,100,\nc,0,1,10,100,\n";
    let workload = workload(&format!("{HEADER}{rows}"), cluster("1x1"));
    let run = simulate(&workload, &PolicySpec::of(&PILE), &RunOptions::default());
    assert_eq!(times(&run), [(0.0, 40.0); 3]);
    assert!(run.has_three_tenants);
    let metrics = &run.metrics;
    assert_eq!((metrics.gpu_busy, metrics.shared_gpu_time), (1.0, 1.0));
    assert_eq!((metrics.goodput, metrics.avg_slowdown), (0.75, 4.0));
    assert_eq!(run.outcomes[0].shared, Span::from_secs(40));
}

#[test]
fn gpu_types_and_spreading_change_the_rate() {
    let mut builder = ClusterBuilder::default();
    let fast = builder.gpu_type("fast", Ratio::new(2, 1));
    let slow = builder.gpu_type("slow", Ratio::new(1, 2));
    builder.partition("all");
    builder.node(1, fast, Memory::from_mib(1000));
    builder.node(1, slow, Memory::from_mib(1000));
    builder.node(2, slow, Memory::from_mib(1000));
    let cluster = Arc::new(builder.build());
    let rows = format!("{HEADER}a,0,1,10,,\nb,100,2,10,,\n");
    let workload = workload(&rows, cluster);
    let world = WorldOptions { spread_rate: Ratio::new(8, 10), ..WorldOptions::default() };
    let options = RunOptions { world, ..RunOptions::default() };
    let run = simulate(&workload, &PolicySpec::of(&PILE), &options);
    // Alone on the fast GPU; then a gang of two on two nodes where one would suffice, at the slow rate.
    assert_eq!(times(&run), [(0.0, 5.0), (100.0, 125.0)]);
}

const PAUSE: Entry = Entry {
    name: "pause",
    summary: "pauses the first job from 10 s to 30 s",
    params: &[],
    tuning: &[],
    tenants_max: 1,
    build: |_| {
        let turn = |draft: &mut Draft<'_>, job, seconds| {
            let paused = (10..30).contains(&seconds);
            draft.place(job, Placement { paused, ..Placement::on([GpuId(0)]) });
        };
        Box::new(Script(turn))
    },
};

#[test]
fn a_pause_in_place_costs_only_its_own_length() {
    let times = run_times(&PAUSE, "a,0,1,15,,\n", "1x1", &RunOptions::default());
    assert_eq!(times, [(0.0, 35.0)]);
}

/// Places the first two jobs on one GPU, the second within half of it.
const CAPPED: Entry = Entry {
    name: "capped",
    summary: "two jobs on a GPU, one of them capped",
    params: &[],
    tuning: &[],
    tenants_max: 2,
    build: |_| {
        let turn = |draft: &mut Draft<'_>, _, _| {
            for (job, budget) in [(JobId(0), 1_000_000), (JobId(1), 500_000)] {
                if draft.find(job).is_some() {
                    let budget = Ppm(budget);
                    draft.place(job, Placement { budget, ..Placement::on([GpuId(0)]) });
                }
            }
        };
        Box::new(Script(turn))
    },
};

#[test]
fn budgets_change_rates_by_the_model_of_the_device_and_of_pairs() {
    let rows = "a,0,1,100,40,\nb,0,1,100,80,\n";
    let workload = workload(&format!("{HEADER}{rows}"), cluster("1x1"));
    let law = DutyShares::default();
    let truth: Arc<dyn Interference> = Arc::new(law);
    let (policy, options) = (PolicySpec::of(&CAPPED), RunOptions::default());
    let capped = run(&workload, &policy, &truth, &options, &AtomicU64::new(0)).unwrap();
    // The first runs beside the second, which is capped to half of the GPU. Then the second runs alone within
    // its half, at 5/8 of its speed.
    let kept = law.kept((0.4, 1.0), [(0.8, 0.5)]);
    let beside = law.kept((0.8, 0.5), [(0.4, 1.0)]);
    let first = 100.0 / kept;
    let second = first + (100.0 - first * beside) / 0.625;
    let ends: Vec<f64> = times(&capped).iter().map(|(_, end)| *end).collect();
    let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-4;
    assert!(near(ends[0], first) && near(ends[1], second), "{ends:?} {first} {second}");
    // Both keep 100 / 120 without caps: r / (r + v (1 - r)) is 10 / 11 beside half of the GPU. The second has
    // 5/8 of its speed throughout.
    let pairwise = times(&simulate(&workload, &policy, &options));
    assert!(near(pairwise[0].1, 110.0) && near(pairwise[1].1, 160.0), "{pairwise:?}");
}

const MOVE: Entry = Entry {
    name: "move",
    summary: "moves the first job at 10 s",
    params: &[],
    tuning: &[],
    tenants_max: 1,
    build: |_| {
        let turn = |draft: &mut Draft<'_>, job, seconds: u64| {
            draft.place(job, Placement::on([GpuId(u32::from(seconds >= 10))]));
        };
        Box::new(Script(turn))
    },
};

#[test]
fn a_move_pays_the_restore() {
    let times = run_times(&MOVE, "a,0,1,15,,\n", "1x2", &RunOptions::default());
    assert_eq!(times, [(0.0, 55.0)]);
    let world =
        WorldOptions { restore: (Span::from_secs(3), Span::ZERO), ..WorldOptions::default() };
    let options = RunOptions { world, ..RunOptions::default() };
    assert_eq!(run_times(&MOVE, "a,0,1,15,,\n", "1x2", &options), [(0.0, 18.0)]);
}

const PREEMPT: Entry = Entry {
    name: "preempt",
    summary: "stops the first job at 10 s and starts it again at 20 s",
    params: &[],
    tuning: &[],
    tenants_max: 1,
    build: |_| {
        let turn = |draft: &mut Draft<'_>, job, seconds: u64| {
            if (10..20).contains(&seconds) {
                draft.drop(job);
            } else if draft.placement(job).is_none() {
                draft.place_exclusive(job);
            }
        };
        Box::new(Script(turn))
    },
};

#[test]
fn a_preempted_job_keeps_its_work_and_pays_the_restore_of_its_size() {
    for (gpus, restore) in [(1, 40.0), (8, 40.0), (9, 60.0)] {
        let rows = format!("a,0,{gpus},15,,\n");
        let workload = workload(&format!("{HEADER}{rows}"), cluster("2x8"));
        let run = simulate(&workload, &PolicySpec::of(&PREEMPT), &RunOptions::default());
        assert_eq!(times(&run), [(0.0, 25.0 + restore)]);
        assert_eq!((run.metrics.preemptions, run.metrics.restores), (1, 1));
    }
}

#[test]
fn a_lost_gpu_costs_the_work_since_the_last_checkpoint() {
    let workload = workload(&format!("{HEADER}a,0,1,7200,,\n"), cluster("1x1"));
    let faults = FaultOptions::parse("mtbf_h=1,repair_h=0.5,checkpoint_min=20").unwrap();
    let options = RunOptions { faults: Some(faults), ..RunOptions::default() };
    let options = RunOptions {
        world: WorldOptions { checkpoint: faults.checkpoint, ..options.world },
        record: true,
        ..options
    };
    let policy = PolicySpec::parse("fifo").unwrap();
    let mut interrupted = 0;
    for seed in 1..=20 {
        let run = simulate(&workload, &policy, &RunOptions { seed, ..options.clone() });
        let stays = &run.record.as_ref().unwrap().stays;
        // The world should have kept whole checkpoint intervals of work.
        let (mut kept, interval) = (0_u64, faults.checkpoint.0);
        for (index, stay) in stays.iter().enumerate() {
            let restore = if index == 0 { 0 } else { 40_000_000 };
            let done = kept + stay.to.since(stay.from).0.saturating_sub(restore);
            kept = if index + 1 == stays.len() { done } else { done / interval * interval };
        }
        assert_eq!(kept, 7_200_000_000, "seed {seed}: exactly its work is done in the end");
        assert_eq!(run.outcomes[0].interruptions as usize, stays.len() - 1);
        interrupted += stays.len() - 1;
    }
    assert!(interrupted > 10, "{interrupted} interruptions in twenty runs");
}

#[test]
#[should_panic(expected = "illegal plan: GpuId(0) would need 1800 MiB, it has 1000 MiB")]
fn a_plan_that_overfills_memory_is_a_bug() {
    run_times(&PILE, "a,0,1,10,,900\nb,0,1,10,,900\n", "1x1:1000", &RunOptions::default());
}

#[test]
fn gangs_on_a_link_share_it() {
    // Three of four GPUs span both nodes; the GPUs themselves take two jobs.
    let jobs = format!("{HEADER}1,0,3,100,10,1\n2,0,3,100,10,1\n3,200,3,100,10,1\n");
    let workload = workload(&jobs, cluster("2x2"));
    let network = Network { default_share: 0.25, ..Network::default() };
    let options = RunOptions { network: Some(network), ..RunOptions::default() };
    let times = times(&simulate(&workload, &PolicySpec::of(&PILE), &options));
    // Together 0.75 + 2 × 0.25; alone as measured.
    assert_eq!(times, [(0.0, 125.0), (0.0, 125.0), (200.0, 300.0)]);
}

#[test]
fn a_gang_on_two_nodes_that_fits_on_one_pays_for_the_network() {
    let jobs = "job_id,submit_s,gpus,duration_s,model\n1,0,1,1000,A\n2,0,2,75,A\n3,500,2,75,B\n";
    let workload = workload(jobs, cluster("2x2"));
    let network = Network { shares: [("A".to_owned(), 0.25)].into(), default_share: 0.5 };
    let options = RunOptions {
        network: Some(network),
        placement: tandem_core::PlacementRule::Scatter,
        ..RunOptions::default()
    };
    let times = times(&simulate(&workload, &PolicySpec::parse("fifo").unwrap(), &options));
    assert_eq!(times, [(0.0, 1000.0), (0.0, 100.0), (500.0, 650.0)]);
}

#[test]
fn estimates_from_history_use_finished_jobs_only() {
    let starts = |first_s: u64| {
        let jobs = format!(
            "job_id,user,submit_s,gpus,duration_s\n\
             0,a,0,1,{first_s}\n1,b,10,1,2000\n2,b,20,1,2000\n3,a,30,1,10\n"
        );
        let trace = tandem_sim::trace::parse(jobs.as_bytes(), "t", &Default::default()).unwrap();
        let options =
            WorkloadOptions { estimates: Estimates::History, ..WorkloadOptions::default() };
        let workload = Workload::new(trace, cluster("1x1"), "t", &options).unwrap();
        let run = simulate(&workload, &PolicySpec::parse("sjf").unwrap(), &RunOptions::default());
        assert!(run.estimates.is_some());
        times(&run).into_iter().map(|(start, _)| start).collect::<Vec<_>>()
    };
    // A short job of user a has finished when both submit, so that a's next one goes first.
    assert_eq!(starts(10), [0.0, 10.0, 2020.0, 2010.0]);
    // It has not: nothing is known, and they go in order of submission.
    assert_eq!(starts(50), [0.0, 50.0, 2050.0, 4050.0]);
}
