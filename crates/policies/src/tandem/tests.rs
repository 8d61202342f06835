use crate::testing::{cluster, generated, mean_jct_s, run, times, workload};
use std::collections::BTreeMap;
use std::fmt::Write;
use tandem_sim::SimRun;

/// Rows: id, user, submit, GPUs, duration, utilisation, memory, then the columns that `more` names.
fn run_columns(policy: &str, cluster: &str, more: &str, rows: &str) -> SimRun {
    let columns = format!("job_id,user,submit_s,gpus,duration_s,gpu_util,memory_mib{more}");
    run(&workload(cluster, &columns, rows), policy)
}

fn run_rows(policy: &str, cluster: &str, rows: &str) -> SimRun {
    run_columns(policy, cluster, "", rows)
}

fn ends(run: &SimRun) -> Vec<f64> {
    times(run).into_iter().map(|(_, end)| end).collect()
}

#[test]
fn a_light_job_joins_a_light_one_at_the_next_review() {
    let run = run_rows("tandem", "1x1", "a,u,0,1,1000,40,1000\nb,u,10,1,1000,40,1000\n");
    assert_eq!(times(&run), [(0.0, 1000.0), (60.0, 1060.0)]);
}

#[test]
fn jobs_that_gain_nothing_together_take_turns() {
    let run = run_rows("tandem", "1x1", "a,u,0,1,1000,100,1000\nb,u,10,1,2000,100,1000\n");
    assert_eq!(times(&run), [(0.0, 1000.0), (1000.0, 3000.0)]);
}

#[test]
fn a_short_job_preempts_a_long_one_but_not_one_about_as_short() {
    let long = run_rows("tandem", "1x1", "a,u,0,1,10000,100,1000\nb,u,10,1,100,100,1000\n");
    // The long one pays 40 s to restore its state.
    assert_eq!(times(&long), [(0.0, 10_140.0), (60.0, 160.0)]);
    let alike = run_rows("tandem", "1x1", "a,u,0,1,1000,100,1000\nb,u,10,1,920,100,1000\n");
    assert_eq!(times(&alike), [(0.0, 1000.0), (1000.0, 1920.0)]);
}

#[test]
fn small_jobs_share_with_a_large_gang_and_a_large_gang_with_small_jobs() {
    let mut rows = "gang,u,0,8,5000,30,1000\n".to_owned();
    for small in 0..8 {
        writeln!(rows, "s{small},u,10,1,5000,30,1000").unwrap();
    }
    let small = run_rows("tandem", "1x8", &rows);
    assert!(ends(&small).iter().skip(1).all(|&end| end == 5060.0), "{:?}", ends(&small));
    assert_eq!(ends(&small)[0], 5000.0);
    let mut rows = String::new();
    for small in 0..16 {
        writeln!(rows, "s{small},u,0,1,5000,30,1000").unwrap();
    }
    rows.push_str("gang,u,10,16,5000,30,1000\n");
    let large = run_rows("tandem", "2x8", &rows);
    assert_eq!(ends(&large)[16], 5060.0);
    let equal_only = run_rows("tandem:mix=false", "2x8", &rows);
    assert_eq!(ends(&equal_only)[16], 10_000.0, "without mixing it waits for all of them");
}

#[test]
fn co_located_jobs_separate_when_gpus_fall_free_and_that_pays() {
    // The two heavy ones share because the short one holds the other GPU, until it ends.
    let rows = "short,u,0,1,900,100,1000\na,u,0,1,20000,70,1000\nb,u,10,1,20000,70,1000\n";
    let separated = run_rows("tandem:preempt=false", "1x2", rows);
    let together = run_rows("tandem:preempt=false,part=false", "1x2", rows);
    assert!(ends(&separated)[1] < ends(&together)[1] && ends(&separated)[2] < ends(&together)[2]);
    assert_eq!(separated.outcomes.iter().map(|outcome| outcome.preemptions).sum::<u32>(), 1);
}

#[test]
fn no_job_is_slowed_down_more_than_it_accepts() {
    // Beside each other both run at 1 / 1.4 of their speed.
    let rows = |most: &str| format!("a,u,0,1,9000,70,100,{most}\nb,u,10,1,9000,70,100,\n");
    let run = |policy: &str, most: &str| run_columns(policy, "1x1", ",max_slowdown", &rows(most));
    let shares = |most: &str| run("tandem:budgets=off", most).outcomes[0].shared.0 > 0;
    assert!(shares("") && shares("1.4") && !shares("1.39"));
    // Where the other can be capped, they share all the same, and the promise is kept.
    for mode in ["tandem:budgets=strict", "tandem"] {
        for most in [1.3, 1.2] {
            let run = run(mode, &most.to_string());
            assert!(run.outcomes[0].shared.0 > 0, "{mode} {most}");
            assert!(ends(&run)[0] <= 9000.0 * most + 1.0, "{mode} {most}: {:?}", ends(&run));
        }
    }
}

/// Without caps the services would break their promises: 1 / 1.4 of their speed, where they need 0.86.
#[test]
fn training_gets_most_beside_services_where_budgets_compete() {
    let mut rows = String::new();
    for service in 0..4 {
        rows += &format!("s{service},u,0,1,40000,40,100,service,100,40\n");
    }
    for job in 0..40 {
        rows += &format!("t{job},u,{},1,2000,100,100,training,,\n", 60 * (job + 1));
    }
    let mean_jct = |mode: &str| {
        let policy = format!("tandem:budgets={mode}");
        let run = run_columns(&policy, "1x6", ",kind,rate_per_s,slo_ms", &rows);
        for service in &run.outcomes[..4] {
            assert!(service.kept.0 >= 39_600_000_000, "{mode}: {service:?}");
        }
        let submitted = |job: usize| 60.0 * (job + 1) as f64;
        ends(&run)[4..].iter().enumerate().map(|(job, end)| end - submitted(job)).sum::<f64>()
            / 40.0
    };
    let [off, strict, competitive] = ["off", "strict", "competitive"].map(mean_jct);
    assert!(competitive < strict && strict < off, "{competitive} {strict} {off}");
}

#[test]
fn a_third_tenant_counts_towards_what_a_job_accepts() {
    // Two beside it would be too much where one is not.
    let rows = "a,u,0,1,9000,40,100,1.2\nb,u,0,1,9000,60,100,\nc,u,0,1,9000,60,100,\n";
    let run = run_columns("tandem", "1x1", ",max_slowdown", rows);
    assert!(ends(&run)[0] <= 9000.0 * 1.2 + 60.0, "{:?}", ends(&run));
}

#[test]
fn priority_goes_before_length() {
    let rows = "r,u,0,1,500,100,100,0\nlong,u,10,1,6000,100,100,4\nshort,u,10,1,2000,100,100,0\n";
    let run = run_columns("tandem", "1x1", ",priority", rows);
    assert!(ends(&run)[1] < ends(&run)[2], "{:?}", ends(&run));
    let plain = run_columns("tandem", "1x1", ",priority", &rows.replace(",4\n", ",0\n"));
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
        let ends = ends(&run_rows(policy, "1x4", &rows));
        ends[120..].iter().sum::<f64>() / 4.0
    };
    let (unfair, fair) = (mean_end_of_few("tandem"), mean_end_of_few("tandem:fairness=1"));
    assert!(unfair > 250_000.0, "it runs last: {unfair}");
    assert!(fair < 90_000.0, "it runs at once: {fair}");
}

#[test]
fn every_job_makes_progress_whatever_later_reviews_decide() {
    // Gangs that fill the partition, alike in length, reviewed as often as restoring takes.
    let mut rows = String::new();
    for job in 0..6 {
        writeln!(rows, "g{job},u,{},16,{},55,100", job * 7, 30_000 + 500 * job).unwrap();
    }
    for slice in ["tandem:slice_s=20", "tandem:slice_s=60"] {
        let run = run_rows(slice, "2x8", &rows);
        let preemptions: u32 = run.outcomes.iter().map(|outcome| outcome.preemptions).sum();
        assert!(preemptions < 60, "{slice}: {preemptions} preemptions");
    }
}

#[test]
fn it_is_better_than_without_its_parts_on_a_busy_cluster() {
    let workload = generated(1500, 1.5, 5, cluster("4x8"));
    let mean = |policy: &str| mean_jct_s(&workload, policy);
    let whole = mean("tandem");
    let mut worse: BTreeMap<&str, f64> = BTreeMap::new();
    for less in ["tandem:share=false", "tandem:mix=false", "srtf", "srsf", "gshare", "sjf-bsbf"] {
        worse.insert(less, mean(less));
    }
    assert!(worse.values().all(|&other| other > whole), "{whole} against {worse:?}");
}

#[test]
fn extreme_priorities_and_durations_overflow_nothing() {
    let mut rows = String::new();
    for job in 0..200 {
        let (gpus, priority) = (1 + job % 16, if job % 2 == 0 { 20 } else { -20 });
        let duration = if job % 5 == 0 { 90_000_000_000_u64 } else { 1 };
        writeln!(rows, "j{job},u{},0,{gpus},{duration},35,100,{priority}", job % 7).unwrap();
    }
    let run = run_columns("tandem:fairness=1", "2x8", ",priority", &rows);
    assert!(run.outcomes.iter().all(|outcome| outcome.end.is_some()));
}

#[test]
fn with_one_tenant_per_gpu_no_job_shares() {
    let rows = "a,u,0,1,1000,40,1000\nb,u,10,1,1000,40,1000\n";
    let run = run_rows("tandem:tenants=1", "1x1", rows);
    assert!(run.outcomes.iter().all(|outcome| outcome.shared.0 == 0));
}

#[test]
fn a_job_that_was_passed_over_for_too_long_goes_first_and_is_not_preempted() {
    // Short jobs come faster than the GPU can run them, for 67 hours.
    let mut rows = String::new();
    for at in 0..400 {
        writeln!(rows, "s{at},u,{},1,700,100,1000", at * 600).unwrap();
    }
    rows.push_str("long,u,10,1,20000,100,1000\n");
    let of_long = |policy: &str| {
        let run = run_rows(policy, "1x1", &rows);
        (times(&run)[1], run.outcomes[1].preemptions)
    };
    let ((start, end), preemptions) = of_long("tandem:patience=1");
    assert!(start <= 21_000.0, "it is overdue after its estimate of 20,000 s: {start}");
    assert_eq!((end - start, preemptions), (20_000.0, 0));
    let ((start, _), _) = of_long("tandem:patience=0");
    assert!(start > 240_000.0, "without the rule it starts last: {start}");
}
