//! What sharing gained, computed from the recorded placements.

use crate::api::live_types::Savings;
use crate::api::types::SCHEMA;
use crate::history::PlacementRecord;
use crate::time::iso;
use std::collections::{BTreeMap, BTreeSet};

const HOUR_US: f64 = 3.6e9;

/// How the figures come about.
const METHOD: &str = "GPU-hours gained are the work of co-located jobs, in hours of running alone, less the hours of the \
    GPUs on which they ran; rates are measured where jobs report their steps, else predicted. Waiting saved are the \
    hours that jobs ran on a GPU which another job already had: without sharing they would have waited that long, \
    if no other GPU was free. The slow-down of co-located jobs is the price.";

/// A shared placement, cut to the time that is asked about.
struct SharedTime<'a> {
    record: &'a PlacementRecord,
    from_us: u64,
    to_us: u64,
    rate: f64,
}

/// What sharing has gained from an instant to now. `done` has the work of the jobs that run.
pub(crate) fn since(
    records: &[PlacementRecord],
    since_us: u64,
    now_us: u64,
    done: &BTreeMap<u64, u64>,
) -> Savings {
    let shared: Vec<SharedTime<'_>> = records
        .iter()
        .filter(|record| !record.placed.beside.is_empty())
        .filter_map(|record| cut(record, since_us, now_us, done))
        .collect();
    let (mut work, mut cost, mut time, mut measured) = (0.0, 0.0, 0.0, 0.0);
    for SharedTime { record, from_us, to_us, rate } in &shared {
        let span = (to_us - from_us) as f64;
        work += rate * span * record.placed.devices.len() as f64;
        cost += (1.0 - rate).max(0.0) * span;
        time += span;
        measured += if record.measured { span } else { 0.0 };
    }
    let (occupied, waited) = overlaps(&shared);
    let jobs: BTreeSet<u64> = shared.iter().map(|shared| shared.record.placed.job).collect();
    Savings {
        schema: SCHEMA,
        since: iso(since_us),
        gpu_hours: (work - occupied) / HOUR_US,
        shared_gpu_hours: occupied / HOUR_US,
        wait_saved_h: waited / HOUR_US,
        slowdown_cost_h: cost / HOUR_US,
        jobs_shared: jobs.len() as u64,
        measured_share: if time > 0.0 { measured / time } else { 0.0 },
        method: METHOD.to_owned(),
    }
}

fn cut<'a>(
    record: &'a PlacementRecord,
    since_us: u64,
    now_us: u64,
    done: &BTreeMap<u64, u64>,
) -> Option<SharedTime<'a>> {
    let (from_us, to_us) = (record.from_us.max(since_us), record.to_us.unwrap_or(now_us));
    let so_far = || {
        let work = done.get(&record.placed.job)?.saturating_sub(record.done_us) as f64;
        let span = record.span_us(now_us);
        (span > 0).then(|| (work / span as f64).min(10.0))
    };
    let rate = record.rate.or_else(so_far).or(record.predicted)?;
    (to_us > from_us).then_some(SharedTime { record, from_us, to_us, rate })
}

/// The time during which GPUs were shared, and the time that jobs would have waited for them: at every
/// instant all tenants of a GPU but one. A job on several GPUs waits once.
fn overlaps(shared: &[SharedTime<'_>]) -> (f64, f64) {
    let mut by_device: BTreeMap<u32, Vec<(u64, bool, f64)>> = BTreeMap::new();
    for SharedTime { record, from_us, to_us, .. } in shared {
        let part = 1.0 / record.placed.devices.len().max(1) as f64;
        for &device in &record.placed.devices {
            let changes = by_device.entry(device).or_default();
            changes.push((*from_us, true, part));
            changes.push((*to_us, false, part));
        }
    }
    let (mut occupied, mut waited) = (0.0, 0.0);
    for changes in by_device.values_mut() {
        // At one instant, tenants leave before others join.
        changes.sort_by_key(|&(at, joins, _)| (at, joins));
        let mut present: Vec<f64> = Vec::new();
        let mut before = 0;
        for &(at, joins, part) in changes.iter() {
            let span = (at - before) as f64;
            if !present.is_empty() {
                occupied += span;
                let largest = present.iter().copied().fold(0.0, f64::max);
                waited += span * (present.iter().sum::<f64>() - largest);
            }
            before = at;
            if joins {
                present.push(part);
            } else if let Some(at) = present.iter().position(|&other| other == part) {
                present.swap_remove(at);
            }
        }
    }
    (occupied, waited)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::PlacedJob;

    const HOUR: u64 = 3_600_000_000;

    fn record(job: u64, beside: u64, hours: [u64; 2], rate: f64) -> PlacementRecord {
        PlacementRecord {
            placed: PlacedJob {
                job,
                devices: vec![0],
                beside: vec![beside],
                ..PlacedJob::default()
            },
            from_us: hours[0] * HOUR,
            to_us: Some(hours[1] * HOUR),
            rate: Some(rate),
            measured: true,
            ..PlacementRecord::default()
        }
    }

    #[test]
    fn two_jobs_at_four_fifths_gain_three_fifths_of_a_gpu() {
        let records = [record(1, 2, [10, 15], 0.8), record(2, 1, [10, 15], 0.8)];
        let gained = since(&records, 0, 99 * HOUR, &BTreeMap::new());
        let near = |value: f64, expected: f64| {
            assert!((value - expected).abs() < 1e-9, "{value} {expected}");
        };
        near(gained.gpu_hours, 3.0);
        near(gained.shared_gpu_hours, 5.0);
        near(gained.wait_saved_h, 5.0);
        near(gained.slowdown_cost_h, 2.0);
        assert_eq!((gained.jobs_shared, gained.measured_share), (2, 1.0));
        // Only what lies in the time that is asked about counts.
        let later = since(&records, 14 * HOUR, 99 * HOUR, &BTreeMap::new());
        near(later.gpu_hours, 0.6);
        near(later.shared_gpu_hours, 1.0);
    }

    #[test]
    fn nothing_is_gained_by_jobs_alone() {
        let alone = PlacementRecord { placed: PlacedJob::default(), ..record(1, 0, [1, 9], 1.0) };
        let gained = since(&[alone], 0, 99 * HOUR, &BTreeMap::new());
        assert_eq!((gained.gpu_hours, gained.wait_saved_h, gained.jobs_shared), (0.0, 0.0, 0));
    }

    #[test]
    fn what_lasts_counts_up_to_now_with_the_work_that_was_done() {
        let lasts = |job, beside| PlacementRecord {
            to_us: None,
            rate: None,
            ..record(job, beside, [10, 10], 0.0)
        };
        let records = [lasts(1, 2), lasts(2, 1)];
        let done = BTreeMap::from([(1, 3 * HOUR), (2, HOUR)]);
        let gained = since(&records, 0, 14 * HOUR, &done);
        assert!(
            (gained.gpu_hours - 0.0).abs() < 1e-9,
            "3 h + 1 h of work in 4 h: {}",
            gained.gpu_hours
        );
        assert!((gained.slowdown_cost_h - 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_gang_waits_once() {
        let gang = |job, beside| {
            let mut both = record(job, beside, [0, 2], 0.9);
            both.placed.devices.push(1);
            both
        };
        let gained = since(&[gang(1, 2), gang(2, 1)], 0, 9 * HOUR, &BTreeMap::new());
        assert!((gained.wait_saved_h - 2.0).abs() < 1e-9, "{}", gained.wait_saved_h);
        assert!((gained.shared_gpu_hours - 4.0).abs() < 1e-9);
    }
}
