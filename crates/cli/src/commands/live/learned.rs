//! `tandem classes` and `tandem usage`.

use super::connect;
use crate::commands::print;
use crate::failure::Failure;
use crate::live_args::{ListArgs, UsageArgs};
use crate::output::{self, OutputFormat, TableCell, clean, name};
use crate::units;
use serde_json::Value;
use tandem_daemon::api::types::{ClassInfo, UsageRow, UserUsage};

const CLASS_COLUMNS: [&str; 9] = [
    "name",
    "defined_by",
    "ignored",
    "memory_bytes",
    "steps_per_s",
    "duty",
    "duration_s",
    "finished",
    "beside",
];
/// How to change what belongs to a class.
const OVERRULE: &str =
    "overrule: submit --class NAME, or learning.class_arguments and learning.class_ignore";
const USER_COLUMNS: [&str; 4] = ["user", "jobs", "gpu_hours", "shared_gpu_hours"];
/// Characters of a definition that a table shows.
const DEFINITION_MAX: usize = 60;
/// Pairs of a class that a table shows.
const PAIRS_MAX: usize = 3;

pub(super) fn classes(args: &ListArgs) -> Result<(), Failure> {
    let format = args.output.format(args.common.json)?;
    let answer = connect(&args.common)?.classes()?;
    let header = [
        "class",
        "defined by",
        ">memory",
        ">steps/s alone",
        ">busy alone",
        ">takes",
        ">finished",
        "rate beside (measurements)",
    ];
    list(format, &answer.raw, "classes", &CLASS_COLUMNS, || {
        let rows = answer.classes.iter().map(class_row).collect();
        let table = output::table(&header, rows, args.common.color.is_on());
        if answer.classes.is_empty() { table } else { format!("{table}\n\n{OVERRULE}") }
    })
}

pub(super) fn usage(args: &UsageArgs) -> Result<(), Failure> {
    let format = args.list.output.format(args.list.common.json)?;
    let by = (!args.by.is_empty()).then(|| args.by.join(","));
    let answer = connect(&args.list.common)?.usage(args.since, by)?;
    if !args.by.is_empty() {
        let wanted = |name: &&str| args.by.iter().any(|one| one == name);
        let columns: Vec<&str> = ["month", "account", "user"].into_iter().filter(wanted).collect();
        let fields: Vec<&str> =
            columns.iter().copied().chain(["jobs", "gpu_hours", "shared_gpu_hours"]).collect();
        return list(format, &answer.raw, "rows", &fields, || {
            let rows = answer.rows.iter().map(|row| group_row(&columns, row)).collect();
            let header: Vec<&str> =
                columns.iter().copied().chain([">jobs", ">GPU hours", ">of them shared"]).collect();
            output::table(&header, rows, args.list.common.color.is_on())
        });
    }
    list(format, &answer.raw, "users", &USER_COLUMNS, || {
        let rows = answer.users.iter().map(user_row).collect();
        let header = ["user", ">jobs", ">GPU hours", ">of them shared"];
        output::table(&header, rows, args.list.common.color.is_on())
    })
}

/// A list in the format that was asked for.
pub(super) fn list(
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
        class.defined_by.as_deref().map(|text| clip(&clean(text))).unwrap_or_default().into(),
        class.memory_bytes.map(units::bytes).unwrap_or_default().into(),
        speeds.collect::<Vec<_>>().join(", ").into(),
        class.duty.map(|duty| format!("{:.0} %", duty * 100.0)).unwrap_or_default().into(),
        class.duration_s.map(units::clock).unwrap_or_default().into(),
        class.finished.to_string().into(),
        pairs.into(),
    ]
}

fn group_row(columns: &[&str], row: &UsageRow) -> Vec<TableCell> {
    let cell = |column: &&str| {
        let text = match *column {
            "month" => &row.month,
            "account" => &row.account,
            _ => &row.user,
        };
        name(text.as_deref().unwrap_or("-")).into()
    };
    let mut cells: Vec<TableCell> = columns.iter().map(cell).collect();
    cells.push(row.jobs.to_string().into());
    cells.push(format!("{:.2}", row.gpu_hours).into());
    cells.push(format!("{:.2}", row.shared_gpu_hours).into());
    cells
}

/// The start of a long definition.
fn clip(text: &str) -> String {
    if text.chars().count() <= DEFINITION_MAX {
        return text.to_owned();
    }
    text.chars().take(DEFINITION_MAX - 1).chain(['…']).collect()
}

fn user_row(usage: &UserUsage) -> Vec<TableCell> {
    vec![
        name(&usage.user).into(),
        usage.jobs.to_string().into(),
        format!("{:.2}", usage.gpu_hours).into(),
        format!("{:.2}", usage.shared_gpu_hours).into(),
    ]
}
