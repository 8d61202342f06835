//! A daemon of its own for a test, and people who ask it things, good and bad.

// Every test file is a crate of its own and uses only part of this.
#![allow(dead_code)]

use crate::common::processes::end_processes_of;
use serde_json::{Value, json};
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tandem_backends::Owner;
use tandem_backends::local::as_user;
use tempfile::TempDir;

/// Root, and whoever runs the tests otherwise.
pub(crate) const ROOT: Owner = Owner { uid: 0, gid: 0 };
/// Two people; numbers that exist on every Linux.
pub(crate) const ANN: Owner = Owner { uid: 65_534, gid: 65_534 };
pub(crate) const BOB: Owner = Owner { uid: 1, gid: 1 };

/// Whether there can be two people in a test. Says so if not.
pub(crate) fn two_people() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can be two people");
    }
    root
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub(crate) struct Daemon {
    pub(crate) dir: TempDir,
    pub(crate) child: Child,
}

/// A folder that everybody may look into.
pub(crate) fn open_folder() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("it is ours");
    dir
}

/// A folder of one user, and a path in it.
pub(crate) fn home(dir: &Path, name: &str, owner: Owner) -> PathBuf {
    let home = dir.join(name);
    std::fs::create_dir(&home).expect("a folder can be made");
    std::os::unix::fs::chown(&home, Some(owner.uid), Some(owner.gid)).expect("root may do that");
    std::fs::set_permissions(&home, Permissions::from_mode(0o700)).expect("root may do that");
    home
}

/// The program in a place where everybody may run it. Another process copies it: a file that this one has open
/// for writing, when another thread starts a program, could not be run ("text file busy").
pub(crate) fn program(dir: &Path) -> PathBuf {
    let to = dir.join("tandem");
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_tandem")).arg(&to).status();
    assert!(copied.is_ok_and(|status| status.success()), "the program can be copied");
    to
}

/// A daemon with fake GPUs that has not been started.
pub(crate) fn command(program: &Path, dir: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", dir);
    command.args(["daemon", "--fake-gpus", "4", "--set", "daemon.kill_grace_s=1", "--state"]);
    command.arg(dir.join("state")).arg("--socket").arg(dir.join("run/daemon.sock"));
    command.args(options).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

impl Daemon {
    pub(crate) fn start(options: &[&str]) -> Self {
        Self::start_in(open_folder(), options, None)
    }

    /// One that may not have more than so many files open.
    pub(crate) fn start_with_files(files: u32) -> Self {
        let dir = open_folder();
        let plain = command(Path::new(env!("CARGO_BIN_EXE_tandem")), dir.path(), &[]);
        let mut limited = Command::new("/bin/sh");
        limited.args(["-c", &format!("ulimit -Sn {files}; exec \"$0\" \"$@\"")]);
        limited.arg(plain.get_program()).args(plain.get_args()).stdin(Stdio::null());
        Self::spawn(dir, limited)
    }

    /// Starts one as somebody; waits until it answers.
    pub(crate) fn start_in(dir: TempDir, options: &[&str], owner: Option<Owner>) -> Self {
        let program = match owner {
            Some(_) => program(dir.path()),
            None => PathBuf::from(env!("CARGO_BIN_EXE_tandem")),
        };
        let mut command = command(&program, dir.path(), options);
        command.env("ROOTS_SECRET", "hidden");
        if let Some(owner) = owner {
            command.uid(owner.uid).gid(owner.gid);
        }
        Self::spawn(dir, command)
    }

    /// Starts a command as a daemon; waits until it answers.
    pub(crate) fn spawn(dir: TempDir, mut command: Command) -> Self {
        let log = std::fs::File::create(dir.path().join("log")).expect("a file can be made");
        let child = command.stderr(log).spawn().expect("the daemon can be started");
        let daemon = Self { dir, child };
        daemon.await_socket();
        daemon
    }

    fn await_socket(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while UnixStream::connect(self.socket()).is_err() {
            assert!(Instant::now() < deadline, "not up: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// `kill -9`, and the next daemon on the same state; waits until it answers.
    pub(crate) fn kill_and_restart(&mut self, options: &[&str]) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut next = command(Path::new(env!("CARGO_BIN_EXE_tandem")), self.dir.path(), options);
        let log = std::fs::OpenOptions::new().append(true).open(self.dir.path().join("log"));
        next.stderr(log.expect("it is there"));
        self.child = next.spawn().expect("the daemon can be started");
        self.await_socket();
        // The socket is there before the store was read.
        assert_eq!(self.get(ROOT, "/healthz").status, 200, "{}", self.log());
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("run/daemon.sock")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// A connection of somebody.
    pub(crate) fn connect(&self, who: Owner) -> std::io::Result<UnixStream> {
        let stream = as_user(Some(who), || UnixStream::connect(self.socket()))??;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    }

    /// Asks as somebody.
    pub(crate) fn ask(&self, who: Owner, method: &str, path: &str, body: &[u8]) -> Answer {
        let stream = self.connect(who).expect("the daemon listens");
        exchange(stream, method, path, &[], body)
    }

    pub(crate) fn get(&self, who: Owner, path: &str) -> Answer {
        self.ask(who, "GET", path, b"")
    }

    pub(crate) fn post(&self, who: Owner, path: &str, body: &Value) -> Answer {
        self.ask(who, "POST", path, body.to_string().as_bytes())
    }

    /// Hands in a job and gives its number.
    pub(crate) fn submit(&self, who: Owner, job: &Value) -> u64 {
        let answer = self.post(who, "/v1/jobs", job);
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()["ids"][0].as_u64().expect("a number")
    }

    /// All about a job, as root sees it.
    pub(crate) fn info(&self, id: u64) -> Value {
        self.get(ROOT, &format!("/v1/jobs/{id}")).json()["job"].clone()
    }

    /// Waits until a job is in one of these states.
    pub(crate) fn until(&self, id: u64, states: &[&str]) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let job = self.info(id);
            if states.iter().any(|state| job["state"] == *state) {
                return job;
            }
            assert!(Instant::now() < deadline, "{job}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn over(&self, id: u64) -> Value {
        self.until(id, &["completed", "failed", "cancelled", "timeout", "oom", "unknown"])
    }

    /// It answers, within seconds, and has not grown out of proportion.
    pub(crate) fn assert_well(&self, after: &str) {
        let began = Instant::now();
        let answer = self.get(ROOT, "/healthz");
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok\n"), "after {after}");
        assert!(began.elapsed() < Duration::from_secs(20), "slow after {after}");
        let mib = self.memory_mib();
        assert!(mib < 600, "{mib} MiB after {after}");
    }

    pub(crate) fn memory_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.expect("the daemon lives");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("it has memory");
        let kib = line.split_ascii_whitespace().nth(1).expect("a number");
        kib.parse::<u64>().expect("a number") >> 10
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
        if let Ok(stream) = self.connect(ROOT) {
            let page =
                exchange(stream, "GET", "/v1/jobs?state=active&limit=1000&order=desc", &[], b"");
            let page: Value = serde_json::from_slice(&page.body).unwrap_or_default();
            for job in page["jobs"].as_array().into_iter().flatten() {
                if let Ok(stream) = self.connect(ROOT) {
                    exchange(stream, "DELETE", &format!("/v1/jobs/{}", job["id"]), &[], b"");
                }
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        end_processes_of(self.dir.path());
    }
}

/// One request and its answer over a connection.
pub(crate) fn exchange<S: Read + Write>(
    mut stream: S,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Answer {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: tandem\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    // A daemon that has seen enough may close before all is sent.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    parse(&bytes)
}

pub(crate) fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(bytes.len());
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Answer { status, head, body: bytes.get(end + 4..).unwrap_or_default().to_vec() }
}

/// A job that runs a script of the shell.
pub(crate) fn shell(dir: &Path, script: &str) -> Value {
    json!({
        "command": ["/bin/sh", "-c", script], "dir": dir, "stdout": "out", "env": {"PATH": "/usr/bin:/bin"},
    })
}
