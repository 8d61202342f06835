//! A table of pairs as training data.

use super::PairTable;
use crate::profiles::{SoloProfile, SoloProfiles};
use crate::trace::Class;
use tandem_core::Ratio;
use tandem_models::interference::evaluate::PairData;
use tandem_models::interference::{ClassProfile, MeasuredPair};

impl PairTable {
    /// Pairs that ran together, and the profiles of their classes from `solo` and from the table's solo
    /// speeds.
    pub fn pair_data(&self, solo: Option<&SoloProfiles>) -> PairData {
        let profile = |class: &Class| {
            let steps = self.speeds.get(&(class.clone(), 1)).copied();
            class_profile(class, solo.and_then(|solo| solo.get(class)), steps)
        };
        let pair = |&([a, b], [rate_a, rate_b]): &([u32; 2], [Ratio; 2])| MeasuredPair {
            a: a as usize,
            b: b as usize,
            rate_a: rate_a.as_f64(),
            rate_b: rate_b.as_f64(),
        };
        PairData {
            profiles: self.classes.iter().map(profile).collect(),
            pairs: self.measured.iter().map(pair).collect(),
        }
    }

    /// Rates of exactly one: possible, but more likely a copied solo speed.
    pub fn suspect_count(&self) -> usize {
        let rates = self.measured.iter().flat_map(|(_, rates)| rates);
        rates.filter(|&&rate| rate == Ratio::ONE).count()
    }
}

/// The profile of a class: batch and precision from its name, the rest measured.
pub(super) fn class_profile(
    class: &Class,
    solo: Option<&SoloProfile>,
    steps_per_s: Option<f64>,
) -> ClassProfile {
    let batch = class.batch.map(f64::from);
    let measured_steps = || solo.zip(batch).map(|(solo, batch)| solo.speed / batch);
    ClassProfile {
        name: class.to_string(),
        model: class.model.clone(),
        gpu_util: solo.map(|solo| solo.gpu_util.share()),
        bandwidth_util: solo.map(|solo| solo.bandwidth_util.share()),
        memory_mib: solo.map(|solo| solo.memory.mib()),
        steps_per_s: steps_per_s.or_else(measured_steps),
        batch,
        amp: class.amp,
    }
}
