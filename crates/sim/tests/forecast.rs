//! Forecasts from a live state agree with a run, from its beginning and from its middle, and end for any
//! input.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{cluster, generated, simulate};
use std::sync::Arc;
use tandem_core::{
    ClosedForm, Cluster, GpuId, Interference, JobId, Memory, PartitionId, Placement, Rules, Span,
    Time, Work,
};
use tandem_policies::{PolicySpec, REGISTRY};
use tandem_sim::forecast::{Forecast, ForecastOptions, Snapshot, SnapshotJob, forecast};
use tandem_sim::{RunOptions, Workload};

fn present(workload: &Workload, policy: &PolicySpec) -> Snapshot {
    let job = |job: &tandem_sim::WorkloadJob| SnapshotJob {
        spec: job.spec.clone(),
        placement: None,
        done: Work::ZERO,
        duration: job.duration,
    };
    Snapshot {
        shares: Arc::default(),
        cluster: workload.cluster.clone(),
        rules: Rules { tenants_max: policy.entry.tenants_max, ..Rules::default() },
        now: Time(0),
        jobs: workload.jobs.iter().map(job).collect(),
        closed: Vec::new(),
        reserved: Vec::new(),
    }
}

fn look_ahead(present: &Snapshot, policy: &PolicySpec) -> Forecast {
    let beliefs: Arc<dyn Interference> = Arc::new(ClosedForm);
    // Some policies wake up again and again while a job runs for very long.
    let options = ForecastOptions { events_max: 20_000, ..ForecastOptions::default() };
    forecast(present, policy, &beliefs, &options)
}

#[test]
fn a_forecast_from_the_beginning_equals_the_run() {
    let workload = generated(200, 1.2, 3, cluster("4x8"));
    for policy in REGISTRY.iter().map(PolicySpec::of) {
        let run = simulate(&workload, &policy, &RunOptions::default());
        let ahead = look_ahead(&present(&workload, &policy), &policy);
        for (outcome, job) in run.outcomes.iter().zip(&ahead.jobs) {
            assert_eq!((outcome.start, outcome.end), (job.start, job.end), "{}", policy.text);
            assert!(job.slowdown >= 1.0 - 1e-9, "{}: {job:?}", policy.text);
        }
        let shares = ahead.jobs.iter().any(|job| !job.beside.is_empty());
        assert_eq!(shares, policy.entry.tenants_max > 1, "{}", policy.text);
    }
}

#[test]
fn a_forecast_from_the_middle_equals_the_rest_of_the_run() {
    let workload = generated(200, 1.2, 4, cluster("4x8"));
    let options = RunOptions { record: true, ..RunOptions::default() };
    for text in ["fifo", "fifo:backfill=true", "sjf"] {
        let policy = PolicySpec::parse(text).unwrap();
        let run = simulate(&workload, &policy, &options);
        let stays = &run.record.as_ref().unwrap().stays;
        // Between two events, and at one: the end of a job that others wait for.
        let middle = run.outcomes[100].end.unwrap();
        for now in [Time(middle.0 - 1), middle, Time(middle.0 + 1)] {
            let all = present(&workload, &policy);
            let goes_on = |index: &usize| run.outcomes[*index].end.is_some_and(|end| end > now);
            let ids: Vec<usize> = (0..workload.len()).filter(goes_on).collect();
            let jobs = ids.iter().map(|&index| {
                let mut job = all.jobs[index].clone();
                let mut of_job = stays.iter().filter(|stay| stay.job.index() == index);
                if let Some(stay) = of_job.find(|stay| stay.from < now) {
                    job.placement = Some(Placement::on(stay.gpus.iter().copied()));
                    job.done = Work::of(now.since(stay.from));
                }
                job
            });
            let ahead = look_ahead(&Snapshot { now, jobs: jobs.collect(), ..all }, &policy);
            let mut later = 0;
            for (&index, job) in ids.iter().zip(&ahead.jobs) {
                let outcome = &run.outcomes[index];
                assert_eq!(job.start, outcome.start.max(Some(now)), "{text} {now:?} {index}");
                assert_eq!(job.end, outcome.end, "{text} {now:?} {index}");
                later += usize::from(job.start > Some(now));
            }
            assert!(later > 50 && later < ids.len(), "{later} start later");
        }
    }
}

#[test]
fn closed_gpus_and_reserved_memory_are_not_used() {
    let csv = "job_id,submit_s,gpus,duration_s\n0,0,1,100\n1,0,1,100\n2,0,1,100\n";
    let workload = common::workload(csv, cluster("1x2"));
    let policy = PolicySpec::parse("fifo").unwrap();
    let starts = |present: &Snapshot| -> Vec<Option<u64>> {
        let starts = look_ahead(present, &policy).jobs.into_iter().map(|job| job.start);
        starts.map(|start| start.map(|start| start.0 / 1_000_000)).collect()
    };
    let open = present(&workload, &policy);
    assert_eq!(starts(&open), [Some(0), Some(0), Some(100)]);
    let closed = Snapshot { closed: vec![GpuId(1), GpuId(77)], ..open.clone() };
    assert_eq!(starts(&closed), [Some(0), Some(100), Some(200)]);
    let mut used = Snapshot { reserved: vec![(GpuId(0), Memory(u64::MAX))], ..open };
    for job in &mut used.jobs {
        job.spec.profile.memory = Memory::from_mib(1);
    }
    assert_eq!(starts(&used), [Some(0), Some(100), Some(200)]);
}

#[test]
fn horizon_and_events_end_it() {
    let workload = generated(100, 1.2, 5, cluster("2x8"));
    let beliefs: Arc<dyn Interference> = Arc::new(ClosedForm);
    let policy = PolicySpec::parse("tandem").unwrap();
    let present = present(&workload, &policy);
    let ends = |options: &ForecastOptions| {
        let ahead = forecast(&present, &policy, &beliefs, options);
        ahead.jobs.iter().filter_map(|job| job.end).max()
    };
    let all = ends(&ForecastOptions::default()).unwrap();
    let horizon = Some(Span(all.0 / 2));
    let half = ends(&ForecastOptions { horizon, ..ForecastOptions::default() }).unwrap();
    assert!(half <= Time(all.0 / 2));
    let few = ends(&ForecastOptions { events_max: 100, ..ForecastOptions::default() }).unwrap();
    assert!(few < all);
    assert_eq!(ends(&ForecastOptions { events_max: 0, ..ForecastOptions::default() }), None);
}

/// Impossible jobs, unknown GPUs, more tenants than any plan would allow.
#[test]
fn a_forecast_ends_for_any_input() {
    let workload = generated(40, 1.5, 6, cluster("2x4"));
    for policy in REGISTRY.iter().map(PolicySpec::of) {
        let mut odd = present(&workload, &policy);
        odd.now = Time::from_secs(7);
        for (index, job) in (0_u32..).zip(&mut odd.jobs) {
            job.spec.id = JobId(index / 2);
            match index % 10 {
                0 => job.spec.partition = PartitionId(9),
                1 => job.spec.gpus = 0,
                2 => job.spec.gpus = 500,
                3 => job.spec.profile.memory = Memory(u64::MAX),
                4 => job.done = Work(u128::MAX),
                5 => job.spec.submit = Time::END,
                _ => {}
            }
            let sub_batches = index % 3 + 1;
            let gpus = (0..job.spec.gpus).map(|step| GpuId((index + step) % 9));
            let on = Placement { sub_batches, ..Placement::on(gpus) };
            job.placement = (index % 4 == 0).then_some(on);
            job.duration = if index % 7 == 0 { Span(u64::MAX) } else { job.duration };
        }
        odd.closed = vec![GpuId(0), GpuId(99)];
        let ahead = look_ahead(&odd, &policy);
        assert_eq!(ahead.jobs.len(), odd.jobs.len());
        assert_eq!(ahead.jobs[0].start, None, "{}", policy.text);
        let nothing = Snapshot { jobs: Vec::new(), ..odd };
        assert_eq!(look_ahead(&nothing, &policy).jobs, []);
    }
    let no_gpus: Arc<Cluster> = cluster("1x1");
    let policy = PolicySpec::parse("fifo").unwrap();
    let small = Snapshot { cluster: no_gpus, ..present(&workload, &policy) };
    assert!(look_ahead(&small, &policy).jobs.iter().any(|job| job.end.is_none()));
}

#[test]
fn the_placements_of_a_forecast_are_those_of_the_run() {
    let workload = generated(150, 1.2, 5, cluster("2x8"));
    let policy = PolicySpec::parse("sjf-bsbf").unwrap();
    let run = simulate(&workload, &policy, &RunOptions { record: true, ..RunOptions::default() });
    let beliefs: Arc<dyn Interference> = Arc::new(ClosedForm);
    let snapshot = present(&workload, &policy);
    let look = |options: ForecastOptions| forecast(&snapshot, &policy, &beliefs, &options).stays;
    let key = |stay: &tandem_sim::Stay| {
        (stay.job, stay.from, stay.to, stay.gpus.iter().copied().collect::<Vec<GpuId>>())
    };
    let sorted = |stays: &[tandem_sim::Stay]| {
        let mut keys: Vec<_> = stays.iter().map(key).collect();
        keys.sort_unstable();
        keys
    };
    let kept = ForecastOptions { record: true, ..ForecastOptions::default() };
    let all = look(kept);
    assert_eq!(sorted(&all), sorted(&run.record.unwrap().stays));
    assert!(look(ForecastOptions::default()).is_empty(), "nothing is kept unless asked for");

    // Cut off in the middle, placements end with the forecast.
    let horizon = Span(all[all.len() / 2].to.0);
    let cut = look(ForecastOptions { horizon: Some(horizon), ..kept });
    assert!(!cut.is_empty() && cut.iter().all(|stay| stay.to.0 <= horizon.0));
    assert!(cut.iter().any(|stay| all.iter().all(|whole| key(whole) != key(stay))));
}
