//! Pair rates of the trace's classes: measured, and believed before the run.

use crate::interference::{Beliefs, MeasuredRates};
use crate::trace::Trace;
use serde::Serialize;
use std::cmp::Reverse;
use tandem_core::ClassId;

/// More rows cannot be distinguished.
const CLASSES_MAX: usize = 60;

/// Rates of the most frequent classes.
#[derive(Serialize)]
pub struct PairHeatMap {
    /// Their names, the most frequent first.
    classes: Vec<String>,
    /// Jobs of each.
    jobs: Vec<usize>,
    /// Classes of the trace; `classes` may name fewer.
    all_classes: usize,
    /// `measured[a][b]`: speed of `a` beside `b`; 0 if they do not fit, null if not measured.
    measured: Vec<Vec<Option<f64>>>,
    /// The believed rates at the start of the run, if the policies did not know the true ones.
    believed: Option<Vec<Vec<Option<f64>>>>,
}

impl PairHeatMap {
    /// Rates for the classes of `trace`.
    pub fn new(trace: &Trace, truth: &MeasuredRates, beliefs: Option<&Beliefs>) -> Self {
        let mut counts = vec![0_usize; trace.classes.len()];
        for class in trace.jobs.iter().filter_map(|job| job.class) {
            counts[class.index()] += 1;
        }
        let mut chosen: Vec<ClassId> = (0..).map(ClassId).take(counts.len()).collect();
        chosen.retain(|class| counts[class.index()] > 0);
        let all_classes = chosen.len();
        chosen.sort_by_key(|class| (Reverse(counts[class.index()]), *class));
        chosen.truncate(CLASSES_MAX);
        Self {
            classes: chosen.iter().map(|class| trace.classes.get(class.0).to_string()).collect(),
            jobs: chosen.iter().map(|class| counts[class.index()]).collect(),
            all_classes,
            measured: grid(&chosen, |a, b| truth.measured(a, b).map(|rate| rate.as_f64())),
            believed: beliefs.map(|beliefs| {
                grid(&chosen, |a, b| beliefs.of_classes(a, b).map(|rate| rate.as_f64()))
            }),
        }
    }
}

fn grid<T>(classes: &[ClassId], value: impl Fn(ClassId, ClassId) -> T) -> Vec<Vec<T>> {
    let row = |&a: &ClassId| classes.iter().map(|&b| value(a, b)).collect();
    classes.iter().map(row).collect()
}
