//! Job traces: one type for all formats, readers, writers, statistics and a generator.

mod formats;
mod generate;
mod info;
mod names;
mod problem;
mod read;
mod row;
mod sacct;
mod services;
mod split;
mod write;

pub use formats::TraceFormat;
pub use generate::{GenerateOptions, generate};
pub use info::{TraceInfo, info};
pub use names::{Class, Names};
pub use problem::{BadRow, Problem, TraceError};
pub use read::{ReadOptions, SoloSpeeds, parse, read};
pub use sacct::SacctCounts;
pub use services::add_services;
pub use write::write;

use tandem_core::{ClassId, JobShare, Memory, Ppm, Span, Time, Tolerance, UserId, Utilisation};

/// A trace as read: jobs in file order, interned names.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The name of the file it came from.
    pub name: String,
    /// Its format, which names its columns.
    pub format: TraceFormat,
    /// Jobs in file order.
    pub jobs: Vec<TraceJob>,
    /// Job ids as written in the file, by position in `jobs`.
    pub ids: Ids,
    /// Users, by `UserId`.
    pub users: Names,
    /// Partition names, by `TraceJob::partition`.
    pub partitions: Names,
    /// Accounts, by `TraceJob::share`.
    pub accounts: Names,
    /// Classes, by `ClassId`.
    pub classes: Names<Class>,
    /// Number of durations below one second that were raised to one second.
    pub raised: usize,
    /// Rows skipped under `skip_bad`.
    pub skipped: Vec<BadRow>,
    /// Rows of a Slurm history that are no jobs.
    pub sacct: Option<SacctCounts>,
    /// Mean time from arrival to end in that history, where it has all starts.
    pub recorded: Option<Span>,
}

/// One job of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceJob {
    /// Line of the file, for messages about this job.
    pub line: u64,
    /// Index into `Trace::users`.
    pub user: UserId,
    /// Index into `Trace::partitions`; `None` where the trace names none.
    pub partition: Option<u32>,
    /// When it was submitted.
    pub submit: Time,
    /// True solo duration on the reference GPU.
    pub duration: Span,
    /// GPUs of its gang.
    pub gpus: u32,
    /// Its duration estimate in the trace.
    pub estimate: Option<Span>,
    /// Index into `Trace::classes`.
    pub class: Option<ClassId>,
    /// Memory on each of its GPUs.
    pub memory: Option<Memory>,
    /// Solo GPU utilisation.
    pub gpu_util: Option<Utilisation>,
    /// Solo utilisation of the memory bandwidth.
    pub bandwidth_util: Option<Utilisation>,
    /// The slow-down that it accepts.
    pub tolerance: Tolerance,
    /// From −20 to 20; two steps double its weight, 0 is the default.
    pub priority: i8,
    /// What it counts for among the jobs of others; its account is an index into `Trace::accounts`.
    pub share: JobShare,
    /// What it is promised, if it is a service: its duration is then the time until it is cancelled.
    pub service: Option<TraceService>,
}

/// A service of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceService {
    /// Requests per second, in thousandths.
    pub rate_milli: u32,
    /// The 99th percentile of the latency that it is promised, in microseconds; `None` if none is.
    pub slo_us: Option<u32>,
}

impl TraceService {
    /// The least rate at which a service with this utilisation keeps its promise. Requests arrive at random
    /// and take an exponential time of mean s alone, so that 99 of 100 take at most s ln 100 / (y − u) at
    /// rate y and utilisation u.
    pub fn least_rate(self, gpu_util: Utilisation) -> Ppm {
        let Some(slo_us) = self.slo_us.filter(|&slo| slo > 0) else { return Ppm::ZERO };
        let util = f64::from(gpu_util.0.min(Utilisation::FULL.0)) / f64::from(Utilisation::FULL.0);
        let service_s = util * 1000.0 / f64::from(self.rate_milli.max(1));
        let needed = util + service_s * 100_f64.ln() * 1e6 / f64::from(slo_us);
        Ppm((needed.clamp(0.0, 1.0) * 1e6).ceil() as u32)
    }
}

impl Trace {
    /// The partition that a job names.
    pub fn partition_of(&self, job: &TraceJob) -> Option<&str> {
        job.partition.map(|index| self.partitions.get(index).as_str())
    }
}

/// Many short strings in one allocation.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    text: String,
    ends: Vec<usize>,
}

impl Ids {
    /// Adds a string.
    pub fn push(&mut self, id: &str) {
        self.text.push_str(id);
        self.ends.push(self.text.len());
    }

    /// The id at `index`.
    pub fn get(&self, index: usize) -> &str {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[start..self.ends[index]]
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
