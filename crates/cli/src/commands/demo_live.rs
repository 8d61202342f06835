//! `tandem demo --live`: a few real training jobs on one core of this machine, one after the other and
//! sharing, measured.

use super::{print, remark, sample_job};
use crate::args::DemoArgs;
use crate::failure::Failure;
use crate::table;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tandem_daemon::client::{Address, Client, JobQuery};
use tandem_daemon::job::JobState;
use tandem_daemon::request::JobRequest;

/// Jobs of the queue, after a first one from which the class is learned.
const JOBS: u64 = 4;
/// A step of the sample model takes a few milliseconds; a job takes a few seconds.
const STEPS: u32 = 500;
/// Share of its time that a job sleeps, in place of waiting for its data.
const GAP_PERCENT: u32 = 50;
const POLICIES: [&str; 2] = ["fifo", "tandem:slice_s=2"];

struct MeasuredPolicy {
    policy: &'static str,
    mean_jct_s: f64,
    makespan_s: f64,
    /// Mean of the measured normalised throughput of the co-located jobs.
    throughput: Option<f64>,
}

pub(super) fn run(args: &DemoArgs) -> Result<(), Failure> {
    let job = sample_job::find()?;
    remark(
        &format!(
            "{JOBS} real training jobs on one core of this machine. Each sleeps half of its time, in place of \
             waiting for data."
        ),
        args.quiet,
    );
    let mut measured = Vec::new();
    for policy in POLICIES {
        measured.push(under(policy, &job, args.quiet)?);
    }
    if args.json {
        let policies: Vec<_> = measured
            .iter()
            .map(|measured| {
                serde_json::json!({
                    "policy": measured.policy,
                    "mean_jct_s": measured.mean_jct_s,
                    "makespan_s": measured.makespan_s,
                    "normalised_throughput": measured.throughput,
                })
            })
            .collect();
        let object = serde_json::json!({ "schema": 1, "jobs": JOBS, "policies": policies });
        return print(&object.to_string());
    }
    let row = |measured: &MeasuredPolicy| {
        vec![
            measured.policy.to_owned(),
            format!("{:.1}", measured.mean_jct_s),
            format!("{:.1}", measured.makespan_s),
            measured.throughput.map_or("-".to_owned(), |value| format!("{value:.2}")),
        ]
    };
    let header = ["policy", "mean JCT s", "makespan s", "throughput"];
    print(&table::plain(&header, measured.iter().map(row).collect()))?;
    let [alone, shared] = &measured[..] else { return Ok(()) };
    remark(
        &format!(
            "\nSharing changed the mean completion time by {:+.0} %. Throughput is the sum of the rates of \
             the co-located jobs,\nmeasured from their steps; one job alone is 1.\n\n\
             Next, on this machine:\n  tandem daemon start\n  tandem submit -- tandem-train --steps 2000 --gap 50\n  \
             tandem queue; tandem gpus; tandem top",
            (shared.mean_jct_s / alone.mean_jct_s - 1.0) * 100.0
        ),
        args.quiet,
    );
    Ok(())
}

/// A daemon that ends with the demo.
pub(super) struct Daemon {
    child: Child,
    pub(super) folder: tempfile::TempDir,
}

impl Daemon {
    /// `learned` is the state folder of a daemon that has ended, from whose knowledge this one goes on.
    pub(super) fn start(
        policy: &str,
        devices: u32,
        learned: Option<&Path>,
    ) -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        if let Some(learned) = learned {
            copy_folder(learned, &folder.path().join("state"))?;
        }
        let child = Command::new(std::env::current_exe()?)
            .args([
                "daemon",
                "--provider",
                "cpu",
                "--policy",
                policy,
                "--devices",
                &devices.to_string(),
            ])
            .arg("--state")
            .arg(folder.path().join("state"))
            .arg("--socket")
            .arg(folder.path().join("daemon.sock"))
            .args(["--set", "learning.settle_s=1", "--set", "learning.window_s=0.5"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self { child, folder })
    }

    /// Waits until the daemon answers.
    pub(super) fn client(&mut self) -> Result<Client, Failure> {
        let mut client = Client::new(Address::Unix(self.folder.path().join("daemon.sock")), None)?;
        // A machine with busy cores and disk takes this long at times.
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            match client.info() {
                Ok(_) => return Ok(client),
                Err(error) if Instant::now() > patience => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(Failure::failed(format!("the daemon of the demo ended: {status}")));
            }
        }
    }

    /// Cancels what runs and stops the daemon. Its folder stays until this is dropped.
    pub(super) fn end(&mut self) {
        // Jobs outlive their daemon, but must not outlive the demo.
        let socket = self.folder.path().join("daemon.sock");
        if let Ok(mut client) = Client::new(Address::Unix(socket), None)
            && let Ok(page) = client.jobs(&JobQuery::default())
        {
            let live: Vec<u64> =
                page.jobs.iter().filter(|job| !job.state.is_over()).map(|job| job.id).collect();
            for &id in &live {
                let _ = client.cancel(id);
            }
            // The daemon has to see them end.
            let is_over = |client: &mut Client, id: u64| {
                client.job(id).map_or(true, |job| job.job.line.state.is_over())
            };
            let patience = Instant::now() + Duration::from_secs(20);
            while !live.iter().all(|&id| is_over(&mut client, id)) && Instant::now() < patience {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.end();
    }
}

fn copy_folder(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    std::fs::set_permissions(to, std::fs::metadata(from)?.permissions())?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_folder(&entry.path(), &to.join(entry.file_name()))?;
        } else if kind.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn under(policy: &'static str, job: &Path, quiet: bool) -> Result<MeasuredPolicy, Failure> {
    remark(&format!("under {policy} ..."), quiet);
    let mut daemon = Daemon::start(policy, 1, None)?;
    let mut client = daemon.client()?;
    // The first job of a class runs alone, and the daemon learns its memory and speed.
    let first = submit(&mut client, job, daemon.folder.path(), STEPS / 2)?;
    let began = Instant::now();
    while !client.job(first)?.job.line.state.is_over() {
        std::thread::sleep(Duration::from_millis(100));
    }
    let warm_up = began.elapsed();
    let began = Instant::now();
    let mut waiting = Vec::new();
    for _ in 0..JOBS {
        waiting.push(submit(&mut client, job, daemon.folder.path(), STEPS)?);
    }
    let mut completion = Vec::new();
    let mut throughput = Vec::new();
    let limit = warm_up * u32::try_from(JOBS).unwrap_or(u32::MAX) * 10 + Duration::from_secs(60);
    while !waiting.is_empty() {
        if began.elapsed() > limit {
            return Err(Failure::failed(
                "the jobs of the demo take far longer than one of them alone",
            ));
        }
        std::thread::sleep(Duration::from_millis(100));
        let mut left = Vec::new();
        for id in waiting {
            let state = client.job(id)?.job.line.state;
            match state {
                JobState::Completed => completion.push(began.elapsed().as_secs_f64()),
                _ if state.is_over() => {
                    return Err(Failure::failed(format!(
                        "job {id} of the demo is {}",
                        state.name()
                    )));
                }
                _ => left.push(id),
            }
        }
        waiting = left;
        let devices = client.devices()?;
        let device = devices.devices.first().filter(|device| device.measured);
        if let Some(now) = device.and_then(|device| device.normalised_throughput) {
            throughput.push(now);
        }
    }
    Ok(MeasuredPolicy {
        policy: policy.split(':').next().unwrap_or(policy),
        mean_jct_s: completion.iter().sum::<f64>() / completion.len() as f64,
        makespan_s: completion.last().copied().unwrap_or(0.0),
        throughput: (!throughput.is_empty())
            .then(|| throughput.iter().sum::<f64>() / throughput.len() as f64),
    })
}

fn submit(client: &mut Client, job: &Path, folder: &Path, steps: u32) -> Result<u64, Failure> {
    let text = |argument: &str| argument.to_owned();
    let request = JobRequest {
        command: vec![
            job.to_string_lossy().into_owned(),
            text("--steps"),
            steps.to_string(),
            text("--gap"),
            GAP_PERCENT.to_string(),
        ],
        class: Some(text("demo")),
        dir: folder.to_owned(),
        env: std::env::vars().collect(),
        ..JobRequest::default()
    };
    let ids = client.submit(&request)?;
    ids.ids.first().copied().ok_or_else(|| Failure::failed("the daemon returned no job id"))
}
