//! Which pairs to measure next. An experiment costs time on a GPU, so the few that there is time for should
//! reduce the uncertainty about a class as much as possible.

use super::held_out::Role;
use super::offline::load;
use super::online::Online;
use crate::linalg::Square;

/// Partners to measure a class beside.
#[derive(Clone, Debug, PartialEq)]
pub struct NextExperiments {
    /// The most informative partner comes first.
    pub partners: Vec<u32>,
    /// Expected root mean square error over all pairs of the class, both directions, at present.
    pub rmse_before: f64,
    /// The same once the class was measured beside these partners.
    pub rmse_after: f64,
}

/// Uncertainty about a class in one of its roles beside each class: the posterior covariance of its rates.
struct Posterior {
    covariance: Square,
    /// Variances that are the pair's own, or the other class's.
    own: Vec<f64>,
}

impl Posterior {
    /// The fall of the sum of all standard deviations when the class is measured beside one other, with this
    /// noise variance. With variances, a few unknown pairs would outweigh the rest.
    fn gain(&self, beside: usize, noise: f64) -> f64 {
        let observed = self.observed(beside, noise);
        let fall = |(at, covariance): (usize, &f64)| {
            let before = self.variance(at);
            before.sqrt() - (before - covariance.powi(2) / observed).max(0.0).sqrt()
        };
        self.covariance.row(beside).iter().enumerate().map(fall).sum()
    }

    fn observe(&mut self, beside: usize, noise: f64) {
        let row = self.covariance.row(beside).to_vec();
        let observed = self.observed(beside, noise);
        for (at, &factor) in row.iter().enumerate() {
            let into = self.covariance.row_mut(at).iter_mut();
            into.zip(&row).for_each(|(value, other)| *value -= factor * other / observed);
        }
    }

    /// Variance of an observation.
    fn observed(&self, beside: usize, noise: f64) -> f64 {
        self.covariance.row(beside)[beside] + self.own[beside] + noise
    }

    fn variance(&self, at: usize) -> f64 {
        self.covariance.row(at)[at].max(0.0) + self.own[at]
    }

    fn variances(&self) -> f64 {
        (0..self.own.len()).map(|at| self.variance(at)).sum()
    }
}

impl Online {
    /// Of `candidates`, the `count` partners to measure `class` beside, both directions, with this noise:
    /// greedily the one that reduces the uncertainty about the class beside all classes most.
    pub fn next_experiments(
        &self,
        class: u32,
        candidates: &[u32],
        count: usize,
        noise: f64,
    ) -> NextExperiments {
        let noise = noise.powi(2);
        let mut roles = [Role::Subject, Role::Partner].map(|role| self.posterior(role, class));
        let rmse = |roles: &[Posterior]| {
            let pairs: usize = roles.iter().map(|role| role.own.len()).sum();
            (roles.iter().map(Posterior::variances).sum::<f64>() / pairs as f64).sqrt()
        };
        let rmse_before = rmse(&roles);
        let mut left = candidates.to_vec();
        let mut partners = Vec::new();
        while partners.len() < count && !left.is_empty() {
            let gain = |&beside: &u32| -> f64 {
                roles.iter().map(|role| role.gain(beside as usize, noise)).sum()
            };
            let gains: Vec<f64> = left.iter().map(gain).collect();
            // The first of equals.
            let best = (0..gains.len())
                .rev()
                .max_by(|&one, &other| gains[one].total_cmp(&gains[other]))
                .expect("there is a candidate");
            let partner = left.remove(best);
            roles.iter_mut().for_each(|role| role.observe(partner as usize, noise));
            partners.push(partner);
        }
        NextExperiments { partners, rmse_before, rmse_after: rmse(&roles) }
    }

    /// How much a measurement of `class` beside each class, both directions, would tell about it beside all of
    /// them, relative to the one that tells most.
    pub(super) fn information(&self, class: u32, noise: f64) -> Vec<f64> {
        let noise = noise.powi(2);
        let roles = [Role::Subject, Role::Partner].map(|role| self.posterior(role, class));
        let gain =
            |beside: usize| -> f64 { roles.iter().map(|role| role.gain(beside, noise)).sum() };
        let gains: Vec<f64> = (0..self.count()).map(gain).collect();
        let most = gains.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        gains.into_iter().map(|gain| (gain / most).clamp(0.0, 1.0)).collect()
    }

    fn posterior(&self, role: Role, class: u32) -> Posterior {
        let all: Vec<u32> = (0..self.count() as u32).collect();
        let load = |beside: u32| load(self.predicted(role.pair(class, beside)));
        let loads: Vec<f64> = all.iter().map(|&beside| load(beside)).collect();
        let covariance = Square::from_fn(all.len(), |row, column| {
            loads[row] * loads[column] * self.in_common(role, class, [all[row], all[column]])
        });
        let own = all.iter().zip(&loads);
        let own = own
            .map(|(&beside, load)| load.powi(2) * self.variance_besides(role, class, beside))
            .collect();
        let mut posterior = Posterior { covariance, own };
        for &beside in &all {
            if let Some(noise) = self.noise_variance(role.pair(class, beside)) {
                posterior.observe(beside as usize, noise);
            }
        }
        posterior
    }
}
