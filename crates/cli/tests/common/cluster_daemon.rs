//! A daemon of a test's Slurm or Kubernetes cluster.

use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// The daemon whose socket, state and log are in a folder.
pub(crate) struct ClusterDaemon {
    folder: PathBuf,
    child: Option<Child>,
}

impl ClusterDaemon {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), child: None }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("tandem.sock")
    }

    /// All of the daemon's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("daemon.log")).unwrap_or_default()
    }

    /// Starts the daemon with these settings; whether it listens within this time.
    pub(crate) fn start(
        &mut self,
        mut tandem: Command,
        provider: &str,
        settings: &[String],
        within: Duration,
    ) -> bool {
        let log = File::options().create(true).append(true).open(self.folder.join("daemon.log"));
        let log = log.expect("a log");
        // Jobs take seconds here, so the policy has to review its plan as often.
        tandem.args(["daemon", "--provider", provider, "--policy", "tandem:slice_s=2"]);
        tandem.arg("--state").arg(self.folder.join("state")).arg("--socket").arg(self.socket());
        for setting in settings {
            tandem.args(["--set", setting]);
        }
        tandem.stdout(log.try_clone().expect("a log")).stderr(log);
        self.child = Some(tandem.spawn().expect("a daemon"));
        until(within, || self.socket().exists())
    }

    /// Kills the daemon with SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it runs");
            child.wait().expect("it was ours");
            let _ = fs::remove_file(self.socket());
        }
    }

    /// What the daemon answers to a path.
    pub(crate) fn get(&self, path: &str) -> Value {
        let mut stream = UnixStream::connect(self.socket()).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: tandem\r\nConnection: close\r\n\r\n")
            .expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    }
}

/// Whether a condition comes true in time.
pub(crate) fn until(within: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < within {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    false
}
