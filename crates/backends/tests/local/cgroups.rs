//! Runs in control groups. Where the system does not allow them, each test says so in one line.

use crate::fixture::{TestBackend, allocation, code, lives, run_id, running, until};
use crate::harness::Test;
use crate::recovers::{kill_supervisor, kill_supervisor_after, once, scatter};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tandem_backends::local::Cgroups;
use tandem_backends::providers::cpu::Cpu;
use tandem_backends::{Backend, BackendEvent, Enforcement, ExitStatus, Launch, Op, RunHandle};

pub(crate) const TESTS: &[Test] = &[
    ("cgroups_limit_memory", cgroups_limit_memory),
    ("cgroups_divide_a_core_by_weight", cgroups_divide_a_core_by_weight),
    ("cgroups_limit_a_single_run", cgroups_limit_a_single_run),
    ("cgroups_contain_every_process", cgroups_contain_every_process),
    ("cgroups_are_recovered", cgroups_are_recovered),
    ("cgroups_of_killed_supervisors_are_removed", cgroups_of_killed_supervisors_are_removed),
    ("cgroups_and_supervisors_killed_at_any_point", cgroups_and_supervisors_killed_at_any_point),
    ("cgroups_that_cannot_be_created_fail_no_run", cgroups_that_cannot_be_created_fail_no_run),
];

/// Uses a core until it is ended.
const BUSY: &str = "while :; do :; done";

/// A back end on cores; `None`, with a line that says why, if there are no control groups.
fn backend(test: &str, dir: &Path) -> Option<TestBackend> {
    let groups = Cgroups::find();
    if !groups.are_complete() {
        println!("skipped {test}: control groups: {groups}");
        return None;
    }
    Some(cores(dir, true))
}

fn cores(dir: &Path, cgroups: bool) -> TestBackend {
    let cpu = Cpu::new(None).unwrap();
    TestBackend::with(dir, Box::new(cpu), |options| options.cgroups = cgroups)
}

/// Waits for a start, and returns how the share is enforced.
fn started(backend: &mut TestBackend) -> (u32, Enforcement) {
    match backend.next() {
        BackendEvent::Started { handle: RunHandle::Process(pid), enforcement, .. } => {
            (pid, enforcement)
        }
        other => panic!("{other:?}"),
    }
}

/// The directories of the group of a run according to its records; the first is that of the CPU controller.
fn dirs(backend: &TestBackend, job: u64) -> Vec<PathBuf> {
    let spec = fs::read(backend.records(job).join("spec.json")).unwrap();
    let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
    let dir = |part: &str| PathBuf::from(spec["group"][part]["dir"].as_str().unwrap());
    vec![dir("cpu"), dir("memory")]
}

fn exist(dirs: &[PathBuf]) -> bool {
    dirs.iter().any(|dir| dir.exists())
}

/// The CPU weight of a group, in version 2 or 1.
fn weight(dir: &Path) -> String {
    let read = |file| fs::read_to_string(dir.join(file));
    read("cpu.weight").or_else(|_| read("cpu.shares")).unwrap().trim().to_owned()
}

fn with_share(mut launch: Launch, share_ppm: u32) -> Launch {
    launch.allocation.share_ppm = share_ppm;
    launch
}

fn end(backend: &mut TestBackend, job: u64) {
    backend.apply(1000 + job, Op::End { run: run_id(job), grace_ms: 0 });
}

fn cgroups_limit_memory() {
    let own = tempfile::tempdir().unwrap();
    let Some(mut backend) = backend("cgroups_limit_memory", own.path()) else { return };
    let mut limited = |job, script: &str| {
        let mut one = backend.script(job, script);
        one.memory_limit_bytes = Some(64 << 20);
        backend.start(one);
        assert_eq!(started(&mut backend).1, Enforcement::Cgroup);
        let exit = backend.exited();
        assert!(!exist(&dirs(&backend, job)), "the group is removed with the run");
        exit
    };
    let exit = limited(1, "dd if=/dev/zero of=/dev/null bs=48M count=2 2>&1");
    assert_eq!((exit.status, exit.oom), (code(0), false));
    let exit = limited(2, "exec dd if=/dev/zero of=/dev/null bs=256M count=2 2>&1");
    assert_eq!((exit.status, exit.oom), (ExitStatus::Signal(9), true));
    assert!(exit.rss_max_bytes < 96 << 20, "{exit:?}");
    // Not its first process, and it has left the process group.
    let exit = limited(3, "setsid -w dd if=/dev/zero of=/dev/null bs=256M count=2 2>&1");
    assert!(exit.oom && exit.status != code(0), "{exit:?}");
    // The run survived the OOM kill of its child.
    let exit = limited(4, "dd if=/dev/zero of=/dev/null bs=256M count=2 2>&1; exit 0");
    assert_eq!((exit.status, exit.oom), (code(0), false));
    // Killed, but not by the OOM killer.
    let exit = limited(5, "kill -9 $$");
    assert_eq!((exit.status, exit.oom), (ExitStatus::Signal(9), false));
    // The page cache is counted too, but can be reclaimed.
    let exit =
        limited(6, "dd if=/dev/zero of=big bs=1M count=160 2>&1; cat big >/dev/null; rm big");
    assert_eq!((exit.status, exit.oom), (code(0), false));
}

fn cgroups_divide_a_core_by_weight() {
    let own = tempfile::tempdir().unwrap();
    let Some(mut backend) = backend("cgroups_divide_a_core_by_weight", own.path()) else { return };
    // Together more than one core, so that each gets less than its share.
    for (job, share_ppm) in [(1, 1_000_000), (2, 500_000)] {
        backend.start(with_share(backend.script(job, BUSY), share_ppm));
        assert_eq!(started(&mut backend).1, Enforcement::Cgroup);
    }
    std::thread::sleep(Duration::from_secs(4));
    end(&mut backend, 1);
    end(&mut backend, 2);
    let mut used = [0.0; 2];
    for _ in 0..2 {
        match backend.next() {
            BackendEvent::Exited { run, exit } => {
                used[usize::try_from(run.job - 1).unwrap()] = exit.cpu_s;
            }
            other => panic!("{other:?}"),
        }
    }
    let ratio = used[0] / used[1];
    println!(
        "shares 1 and 0.5 of one core: {:.2} s and {:.2} s, ratio {ratio:.2}",
        used[0], used[1]
    );
    assert!((1.5..2.7).contains(&ratio), "{used:?}");
}

fn cgroups_limit_a_single_run() {
    let own = tempfile::tempdir().unwrap();
    let Some(mut backend) = backend("cgroups_limit_a_single_run", own.path()) else { return };
    let last = u32::try_from(backend.inner.devices().len() - 1).unwrap();
    let mut one = with_share(backend.script(1, BUSY), 250_000);
    one.allocation.devices = vec![last];
    backend.start(one);
    started(&mut backend);
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    end(&mut backend, 1);
    let part = backend.exited().cpu_s / begin.elapsed().as_secs_f64();
    println!("a share of 0.25 of a core: {part:.3}");
    assert!(part < 0.33, "{part}");
}

fn cgroups_contain_every_process() {
    let own = tempfile::tempdir().unwrap();
    let Some(mut backend) = backend("cgroups_contain_every_process", own.path()) else { return };
    let script = "cat /proc/self/cgroup; setsid -w cat /proc/self/cgroup; (cat /proc/self/cgroup)";
    backend.start(backend.script(1, script));
    started(&mut backend);
    assert_eq!(backend.exited().status, code(0));
    let output = backend.output(1);
    for dir in dirs(&backend, 1) {
        let name = dir.file_name().unwrap().to_str().unwrap();
        let lines = output.lines().filter(|line| line.ends_with(name)).count();
        assert!(lines >= 3, "{name}: {output}");
    }
    // The supervisor is outside of the group.
    backend.start(backend.script(2, "exec sleep 1000"));
    started(&mut backend);
    let claim = fs::read_to_string(backend.records(2).join("claim")).unwrap();
    let claim: serde_json::Value = serde_json::from_str(&claim).unwrap();
    let supervisor = claim["supervisor"]["pid"].as_u64().unwrap().to_string();
    for dir in dirs(&backend, 2) {
        let inside = fs::read_to_string(dir.join("cgroup.procs")).unwrap();
        assert!(inside.lines().all(|pid| pid != supervisor) && !inside.is_empty());
    }
    end(&mut backend, 2);
    backend.exited();
}

fn cgroups_are_recovered() {
    let own = tempfile::tempdir().unwrap();
    let Some(mut backend) = backend("cgroups_are_recovered", own.path()) else { return };
    backend.start(with_share(backend.script(1, BUSY), 500_000));
    let (pid, _) = started(&mut backend);
    let places = dirs(&backend, 1);
    assert!(exist(&places));
    let before = weight(&places[0]);
    // The next daemon removes a group without records, and keeps the one in use.
    let name = places[0].file_name().unwrap().to_str().unwrap();
    let left = places[0].with_file_name(name.replace("-1.1", "-77.1"));
    fs::create_dir(&left).unwrap();
    drop(backend);
    let mut later = cores(own.path(), true);
    assert!(!left.exists() && exist(&places));
    let found = later.recover(1);
    assert_eq!(found, running(pid, false, Enforcement::Cgroup));
    // A later daemon changes the share, even if it creates no groups itself.
    drop(later);
    let mut later = cores(own.path(), false);
    later.recover(1);
    later.apply(2, Op::Resume { run: run_id(1), allocation: allocation(0) });
    assert!(matches!(later.next(), BackendEvent::Resumed { .. }));
    let now = weight(&places[0]);
    assert_eq!(now.parse::<u64>().unwrap(), 2 * before.parse::<u64>().unwrap());
    end(&mut later, 1);
    later.exited();
    assert!(!exist(&places));
}

fn cgroups_of_killed_supervisors_are_removed() {
    let own = tempfile::tempdir().unwrap();
    let test = "cgroups_of_killed_supervisors_are_removed";
    let Some(mut backend) = backend(test, own.path()) else { return };
    backend.start(backend.script(1, "exec sleep 1000"));
    let (pid, _) = started(&mut backend);
    let places = dirs(&backend, 1);
    kill_supervisor(&backend, 1);
    end(&mut backend, 1);
    assert!(matches!(backend.next(), BackendEvent::Lost { .. }));
    until("it is gone", || !lives(pid));
    backend.inner.forget(run_id(1));
    assert!(!exist(&places) && !backend.records(1).exists());
}

fn cgroups_and_supervisors_killed_at_any_point() {
    let own = tempfile::tempdir().unwrap();
    let test = "cgroups_and_supervisors_killed_at_any_point";
    let Some(mut backend) = backend(test, own.path()) else { return };
    let mut seed = 5;
    let mut places = Vec::new();
    let mut found = 0;
    for job in 1..=40 {
        backend.start(once(&backend.dir, job));
        kill_supervisor_after(&backend.records(job), scatter(&mut seed) % 12_000);
        while !matches!(backend.next(), BackendEvent::Exited { .. } | BackendEvent::Lost { .. }) {}
        let dirs = dirs(&backend, job);
        found += usize::from(exist(&dirs));
        places.extend(dirs);
        backend.inner.forget(run_id(job));
    }
    println!("groups that killed supervisors left, and forgetting removed: {found} of 40");
    assert!(!exist(&places));
}

fn cgroups_that_cannot_be_created_fail_no_run() {
    let own = tempfile::tempdir().unwrap();
    let mut without = cores(own.path(), false);
    without.start(without.script(1, "exit 3"));
    assert_eq!(started(&mut without).1, Enforcement::Advisory);
    assert_eq!(without.exited().status, code(3));
    drop(without);
    let Some(mut backend) = backend("cgroups_that_cannot_be_created_fail_no_run", own.path())
    else {
        return;
    };
    backend.start(backend.script(2, "exit 0"));
    started(&mut backend);
    backend.exited();
    // The next group exists already and has a foreign process.
    let taken = dirs(&backend, 2).remove(0);
    let name = taken.file_name().unwrap().to_str().unwrap().replace("-2.1", "-3.1");
    let taken = taken.with_file_name(name);
    fs::create_dir(&taken).unwrap();
    let mut foreign = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(taken.join("cgroup.procs"), foreign.id().to_string()).unwrap();
    backend.start(backend.script(3, "exit 4"));
    let enforcement = started(&mut backend).1;
    let exit = backend.exited();
    let unharmed = lives(foreign.id());
    foreign.kill().unwrap();
    foreign.wait().unwrap();
    // The back end may remove it first, once it is empty.
    until("the group is gone", || fs::remove_dir(&taken).is_ok() || !taken.exists());
    assert_eq!((enforcement, exit.status), (Enforcement::Advisory, code(4)));
    assert!(unharmed);
}
