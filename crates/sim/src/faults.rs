//! Seeded GPU failures: times to failure and to repair are exponential.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tandem_core::{GpuId, Span, Time};

/// How often GPUs fail and how long repairs take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultOptions {
    /// Mean time between two failures of one GPU, in hours.
    pub mtbf_h: f64,
    /// Mean time to repair, in hours.
    pub repair_h: f64,
    /// Jobs write a checkpoint after this much work.
    pub checkpoint: Span,
}

impl FaultOptions {
    /// Reads `mtbf_h=…,repair_h=…[,checkpoint_min=…]`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self { mtbf_h: 0.0, repair_h: 0.0, checkpoint: Span::from_secs(30 * 60) };
        for pair in text.split(',') {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| format!("'{pair}' is not key=value"))?;
            let number =
                value
                    .parse::<f64>()
                    .ok()
                    .filter(|number| (1e-3..=1e9).contains(number))
                    .ok_or_else(|| format!("{key} is a number from 0.001 to 1e9, not '{value}'"))?;
            match key {
                "mtbf_h" => options.mtbf_h = number,
                "repair_h" => options.repair_h = number,
                "checkpoint_min" => options.checkpoint = Span((number * 60e6) as u64),
                _ => {
                    return Err(format!(
                        "unknown key '{key}'; known are mtbf_h, repair_h, checkpoint_min"
                    ));
                }
            }
        }
        if options.mtbf_h == 0.0 || options.repair_h == 0.0 {
            return Err("both mtbf_h and repair_h are needed".to_owned());
        }
        Ok(options)
    }
}

/// One failure or repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fault {
    pub(crate) at: Time,
    pub(crate) gpu: GpuId,
    pub(crate) down: bool,
    /// Number of previous faults of this GPU.
    nth: u32,
}

/// The next failure or repair of each GPU.
pub(crate) struct Faults {
    options: FaultOptions,
    seed: u64,
    next: BinaryHeap<Reverse<Fault>>,
}

impl Faults {
    pub(crate) fn new(options: FaultOptions, seed: u64, gpus: u32, from: Time) -> Self {
        let mut faults = Self { options, seed, next: BinaryHeap::with_capacity(gpus as usize) };
        for gpu in (0..gpus).map(GpuId) {
            faults.draw(Fault { at: from, gpu, down: false, nth: 0 });
        }
        faults
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.next.peek().map(|Reverse(fault)| fault.at)
    }

    /// The next fault if it happens at `now`.
    pub(crate) fn pop_at(&mut self, now: Time) -> Option<Fault> {
        let due = self.next.peek().is_some_and(|Reverse(fault)| fault.at <= now);
        let Reverse(fault) = due.then(|| self.next.pop()).flatten()?;
        self.draw(fault);
        Some(fault)
    }

    /// Draws the fault after `last`. Each GPU has its own random stream, so that its failures do not depend
    /// on other GPUs.
    fn draw(&mut self, last: Fault) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(u64::from(last.gpu.0));
        rng.set_word_pos(u128::from(last.nth) * 2);
        let uniform: f64 = rng.random();
        let down = !last.down;
        let mean_h = if down { self.options.mtbf_h } else { self.options.repair_h };
        let hours = -mean_h * (1.0 - uniform).ln();
        // At least a second, so that time advances however small the mean is.
        let micros = (hours * 3600e6).clamp(1e6, 1e17);
        let at = last.at + Span(micros as u64);
        // A fault at the end of time never happens.
        if at < Time::END {
            self.next.push(Reverse(Fault { at, gpu: last.gpu, down, nth: last.nth + 1 }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_alternate_with_repairs_and_come_in_order() {
        let options = FaultOptions::parse("mtbf_h=10,repair_h=1").unwrap();
        let mut faults = Faults::new(options, 7, 4, Time(0));
        let mut down = [false; 4];
        let mut last = Time(0);
        let mut downtime = 0;
        let mut since = [Time(0); 4];
        for _ in 0..4000 {
            let now = faults.next_at().unwrap();
            assert!(now >= last);
            last = now;
            let fault = faults.pop_at(now).unwrap();
            let gpu = fault.gpu.index();
            assert_ne!(fault.down, std::mem::replace(&mut down[gpu], fault.down));
            if fault.down {
                since[gpu] = now;
            } else {
                downtime += now.since(since[gpu]).0;
            }
        }
        let share = downtime as f64 / (4.0 * last.0 as f64);
        assert!((share - 1.0 / 11.0).abs() < 0.02, "{share}");
    }

    #[test]
    fn bad_options_list_the_known_ones() {
        let error = |text| FaultOptions::parse(text).unwrap_err();
        assert_eq!(error("mtbf_h=10"), "both mtbf_h and repair_h are needed");
        assert_eq!(error("x=1"), "unknown key 'x'; known are mtbf_h, repair_h, checkpoint_min");
        assert_eq!(error("mtbf_h=-1"), "mtbf_h is a number from 0.001 to 1e9, not '-1'");
        assert_eq!(error("mtbf_h"), "'mtbf_h' is not key=value");
    }
}
