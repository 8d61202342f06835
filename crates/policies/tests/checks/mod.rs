//! What every policy must hold, whatever it decides: legal plans, the same result twice, no job lost,
//! nothing to do when nothing changed.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(dead_code, reason = "every test file uses its part")]

#[path = "../../../sim/tests/common/mod.rs"]
pub(crate) mod common;

use common::{cluster, generated, simulate};
use tandem_core::PlacementRule;
use tandem_policies::PolicySpec;
use tandem_sim::trace::{GenerateOptions, generate};
use tandem_sim::{Estimates, FaultOptions, Network, RunOptions, SimRun, Workload, WorkloadOptions};

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

/// On generated traces under both placement rules.
pub(crate) fn is_legal_idempotent_deterministic_and_loses_no_job(policies: &[PolicySpec]) {
    let cluster = cluster("4x8");
    for seed in 1..=3 {
        let workload = generated(250, 1.2, seed, cluster.clone());
        for policy in policies {
            for placement in [PlacementRule::Strict, PlacementRule::Scatter] {
                let options = RunOptions { placement, ..RunOptions::default() };
                let run = verified(&workload, policy, &options);
                let again = simulate(&workload, policy, &RunOptions { verify: true, ..options });
                assert_eq!(outcomes(&run), outcomes(&again), "{} seed {seed}", policy.text);
            }
        }
    }
}

/// A third of the jobs cannot be stopped.
pub(crate) fn keeps_jobs_that_cannot_be_stopped(policies: &[PolicySpec]) {
    let faults = FaultOptions::parse("mtbf_h=100,repair_h=2,checkpoint_min=10").unwrap();
    for (seed, faults) in [(1, None), (2, None), (3, Some(faults))] {
        let mut workload = generated(250, 1.2, seed, cluster("4x8"));
        for job in workload.jobs.iter_mut().step_by(3) {
            job.spec.stoppable = false;
        }
        for policy in policies {
            let options = RunOptions { faults, seed, ..RunOptions::default() };
            let run = verified(&workload, policy, &options);
            for (job, outcome) in workload.jobs.iter().zip(&run.outcomes) {
                let stays = job.spec.stoppable || outcome.preemptions == 0;
                assert!(stays, "{} seed {seed}: {:?}", policy.text, job.spec.id);
            }
        }
    }
}

/// GPUs fail and are repaired.
pub(crate) fn survives_failing_gpus(policies: &[PolicySpec]) {
    let workload = generated(150, 0.8, 5, cluster("4x8"));
    let faults = FaultOptions::parse("mtbf_h=50,repair_h=2,checkpoint_min=10").unwrap();
    for policy in policies {
        let options = RunOptions { faults: Some(faults), seed: 9, ..RunOptions::default() };
        let run = verified(&workload, policy, &options);
        let interruptions: u32 = run.outcomes.iter().map(|outcome| outcome.interruptions).sum();
        assert!(interruptions > 0, "{}: the faults of this check hit a job", policy.text);
        let options = RunOptions { verify: true, ..options };
        assert_eq!(outcomes(&run), outcomes(&simulate(&workload, policy, &options)));
    }
}

/// Estimates come from finished jobs, and gangs compete for the network.
pub(crate) fn holds_on_a_shared_network_with_learned_estimates(policies: &[PolicySpec]) {
    let trace = generate(&GenerateOptions { jobs: 150, gpus: 32, load: 0.8, seed: 6 });
    let options = WorkloadOptions { estimates: Estimates::History, ..WorkloadOptions::default() };
    let workload = Workload::new(trace, cluster("8x4"), "generated", &options).unwrap();
    for policy in policies {
        let options = RunOptions {
            network: Some(Network::default()),
            placement: PlacementRule::Scatter,
            faults: Some(FaultOptions::parse("mtbf_h=200,repair_h=2").unwrap()),
            verify: true,
            ..RunOptions::default()
        };
        let run = verified(&workload, policy, &options);
        assert!(run.estimates.is_some());
        assert_eq!(outcomes(&run), outcomes(&simulate(&workload, policy, &options)));
    }
}
