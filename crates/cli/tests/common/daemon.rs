//! A real daemon in a folder of its own, with fake GPUs unless told otherwise.

use super::processes::{all_pids, end_processes_of, pid, processes_of};
use super::server::isolated;
use super::{Ran, finish, folder};
use rustix::process::{Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tandem_daemon::api::types::JobInfo;
use tandem_daemon::client::{Address, Client, JobQuery};
use tandem_daemon::request::JobRequest;
use tempfile::TempDir;

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How a daemon is started.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Arguments after `tandem daemon` besides those of state and socket.
    pub(crate) args: Vec<String>,
    /// Variables.
    pub(crate) env: Vec<(String, String)>,
    /// A command that the daemon is an argument of.
    pub(crate) through: Vec<String>,
}

impl Options {
    /// With so many fake GPUs.
    pub(crate) fn fake(gpus: u32) -> Self {
        Self::with(&["--fake-gpus", &gpus.to_string()])
    }

    pub(crate) fn with(args: &[&str]) -> Self {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Self { args, env: Vec::new(), through: Vec::new() }
    }

    pub(crate) fn and(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A daemon, its state and its socket. Dropped, it goes and takes its jobs with it.
pub(crate) struct Daemon {
    pub(crate) dir: TempDir,
    pub(crate) state: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) child: Child,
    pub(crate) options: Options,
}

impl Daemon {
    /// Starts one and waits until it listens.
    pub(crate) fn start(options: Options) -> Self {
        let mut daemon = Self::launch(options);
        assert!(daemon.is_ready(), "the daemon does not start: {}", daemon.log());
        daemon
    }

    /// Starts one that may die at any time.
    pub(crate) fn launch(options: Options) -> Self {
        let dir = folder();
        let (state, socket) = (dir.path().join("state"), dir.path().join("t.sock"));
        let child = spawn(dir.path(), &state, &socket, &options);
        Self { dir, state, socket, child, options }
    }

    /// Starts the next one on the same state, once this one is gone, and waits until it listens.
    pub(crate) fn restart(&mut self) {
        self.relaunch();
        assert!(self.is_ready(), "the daemon does not start again: {}", self.log());
    }

    /// Starts the next one on the same state; it may die at any time.
    pub(crate) fn relaunch(&mut self) {
        self.kill();
        self.child = spawn(self.dir.path(), &self.state, &self.socket, &self.options);
    }

    /// Waits until it answers; `false` if it dies first.
    pub(crate) fn is_ready(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.ended().is_some() {
                return false;
            }
            if self.socket.exists() && self.client().info().is_ok() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    /// How it ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Waits until it has ended by itself.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        until("the daemon ends", || {
            ended = self.ended();
            ended.is_some()
        });
        ended.expect("it has ended")
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to stop, and waits.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(status.success(), "{status:?} {:?}: {}", status.signal(), self.log());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(pid(self.child.id()), signal).expect("the daemon takes signals");
    }

    /// Runs a command that talks to it.
    pub(crate) fn tandem(&self, args: &[&str]) -> Ran {
        finish(&mut isolated(self.dir.path(), args, &self.socket))
    }

    /// Runs a command that talks to it and insists on success.
    pub(crate) fn ok(&self, args: &[&str]) -> Ran {
        let ran = self.tandem(args);
        assert_eq!(ran.code, Some(0), "tandem {args:?}: {}\n{}", ran.stderr, self.log());
        ran
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(Address::Unix(self.socket.clone()), None).expect("a client can be made")
    }

    /// A job that runs a line of shell in the daemon's folder.
    pub(crate) fn shell(&self, line: &str) -> JobRequest {
        JobRequest {
            command: ["/bin/sh", "-c", line].map(str::to_owned).to_vec(),
            env: [("PATH".to_owned(), std::env::var("PATH").unwrap_or_default())].into(),
            dir: self.dir.path().to_owned(),
            ..JobRequest::default()
        }
    }

    /// Hands a job in.
    pub(crate) fn submit(&self, request: &JobRequest) -> u64 {
        self.client().submit(request).expect("the job is accepted").value.ids[0]
    }

    pub(crate) fn job(&self, id: u64) -> JobInfo {
        self.client().job(id).expect("the job is there").value.job
    }

    /// Waits until a job is in a state of this name.
    pub(crate) fn await_state(&self, id: u64, state: &str) -> JobInfo {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let job = self.job(id);
            if job.line.state.name() == state {
                return job;
            }
            let is_lost = job.line.state.is_over() || Instant::now() > deadline;
            assert!(!is_lost, "job {id} is not {state}: {job:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the process of a job runs.
    pub(crate) fn await_pid(&self, id: u64) -> u32 {
        let mut pid = None;
        until("a job runs", || {
            pid = self.job(id).pid;
            pid.is_some()
        });
        pid.expect("it has one")
    }

    /// All jobs.
    pub(crate) fn jobs(&self) -> Vec<tandem_daemon::api::types::JobLine> {
        let query = JobQuery { limit: Some(1000), ..JobQuery::default() };
        self.client().jobs(&query).expect("jobs can be listed").value.jobs
    }

    /// What it wrote to standard error, in all its lives.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("daemon.log")).unwrap_or_default()
    }

    /// Supervisors and processes of jobs that are there.
    pub(crate) fn processes(&self) -> Vec<u32> {
        processes_of(self.dir.path(), Some(self.child.id()))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        end_processes_of(self.dir.path());
        remove_groups(&self.state);
    }
}

/// Removes the control groups of runs whose supervisors were killed, and that no daemon will find.
fn remove_groups(state: &Path) {
    for run in std::fs::read_dir(state.join("runs")).into_iter().flatten().flatten() {
        let spec = std::fs::read(run.path().join("spec.json")).unwrap_or_default();
        let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap_or_default();
        for part in ["cpu", "memory"] {
            if let Some(dir) = spec["group"][part]["dir"].as_str() {
                let _ = std::fs::remove_dir(dir);
            }
        }
    }
}

fn spawn(dir: &Path, state: &Path, socket: &Path, options: &Options) -> Child {
    let log = OpenOptions::new().create(true).append(true).open(dir.join("daemon.log"));
    let log: File = log.expect("a log can be written");
    let mut daemon = isolated(dir, &["daemon"], socket);
    daemon.arg("--state").arg(state).arg("--socket").arg(socket).args(&options.args);
    let mut command = match options.through.split_first() {
        None => daemon,
        Some((program, arguments)) => {
            let mut command = std::process::Command::new(program);
            command.args(arguments).arg(daemon.get_program()).args(daemon.get_args());
            for (name, value) in daemon.get_envs() {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
            command.current_dir(dir);
            command
        }
    };
    command.envs(options.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
    command.spawn().expect("the daemon can be started")
}

/// Children of a process that have ended and were not waited for.
pub(crate) fn zombies_of(parent: u32) -> Vec<u32> {
    let is_zombie = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| {
            rest.starts_with('Z') && rest.split(' ').nth(1) == Some(&parent.to_string())
        })
    };
    all_pids().filter(is_zombie).collect()
}

/// Waits for something.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
