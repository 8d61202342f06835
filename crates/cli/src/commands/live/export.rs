//! `tandem export`: the daemon's history as a trace with its learned rates, which `tandem compare` reads.

use super::connect;
use crate::args::{Cli, CliCommand};
use crate::commands::{print, remark, simulate};
use crate::failure::Failure;
use crate::files::{Folder, OutputFile};
use crate::live_args::ExportArgs;
use crate::progress::ProgressDisplay;
use crate::units;
use clap::Parser;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::Ordering;
use tandem_daemon::api::types::{ClassInfo, DeviceInfo, JobInfo};
use tandem_daemon::client::{Client, JobQuery};
use tandem_daemon::job::JobState;

/// Jobs per answer.
const PAGE: u32 = 1000;
const MIB: f64 = 1_048_576.0;
pub(in crate::commands) const TRACE_COLUMNS: [&str; 14] = [
    "job_id",
    "user",
    "submit_s",
    "gpus",
    "duration_s",
    "estimate_s",
    "model",
    "batch",
    "amp",
    "memory_mib",
    "gpu_util",
    "exclusive",
    "max_slowdown",
    "priority",
];
/// The columns of Lucid's table that `--interference` reads.
pub(in crate::commands) const RATE_COLUMNS: [&str; 10] = [
    "model1",
    "dataset1",
    "batchsize1",
    "amp1",
    "speed1",
    "model2",
    "dataset2",
    "batchsize2",
    "amp2",
    "speed2",
];

pub(super) fn run(args: &ExportArgs) -> Result<(), Failure> {
    let mut client = connect(&args.common)?;
    let devices = client.devices()?.value.devices;
    let classes = client.classes()?.value.classes;
    let (jobs, not_over) = ended_jobs(&mut client, args)?;
    if jobs.is_empty() {
        return Err(Failure::not_found("no job has ended in this period: nothing to export"));
    }
    let mut names = Aliases::new(args.names);
    let trace = trace_rows(&jobs, &classes, &devices, &mut names);
    let rates = rate_rows(&classes, &mut names);
    let folder = Folder::open(&args.out)?;
    let file = |name: &str| OutputFile::open(&args.out.join(name));
    file("trace.csv")?.write(|out| write_csv(out, &TRACE_COLUMNS, &trace))?;
    let rates_known = knows_half(&jobs, &classes);
    if rates_known {
        file("rates.csv")?.write(|out| write_csv(out, &RATE_COLUMNS, &rates))?;
    }
    if args.commands {
        let defined = |class: &ClassInfo| {
            vec![names.known_class(&class.name), class.defined_by.clone().unwrap_or_default()]
        };
        let rows: Vec<Vec<String>> = classes.iter().map(defined).collect();
        file("classes.csv")?.write(|out| write_csv(out, &["class", "defined_by"], &rows))?;
    }
    let cluster = match even_cluster(&devices) {
        Some(cluster) => cluster,
        None => {
            let text = cluster_file(&devices);
            file("cluster.toml")?.write(|out| out.write_all(text.as_bytes()))?;
            args.out.join("cluster.toml").display().to_string()
        }
    };
    folder.keep();
    let out = args.out.display();
    let mut text = format!("{} in {out}/trace.csv", units::counted(jobs.len(), "job"));
    if rates_known {
        text += &format!(", {} of classes in {out}/rates.csv", units::counted(rates.len(), "pair"));
    }
    let compares = args.compare.is_some();
    match compares {
        true => remark(&text, args.common.json),
        false => print(&text)?,
    }
    if not_over > 0 {
        let left_out = units::counted(not_over, "job");
        remark(
            &format!("{left_out} left out: not over, or never run"),
            compares && args.common.json,
        );
    }
    let mut next = vec!["tandem".to_owned(), "compare".to_owned()];
    next.extend(["--trace".to_owned(), args.out.join("trace.csv").display().to_string()]);
    if rates_known {
        let rates = args.out.join("rates.csv").display().to_string();
        next.extend(["--interference".to_owned(), rates]);
    }
    next.extend(["--cluster".to_owned(), cluster]);
    let Some(policies) = &args.compare else {
        remark(&format!("next: {}", next.join(" ")), false);
        return Ok(());
    };
    next.extend(["--policies".to_owned(), policies.clone()]);
    if args.common.json {
        next.extend(["--json", "--quiet"].map(str::to_owned));
    }
    match Cli::try_parse_from(next).map(|cli| cli.command) {
        Ok(CliCommand::Compare(compared)) => simulate::compare(&compared),
        Ok(_) => unreachable!("the command line names compare"),
        Err(error) => Err(Failure::bad_input(error.to_string())),
    }
}

/// The jobs of the period that ran and are over, by number, and how many others there are.
fn ended_jobs(client: &mut Client, args: &ExportArgs) -> Result<(Vec<JobInfo>, usize), Failure> {
    let mut lines = Vec::new();
    let mut after = None;
    loop {
        let query = JobQuery { after, limit: Some(PAGE), ..JobQuery::default() };
        let page = client.jobs(&query)?.value;
        after = page.next_after.filter(|_| !page.jobs.is_empty());
        lines.extend(page.jobs);
        if after.is_none() {
            break;
        }
    }
    let since = args.since.unwrap_or(0.0);
    lines.retain(|job| seconds(&job.submit_time).is_some_and(|at| at >= since));
    let all = lines.len();
    lines.retain(|job| job.state.is_over() && job.run_s > 0.0 && job.state != JobState::Unknown);
    let progress = ProgressDisplay::start(lines.len() as u64, args.common.json);
    let mut jobs = Vec::with_capacity(lines.len());
    for line in &lines {
        jobs.push(client.job(line.id)?.value.job);
        progress.done.fetch_add(1, Ordering::Relaxed);
    }
    let others = all - jobs.len();
    Ok((jobs, others))
}

/// Seconds since 1970.
pub(in crate::commands) fn seconds(time: &str) -> Option<f64> {
    let at: jiff::Timestamp = time.parse().ok()?;
    Some(at.as_millisecond() as f64 / 1e3)
}

/// Names of users and classes as written: their own, or numbers in order of appearance.
pub(in crate::commands) struct Aliases {
    keep: bool,
    users: BTreeMap<String, usize>,
    classes: BTreeMap<String, usize>,
}

impl Aliases {
    pub(in crate::commands) fn new(keep: bool) -> Self {
        Self { keep, users: BTreeMap::new(), classes: BTreeMap::new() }
    }

    fn user(&mut self, name: &str) -> String {
        let next = self.users.len() + 1;
        let number = *self.users.entry(name.to_owned()).or_insert(next);
        if self.keep { name.to_owned() } else { format!("u{number}") }
    }

    fn class(&mut self, name: &str) -> String {
        let next = self.classes.len() + 1;
        self.classes.entry(name.to_owned()).or_insert(next);
        self.known_class(name)
    }

    fn known_class(&self, name: &str) -> String {
        match self.classes.get(name) {
            Some(number) if !self.keep => format!("c{number}"),
            _ if self.keep => name.to_owned(),
            _ => String::new(),
        }
    }
}

fn trace_rows(
    jobs: &[JobInfo],
    classes: &[ClassInfo],
    devices: &[DeviceInfo],
    names: &mut Aliases,
) -> Vec<Vec<String>> {
    let first = jobs.iter().filter_map(|job| seconds(&job.line.submit_time));
    let first = first.fold(f64::INFINITY, f64::min);
    let memory_max = devices.iter().map(|device| device.memory_bytes).min().unwrap_or(u64::MAX);
    let number = |value: Option<f64>| value.map(|value| format!("{value:.3}")).unwrap_or_default();
    let row = |job: &JobInfo| {
        let line = &job.line;
        let class = classes.iter().find(|class| class.name == line.class);
        let duty = class.and_then(|class| class.duty).map(|duty| (duty * 100.0).clamp(0.0, 100.0));
        let memory = job.memory_peak_bytes.min(memory_max);
        // Work is counted in seconds of running alone; a job that reports nothing counts its running time.
        let duration = if job.done_s > 0.0 { job.done_s } else { line.run_s };
        let submit = seconds(&line.submit_time).unwrap_or(first) - first;
        vec![
            line.id.to_string(),
            names.user(&line.user),
            number(Some(submit)),
            (line.gpus.ceil().max(1.0) as u32).to_string(),
            number(Some(duration.max(1.0))),
            number(job.estimate_s),
            names.class(&line.class),
            "1".to_owned(),
            "0".to_owned(),
            number((memory > 0).then(|| memory as f64 / MIB)),
            number(duty),
            u8::from(job.exclusive).to_string(),
            number(job.max_slowdown),
            job.priority.to_string(),
        ]
    };
    jobs.iter().map(row).collect()
}

/// Each measured pair of classes once, with the rates of both. A direction that was not measured has the
/// believed rate, or that of the other one.
pub(in crate::commands) fn rate_rows(
    classes: &[ClassInfo],
    names: &mut Aliases,
) -> Vec<Vec<String>> {
    let pair = |one: &str, other: &str| {
        let class = classes.iter().find(|class| class.name == one)?;
        class.beside.get(other)
    };
    let mut rows = Vec::new();
    for one in classes {
        for (other, info) in &one.beside {
            let back = pair(other, &one.name);
            let is_measured =
                info.measurements > 0 || back.is_some_and(|back| back.measurements > 0);
            // Of the two directions the one with the smaller name first.
            if !is_measured || (other < &one.name && back.is_some()) {
                continue;
            }
            let side = |name: String, rate: f64| {
                [name, String::new(), "1".to_owned(), "0".to_owned(), format!("{rate:.6}")]
            };
            let own = side(names.class(&one.name), info.rate);
            let others = side(names.class(other), back.map_or(info.rate, |back| back.rate));
            rows.push(own.into_iter().chain(others).collect());
        }
    }
    rows
}

/// Whether measured pairs cover the classes of at least half of the jobs: otherwise the table would be refused.
fn knows_half(jobs: &[JobInfo], classes: &[ClassInfo]) -> bool {
    let measured = |name: &str| {
        let mentions = |class: &ClassInfo| {
            let of = |(other, info): (&String, &tandem_daemon::api::types::PairInfo)| {
                info.measurements > 0 && (class.name == name || other == name)
            };
            class.beside.iter().any(of)
        };
        classes.iter().any(mentions)
    };
    let known = jobs.iter().filter(|job| measured(&job.line.class)).count();
    known > 0 && known * 2 >= jobs.len()
}

/// The devices as a cluster on the command line; `None` if nodes differ.
fn even_cluster(devices: &[DeviceInfo]) -> Option<String> {
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for device in devices {
        *nodes.entry(device.node.as_str()).or_default() += 1;
    }
    let per_node = *nodes.values().next()?;
    let memory = devices.iter().map(|device| device.memory_bytes).min()?;
    let is_even = nodes.values().all(|&count| count == per_node);
    is_even.then(|| format!("{}x{per_node}:{}", nodes.len(), (memory as f64 / MIB) as u64))
}

/// The devices as a cluster file.
fn cluster_file(devices: &[DeviceInfo]) -> String {
    let mut nodes: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for device in devices {
        let (count, memory) = nodes.entry(device.node.as_str()).or_insert((0, u64::MAX));
        *count += 1;
        *memory = (*memory).min(device.memory_bytes);
    }
    let node = |(count, memory): &(usize, u64)| {
        format!("  {{ gpus = {count}, memory_mib = {} }},\n", memory >> 20)
    };
    let nodes: String = nodes.values().map(node).collect();
    format!("[[partition]]\nname = \"all\"\nnodes = [\n{nodes}]\n")
}

pub(in crate::commands) fn write_csv(
    out: &mut dyn io::Write,
    columns: &[&str],
    rows: &[Vec<String>],
) -> io::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(columns)?;
    for row in rows {
        csv.write_record(row)?;
    }
    csv.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_daemon::api::types::PairInfo;

    fn class(name: &str, beside: &[(&str, f64, u64)]) -> ClassInfo {
        let pair = |&(other, rate, measurements): &(&str, f64, u64)| {
            let info = PairInfo { rate, measurements, uncertainty: None, recent: Vec::new() };
            (other.to_owned(), info)
        };
        ClassInfo {
            name: name.to_owned(),
            defined_by: Some("secret.py".to_owned()),
            ignored: Vec::new(),
            duty: Some(0.5),
            duration_s: None,
            memory_bytes: None,
            steps_per_s: BTreeMap::new(),
            finished: 1,
            beside: beside.iter().map(pair).collect(),
        }
    }

    #[test]
    fn a_pair_is_written_once_with_both_directions_and_without_names() {
        let classes = [class("a", &[("b", 0.9, 3), ("c", 0.5, 0)]), class("b", &[("a", 0.8, 0)])];
        let rows = rate_rows(&classes, &mut Aliases::new(false));
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].join(","), "c1,,1,0,0.900000,c2,,1,0,0.800000");
        let named = rate_rows(&classes, &mut Aliases::new(true));
        assert_eq!((named[0][0].as_str(), named[0][5].as_str()), ("a", "b"));
    }

    #[test]
    fn nodes_of_different_sizes_are_a_cluster_file() {
        let device = |node: &str, memory_mib: u64| DeviceInfo {
            index: 0,
            name: String::new(),
            kind: String::new(),
            node: node.to_owned(),
            memory_bytes: memory_mib << 20,
            memory_used_bytes: None,
            utilization: None,
            state: "up".to_owned(),
            reason: None,
            foreign_bytes: None,
            jobs: Vec::new(),
            normalised_throughput: None,
            measured: false,
        };
        let mut devices = vec![device("a", 100), device("a", 100), device("b", 80)];
        assert_eq!(even_cluster(&devices), None);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.toml");
        std::fs::write(&path, cluster_file(&devices)).unwrap();
        let read = tandem_sim::clusters::cluster(&path.to_string_lossy()).unwrap();
        assert_eq!((read.nodes().len(), read.gpus().len()), (2, 3));
        devices.push(device("b", 100));
        assert_eq!(even_cluster(&devices).as_deref(), Some("2x2:80"));
    }

    #[test]
    fn names_are_replaced_in_order_of_appearance_unless_kept() {
        let mut hidden = Aliases::new(false);
        assert_eq!(["eve", "bob", "eve"].map(|name| hidden.user(name)), ["u1", "u2", "u1"]);
        assert_eq!(hidden.known_class("never seen"), "");
        assert_eq!(Aliases::new(true).user("eve"), "eve");
    }
}
