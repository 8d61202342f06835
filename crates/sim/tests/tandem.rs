//! `tandem`: who runs, who shares with whom, and what users may ask for.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{cluster, generated, simulate, times, workload};
use std::collections::BTreeMap;
use std::fmt::Write;
use tandem_core::PlacementRule;
use tandem_policies::PolicySpec;
use tandem_sim::{RunOptions, SimRun};

/// Rows: id, user, submit, GPUs, duration, utilisation, memory, then whatever `more` names.
fn run_with(policy: &str, cluster_spec: &str, more: &str, rows: &str) -> SimRun {
    let csv = format!("job_id,user,submit_s,gpus,duration_s,gpu_util,memory_mib{more}\n{rows}");
    let workload = workload(&csv, cluster(cluster_spec));
    let options = RunOptions { verify: true, ..RunOptions::default() };
    simulate(&workload, &PolicySpec::parse(policy).unwrap(), &options)
}

fn run(policy: &str, cluster_spec: &str, rows: &str) -> SimRun {
    run_with(policy, cluster_spec, "", rows)
}

fn ends(run: &SimRun) -> Vec<f64> {
    times(run).into_iter().map(|(_, end)| end).collect()
}

#[test]
fn a_light_job_joins_a_light_one_at_the_next_review() {
    let run = run("tandem", "1x1", "a,u,0,1,1000,40,1000\nb,u,10,1,1000,40,1000\n");
    assert_eq!(times(&run), [(0.0, 1000.0), (60.0, 1060.0)]);
}

#[test]
fn jobs_that_gain_nothing_together_take_turns() {
    let run = run("tandem", "1x1", "a,u,0,1,1000,100,1000\nb,u,10,1,2000,100,1000\n");
    assert_eq!(times(&run), [(0.0, 1000.0), (1000.0, 3000.0)]);
}

#[test]
fn a_short_job_takes_the_place_of_a_long_one_but_not_of_one_about_as_short() {
    let long = run("tandem", "1x1", "a,u,0,1,10000,100,1000\nb,u,10,1,100,100,1000\n");
    // The long one pays 40 s to restore its state.
    assert_eq!(times(&long), [(0.0, 10_140.0), (60.0, 160.0)]);
    let alike = run("tandem", "1x1", "a,u,0,1,1000,100,1000\nb,u,10,1,920,100,1000\n");
    assert_eq!(times(&alike), [(0.0, 1000.0), (1000.0, 1920.0)]);
}

#[test]
fn a_gang_yields_to_several_small_jobs_that_are_worth_more_together_and_not_to_one() {
    let one = run("tandem", "1x8", "gang,u,0,8,2000,100,1000\nsmall,u,10,1,3000,100,1000\n");
    assert_eq!(ends(&one), [2000.0, 5000.0]);
    let mut rows = "gang,u,0,8,2000,100,1000\n".to_owned();
    for small in 0..8 {
        writeln!(rows, "s{small},u,10,1,3000,100,1000").unwrap();
    }
    let eight = run("tandem", "1x8", &rows);
    assert_eq!(ends(&eight)[1], 3060.0, "they start at the first review");
    assert!(ends(&eight)[0] > 3060.0, "the gang waits for them");
}

#[test]
fn short_jobs_that_are_spread_over_the_nodes_make_room_for_a_gang_by_moving_together() {
    let rows = "long0,u,0,1,100000,100,1000\nshort0,u,0,1,1000,100,1000\n\
                long1,u,1,1,100000,100,1000\nshort1,u,1,1,1000,100,1000\n\
                gang,u,10,2,5000,100,1000\n";
    let run = run("tandem", "2x2", rows);
    let ends = ends(&run);
    assert_eq!(times(&run)[4], (60.0, 5060.0));
    // The first one moves and pays 40 s for that.
    assert_eq!((ends[1], ends[3]), (1040.0, 1001.0));
    assert!(ends[0] > 100_000.0 && ends[2] > 100_000.0, "the long ones wait");
}

#[test]
fn small_guests_sit_beside_a_large_gang_and_a_large_one_beside_small_hosts() {
    let mut rows = "gang,u,0,8,5000,30,1000\n".to_owned();
    for small in 0..8 {
        writeln!(rows, "s{small},u,10,1,5000,30,1000").unwrap();
    }
    let small = run("tandem", "1x8", &rows);
    assert!(ends(&small).iter().skip(1).all(|&end| end == 5060.0), "{:?}", ends(&small));
    assert_eq!(ends(&small)[0], 5000.0);
    let mut rows = String::new();
    for small in 0..16 {
        writeln!(rows, "s{small},u,0,1,5000,30,1000").unwrap();
    }
    rows.push_str("gang,u,10,16,5000,30,1000\n");
    let large = run("tandem", "2x8", &rows);
    assert_eq!(ends(&large)[16], 5060.0);
    let equal_only = run("tandem:mix=false", "2x8", &rows);
    assert_eq!(ends(&equal_only)[16], 10_000.0, "without mixing it waits for all of them");
}

#[test]
fn jobs_part_when_gpus_fall_free_and_parting_pays() {
    // The two heavy ones share because the short one holds the other GPU, until it ends.
    let rows = "short,u,0,1,900,100,1000\na,u,0,1,20000,70,1000\nb,u,10,1,20000,70,1000\n";
    let parted = run("tandem:preempt=false", "1x2", rows);
    let together = run("tandem:preempt=false,part=false", "1x2", rows);
    assert!(ends(&parted)[1] < ends(&together)[1] && ends(&parted)[2] < ends(&together)[2]);
    assert_eq!(parted.outcomes.iter().map(|outcome| outcome.preemptions).sum::<u32>(), 1);
}

#[test]
fn an_exclusive_job_never_shares_under_any_policy() {
    let mut rows = String::new();
    for job in 0..30 {
        let exclusive = u8::from(job % 3 == 0);
        writeln!(rows, "j{job},u,{},{},2000,20,100,{exclusive}", job * 20, 1 + job % 2).unwrap();
    }
    for entry in tandem_policies::REGISTRY {
        let run = run_with(entry.name, "1x4", ",exclusive", &rows);
        for (job, outcome) in run.outcomes.iter().enumerate() {
            assert!(job % 3 != 0 || outcome.shared.0 == 0, "{}: job {job} shares", entry.name);
        }
    }
}

#[test]
fn nobody_is_slowed_down_more_than_he_accepts() {
    // Beside each other both run at 1 / 1.4 of their speed.
    let rows = |most: &str| format!("a,u,0,1,9000,70,100,{most}\nb,u,10,1,9000,70,100,\n");
    let shares = |most: &str| {
        let run = run_with("tandem", "1x1", ",max_slowdown", &rows(most));
        run.outcomes[0].shared.0 > 0
    };
    assert!(shares("") && shares("1.4") && !shares("1.39"));
}

#[test]
fn a_third_tenant_counts_towards_what_a_job_accepts() {
    // Two beside it would be too much where one is not.
    let rows = "a,u,0,1,9000,40,100,1.2\nb,u,0,1,9000,60,100,\nc,u,0,1,9000,60,100,\n";
    let run = run_with("tandem", "1x1", ",max_slowdown", rows);
    assert!(ends(&run)[0] <= 9000.0 * 1.2 + 60.0, "{:?}", ends(&run));
}

#[test]
fn priority_goes_before_length() {
    let rows = "r,u,0,1,500,100,100,0\nlong,u,10,1,6000,100,100,4\nshort,u,10,1,2000,100,100,0\n";
    let run = run_with("tandem", "1x1", ",priority", rows);
    assert!(ends(&run)[1] < ends(&run)[2], "{:?}", ends(&run));
    let plain = run_with("tandem", "1x1", ",priority", &rows.replace(",4\n", ",0\n"));
    assert!(ends(&plain)[1] > ends(&plain)[2], "{:?}", ends(&plain));
}

#[test]
fn fairness_serves_a_user_with_few_jobs_before_one_with_many() {
    // One user fills the GPUs for days with jobs a little shorter than the other user's.
    let mut rows = String::new();
    for job in 0..120 {
        writeln!(rows, "m{job},many,{},1,9000,100,100", job * 10).unwrap();
    }
    for job in 0..4 {
        writeln!(rows, "f{job},few,{},1,10000,100,100", 50_000 + job).unwrap();
    }
    let mean_end_of_few = |policy: &str| {
        let ends = ends(&run(policy, "1x4", &rows));
        ends[120..].iter().sum::<f64>() / 4.0
    };
    let (unfair, fair) = (mean_end_of_few("tandem"), mean_end_of_few("tandem:fairness=1"));
    assert!(unfair > 250_000.0, "it comes last: {unfair}");
    assert!(fair < 90_000.0, "its turn comes at once: {fair}");
}

#[test]
fn everyone_makes_progress_whatever_the_reviews_change_their_mind_about() {
    // Gangs that fill the partition, alike in length, reviewed as often as restoring takes.
    let mut rows = String::new();
    for job in 0..6 {
        writeln!(rows, "g{job},u,{},16,{},55,100", job * 7, 30_000 + 500 * job).unwrap();
    }
    for slice in ["tandem:slice_s=20", "tandem:slice_s=60"] {
        let run = run(slice, "2x8", &rows);
        let preemptions: u32 = run.outcomes.iter().map(|outcome| outcome.preemptions).sum();
        assert!(preemptions < 60, "{slice}: {preemptions} preemptions");
    }
}

#[test]
fn it_is_better_than_its_ingredients_left_out_on_a_busy_cluster() {
    let workload = generated(1500, 1.5, 5, cluster("4x8"));
    let mean = |policy: &str| {
        let options = RunOptions { placement: PlacementRule::Strict, ..RunOptions::default() };
        let run = simulate(&workload, &PolicySpec::parse(policy).unwrap(), &options);
        run.metrics.avg_jct_s
    };
    let whole = mean("tandem");
    let mut worse: BTreeMap<&str, f64> = BTreeMap::new();
    for less in ["tandem:share=false", "tandem:mix=false", "srtf", "srsf", "gshare", "sjf-bsbf"] {
        worse.insert(less, mean(less));
    }
    assert!(worse.values().all(|&other| other > whole), "{whole} against {worse:?}");
}

#[test]
fn extreme_wishes_and_lengths_overflow_nothing() {
    let mut rows = String::new();
    for job in 0..200 {
        let (gpus, priority) = (1 + job % 16, if job % 2 == 0 { 10 } else { -10 });
        let duration = if job % 5 == 0 { 90_000_000_000_u64 } else { 1 };
        writeln!(rows, "j{job},u{},0,{gpus},{duration},35,100,{priority}", job % 7).unwrap();
    }
    let run = run_with("tandem:fairness=1", "2x8", ",priority", &rows);
    assert!(run.outcomes.iter().all(|outcome| outcome.end.is_some()));
}

#[test]
fn one_tenant_at_most_is_no_sharing() {
    let rows = "a,u,0,1,1000,40,1000\nb,u,10,1,1000,40,1000\n";
    let run = run("tandem:tenants=1", "1x1", rows);
    assert!(run.outcomes.iter().all(|outcome| outcome.shared.0 == 0));
}
