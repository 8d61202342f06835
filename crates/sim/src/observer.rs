//! Measures the rates of co-located jobs as their own reported steps would show them: with noise, and only
//! after a while beside the same jobs.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use std::collections::{BTreeMap, VecDeque};
use tandem_core::{GpuTypeId, JobId, Observation, Profile, Ratio, Span, Time};

/// The co-located jobs on each shared GPU of a job, equal GPUs once.
pub(crate) type ColocatedJobs = Vec<Vec<JobId>>;

/// Time beside the same jobs before a rate is measured.
const WINDOW: Span = Span::from_secs(60);
/// Standard deviation of a measured rate: about that of repeated published measurements.
const NOISE: f64 = 0.02;

pub(crate) struct Observer {
    rng: ChaCha8Rng,
    noise: Normal<f64>,
    /// The co-located jobs of a job, and since when, or since when it was last measured.
    watched: BTreeMap<JobId, (ColocatedJobs, Time)>,
    /// When jobs began to share, in order, so that a first measurement does not wait for the end.
    begun: VecDeque<(Time, JobId)>,
}

impl Observer {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: ChaCha8Rng::seed_from_u64(seed),
            noise: Normal::new(0.0, NOISE).expect("the deviation is finite"),
            watched: BTreeMap::new(),
            begun: VecDeque::new(),
        }
    }

    /// From now on `job` runs beside `colocated`, if that can be measured. Returns the previous co-located
    /// jobs if their time was long enough for a measurement.
    pub(crate) fn watch(
        &mut self,
        job: JobId,
        colocated: Option<ColocatedJobs>,
        now: Time,
    ) -> Option<ColocatedJobs> {
        if self.watched.get(&job).map(|(before, _)| before) == colocated.as_ref() {
            return None;
        }
        let before = match colocated {
            Some(colocated) => {
                self.begun.push_back((now, job));
                self.watched.insert(job, (colocated, now))
            }
            None => self.watched.remove(&job),
        };
        let (colocated, since) = before?;
        (now.since(since) >= WINDOW).then_some(colocated)
    }

    /// The next job that has run beside the same jobs for long enough, and those jobs.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<(JobId, ColocatedJobs)> {
        while let Some(&(began, job)) = self.begun.front()
            && now.since(began) >= WINDOW
        {
            self.begun.pop_front();
            if let Some((colocated, since)) = self.watched.get_mut(&job)
                && *since == began
            {
                *since = now;
                return Some((job, colocated.clone()));
            }
        }
        None
    }

    pub(crate) fn measure(
        &mut self,
        job: Profile,
        beside: Vec<Vec<Profile>>,
        gpu: GpuTypeId,
        truth: Ratio,
    ) -> Observation {
        let rate = Ratio::from_f64(truth.as_f64() + self.noise.sample(&mut self.rng));
        Observation { job, beside, gpu, rate, noise: Ratio::from_f64(NOISE) }
    }
}
