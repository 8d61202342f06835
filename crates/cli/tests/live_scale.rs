//! Long queues: how long commands take, and that running jobs are shown first. 2,000 pending jobs always; with
//! `TANDEM_TEST_SCALE=1` 100,000, and with `--release` the times are held against their limits.

#![allow(clippy::unwrap_used)]

mod common;

use common::daemon::{Daemon, Options, until};
use common::tell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use tandem_daemon::api::types::JobAction;
use tandem_daemon::client::JobQuery;
use tandem_daemon::job::JobState;
use tandem_daemon::request::JobRequest;

const RUNNING: u32 = 64;

/// The 99th percentile and the maximum of the times of something.
fn times(count: usize, mut act: impl FnMut()) -> (Duration, Duration) {
    let mut all: Vec<Duration> = (0..count)
        .map(|_| {
            let began = Instant::now();
            act();
            began.elapsed()
        })
        .collect();
    all.sort();
    (all[(count * 99).div_ceil(100) - 1], all[count - 1])
}

/// Whatever the length of the queue.
fn running_jobs_come_first(daemon: &Daemon) {
    let lines = daemon.ok(&["queue"]).stdout;
    let state = |line: &str| {
        line.split_whitespace().find(|word| ["R", "PD"].contains(word)).map(str::to_owned)
    };
    let states: Vec<String> = lines.lines().skip(2).filter_map(state).collect();
    let running = states.iter().take_while(|state| *state == "R").count();
    assert_eq!((running, states.len()), (RUNNING as usize, 1000), "{lines}");
}

/// Jobs on all devices, and `pending` others behind them.
fn submit_queue(daemon: &Daemon, pending: u64) {
    let sleeper = JobRequest { exclusive: true, ..daemon.shell("exec sleep 3600") };
    let first = JobRequest { array: Some(format!("1-{RUNNING}")), ..sleeper.clone() };
    daemon.submit(&first);
    let mut client = daemon.client();
    until("all devices are busy", || {
        client.info().unwrap().jobs.get("running").copied() == Some(u64::from(RUNNING))
    });
    let mut left = pending;
    while left > 0 {
        let some = left.min(50_000);
        daemon.submit(&JobRequest { array: Some(format!("1-{some}")), ..sleeper.clone() });
        left -= some;
    }
}

#[test]
fn commands_are_quick_on_a_long_queue() {
    let is_large = std::env::var_os("TANDEM_TEST_SCALE").is_some();
    let pending: u64 = if is_large { 100_000 } else { 2_000 };
    let daemon = Daemon::start(Options::fake(RUNNING));
    submit_queue(&daemon, pending);
    let mut client = daemon.client();
    let last = u64::from(RUNNING) + pending;
    let states: Vec<JobState> =
        JobState::ALL.into_iter().filter(|state| !state.is_over()).collect();
    let count = if is_large { 200 } else { 20 };
    // What `tandem queue` and `top` ask for.
    let tenants = JobQuery {
        states: vec![JobState::Running],
        limit: Some(1000),
        latest_first: true,
        ..JobQuery::default()
    };
    let page = JobQuery { states, limit: Some(1000), latest_first: true, ..JobQuery::default() };
    let queue = times(count, || {
        client.jobs(&page).unwrap();
        assert_eq!(client.jobs(&tenants).unwrap().jobs.len(), RUNNING as usize);
    });
    let top = times(count, || {
        client.info().unwrap();
        client.devices().unwrap();
        client.jobs(&page).unwrap();
        client.jobs(&tenants).unwrap();
    });
    let info = times(count, || drop(client.job(last).unwrap()));
    let explain = times(5, || drop(client.explain(last, None).unwrap()));
    // Several at a time, and nobody else is kept waiting.
    let began = Instant::now();
    let others: Vec<_> = (0..6)
        .map(|_| {
            let mut client = daemon.client();
            std::thread::spawn(move || drop(client.explain(last, None).unwrap()))
        })
        .collect();
    let beside = times(10, || drop(client.job(last).unwrap()));
    others.into_iter().for_each(|other| other.join().unwrap());
    let six = began.elapsed();
    running_jobs_come_first(&daemon);
    let hold = times(1, || drop(client.change(JobAction::Hold, &["all".to_owned()]).unwrap()));
    let release =
        times(1, || drop(client.change(JobAction::Release, &["all".to_owned()]).unwrap()));
    let began = Instant::now();
    let done = client.change(JobAction::Cancel, &["all".to_owned()]).unwrap().value.done.len();
    let cancel = began.elapsed();
    assert_eq!(done as u64, last);
    for (what, (p99, most)) in [
        ("queue", queue),
        ("top", top),
        ("info", info),
        ("explain", explain),
        ("info beside six explains", beside),
        ("hold all", hold),
        ("release all", release),
        ("cancel all", (cancel, cancel)),
        ("six explains at a time", (six, six)),
    ] {
        tell(&format!(
            "{pending} pending, {RUNNING} running: {what}: p99 {p99:.1?}, at most {most:.1?}"
        ));
    }
    // Generous on a busy machine and without optimisation; the figures above are what counts.
    assert!(
        explain.1 < Duration::from_secs(8) && six < Duration::from_secs(16),
        "{explain:?} {six:?}"
    );
    if is_large && !cfg!(debug_assertions) {
        let quick = Duration::from_millis(100);
        for (what, (p99, _)) in [("queue", queue), ("top", top), ("info", info)] {
            assert!(p99 <= quick, "{what}: {p99:?}");
        }
        let bound = Duration::from_secs(2);
        assert!(explain.1 <= bound && cancel <= bound, "{explain:?} {cancel:?}");
    }
    let limit = Duration::from_secs(if is_large { 60 } else { 10 });
    assert!(cancel < limit && queue.1 < limit && info.1 < limit, "{cancel:?} {queue:?} {info:?}");
    until("nothing is left", || client.info().unwrap().jobs.is_empty());
}

/// A change of many jobs does not keep other requests waiting until all are changed.
#[test]
fn others_are_served_during_a_change_of_many_jobs() {
    let daemon = Daemon::start(Options::fake(1));
    let held = JobRequest { hold: true, ..daemon.shell("exec true") };
    daemon.submit(&JobRequest { array: Some("1-40000".to_owned()), ..held });
    let mut other = daemon.client();
    let mut owner = daemon.client();
    let change = |client: &mut tandem_daemon::client::Client, action| {
        client.change(action, &["all".to_owned()]).unwrap().value.done.len()
    };
    let began = Instant::now();
    let changing = std::thread::spawn(move || {
        (change(&mut owner, JobAction::Hold), change(&mut owner, JobAction::Cancel))
    });
    let (mut served, mut longest) = (0, Duration::ZERO);
    while !changing.is_finished() {
        let asked = Instant::now();
        other.info().unwrap();
        longest = longest.max(asked.elapsed());
        served += 1;
    }
    let took = began.elapsed();
    let (held, cancelled) = changing.join().unwrap();
    assert_eq!((held, cancelled), (40_000, 40_000));
    tell(&format!(
        "two changes of 40,000 jobs: {took:.1?}; others: {served}, at most {longest:.1?}"
    ));
    // Two selections and ten portions, each of which lets others in.
    assert!(served >= 6, "{longest:?} of {took:?}, {served} answers");
    until("nothing is left", || other.info().unwrap().jobs.is_empty());
}

/// The most memory that the daemon has taken, in MiB.
fn memory_mib(daemon: &Daemon) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_ascii_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// So many submissions over connections that stay open, several at a time; gives how many were accepted per second.
fn submissions_per_second(daemon: &Daemon, count: usize) -> f64 {
    const CLIENTS: usize = 32;
    let body = serde_json::to_string(&JobRequest { hold: true, ..daemon.shell("true") }).unwrap();
    let request = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut stream = UnixStream::connect(&daemon.socket).unwrap();
                let mut answer = [0; 4096];
                for _ in 0..count / CLIENTS {
                    stream.write_all(request.as_bytes()).unwrap();
                    let length = stream.read(&mut answer).unwrap();
                    assert!(
                        answer[..length].starts_with(b"HTTP/1.1 201"),
                        "{:?}",
                        &answer[..length]
                    );
                }
            });
        }
    });
    (count / CLIENTS * CLIENTS) as f64 / began.elapsed().as_secs_f64()
}

/// Many pending tasks: others are served while they are submitted, submissions beside them are quick, and the next
/// daemon starts soon and stays small.
#[test]
fn a_daemon_starts_again_with_a_million_pending_tasks() {
    let is_large = std::env::var_os("TANDEM_TEST_SCALE").is_some();
    let arrays = if is_large { 10 } else { 1 };
    let size = if is_large { 100_000 } else { 20_000 };
    let options = Options::fake(4).and(&["--set", "limits.jobs=1100000"]);
    let mut daemon = Daemon::start(options);
    let sleeper = JobRequest { exclusive: true, ..daemon.shell("exec sleep 3600") };
    let array = JobRequest { array: Some(format!("1-{size}")), ..sleeper };
    let mut client = daemon.client();
    let mut other = daemon.client();
    let began = Instant::now();
    let submitting = std::thread::spawn(move || {
        (0..arrays).map(|_| client.submit(&array).unwrap().value.ids.len()).sum::<usize>()
    });
    let mut waits = Vec::new();
    while !submitting.is_finished() {
        let asked = Instant::now();
        other.info().unwrap();
        waits.push(asked.elapsed());
        std::thread::sleep(Duration::from_millis(2));
    }
    let submitted = submitting.join().unwrap();
    assert_eq!(submitted, arrays * size);
    let took = began.elapsed();
    waits.sort();
    let (p99, most) = (waits[(waits.len() * 99).div_ceil(100) - 1], waits[waits.len() - 1]);
    let count = if is_large { 20_000 } else { 1_000 };
    let rate = submissions_per_second(&daemon, count);
    let before = memory_mib(&daemon);
    daemon.kill();
    let began = Instant::now();
    daemon.restart();
    let started = began.elapsed();
    let after = memory_mib(&daemon);
    let counts = daemon.client().info().unwrap().value.jobs;
    let all: u64 = counts.values().sum();
    assert_eq!(all as usize, submitted + count / 32 * 32, "{counts:?}");
    tell(&format!(
        "{submitted} pending tasks were submitted in {took:.1?}, others waited {p99:.1?} (p99), at most {most:.1?}; \
         {rate:.0} submissions per second beside them; the daemon took {before} MiB; the next one started in \
         {started:.1?} and took {after} MiB"
    ));
    if is_large && !cfg!(debug_assertions) {
        assert!(started <= Duration::from_secs(10), "{started:?}");
        assert!(before.max(after) <= 1024, "{before} and {after} MiB");
        assert!(rate >= 5000.0, "{rate} submissions per second");
        assert!(p99 <= Duration::from_millis(100), "{p99:?}, {most:?}");
    }
    // No other test waits until a million jobs are cancelled.
    assert!(waits.len() > 5 && p99 < Duration::from_secs(5), "{p99:?} of {}", waits.len());
}
