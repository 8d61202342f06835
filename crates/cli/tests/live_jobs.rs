//! Real training jobs under a real daemon on the cores of this machine: they share where that pays, part
//! where it does not, take turns, and compute the same whatever they are told.

#![allow(clippy::unwrap_used)]

mod common;

use common::processes::end_processes_of;
use common::sample_job;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tandem_daemon::api::types::{DeviceInfo, JobInfo};
use tandem_daemon::client::{Address, Client, JobQuery};
use tandem_daemon::job::JobState;
use tandem_daemon::request::JobRequest;

const TANDEM: &str = env!("CARGO_BIN_EXE_tandem");

/// Speeds are measured on one core: two of these tests at a time would measure each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Daemon {
    child: Child,
    folder: tempfile::TempDir,
    client: Client,
}

impl Daemon {
    /// On one core, with quick slices and short measurements.
    fn start(policy: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("d.sock");
        let child = Command::new(TANDEM)
            .args(["daemon", "--provider", "cpu", "--devices", "1", "--policy", policy])
            .arg("--state")
            .arg(folder.path().join("state"))
            .arg("--socket")
            .arg(&socket)
            .args(["--set", "learning.settle_s=1", "--set", "learning.window_s=0.5"])
            .args(["--set", "learning.window_steps=20", "--set", "learning.sample_s=0.2"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let client = Client::new(Address::Unix(socket), None).unwrap();
        let mut daemon = Self { child, folder, client };
        daemon.wait_until("the daemon answers", |daemon| daemon.client.info().is_ok());
        daemon
    }

    fn submit(&mut self, class: &str, arguments: &[&str]) -> u64 {
        let command: Vec<&str> =
            [sample_job()].into_iter().chain(arguments.iter().copied()).collect();
        let request = self.request(class, &command);
        self.client.submit(&request).unwrap().ids[0]
    }

    fn request(&self, class: &str, command: &[&str]) -> JobRequest {
        JobRequest {
            command: command.iter().map(|&argument| argument.to_owned()).collect(),
            class: Some(class.to_owned()),
            dir: self.folder.path().to_owned(),
            env: std::env::vars().collect(),
            ..JobRequest::default()
        }
    }

    fn job(&mut self, id: u64) -> JobInfo {
        self.client.job(id).unwrap().job.clone()
    }

    fn state(&mut self, id: u64) -> JobState {
        self.job(id).line.state
    }

    fn device(&mut self) -> DeviceInfo {
        self.client.devices().unwrap().devices[0].clone()
    }

    fn wait_until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let patience = Instant::now() + Duration::from_secs(120);
        while !holds(self) {
            assert!(Instant::now() < patience, "waited two minutes in vain until {what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn wait_for(&mut self, id: u64) -> JobInfo {
        self.wait_until("the job is over", |daemon| daemon.state(id).is_over());
        self.job(id)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for id in 1..=20 {
            let _ = self.client.cancel(id);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        end_processes_of(self.folder.path());
    }
}

#[test]
fn jobs_with_idle_gaps_share_a_core_and_gain() {
    let _alone = alone();
    let mut daemon = Daemon::start("tandem:slice_s=1");
    let gaps = ["--gap", "50", "--steps"];
    // The first of its class runs alone: what it shows is known of the others.
    let first = daemon.submit("gaps", &[&gaps[..], &["200"]].concat());
    assert_eq!(daemon.wait_for(first).line.state, JobState::Completed);
    let pair = [0, 1].map(|_| daemon.submit("gaps", &[&gaps[..], &["100000"]].concat()));
    let mut most: f64 = 0.0;
    daemon.wait_until("two jobs share at a profit, as the daemon measured it", |daemon| {
        let device = daemon.device();
        if device.jobs.len() == 2 && device.measured {
            most = most.max(device.normalised_throughput.unwrap());
        }
        most >= 1.25
    });
    println!("two jobs with idle gaps on one core: {most:.2} times one alone");
    let info = daemon.job(pair[1]);
    assert_eq!(info.line.beside, [pair[0]]);
    assert!(info.slowdown_predicted.is_some() && info.slowdown_measured.is_some(), "{info:?}");
    assert!(info.normalised_throughput.is_some_and(|together| together > 1.0), "{info:?}");
    assert!(["advisory", "cgroup"].contains(&info.enforcement.as_str()), "{info:?}");
}

/// 25 steps per second: mostly idle, until a file named `busy` exists; from then on each step needs the core all
/// the time.
const PHASES: &str = r#"
import json, os, socket, sys, time
sock = socket.socket(socket.AF_UNIX)
sock.connect(os.environ["TANDEM_SOCK"])
def say(**line):
    sock.send((json.dumps(line) + "\n").encode())
say(op="hello", v=1, pid=os.getpid(), caps=[])
for step in range(int(sys.argv[1])):
    work = 0.04 if os.path.exists("busy") else 0.008
    began = time.process_time()
    while time.process_time() - began < work:
        pass
    time.sleep(0.04 - work)
    say(op="step", n=step + 1)
say(op="bye", done=True)
"#;

#[test]
fn jobs_that_do_not_gain_any_more_are_separated_once_that_is_known() {
    let _alone = alone();
    let mut daemon = Daemon::start("tandem:slice_s=1");
    std::fs::write(daemon.folder.path().join("phases.py"), PHASES).unwrap();
    let mut submit = |steps: &str| {
        let request = daemon.request("phases", &["python3", "phases.py", steps]);
        daemon.client.submit(&request).unwrap().ids[0]
    };
    let first = submit("100");
    let pair = [submit("1000000"), submit("1000000")];
    assert_eq!(daemon.wait_for(first).line.state, JobState::Completed);
    daemon.wait_until("they share", |daemon| daemon.device().jobs.len() == 2);
    // Now both want the whole core all the time: together they can only lose.
    std::fs::write(daemon.folder.path().join("busy"), "").unwrap();
    daemon.wait_until("one of them has left", |daemon| {
        let states = pair.map(|id| daemon.state(id));
        states.contains(&JobState::Running) && states.contains(&JobState::Paused)
    });
    let classes = daemon.client.classes().unwrap();
    let learned = classes.classes.iter().find(|class| class.name == "phases").unwrap();
    assert!(learned.beside["phases"].measurements > 0, "{learned:?}");
}

/// Both want the whole core all the time, and are known to.
#[test]
fn jobs_that_are_known_to_lose_together_take_turns() {
    let _alone = alone();
    let mut daemon = Daemon::start("tandem:slice_s=1");
    let busy = ["--model", "memory", "--steps"];
    let first = daemon.submit("busy", &[&busy[..], &["200"]].concat());
    assert_eq!(daemon.wait_for(first).line.state, JobState::Completed);
    let pair = [0, 1].map(|_| daemon.submit("busy", &[&busy[..], &["1000"]].concat()));
    let mut shared = false;
    daemon.wait_until("both are over", |daemon| {
        shared |= daemon.device().jobs.len() > 1;
        pair.iter().all(|&id| daemon.state(id).is_over())
    });
    assert!(!shared);
}

#[test]
fn a_change_of_sub_batches_in_mid_run_leaves_the_losses_as_they_are() {
    let _alone = alone();
    let mut daemon = Daemon::start("fifo");
    let steps = "400";
    let plain = daemon.submit("plain", &["--steps", steps, "--losses", "plain.csv"]);
    assert_eq!(daemon.wait_for(plain).line.state, JobState::Completed);
    let changed = daemon.submit("changed", &["--steps", steps, "--losses", "changed.csv"]);
    daemon.wait_until("it speaks", |daemon| daemon.job(changed).caps.contains(&"accum".to_owned()));
    daemon.client.set_accum(changed, Some(4)).unwrap();
    let losses = daemon.folder.path().join("changed.csv");
    daemon.wait_until("it computes in four parts", |_| parts(&losses).contains(&4));
    daemon.client.set_accum(changed, Some(1)).unwrap();
    assert_eq!(daemon.wait_for(changed).line.state, JobState::Completed);
    let parts = parts(&losses);
    assert!(parts.contains(&1) && parts.contains(&4), "{parts:?}");
    let [plain, changed] = ["plain.csv", "changed.csv"].map(|name| read(&daemon, name));
    assert_eq!(plain.len(), 400);
    let difference = plain.iter().zip(&changed).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("sub-batches 1, 4, 1 in mid-run: losses differ by at most {difference:e}");
    assert!(plain.len() == changed.len() && difference <= 1e-5, "{difference:e}");
}

fn rows(file: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let cells = |line: &str| line.split(',').map(str::to_owned).collect();
    text.lines().skip(1).map(cells).collect()
}

fn parts(file: &Path) -> Vec<u32> {
    rows(file).iter().filter_map(|row| row.get(2)?.parse().ok()).collect()
}

fn read(daemon: &Daemon, name: &str) -> Vec<f64> {
    rows(&daemon.folder.path().join(name)).iter().map(|row| row[1].parse().unwrap()).collect()
}

#[test]
fn three_jobs_take_turns_on_one_core_and_none_is_lost() {
    let _alone = alone();
    // Everybody gets a second before anybody gets a second one.
    let mut daemon = Daemon::start("tiresias:threshold_gpu_s=1,interval_s=1");
    // Several seconds of work, also on a quick core.
    let steps = 1000;
    let files: Vec<PathBuf> =
        (0..3).map(|job| daemon.folder.path().join(format!("{job}.csv"))).collect();
    let jobs: Vec<u64> = files
        .iter()
        .map(|file| {
            let (steps, file) = (steps.to_string(), file.to_string_lossy().into_owned());
            daemon.submit("turns", &["--steps", &steps, "--losses", &file])
        })
        .collect();
    let mut was_paused = [false; 3];
    let mut most_at_a_time = 0;
    daemon.wait_until("all are over", |daemon| {
        // One answer shows one moment.
        let page = daemon.client.jobs(&JobQuery::default()).unwrap().jobs.clone();
        let running = page.iter().filter(|job| job.state == JobState::Running).count();
        most_at_a_time = most_at_a_time.max(running);
        for (index, job) in page.iter().enumerate() {
            if job.state == JobState::Paused {
                was_paused[index] |= daemon.job(job.id).pid.is_some_and(stands_still);
            }
            let done = rows(&files[index]).len();
            assert!(
                job.state != JobState::Completed || done == steps,
                "job {index} is said to be completed after {done} of {steps} steps"
            );
        }
        page.iter().all(|job| job.state.is_over())
    });
    assert_eq!(most_at_a_time, 1, "turns are taken one at a time");
    assert!(was_paused[0] && was_paused[1], "{was_paused:?}: who came first made way");
    for (&id, file) in jobs.iter().zip(&files) {
        let job = daemon.job(id);
        assert_eq!((job.line.state, job.runs), (JobState::Completed, 1), "job {id}");
        assert_eq!(rows(file).len(), steps, "job {id}");
    }
}

/// A list is read from the store and completed by the scheduler; a job that ends in between is not shown
/// as running beside the one that came in its place.
#[test]
fn one_list_shows_one_moment() {
    let _alone = alone();
    let mut daemon = Daemon::start("fifo");
    let tasks = 60;
    let array = Some(format!("1-{tasks}"));
    let request = JobRequest { array, ..daemon.request("short", &["true"]) };
    daemon.client.submit(&request).unwrap();
    let patience = Instant::now() + Duration::from_secs(120);
    loop {
        let page = daemon.client.jobs(&JobQuery::default()).unwrap().jobs.clone();
        let is_placed = |state: JobState| matches!(state, JobState::Running | JobState::Completing);
        let placed: Vec<_> = page.iter().filter(|job| is_placed(job.state)).collect();
        assert!(placed.len() <= 1, "{placed:?}");
        assert_eq!(page.len(), tasks);
        assert!(page.is_sorted_by_key(|job| job.id));
        if page.iter().all(|job| job.state == JobState::Completed) {
            break;
        }
        assert!(Instant::now() < patience, "waited two minutes in vain: {placed:?}");
    }
}

/// Whether every thread of a process is stopped, as the system says.
fn stands_still(pid: u32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        state == Some('T')
    })
}
