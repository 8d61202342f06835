//! No policy beats the lower bound: random small traces on mixed clusters, with pairs that gain and pairs
//! that lose.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{cluster, generated, simulate, workload};
use proptest::prelude::*;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::{
    ClosedForm, Cluster, ClusterBuilder, GpuTypeId, Interference, Memory, Profile, Ratio,
};
use tandem_policies::{PolicySpec, REGISTRY};
use tandem_sim::{LowerBound, RunOptions, Workload, run};

/// Pair rates by class, from a seed: some above 1, some pairs do not fit, and one GPU type shares better than
/// the other.
struct Drawn(u64);

impl Interference for Drawn {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        let (a, b) = (u64::from(job.class?.0), u64::from(beside.class?.0));
        let mix = |value: u64| (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let fits = !mix(a.min(b) * 64 + a.max(b)).is_multiple_of(6);
        fits.then(|| Ratio::new(200 + mix(a * 977 + b) % 900 + 50 * u64::from(gpu.0), 1000))
    }
}

fn machines(factors: &[u64]) -> Arc<Cluster> {
    let mut builder = ClusterBuilder::default();
    let kinds: Vec<GpuTypeId> = (factors.iter().enumerate())
        .map(|(index, &tenths)| builder.gpu_type(&format!("kind{index}"), Ratio::new(tenths, 10)))
        .collect();
    builder.partition("all");
    for kind in kinds {
        builder.node(4, kind, Memory::from_mib(24_576));
    }
    Arc::new(builder.taking_every_job().build())
}

/// Submission, GPUs, duration, class and utilisation of a job.
type Row = (u32, u32, u32, u32, u32);

fn rows() -> impl Strategy<Value = Vec<Row>> {
    prop::collection::vec((0..2000_u32, 1..=4_u32, 1..3000_u32, 0..5_u32, 1..=100_u32), 1..40)
}

fn jobs(rows: &[Row], cluster: Arc<Cluster>) -> Workload {
    let mut csv = "job_id,submit_s,gpus,duration_s,model,gpu_util\n".to_owned();
    for (id, (submit, gpus, duration, class, utilisation)) in rows.iter().enumerate() {
        writeln!(csv, "{id},{submit},{gpus},{duration},m{class},{utilisation}").unwrap();
    }
    workload(&csv, cluster)
}

/// Runs every policy and compares its mean JCT with the bound for its number of tenants.
fn hold(workload: &Workload, truth: impl Interference + 'static) -> Result<(), TestCaseError> {
    let truth: Arc<dyn Interference> = Arc::new(truth);
    for policy in REGISTRY.iter().map(PolicySpec::of) {
        let tenants = policy.tenants_max();
        let bound = LowerBound::new(workload, truth.as_ref(), tenants);
        let least = if tenants > 1 { bound.sharing_s } else { bound.exclusive_s };
        let options = RunOptions::default();
        let done = run(workload, &policy, &truth, &options, &AtomicU64::new(0)).unwrap();
        let mean = done.metrics.avg_jct_s;
        prop_assert!(mean >= least, "{}: {mean} below {least}", policy.text);
        prop_assert!(bound.sharing_s <= bound.exclusive_s);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_policy_beats_it_with_drawn_rates(
        rows in rows(),
        factors in prop::collection::vec(3..=20_u64, 1..3),
        seed: u64,
    ) {
        hold(&jobs(&rows, machines(&factors)), Drawn(seed))?;
    }

    #[test]
    fn no_policy_beats_it_with_the_closed_form(rows in rows(), factor in 3..=20_u64) {
        hold(&jobs(&rows, machines(&[factor, 10])), ClosedForm)?;
    }
}

#[test]
fn no_policy_beats_it_on_an_overloaded_cluster() {
    let workload = generated(400, 2.0, 3, cluster("2x8"));
    hold(&workload, ClosedForm).unwrap();
}

#[test]
fn small_cases_are_met_exactly() {
    let near = |found: f64, wanted: f64| {
        assert!((found / wanted - 1.0).abs() < 1e-6, "{found} instead of {wanted}");
    };
    let header = "job_id,submit_s,gpus,duration_s,gpu_util\n";
    // One GPU: the short job first, as any policy by duration does.
    let queue = workload(&format!("{header}a,0,1,10,100\nb,0,1,30,100\n"), cluster("1x1"));
    let bound = LowerBound::new(&queue, &ClosedForm, 2);
    near(bound.exclusive_s, 25.0);
    near(
        simulate(&queue, &PolicySpec::parse("sjf").unwrap(), &RunOptions::default())
            .metrics
            .avg_jct_s,
        25.0,
    );
    // Two jobs of half the utilisation each run side by side.
    let halves = workload(&format!("{header}a,0,1,10,50\nb,0,1,10,50\n"), cluster("1x1"));
    let bound = LowerBound::new(&halves, &ClosedForm, 2);
    near(bound.sharing_s, 10.0);
    near(bound.exclusive_s, 15.0);
    assert_eq!(LowerBound::new(&halves, &ClosedForm, 1).sharing_s, bound.exclusive_s);
}
