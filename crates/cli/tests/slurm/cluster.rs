//! A Slurm cluster for one test, and a Tandem daemon for it.

use crate::common::cluster_daemon::ClusterDaemon;
pub(crate) use crate::common::cluster_daemon::until;
use crate::common::{skipped, workspace};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of any wait, generous for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// One cluster at a time: two cores are not enough for more.
static ONE: Mutex<()> = Mutex::new(());

/// The users who submit jobs; the cluster creates them.
pub(crate) const ANN: &str = "tandem-ann";
pub(crate) const BEN: &str = "tandem-ben";

/// A cluster, which stops when it is dropped.
pub(crate) struct Cluster {
    dir: TempDir,
    pub(crate) gpus: usize,
    pub(crate) daemon: ClusterDaemon,
    ids: BTreeMap<String, (u32, u32)>,
    _alone: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Starts it; `None` if it cannot, with a line that says why.
    pub(crate) fn up(nodes: usize, gpus: usize) -> Option<Self> {
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if !rustix::process::geteuid().is_root() {
            skipped("Slurm's daemons need root");
            return None;
        }
        let found = |program: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
        };
        if let Some(missing) =
            ["slurmctld", "slurmd", "squeue", "munged"].iter().find(|one| !found(one))
        {
            skipped(&format!("{missing} is missing; scripts/slurm-cluster packages installs it"));
            return None;
        }
        // A short path, because of its sockets; readable, because jobs of both users write there.
        let dir =
            tempfile::Builder::new().prefix("tandem-slurm-").tempdir_in("/tmp").expect("a folder");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("its mode");
        let daemon = ClusterDaemon::new(dir.path());
        let mut cluster = Self { dir, gpus, daemon, ids: BTreeMap::new(), _alone: alone };
        let out = cluster.path("out");
        fs::create_dir(&out).expect("a folder for output");
        fs::set_permissions(&out, Permissions::from_mode(0o1777)).expect("its mode");
        let slurm = cluster.path("slurm");
        let program = env!("CARGO_BIN_EXE_tandem");
        let text = gpus.to_string();
        let install =
            ["slurm", "install", "--gpus", &text, "--program", program, "--report-to", RELAYS];
        cluster.ok(cluster.program(program).args(install).arg("--dir").arg(&slurm));
        let port = 17_100 + std::process::id() % 1000 * 10;
        let mut up = cluster.script();
        up.arg("up").arg("--users").args(["--nodes", &nodes.to_string(), "--gpus", &text]);
        up.args(["--port", &port.to_string()])
            .arg("--include")
            .arg(slurm.join("tandem/tandem.conf"));
        cluster.ok(up.arg("--dir").arg(&slurm));
        for user in [ANN, BEN] {
            let id = |what: &str| {
                let answer = cluster.ok(Command::new("id").args([what, user]));
                answer.trim().parse().expect("a number")
            };
            let ids = (id("-u"), id("-g"));
            cluster.ids.insert(user.to_owned(), ids);
        }
        Some(cluster)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file that jobs write.
    pub(crate) fn out(&self, name: &str) -> PathBuf {
        self.path("out").join(name)
    }

    /// A file to which jobs of both users append.
    pub(crate) fn shared_file(&self, name: &str) -> PathBuf {
        let file = self.out(name);
        if !file.exists() {
            fs::write(&file, "").expect("a file");
            fs::set_permissions(&file, Permissions::from_mode(0o666)).expect("its mode");
        }
        file
    }

    fn script(&self) -> Command {
        self.program(workspace().join("scripts/slurm-cluster"))
    }

    /// A program with an environment that leads to this cluster and this daemon only.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("SLURM_CONF", self.path("slurm/slurm.conf"))
            .env("HOME", self.dir.path())
            .env("TANDEM_DAEMON_SOCKET", self.path("tandem.sock"))
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null());
        command
    }

    /// The same, run by a user.
    pub(crate) fn by(&self, user: &str, program: &str) -> Command {
        let (uid, gid) = self.ids[user];
        let mut command = self.program(program);
        command.uid(uid).gid(gid);
        command
    }

    /// The output of a command, which must succeed.
    pub(crate) fn ok(&self, command: &mut Command) -> String {
        let output = self.output(command);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
        out
    }

    pub(crate) fn output(&self, command: &mut Command) -> Output {
        command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// Submits a job and returns its id.
    pub(crate) fn sbatch(&self, user: &str, arguments: &[&str], script: &str) -> u64 {
        let out = self.out("%j.log");
        let mut command = self.by(user, "sbatch");
        command
            .args(["--parsable", "-n1"])
            .arg("-o")
            .arg(out)
            .args(arguments)
            .args(["--wrap", script]);
        let answer = self.ok(&mut command);
        answer.trim().parse().unwrap_or_else(|error| panic!("{answer}: {error}"))
    }

    pub(crate) fn scontrol(&self, arguments: &[&str]) -> String {
        self.ok(self.program("scontrol").args(arguments))
    }

    /// All jobs that Slurm lists.
    pub(crate) fn records(&self) -> Vec<Value> {
        let answer = self.output(self.program("squeue").args(["--json", "--all"]));
        let answer: Value = serde_json::from_slice(&answer.stdout).unwrap_or_default();
        answer["jobs"].as_array().cloned().unwrap_or_default()
    }

    /// Slurm's record of a job.
    pub(crate) fn record(&self, job: u64) -> Value {
        let records = self.records();
        records.into_iter().find(|record| record["job_id"] == job).unwrap_or_default()
    }

    pub(crate) fn state(&self, job: u64) -> String {
        self.record(job)["job_state"].as_str().unwrap_or("gone").to_owned()
    }

    pub(crate) fn until_state(&self, job: u64, state: &str) {
        let is_there = until(PATIENCE, || self.state(job) == state);
        assert!(is_there, "job {job} is {}, not {state}; {}", self.record(job), self.log());
    }

    /// Waits until no job is pending or running.
    pub(crate) fn until_idle(&self, within: Duration) {
        let is_over = |record: &Value| {
            let state = record["job_state"].as_str().unwrap_or_default();
            !matches!(state, "PENDING" | "RUNNING" | "SUSPENDED" | "COMPLETING" | "CONFIGURING")
        };
        let is_idle = until(within, || {
            let records = self.records();
            !records.is_empty() && records.iter().all(is_over)
        });
        let left: Vec<String> = self
            .records()
            .iter()
            .filter(|record| !is_over(record))
            .map(|record| {
                let field = |name: &str| record[name].to_string();
                format!(
                    "{} {} {} {} {}",
                    field("job_id"),
                    field("job_state"),
                    field("state_reason"),
                    field("tres_per_node"),
                    field("required_nodes")
                )
            })
            .collect();
        assert!(is_idle, "{} jobs are left: {left:#?}\n{}", left.len(), self.log());
    }

    /// Starts the daemon.
    pub(crate) fn start_daemon(&mut self) {
        let settings = [
            "slurm.poll_s=0.5".to_owned(),
            "slurm.job_memory_mib=8000".to_owned(),
            "daemon.log=debug".to_owned(),
            format!("slurm.secret_file={}", self.path("slurm/tandem/secret").display()),
            format!("slurm.listen={RELAYS}"),
            format!("slurm.completions={}", self.path("slurm/jobcomp.log").display()),
        ];
        let tandem = self.program(env!("CARGO_BIN_EXE_tandem"));
        let listens = self.daemon.start(tandem, "slurm", &settings, PATIENCE);
        assert!(listens, "{}", self.log());
    }

    /// Kills the daemon with SIGKILL.
    pub(crate) fn kill_daemon(&mut self) {
        self.daemon.kill();
    }

    /// Starts or kills one of Slurm's daemons.
    pub(crate) fn slurm_daemon(&self, verb: &str, which: &str) {
        let slurm = self.path("slurm");
        self.ok(self.script().args([verb, which, "--dir"]).arg(slurm));
    }

    /// Tandem's jobs, by their Slurm id.
    pub(crate) fn jobs(&self) -> BTreeMap<String, Value> {
        let mut command = self.program(env!("CARGO_BIN_EXE_tandem"));
        let answer = self.ok(command.args(["queue", "--all", "--json", "--limit", "10000"]));
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        let jobs = answer["jobs"].as_array().expect("a list");
        let name = |job: &Value| job["external"].as_str().expect("a job of Slurm").to_owned();
        jobs.iter().map(|job| (name(job), job.clone())).collect()
    }

    /// The end of the daemon's log.
    pub(crate) fn log(&self) -> String {
        let log = self.daemon.log();
        let lines: Vec<&str> = log.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        self.kill_daemon();
        let slurm = self.path("slurm");
        let _ = self.script().arg("down").arg("--dir").arg(slurm).output();
    }
}

/// The address at which the daemon listens to relays.
pub(crate) const RELAYS: &str = "127.0.0.1:17008";

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One execution of a job, as the job recorded it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Execution {
    pub(crate) name: String,
    pub(crate) job: String,
    pub(crate) node: usize,
    pub(crate) gpus: Vec<usize>,
    pub(crate) begin: f64,
    pub(crate) end: f64,
}

/// A script that records where and when it ran, and exits with this code.
pub(crate) fn recording_script(file: &Path, seconds: f64, code: i32) -> String {
    let file = file.display();
    format!(
        "b=$(date +%s.%N); sleep {seconds}; \
         echo \"$SLURM_JOB_NAME ${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_}}${{SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}} \
         $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $b $(date +%s.%N)\" >> {file}; exit {code}"
    )
}

pub(crate) fn executions(file: &Path) -> Vec<Execution> {
    let written = fs::read_to_string(file).unwrap_or_default();
    let read = |line: &str| -> Option<Execution> {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, job, node, gpus, begin, end] = words[..] else { return None };
        Some(Execution {
            name: name.to_owned(),
            job: job.to_owned(),
            node: node.trim_start_matches('n').parse().ok()?,
            gpus: gpus.split(',').map(|gpu| gpu.parse().ok()).collect::<Option<_>>()?,
            begin: begin.parse().ok()?,
            end: end.parse().ok()?,
        })
    };
    let lines = written.lines();
    lines.map(|line| read(line).unwrap_or_else(|| panic!("cannot read '{line}'"))).collect()
}
