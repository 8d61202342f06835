//! Reads the history of a Slurm site: the output of `sacct -P`.
//!
//! It is no table of jobs. Steps have rows of their own, a requeued job has one row per run (`-D`), the
//! components of a heterogeneous job have one each, most rows of a typical site have no GPU, and nothing is
//! quoted: a name may contain bars and line breaks. Rows that are left out on purpose are counted; unreadable
//! ones are bad rows as in every other format.

use super::formats::{TraceFormat, find, first_of};
use super::names::Class;
use super::problem::{BadRow, Problem, TraceError};
use super::row::{Field, MICROS_MAX, TraceRow};
use super::{Trace, TraceJob};
use crate::decimal::{DecimalError, parse_scaled};
use rustc_hash::FxHashMap;
use serde::Serialize;
use tandem_core::{ClassId, MICROS_PER_SECOND, Span, Time, Tolerance, UserId};
use tandem_models::history::pattern;

/// Columns with text of the users, which may contain bars. One such column can be separated from its
/// neighbours, two cannot.
const FREE_TEXT: [&str; 9] = [
    "JobName",
    "Comment",
    "AdminComment",
    "SystemComment",
    "Constraints",
    "SubmitLine",
    "WorkDir",
    "WCKey",
    "Extra",
];
/// States of jobs that have not ended.
const UNFINISHED: [&str; 4] = ["RUNNING", "SUSPENDED", "COMPLETING", "STOPPED"];
/// Power of ten from seconds to microseconds.
const SECONDS: i32 = 6;

/// Counts of rows that are no jobs of the trace, and of jobs with incomplete data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SacctCounts {
    /// Rows of job steps.
    pub steps: usize,
    /// Rows of jobs without a GPU.
    pub without_gpus: usize,
    /// Rows of jobs that had not started: pending, or cancelled while pending.
    pub never_started: usize,
    /// Runs of a requeued job before the last one.
    pub earlier_runs: usize,
    /// Jobs of the trace that were running; their duration is their time so far.
    pub unfinished: usize,
    /// Jobs of the trace that asked for a share of a GPU (shards, MPS) and count as one GPU.
    pub shares: usize,
}

impl SacctCounts {
    /// The counts above zero, as short texts.
    pub fn remarks(&self) -> impl Iterator<Item = String> {
        let remarks = [
            (self.steps, "rows of steps left out"),
            (self.without_gpus, "rows without a GPU left out"),
            (self.never_started, "rows of jobs that had not started left out"),
            (self.earlier_runs, "earlier runs of jobs queued again left out"),
            (self.unfinished, "jobs still running, taken as far as they ran"),
            (self.shares, "jobs with a share of a GPU, taken to need a whole one"),
        ];
        let remarks = remarks.into_iter().filter(|&(count, _)| count > 0);
        remarks.map(|(count, what)| format!("{what}: {count}"))
    }
}

/// The column names, split by any `--delimiter`: names consist of letters and digits.
pub(super) fn split_header(line: &str) -> Vec<&str> {
    line.split(delimiter(line)).collect()
}

fn delimiter(header: &str) -> &str {
    let is_name = |c: char| c.is_ascii_alphanumeric();
    let start = header.find(|c| !is_name(c)).unwrap_or(header.len());
    let rest = &header[start..];
    let delimiter = &rest[..rest.find(is_name).unwrap_or(rest.len())];
    if delimiter.is_empty() { "|" } else { delimiter }
}

/// Reads the output of `sacct -P`; `file` is for messages.
pub(super) fn parse(text: &str, file: &str, skip_bad: bool) -> Result<Trace, TraceError> {
    let whole = |problem| TraceError::File { file: file.to_owned(), problem };
    let header = text.lines().next().unwrap_or("");
    let mut history = SacctReader::new(header).map_err(whole)?;
    let mut skipped = Vec::new();
    let mut lines = (1..).zip(text.lines()).skip(1).peekable();
    while let Some((number, line)) = lines.next() {
        let is_cut_off = lines.peek().is_none() && !text.ends_with('\n');
        match history.line(line, number, is_cut_off) {
            Ok(()) => {}
            Err(bad) if skip_bad => skipped.push(*bad),
            Err(row) => return Err(TraceError::Row { file: file.to_owned(), row: *row }),
        }
    }
    let trace = Trace { skipped, ..history.into_trace() };
    if !trace.jobs.is_empty() {
        return Ok(trace);
    }
    let counts = trace.sacct.unwrap_or_default();
    let only_cpus = counts.without_gpus > 0 && counts.never_started == 0;
    Err(whole(if only_cpus { Problem::NoGpuJobs } else { Problem::NoJobs }))
}

struct SacctColumns {
    count: usize,
    id: Field,
    user: Option<Field>,
    partition: Option<Field>,
    state: Option<Field>,
    submit: Field,
    eligible: Option<Field>,
    start: Option<Field>,
    elapsed: Field,
    allocated: Option<Field>,
    requested: Option<Field>,
    limit: Option<Field>,
    name: Option<Field>,
    /// The one column that extra bars belong to.
    free: Option<usize>,
}

impl SacctColumns {
    fn resolve(header: &[&str]) -> Result<Self, Problem> {
        let layout = TraceFormat::Sacct.layout();
        let optional = |names: &'static str| find(header, names);
        let needed = |names: &'static str| {
            let column = first_of(names);
            optional(names).ok_or(Problem::MissingColumn { column, format: TraceFormat::Sacct })
        };
        for names in layout.needed() {
            needed(names)?;
        }
        let mut free = FREE_TEXT.into_iter().filter_map(|name| find(header, name));
        let only = match (free.next(), free.next()) {
            (Some(field), None) => Some(field.index),
            _ => None,
        };
        Ok(Self {
            count: header.len(),
            id: needed(layout.id)?,
            user: optional(layout.user),
            partition: optional(layout.partition),
            state: optional("State"),
            submit: needed(layout.submit)?,
            eligible: optional("Eligible"),
            start: optional("Start"),
            elapsed: needed(layout.duration_column)?,
            allocated: optional("AllocTRES"),
            requested: optional("ReqTRES"),
            limit: optional(layout.estimate),
            name: optional(layout.model),
            free: only,
        })
    }
}

/// One run of a job, or of a component of one.
struct SacctRun<'a> {
    /// The component of a heterogeneous job; empty for all others.
    part: &'a str,
    line: u64,
    submit: Time,
    /// When it became eligible.
    arrival: Time,
    start: Option<Time>,
    elapsed: Span,
    gpus: u32,
    is_share: bool,
    is_unfinished: bool,
    user: &'a str,
    partition: &'a str,
    limit: Option<Span>,
    name: &'a str,
}

struct SacctReader<'a> {
    delimiter: &'a str,
    /// `-p` ends every row in a delimiter.
    ends_rows: bool,
    columns: SacctColumns,
    counts: SacctCounts,
    /// Jobs in order of their first row: id, and the last run of every component.
    jobs: Vec<(&'a str, Vec<SacctRun<'a>>)>,
    index: FxHashMap<&'a str, usize>,
    fields: Vec<(usize, usize)>,
    /// Whether the previous line was a row, whose name may continue on this line.
    is_after_row: bool,
}

impl<'a> SacctReader<'a> {
    fn new(header: &'a str) -> Result<Self, Problem> {
        let delimiter = delimiter(header);
        let (names, ends_rows) = match header.strip_suffix(delimiter) {
            Some(names) => (names, true),
            None => (header, false),
        };
        Ok(Self {
            delimiter,
            ends_rows,
            columns: SacctColumns::resolve(&names.split(delimiter).collect::<Vec<_>>())?,
            counts: SacctCounts::default(),
            jobs: Vec::new(),
            index: FxHashMap::default(),
            fields: Vec::new(),
            is_after_row: false,
        })
    }

    fn line(&mut self, line: &'a str, number: u64, is_cut_off: bool) -> Result<(), Box<BadRow>> {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let mut fields = std::mem::take(&mut self.fields);
        let outcome = match self.split(line, &mut fields) {
            // The rest of a name with a line break; but the end of a file may be missing.
            Split::Short if self.is_after_row && self.name_ends_row() && !is_cut_off => Ok(()),
            Split::Exact => {
                self.is_after_row = true;
                self.row(&TraceRow { text: line, fields: &fields, line: number })
            }
            Split::Short | Split::Long => {
                self.is_after_row = true;
                let (found, expected) = (fields.len(), self.columns.count);
                let row = TraceRow { text: line, fields: &fields, line: number };
                Err(row.bad("row", Problem::FieldCount { found, expected }))
            }
        };
        self.fields = fields;
        outcome
    }

    fn name_ends_row(&self) -> bool {
        self.columns.free == Some(self.columns.count - 1)
    }

    /// Finds the fields of a line. Extra bars belong to the one column that can contain them.
    fn split(&self, line: &str, fields: &mut Vec<(usize, usize)>) -> Split {
        let line = match line.strip_suffix(self.delimiter) {
            Some(rest) if self.ends_rows => rest,
            _ => line,
        };
        fields.clear();
        let mut start = 0;
        for (end, _) in line.match_indices(self.delimiter) {
            fields.push((start, end));
            start = end + self.delimiter.len();
        }
        fields.push((start, line.len()));
        let count = self.columns.count;
        if fields.len() > count
            && let Some(free) = self.columns.free
        {
            let last = free + fields.len() - count;
            fields[free].1 = fields[last].1;
            fields.drain(free + 1..=last);
        }
        match fields.len().cmp(&count) {
            std::cmp::Ordering::Less => Split::Short,
            std::cmp::Ordering::Equal => Split::Exact,
            std::cmp::Ordering::Greater => Split::Long,
        }
    }

    fn row(&mut self, row: &TraceRow<'a, '_>) -> Result<(), Box<BadRow>> {
        let columns = &self.columns;
        let id = row.required(columns.id)?;
        if id.contains('.') {
            self.counts.steps += 1;
            return Ok(());
        }
        let elapsed = duration(row, columns.elapsed, 1)?;
        let text = |field: Option<Field>| field.map_or("", |field| row.text(field));
        // A job that never started had no resources, whatever it asked for.
        let is_given = !text(columns.allocated).is_empty();
        let tres = if is_given { columns.allocated } else { columns.requested };
        let gpus = tres.map(|field| gpus(row, field)).transpose()?.unwrap_or_default();
        if gpus.count == 0 {
            self.counts.without_gpus += 1;
            return Ok(());
        }
        let knows_start = columns.start.is_none_or(|field| is_known(row.text(field)));
        let is_waiting = text(columns.state).starts_with("PENDING");
        // Some jobs that were cancelled while pending have their end as start.
        let was_given = match columns.allocated {
            Some(_) => is_given,
            None => !text(columns.state).starts_with("CANCELLED"),
        };
        if !knows_start || is_waiting || (elapsed == Span(0) && !was_given) {
            self.counts.never_started += 1;
            return Ok(());
        }
        let submit = row.time(columns.submit, SECONDS)?;
        let eligible = columns.eligible.filter(|&field| is_known(row.text(field)));
        let eligible = eligible.map(|field| row.time(field, SECONDS)).transpose()?;
        let start = columns.start.and_then(|field| row.time(field, SECONDS).ok());
        let limit = row.optional(columns.limit, |field| limit(row, field))?.flatten();
        let state = text(columns.state);
        let (id, part) = id.split_once('+').unwrap_or((id, ""));
        self.add(
            id,
            SacctRun {
                part,
                line: row.line,
                submit,
                arrival: eligible.map_or(submit, |eligible| eligible.max(submit)),
                start,
                elapsed,
                gpus: gpus.count,
                is_share: gpus.is_share,
                is_unfinished: UNFINISHED.iter().any(|name| state.starts_with(name)),
                user: text(columns.user),
                partition: text(columns.partition),
                limit,
                name: text(columns.name),
            },
        );
        Ok(())
    }

    fn add(&mut self, id: &'a str, mut run: SacctRun<'a>) {
        let index = *self.index.entry(id).or_insert_with(|| {
            self.jobs.push((id, Vec::with_capacity(1)));
            self.jobs.len() - 1
        });
        let parts = &mut self.jobs[index].1;
        let Some(known) = parts.iter_mut().find(|known| known.part == run.part) else {
            parts.push(run);
            return;
        };
        // The last run of a requeued job is its work. It has been waiting since the first.
        self.counts.earlier_runs += 1;
        let arrival = known.arrival.min(run.arrival);
        if run.submit >= known.submit {
            run.line = known.line;
            *known = run;
        }
        known.arrival = arrival;
    }

    fn into_trace(self) -> Trace {
        let mut trace = Trace { format: TraceFormat::Sacct, ..Trace::default() };
        let mut counts = self.counts;
        let mut classes: FxHashMap<&str, ClassId> = FxHashMap::default();
        let mut completions = Completions::default();
        for (id, runs) in self.jobs {
            let Some(first) = runs.first() else { continue };
            // The components of a job run together, as long as the longest.
            let gpus = runs.iter().fold(0_u32, |sum, run| sum.saturating_add(run.gpus));
            let elapsed = runs.iter().map(|run| run.elapsed).max().unwrap_or_default();
            let arrival = runs.iter().map(|run| run.arrival).max().unwrap_or_default();
            completions.add(&runs, arrival);
            counts.unfinished += usize::from(runs.iter().any(|run| run.is_unfinished));
            counts.shares += usize::from(runs.iter().any(|run| run.is_share));
            trace.raised += usize::from(elapsed.0 < MICROS_PER_SECOND);
            let class = (!first.name.is_empty()).then(|| {
                *classes.entry(first.name).or_insert_with(|| {
                    // The common pattern of repeated submissions, for estimates from history. Users choose
                    // the names, and names reach the operator's terminal.
                    let model = pattern(first.name).replace(char::is_control, "?");
                    let class = Class { model, dataset: String::new(), batch: None, amp: false };
                    ClassId(trace.classes.intern(&class))
                })
            });
            let partition = Some(first.partition).filter(|name| !name.is_empty());
            trace.ids.push(id);
            trace.jobs.push(TraceJob {
                line: first.line,
                user: UserId(trace.users.intern(first.user)),
                partition: partition.map(|name| trace.partitions.intern(name)),
                submit: arrival,
                duration: elapsed.max(Span::from_secs(1)),
                gpus,
                estimate: runs.iter().filter_map(|run| run.limit).max(),
                class,
                memory: None,
                gpu_util: None,
                bandwidth_util: None,
                tolerance: Tolerance::Any,
                priority: 0,
                share: tandem_core::JobShare::default(),
                service: None,
            });
        }
        trace.sacct = Some(counts);
        trace.recorded = completions.mean();
        trace
    }
}

/// Times from arrival to end.
#[derive(Default)]
struct Completions {
    sum: u128,
    count: u128,
    is_incomplete: bool,
}

impl Completions {
    fn add(&mut self, runs: &[SacctRun], arrival: Time) {
        let end = |run: &SacctRun| Some(run.start?.0.saturating_add(run.elapsed.0));
        let ends: Option<Vec<u64>> = runs.iter().map(end).collect();
        match ends.and_then(|ends| ends.into_iter().max()) {
            Some(end) => {
                self.sum += u128::from(end.saturating_sub(arrival.0));
                self.count += 1;
            }
            None => self.is_incomplete = true,
        }
    }

    fn mean(&self) -> Option<Span> {
        let mean = self.sum.checked_div(self.count).filter(|_| !self.is_incomplete)?;
        u64::try_from(mean).ok().map(Span)
    }
}

enum Split {
    Short,
    Exact,
    Long,
}

/// Slurm's text for an unknown time.
fn is_known(time: &str) -> bool {
    !matches!(time, "" | "Unknown" | "None")
}

/// A time limit, in minutes (`TimelimitRaw`) or as a duration; `None` if there is none or if it is the
/// partition's, which is unknown.
fn limit(row: &TraceRow<'_, '_>, field: Field) -> Result<Option<Span>, Box<BadRow>> {
    match row.text(field) {
        "UNLIMITED" | "Partition_Limit" | "INVALID" => Ok(None),
        _ => duration(row, field, 60).map(Some),
    }
}

/// A plain number in units of `unit_s`, or Slurm's `[days-][hours:]minutes:seconds`.
fn duration(row: &TraceRow<'_, '_>, field: Field, unit_s: u64) -> Result<Span, Box<BadRow>> {
    let text = row.required(field)?;
    let not_one = || row.bad(field.name, Problem::NotADuration { text: text.to_owned() });
    let overflow = || row.number(field, text, DecimalError::Overflow);
    if !text.contains(':') {
        let span = row.span(field, SECONDS)?;
        return span.0.checked_mul(unit_s).map(Span).filter(is_in_range).ok_or_else(overflow);
    }
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let (minutes, seconds) = clock.rsplit_once(':').ok_or_else(not_one)?;
    let (hours, minutes) = minutes.split_once(':').unwrap_or(("0", minutes));
    let mut micros = parse_scaled(seconds, SECONDS).map_err(|_| not_one())?;
    for (count, seconds) in [(days, 86_400), (hours, 3_600), (minutes, 60)] {
        let count: u64 = count.parse().map_err(|_| not_one())?;
        let more = count.checked_mul(seconds * MICROS_PER_SECOND);
        micros = more.and_then(|more| micros.checked_add(more)).ok_or_else(overflow)?;
    }
    Some(Span(micros)).filter(is_in_range).ok_or_else(overflow)
}

fn is_in_range(span: &Span) -> bool {
    span.0 <= MICROS_MAX
}

#[derive(Clone, Copy, Default)]
struct GpuCounts {
    count: u32,
    is_share: bool,
}

/// The GPUs of a list such as `cpu=8,gres/gpu=2,gres/gpu:a100=2,node=1`.
fn gpus(row: &TraceRow<'_, '_>, field: Field) -> Result<GpuCounts, Box<BadRow>> {
    let number = |text: &str| {
        let count = parse_scaled(text, 0).map_err(|cause| row.number(field, text, cause))?;
        let overflow = || row.number(field, text, DecimalError::Overflow);
        u32::try_from(count).map_err(|_| overflow())
    };
    let (mut all, mut typed, mut shares, mut nodes) = (None, 0_u32, 0_u32, 1);
    for (name, count) in row.text(field).split(',').filter_map(|item| item.split_once('=')) {
        match name {
            "gres/gpu" => all = Some(number(count)?),
            "node" => nodes = number(count)?,
            "gres/shard" | "gres/mps" => shares = shares.saturating_add(number(count)?),
            _ if name.starts_with("gres/gpu:") => typed = typed.saturating_add(number(count)?),
            _ => {}
        }
    }
    // A site that counts types usually counts their sum too.
    let count = all.unwrap_or(typed);
    // The size of a share is unknown: count one GPU per node.
    let is_share = count == 0 && shares > 0;
    Ok(GpuCounts { count: if is_share { nodes.max(1) } else { count }, is_share })
}
