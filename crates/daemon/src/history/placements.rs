//! Placements over time: which job ran on which GPUs beside which others, how fast, and why.

use crate::job::{JobState, StoredJob};
use crate::scheduler::{Active, Now, Phase, Scheduler};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// A job on GPUs: which one, where and beside which others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PlacedJob {
    /// The job.
    pub job: u64,
    /// Its name.
    pub name: String,
    /// Its user.
    pub user: String,
    /// Its class.
    pub class: String,
    /// Its GPUs.
    pub devices: Vec<u32>,
    /// The co-located jobs.
    pub beside: Vec<u64>,
}

/// A placement record: a job on GPUs, from one change of its co-located jobs to the next.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlacementRecord {
    /// Its number; increases over the life of the store.
    #[serde(skip)]
    pub seq: u64,
    /// The job and its GPUs.
    #[serde(flatten)]
    pub placed: PlacedJob,
    /// Start, in microseconds since 1970.
    pub from_us: u64,
    /// End; absent while it is open.
    pub to_us: Option<u64>,
    /// Work done before it, in microseconds of running alone.
    pub done_us: u64,
    /// Mean rate; absent while it is open.
    pub rate: Option<f64>,
    /// The rate was measured.
    pub measured: bool,
    /// The predicted rate.
    pub predicted: Option<f64>,
    /// Why it began.
    pub why: String,
    /// Why it ended; absent while it is open, and if the job continued beside others.
    pub end: Option<String>,
    /// Work at the last update.
    #[serde(skip)]
    pub(crate) seen_us: u64,
}

impl PlacementRecord {
    /// Time on its GPUs, up to `now_us` if it is open.
    pub fn span_us(&self, now_us: u64) -> u64 {
        self.to_us.unwrap_or(now_us).saturating_sub(self.from_us)
    }
}

/// The open placements, and the number of the next one.
#[derive(Debug, Default)]
pub struct PlacementLog {
    next_seq: u64,
    open: BTreeMap<u64, PlacementRecord>,
}

/// Where a job runs now, and beside which others.
type TenantsOfGpus = (Vec<u32>, Vec<u64>);

impl PlacementLog {
    /// Continues the log of an earlier daemon.
    pub fn resume(next_seq: u64, open: Vec<PlacementRecord>) -> Self {
        let seen = |record: PlacementRecord| {
            (record.placed.job, PlacementRecord { seen_us: record.done_us, ..record })
        };
        Self { next_seq, open: open.into_iter().map(seen).collect() }
    }

    /// The placement of a job that runs.
    pub fn open(&self, job: u64) -> Option<&PlacementRecord> {
        self.open.get(&job)
    }

    /// All open placements.
    pub fn all_open(&self) -> impl Iterator<Item = &PlacementRecord> {
        self.open.values()
    }

    /// Compares with the running jobs. Returns the placements that ended, then those that began; `changed` has
    /// the jobs that ended.
    pub fn update(
        &mut self,
        now: Now,
        scheduler: &Scheduler,
        changed: &[StoredJob],
    ) -> Vec<PlacementRecord> {
        let sites = sites(scheduler);
        let mut records = Vec::new();
        let mut before: BTreeMap<u64, PlacementRecord> = BTreeMap::new();
        for (job, mut record) in std::mem::take(&mut self.open) {
            let active = scheduler.job(job);
            if let Some(active) = active {
                record.seen_us = record.seen_us.max(active.done_us(now.time()));
            }
            let site = sites.get(&job);
            if site.is_some_and(|(devices, beside)| {
                (devices, beside) == (&record.placed.devices, &record.placed.beside)
            }) {
                record.measured = active.is_some_and(Active::rate_is_measured);
                self.open.insert(job, record);
                continue;
            }
            let over = changed.iter().find(|over| over.id == job);
            if let Some(over) = over {
                record.seen_us = record.seen_us.max(over.done_us);
            }
            record.close(now.unix_us);
            record.end = site.is_none().then(|| ending(active, over));
            records.push(record.clone());
            before.insert(job, record);
        }
        for (job, site) in sites {
            if let Some(active) = scheduler.job(job).filter(|_| !self.open.contains_key(&job)) {
                let record = self.begin(now, scheduler, active, site, before.get(&job));
                records.push(record.clone());
                self.open.insert(job, record);
            }
        }
        records
    }

    fn begin(
        &mut self,
        now: Now,
        scheduler: &Scheduler,
        active: &Active,
        (devices, beside): TenantsOfGpus,
        before: Option<&PlacementRecord>,
    ) -> PlacementRecord {
        let job = &active.job;
        let seq = self.next_seq;
        self.next_seq += 1;
        let predicted = |id| scheduler.view(id, now.time()).map(|view| view.predicted);
        let own = predicted(job.id);
        let mut why = match before.filter(|before| before.end.is_none()) {
            Some(before) => regrouped(&before.placed.beside, &beside),
            None if beside.is_empty() => "alone".to_owned(),
            None => format!("beside {}", named(&beside)),
        };
        if !beside.is_empty() {
            let rates: Vec<f64> =
                own.into_iter().chain(beside.iter().copied().filter_map(predicted)).collect();
            let texts: Vec<String> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
            let sum: f64 = rates.iter().sum();
            why += &format!(": predicted rates {}, together {sum:.2}", texts.join(" and "));
        }
        let done_us = active.done_us(now.time());
        PlacementRecord {
            seq,
            placed: PlacedJob {
                job: job.id,
                name: job.name(),
                user: job.user.clone(),
                class: job.class.clone(),
                devices,
                beside,
            },
            from_us: now.unix_us,
            done_us,
            seen_us: done_us,
            measured: active.rate_is_measured(),
            predicted: own,
            why,
            ..PlacementRecord::default()
        }
    }
}

impl PlacementRecord {
    fn close(&mut self, unix_us: u64) {
        self.to_us = Some(unix_us.max(self.from_us));
        let span = self.span_us(unix_us);
        let work = self.seen_us.saturating_sub(self.done_us);
        self.rate = (span > 0).then(|| (work as f64 / span as f64).min(10.0));
    }
}

/// The running jobs with their GPUs and co-located jobs.
fn sites(scheduler: &Scheduler) -> BTreeMap<u64, TenantsOfGpus> {
    let count = u32::try_from(scheduler.setup().devices.len()).unwrap_or(u32::MAX);
    let runs = |job: &u64| scheduler.job(*job).is_some_and(|active| active.phase == Phase::Running);
    let mut sites: BTreeMap<u64, TenantsOfGpus> = BTreeMap::new();
    for device in 0..count {
        let tenants: Vec<u64> = scheduler.present(device).filter(runs).collect();
        for &job in &tenants {
            let (devices, beside) = sites.entry(job).or_default();
            devices.push(device);
            beside.extend(tenants.iter().filter(|&&other| other != job));
        }
    }
    for (_, beside) in sites.values_mut() {
        beside.sort_unstable();
        beside.dedup();
    }
    sites
}

fn named(jobs: &[u64]) -> String {
    let names: Vec<String> = jobs.iter().map(|job| format!("job {job}")).collect();
    names.join(" and ")
}

/// Describes how the co-located jobs of a running job have changed.
fn regrouped(before: &[u64], after: &[u64]) -> String {
    let only = |own: &[u64], other: &[u64]| {
        own.iter().copied().filter(|job| !other.contains(job)).collect::<Vec<u64>>()
    };
    let (came, left) = (only(after, before), only(before, after));
    match (came.is_empty(), left.is_empty()) {
        (true, true) => "moved".to_owned(),
        (true, false) => format!("{} left", named(&left)),
        (false, true) => format!("{} joined", named(&came)),
        (false, false) => format!("{} joined, {} left", named(&came), named(&left)),
    }
}

/// Why a job no longer runs.
fn ending(active: Option<&Active>, over: Option<&StoredJob>) -> String {
    if let Some(job) = over.filter(|job| job.state.is_over()) {
        let reason = job.public_reason().filter(|_| job.state != JobState::Completed);
        return match reason {
            Some(reason) => format!("{}: {reason}", job.state.name()),
            None => job.state.name().to_owned(),
        };
    }
    let Some(active) = active else { return "over".to_owned() };
    match active.phase {
        Phase::Pausing | Phase::Stopped if active.job.user_paused => {
            "paused by its user".to_owned()
        }
        Phase::Pausing | Phase::Stopped => "paused by the policy".to_owned(),
        Phase::Asked | Phase::Ending => "ending".to_owned(),
        _ => "preempted by the policy".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_co_located_jobs_are_named() {
        assert_eq!(regrouped(&[], &[7]), "job 7 joined");
        assert_eq!(regrouped(&[7, 8], &[8]), "job 7 left");
        assert_eq!(regrouped(&[7], &[8, 9]), "job 8 and job 9 joined, job 7 left");
        assert_eq!(regrouped(&[7], &[7]), "moved");
    }

    #[test]
    fn the_rate_of_a_placement_is_its_work_over_its_time() {
        let begun = PlacementRecord { from_us: 1_000, done_us: 500, ..PlacementRecord::default() };
        let mut record = PlacementRecord { seen_us: 900, ..begun.clone() };
        record.close(1_800);
        assert_eq!((record.rate, record.to_us, record.span_us(0)), (Some(0.5), Some(1_800), 800));
        let mut instant = begun.clone();
        instant.close(1_000);
        assert_eq!(instant.rate, None, "no time, no rate");
        let mut set_back = begun;
        set_back.close(400);
        assert_eq!(
            set_back.to_us,
            Some(1_000),
            "a clock that was set back ends nothing before it began"
        );
    }
}
