//! `tandem reserve`, and drains with a reason or an end.

use super::change::several;
use super::connect;
use super::learned::list;
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::live_args::{ListArgs, ReserveArgs, ReserveCommand};
use crate::output::{self, TableCell, name};
use crate::units;
use tandem_daemon::api::{ReservationInfo, ReservationRequest};
use tandem_daemon::request::parse_numbers;

const COLUMNS: [&str; 8] = ["id", "devices", "closes", "start", "end", "users", "reason", "by"];

/// The options of the fields of a request.
const OPTIONS: [(&str, &str); 7] = [
    ("start_unix_s", "--start"),
    ("end_unix_s", "--end"),
    ("lead_s", "--lead"),
    ("gpus", "-G"),
    ("devices", "--devices"),
    ("users", "--users"),
    ("reason", "--reason"),
];

pub(super) fn run(args: &ReserveArgs) -> Result<(), Failure> {
    match &args.command {
        Some(ReserveCommand::List(args)) => show(args),
        Some(ReserveCommand::Cancel { reservations, common }) => {
            let mut client = connect(common)?;
            several("reservation", reservations, "cancelled", common.json, |id| {
                client.cancel_reservation(u32::try_from(id).unwrap_or(u32::MAX)).map(|_| ())
            })
        }
        None => create(args),
    }
}

fn create(args: &ReserveArgs) -> Result<(), Failure> {
    let devices = match &args.devices {
        Some(text) => Some(devices(text)?),
        None => None,
    };
    let Some(end) = &args.end else {
        return Err(Failure::bad_input("say until when: --end 18:00, or --end 2026-12-24"));
    };
    let start_unix_s = match args.start {
        Some(start) => start,
        None => units::moment("now").map_err(Failure::bad_input)?,
    };
    let end_unix_s = units::moment_after(end, start_unix_s)
        .map_err(|problem| Failure::bad_input(format!("--end: {problem}")))?;
    let request = ReservationRequest {
        gpus: args.gpus,
        devices,
        start_unix_s: args.start.unwrap_or(0.0),
        end_unix_s,
        lead_s: args.lead.unwrap_or(0.0),
        users: args.users.clone(),
        drain: false,
        reason: args.reason.clone().unwrap_or_default(),
    };
    let answer = connect(&args.common)?.reserve(&request);
    let answer = answer.map_err(|error| Failure::from(error).naming(&OPTIONS))?;
    if args.common.json {
        return print(answer.raw.trim_end());
    }
    let made = &answer.reservation;
    let (start, end) = (units::local(&made.start), units::local(&made.end));
    let noun = if made.devices.len() == 1 { "GPU" } else { "GPUs" };
    let gpus = list_of(&made.devices);
    remark(&format!("reservation {}: {noun} {gpus} from {start} to {end}", made.id), false);
    Ok(())
}

/// Numbers of GPUs from `0-3,6`.
pub(super) fn devices(text: &str) -> Result<Vec<u32>, Failure> {
    let wrong =
        || Failure::bad_input(format!("'{}' names no GPU; give 0-3,6", output::clean(text)));
    let numbers = parse_numbers(text).ok_or_else(wrong)?;
    numbers.into_iter().map(|one| u32::try_from(one).map_err(|_| wrong())).collect()
}

fn list_of(devices: &[u32]) -> String {
    devices.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

fn show(args: &ListArgs) -> Result<(), Failure> {
    let format = args.output.format(args.common.json)?;
    let answer = connect(&args.common)?.reservations()?;
    let header = [">reservation", "GPUs", "from", "to", "users", "reason", "by"];
    list(format, &answer.raw, "reservations", &COLUMNS, || {
        let rows = answer.reservations.iter().map(row).collect();
        output::table(&header, rows, args.common.color.is_on())
    })
}

fn row(one: &ReservationInfo) -> Vec<TableCell> {
    vec![
        one.id.to_string().into(),
        list_of(&one.devices).into(),
        units::local(&one.closes).into(),
        units::local(&one.end).into(),
        one.users.iter().map(|user| name(user)).collect::<Vec<_>>().join(",").into(),
        name(&one.reason).into(),
        name(&one.by).into(),
    ]
}
