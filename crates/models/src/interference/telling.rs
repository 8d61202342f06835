//! Which partners tell most about a class: an experiment costs time on a GPU, so the few that there is
//! time for should leave as little unknown as possible.

use super::held_out::Role;
use super::offline::load;
use super::online::Online;
use crate::linalg::Square;

/// Partners to observe a class beside.
#[derive(Clone, Debug, PartialEq)]
pub struct TellingPartners {
    /// The one that tells most comes first.
    pub partners: Vec<u32>,
    /// Root mean square error to expect over all pairs of the class, both directions, as things are.
    pub rmse_before: f64,
    /// The same once it was observed beside these partners.
    pub rmse_after: f64,
}

/// What is unknown of a class in one of its roles beside each class: covariances of rates.
struct Unknown {
    covariance: Square,
    /// Variances that are the pair's own, or the other class's.
    own: Vec<f64>,
}

impl Unknown {
    /// By how much all standard deviations together fall when the class is observed beside one, with
    /// this variance of noise. Of variances, a few pairs that nobody knows would outweigh the rest.
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
    /// Of `candidates`, the `count` beside which `class` is best observed, both directions, with
    /// measurements of this noise: each time the one after which least is unknown of it beside all classes.
    pub fn telling_partners(
        &self,
        class: u32,
        candidates: &[u32],
        count: usize,
        noise: f64,
    ) -> TellingPartners {
        let noise = noise.powi(2);
        let mut roles = [Role::Subject, Role::Partner].map(|role| self.unknown(role, class));
        let rmse = |roles: &[Unknown]| {
            let pairs: usize = roles.iter().map(|role| role.own.len()).sum();
            (roles.iter().map(Unknown::variances).sum::<f64>() / pairs as f64).sqrt()
        };
        let rmse_before = rmse(&roles);
        let mut left = candidates.to_vec();
        let mut partners = Vec::new();
        while partners.len() < count && !left.is_empty() {
            let gain = |&beside: &u32| -> f64 {
                roles.iter().map(|role| role.gain(beside as usize, noise)).sum()
            };
            let gains: Vec<f64> = left.iter().map(gain).collect();
            // Of equals the first.
            let best = (0..gains.len())
                .rev()
                .max_by(|&one, &other| gains[one].total_cmp(&gains[other]))
                .expect("some are left");
            let partner = left.remove(best);
            roles.iter_mut().for_each(|role| role.observe(partner as usize, noise));
            partners.push(partner);
        }
        TellingPartners { partners, rmse_before, rmse_after: rmse(&roles) }
    }

    fn unknown(&self, role: Role, class: u32) -> Unknown {
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
        let mut unknown = Unknown { covariance, own };
        for &beside in &all {
            if let Some(noise) = self.noise_variance(role.pair(class, beside)) {
                unknown.observe(beside as usize, noise);
            }
        }
        unknown
    }
}
