//! The trace formats as data: which column contains what, in which unit.

use super::problem::Problem;
use super::row::Field;
use std::fmt;

/// A trace format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceFormat {
    /// Tandem's own format.
    #[default]
    Tandem,
    /// Helios and Lucid: clusters of SenseTime.
    Venus,
    /// Microsoft's Philly, as a table of one row per job.
    Philly,
    /// Muri's, in milliseconds.
    Muri,
    /// Pollux's workloads: applications and batch sizes, no durations.
    Pollux,
    /// Gavel's, tab-separated without a header, with steps instead of durations.
    Gavel,
    /// Alibaba's GPU trace of 2023: pods.
    Alibaba2023,
    /// The history of a Slurm site, as printed by `sacct -P`.
    Sacct,
}

/// The source of the solo duration.
#[derive(Clone, Copy, Debug)]
pub(super) enum DurationFrom {
    /// A column of its own.
    Column,
    /// The time between two columns, of which the first may be empty.
    Between { start: &'static str, end: &'static str },
    /// A number of steps, divided by the solo speed of the class.
    Steps,
    /// The duration of the application with this batch size on this many GPUs, in seconds.
    Application(fn(&str, u32, u32) -> Option<f64>),
}

impl PartialEq for DurationFrom {
    fn eq(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// One format. An empty name means that the format has no such column. Of alternatives separated by `|`, the
/// first that the header has counts.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) id: &'static str,
    pub(super) user: &'static str,
    pub(super) partition: &'static str,
    pub(super) submit: &'static str,
    pub(super) gpus: &'static str,
    /// The column that `duration` is computed from.
    pub(super) duration_column: &'static str,
    pub(super) duration: DurationFrom,
    pub(super) estimate: &'static str,
    pub(super) model: &'static str,
    /// The model column contains a job type in Gavel's notation.
    pub(super) model_is_job_type: bool,
    pub(super) dataset: &'static str,
    pub(super) batch: &'static str,
    pub(super) amp: &'static str,
    pub(super) memory: &'static str,
    pub(super) gpu_util: &'static str,
    pub(super) bandwidth_util: &'static str,
    pub(super) exclusive: &'static str,
    pub(super) slowdown_max: &'static str,
    pub(super) priority: &'static str,
    pub(super) account: &'static str,
    pub(super) tier: &'static str,
    pub(super) reservation: &'static str,
    pub(super) kind: &'static str,
    pub(super) rate_per_s: &'static str,
    pub(super) slo_ms: &'static str,
    /// Power of ten from a number in a time column to microseconds.
    pub(super) time_scale: i32,
    /// Power of ten from a utilisation to thousandths of a percent.
    pub(super) util_scale: i32,
    pub(super) delimiter: u8,
    pub(super) has_header: bool,
}

const EMPTY: Layout = Layout {
    id: "",
    user: "",
    partition: "",
    submit: "",
    gpus: "",
    duration_column: "",
    duration: DurationFrom::Column,
    estimate: "",
    model: "",
    model_is_job_type: false,
    dataset: "",
    batch: "",
    amp: "",
    memory: "",
    gpu_util: "",
    bandwidth_util: "",
    exclusive: "",
    slowdown_max: "",
    priority: "",
    account: "",
    tier: "",
    reservation: "",
    kind: "",
    rate_per_s: "",
    slo_ms: "",
    time_scale: 6,
    util_scale: 3,
    delimiter: b',',
    has_header: true,
};

const TANDEM: Layout = Layout {
    id: "job_id",
    user: "user",
    partition: "partition",
    submit: "submit_s",
    gpus: "gpus",
    duration_column: "duration_s",
    estimate: "estimate_s",
    model: "model",
    dataset: "dataset",
    batch: "batch",
    amp: "amp",
    memory: "memory_mib",
    gpu_util: "gpu_util",
    bandwidth_util: "bandwidth_util",
    exclusive: "exclusive",
    slowdown_max: "max_slowdown",
    priority: "priority",
    account: "account",
    tier: "tier",
    reservation: "reservation",
    kind: "kind",
    rate_per_s: "rate_per_s",
    slo_ms: "slo_ms",
    ..EMPTY
};

const VENUS: Layout = Layout {
    id: "job_id",
    user: "user",
    partition: "vc",
    submit: "submit_s|submit_time",
    gpus: "gpu_num",
    duration_column: "duration",
    estimate: "estimate_s",
    model: "model",
    dataset: "dataset",
    batch: "batchsize",
    amp: "amp",
    memory: "gmem",
    gpu_util: "gpu_util",
    bandwidth_util: "gmem_util",
    ..EMPTY
};

const PHILLY: Layout = Layout {
    partition: "cluster",
    submit: "timestamp",
    gpus: "num_gpus",
    duration_column: "duration",
    ..EMPTY
};

const MURI: Layout = Layout {
    id: "job_id",
    submit: "submit_time",
    gpus: "num_gpu",
    duration_column: "duration",
    model: "model_name",
    batch: "batch_size",
    time_scale: 3,
    ..EMPTY
};

const POLLUX: Layout = Layout {
    id: "name",
    submit: "time",
    gpus: "num_replicas",
    duration_column: "batch_size",
    duration: DurationFrom::Application(pollux_seconds),
    model: "application",
    batch: "batch_size",
    ..EMPTY
};

const GAVEL: Layout = Layout {
    submit: "arrival_time",
    gpus: "scale_factor",
    duration_column: "total_steps",
    duration: DurationFrom::Steps,
    model: "job_type",
    model_is_job_type: true,
    delimiter: b'\t',
    has_header: false,
    ..EMPTY
};

/// The columns of Gavel's headerless lines.
const GAVEL_COLUMNS: [&str; 10] = [
    "job_type",
    "command",
    "working_directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "SLO",
    "arrival_time",
];

const ALIBABA2023: Layout = Layout {
    id: "name",
    submit: "creation_time",
    gpus: "num_gpu",
    duration_column: "deletion_time",
    duration: DurationFrom::Between { start: "scheduled_time", end: "deletion_time" },
    // A pod that asks for half a GPU is assumed to keep it busy half of the time.
    gpu_util: "gpu_milli",
    util_scale: 2,
    ..EMPTY
};

/// Only the names: their contents need more than a table to describe.
const SACCT: Layout = Layout {
    id: "JobID|JobIDRaw",
    user: "User|UID",
    partition: "Partition",
    submit: "Submit",
    gpus: "AllocTRES|ReqTRES",
    duration_column: "ElapsedRaw|Elapsed",
    estimate: "TimelimitRaw|Timelimit",
    model: "JobName",
    delimiter: b'|',
    ..EMPTY
};

impl TraceFormat {
    /// All formats, in listed order.
    pub const ALL: [TraceFormat; 8] = [
        TraceFormat::Tandem,
        TraceFormat::Venus,
        TraceFormat::Philly,
        TraceFormat::Muri,
        TraceFormat::Pollux,
        TraceFormat::Gavel,
        TraceFormat::Alibaba2023,
        TraceFormat::Sacct,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            TraceFormat::Tandem => "tandem",
            TraceFormat::Venus => "venus",
            TraceFormat::Philly => "philly",
            TraceFormat::Muri => "muri",
            TraceFormat::Pollux => "pollux",
            TraceFormat::Gavel => "gavel",
            TraceFormat::Alibaba2023 => "alibaba2023",
            TraceFormat::Sacct => "sacct",
        }
    }

    /// The name of its partition column; Tandem's name if it has none.
    pub(crate) fn partition_column(self) -> &'static str {
        or_ours(self.layout().partition, TANDEM.partition)
    }

    /// The name of its GPU column.
    pub(crate) fn gpus_column(self) -> &'static str {
        first_of(self.layout().gpus)
    }

    /// The name of its memory column; Tandem's name if it has none.
    pub(crate) fn memory_column(self) -> &'static str {
        or_ours(self.layout().memory, TANDEM.memory)
    }

    /// The name of its estimate column; Tandem's name if it has none.
    pub(crate) fn estimate_column(self) -> &'static str {
        first_of(or_ours(self.layout().estimate, TANDEM.estimate))
    }

    pub(super) fn list() -> String {
        Self::ALL.map(TraceFormat::name).join(", ")
    }

    pub(super) const fn layout(self) -> &'static Layout {
        match self {
            TraceFormat::Tandem => &TANDEM,
            TraceFormat::Venus => &VENUS,
            TraceFormat::Philly => &PHILLY,
            TraceFormat::Muri => &MURI,
            TraceFormat::Pollux => &POLLUX,
            TraceFormat::Gavel => &GAVEL,
            TraceFormat::Alibaba2023 => &ALIBABA2023,
            TraceFormat::Sacct => &SACCT,
        }
    }

    /// The format that fits a first line best: most of its required columns, then most of all columns. A
    /// header that lacks one required column is still recognised, so that the message can name it.
    pub(super) fn guess(first_line: &str) -> Option<TraceFormat> {
        if first_line.matches('\t').count() + 1 == GAVEL_COLUMNS.len() {
            return Some(TraceFormat::Gavel);
        }
        let by_comma: Vec<&str> = split_header(first_line, b',').collect();
        let by_sacct = super::sacct::split_header(first_line);
        let score = |format: TraceFormat| {
            let layout = format.layout();
            let header = if format == TraceFormat::Sacct { &by_sacct } else { &by_comma };
            let present = |names: &[&'static str]| {
                names.iter().filter(|name| find(header, name).is_some()).count()
            };
            let needed = layout.needed();
            let missing = needed.len() - present(&needed);
            // Of two formats that lack equally many, the one that explains more of the header.
            (missing, std::cmp::Reverse(present(&layout.all())))
        };
        let candidates = Self::ALL.into_iter().filter(|format| format.layout().has_header);
        let best = candidates.min_by_key(|&format| score(format))?;
        let (missing, explained) = score(best);
        let known = explained.0;
        (missing == 0 || (missing == 1 && known >= 3)).then_some(best)
    }
}

/// The usual name of several alternatives.
pub(super) fn first_of(names: &'static str) -> &'static str {
    names.split('|').next().unwrap_or(names)
}

const fn or_ours(name: &'static str, ours: &'static str) -> &'static str {
    if name.is_empty() { ours } else { name }
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for TraceFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| format!("unknown format '{text}'; known are {}", Self::list()))
    }
}

impl Layout {
    pub(super) fn id_name(&self) -> &'static str {
        if self.id.is_empty() { "row" } else { self.id }
    }

    pub(super) fn needed(&self) -> Vec<&'static str> {
        let mut needed = vec![self.id, self.submit, self.gpus, self.duration_column];
        if !matches!(self.duration, DurationFrom::Column | DurationFrom::Between { .. }) {
            needed.push(self.model);
        }
        needed.retain(|name| !name.is_empty());
        needed
    }

    fn all(&self) -> Vec<&'static str> {
        let mut all = self.needed();
        all.extend([
            self.user,
            self.partition,
            self.estimate,
            self.model,
            self.dataset,
            self.batch,
        ]);
        all.extend([self.amp, self.memory, self.gpu_util, self.bandwidth_util]);
        all.extend([self.exclusive, self.slowdown_max, self.priority]);
        all.extend([self.kind, self.rate_per_s, self.slo_ms]);
        all.extend([self.account, self.tier, self.reservation]);
        all.retain(|name| !name.is_empty());
        all
    }
}

/// A layout matched against the header of a file.
pub(super) struct Columns {
    pub(super) count: usize,
    pub(super) id: Option<Field>,
    pub(super) user: Option<Field>,
    pub(super) partition: Option<Field>,
    pub(super) submit: Field,
    pub(super) gpus: Field,
    pub(super) duration: Field,
    pub(super) start: Option<Field>,
    pub(super) estimate: Option<Field>,
    pub(super) model: Option<Field>,
    pub(super) dataset: Option<Field>,
    pub(super) batch: Option<Field>,
    pub(super) amp: Option<Field>,
    /// The first and the last column of the class.
    pub(super) class_fields: Option<(usize, usize)>,
    pub(super) memory: Option<Field>,
    pub(super) gpu_util: Option<Field>,
    pub(super) bandwidth_util: Option<Field>,
    pub(super) exclusive: Option<Field>,
    pub(super) slowdown_max: Option<Field>,
    pub(super) kind: Option<Field>,
    pub(super) rate_per_s: Option<Field>,
    pub(super) slo_ms: Option<Field>,
    pub(super) priority: Option<Field>,
    pub(super) account: Option<Field>,
    pub(super) tier: Option<Field>,
    pub(super) reservation: Option<Field>,
}

impl Columns {
    pub(super) fn resolve(
        layout: &Layout,
        first_line: &str,
        format: TraceFormat,
    ) -> Result<Self, Problem> {
        let header: Vec<&str> = if layout.has_header {
            split_header(first_line, layout.delimiter).collect()
        } else {
            GAVEL_COLUMNS.to_vec()
        };
        let optional = |names: &'static str| find(&header, names);
        let needed = |names: &'static str| {
            let column = first_of(names);
            optional(names).ok_or(Problem::MissingColumn { column, format })
        };
        for name in layout.needed() {
            needed(name)?;
        }
        let class = [layout.model, layout.dataset, layout.batch, layout.amp];
        let class = class.into_iter().filter_map(optional).map(|field| field.index);
        let class_fields = optional(layout.model).and(class.clone().min().zip(class.max()));
        let start = match layout.duration {
            DurationFrom::Between { start, .. } => optional(start),
            _ => None,
        };
        Ok(Self {
            count: header.len(),
            id: optional(layout.id),
            user: optional(layout.user),
            partition: optional(layout.partition),
            submit: needed(layout.submit)?,
            gpus: needed(layout.gpus)?,
            duration: needed(layout.duration_column)?,
            start,
            estimate: optional(layout.estimate),
            model: optional(layout.model),
            dataset: optional(layout.dataset),
            batch: optional(layout.batch),
            amp: optional(layout.amp),
            class_fields,
            memory: optional(layout.memory),
            gpu_util: optional(layout.gpu_util),
            bandwidth_util: optional(layout.bandwidth_util),
            exclusive: optional(layout.exclusive),
            slowdown_max: optional(layout.slowdown_max),
            kind: optional(layout.kind),
            rate_per_s: optional(layout.rate_per_s),
            slo_ms: optional(layout.slo_ms),
            priority: optional(layout.priority),
            account: optional(layout.account),
            tier: optional(layout.tier),
            reservation: optional(layout.reservation),
        })
    }
}

fn split_header(line: &str, delimiter: u8) -> impl Iterator<Item = &str> {
    line.split(char::from(delimiter)).map(|name| name.trim().trim_matches('"'))
}

/// The column of the first name that the header has.
pub(super) fn find(header: &[&str], names: &'static str) -> Option<Field> {
    names.split('|').filter(|name| !name.is_empty()).find_map(|name| {
        let index = header.iter().position(|&column| column == name)?;
        Some(Field { index, name })
    })
}

/// Duration in seconds of one of Pollux's applications with a fixed global batch size: epochs × examples ÷
/// batch iterations of α + β · (batch ÷ GPUs) each. α and β are one-GPU fits of the published step times.
/// Epochs and data set sizes are our own assumptions, not checked against the paper, so these durations rank
/// jobs plausibly and reproduce nothing. Communication is left out.
fn pollux_seconds(application: &str, batch: u32, gpus: u32) -> Option<f64> {
    let (epochs, examples, alpha, beta) = match application {
        "cifar10" => (100.0, 50_000.0, 0.0172, 0.000664),
        "ncf" => (10.0, 4_970_845.0, 0.0074, 0.0),
        "deepspeech2" => (80.0, 13_100.0, 0.0913, 0.02905),
        "yolov3" => (50.0, 16_551.0, 0.2164, 0.0243),
        "bert" => (2.0, 88_641.0, 0.2130, 0.05784),
        "imagenet" => (90.0, 1_281_167.0, 0.0784, 0.00421),
        _ => return None,
    };
    if batch == 0 {
        return None;
    }
    let iterations = f64::ceil(epochs * examples / f64::from(batch));
    Some(iterations * (alpha + beta * f64::from(batch) / f64::from(gpus)))
}
