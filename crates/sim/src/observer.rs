//! Measures how fast jobs run beside each other, as their own reported steps would show it: over a
//! while in the same company, and not exactly.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use std::collections::{BTreeMap, VecDeque};
use tandem_core::{GpuTypeId, JobId, Observation, Profile, Ratio, Span, Time};

/// The others on each GPU of a job where it has company, those of equal GPUs once.
pub(crate) type ColocatedJobs = Vec<Vec<JobId>>;

/// Time in the same company before a rate can be told from noise.
const WINDOW: Span = Span::from_secs(60);
/// Standard deviation of a measured rate: about that of repeated published measurements.
const NOISE: f64 = 0.02;

pub(crate) struct Observer {
    rng: ChaCha8Rng,
    noise: Normal<f64>,
    /// In whose company a job has been running since when, or since it was last measured.
    watched: BTreeMap<JobId, (ColocatedJobs, Time)>,
    /// Who began to run beside others when, in order: a first measurement does not wait for the end.
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

    /// From now on `job` runs in `company`, if any can be measured. The company until now, if that is a
    /// measurement.
    pub(crate) fn watch(
        &mut self,
        job: JobId,
        company: Option<ColocatedJobs>,
        now: Time,
    ) -> Option<ColocatedJobs> {
        if self.watched.get(&job).map(|(before, _)| before) == company.as_ref() {
            return None;
        }
        let before = match company {
            Some(company) => {
                self.begun.push_back((now, job));
                self.watched.insert(job, (company, now))
            }
            None => self.watched.remove(&job),
        };
        let (company, since) = before?;
        (now.since(since) >= WINDOW).then_some(company)
    }

    /// The next job that has run in the same company for long enough by now, and that company.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<(JobId, ColocatedJobs)> {
        while let Some(&(began, job)) = self.begun.front()
            && now.since(began) >= WINDOW
        {
            self.begun.pop_front();
            if let Some((company, since)) = self.watched.get_mut(&job)
                && *since == began
            {
                *since = now;
                return Some((job, company.clone()));
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
