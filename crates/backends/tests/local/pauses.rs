//! Pausing, resuming and sampling.

use crate::fixture::{TestBackend, allocation, run_id, until};
use crate::harness::Test;
use std::fs;
use std::time::{Duration, Instant};
use tandem_backends::providers::cpu::Cpu;
use tandem_backends::{BackendEvent, Op};

pub(crate) const TESTS: &[Test] = &[
    ("every_thread_is_stopped", every_thread_is_stopped),
    ("resume_moves", resume_moves),
    ("samples", samples),
    ("latencies", latencies),
];

/// States of all threads of a process.
fn states(pid: u32) -> String {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let state = |path: std::path::PathBuf| {
        let stat = fs::read_to_string(path.join("stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    };
    tasks.map(|task| state(task.unwrap().path())).collect()
}

/// Counts, with busy threads beside it.
const THREADS: &str = "exec python3 -u -c '
import threading, time
for _ in range(7):
    threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(int, 1)], daemon=True).start()
n = 0
while True:
    n += 1
    print(n)
    time.sleep(0.001)
'";

fn every_thread_is_stopped() {
    let mut backend = TestBackend::new();
    backend.start(backend.script(1, THREADS));
    let pid = backend.started();
    until("it counts", || backend.output(1).lines().count() > 3);
    for turn in 0..5 {
        backend.apply(2 + turn, Op::Pause { run: run_id(1) });
        let event = backend.next();
        assert_eq!(states(pid), "TTTTTTTT", "{event:?}");
        assert!(matches!(event, BackendEvent::Paused { .. }));
        let before = backend.output(1);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(backend.output(1), before);
        backend.apply(20 + turn, Op::Resume { run: run_id(1), allocation: allocation(0) });
        assert!(matches!(backend.next(), BackendEvent::Resumed { .. }));
        until("it counts on", || backend.output(1).len() > before.len());
    }
    backend.apply(90, Op::End { run: run_id(1), grace_ms: 0 });
    backend.exited();
}

fn resume_moves() {
    let own = tempfile::tempdir().unwrap();
    let mut cpu = Cpu::new(None).unwrap();
    let devices = tandem_backends::Provider::list(&mut cpu).unwrap();
    let mut backend = TestBackend::with(own.path(), Box::new(cpu), |_| {});
    backend.start(
        backend.script(1, "grep Cpus_allowed_list /proc/self/status; while :; do sleep 0.01; done"),
    );
    let pid = backend.started();
    let allowed = |device: usize| {
        let core = devices[device].name.strip_prefix("cpu").unwrap();
        format!("Cpus_allowed_list:\t{core}\n")
    };
    until("it printed", || backend.output(1) == allowed(0));
    backend.apply(2, Op::Pause { run: run_id(1) });
    assert!(matches!(backend.next(), BackendEvent::Paused { .. }));
    let last = devices.len() - 1;
    let other = allocation(u32::try_from(last).unwrap());
    backend.apply(3, Op::Resume { run: run_id(1), allocation: other });
    assert!(matches!(backend.next(), BackendEvent::Resumed { .. }));
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.contains(&allowed(last)), "{status}");
    backend.apply(90, Op::End { run: run_id(1), grace_ms: 0 });
    backend.exited();
}

fn samples() {
    let own = tempfile::tempdir().unwrap();
    let cpu = Cpu::new(None).unwrap();
    let mut backend = TestBackend::with(own.path(), Box::new(cpu), |options| {
        options.sample_every = Duration::from_millis(50);
    });
    backend.start(backend.script(1, "while :; do :; done"));
    backend.started();
    until("it uses the processor", || backend.sample().runs.iter().any(|run| run.cpu_s > 0.1));
    let sample = backend.sample();
    assert!(sample.runs[0].memory_bytes > 1 << 18 && !sample.runs[0].stopped, "{sample:?}");
    assert!(sample.devices[0].utilisation.is_some() && sample.devices[0].memory_used_bytes > 0);
    backend.apply(2, Op::Pause { run: run_id(1) });
    until("it is stopped", || backend.sample().runs.iter().any(|run| run.stopped));
    backend.apply(90, Op::End { run: run_id(1), grace_ms: 0 });
    until("it ended", || matches!(backend.next(), BackendEvent::Exited { .. }));
}

/// Prints how long things take; the limits are generous, the machine may be busy.
fn latencies() {
    let mut backend = TestBackend::new();
    let mut starts = Vec::new();
    let mut pauses = Vec::new();
    for job in 1..=21 {
        let one = backend.script(job, "while :; do sleep 0.01; done");
        let begin = Instant::now();
        backend.start(one);
        backend.started();
        starts.push(begin.elapsed().as_micros());
        backend.apply(100 + job, Op::Pause { run: run_id(job) });
        match backend.next() {
            BackendEvent::Paused { took_us, .. } => pauses.push(took_us),
            other => panic!("{other:?}"),
        }
        backend.apply(200 + job, Op::End { run: run_id(job), grace_ms: 0 });
        backend.exited();
    }
    starts.sort_unstable();
    pauses.sort_unstable();
    println!(
        "start {} µs, pause {} µs (medians); at most {} and {} µs",
        starts[10], pauses[10], starts[20], pauses[20]
    );
    assert!(starts[10] < 500_000 && pauses[10] < 500_000);
}
