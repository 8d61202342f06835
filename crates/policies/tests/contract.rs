//! What holds for every registered policy: legal plans, equal results of equal runs, no lost job, no action
//! without a change. Every policy of the registry is tested.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "../../sim/tests/common/mod.rs"]
mod common;

use common::{cluster, generated, simulate};
use std::fmt::Write;
use tandem_core::{Action, PlacementRule};
use tandem_policies::{PolicySpec, REGISTRY};
use tandem_sim::trace::{GenerateOptions, generate};
use tandem_sim::{Estimates, FaultOptions, Network, RunOptions, SimRun, Workload, WorkloadOptions};

/// Each policy with its defaults, and with every flag turned over.
fn specs() -> Vec<PolicySpec> {
    let mut specs: Vec<PolicySpec> = REGISTRY.iter().map(PolicySpec::of).collect();
    for entry in REGISTRY {
        for param in entry.params {
            let other = match param.default {
                tandem_policies::Value::Flag(flag) => (!flag).to_string(),
                tandem_policies::Value::Whole(number) => (number / 2 + 1).to_string(),
                tandem_policies::Value::Share(_) => "0.5".to_owned(),
                tandem_policies::Value::Choice { of, .. } => of.last().unwrap().to_string(),
            };
            specs.push(
                PolicySpec::parse(&format!("{}:{}={other}", entry.name, param.name)).unwrap(),
            );
        }
    }
    specs
}

/// Legality and idempotence are asserted inside, after every step.
fn verified(workload: &Workload, policy: &PolicySpec, options: &RunOptions) -> SimRun {
    let options = RunOptions { verify: true, ..options.clone() };
    let run = simulate(workload, policy, &options);
    for (job, outcome) in workload.jobs.iter().zip(&run.outcomes) {
        let (start, end) = (outcome.start.unwrap(), outcome.end.unwrap());
        assert!(job.spec.submit <= start, "{}: starts before it is submitted", policy.text);
        let alone = job.duration;
        assert!(end.since(start) >= alone, "{}: faster than alone", policy.text);
    }
    run
}

fn outcomes(run: &SimRun) -> String {
    format!("{:?} {:?} {:?}", run.outcomes, run.nodes, run.metrics)
}

#[test]
fn every_policy_is_legal_idempotent_deterministic_and_loses_no_job() {
    let cluster = cluster("4x8");
    for seed in 1..=3 {
        let workload = generated(250, 1.2, seed, cluster.clone());
        for policy in specs() {
            for placement in [PlacementRule::Strict, PlacementRule::Scatter] {
                let options = RunOptions { placement, ..RunOptions::default() };
                let run = verified(&workload, &policy, &options);
                let again = simulate(&workload, &policy, &RunOptions { verify: true, ..options });
                assert_eq!(outcomes(&run), outcomes(&again), "{} seed {seed}", policy.text);
            }
        }
    }
}

/// The actions of a run agree with the outcomes of its jobs.
#[test]
fn a_run_hands_out_its_actions_if_asked() {
    let workload = generated(100, 1.2, 2, cluster("2x8"));
    for policy in REGISTRY.iter().map(PolicySpec::of) {
        let options = RunOptions { log_actions: true, ..RunOptions::default() };
        let run = simulate(&workload, &policy, &options);
        assert!(run.actions.is_sorted_by(|one, other| one.0 < other.0), "{}", policy.text);
        let mut starts = vec![None; workload.len()];
        let mut stops = vec![0; workload.len()];
        for (now, actions) in &run.actions {
            assert!(!actions.is_empty());
            for action in actions {
                match action {
                    Action::Start { job, restore, .. } => {
                        let first = starts[job.index()].replace(*now);
                        assert_eq!(first.is_some(), *restore, "{}", policy.text);
                        starts[job.index()] = first.or(Some(*now));
                    }
                    Action::Stop { job } | Action::Move { job, .. } => stops[job.index()] += 1,
                    Action::Pause { .. } | Action::Resume { .. } => {}
                }
            }
        }
        for ((start, stops), outcome) in starts.into_iter().zip(stops).zip(&run.outcomes) {
            assert_eq!((start, stops), (outcome.start, outcome.preemptions), "{}", policy.text);
        }
        let silent = simulate(&workload, &policy, &RunOptions::default());
        assert!(silent.actions.is_empty());
    }
}

#[test]
fn no_policy_drops_or_moves_a_job_that_cannot_be_stopped() {
    let faults = FaultOptions::parse("mtbf_h=100,repair_h=2,checkpoint_min=10").unwrap();
    for (seed, faults) in [(1, None), (2, None), (3, Some(faults))] {
        let mut workload = generated(250, 1.2, seed, cluster("4x8"));
        for job in workload.jobs.iter_mut().step_by(3) {
            job.spec.stoppable = false;
        }
        for policy in specs() {
            let options = RunOptions { faults, seed, ..RunOptions::default() };
            let run = verified(&workload, &policy, &options);
            for (job, outcome) in workload.jobs.iter().zip(&run.outcomes) {
                let stays = job.spec.stoppable || outcome.preemptions == 0;
                assert!(stays, "{} seed {seed}: {:?}", policy.text, job.spec.id);
            }
        }
    }
}

#[test]
fn every_policy_survives_failing_gpus() {
    let workload = generated(150, 0.8, 5, cluster("4x8"));
    let faults = FaultOptions::parse("mtbf_h=50,repair_h=2,checkpoint_min=10").unwrap();
    for policy in specs() {
        let options = RunOptions { faults: Some(faults), seed: 9, ..RunOptions::default() };
        let run = verified(&workload, &policy, &options);
        let interruptions: u32 = run.outcomes.iter().map(|outcome| outcome.interruptions).sum();
        assert!(interruptions > 0, "{}: the faults of this test hit somebody", policy.text);
        let options = RunOptions { verify: true, ..options };
        assert_eq!(outcomes(&run), outcomes(&simulate(&workload, &policy, &options)));
    }
}

#[test]
fn every_policy_holds_on_a_shared_network_with_estimates_that_it_has_to_learn() {
    let trace = generate(&GenerateOptions { jobs: 150, gpus: 32, load: 0.8, seed: 6 });
    let options = WorkloadOptions { estimates: Estimates::History, ..WorkloadOptions::default() };
    let workload = Workload::new(trace, cluster("8x4"), "generated", &options).unwrap();
    for policy in specs() {
        let options = RunOptions {
            network: Some(Network::default()),
            placement: PlacementRule::Scatter,
            faults: Some(FaultOptions::parse("mtbf_h=200,repair_h=2").unwrap()),
            verify: true,
            ..RunOptions::default()
        };
        let run = verified(&workload, &policy, &options);
        assert!(run.estimates.is_some());
        assert_eq!(outcomes(&run), outcomes(&simulate(&workload, &policy, &options)));
    }
}

#[test]
fn partitions_do_not_see_each_other() {
    // The jobs of one partition run equally whether or not the other has any.
    let row = |id: u32, partition: &str| {
        format!("{id},{partition},{},{},{}\n", id * 7, id % 4 + 1, (id * 37) % 200 + 1)
    };
    let header = "job_id,partition,submit_s,gpus,duration_s\n";
    let both: String = (0..80).map(|id| row(id, if id % 2 == 0 { "a" } else { "b" })).collect();
    let one: String = (0..80).filter(|id| id % 2 == 0).map(|id| row(id, "a")).collect();
    let cluster = std::sync::Arc::new({
        let mut builder = tandem_core::ClusterBuilder::default();
        let kind = builder.gpu_type("gpu", tandem_core::Ratio::ONE);
        for name in ["a", "b"] {
            builder.partition(name);
            builder.node(4, kind, tandem_sim::clusters::DEFAULT_MEMORY);
        }
        builder.build()
    });
    for policy in specs() {
        let all = common::workload(&format!("{header}{both}"), cluster.clone());
        let alone = common::workload(&format!("{header}{one}"), cluster.clone());
        let of_a: Vec<_> = common::times(&simulate(&all, &policy, &RunOptions::default()))
            .into_iter()
            .step_by(2)
            .collect();
        let expected = common::times(&simulate(&alone, &policy, &RunOptions::default()));
        assert_eq!(of_a, expected, "{}", policy.text);
    }
}

#[test]
fn an_exclusive_job_never_shares_under_any_policy() {
    let mut rows = String::new();
    for job in 0..30 {
        let exclusive = u8::from(job % 3 == 0);
        writeln!(rows, "j{job},u,{},{},2000,20,100,{exclusive}", job * 20, 1 + job % 2).unwrap();
    }
    let columns = "job_id,user,submit_s,gpus,duration_s,gpu_util,memory_mib,exclusive";
    let workload = common::workload(&format!("{columns}\n{rows}"), cluster("1x4"));
    for entry in REGISTRY {
        let run = simulate(&workload, &PolicySpec::of(entry), &RunOptions::default());
        for (job, outcome) in run.outcomes.iter().enumerate() {
            assert!(job % 3 != 0 || outcome.shared.0 == 0, "{}: job {job} shares", entry.name);
        }
    }
}
