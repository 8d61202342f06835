//! Beliefs of the policies about pair rates where they are not given the true ones: a predictor, alone or
//! corrected by the rates observed during the run.

use super::{GpuModel, PairTable, class_profile};
use crate::profiles::SoloProfiles;
use crate::trace::{Class, Trace, TraceJob};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use tandem_core::{Interference, Memory, Utilisation};
use tandem_models::interference::{Beliefs, ClassProfile, FitError, Offline, Online, Optimism};
use thiserror::Error;

/// Why there are no beliefs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BeliefsError {
    /// Neither measured pairs nor a fitted model.
    #[error(
        "--beliefs model|online needs something to learn from: give --interference FILE, or --model FILE"
    )]
    NothingToLearnFrom,
    /// Too little to learn from.
    #[error("--train-pairs: {0}")]
    Fit(#[from] FitError),
}

/// How beliefs are formed.
#[derive(Clone, Copy, Debug)]
pub struct Learning {
    /// Share of the table's pairs that the predictor is trained on.
    pub train_pairs: f64,
    /// Chooses the pairs.
    pub seed: u64,
    /// Rates observed during the run correct the predictor.
    pub online: bool,
}

/// Optimism of beliefs that learn during a run, in standard deviations.
const OPTIMISM: f64 = 0.5;

/// Beliefs about the classes of one trace, from a fitted `model`, or trained on a share of `table`. Whether
/// a pair fits into memory is known. A pair that the table lacks, or a job without a class, follows a
/// rule in the simulated world, and beliefs follow the same rule: no measurement stands behind it
/// that a predictor could have learned from.
pub fn trace_beliefs(
    trace: &Trace,
    truth: Arc<dyn Interference>,
    table: Option<&PairTable>,
    solo: Option<&SoloProfiles>,
    model: Option<&GpuModel>,
    learning: Learning,
) -> Result<Beliefs, BeliefsError> {
    let profiles = profiles(trace, table, solo);
    let offline = match (model, table) {
        (Some(model), _) => model.offline.clone(),
        (None, Some(table)) => train(table, solo, &profiles, learning)?,
        (None, None) => return Err(BeliefsError::NothingToLearnFrom),
    };
    let mut online = Online::new(offline);
    for profile in &profiles {
        online.class(profile);
    }
    let numbers: Vec<Option<u32>> =
        trace.classes.iter().map(|class| table?.classes.find(class)).collect();
    let is_covered =
        |a: usize, b: usize| table.is_none_or(|table| !table.lacks(numbers[a], numbers[b]));
    let learns = learning.online;
    let optimism = if learns { Optimism::Deviations(OPTIMISM) } else { Optimism::None };
    Ok(Beliefs::of_known_classes(online, truth, is_covered, optimism, learns))
}

/// Profiles of the trace's classes: measured alone, or else the mean over their jobs.
fn profiles(
    trace: &Trace,
    table: Option<&PairTable>,
    solo: Option<&SoloProfiles>,
) -> Vec<ClassProfile> {
    let mut jobs: Vec<Vec<&TraceJob>> = vec![Vec::new(); trace.classes.len()];
    for job in &trace.jobs {
        if let Some(class) = job.class {
            jobs[class.index()].push(job);
        }
    }
    let profile = |(class, jobs): (&Class, &Vec<&TraceJob>)| {
        let steps = table.and_then(|table| table.speeds.get(&(class.clone(), 1)).copied());
        let measured = solo.and_then(|solo| solo.get(class));
        let mut profile = class_profile(class, measured, steps);
        if measured.is_some() {
            return profile;
        }
        profile.gpu_util = mean(jobs, |job| job.gpu_util.map(Utilisation::share));
        profile.bandwidth_util = mean(jobs, |job| job.bandwidth_util.map(Utilisation::share));
        profile.memory_mib = mean(jobs, |job| job.memory.map(Memory::mib));
        profile
    };
    trace.classes.iter().zip(&jobs).map(profile).collect()
}

fn mean(jobs: &[&TraceJob], value: impl Fn(&TraceJob) -> Option<f64>) -> Option<f64> {
    let known: Vec<f64> = jobs.iter().filter_map(|job| value(job)).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

/// Trains on a share of the table's pairs, with the trace's profiles of their classes.
fn train(
    table: &PairTable,
    solo: Option<&SoloProfiles>,
    profiles: &[ClassProfile],
    learning: Learning,
) -> Result<Offline, FitError> {
    let mut data = table.pair_data(solo);
    for profile in &mut data.profiles {
        if let Some(known) = profiles.iter().find(|known| known.name == profile.name) {
            profile.clone_from(known);
        }
    }
    data.pairs.shuffle(&mut ChaCha8Rng::seed_from_u64(learning.seed));
    let count = (data.pairs.len() as f64 * learning.train_pairs).round() as usize;
    data.pairs.truncate(count);
    Offline::fit(&data.profiles, &data.pairs, learning.seed)
}
