//! The example of docs/developers/add-a-policy.md: the guide shows it as it is compiled here, and it passes
//! the checks of every policy.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod checks;
#[path = "guide/least_attained.rs"]
mod least_attained;

use checks::common::{cluster, simulate, times, workload};
use least_attained::ENTRY;
// What a file of the crate finds under `crate::`.
use tandem_policies::{Entry, PolicyParam, PolicySpec, kit};
use tandem_sim::{RunOptions, SimRun};

fn run(cluster_spec: &str, rows: &str) -> SimRun {
    let csv = format!("job_id,submit_s,gpus,duration_s,gpu_util,memory_mib\n{rows}");
    let options = RunOptions { verify: true, ..RunOptions::default() };
    simulate(&workload(&csv, cluster(cluster_spec)), &PolicySpec::of(&ENTRY), &options)
}

#[test]
fn the_guide_shows_the_code_that_is_compiled_in_at_most_80_lines() {
    let guide = include_str!("../../../docs/developers/add-a-policy.md");
    let code = include_str!("guide/least_attained.rs");
    assert!(guide.contains(&format!("```rust\n{code}```\n")), "the guide shows other code");
    assert!(code.lines().count() <= 80, "{} lines", code.lines().count());
}

#[test]
fn the_example_passes_the_checks_of_every_policy() {
    let policy = [PolicySpec::of(&ENTRY)];
    checks::is_legal_idempotent_deterministic_and_loses_no_job(&policy);
    checks::keeps_jobs_that_cannot_be_stopped(&policy);
    checks::survives_failing_gpus(&policy);
    checks::holds_on_a_shared_network_with_learned_estimates(&policy);
}

#[test]
fn the_example_runs_the_job_with_the_least_attained_service() {
    // The long job has attained 300 GPU-seconds at the review at which the other preempts it, and pays
    // 40 s for the restore.
    let run = run("1x1", "long,0,1,1000,100,100\nlate,10,1,200,100,100\n");
    assert_eq!(times(&run), [(0.0, 1240.0), (300.0, 500.0)]);
}

#[test]
fn the_example_shares_where_the_rates_add_up_to_more_than_1_3() {
    // 75 % + 75 %: both run at 2/3.
    let good = run("1x1", "a,0,1,200,75,100\nb,0,1,200,75,100\n");
    assert_eq!(times(&good).iter().map(|time| time.0).collect::<Vec<_>>(), [0.0, 0.0]);
    // 80 % + 80 %: both would run at 0.625.
    let bad = run("1x1", "a,0,1,200,80,100\nb,0,1,200,80,100\n");
    assert_eq!(times(&bad), [(0.0, 200.0), (200.0, 400.0)]);
}
