//! `tandem gpus`.

use super::change::several;
use super::connect;
use super::queue::latest;
use crate::commands::{print, remark};
use crate::failure::Failure;
use crate::live_args::{DevicesArgs, DrainArgs, GpusArgs, GpusCommand};
use crate::output::{self, OutputFormat, TableCell, clean, name};
use crate::units;
use comfy_table::Color;
use serde_json::Value;
use std::collections::BTreeMap;
use tandem_daemon::api::ReservationRequest;
use tandem_daemon::api::types::{DeviceInfo, Devices, JobLine};
use tandem_daemon::client::{Client, ClientError, JobQuery};
use tandem_daemon::job::JobState;
use tandem_daemon::request::parse_numbers;

/// Upper limit of the tenants that are fetched.
const TENANTS_MAX: u32 = 100_000;
const COLUMNS: [&str; 11] = [
    "index",
    "name",
    "kind",
    "memory_bytes",
    "memory_used_bytes",
    "utilization",
    "state",
    "foreign_bytes",
    "jobs",
    "normalised_throughput",
    "measured",
];

pub(super) fn run(args: &GpusArgs) -> Result<(), Failure> {
    match &args.change {
        Some(GpusCommand::Drain(args)) if args.until.is_some() => drain_for_a_time(args),
        Some(GpusCommand::Drain(args)) => {
            let reason = args.reason.as_deref();
            change(&args.devices, "drained", |client, device| client.drain(device, reason))
        }
        Some(GpusCommand::Undrain(args)) => change(args, "given to jobs again", Client::undrain),
        None => list(args),
    }
}

/// A drain with an end is a reservation for nobody that stops no job.
fn drain_for_a_time(args: &DrainArgs) -> Result<(), Failure> {
    let request = ReservationRequest {
        devices: Some(super::reserve::devices(&args.devices.devices)?),
        end_unix_s: args.until.unwrap_or_default(),
        drain: true,
        reason: args.reason.clone().unwrap_or_default(),
        ..ReservationRequest::default()
    };
    let answer = connect(&args.devices.common)?.reserve(&request)?;
    if args.devices.common.json {
        return print(answer.raw.trim_end());
    }
    let (id, devices) = (answer.reservation.id, clean(&args.devices.devices));
    remark(
        &format!("drained; undo it with: tandem gpus undrain {devices} (reservation {id})"),
        false,
    );
    Ok(())
}

fn change<T>(
    args: &DevicesArgs,
    done: &str,
    make: impl Fn(&mut Client, u32) -> Result<T, ClientError>,
) -> Result<(), Failure> {
    let wrong =
        || Failure::bad_input(format!("'{}' names no GPU; give 0-3,6", clean(&args.devices)));
    let devices = parse_numbers(&args.devices).ok_or_else(wrong)?;
    let mut client = connect(&args.common)?;
    several("GPU", &devices, done, args.common.json, |device| {
        make(&mut client, u32::try_from(device).unwrap_or(u32::MAX)).map(|_| ())
    })
}

fn list(args: &GpusArgs) -> Result<(), Failure> {
    let format = args.list.output.format(args.list.common.json)?;
    let mut client = connect(&args.list.common)?;
    let answer = client.devices()?;
    let rows = || -> Result<Vec<Value>, Failure> {
        let mut raw: Value = serde_json::from_str(&answer.raw).map_err(Failure::failed)?;
        Ok(raw["devices"].take().as_array_mut().map(std::mem::take).unwrap_or_default())
    };
    match format {
        OutputFormat::Json => print(answer.raw.trim_end()),
        OutputFormat::Jsonl => output::json_lines(&rows()?),
        OutputFormat::Csv => output::csv(&COLUMNS, &rows()?),
        OutputFormat::Table => {
            let jobs = tenants(&mut client)?;
            print(&table(&answer, &jobs, args.list.common.color.is_on()))
        }
    }
}

/// The jobs that have devices, by number.
pub(super) fn tenants(client: &mut Client) -> Result<BTreeMap<u64, JobLine>, ClientError> {
    let states = vec![JobState::Running, JobState::Paused, JobState::Completing];
    let query = JobQuery { states, latest_first: true, ..JobQuery::default() };
    let found = latest(client, &query, TENANTS_MAX)?;
    Ok(found.jobs.into_iter().map(|job| (job.id, job)).collect())
}

/// Devices as a table.
pub(super) fn table(devices: &Devices, jobs: &BTreeMap<u64, JobLine>, colors: bool) -> String {
    let header = [">gpu", "name", "kind", "state", ">memory", ">busy", "tenants", ">throughput"];
    let rows = devices.devices.iter().map(|device| row(device, jobs)).collect();
    output::table(&header, rows, colors)
}

fn row(device: &DeviceInfo, jobs: &BTreeMap<u64, JobLine>) -> Vec<TableCell> {
    let color = (device.state != "up").then_some(Color::Yellow);
    let reason = device.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    let state = format!("{}{reason}", device.state);
    vec![
        device.index.to_string().into(),
        name(&device.name).into(),
        name(&device.kind).into(),
        TableCell::colored(clean(&state), color),
        memory(device).into(),
        device.utilization.map(|busy| format!("{:.0} %", busy * 100.0)).unwrap_or_default().into(),
        tenant_list(device, jobs).into(),
        throughput(device).into(),
    ]
}

/// Used and total memory, and the memory of foreign processes.
pub(super) fn memory(device: &DeviceInfo) -> String {
    let used = device.memory_used_bytes.map_or_else(|| "?".to_owned(), units::bytes);
    let foreign = device.foreign_bytes.filter(|&bytes| bytes > 0);
    let foreign =
        foreign.map(|bytes| format!(" ({} foreign)", units::bytes(bytes))).unwrap_or_default();
    format!("{used} of {}{foreign}", units::bytes(device.memory_bytes))
}

/// `17 train.py 0.82 + 18 eval ~0.61`
pub(super) fn tenant_list(device: &DeviceInfo, jobs: &BTreeMap<u64, JobLine>) -> String {
    let tenant = |id: &u64| match jobs.get(id) {
        Some(job) => {
            let paused = if job.state == JobState::Paused { " paused" } else { "" };
            let rate = super::queue::rate(job);
            format!("{id} {} {rate}{paused}", name(&job.name)).trim_end().to_owned()
        }
        None => id.to_string(),
    };
    device.jobs.iter().map(tenant).collect::<Vec<_>>().join(" + ")
}

/// Sum of the rates; a prediction is marked, and `?` is not known.
pub(super) fn throughput(device: &DeviceInfo) -> String {
    let mark = if device.measured { "" } else { "~" };
    let unknown = || if device.jobs.len() > 1 { "?" } else { "" }.to_owned();
    device.normalised_throughput.map_or_else(unknown, |sum| format!("{mark}{sum:.2}"))
}
