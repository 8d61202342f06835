//! Beliefs of the policies about pair rates where they are not given the true ones: a predictor, alone or
//! corrected by the rates observed during the run.

use super::{GpuModel, PairTable, class_profile};
use crate::profiles::SoloProfiles;
use crate::trace::{Class, Trace, TraceJob};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;
use tandem_core::{
    ClassId, GpuTypeId, Interference, Memory, Observation, Profile, Ratio, Utilisation,
};
use tandem_models::interference::{ClassProfile, CoTenants, FitError, Offline, Online};
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

/// Believed rates for the classes of one trace. Whether a pair fits into memory is known. A pair that the
/// table lacks, or a job without a class, follows a rule in the simulated world, and beliefs follow the same
/// rule: there is no measurement that a predictor could have learned from.
#[derive(Clone)]
pub struct Beliefs {
    truth: Arc<dyn Interference>,
    online: Online,
    learns: bool,
    /// `rates[a][b]`: believed speed of `a` next to `b`, by the trace's classes; `None` if the table
    /// lacks the pair.
    rates: Vec<Vec<Option<Ratio>>>,
}

impl Beliefs {
    /// Beliefs from a fitted `model`, or trained on a share of `table`.
    pub fn new(
        trace: &Trace,
        truth: Arc<dyn Interference>,
        table: Option<&PairTable>,
        solo: Option<&SoloProfiles>,
        model: Option<&GpuModel>,
        learning: Learning,
    ) -> Result<Self, BeliefsError> {
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
        let lacks =
            |a: usize, b: usize| table.is_some_and(|table| table.lacks(numbers[a], numbers[b]));
        let count = profiles.len();
        let believed =
            |a: usize, b: usize| (!lacks(a, b)).then(|| believed(&online, learning.online, a, b));
        let rates = (0..count).map(|a| (0..count).map(|b| believed(a, b)).collect()).collect();
        Ok(Self { truth, online, learns: learning.online, rates })
    }

    /// The believed rate of the trace's class `a` beside `b`, whether they fit or not; `None` if the table
    /// lacks the pair.
    pub(crate) fn of_classes(&self, a: ClassId, b: ClassId) -> Option<Ratio> {
        self.rates[a.index()][b.index()]
    }

    /// Whether observations change them.
    pub(crate) fn learns(&self) -> bool {
        self.learns
    }

    /// The co-tenants of a job on one GPU. Pairs that follow a rule are known and need no learning.
    fn co_tenants(&self, job: &Profile, others: &[Profile], gpu: GpuTypeId) -> CoTenants {
        let mut co_tenants = CoTenants { classes: Vec::new(), known_rate: 1.0 };
        for other in others {
            let pair = job.class.zip(other.class);
            match pair.filter(|&(a, b)| self.of_classes(a, b).is_some()) {
                Some((_, ClassId(class))) => co_tenants.classes.push(class),
                None => {
                    let by_rule = self.truth.pair_rate(job, other, gpu);
                    co_tenants.known_rate *= by_rule.map_or(1.0, |rate| rate.as_f64());
                }
            }
        }
        co_tenants
    }

    /// Updates the rates of all pairs that share the sensitivity of `a` or the pressure of `b`.
    fn refresh(&mut self, a: usize, b: usize) {
        for other in 0..self.rates.len() {
            for (a, b) in [(a, other), (other, b)] {
                if let Some(rate) = &mut self.rates[a][b] {
                    *rate = believed(&self.online, self.learns, a, b);
                }
            }
        }
    }
}

/// Optimism in standard deviations, so that pairs that were never tried are tried and learned.
const OPTIMISM: f64 = 0.5;

fn believed(online: &Online, learns: bool, a: usize, b: usize) -> Ratio {
    let number = |class: usize| u32::try_from(class).expect("classes are counted in u32");
    let belief = online.belief(number(a), number(b));
    Ratio::from_f64(if learns { belief.cautious(-OPTIMISM) } else { belief.rate })
}

impl Interference for Beliefs {
    fn pair_rate(&self, job: &Profile, beside: &Profile, gpu: GpuTypeId) -> Option<Ratio> {
        let by_rule = self.truth.pair_rate(job, beside, gpu)?;
        let pair = job.class.zip(beside.class);
        let believed = pair.and_then(|(a, b)| self.of_classes(a, b));
        Some(believed.unwrap_or(by_rule))
    }

    fn observe(&mut self, observation: &Observation) {
        let (Some(class), true) = (observation.job.class, self.learns) else { return };
        let gpus: Vec<CoTenants> = observation
            .beside
            .iter()
            .map(|others| self.co_tenants(&observation.job, others, observation.gpu))
            .collect();
        let (rate, noise) = (observation.rate.as_f64(), observation.noise.as_f64());
        for pair in self.online.pair_observations(class.0, &gpus, rate, noise) {
            self.online.observe(class.0, pair.beside, pair.rate, pair.noise);
            self.refresh(class.index(), pair.beside as usize);
        }
    }
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
