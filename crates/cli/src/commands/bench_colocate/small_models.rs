//! Small models beside each other on one core: what each keeps of its speed, with and without budgets.

use super::{ColocateBench, Daemon, SharingMode, Spread};
use crate::commands::{bench_session, remark};
use crate::failure::Failure;
use crate::table;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Time for which each model is measured alone.
const ALONE: Duration = Duration::from_secs(4);
/// Part of the time that a small model sleeps: it cannot fill a core.
const GAP: &str = "60";
/// All models together are sure of this part of the core where budgets are chosen.
const SURE: f64 = 0.6;

/// Speeds relative to alone, by model.
pub(super) struct SmallRun {
    mode: SharingMode,
    speeds: Vec<f64>,
}

/// What is measured.
pub(super) struct SmallModels<'a> {
    pub(super) count: u32,
    pub(super) modes: &'a [SharingMode],
    pub(super) repeats: u32,
    pub(super) settle: Duration,
    pub(super) measured: Duration,
    pub(super) quiet: bool,
}

impl SmallModels<'_> {
    /// All runs, interleaved.
    pub(super) fn run(&self, train: &Path) -> Result<Vec<SmallRun>, Failure> {
        let mut runs = Vec::new();
        for repeat in 1..=self.repeats {
            for &mode in self.modes {
                let what =
                    format!("{repeat} of {}: {} small models, {mode}", self.repeats, self.count);
                remark(&what, self.quiet);
                runs.push(SmallRun { mode, speeds: self.measure(train, mode)? });
            }
        }
        Ok(runs)
    }

    /// Each model alone, then all of them.
    fn measure(&self, train: &Path, mode: SharingMode) -> Result<Vec<f64>, Failure> {
        let policy = format!("{},tenants={}", mode.policy(), self.count.clamp(2, 4));
        let mut daemon = Daemon::start(&policy, 1, None)?;
        let mut client = daemon.client()?;
        let mut bench = ColocateBench { client: &mut client, train, folder: daemon.folder.path() };
        let share = (mode != SharingMode::Uncapped).then_some(SURE / f64::from(self.count));
        let mut alone = Vec::new();
        for model in 0..self.count {
            let id = bench.submit_small(model, GAP, None)?;
            bench.wait("measuring a model alone", |job| job.steps_per_s_alone.is_some(), id)?;
            alone.push(bench.steps_per_second(id, ALONE)?);
            bench.client.cancel(id)?;
            bench.wait("ending a model", |job| job.line.state.is_over(), id)?;
        }
        let ids = (0..self.count).map(|model| bench.submit_small(model, GAP, share));
        let ids = ids.collect::<Result<Vec<u64>, Failure>>()?;
        let others = self.count as usize - 1;
        let share = |job: &tandem_daemon::api::types::JobInfo| job.line.beside.len() == others;
        let shared = ids.iter().try_for_each(|&id| bench.wait("sharing the core", share, id));
        if shared.is_err() {
            return Ok(Vec::new());
        }
        std::thread::sleep(self.settle);
        let steps = |bench: &mut ColocateBench<'_>| -> Result<Vec<f64>, Failure> {
            ids.iter().map(|&id| Ok(bench_session::last_step(&bench.output(id)?))).collect()
        };
        let (began, before) = (std::time::Instant::now(), steps(&mut bench)?);
        std::thread::sleep(self.measured);
        let (after, seconds) = (steps(&mut bench)?, began.elapsed().as_secs_f64());
        let speed =
            |index: usize| (after[index] - before[index]) / seconds / alone[index].max(1e-9);
        Ok((0..ids.len()).map(speed).collect())
    }

    pub(super) fn table(&self, runs: &[SmallRun]) -> String {
        let header = ["models", "mode", "total", "slowest", "shared"];
        let one_by_one = ["1.00", "-", "-"].map(str::to_owned);
        let mut rows = vec![
            [vec![self.count.to_string(), "one by one".to_owned()], one_by_one.to_vec()].concat(),
        ];
        for &mode in self.modes {
            let SmallCell { total, slowest, shared, all } = cell(runs, mode);
            let count = self.count.to_string();
            let shared = format!("{shared} of {all}");
            rows.push(vec![count, mode.to_string(), total.text(2), slowest.text(2), shared]);
        }
        table::plain(&header, rows)
    }

    pub(super) fn json(&self, runs: &[SmallRun]) -> Value {
        let cells: Vec<Value> = self
            .modes
            .iter()
            .map(|&mode| {
                let SmallCell { total, slowest, shared, all } = cell(runs, mode);
                json!({
                    "models": self.count, "mode": mode.name(), "total": total.json(),
                    "slowest": slowest.json(), "shared": shared, "runs": all,
                })
            })
            .collect();
        json!({ "schema": 1, "cells": cells })
    }
}

/// The runs of one mode.
struct SmallCell {
    /// The sum of the relative speeds; 1 is one model after the other.
    total: Spread,
    slowest: Spread,
    shared: usize,
    all: usize,
}

fn cell(runs: &[SmallRun], mode: SharingMode) -> SmallCell {
    let of_mode = || runs.iter().filter(move |run| run.mode == mode);
    let shared = || of_mode().filter(|run| !run.speeds.is_empty());
    let least = |run: &SmallRun| run.speeds.iter().copied().fold(f64::INFINITY, f64::min);
    SmallCell {
        total: Spread::of(shared().map(|run| run.speeds.iter().sum()).collect()),
        slowest: Spread::of(shared().map(least).collect()),
        shared: shared().count(),
        all: of_mode().count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_did_not_share_are_counted_and_left_out() {
        let run = |speeds: &[f64]| SmallRun { mode: SharingMode::Strict, speeds: speeds.to_vec() };
        let found = cell(&[run(&[0.5, 0.75]), run(&[]), run(&[0.25, 1.5])], SharingMode::Strict);
        assert_eq!((found.shared, found.all), (2, 3));
        assert_eq!((found.total.0, found.slowest.0), ([1.75, 1.25, 1.75], [0.5, 0.25, 0.5]));
    }
}
