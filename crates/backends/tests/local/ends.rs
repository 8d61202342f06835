//! How runs end.

use crate::desk::{Desk, code, lives, run_id, until};
use crate::harness::Test;
use std::time::{Duration, Instant};
use tandem_backends::{Backend, BackendEvent, ExitStatus, Op};

pub(crate) const TESTS: &[Test] = &[
    ("nothing_is_left_behind", nothing_is_left_behind),
    ("end_is_a_request_first", end_is_a_request_first),
    ("end_is_force_at_last", end_is_force_at_last),
    ("a_second_end_may_be_quicker", a_second_end_may_be_quicker),
    ("end_of_a_paused_run", end_of_a_paused_run),
    ("no_zombies", no_zombies),
    ("many_at_once", many_at_once),
];

fn nothing_is_left_behind() {
    let mut desk = Desk::new();
    let script = "sleep 1000 & echo $!; (sleep 1001 & echo $!); setsid sleep 1002 & echo $!; sleep 0.2; exit 3";
    let exit = desk.run(1, script);
    assert_eq!(exit.status, code(3));
    let output = desk.output(1);
    assert_eq!(output.lines().count(), 3);
    for pid in output.lines() {
        assert!(!lives(pid.parse().unwrap()), "{output}");
    }
}

fn end_is_a_request_first() {
    let mut desk = Desk::new();
    desk.start(desk.script(1, "trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done"));
    desk.started();
    until("the trap", || desk.output(1) == "ready\n");
    desk.apply(2, Op::End { run: run_id(1), grace_ms: 10_000 });
    assert_eq!(desk.exited().status, code(5));
    desk.apply(3, Op::End { run: run_id(1), grace_ms: 0 });
    desk.apply(4, Op::Pause { run: run_id(1) });
    assert_eq!(desk.next_within(Duration::from_millis(100)), None);
}

fn end_is_force_at_last() {
    let mut desk = Desk::new();
    desk.start(desk.script(1, "trap '' TERM; echo ready; while :; do sleep 0.01; done"));
    desk.started();
    until("the trap", || desk.output(1) == "ready\n");
    let begin = Instant::now();
    desk.apply(2, Op::End { run: run_id(1), grace_ms: 300 });
    assert_eq!(desk.exited().status, ExitStatus::Signal(9));
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
}

fn a_second_end_may_be_quicker() {
    let mut desk = Desk::new();
    desk.start(desk.script(1, "trap '' TERM; echo ready; while :; do sleep 0.01; done"));
    desk.apply(2, Op::End { run: run_id(1), grace_ms: 60_000 });
    desk.started();
    until("the trap", || desk.output(1) == "ready\n" || !desk.seen.is_empty());
    desk.apply(3, Op::End { run: run_id(1), grace_ms: 0 });
    assert!(matches!(desk.exited().status, ExitStatus::Signal(_)));
}

fn end_of_a_paused_run() {
    let mut desk = Desk::new();
    desk.start(desk.script(1, "while :; do :; done"));
    desk.started();
    desk.apply(2, Op::Pause { run: run_id(1) });
    assert!(matches!(desk.next(), BackendEvent::Paused { .. }));
    desk.apply(3, Op::End { run: run_id(1), grace_ms: 10_000 });
    assert_eq!(desk.exited().status, ExitStatus::Signal(15));
}

fn no_zombies() {
    let mut desk = Desk::new();
    let mut supervisors = Vec::new();
    for job in 1..20 {
        desk.start(desk.script(job, "(sleep 0.01 &) ; exit 1"));
        desk.started();
        let claim = std::fs::read_to_string(desk.records(job).join("claim")).unwrap();
        let claim: serde_json::Value = serde_json::from_str(&claim).unwrap();
        supervisors.push(claim["supervisor"]["pid"].as_u64().unwrap());
        desk.exited();
    }
    for pid in supervisors {
        until("the supervisor is waited for", || {
            !std::path::Path::new(&format!("/proc/{pid}")).exists()
        });
    }
    for job in 1..20 {
        desk.backend.forget(run_id(job));
        assert!(!desk.records(job).exists());
    }
}

fn many_at_once() {
    let mut desk = Desk::new();
    desk.run(1, "true");
    let open = || {
        std::fs::read_dir("/proc/self/fd").unwrap().filter(|fd| {
            let to = fd.as_ref().ok().and_then(|fd| std::fs::read_link(fd.path()).ok());
            to.is_some_and(|to| to.to_string_lossy().contains("pidfd"))
        })
    };
    let begin = Instant::now();
    for job in 2..102 {
        desk.start(desk.script(job, &format!("exit {}", job % 100)));
    }
    let mut codes = std::collections::BTreeMap::new();
    while codes.len() < 100 {
        if let BackendEvent::Exited { run, exit } = desk.next() {
            codes.insert(run.job, exit.status.code());
        }
    }
    println!("100 runs from start to end: {} ms", begin.elapsed().as_millis());
    assert!(codes.iter().all(|(job, code)| *code == i32::try_from(job % 100).unwrap()));
    drop(desk);
    // Those of other tests come and go.
    assert!(open().count() < 50);
}
