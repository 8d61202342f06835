//! The measured daemon: this program, in a folder of its own.

use super::http::HttpConnection;
use crate::failure::Failure;
use serde_json::Value;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tandem_daemon::client::{Address, Client, JobQuery};

/// Timeout until it listens; a restart reads the whole store.
const LISTENS_WITHIN: Duration = Duration::from_secs(120);

/// A daemon.
pub(super) struct BenchDaemon {
    child: Child,
    folder: PathBuf,
    policy: String,
    devices: u32,
}

impl BenchDaemon {
    pub(super) fn start(folder: &Path, policy: &str, devices: u32) -> Result<Self, Failure> {
        let child = spawn(folder, policy, devices)?;
        let mut server =
            Self { child, folder: folder.to_owned(), policy: policy.to_owned(), devices };
        server.wait_until_it_listens()?;
        Ok(server)
    }

    /// Kills it with SIGKILL.
    pub(super) fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Starts it again and returns the time until it listened.
    pub(super) fn restart(&mut self) -> Result<Duration, Failure> {
        let began = Instant::now();
        self.child = spawn(&self.folder, &self.policy, self.devices)?;
        self.wait_until_it_listens()?;
        Ok(began.elapsed())
    }

    fn wait_until_it_listens(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            let answer = self
                .connect()
                .and_then(|mut connection| connection.ask("GET", "/healthz", &[]).map(|_| ()));
            match answer {
                Ok(()) => return Ok(()),
                Err(_) if began.elapsed() < LISTENS_WITHIN && self.child.try_wait()?.is_none() => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => {
                    let said = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                    let last = said.lines().last().unwrap_or_default().to_owned();
                    return Err(Failure::failed(format!(
                        "the daemon did not start: {error}: {last}"
                    )));
                }
            }
        }
    }

    pub(super) fn connect(&self) -> io::Result<HttpConnection> {
        HttpConnection::open(&self.socket())
    }

    /// A client of the library.
    pub(super) fn client(&self) -> Result<Client, Failure> {
        Ok(Client::new(Address::Unix(self.socket()), None)?)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// The user of its jobs.
    pub(super) fn user(&self) -> Result<String, Failure> {
        let query = JobQuery { limit: Some(1), ..JobQuery::default() };
        let page = self.client()?.jobs(&query)?;
        Ok(page.jobs.first().map(|job| job.user.clone()).unwrap_or_default())
    }

    /// The folder for the output of jobs.
    pub(super) fn output(&self) -> &Path {
        &self.folder
    }

    /// Drains or undrains all devices.
    pub(super) fn drain(&self, word: &str) -> Result<(), Failure> {
        let mut connection = self.connect()?;
        for device in 0..self.devices {
            connection.ask("POST", &format!("/v1/devices/{device}/{word}"), &[])?;
        }
        Ok(())
    }

    /// Memory of the daemon in bytes.
    pub(super) fn memory(&self) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
        Some(kib * 1024)
    }

    /// Cancels all of its jobs.
    fn end_jobs(&self) -> Result<(), Failure> {
        self.drain("drain")?;
        let mut connection = self.connect()?;
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            let path = "/v1/jobs?state=running,paused,completing";
            let page: Value = serde_json::from_slice(connection.ask("GET", path, &[])?)
                .map_err(|error| Failure::failed(format!("{path}: {error}")))?;
            let jobs = page["jobs"].as_array().cloned().unwrap_or_default();
            if jobs.is_empty() {
                break;
            }
            for id in jobs.iter().filter_map(|job| job["id"].as_u64()) {
                let _ = connection.ask("DELETE", &format!("/v1/jobs/{id}"), &[]);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for BenchDaemon {
    fn drop(&mut self) {
        let _ = self.end_jobs();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, policy: &str, devices: u32) -> Result<Child, Failure> {
    let log = File::options().create(true).append(true).open(folder.join("log"))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("daemon").args(["--policy", policy, "--fake-gpus", &devices.to_string()]);
    command.arg("--state").arg(folder.join("state")).arg("--socket").arg(folder.join("socket"));
    // No settings from the environment.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TANDEM_") {
            command.env_remove(name);
        }
    }
    command.env("XDG_CONFIG_HOME", folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    Ok(command.spawn()?)
}
