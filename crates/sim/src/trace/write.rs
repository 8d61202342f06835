//! Writes a trace in one of the formats that state durations.

use super::{Trace, TraceFormat, TraceJob};
use crate::decimal::{Seconds, Thousandths};
use std::io::{self, Write};
use tandem_core::{JobShare, Span, Tolerance};

/// The columns of a format as written; `None` if a format has no durations, or only Slurm writes it.
fn columns(format: TraceFormat) -> Option<&'static [&'static str]> {
    match format {
        TraceFormat::Tandem => Some(&[
            "job_id",
            "user",
            "partition",
            "submit_s",
            "gpus",
            "duration_s",
            "estimate_s",
            "model",
            "dataset",
            "batch",
            "amp",
            "memory_mib",
            "gpu_util",
            "bandwidth_util",
        ]),
        TraceFormat::Venus => Some(&[
            "job_id",
            "user",
            "vc",
            "gpu_num",
            "submit_s",
            "duration",
            "estimate_s",
            "model",
            "dataset",
            "batchsize",
            "amp",
            "gpu_util",
            "gmem_util",
            "gmem",
        ]),
        TraceFormat::Philly => Some(&["timestamp", "duration", "num_gpus", "gpu_time", "cluster"]),
        TraceFormat::Muri => {
            Some(&["job_id", "num_gpu", "submit_time", "model_name", "batch_size", "duration"])
        }
        TraceFormat::Alibaba2023 => Some(&[
            "name",
            "num_gpu",
            "gpu_milli",
            "creation_time",
            "deletion_time",
            "scheduled_time",
        ]),
        TraceFormat::Pollux | TraceFormat::Gavel | TraceFormat::Sacct => None,
    }
}

impl TraceFormat {
    /// Whether a trace can be written in this format.
    pub fn is_writable(self) -> bool {
        columns(self).is_some()
    }
}

/// Columns that few traces have: they are written if any job has a value.
const OPTIONAL: [&str; 3] = ["exclusive", "max_slowdown", "priority"];
/// The same, of traces with services.
const SERVICES: [&str; 3] = ["kind", "rate_per_s", "slo_ms"];
/// The same, of traces of several people.
const SHARES: [&str; 3] = ["account", "tier", "reservation"];

/// Writes `trace` as CSV with a header. Empty columns are written too, so that all files of a format have the
/// same header, except for the `OPTIONAL` and `SHARES` ones.
///
/// # Panics
/// For a format that is not [writable](TraceFormat::is_writable).
pub fn write(trace: &Trace, format: TraceFormat, out: &mut impl Write) -> io::Result<()> {
    let mut columns = columns(format).expect("the caller asks for a writable format").to_vec();
    let has_limits = |job: &TraceJob| job.tolerance != Tolerance::Any || job.priority != 0;
    if format == TraceFormat::Tandem && trace.jobs.iter().any(has_limits) {
        columns.extend(OPTIONAL);
    }
    if format == TraceFormat::Tandem && trace.jobs.iter().any(|job| job.service.is_some()) {
        columns.extend(SERVICES);
    }
    let has_share = |job: &TraceJob| job.share != JobShare::default();
    if format == TraceFormat::Tandem && trace.jobs.iter().any(has_share) {
        columns.extend(SHARES);
    }
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(&columns).map_err(io_error)?;
    for (index, job) in trace.jobs.iter().enumerate() {
        for column in &columns {
            csv.write_field(field(trace, index, job, format, column)).map_err(io_error)?;
        }
        csv.write_record(None::<&[u8]>).map_err(io_error)?;
    }
    csv.flush()
}

/// The underlying I/O error, so that its kind is kept: a closed pipe is no failure.
fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(cause) => cause,
        other => io::Error::other(format!("{other:?}")),
    }
}

fn field(trace: &Trace, index: usize, job: &TraceJob, format: TraceFormat, column: &str) -> String {
    let class = job.class.map(|class| trace.classes.get(class.0));
    let thousandths =
        |value: Option<u64>| value.map_or(String::new(), |v| Thousandths(v).to_string());
    let seconds = |micros: u64| Seconds(micros).to_string();
    let time = |micros: u64| match format {
        // Milliseconds: a thousandth of one is a microsecond.
        TraceFormat::Muri => Thousandths(micros).to_string(),
        _ => seconds(micros),
    };
    match column {
        "job_id" | "name" => trace.ids.get(index).to_owned(),
        "user" => trace.users.get(job.user.0).clone(),
        "partition" | "vc" | "cluster" => trace.partition_of(job).unwrap_or("").to_owned(),
        "submit_s" | "submit_time" | "timestamp" | "creation_time" | "scheduled_time" => {
            time(job.submit.0)
        }
        "gpus" | "gpu_num" | "num_gpus" | "num_gpu" => job.gpus.to_string(),
        "duration_s" | "duration" => time(job.duration.0),
        "deletion_time" => time((job.submit + job.duration).0),
        "gpu_time" => time(Span(job.duration.0.saturating_mul(u64::from(job.gpus))).0),
        "estimate_s" => job.estimate.map_or(String::new(), |estimate| seconds(estimate.0)),
        "model" | "model_name" => class.map_or(String::new(), |class| class.model.clone()),
        "dataset" => class.map_or(String::new(), |class| class.dataset.clone()),
        "batch" | "batchsize" | "batch_size" => {
            class.and_then(|class| class.batch).map_or(String::new(), |batch| batch.to_string())
        }
        "amp" => class.map_or(String::new(), |class| u8::from(class.amp).to_string()),
        "memory_mib" | "gmem" => thousandths(job.memory.map(|memory| memory.0)),
        "gpu_util" => thousandths(job.gpu_util.map(|util| u64::from(util.0))),
        // Thousandths of a GPU; a job of full or unknown utilisation asks for all.
        "gpu_milli" => job.gpu_util.map_or(1000, |util| (util.0 / 100).clamp(1, 1000)).to_string(),
        "gmem_util" | "bandwidth_util" => {
            thousandths(job.bandwidth_util.map(|util| u64::from(util.0)))
        }
        "exclusive" => u8::from(job.tolerance == Tolerance::Alone).to_string(),
        "max_slowdown" => match job.tolerance {
            Tolerance::Slowdown(most) => Seconds(u64::from(most)).to_string(),
            Tolerance::Any | Tolerance::Alone => String::new(),
        },
        "kind" => if job.service.is_some() { "service" } else { "training" }.to_owned(),
        "rate_per_s" => thousandths(job.service.map(|service| u64::from(service.rate_milli))),
        "slo_ms" => thousandths(job.service.and_then(|service| service.slo_us).map(u64::from)),
        "priority" => job.priority.to_string(),
        "account" => {
            job.share.account.map_or(String::new(), |account| trace.accounts.get(account.0).clone())
        }
        "tier" => job.share.tier.to_string(),
        "reservation" => job.share.reservation.map_or(String::new(), |id| id.to_string()),
        other => unreachable!("column {other} is written by no format"),
    }
}
