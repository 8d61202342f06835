//! `tandem classes` and `tandem usage`.

use super::connect;
use crate::commands::print;
use crate::failure::Failure;
use crate::live_args::{ListArgs, UsageArgs};
use crate::output::{self, OutputFormat, TableCell, name};
use crate::units;
use serde_json::Value;
use tandem_daemon::api::types::{ClassInfo, UserUsage};

const CLASS_COLUMNS: [&str; 5] = ["name", "memory_bytes", "steps_per_s", "finished", "beside"];
const USER_COLUMNS: [&str; 4] = ["user", "jobs", "gpu_hours", "shared_gpu_hours"];
/// Pairs of a class that a table shows.
const PAIRS_MAX: usize = 3;

pub(super) fn classes(args: &ListArgs) -> Result<(), Failure> {
    let format = args.output.format(args.common.json)?;
    let answer = connect(&args.common)?.classes()?;
    let header = ["class", ">memory", ">steps/s alone", ">finished", "rate beside (measurements)"];
    list(format, &answer.raw, "classes", &CLASS_COLUMNS, || {
        let rows = answer.classes.iter().map(class_row).collect();
        output::table(&header, rows, args.common.color.is_on())
    })
}

pub(super) fn usage(args: &UsageArgs) -> Result<(), Failure> {
    let format = args.list.output.format(args.list.common.json)?;
    let answer = connect(&args.list.common)?.usage(args.since)?;
    list(format, &answer.raw, "users", &USER_COLUMNS, || {
        let rows = answer.users.iter().map(user_row).collect();
        let header = ["user", ">jobs", ">GPU hours", ">of them shared"];
        output::table(&header, rows, args.list.common.color.is_on())
    })
}

/// A list in the format that was asked for.
fn list(
    format: OutputFormat,
    raw: &str,
    field: &str,
    columns: &[&str],
    table: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let rows = || -> Result<Vec<Value>, Failure> {
        let mut answer: Value = serde_json::from_str(raw).map_err(Failure::failed)?;
        Ok(answer[field].take().as_array_mut().map(std::mem::take).unwrap_or_default())
    };
    match format {
        OutputFormat::Json => print(raw.trim_end()),
        OutputFormat::Jsonl => output::json_lines(&rows()?),
        OutputFormat::Csv => output::csv(columns, &rows()?),
        OutputFormat::Table => print(&table()),
    }
}

fn class_row(class: &ClassInfo) -> Vec<TableCell> {
    let speeds = class.steps_per_s.iter().map(|(parts, speed)| match parts {
        0 | 1 => format!("{speed:.3}"),
        parts => format!("{speed:.3} in {parts} parts"),
    });
    let pairs = class.beside.iter().take(PAIRS_MAX);
    let pairs = pairs
        .map(|(other, pair)| format!("{} {:.2} ({})", name(other), pair.rate, pair.measurements));
    let mut pairs = pairs.collect::<Vec<_>>().join(", ");
    if class.beside.len() > PAIRS_MAX {
        pairs += ", …";
    }
    vec![
        name(&class.name).into(),
        class.memory_bytes.map(units::bytes).unwrap_or_default().into(),
        speeds.collect::<Vec<_>>().join(", ").into(),
        class.finished.to_string().into(),
        pairs.into(),
    ]
}

fn user_row(usage: &UserUsage) -> Vec<TableCell> {
    vec![
        name(&usage.user).into(),
        usage.jobs.to_string().into(),
        format!("{:.2}", usage.gpu_hours).into(),
        format!("{:.2}", usage.shared_gpu_hours).into(),
    ]
}
