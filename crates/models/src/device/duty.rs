//! The duty law: throughput of n equal processes from what one of them keeps busy alone.

/// One measured point: n copies of a model side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DutyPoint {
    /// Copies.
    pub copies: u32,
    /// What one keeps busy of what the GPU could do for its batch size.
    pub duty: f64,
    /// Throughput of all ÷ throughput of one alone.
    pub stp: f64,
}

/// STP(n) = ((1/n)ᵖ + (u/η)ᵖ)^(−1/p): n copies gain n-fold until the GPU is full, with a bend between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DutyLaw {
    /// How much of the GPU copies can fill together.
    pub eta: f64,
    /// How sharp the bend is.
    pub exponent: f64,
}

impl DutyLaw {
    /// Where the duty is solo throughput ÷ the best over batch sizes.
    pub const BY_BATCH: DutyLaw = DutyLaw { eta: 1.04, exponent: 3.0 };
    /// Where the duty is solo throughput ÷ what one small slice of the GPU achieves, scaled up.
    pub const BY_SLICE: DutyLaw = DutyLaw { eta: 0.98, exponent: 4.0 };

    /// Throughput of `copies` ÷ throughput of one alone; exactly 1 for one.
    pub fn stp(&self, copies: u32, duty: f64) -> f64 {
        if copies <= 1 {
            return f64::from(copies);
        }
        let (each, full) = (1.0 / f64::from(copies), duty / self.eta);
        (each.powf(self.exponent) + full.powf(self.exponent)).powf(-1.0 / self.exponent)
    }

    /// Mean error relative to what was measured; zero of nothing.
    pub fn error(&self, points: &[DutyPoint]) -> f64 {
        let errors = points.iter().map(|point| self.relative(point));
        errors.sum::<f64>() / points.len().max(1) as f64
    }

    /// The error at one point relative to what was measured, without sign.
    pub fn relative(&self, point: &DutyPoint) -> f64 {
        (self.stp(point.copies, point.duty) / point.stp - 1.0).abs()
    }

    /// The law with the least mean error: η in steps of 0.02, the exponent in steps of a half.
    pub fn fit(points: &[DutyPoint]) -> Self {
        let etas = (35..=65).map(|step| f64::from(step) / 50.0);
        let laws = etas.flat_map(|eta| {
            (2..=20).map(move |step| DutyLaw { eta, exponent: f64::from(step) / 2.0 })
        });
        let errors = laws.map(|law| (law, law.error(points)));
        let best = errors.min_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map_or(Self::BY_BATCH, |(law, _)| law)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_exact_idle_copies_add_up_and_full_ones_gain_nothing() {
        let law = DutyLaw::BY_BATCH;
        assert_eq!(law.stp(1, 0.9), 1.0);
        assert!((law.stp(4, 0.01) - 4.0).abs() < 1e-3);
        assert!((law.stp(4, 1.0) - 1.04).abs() < 0.02);
        assert!(law.stp(3, 0.4) > law.stp(2, 0.4) && law.stp(3, 0.4) > law.stp(3, 0.5));
    }

    #[test]
    fn a_law_is_found_again_from_its_own_points() {
        let law = DutyLaw { eta: 0.9, exponent: 5.0 };
        let points: Vec<DutyPoint> = (2..6)
            .flat_map(|copies| {
                (1..10).map(move |tenth| {
                    let duty = f64::from(tenth) / 10.0;
                    DutyPoint { copies, duty, stp: law.stp(copies, duty) }
                })
            })
            .collect();
        assert_eq!(DutyLaw::fit(&points), law);
        assert_eq!(law.error(&points), 0.0);
        assert!(DutyLaw::BY_BATCH.error(&points) > 0.0);
    }
}
