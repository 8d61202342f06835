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
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of any wait, generous for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// One cluster at a time: two cores are not enough for more.
static ONE: Mutex<()> = Mutex::new(());

/// The users who submit jobs; the cluster creates them.
pub(crate) const ANN: &str = "tandem-ann";
pub(crate) const BEN: &str = "tandem-ben";

/// The versions of Slurm that tests run on: the machine's own, which is 22.05 on Debian 12, and later ones.
pub(crate) const VERSIONS: [Option<&str>; 3] = [None, Some("24.11"), Some("26.05")];

/// What a cluster consists of.
#[derive(Clone, Debug)]
pub(crate) struct Shape<'a> {
    /// Another version than the machine's own.
    pub(crate) version: Option<&'a str>,
    pub(crate) nodes: usize,
    pub(crate) gpus: usize,
    /// The partition that Tandem manages.
    pub(crate) partition: &'a str,
    /// More lines of slurm.conf.
    pub(crate) lines: &'a str,
    /// Licenses of the site.
    pub(crate) licenses: &'a str,
    /// Jobs report to the daemon.
    pub(crate) reports: bool,
}

impl Default for Shape<'_> {
    fn default() -> Self {
        let (partition, lines, licenses) = ("tandem", "", "");
        Self { version: None, nodes: 2, gpus: 2, partition, lines, licenses, reports: true }
    }
}

/// A cluster, which stops when it is dropped.
pub(crate) struct Cluster {
    dir: TempDir,
    pub(crate) gpus: usize,
    pub(crate) daemon: ClusterDaemon,
    partition: String,
    reports: bool,
    /// The process that holds the namespace of another version.
    namespace: Option<u32>,
    ids: BTreeMap<String, (u32, u32)>,
    _alone: MutexGuard<'static, ()>,
}

impl Cluster {
    /// Starts it with the machine's own Slurm; `None` if it cannot, with a line that says why.
    pub(crate) fn up(nodes: usize, gpus: usize) -> Option<Self> {
        Self::shaped(&Shape { nodes, gpus, ..Shape::default() })
    }

    /// Starts it; `None` if it cannot, with a line that says why.
    pub(crate) fn shaped(shape: &Shape) -> Option<Self> {
        let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(why) = can_run(shape.version) {
            skipped(&why);
            return None;
        }
        // A short path, because of its sockets; readable, because jobs of both users write there.
        let dir =
            tempfile::Builder::new().prefix("tandem-slurm-").tempdir_in("/tmp").expect("a folder");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("its mode");
        let mut cluster = Self {
            gpus: shape.gpus,
            daemon: ClusterDaemon::new(dir.path()),
            partition: shape.partition.to_owned(),
            reports: shape.reports,
            namespace: None,
            ids: BTreeMap::new(),
            _alone: alone,
            dir,
        };
        let out = cluster.path("out");
        fs::create_dir(&out).expect("a folder for output");
        fs::set_permissions(&out, Permissions::from_mode(0o1777)).expect("its mode");
        cluster.install(shape);
        cluster.start_slurm(shape);
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

    /// Writes Tandem's files for Slurm.
    fn install(&self, shape: &Shape) {
        let program = env!("CARGO_BIN_EXE_tandem");
        let mut install = self.program(program);
        install.args(["slurm", "install", "--program", program]);
        install.args(["--gpus", &shape.gpus.to_string(), "--partition", shape.partition]);
        if shape.reports {
            install.args(["--report-to", RELAYS.as_str()]);
        }
        self.ok(install.arg("--dir").arg(self.path("slurm")));
    }

    fn start_slurm(&mut self, shape: &Shape) {
        let slurm = self.path("slurm");
        let mut lines = String::new();
        let ours = fs::read_to_string(slurm.join("tandem/tandem.conf")).expect("it is installed");
        for line in ours.lines().chain(shape.lines.lines()) {
            // A second line of licenses would replace the first.
            let more = if line.starts_with("Licenses=") && !shape.licenses.is_empty() {
                format!(",{}", shape.licenses)
            } else {
                String::new()
            };
            lines += &format!("{line}{more}\n");
        }
        if !shape.licenses.is_empty() && !lines.contains("Licenses=") {
            lines += &format!("Licenses={}\n", shape.licenses);
        }
        let include = self.path("lines.conf");
        fs::write(&include, lines).expect("a file");
        let port = 17_100 + std::process::id() % 1000 * 10;
        let mut up = self.script();
        up.args(["up", "--users", "--port", &port.to_string()]);
        up.args(["--nodes", &shape.nodes.to_string(), "--gpus", &shape.gpus.to_string()]);
        up.args(shape.version.iter().flat_map(|version| ["--version", version]));
        self.ok(up.arg("--include").arg(include).arg("--dir").arg(&slurm));
        self.namespace = fs::read_to_string(slurm.join("namespace.pid"))
            .ok()
            .map(|pid| pid.trim().parse().expect("a process"));
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

    /// The script runs outside of the namespace, which it makes.
    fn script(&self) -> Command {
        self.isolated(Command::new(workspace().join("scripts/slurm-cluster")))
    }

    /// An environment that leads to this cluster and this daemon only.
    fn isolated(&self, mut command: Command) -> Command {
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("SLURM_CONF", self.path("slurm/slurm.conf"))
            .env("HOME", self.dir.path())
            .env("TANDEM_DAEMON_SOCKET", self.path("tandem.sock"))
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null());
        // Where the programs of other versions are kept.
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        if let Some(cache) = cache.or(home) {
            command.env("XDG_CACHE_HOME", cache);
        }
        command
    }

    /// A program of this cluster.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Command {
        self.isolated(self.inside(program, None))
    }

    /// The same, run by a user.
    pub(crate) fn by(&self, user: &str, program: &str) -> Command {
        self.isolated(self.inside(program, Some(self.ids[user])))
    }

    /// A program, where the programs of this version are.
    fn inside(&self, program: impl AsRef<OsStr>, ids: Option<(u32, u32)>) -> Command {
        let Some(holder) = self.namespace else {
            let mut command = Command::new(program);
            if let Some((uid, gid)) = ids {
                command.uid(uid).gid(gid);
            }
            return command;
        };
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &holder.to_string()]);
        if let Some((uid, gid)) = ids {
            command.args(["--setuid", &uid.to_string(), "--setgid", &gid.to_string()]);
        }
        command.arg("--").arg(program);
        command
    }

    /// The user's and group's ids of a user.
    pub(crate) fn ids(&self, user: &str) -> (u32, u32) {
        self.ids[user]
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
        self.start_daemon_with(&[]);
    }

    /// The same, with more settings.
    pub(crate) fn start_daemon_with(&mut self, more: &[&str]) {
        let mut settings = vec![
            "slurm.poll_s=0.5".to_owned(),
            "slurm.job_memory_mib=8000".to_owned(),
            "daemon.log=debug".to_owned(),
            format!("slurm.partition={}", self.partition),
            format!("slurm.secret_file={}", self.path("slurm/tandem/secret").display()),
            format!("slurm.completions={}", self.path("slurm/jobcomp.log").display()),
        ];
        if self.reports {
            settings.push(format!("slurm.listen={}", *RELAYS));
        }
        settings.extend(more.iter().map(|&setting| setting.to_owned()));
        let tandem = self.program(env!("CARGO_BIN_EXE_tandem"));
        // Before it is ready, jobs are left to Slurm.
        let count = |cluster: &Self| cluster.daemon.log().matches("tandem: ready").count();
        let before = count(self);
        let listens = self.daemon.start(tandem, "slurm", &settings, PATIENCE);
        let is_ready = listens && until(PATIENCE, || count(self) > before);
        assert!(is_ready, "{}", self.log());
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

/// Why a version of Slurm cannot be run here.
fn can_run(version: Option<&str>) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("Slurm's daemons need root".to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        |program: &str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if let Some(version) = version {
        let script = workspace().join("scripts/slurm-cluster");
        let output = Command::new(script).args(["packages", "--version", version]).output();
        let output = output.expect("the script can be run");
        let message = text(&output.stderr);
        let why = message.lines().last().unwrap_or("it cannot be had");
        return if output.status.success() { Ok(()) } else { Err(why.to_owned()) };
    }
    match ["slurmctld", "slurmd", "squeue", "munged"].iter().find(|one| !found(one)) {
        None => Ok(()),
        Some(missing) => {
            Err(format!("{missing} is missing; scripts/slurm-cluster packages installs it"))
        }
    }
}

/// The address at which the daemon listens to relays.
pub(crate) static RELAYS: LazyLock<String> =
    LazyLock::new(|| format!("127.0.0.1:{}", 28_000 + std::process::id() % 1000));

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
