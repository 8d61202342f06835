//! What the tests of the sample job share: starting it and playing the daemon.
//!
//! A job is a process of its own: its socket comes from the environment.

// Every test file is a crate of its own and uses only part of this.
#![allow(dead_code)]

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any test needs, on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// A job to be started, in a folder of its own.
pub(crate) struct Job {
    pub(crate) folder: TempDir,
    args: Vec<String>,
}

impl Job {
    pub(crate) fn new(args: &[&str]) -> Self {
        let args = args.iter().map(|&arg| arg.to_owned()).collect();
        Self { folder: tempfile::tempdir().expect("a temporary folder can be made"), args }
    }

    /// Takes over the arguments of another job, in the folder of this one.
    pub(crate) fn become_like(&mut self, other: Self) {
        self.args = other.args;
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandem-train"));
        command.current_dir(self.folder.path()).args(&self.args).stdin(Stdio::null());
        command.env_remove("TANDEM_ACCUM").env_remove("TANDEM_JOB_ID");
        command.env("TANDEM_SOCK", self.file("job.sock"));
        command
    }

    pub(crate) fn start(&self) -> Running {
        self.start_with(&[])
    }

    pub(crate) fn start_with(&self, environment: &[(&str, &str)]) -> Running {
        let mut command = self.command();
        command.envs(environment.iter().copied());
        Running(command.spawn().expect("the job can be started"))
    }
}

/// Runs a job to its end.
pub(crate) fn finish(job: &Job) -> Output {
    job.command().output().expect("the job can be started")
}

/// A job that runs; killed if the test ends before it.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn wait(mut self) -> i32 {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait().expect("a child can be waited for") {
                return status.code().expect("it was not killed");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the job does not end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The other end of the socket.
pub(crate) struct Daemon {
    listener: UnixListener,
    path: PathBuf,
}

impl Daemon {
    pub(crate) fn listen(job: &Job) -> Self {
        let path = job.file("job.sock");
        let listener = UnixListener::bind(&path).expect("the socket can be made");
        listener.set_nonblocking(true).unwrap();
        Self { listener, path }
    }

    pub(crate) fn accept(&self) -> Talk {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Ok((stream, _)) = self.listener.accept() {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let reader = BufReader::new(stream.try_clone().unwrap());
                return Talk { stream, reader };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("nobody connects");
    }

    pub(crate) fn vanish(self) {
        std::fs::remove_file(&self.path).unwrap();
    }
}

/// One connection.
pub(crate) struct Talk {
    pub(crate) stream: UnixStream,
    reader: BufReader<UnixStream>,
}

impl Talk {
    /// The next line; every line is a whole object.
    pub(crate) fn hear(&mut self) -> Value {
        self.try_hear().expect("there is another line")
    }

    fn try_hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        let count = self.reader.read_line(&mut line).expect("a line comes");
        (count > 0).then(|| serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}")))
    }

    /// All lines until the job hangs up.
    pub(crate) fn hear_all(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.try_hear()).collect()
    }

    /// Listens until the job has done more than `n` steps.
    pub(crate) fn hear_step_after(&mut self, n: u64) -> Value {
        loop {
            let said = self.hear();
            if said["op"] == "step" && said["n"].as_u64().unwrap() > n {
                return said;
            }
        }
    }

    pub(crate) fn say(&mut self, message: &Value) {
        writeln!(self.stream, "{message}").expect("the job listens");
    }
}

/// A row of the file of losses; the loss as it is written, so that equal means equal bit by bit.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Row {
    pub(crate) step: u64,
    pub(crate) loss: String,
    pub(crate) accum: u64,
}

pub(crate) fn losses(job: &Job) -> Vec<Row> {
    let text = std::fs::read_to_string(job.file("losses.csv")).expect("losses are written");
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("step,loss,accum"));
    let rows: Vec<Row> = lines.map(row).collect();
    assert!(rows.iter().map(|row| row.step).eq(1..=rows.len() as u64), "{rows:?}");
    rows
}

fn row(line: &str) -> Row {
    let fields: Vec<&str> = line.split(',').collect();
    assert_eq!(fields.len(), 3, "{line}");
    let [step, accum] = [fields[0], fields[2]].map(|field| field.parse().unwrap());
    Row { step, loss: fields[1].to_owned(), accum }
}

pub(crate) fn numbers(rows: &[Row]) -> Vec<f64> {
    rows.iter().map(|row| row.loss.parse().unwrap()).collect()
}
