//! Policies in Python pass the checks of every policy, and their mistakes are one line.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../policies/tests/checks/mod.rs"]
mod checks;

use checks::common::{cluster, generated, times, workload};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;
use tandem_core::ClosedForm;
use tandem_policies::PolicySpec;
use tandem_python_policy::{FirstError, spec};
use tandem_sim::{RunError, RunOptions, SimRun, Workload};

const EXAMPLE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/python/least_attained.py");
const MISTAKES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policies/mistakes.py");
const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/src");

/// An interpreter that finds the module; `None` after saying that the test is skipped.
fn python() -> Option<(tempfile::TempDir, std::path::PathBuf)> {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("python");
    let script = format!("#!/bin/sh\nPYTHONPATH='{MODULE}' exec python3 \"$@\"\n");
    std::fs::write(&path, script).unwrap();
    Command::new("chmod").arg("755").arg(&path).status().unwrap();
    Some((folder, path))
}

fn policy(python: &Path, file: &str, class: &str) -> (PolicySpec, FirstError) {
    spec(&format!("python:{file}:{class}"), python).unwrap()
}

fn run(workload: &Workload, policy: &PolicySpec) -> Result<SimRun, RunError> {
    let options = RunOptions { verify: true, ..RunOptions::default() };
    let truth: Arc<dyn tandem_core::Interference> = Arc::new(ClosedForm);
    tandem_sim::run(workload, policy, &truth, &options, &AtomicU64::new(0))
}

fn rows(cluster_spec: &str, rows: &str) -> Workload {
    let csv = format!("job_id,submit_s,gpus,duration_s,gpu_util,memory_mib\n{rows}");
    workload(&csv, cluster(cluster_spec))
}

#[test]
fn the_example_passes_the_checks_of_every_policy() {
    let Some((_folder, python)) = python() else { return };
    let (policy, errors) = policy(&python, EXAMPLE, "LeastAttained");
    let policy = [policy];
    checks::is_legal_idempotent_deterministic_and_loses_no_job(&policy);
    checks::keeps_jobs_that_cannot_be_stopped(&policy);
    checks::survives_failing_gpus(&policy);
    assert_eq!(errors.get(), None);
}

#[test]
fn the_example_decides_as_the_one_in_rust_and_has_at_most_40_lines() {
    let Some((_folder, python)) = python() else { return };
    let (policy, errors) = policy(&python, EXAMPLE, "LeastAttained");
    let preempted = rows("1x1", "long,0,1,1000,100,100\nlate,10,1,200,100,100\n");
    assert_eq!(times(&run(&preempted, &policy).unwrap()), [(0.0, 1240.0), (300.0, 500.0)]);
    let good = rows("1x1", "a,0,1,200,75,100\nb,0,1,200,75,100\n");
    assert!(times(&run(&good, &policy).unwrap()).iter().all(|time| time.0 == 0.0));
    let bad = rows("1x1", "a,0,1,200,80,100\nb,0,1,200,80,100\n");
    assert_eq!(times(&run(&bad, &policy).unwrap()), [(0.0, 200.0), (200.0, 400.0)]);
    // The memory of both does not fit.
    let large = rows("1x1", "a,0,1,200,30,20000\nb,0,1,200,30,20000\n");
    assert_eq!(times(&run(&large, &policy).unwrap()), [(0.0, 200.0), (200.0, 400.0)]);
    assert_eq!(errors.get(), None);
    assert!(std::fs::read_to_string(EXAMPLE).unwrap().lines().count() <= 40);
}

#[test]
fn parameters_reach_the_class() {
    let Some((_folder, python)) = python() else { return };
    let (policy, _) = policy(&python, EXAMPLE, "LeastAttained:interval_s=100,rates_min=1.2");
    let preempted = rows("1x1", "long,0,1,1000,100,100\nlate,10,1,200,100,100\n");
    assert_eq!(times(&run(&preempted, &policy).unwrap())[1].0, 100.0);
}

#[test]
fn mistakes_are_one_line_that_names_the_place() {
    let Some((_folder, python)) = python() else { return };
    let two = rows("1x1", "a,0,1,100,50,100\nb,10,1,100,50,100\n");
    for (class, expected) in [
        ("Fails", "mistakes.py, line 7: KeyError: 'a mistake'"),
        ("PlacesTwice", "mistakes.py, line 16: RefusedOperation: job 0 runs already"),
        ("Exits", "mistakes.py, line 26: SystemExit"),
    ] {
        let (policy, errors) = policy(&python, MISTAKES, class);
        assert!(run(&two, &policy).is_err(), "{class}");
        let said = errors.get().unwrap().to_string();
        assert!(said.contains(expected) && !said.contains('\n'), "{class}: {said}");
    }
    // A policy that does nothing is told by the simulator.
    let (silent, errors) = policy(&python, MISTAKES, "Silent");
    assert!(matches!(run(&two, &silent), Err(RunError::Stalled { .. })));
    assert_eq!(errors.get(), None);
    // What it prints is no message to the scheduler.
    let (prints, _) = policy(&python, MISTAKES, "Prints");
    assert_eq!(times(&run(&two, &prints).unwrap()), [(0.0, 100.0), (100.0, 200.0)]);
}

#[test]
fn what_cannot_be_made_is_refused_before_the_run() {
    let Some((_folder, python)) = python() else { return };
    let refuse =
        |class: &str| spec(&format!("python:{MISTAKES}:{class}"), &python).unwrap_err().to_string();
    assert!(refuse("Absent").contains("has no class Absent derived from"), "{}", refuse("Absent"));
    assert!(refuse("NotAPolicy").contains("derived from tandem.policy.Policy"));
    assert!(refuse("NeedsMore").contains("missing 1 required positional argument"));
    assert!(refuse("NeedsMore:number=x").contains("line 39: ValueError: number is a whole number"));
    let absent = spec(&format!("python:{MISTAKES}:Prints"), Path::new("/nowhere/python3"));
    assert!(absent.unwrap_err().to_string().contains("TANDEM_PYTHON"));
    let without_module = spec(&format!("python:{MISTAKES}:Prints"), Path::new("true"));
    assert!(without_module.unwrap_err().to_string().contains("pip install tandem-gpu"));
}

/// Measured, for the guide: `cargo test --release -p tandem-python-policy -- --nocapture speed`.
#[test]
fn speed_is_measured() {
    let Some((_folder, python)) = python() else { return };
    let (policy, _) = policy(&python, EXAMPLE, "LeastAttained");
    let workload = generated(300, 1.0, 1, cluster("4x8"));
    let begin = Instant::now();
    let truth: Arc<dyn tandem_core::Interference> = Arc::new(ClosedForm);
    let options = RunOptions::default();
    let run = tandem_sim::run(&workload, &policy, &truth, &options, &AtomicU64::new(0)).unwrap();
    let plans = run.metrics.decisions;
    eprintln!("{} plans per second", plans as f64 / begin.elapsed().as_secs_f64());
    assert!(plans > 0);
}
