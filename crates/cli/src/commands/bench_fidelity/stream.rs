//! The jobs of `tandem bench fidelity`: drawn from a seed, submitted to a daemon and to the simulator alike.

use crate::random::Random;
use std::path::Path;
use tandem_daemon::request::JobRequest;

/// A class of real training jobs.
pub(super) struct TrainingClass {
    pub(super) name: &'static str,
    arguments: &'static [&'static str],
}

/// Classes with and without idle gaps, bound by arithmetic or memory bandwidth, of several sizes.
pub(super) const CLASSES: [TrainingClass; 6] = [
    TrainingClass { name: "mlp", arguments: &["--model", "mlp"] },
    TrainingClass {
        name: "mlp-gap",
        arguments: &["--model", "mlp", "--gap", "50", "--allocate", "100"],
    },
    TrainingClass { name: "cnn", arguments: &["--model", "cnn", "--allocate", "200"] },
    TrainingClass { name: "cnn-gap", arguments: &["--model", "cnn", "--gap", "60"] },
    TrainingClass { name: "memory", arguments: &["--model", "memory"] },
    TrainingClass {
        name: "memory-gap",
        arguments: &["--model", "memory", "--gap", "40", "--allocate", "300"],
    },
];

/// Every tenth submission is an array of this many tasks.
const ARRAY_TASKS: usize = 3;
const ARRAY_EVERY: usize = 10;
/// The shortest job relative to the mean; durations are log-uniform up to the inverse.
const SHORTEST: f64 = 0.4;

/// The measurements of a class before the run.
#[derive(Clone, Copy)]
pub(super) struct MeasuredClass {
    pub(super) steps_per_s: f64,
    /// Time that a job does not train: start, data, end, and until the next one starts.
    pub(super) overhead_s: f64,
    pub(super) memory_mib: f64,
    pub(super) duty: Option<f64>,
}

/// One submission: a job, or an array of equal tasks.
pub(super) struct StreamEntry {
    pub(super) at_s: f64,
    pub(super) class: usize,
    pub(super) tasks: usize,
    pub(super) gpus: u32,
    pub(super) steps: u64,
    /// Solo duration of each task.
    pub(super) duration_s: f64,
}

/// Parameters of the stream.
pub(super) struct StreamOptions {
    pub(super) jobs: usize,
    pub(super) devices: u32,
    pub(super) mean_s: f64,
    /// Work submitted per second and device.
    pub(super) load: f64,
    pub(super) seed: u64,
}

/// A stream of jobs in order of submission. The middle one is a gang, if there are two devices for it.
pub(super) fn draw(options: &StreamOptions, classes: &[MeasuredClass]) -> Vec<StreamEntry> {
    let mut random = Random(options.seed);
    let mut stream = Vec::new();
    let (mut at_s, mut jobs) = (0.0, 0);
    while jobs < options.jobs {
        let index = random.below(classes.len() as u64);
        let class = &classes[index];
        let wanted_s = options.mean_s * SHORTEST * SHORTEST.powf(-2.0 * random.unit());
        let steps = (wanted_s * class.steps_per_s).round().max(1.0);
        let duration_s = class.overhead_s + steps / class.steps_per_s;
        let is_array = stream.len() % ARRAY_EVERY == ARRAY_EVERY - 1;
        let tasks = if is_array { ARRAY_TASKS.min(options.jobs - jobs) } else { 1 };
        let has_gang = stream.iter().any(|earlier: &StreamEntry| earlier.gpus > 1);
        let is_gang = options.devices > 1 && !has_gang && !is_array && jobs >= options.jobs / 2;
        let gpus = if is_gang { 2 } else { 1 };
        let steps = steps as u64;
        stream.push(StreamEntry { at_s, class: index, tasks, gpus, steps, duration_s });
        jobs += tasks;
        // Exponential gaps that bring the work of this submission at the wanted load on average.
        let work_s = duration_s * tasks as f64 * f64::from(gpus);
        let gap_s = work_s / (options.load * f64::from(options.devices));
        at_s += gap_s * -(1.0 - random.unit()).ln();
    }
    stream
}

/// The command of a class.
pub(super) fn request(
    train: &Path,
    folder: &Path,
    class: &TrainingClass,
    steps: u64,
) -> JobRequest {
    let program = train.to_string_lossy().into_owned();
    let steps = ["--steps".to_owned(), steps.to_string()];
    let arguments = class.arguments.iter().map(|&argument| argument.to_owned());
    JobRequest {
        command: std::iter::once(program).chain(arguments).chain(steps).collect(),
        class: Some(class.name.to_owned()),
        dir: folder.to_owned(),
        env: std::env::vars().collect(),
        ..JobRequest::default()
    }
}

impl StreamEntry {
    /// The submission to the daemon.
    pub(super) fn request(&self, train: &Path, folder: &Path) -> JobRequest {
        JobRequest {
            gpus: f64::from(self.gpus),
            // The sample job trains on one core, so it would not feel a tenant of the gang's second core.
            exclusive: self.gpus > 1,
            array: (self.tasks > 1).then(|| format!("1-{}", self.tasks)),
            estimate_s: Some(self.duration_s),
            ..request(train, folder, &CLASSES[self.class], self.steps)
        }
    }

    /// The row of the trace for the simulator, in the order of `TRACE_COLUMNS`.
    pub(super) fn row(&self, number: usize, class: &MeasuredClass) -> Vec<String> {
        let seconds = |value: f64| format!("{value:.3}");
        vec![
            number.to_string(),
            "u1".to_owned(),
            seconds(self.at_s),
            self.gpus.to_string(),
            seconds(self.duration_s),
            seconds(self.duration_s),
            CLASSES[self.class].name.to_owned(),
            "1".to_owned(),
            "0".to_owned(),
            seconds(class.memory_mib),
            class.duty.map(|duty| seconds((duty * 100.0).clamp(0.0, 100.0))).unwrap_or_default(),
            u8::from(self.gpus > 1).to_string(),
            String::new(),
            "0".to_owned(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEASURED: MeasuredClass =
        MeasuredClass { steps_per_s: 100.0, overhead_s: 0.1, memory_mib: 50.0, duty: None };

    fn options(devices: u32, seed: u64) -> StreamOptions {
        StreamOptions { jobs: 200, devices, mean_s: 4.0, load: 1.5, seed }
    }

    #[test]
    fn a_stream_has_all_classes_arrays_one_gang_and_the_wanted_load() {
        for seed in 1..=5 {
            let stream = draw(&options(2, seed), &[MEASURED; 6]);
            assert_eq!(stream.iter().map(|one| one.tasks).sum::<usize>(), 200);
            assert!((0..6).all(|class| stream.iter().any(|one| one.class == class)));
            assert_eq!(stream.iter().filter(|one| one.gpus == 2).count(), 1);
            assert!(stream.iter().filter(|one| one.tasks == ARRAY_TASKS).count() >= 10);
            assert!(stream.is_sorted_by_key(|one| one.at_s));
            let work: f64 = stream.iter().map(|one| one.duration_s * one.tasks as f64).sum();
            let load = work / 2.0 / stream[stream.len() - 1].at_s;
            assert!((1.1..2.1).contains(&load), "{load}");
        }
    }

    #[test]
    fn one_device_has_no_gang_and_a_seed_decides() {
        let stream = |seed| draw(&options(1, seed), &[MEASURED; 6]);
        assert!(stream(1).iter().all(|one| one.gpus == 1));
        let times = |seed| stream(seed).iter().map(|one| one.at_s).collect::<Vec<_>>();
        assert_eq!(times(3), times(3));
        assert_ne!(times(3), times(4));
    }
}
