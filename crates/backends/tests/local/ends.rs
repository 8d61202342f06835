//! How runs end.

use crate::fixture::{TestBackend, code, lives, run_id, until};
use crate::harness::Test;
use std::time::{Duration, Instant};
use tandem_backends::{Backend, BackendEvent, ExitStatus, Op};

pub(crate) const TESTS: &[Test] = &[
    ("leftover_processes_are_killed", leftover_processes_are_killed),
    ("end_sends_sigterm_first", end_sends_sigterm_first),
    ("end_sends_sigkill_after_the_grace_period", end_sends_sigkill_after_the_grace_period),
    ("a_second_end_may_shorten_the_grace_period", a_second_end_may_shorten_the_grace_period),
    ("end_of_a_paused_run", end_of_a_paused_run),
    ("no_zombies", no_zombies),
    ("many_at_once", many_at_once),
];

fn leftover_processes_are_killed() {
    let mut backend = TestBackend::new();
    let script = "sleep 1000 & echo $!; (sleep 1001 & echo $!); setsid sleep 1002 & echo $!; sleep 0.2; exit 3";
    let exit = backend.run(1, script);
    assert_eq!(exit.status, code(3));
    let output = backend.output(1);
    assert_eq!(output.lines().count(), 3);
    for pid in output.lines() {
        assert!(!lives(pid.parse().unwrap()), "{output}");
    }
}

fn end_sends_sigterm_first() {
    let mut backend = TestBackend::new();
    backend
        .start(backend.script(1, "trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done"));
    backend.started();
    until("the trap", || backend.output(1) == "ready\n");
    backend.apply(2, Op::End { run: run_id(1), grace_ms: 10_000 });
    assert_eq!(backend.exited().status, code(5));
    backend.apply(3, Op::End { run: run_id(1), grace_ms: 0 });
    backend.apply(4, Op::Pause { run: run_id(1) });
    assert_eq!(backend.next_within(Duration::from_millis(100)), None);
}

fn end_sends_sigkill_after_the_grace_period() {
    let mut backend = TestBackend::new();
    backend.start(backend.script(1, "trap '' TERM; echo ready; while :; do sleep 0.01; done"));
    backend.started();
    until("the trap", || backend.output(1) == "ready\n");
    let begin = Instant::now();
    backend.apply(2, Op::End { run: run_id(1), grace_ms: 300 });
    assert_eq!(backend.exited().status, ExitStatus::Signal(9));
    let took = begin.elapsed();
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
}

fn a_second_end_may_shorten_the_grace_period() {
    let mut backend = TestBackend::new();
    backend.start(backend.script(1, "trap '' TERM; echo ready; while :; do sleep 0.01; done"));
    backend.apply(2, Op::End { run: run_id(1), grace_ms: 60_000 });
    backend.started();
    until("the trap", || backend.output(1) == "ready\n" || !backend.seen.is_empty());
    backend.apply(3, Op::End { run: run_id(1), grace_ms: 0 });
    assert!(matches!(backend.exited().status, ExitStatus::Signal(_)));
}

fn end_of_a_paused_run() {
    let mut backend = TestBackend::new();
    backend.start(backend.script(1, "while :; do :; done"));
    backend.started();
    backend.apply(2, Op::Pause { run: run_id(1) });
    assert!(matches!(backend.next(), BackendEvent::Paused { .. }));
    backend.apply(3, Op::End { run: run_id(1), grace_ms: 10_000 });
    assert_eq!(backend.exited().status, ExitStatus::Signal(15));
}

fn no_zombies() {
    let mut backend = TestBackend::new();
    let mut supervisors = Vec::new();
    for job in 1..20 {
        backend.start(backend.script(job, "(sleep 0.01 &) ; exit 1"));
        backend.started();
        let claim = std::fs::read_to_string(backend.records(job).join("claim")).unwrap();
        let claim: serde_json::Value = serde_json::from_str(&claim).unwrap();
        supervisors.push(claim["supervisor"]["pid"].as_u64().unwrap());
        backend.exited();
    }
    for pid in supervisors {
        until("the supervisor is waited for", || {
            !std::path::Path::new(&format!("/proc/{pid}")).exists()
        });
    }
    for job in 1..20 {
        backend.inner.forget(run_id(job));
        assert!(!backend.records(job).exists());
    }
}

fn many_at_once() {
    let mut backend = TestBackend::new();
    backend.run(1, "true");
    let open = || {
        std::fs::read_dir("/proc/self/fd").unwrap().filter(|fd| {
            let to = fd.as_ref().ok().and_then(|fd| std::fs::read_link(fd.path()).ok());
            to.is_some_and(|to| to.to_string_lossy().contains("pidfd"))
        })
    };
    let begin = Instant::now();
    for job in 2..102 {
        backend.start(backend.script(job, &format!("exit {}", job % 100)));
    }
    let mut codes = std::collections::BTreeMap::new();
    while codes.len() < 100 {
        if let BackendEvent::Exited { run, exit } = backend.next() {
            codes.insert(run.job, exit.status.code());
        }
    }
    println!("100 runs from start to end: {} ms", begin.elapsed().as_millis());
    assert!(codes.iter().all(|(job, code)| *code == i32::try_from(job % 100).unwrap()));
    drop(backend);
    // Other tests have descriptors too.
    assert!(open().count() < 50);
}
