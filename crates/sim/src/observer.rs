//! Measures how fast jobs run beside each other, as their own reported steps would show it: over a
//! while with the same partner, and not exactly.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use std::collections::{BTreeMap, VecDeque};
use tandem_core::{GpuTypeId, JobId, Observation, Profile, Ratio, Span, Time};

/// Time beside the same partner before a rate can be told from noise.
const WINDOW: Span = Span::from_secs(60);
/// Standard deviation of a measured rate: about that of repeated published measurements.
const NOISE: f64 = 0.02;

pub(crate) struct Observer {
    rng: ChaCha8Rng,
    noise: Normal<f64>,
    /// Beside whom a job has been running since when, or since it was last measured.
    watched: BTreeMap<JobId, (JobId, Time)>,
    /// Who began to run beside someone when, in order: a first measurement does not wait for the end.
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

    /// From now on `job` runs beside `partner`. The partner it ran beside until now, if that is a
    /// measurement.
    pub(crate) fn watch(&mut self, job: JobId, partner: Option<JobId>, now: Time) -> Option<JobId> {
        let before = self.watched.get(&job).copied();
        if before.map(|(beside, _)| beside) == partner {
            return None;
        }
        match partner {
            Some(partner) => {
                self.begun.push_back((now, job));
                self.watched.insert(job, (partner, now))
            }
            None => self.watched.remove(&job),
        };
        let (beside, since) = before?;
        (now.since(since) >= WINDOW).then_some(beside)
    }

    /// The next job that has run beside the same partner for long enough by now, and that partner.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<(JobId, JobId)> {
        while let Some(&(began, job)) = self.begun.front()
            && now.since(began) >= WINDOW
        {
            self.begun.pop_front();
            if let Some((partner, since)) = self.watched.get_mut(&job)
                && *since == began
            {
                *since = now;
                return Some((job, *partner));
            }
        }
        None
    }

    pub(crate) fn measure(
        &mut self,
        job: Profile,
        beside: Profile,
        gpu: GpuTypeId,
        truth: Ratio,
    ) -> Observation {
        let rate = Ratio::from_f64(truth.as_f64() + self.noise.sample(&mut self.rng));
        Observation { job, beside, gpu, rate, noise: Ratio::from_f64(NOISE) }
    }
}
