//! Runs in control groups, where this system lets us make some. Where it does not, each test says so in
//! one line.

use crate::desk::{Desk, allocation, code, lives, run_id, until};
use crate::harness::Test;
use crate::recovers::{once, scatter, supervising};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tandem_backends::local::Cgroups;
use tandem_backends::providers::cpu::Cpu;
use tandem_backends::{Backend, BackendEvent, Enforcement, ExitStatus, Launch, Op, RecoveredRun};

pub(crate) const TESTS: &[Test] = &[
    ("groups_keep_the_limit_of_memory", groups_keep_the_limit_of_memory),
    ("groups_keep_shares_by_weight", groups_keep_shares_by_weight),
    ("groups_keep_a_share_when_alone", groups_keep_a_share_when_alone),
    ("groups_hold_every_process", groups_hold_every_process),
    ("groups_are_found_again", groups_are_found_again),
    ("groups_of_dead_supervisors_are_removed", groups_of_dead_supervisors_are_removed),
    ("groups_and_supervisors_killed_at_any_point", groups_and_supervisors_killed_at_any_point),
    ("groups_that_cannot_be_made_fail_nothing", groups_that_cannot_be_made_fail_nothing),
];

/// Uses a core until it is ended.
const BUSY: &str = "while :; do :; done";

/// A back end on cores; `None`, and a line that says why, if there are no control groups here.
fn desk(test: &str, dir: &Path) -> Option<Desk> {
    let groups = Cgroups::find();
    if !groups.are_complete() {
        println!("skipped {test}: control groups: {groups}");
        return None;
    }
    Some(cores(dir, true))
}

fn cores(dir: &Path, groups: bool) -> Desk {
    let cpu = Cpu::new(None).unwrap();
    Desk::with(dir, Box::new(cpu), |options| options.groups = groups)
}

/// Waits for a start, and says how strictly the share is kept.
fn started(desk: &mut Desk) -> (u32, Enforcement) {
    match desk.next() {
        BackendEvent::Started { pid, enforcement, .. } => (pid, enforcement),
        other => panic!("{other:?}"),
    }
}

/// The directories of the group of a run, as its records say; the first is that of the processor.
fn dirs(desk: &Desk, job: u64) -> Vec<PathBuf> {
    let spec = fs::read(desk.records(job).join("spec.json")).unwrap();
    let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
    let dir = |part: &str| PathBuf::from(spec["group"][part]["dir"].as_str().unwrap());
    vec![dir("cpu"), dir("memory")]
}

fn exist(dirs: &[PathBuf]) -> bool {
    dirs.iter().any(|dir| dir.exists())
}

/// The share of the processor as it is written in a group: version 2, else version 1.
fn weight(dir: &Path) -> String {
    let read = |file| fs::read_to_string(dir.join(file));
    read("cpu.weight").or_else(|_| read("cpu.shares")).unwrap().trim().to_owned()
}

fn with_share(mut launch: Launch, share_ppm: u32) -> Launch {
    launch.allocation.share_ppm = share_ppm;
    launch
}

fn end(desk: &mut Desk, job: u64) {
    desk.apply(1000 + job, Op::End { run: run_id(job), grace_ms: 0 });
}

fn groups_keep_the_limit_of_memory() {
    let own = tempfile::tempdir().unwrap();
    let Some(mut desk) = desk("groups_keep_the_limit_of_memory", own.path()) else { return };
    let mut limited = |job, script: &str| {
        let mut one = desk.script(job, script);
        one.memory_limit_bytes = Some(64 << 20);
        desk.start(one);
        assert_eq!(started(&mut desk).1, Enforcement::Cgroup);
        let exit = desk.exited();
        assert!(!exist(&dirs(&desk, job)), "it is over, and so is its group");
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
    // It got over it.
    let exit = limited(4, "dd if=/dev/zero of=/dev/null bs=256M count=2 2>&1; exit 0");
    assert_eq!((exit.status, exit.oom), (code(0), false));
    // Killed, but not for want of memory.
    let exit = limited(5, "kill -9 $$");
    assert_eq!((exit.status, exit.oom), (ExitStatus::Signal(9), false));
    // Files that were read are counted too, and give way.
    let exit =
        limited(6, "dd if=/dev/zero of=big bs=1M count=160 2>&1; cat big >/dev/null; rm big");
    assert_eq!((exit.status, exit.oom), (code(0), false));
}

fn groups_keep_shares_by_weight() {
    let own = tempfile::tempdir().unwrap();
    let Some(mut desk) = desk("groups_keep_shares_by_weight", own.path()) else { return };
    // Together more than the core has, so that each gets less than its most.
    for (job, share_ppm) in [(1, 1_000_000), (2, 500_000)] {
        desk.start(with_share(desk.script(job, BUSY), share_ppm));
        assert_eq!(started(&mut desk).1, Enforcement::Cgroup);
    }
    std::thread::sleep(Duration::from_secs(4));
    end(&mut desk, 1);
    end(&mut desk, 2);
    let mut used = [0.0; 2];
    for _ in 0..2 {
        match desk.next() {
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

fn groups_keep_a_share_when_alone() {
    let own = tempfile::tempdir().unwrap();
    let Some(mut desk) = desk("groups_keep_a_share_when_alone", own.path()) else { return };
    let last = u32::try_from(desk.backend.devices().len() - 1).unwrap();
    let mut one = with_share(desk.script(1, BUSY), 250_000);
    one.allocation.devices = vec![last];
    desk.start(one);
    started(&mut desk);
    let begin = Instant::now();
    std::thread::sleep(Duration::from_secs(3));
    end(&mut desk, 1);
    let part = desk.exited().cpu_s / begin.elapsed().as_secs_f64();
    println!("a share of 0.25 of a core: {part:.3}");
    assert!(part < 0.33, "{part}");
}

fn groups_hold_every_process() {
    let own = tempfile::tempdir().unwrap();
    let Some(mut desk) = desk("groups_hold_every_process", own.path()) else { return };
    let script = "cat /proc/self/cgroup; setsid -w cat /proc/self/cgroup; (cat /proc/self/cgroup)";
    desk.start(desk.script(1, script));
    started(&mut desk);
    assert_eq!(desk.exited().status, code(0));
    let output = desk.output(1);
    for dir in dirs(&desk, 1) {
        let name = dir.file_name().unwrap().to_str().unwrap();
        let lines = output.lines().filter(|line| line.ends_with(name)).count();
        assert!(lines >= 3, "{name}: {output}");
    }
    // The one who writes down how it ends is outside.
    desk.start(desk.script(2, "exec sleep 1000"));
    started(&mut desk);
    let claim = fs::read_to_string(desk.records(2).join("claim")).unwrap();
    let claim: serde_json::Value = serde_json::from_str(&claim).unwrap();
    let supervisor = claim["supervisor"]["pid"].as_u64().unwrap().to_string();
    for dir in dirs(&desk, 2) {
        let inside = fs::read_to_string(dir.join("cgroup.procs")).unwrap();
        assert!(inside.lines().all(|pid| pid != supervisor) && !inside.is_empty());
    }
    end(&mut desk, 2);
    desk.exited();
}

fn groups_are_found_again() {
    let own = tempfile::tempdir().unwrap();
    let Some(mut desk) = desk("groups_are_found_again", own.path()) else { return };
    desk.start(with_share(desk.script(1, BUSY), 500_000));
    let (pid, _) = started(&mut desk);
    let places = dirs(&desk, 1);
    assert!(exist(&places));
    let before = weight(&places[0]);
    // What a run leaves whose records are gone: removed by the next daemon, other than what is used.
    let name = places[0].file_name().unwrap().to_str().unwrap();
    let left = places[0].with_file_name(name.replace("-1.1", "-77.1"));
    fs::create_dir(&left).unwrap();
    drop(desk);
    let mut later = cores(own.path(), true);
    assert!(!left.exists() && exist(&places));
    let found = later.backend.recover(&[run_id(1).into()]).remove(0).1;
    assert_eq!(
        found,
        RecoveredRun::Running { pid, paused: false, enforcement: Enforcement::Cgroup }
    );
    // A later daemon changes the share, also one that would make no groups itself.
    drop(later);
    let mut later = cores(own.path(), false);
    later.backend.recover(&[run_id(1).into()]);
    later.apply(2, Op::Resume { run: run_id(1), allocation: allocation(0) });
    assert!(matches!(later.next(), BackendEvent::Resumed { .. }));
    let now = weight(&places[0]);
    assert_eq!(now.parse::<u64>().unwrap(), 2 * before.parse::<u64>().unwrap());
    end(&mut later, 1);
    later.exited();
    assert!(!exist(&places));
}

fn groups_of_dead_supervisors_are_removed() {
    let own = tempfile::tempdir().unwrap();
    let test = "groups_of_dead_supervisors_are_removed";
    let Some(mut desk) = desk(test, own.path()) else { return };
    desk.start(desk.script(1, "exec sleep 1000"));
    let (pid, _) = started(&mut desk);
    let places = dirs(&desk, 1);
    let claim = fs::read_to_string(desk.records(1).join("claim")).unwrap();
    let claim: serde_json::Value = serde_json::from_str(&claim).unwrap();
    let supervisor = i32::try_from(claim["supervisor"]["pid"].as_i64().unwrap()).unwrap();
    let supervisor = rustix::process::Pid::from_raw(supervisor).unwrap();
    rustix::process::kill_process(supervisor, rustix::process::Signal::KILL).unwrap();
    end(&mut desk, 1);
    assert!(matches!(desk.next(), BackendEvent::Lost { .. }));
    until("it is gone", || !lives(pid));
    desk.backend.forget(run_id(1));
    assert!(!exist(&places) && !desk.records(1).exists());
}

fn groups_and_supervisors_killed_at_any_point() {
    let own = tempfile::tempdir().unwrap();
    let test = "groups_and_supervisors_killed_at_any_point";
    let Some(mut desk) = desk(test, own.path()) else { return };
    let mut seed = 5;
    let mut places = Vec::new();
    let mut found = 0;
    for job in 1..=40 {
        desk.start(once(&desk.dir, job));
        let records = desk.records(job);
        let deadline = Instant::now() + Duration::from_millis(500);
        while Instant::now() < deadline {
            if let Some(pid) = supervising(&records) {
                std::thread::sleep(Duration::from_micros(scatter(&mut seed) % 12_000));
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                break;
            }
        }
        while !matches!(desk.next(), BackendEvent::Exited { .. } | BackendEvent::Lost { .. }) {}
        let dirs = dirs(&desk, job);
        found += usize::from(exist(&dirs));
        places.extend(dirs);
        desk.backend.forget(run_id(job));
    }
    println!("groups that killed supervisors left, and forgetting removed: {found} of 40");
    assert!(!exist(&places));
}

fn groups_that_cannot_be_made_fail_nothing() {
    let own = tempfile::tempdir().unwrap();
    let mut without = cores(own.path(), false);
    without.start(without.script(1, "exit 3"));
    assert_eq!(started(&mut without).1, Enforcement::Advisory);
    assert_eq!(without.exited().status, code(3));
    drop(without);
    let Some(mut desk) = desk("groups_that_cannot_be_made_fail_nothing", own.path()) else {
        return;
    };
    desk.start(desk.script(2, "exit 0"));
    started(&mut desk);
    desk.exited();
    // Somebody else's process is where the next group should be.
    let taken = dirs(&desk, 2).remove(0);
    let name = taken.file_name().unwrap().to_str().unwrap().replace("-2.1", "-3.1");
    let taken = taken.with_file_name(name);
    fs::create_dir(&taken).unwrap();
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(taken.join("cgroup.procs"), stranger.id().to_string()).unwrap();
    desk.start(desk.script(3, "exit 4"));
    let enforcement = started(&mut desk).1;
    let exit = desk.exited();
    let unharmed = lives(stranger.id());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    until("the group is empty", || fs::remove_dir(&taken).is_ok());
    assert_eq!((enforcement, exit.status), (Enforcement::Advisory, code(4)));
    assert!(unharmed);
}
