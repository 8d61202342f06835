//! Reads a trace: text to rows, rows to jobs. Errors name file, line and field.

use super::formats::{Columns, DurationFrom, Layout, TraceFormat};
use super::names::Class;
use super::problem::{BadRow, Problem, TraceError};
use super::row::{MICROS_MAX, TraceRow};
use super::split::visit_ends;
use super::{Trace, TraceJob};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use tandem_core::{AccountId, ClassId, JobShare, MICROS_PER_SECOND, Memory, Span, UserId};

/// Model, data set, batch size, precision.
const CLASS_COLUMNS: usize = 4;
/// The largest memory in a field, in thousandths of a MiB.
const MEMORY_MAX: u64 = 1 << 50;

/// Solo speeds in steps per second, by class and gang size, to convert steps to seconds.
pub type SoloSpeeds = BTreeMap<(Class, u32), f64>;

/// Options of the reader.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions<'a> {
    /// The format; guessed from the header if absent.
    pub format: Option<TraceFormat>,
    /// Skip and count bad rows instead of refusing the file.
    pub skip_bad: bool,
    /// For formats that count steps.
    pub speeds: Option<&'a SoloSpeeds>,
}

/// Reads a trace file; `-` is standard input.
pub fn read(path: &Path, options: &ReadOptions<'_>) -> Result<Trace, TraceError> {
    let file = path.display().to_string();
    let name = path.file_name().map_or_else(|| file.clone(), |n| n.to_string_lossy().into_owned());
    if let Some(trace) = read_in_pieces(path, options) {
        return Ok(Trace { name, ..trace });
    }
    let bytes = if file == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        std::fs::read(path)
    };
    let bytes = bytes.map_err(|cause| TraceError::Io { file: file.clone(), cause })?;
    Ok(Trace { name, ..parse(&bytes, &file, options)? })
}

/// Reads a file of plain rows in pieces, so that its text takes no memory. `None` if the file needs the
/// general reader, which also reports errors.
fn read_in_pieces(path: &Path, options: &ReadOptions<'_>) -> Option<Trace> {
    const PIECE: usize = 1 << 16;
    let mut file = std::fs::File::open(path).ok()?;
    // Only a regular file can be read a second time.
    if options.skip_bad || !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut buffer = vec![0; PIECE];
    let (mut filled, mut line) = (0, 1);
    let mut reader: Option<Reader<'_>> = None;
    loop {
        let read = file.read(&mut buffer[filled..]).ok()?;
        filled += read;
        let rows_end = match buffer[..filled].iter().rposition(|&byte| byte == b'\n') {
            _ if read == 0 => filled,
            Some(last) => last + 1,
            None if filled < PIECE => continue,
            None => return None,
        };
        let text = std::str::from_utf8(&buffer[..rows_end]).ok()?;
        if has_quote(text) {
            return None;
        }
        let reader = match &mut reader {
            Some(reader) => reader,
            None => {
                let first_line = text.lines().next()?;
                let format = format_of(first_line, options).ok()?;
                // The jobs of this format span several rows.
                if format == TraceFormat::Sacct {
                    return None;
                }
                reader.insert(Reader::new(first_line, format, options).ok()?)
            }
        };
        line = reader.plain_rows(text, line).ok()?;
        buffer.copy_within(rows_end..filled, 0);
        filled -= rows_end;
        if read == 0 {
            break;
        }
    }
    let Reader { mut trace, layout, .. } = reader?;
    let is_good =
        drop_duplicates(&mut trace, layout.id_name()).is_empty() && !trace.jobs.is_empty();
    is_good.then_some(trace)
}

/// Reads a trace from memory; `file` is for messages.
pub fn parse(bytes: &[u8], file: &str, options: &ReadOptions<'_>) -> Result<Trace, TraceError> {
    let whole = |problem| TraceError::File { file: file.to_owned(), problem };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let newlines = bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        whole(Problem::NotUtf8 { line: newlines as u64 + 1 })
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let first_line = text.lines().next().unwrap_or("");
    if text.trim().is_empty() {
        return Err(whole(Problem::Empty));
    }
    let format = format_of(first_line, options).map_err(whole)?;
    if format == TraceFormat::Sacct {
        return super::sacct::parse(text, file, options.skip_bad);
    }
    let mut reader = Reader::new(first_line, format, options).map_err(whole)?;
    let outcome = reader.rows(text);
    let Reader { mut trace, layout, .. } = reader;
    let skipped = std::mem::take(&mut trace.skipped);
    // A duplicate id before the bad row is reported first.
    let duplicate = drop_duplicates(&mut trace, layout.id_name());
    if options.skip_bad {
        trace.skipped = skipped;
        trace.skipped.extend(duplicate);
        trace.skipped.sort_by_key(|row| row.line);
    } else if let Some(row) = duplicate.into_iter().next().or(outcome.err().map(|bad| *bad)) {
        return Err(TraceError::Row { file: file.to_owned(), row });
    }
    if trace.jobs.is_empty() {
        return Err(whole(Problem::NoJobs));
    }
    Ok(trace)
}

fn format_of(first_line: &str, options: &ReadOptions<'_>) -> Result<TraceFormat, Problem> {
    options.format.or_else(|| TraceFormat::guess(first_line)).ok_or(Problem::UnknownFormat)
}

/// Compares whole blocks without a branch per byte, which the compiler vectorises.
fn has_quote(text: &str) -> bool {
    let is_in = |block: &[u8]| block.iter().fold(false, |found, &byte| found | (byte == b'"'));
    text.as_bytes().chunks(4096).any(is_in)
}

/// Removes and returns every job with a duplicate id.
fn drop_duplicates(trace: &mut Trace, id_name: &str) -> Vec<BadRow> {
    // Ascending ids, as most traces have, cannot repeat.
    let keys = (0..trace.jobs.len()).map(|index| trace.ids.get(index)).map(|id| (id.len(), id));
    if keys.is_sorted_by(|one, next| one < next) {
        return Vec::new();
    }
    let mut seen = FxHashSet::default();
    seen.reserve(trace.jobs.len());
    let repeated: Vec<usize> =
        (0..trace.jobs.len()).filter(|&index| !seen.insert(trace.ids.get(index))).collect();
    if repeated.is_empty() {
        return Vec::new();
    }
    let bad = repeated.iter().map(|&index| BadRow {
        line: trace.jobs[index].line,
        field: id_name.to_owned(),
        problem: Problem::DuplicateId { id: trace.ids.get(index).to_owned() },
    });
    let bad: Vec<BadRow> = bad.collect();
    let mut ids = super::Ids::default();
    let mut jobs = Vec::with_capacity(trace.jobs.len() - repeated.len());
    for (index, job) in trace.jobs.drain(..).enumerate() {
        if repeated.binary_search(&index).is_err() {
            ids.push(trace.ids.get(index));
            jobs.push(job);
        }
    }
    trace.ids = ids;
    trace.jobs = jobs;
    bad
}

struct Reader<'a> {
    layout: &'static Layout,
    columns: Columns,
    speeds: Option<&'a SoloSpeeds>,
    skip_bad: bool,
    trace: Trace,
    /// Known classes by the text from their first field to their last. If these fields are adjacent, a class
    /// is assembled once and not once per row.
    classes: FxHashMap<String, ClassId>,
}

impl<'a> Reader<'a> {
    fn new(
        first_line: &str,
        format: TraceFormat,
        options: &ReadOptions<'a>,
    ) -> Result<Self, Problem> {
        let layout = format.layout();
        let columns = Columns::resolve(layout, first_line, format)?;
        if layout.duration == DurationFrom::Steps && options.speeds.is_none() {
            return Err(Problem::NeedsSpeeds);
        }
        Ok(Self {
            layout,
            columns,
            speeds: options.speeds,
            classes: FxHashMap::default(),
            skip_bad: options.skip_bad,
            trace: Trace { format, ..Trace::default() },
        })
    }

    fn rows(&mut self, text: &str) -> Result<(), Box<BadRow>> {
        if has_quote(text) && self.layout.has_header {
            self.quoted_rows(text)
        } else {
            self.plain_rows(text, 1).map(|_| ())
        }
    }

    /// Reads text without quotes, where a row is a line and delimiters separate fields. The first line has
    /// number `line`; returns the number of the line after the last line break.
    fn plain_rows(&mut self, text: &str, mut line: u64) -> Result<u64, Box<BadRow>> {
        let bytes = text.as_bytes();
        let mut fields = Vec::new();
        let (mut row_start, mut start) = (0, 0);
        visit_ends(bytes, self.layout.delimiter, |end, ends_line| -> Result<(), Box<BadRow>> {
            fields.push((start, end));
            start = end + 1;
            if ends_line {
                self.plain_row(text, row_start, &mut fields, line)?;
                fields.clear();
                line += 1;
                row_start = start;
            }
            Ok(())
        })?;
        fields.push((start, bytes.len()));
        self.plain_row(text, row_start, &mut fields, line)?;
        Ok(line)
    }

    fn plain_row(
        &mut self,
        text: &str,
        start: usize,
        fields: &mut [(usize, usize)],
        line: u64,
    ) -> Result<(), Box<BadRow>> {
        if let Some((last_start, end)) = fields.last_mut() {
            // The carriage return of CR LF is not content.
            let ends_in_cr = *end > *last_start && text.as_bytes()[*end - 1] == b'\r';
            *end -= usize::from(ends_in_cr);
        }
        let is_blank = match *fields {
            [(_, end)] => text[start..end].trim_ascii().is_empty(),
            _ => false,
        };
        if is_blank || (line == 1 && self.layout.has_header) {
            return Ok(());
        }
        self.take(&TraceRow { text, fields, line })
    }

    fn quoted_rows(&mut self, text: &str) -> Result<(), Box<BadRow>> {
        let mut csv = csv::ReaderBuilder::new()
            .delimiter(self.layout.delimiter)
            .flexible(true)
            .from_reader(text.as_bytes());
        let mut record = csv::StringRecord::new();
        let mut fields = Vec::new();
        let (mut line, mut counted) = (1, 0);
        while csv
            .read_record(&mut record)
            .expect("text in memory is valid UTF-8, rows may have any length")
        {
            fields.clear();
            let ranges = (0..record.len()).filter_map(|index| record.range(index));
            fields.extend(ranges.map(|range| (range.start, range.end)));
            // The line number of the `csv` crate is one short after CR LF.
            let at = record.position().map_or(0, |position| position.byte() as usize);
            let blank = text[at..].bytes().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            line += text[counted..at + blank].bytes().filter(|&byte| byte == b'\n').count() as u64;
            counted = at + blank;
            self.take(&TraceRow { text: record.as_slice(), fields: &fields, line })?;
        }
        Ok(())
    }

    /// Adds a row, or counts it as bad.
    fn take(&mut self, row: &TraceRow<'_, '_>) -> Result<(), Box<BadRow>> {
        match self.row(row) {
            Err(bad) if self.skip_bad => {
                self.trace.skipped.push(*bad);
                Ok(())
            }
            outcome => outcome,
        }
    }

    fn row(&mut self, row: &TraceRow<'_, '_>) -> Result<(), Box<BadRow>> {
        let columns = &self.columns;
        if row.fields.len() != columns.count {
            let (found, expected) = (row.fields.len(), columns.count);
            return Err(row.bad("row", Problem::FieldCount { found, expected }));
        }
        let submit = row.time(columns.submit, self.layout.time_scale)?;
        let gpus = row.whole(columns.gpus)?;
        if gpus == 0 {
            return Err(row.bad(columns.gpus.name, Problem::ZeroGpus));
        }
        let estimate =
            row.optional(columns.estimate, |field| row.span(field, self.layout.time_scale))?;
        let memory = row.optional(columns.memory, |field| {
            let memory = row.scaled(field, 3)?;
            if memory > MEMORY_MAX { Err(row.overflow(field)) } else { Ok(Memory(memory)) }
        })?;
        let util = |field| row.utilisation(field, self.layout.util_scale);
        let gpu_util = row.optional(columns.gpu_util, util)?;
        let bandwidth_util = row.optional(columns.bandwidth_util, util)?;
        let tolerance = row.tolerance(columns)?;
        let priority = row.optional(columns.priority, |field| row.priority(field))?.unwrap_or(0);
        let tier = row.optional(columns.tier, |field| row.priority(field))?.unwrap_or(0);
        let reservation = row.optional(columns.reservation, |field| row.whole(field))?;
        let service = row.service(columns, gpu_util)?;
        let mut duration = self.duration(row, gpus)?;
        let class = self.class_id(row)?;
        let columns = &self.columns;
        let id = match columns.id {
            Some(field) => row.required(field)?,
            None => "",
        };
        // All fields are valid: from here on the trace changes.
        if duration.0 < MICROS_PER_SECOND {
            duration = Span::from_secs(1);
            self.trace.raised += 1;
        }
        if columns.id.is_some() {
            self.trace.ids.push(id);
        } else {
            let number = self.trace.jobs.len() + 1;
            self.trace.ids.push(&number.to_string());
        }
        let partition =
            columns.partition.map(|field| row.text(field)).filter(|name| !name.is_empty());
        let account = columns.account.map(|field| row.text(field)).filter(|name| !name.is_empty());
        let account = account.map(|name| AccountId(self.trace.accounts.intern(name)));
        let job = TraceJob {
            line: row.line,
            user: UserId(self.trace.users.intern(columns.user.map_or("", |field| row.text(field)))),
            partition: partition.map(|name| self.trace.partitions.intern(name)),
            submit,
            duration,
            gpus,
            estimate,
            class,
            memory,
            gpu_util,
            bandwidth_util,
            tolerance,
            priority,
            share: JobShare { account, tier, reservation },
            service,
        };
        self.trace.jobs.push(job);
        Ok(())
    }

    fn duration(&self, row: &TraceRow<'_, '_>, gpus: u32) -> Result<Span, Box<BadRow>> {
        let columns = &self.columns;
        match self.layout.duration {
            DurationFrom::Column => row.span(columns.duration, self.layout.time_scale),
            DurationFrom::Between { start, end } => {
                let ended = row.time(columns.duration, self.layout.time_scale)?;
                // A job that never started has no start: its submission counts instead.
                let started = match columns.start.filter(|&field| !row.text(field).is_empty()) {
                    Some(field) => row.time(field, self.layout.time_scale)?,
                    None => row.time(columns.submit, self.layout.time_scale)?,
                };
                if ended < started {
                    return Err(row.bad(end, Problem::EndsBeforeStart { start }));
                }
                Ok(ended.since(started))
            }
            DurationFrom::Steps => {
                let field = columns.duration;
                let steps = row.scaled(field, 0)?;
                let job_type = row.text(columns.model.unwrap_or(field)).to_owned();
                let speeds = self.speeds.expect("checked before the first row");
                let speed = speeds.get(&(Class::from_job_type(&job_type), gpus));
                let Some(&speed) = speed.filter(|&&speed| speed > 0.0) else {
                    return Err(row.bad(self.layout.model, Problem::UnknownJobType { job_type }));
                };
                let micros = (steps as f64 / speed * MICROS_PER_SECOND as f64).round();
                if micros > MICROS_MAX as f64 {
                    return Err(row.overflow(field));
                }
                Ok(Span(micros as u64))
            }
            DurationFrom::Application(seconds) => {
                let field = columns.model.unwrap_or(columns.duration);
                let batch = row.whole(columns.duration)?;
                let application = row.text(field);
                let Some(seconds) = seconds(application, batch, gpus) else {
                    let job_type = application.to_owned();
                    return Err(row.bad(field.name, Problem::UnknownJobType { job_type }));
                };
                Ok(Span((seconds * MICROS_PER_SECOND as f64).round() as u64))
            }
        }
    }

    fn class_id(&mut self, row: &TraceRow<'_, '_>) -> Result<Option<ClassId>, Box<BadRow>> {
        let Some((first, last)) = self.columns.class_fields else { return Ok(None) };
        let (start, end) = (row.fields[first].0, row.fields[last].1);
        let written = &row.text[start..end];
        if let Some(&class) = self.classes.get(written) {
            return Ok(Some(class));
        }
        let Some(class) = self.class(row)? else { return Ok(None) };
        let class = ClassId(self.trace.classes.intern(&class));
        // If other columns are in between, this would store a class many times.
        if last - first < CLASS_COLUMNS {
            self.classes.insert(written.to_owned(), class);
        }
        Ok(Some(class))
    }

    fn class(&self, row: &TraceRow<'_, '_>) -> Result<Option<Class>, Box<BadRow>> {
        let columns = &self.columns;
        let Some(model) = columns.model.map(|field| row.text(field)).filter(|m| !m.is_empty())
        else {
            return Ok(None);
        };
        if self.layout.model_is_job_type {
            return Ok(Some(Class::from_job_type(model)));
        }
        Ok(Some(Class {
            model: model.to_owned(),
            dataset: columns.dataset.map_or("", |field| row.text(field)).to_owned(),
            batch: row.optional(columns.batch, |field| row.whole(field))?,
            amp: row.optional(columns.amp, |field| row.flag(field))?.unwrap_or(false),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tandem_core::{Time, Utilisation};

    fn read(text: &str) -> Result<Trace, String> {
        let trace = parse(text.as_bytes(), "t.csv", &ReadOptions::default());
        trace.map_err(|error| error.to_string())
    }

    proptest! {
        /// Quoting one field of the header changes how rows are split, and nothing else.
        #[test]
        fn both_ways_of_splitting_rows_agree(rows in "(([0-9]{1,3}|x|-1| 2 |),){4}[a-zé]{0,2}(\r?\n(([0-9]{1,3}|1\\.5|),){4}[a-z]{0,2}){0,6}\n?") {
            let plain = format!("job_id,submit_s,gpus,duration_s,user\n{rows}");
            let quoted = format!("\"job_id\",submit_s,gpus,duration_s,user\n{rows}");
            match (read(&plain), read(&quoted)) {
                (Ok(plain), Ok(quoted)) => {
                    prop_assert_eq!(plain.jobs, quoted.jobs);
                    prop_assert_eq!(format!("{:?}", plain.ids), format!("{:?}", quoted.ids));
                }
                (plain, quoted) => prop_assert_eq!(plain.err(), quoted.err()),
            }
        }
    }

    #[test]
    fn dates_are_read_as_utc_and_numbers_in_the_unit_of_the_format() {
        let philly = "timestamp,duration,num_gpus,gpu_time,cluster\n1970-01-02 00:00:01,5,1,5,a\n";
        assert_eq!(read(philly).unwrap().jobs[0].submit, Time::from_secs(86_401));
        let muri = "job_id,num_gpu,submit_time,duration\n1,2,1500,2500\n";
        let job = &read(muri).unwrap().jobs[0];
        assert_eq!((job.submit, job.duration), (Time(1_500_000), Span(2_500_000)));
    }

    #[test]
    fn pollux_durations_follow_from_the_application() {
        let text = "name,time,application,num_replicas,batch_size\nc-0,107,cifar10,8,2048\n";
        let job = &read(text).unwrap().jobs[0];
        // 2,442 iterations of 0.0172 + 0.000664 × 256 s.
        assert_eq!(job.duration, Span(457_103_328));
        assert_eq!((job.gpus, job.submit), (8, Time::from_secs(107)));
    }

    #[test]
    fn alibaba_durations_are_between_scheduling_and_deletion() {
        let text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
                    p-0,1,1,1,460,,LS,Running,10,100,40\np-1,1,1,2,1000,,LS,Running,10,100,\n";
        let trace = read(text).unwrap();
        let durations: Vec<Span> = trace.jobs.iter().map(|job| job.duration).collect();
        assert_eq!(durations, [Span::from_secs(60), Span::from_secs(90)]);
        assert_eq!(trace.jobs[0].gpu_util, Some(Utilisation(46_000)));
    }

    #[test]
    fn gavel_durations_are_steps_divided_by_solo_speed() {
        let line =
            "ResNet-18 (batch size 32)\tpython x.py\tdir\t--steps\t0\t900\t2\t1.0\t-1\t12.5\n";
        let speeds =
            SoloSpeeds::from([((Class::from_job_type("ResNet-18 (batch size 32)"), 2), 3.0)]);
        let options = ReadOptions { speeds: Some(&speeds), ..ReadOptions::default() };
        let trace = parse(line.as_bytes(), "t.trace", &options).unwrap();
        assert_eq!(
            (trace.jobs[0].submit, trace.jobs[0].duration),
            (Time(12_500_000), Span::from_secs(300))
        );
        assert!(read(line).unwrap_err().contains("format gavel counts steps"));
    }

    #[test]
    fn an_incomplete_header_names_what_is_missing() {
        let missing = |header: &str| read(&format!("{header}\n1\n")).unwrap_err();
        assert_eq!(
            missing("job_id,user,vc,submit_s,duration"),
            "t.csv: line 1: missing column gpu_num, which format venus needs"
        );
        assert!(missing("a,b,c").contains("header fits no known format"));
    }
}
