//! The checks of every policy, over the registry: a policy joins by being in it.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod checks;

use checks::common::{self, cluster, generated, simulate};
use std::fmt::Write;
use tandem_core::Action;
use tandem_policies::{PolicySpec, REGISTRY, Value};
use tandem_sim::RunOptions;

/// Each policy with its defaults, and with each parameter changed.
fn specs() -> Vec<PolicySpec> {
    let mut specs: Vec<PolicySpec> = REGISTRY.iter().map(PolicySpec::of).collect();
    for entry in REGISTRY {
        for param in entry.params {
            let other = match param.default {
                Value::Flag(flag) => (!flag).to_string(),
                Value::Whole(number) => (number / 2 + 1).to_string(),
                Value::Share(_) => "0.5".to_owned(),
                Value::Choice { of, .. } => of.last().unwrap().to_string(),
            };
            specs.push(
                PolicySpec::parse(&format!("{}:{}={other}", entry.name, param.name)).unwrap(),
            );
        }
    }
    specs
}

#[test]
fn every_policy_is_legal_idempotent_deterministic_and_loses_no_job() {
    checks::is_legal_idempotent_deterministic_and_loses_no_job(&specs());
}

#[test]
fn no_policy_preempts_or_moves_a_job_that_cannot_be_stopped() {
    checks::keeps_jobs_that_cannot_be_stopped(&specs());
}

#[test]
fn every_policy_survives_failing_gpus() {
    checks::survives_failing_gpus(&specs());
}

#[test]
fn every_policy_holds_on_a_shared_network_with_learned_estimates() {
    checks::holds_on_a_shared_network_with_learned_estimates(&specs());
}

/// The actions of a run are what became of its jobs.
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
                    Action::Budget { .. } | Action::Pause { .. } | Action::Resume { .. } => {}
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
fn partitions_do_not_see_each_other() {
    // The jobs of one partition run alike whether or not the other has any.
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
