//! Recovery after the death of daemons and supervisors.

use crate::fixture::{TestBackend, code, launch, lives, run_id, running, until};
use crate::harness::Test;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use tandem_backends::{Backend, BackendEvent, Enforcement, ExitStatus, Launch, Op, RecoveredRun};

pub(crate) const TESTS: &[Test] = &[
    ("a_killed_daemon_starts_nothing_twice", a_killed_daemon_starts_nothing_twice),
    ("a_run_given_up_never_starts", a_run_given_up_never_starts),
    ("runs_are_recovered", runs_are_recovered),
    ("a_pause_interrupted_by_a_crash", a_pause_interrupted_by_a_crash),
    ("a_reused_pid_is_left_alone", a_reused_pid_is_left_alone),
    ("a_killed_supervisor", a_killed_supervisor),
    ("a_supervisor_that_died_before_the_start", a_supervisor_that_died_before_the_start),
    ("supervisors_killed_at_any_point", supervisors_killed_at_any_point),
    ("a_supervisor_that_hangs", a_supervisor_that_hangs),
    ("out_of_descriptors", out_of_descriptors),
    ("a_reboot", a_reboot),
    ("a_supervisor_that_cannot_start", a_supervisor_that_cannot_start),
];

/// Prints once. A second run would print twice.
pub(crate) fn once(dir: &Path, job: u64) -> Launch {
    let mut launch = launch(dir, job, &["/bin/sh", "-c", "echo once; sleep 0.01; exit 7"]);
    launch.append = true;
    launch
}

/// A daemon that is going to be killed.
pub(crate) fn daemon(dir: &Path, job: u64) -> ExitCode {
    let mut backend = TestBackend::at(dir);
    if backend.recover(job) == RecoveredRun::NeverStarted {
        backend.start(once(dir, job));
    }
    loop {
        backend.next_within(Duration::from_secs(60));
    }
}

fn spawn_daemon(dir: &Path, job: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("daemon").arg(dir).arg(job.to_string()).stdin(Stdio::null()).spawn().unwrap()
}

/// Pseudo-random numbers.
pub(crate) fn scatter(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn killed_after(dir: &Path, job: u64, us: u64) {
    let mut child = spawn_daemon(dir, job);
    std::thread::sleep(Duration::from_micros(us));
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

/// Brings a run to its end from whatever state it was recovered in.
fn finish(backend: &mut TestBackend, job: u64) -> (&'static str, ExitStatus) {
    let found = backend.recover(job);
    let name = match &found {
        RecoveredRun::NeverStarted => "never started",
        RecoveredRun::Starting => "starting",
        RecoveredRun::Running { .. } => "running",
        _ => "exited",
    };
    let status = match found {
        RecoveredRun::NeverStarted => {
            backend.start(once(&backend.dir, job));
            backend.started();
            backend.exited().status
        }
        RecoveredRun::Starting => {
            backend.started();
            backend.exited().status
        }
        RecoveredRun::Running { paused, .. } => {
            assert!(!paused);
            backend.exited().status
        }
        RecoveredRun::Exited(exit) => exit.status,
        other => panic!("{other:?}"),
    };
    (name, status)
}

fn a_killed_daemon_starts_nothing_twice() {
    let own = tempfile::tempdir().unwrap();
    let mut seed = 17;
    let mut counts = std::collections::BTreeMap::new();
    for job in 1..=80 {
        for _ in 0..1 + job % 3 {
            killed_after(own.path(), job, scatter(&mut seed) % 25_000);
        }
        let mut backend = TestBackend::at(own.path());
        let (found, status) = finish(&mut backend, job);
        *counts.entry(found).or_insert(0) += 1;
        assert_eq!(status, code(7));
        assert_eq!(backend.output(job), "once\n", "{found}");
        assert_eq!(backend.next_within(Duration::from_millis(5)), None);
    }
    println!("found after a kill: {counts:?}");
}

fn a_run_given_up_never_starts() {
    let own = tempfile::tempdir().unwrap();
    let mut seed = 4;
    let mut given_up = 0;
    for job in 1..=40 {
        killed_after(own.path(), job, 1500 + scatter(&mut seed) % 8_000);
        let mut backend = TestBackend::at(own.path());
        if backend.recover(job) == RecoveredRun::NeverStarted {
            std::thread::sleep(Duration::from_millis(30));
            assert!(!own.path().join(format!("{job}.out")).exists());
            given_up += 1;
        }
        drop(backend);
    }
    println!("given up: {given_up} of 40");
}

fn runs_are_recovered() {
    let mut backend = TestBackend::new();
    backend.start(backend.script(1, "sleep 0.5; exit 3"));
    let first = backend.started();
    backend.start(backend.script(2, "while :; do sleep 0.01; done"));
    let second = backend.started();
    backend.apply(3, Op::Pause { run: run_id(2) });
    assert!(matches!(backend.next(), BackendEvent::Paused { .. }));
    backend.run(4, "exit 4");
    backend.start(launch(&backend.dir, 5, &["/no/such"]));
    backend.not_started();
    let mut later = TestBackend::at(&backend.dir);
    let own = backend;
    let runs: Vec<tandem_backends::KnownJob> =
        [1, 2, 4, 5, 6].map(|job| run_id(job).into()).to_vec();
    let found: Vec<RecoveredRun> =
        later.inner.recover(&runs).into_iter().map(|(_, found)| found).collect();
    assert_eq!(found[0], running(first, false, Enforcement::None));
    assert_eq!(found[1], running(second, true, Enforcement::None));
    assert!(matches!(&found[2], RecoveredRun::Exited(exit) if exit.status == code(4)));
    assert!(matches!(&found[3], RecoveredRun::NotStarted { .. }));
    assert_eq!(found[4], RecoveredRun::NeverStarted);
    assert_eq!(later.exited().status, code(3));
    // A start whose result the daemon did not record is sent again.
    later.start(later.script(2, "exit 0"));
    assert_eq!(later.started(), second);
    later.apply(9, Op::End { run: run_id(2), grace_ms: 5000 });
    assert_eq!(later.exited().status, ExitStatus::Signal(15));
    drop(own);
}

/// One of its processes is stopped and another is not: the next daemon continues the run.
fn a_pause_interrupted_by_a_crash() {
    let mut backend = TestBackend::new();
    backend.start(backend.script(1, "sleep 1000 & echo; sleep 0.2; exit 6"));
    let pid = backend.started();
    until("it printed", || backend.output(1).ends_with('\n'));
    let first = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(first, rustix::process::Signal::STOP).unwrap();
    let mut later = TestBackend::at(&backend.dir);
    let found = later.recover(1);
    assert_eq!(found, running(pid, false, Enforcement::None));
    assert_eq!(later.exited().status, code(6));
}

/// Rewrites a record of a run.
fn forge(path: &PathBuf, change: impl FnOnce(&mut serde_json::Value)) -> serde_json::Value {
    let mut value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
    value
}

fn supervisor_of(backend: &TestBackend, job: u64) -> rustix::process::Pid {
    let claim = forge(&backend.records(job).join("claim"), |_| {});
    let pid = claim["supervisor"]["pid"].as_i64().unwrap();
    rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
}

pub(crate) fn kill_supervisor(backend: &TestBackend, job: u64) {
    rustix::process::kill_process(supervisor_of(backend, job), rustix::process::Signal::KILL)
        .unwrap();
}

fn a_reused_pid_is_left_alone() {
    let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut backend = TestBackend::new();
    backend.start(backend.script(1, "exec sleep 1000"));
    let pid = backend.started();
    let dir = backend.dir.clone();
    // Both ids were reused by another process.
    let other = bystander.id();
    let started = forge(&backend.records(1).join("started.json"), |value| {
        value["process"]["pid"] = other.into();
    });
    assert_ne!(started["process"]["start"].as_u64(), None);
    forge(&backend.records(1).join("claim"), |value| {
        value["supervisor"]["pid"] = other.into();
        value["supervisor"]["start"] = 1.into();
    });
    forge(&backend.records(1).join("started.json"), |value| value["process"]["start"] = 2.into());
    let mut later = TestBackend::at(&dir);
    let found = later.recover(1);
    assert!(matches!(found, RecoveredRun::Lost { .. }), "{found:?}");
    later.apply(2, Op::End { run: run_id(1), grace_ms: 0 });
    later.apply(3, Op::Pause { run: run_id(1) });
    assert_eq!(later.next_within(Duration::from_millis(200)), None);
    assert!(lives(other) && lives(pid));
    assert_eq!(bystander.try_wait().unwrap(), None);
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    // The first daemon knows the real process and can end it.
    backend.apply(4, Op::End { run: run_id(1), grace_ms: 1000 });
    until("it is gone", || !lives(pid));
}

fn a_killed_supervisor() {
    let mut backend = TestBackend::new();
    backend.start(backend.script(1, "sleep 1000 & echo $!; while :; do sleep 0.01; done"));
    let pid = backend.started();
    until("it printed", || backend.output(1).ends_with('\n'));
    kill_supervisor(&backend, 1);
    assert_eq!(backend.next_within(Duration::from_millis(200)), None, "its process lives");
    let mut later = TestBackend::at(&backend.dir);
    let found = later.recover(1);
    assert_eq!(found, running(pid, false, Enforcement::None));
    backend.apply(2, Op::Pause { run: run_id(1) });
    assert!(matches!(backend.next(), BackendEvent::Paused { .. }));
    backend.apply(3, Op::End { run: run_id(1), grace_ms: 5000 });
    for backend in [&mut backend, &mut later] {
        let event = backend.next();
        assert!(
            matches!(&event, BackendEvent::Lost { reason, .. } if reason.contains("supervisor died")),
            "{event:?}"
        );
    }
    let child: u32 = backend.output(1).trim().parse().unwrap();
    until("its children are gone", || !lives(pid) && !lives(child));
    let found = TestBackend::at(&backend.dir).recover(1);
    assert!(matches!(found, RecoveredRun::Lost { .. }));
}

fn a_supervisor_that_died_before_the_start() {
    // It claimed the run and died before it recorded a process: nothing has run.
    let mut backend = TestBackend::new();
    let mut dead = Command::new("true").spawn().unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let claim =
        serde_json::json!({"supervisor": {"pid": dead.id(), "start": 5, "boot": boot.trim()}});
    dead.wait().unwrap();
    fs::create_dir_all(backend.records(1)).unwrap();
    fs::write(backend.records(1).join("claim"), claim.to_string()).unwrap();
    assert_eq!(backend.recover(1), RecoveredRun::NeverStarted);
    assert_eq!(backend.run(1, "echo once; exit 9").status, code(9));
    assert_eq!(backend.output(1), "once\n");
    backend.inner.forget(run_id(1));
    assert_eq!(fs::read_dir(backend.dir.join("state/runs")).unwrap().count(), 0);
}

/// Kills the supervisor of a run some time after it appears.
pub(crate) fn kill_supervisor_after(records: &Path, us: u64) {
    let deadline = Instant::now() + Duration::from_millis(500);
    while Instant::now() < deadline {
        if let Some(pid) = supervising(records) {
            std::thread::sleep(Duration::from_micros(us));
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            break;
        }
    }
}

/// The process that supervises the first attempt of a run.
fn supervising(records: &Path) -> Option<rustix::process::Pid> {
    let wanted = format!("supervise\0{}\0", records.display());
    fs::read_dir("/proc").unwrap().find_map(|entry| {
        let entry = entry.ok()?;
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let found = String::from_utf8_lossy(&line).ends_with(&wanted);
        rustix::process::Pid::from_raw(pid).filter(|_| found)
    })
}

fn supervisors_killed_at_any_point() {
    let mut backend = TestBackend::new();
    let mut seed = 99;
    let mut counts = std::collections::BTreeMap::new();
    for job in 1..=60 {
        backend.start(once(&backend.dir, job));
        kill_supervisor_after(&backend.records(job), scatter(&mut seed) % 12_000);
        let mut event = backend.next();
        // Between its record and the start of its program it is lost without having started.
        if matches!(event, BackendEvent::Started { .. }) {
            event = backend.next();
        }
        let again = backend.dir.join(format!("state/runs/{job}.1~1")).exists();
        let name = match event {
            BackendEvent::Exited { exit, .. } => {
                assert_eq!(exit.status, code(7));
                if again { "tried again" } else { "exited" }
            }
            BackendEvent::Lost { .. } => "lost",
            other => panic!("{other:?}"),
        };
        *counts.entry(name).or_insert(0) += 1;
        let output = fs::read_to_string(backend.dir.join(format!("{job}.out"))).unwrap_or_default();
        assert!(output == "once\n" || (name == "lost" && output.is_empty()), "{name}: {output}");
    }
    println!("after the death of a supervisor: {counts:?}");
}

fn a_supervisor_that_hangs() {
    let own = tempfile::tempdir().unwrap();
    let fake = tandem_backends::providers::fake::Fake::new(1, "fake", 1 << 30);
    let mut backend = TestBackend::with(own.path(), Box::new(fake), |options| {
        options.supervisor = ["/bin/sh", "-c", "exec sleep 1000"].map(Into::into).to_vec();
    });
    backend.start(backend.script(1, "true"));
    backend.apply(2, Op::End { run: run_id(1), grace_ms: 50 });
    assert_eq!(backend.not_started(), "it was ended before it started");
}

fn out_of_descriptors() {
    let own = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    assert!(command.arg("starved").arg(own.path()).status().unwrap().success());
}

/// A daemon that can open no files while its run ends. The run must not be lost.
pub(crate) fn starved(dir: &Path) -> ExitCode {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let mut backend = TestBackend::at(dir);
    backend.start(backend.script(1, "sleep 0.2; exit 7"));
    backend.started();
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(3), maximum: limit.maximum }).unwrap();
    assert_eq!(backend.next_within(Duration::from_millis(600)), None);
    setrlimit(Resource::Nofile, limit).unwrap();
    assert_eq!(backend.exited().status, code(7));
    ExitCode::SUCCESS
}

fn a_reboot() {
    let mut backend = TestBackend::new();
    backend.start(backend.script(1, "exec sleep 1000"));
    let pid = backend.started();
    forge(&backend.records(1).join("claim"), |value| value["supervisor"]["boot"] = "other".into());
    let mut later = TestBackend::at(&backend.dir);
    assert_eq!(later.recover(1), RecoveredRun::Rebooted);
    later.apply(2, Op::End { run: run_id(1), grace_ms: 0 });
    assert_eq!(later.next_within(Duration::from_millis(100)), None);
    assert!(lives(pid));
    backend.apply(4, Op::End { run: run_id(1), grace_ms: 1000 });
    until("it is gone", || !lives(pid));
}

fn a_supervisor_that_cannot_start() {
    let own = tempfile::tempdir().unwrap();
    for program in ["/no/such/program", "/bin/false"] {
        let fake = tandem_backends::providers::fake::Fake::new(1, "fake", 1 << 30);
        let mut backend = TestBackend::with(own.path(), Box::new(fake), |options| {
            options.supervisor = vec![program.into()];
        });
        backend.start(backend.script(1, "true"));
        backend.apply(2, Op::Pause { run: run_id(1) });
        assert!(matches!(backend.next(), BackendEvent::Refused { .. }));
        assert!(matches!(backend.next(), BackendEvent::Refused { .. }));
    }
    let mut backend = TestBackend::at(own.path());
    assert_eq!(backend.run(1, "exit 2").status, code(2));
}
