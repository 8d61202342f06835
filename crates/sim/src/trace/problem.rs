//! Everything that can be wrong with a trace; messages name file, line and field.

use super::formats::TraceFormat;
use crate::decimal::DecimalError;
use crate::one_line::OneLine;
use tandem_core::{Memory, PRIORITY_MAX};
use thiserror::Error;

/// What is wrong with a trace.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("{}: cannot be read: {cause}", OneLine(file))]
    Io {
        /// The file.
        file: String,
        /// The cause.
        cause: std::io::Error,
    },
    /// The file as a whole is unusable.
    #[error("{}: {problem}", OneLine(file))]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        problem: Problem,
    },
    /// One row is unusable.
    #[error("{}:{row}", OneLine(file))]
    Row {
        /// The file.
        file: String,
        /// The row and its problem.
        row: BadRow,
    },
}

/// A row that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{line}: {}: {}", OneLine(field), OneLine(problem))]
pub struct BadRow {
    /// Line of the file, from one.
    pub line: u64,
    /// The column.
    pub field: String,
    /// What is wrong.
    pub problem: Problem,
}

/// One problem of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// Not text.
    #[error("line {line} is not UTF-8; convert the file first")]
    NotUtf8 {
        /// The first offending line.
        line: u64,
    },
    /// No header.
    #[error("is empty; a trace starts with a header line")]
    Empty,
    /// A header and nothing else.
    #[error("has no jobs")]
    NoJobs,
    /// A Slurm history without GPU jobs.
    #[error(
        "has no jobs with a GPU; Slurm records them where slurm.conf has AccountingStorageTRES=gres/gpu"
    )]
    NoGpuJobs,
    /// A header that fits no format.
    #[error("line 1: header fits no known format; give --format, one of {}", TraceFormat::list())]
    UnknownFormat,
    /// The format needs a column.
    #[error("line 1: missing column {column}, which format {format} needs")]
    MissingColumn {
        /// The column.
        column: &'static str,
        /// The format.
        format: TraceFormat,
    },
    /// A row that is shorter or longer than the header.
    #[error("row has {found} fields, the header has {expected}")]
    FieldCount {
        /// Fields of the row.
        found: usize,
        /// Fields of the header.
        expected: usize,
    },
    /// A required field is empty.
    #[error("is empty")]
    MissingValue,
    /// Not a usable number.
    #[error("{cause}: '{text}'")]
    Number {
        /// The text.
        text: String,
        /// The cause.
        cause: DecimalError,
    },
    /// A number that should be an integer.
    #[error("not a whole number: '{text}'")]
    NotWhole {
        /// The text.
        text: String,
    },
    /// Neither a number of seconds nor a date.
    #[error("neither seconds nor a date and time: '{text}'")]
    NotATime {
        /// The text.
        text: String,
    },
    /// A duration in none of Slurm's notations.
    #[error("neither a number nor a duration such as 1-02:03:04: '{text}'")]
    NotADuration {
        /// The text.
        text: String,
    },
    /// A flag other than 0 or 1.
    #[error("neither 0 nor 1: '{text}'")]
    NotAFlag {
        /// The text.
        text: String,
    },
    /// A priority outside the range.
    #[error("not a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}: '{text}'")]
    NotAPriority {
        /// The text.
        text: String,
    },
    /// A kind of jobs that does not exist.
    #[error("not training or service: '{text}'")]
    NotAKind {
        /// The text.
        text: String,
    },
    /// A service lacks what its promise depends on.
    #[error("a service needs {missing}")]
    NotAService {
        /// What it lacks.
        missing: &'static str,
    },
    /// A slow-down limit out of range.
    #[error("not a slow-down from 1 to 1000: '{text}'")]
    NotASlowdown {
        /// The text.
        text: String,
    },
    /// A job without GPUs.
    #[error("zero GPUs; leave the job out, or use --skip-bad")]
    ZeroGpus,
    /// The end comes before the start.
    #[error("lies before {start}")]
    EndsBeforeStart {
        /// The column of the start.
        start: &'static str,
    },
    /// The same id twice.
    #[error("duplicate id '{id}'")]
    DuplicateId {
        /// The id.
        id: String,
    },
    /// A job type without a known speed.
    #[error(
        "no solo speed is known for '{job_type}'; give a table that has it with --interference"
    )]
    UnknownJobType {
        /// The type.
        job_type: String,
    },
    /// A trace that counts steps needs a table of speeds.
    #[error(
        "format gavel counts steps, not seconds; give the table of solo speeds with --interference"
    )]
    NeedsSpeeds,
    /// A partition that the cluster does not have.
    #[error("unknown partition '{name}'; the cluster has {known}")]
    UnknownPartition {
        /// The name.
        name: String,
        /// The partitions of the cluster.
        known: String,
    },
    /// More GPUs than the partition can place.
    #[error("job needs {gpus} GPUs, more than partition '{partition}' can place ({size} GPUs)")]
    LargerThanPartition {
        /// GPUs of the job.
        gpus: u32,
        /// The partition.
        partition: String,
        /// GPUs of the partition.
        size: u32,
    },
    /// More memory than a GPU of the partition has.
    #[error("job needs {wanted}, a GPU of partition '{partition}' has {available}")]
    MemoryOver {
        /// Memory of the job.
        wanted: Memory,
        /// The partition.
        partition: String,
        /// Memory of its smallest GPU.
        available: Memory,
    },
    /// A required estimate is missing.
    #[error("has no estimate, which --estimates trace needs")]
    NoEstimate,
}
