//! The part of the cluster and of time that the Gantt chart shows, with the tenants.

use super::seconds;
use crate::record::Stay;
use crate::run::SimRun;
use crate::workload::Workload;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use tandem_core::{JobId, PartitionId, Time};

const ROWS_MAX: u32 = 64;
const SEGMENTS_MAX: usize = 3000;

#[derive(Serialize)]
pub(super) struct Gantt<'a> {
    from_s: f64,
    to_s: f64,
    partition: &'a str,
    /// GPUs of the partition; `rows` may show fewer.
    partition_gpus: u32,
    rows: Vec<String>,
    jobs: Vec<GanttJob<'a>>,
}

#[derive(Serialize)]
struct GanttJob<'a> {
    id: &'a str,
    gpus: u32,
    user: &'a str,
    class: String,
}

/// Row, start, end, job, lane, lanes.
#[derive(Clone, Copy, Serialize)]
pub(super) struct GanttSegment(u32, f64, f64, usize, usize, usize);

/// The part of the cluster and of time that is shown.
struct GanttWindow {
    partition: PartitionId,
    /// Global ids of the GPUs.
    gpus: std::ops::Range<u32>,
    from: Time,
    to: Time,
}

impl GanttWindow {
    fn shows(&self, stay: &Stay) -> bool {
        stay.from < self.to && stay.to > self.from
    }

    fn rows<'s>(&'s self, stay: &'s Stay) -> impl Iterator<Item = u32> + 's {
        let gpus = stay.gpus.iter().map(|gpu| gpu.0);
        gpus.filter(|gpu| self.gpus.contains(gpu)).map(|gpu| gpu - self.gpus.start)
    }

    fn segment_count(&self, run: &SimRun) -> usize {
        let stays = run.record.iter().flat_map(|record| &record.stays);
        stays.filter(|stay| self.shows(stay)).map(|stay| self.rows(stay).count()).sum()
    }
}

pub(super) fn gantt<'a>(
    workload: &'a Workload,
    runs: &[SimRun],
) -> (Gantt<'a>, Vec<Vec<GanttSegment>>) {
    let window = choose(workload, runs);
    let mut numbers: BTreeMap<JobId, usize> = BTreeMap::new();
    let origin = workload.first_submit();
    let segments =
        runs.iter().map(|run| segments(run, &window, origin, &mut numbers)).collect::<Vec<_>>();
    let mut jobs: Vec<(usize, JobId)> =
        numbers.iter().map(|(&job, &number)| (number, job)).collect();
    jobs.sort_unstable();
    let describe = |(_, job): (usize, JobId)| GanttJob {
        id: workload.id(job),
        gpus: workload.spec(job).gpus,
        user: workload.trace.users.get(workload.spec(job).user.0),
        class: workload
            .spec(job)
            .profile
            .class
            .map_or(String::new(), |class| workload.trace.classes.get(class.0).to_string()),
    };
    let cluster = &workload.cluster;
    let partition = cluster.partition(window.partition);
    let row = |gpu: u32| {
        let node = cluster.gpus()[gpu as usize].node;
        let local = gpu - cluster.nodes()[node.index()].gpus.start;
        format!("n{} g{local}", node.0 - partition.nodes.start)
    };
    let gantt = Gantt {
        from_s: seconds(window.from.since(origin).0),
        to_s: seconds(window.to.since(origin).0),
        partition: &partition.name,
        partition_gpus: partition.gpu_count(),
        rows: window.gpus.clone().map(row).collect(),
        jobs: jobs.into_iter().map(describe).collect(),
    };
    (gantt, segments)
}

/// The partition with the highest demand per GPU, around the longest queue of the first run, for as long as
/// segments can be distinguished.
fn choose(workload: &Workload, runs: &[SimRun]) -> GanttWindow {
    let cluster = &workload.cluster;
    let mut demand = vec![0_u128; cluster.partitions().len()];
    for job in &workload.jobs {
        let work = u128::from(job.duration.0) * u128::from(job.spec.gpus);
        demand[job.spec.partition.index()] += work;
    }
    let per_gpu = |partition: &PartitionId| {
        demand[partition.index()] / u128::from(cluster.partition(*partition).gpu_count().max(1))
    };
    let ids = (0..).map(PartitionId).take(demand.len());
    let partition = ids.max_by_key(per_gpu).expect("a cluster has a partition");
    let all = cluster.partition(partition).gpus.clone();
    let gpus = all.start..all.end.min(all.start + ROWS_MAX);

    let from = workload.first_submit();
    let ends = runs.iter().flat_map(|run| &run.outcomes).filter_map(|outcome| outcome.end);
    let to = ends.max().unwrap_or(from).max(Time(from.0 + 1));
    let samples = runs.first().and_then(|run| run.record.as_ref()).map_or(&[][..], |r| &r.samples);
    let peak = samples.iter().max_by_key(|sample| (sample.waiting, std::cmp::Reverse(sample.at)));
    let centre = peak.map_or(from, |sample| sample.at);
    let mut window = GanttWindow { partition, gpus, from, to };
    let mut width = to.0 - from.0;
    while width > 1 && runs.iter().any(|run| window.segment_count(run) > SEGMENTS_MAX) {
        width /= 2;
        let start = centre.0.saturating_sub(width / 2).clamp(from.0, to.0 - width);
        window.from = Time(start);
        window.to = Time(start + width);
    }
    window
}

/// Splits the placements of each row where tenants change, so that every piece knows its lane.
fn segments(
    run: &SimRun,
    window: &GanttWindow,
    origin: Time,
    numbers: &mut BTreeMap<JobId, usize>,
) -> Vec<GanttSegment> {
    let mut by_row: BTreeMap<u32, Vec<(Time, JobId, bool)>> = BTreeMap::new();
    let stays = run.record.iter().flat_map(|record| &record.stays);
    for stay in stays.filter(|stay| window.shows(stay)) {
        let count = numbers.len();
        numbers.entry(stay.job).or_insert(count);
        for row in window.rows(stay) {
            let changes = by_row.entry(row).or_default();
            changes.push((stay.from.max(window.from), stay.job, true));
            changes.push((stay.to.min(window.to), stay.job, false));
        }
    }
    let mut segments = Vec::new();
    for (row, mut changes) in by_row {
        changes.sort_unstable();
        let piece = |(job, Piece { from, lane, lanes }): (JobId, Piece), to: Time| {
            let (from, to) = (seconds(from.since(origin).0), seconds(to.since(origin).0));
            GanttSegment(row, from, to, numbers[&job], lane, lanes)
        };
        let mut open: BTreeMap<JobId, Piece> = BTreeMap::new();
        for group in changes.chunk_by(|a, b| a.0 == b.0) {
            let now = group[0].0;
            let mut present: BTreeSet<JobId> = open.keys().copied().collect();
            // A job that leaves and returns at the same time stays.
            for (_, job, _) in group.iter().filter(|change| !change.2) {
                present.remove(job);
            }
            present.extend(group.iter().filter(|change| change.2).map(|change| change.1));
            let lanes = present.len();
            let mut next: BTreeMap<JobId, Piece> = present
                .into_iter()
                .enumerate()
                .map(|(lane, job)| (job, Piece { from: now, lane, lanes }))
                .collect();
            for (job, old) in open {
                match next.get_mut(&job) {
                    Some(new) if (new.lane, new.lanes) == (old.lane, old.lanes) => *new = old,
                    _ => segments.push(piece((job, old), now)),
                }
            }
            open = next;
        }
    }
    segments
}

/// A job in its lane of a row, since `from`.
#[derive(Clone, Copy)]
struct Piece {
    from: Time,
    lane: usize,
    lanes: usize,
}
