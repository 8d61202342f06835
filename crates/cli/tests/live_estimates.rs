//! Estimates, start times and the sharing of jobs that were not written for Tandem, with real processes on
//! cores. Every wait is on a condition: the tests hold on a busy machine, too.

#![allow(clippy::unwrap_used)]

mod common;

use common::daemon::{Daemon, Options};
use common::sample_job;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tandem_daemon::api::types::{ClassInfo, DeviceInfo};
use tandem_daemon::job::JobState;
use tandem_daemon::request::JobRequest;

/// How long anything may take that involves measuring.
const PATIENCE: Duration = Duration::from_secs(150);
const QUICK: [&str; 8] = [
    "--set",
    "learning.settle_s=1",
    "--set",
    "learning.window_s=0.5",
    "--set",
    "learning.sample_s=0.2",
    "--set",
    "daemon.kill_grace_s=1",
];

/// Two of these tests at a time would measure each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Other programs that want all of the machine's time, until this is dropped.
struct BusyMachine(Vec<Child>);

impl BusyMachine {
    fn start() -> Self {
        let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self((0..cores).map(|_| busy()).collect())
    }
}

impl Drop for BusyMachine {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// On the machine as it is, and on a busy one.
fn quiet_and_busy(check: fn()) {
    let _alone = alone();
    check();
    let _busy = BusyMachine::start();
    check();
}

fn cores(count: u32) -> Options {
    Options::with(&["--provider", "cpu", "--devices", &count.to_string()])
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
    began.elapsed()
}

fn device(daemon: &Daemon) -> DeviceInfo {
    daemon.client().devices().unwrap().devices[0].clone()
}

fn class(daemon: &Daemon, name: &str) -> Option<ClassInfo> {
    let classes = daemon.client().classes().unwrap().classes.clone();
    classes.into_iter().find(|class| class.name == name)
}

fn train(daemon: &Daemon, class: Option<&str>, arguments: &[&str]) -> JobRequest {
    let command = [&[sample_job()][..], arguments].concat();
    JobRequest {
        command: command.iter().map(|&text| text.to_owned()).collect(),
        class: class.map(str::to_owned),
        ..daemon.shell("")
    }
}

/// Five jobs of a moment say nothing about a training run: it is not paused in favour of others, its own
/// progress tells how long it takes, and two of it share their core.
#[test]
fn short_jobs_do_not_spoil_the_estimates_of_others() {
    quiet_and_busy(short_jobs);
}

fn short_jobs() {
    let mut daemon = Daemon::start(cores(1));
    let request = JobRequest { array: Some("1-5".to_owned()), ..daemon.shell("true") };
    let short = daemon.client().submit(&request).unwrap().ids.clone();
    wait_until("the short jobs are over", || {
        short.iter().all(|&id| daemon.job(id).line.state == JobState::Completed)
    });
    let steps = ["--steps", "100000", "--gap", "50"];
    let request = JobRequest { array: Some("1-3".to_owned()), ..train(&daemon, None, &steps) };
    let jobs = daemon.client().submit(&request).unwrap().ids.clone();
    let [first, .., last] = jobs.as_slice() else { panic!("three jobs") };
    let waiting = daemon.job(*last);
    assert!(waiting.estimate_s.unwrap() >= 60.0, "{:?}", waiting.estimate_s);
    assert!(waiting.estimate_from.unwrap().contains("guess"));
    let took = wait_until("two of them share", || device(&daemon).jobs.len() >= 2);
    println!("two jobs of an unknown class share after {:.1} s", took.as_secs_f64());
    let mut info = daemon.job(*first);
    wait_until("a job is judged by its own progress", || {
        info = daemon.job(*first);
        info.estimate_from.as_deref() == Some("its own progress")
    });
    assert!(info.estimate_s.unwrap() > 60.0, "{:?}", info.estimate_s);
    daemon.stop();
    let journal = daemon.state.join("state.db");
    let replayed = daemon.tandem(&["replay", journal.to_str().unwrap()]);
    assert_eq!(replayed.code, Some(0), "{replayed:?}");
}

#[test]
fn an_estimate_that_was_exceeded_grows_for_the_job_and_for_its_class() {
    let _alone = alone();
    let daemon = Daemon::start(cores(1).and(&QUICK));
    let of_class = |line: &str| JobRequest {
        class: Some("one".to_owned()),
        exclusive: true,
        ..daemon.shell(line)
    };
    let first = daemon.submit(&of_class("sleep 0.2"));
    daemon.await_state(first, "completed");
    let (running, waiting) =
        (daemon.submit(&of_class("sleep 600")), daemon.submit(&of_class("true")));
    assert!(daemon.job(waiting).estimate_s.unwrap() < 5.0);
    wait_until("the estimate has grown", || {
        let job = daemon.job(running);
        assert!(job.estimate_s.unwrap() >= job.done_s, "{job:?}");
        job.estimate_s.unwrap() > 5.0
    });
    wait_until("the one that waits is expected to take longer, too", || {
        daemon.job(waiting).estimate_s.unwrap() > 5.0
    });
}

/// A trial of a few steps does not make a long run of the same class look short, and what a running job shows
/// of its progress tells about those that wait.
#[test]
fn a_short_trial_does_not_shorten_the_estimates_of_long_runs() {
    let _alone = alone();
    let daemon = Daemon::start(cores(1).and(&QUICK));
    let run = |steps: &str| JobRequest {
        exclusive: true,
        ..train(&daemon, None, &["--steps", steps, "--gap", "20"])
    };
    let trial = daemon.submit(&run("120"));
    let trial = daemon.await_state(trial, "completed");
    let [running, waiting] = [0, 1].map(|_| daemon.submit(&run("200000")));
    let (running, waiting) = (daemon.job(running), waiting);
    assert_eq!(running.line.class, trial.line.class);
    let expected = trial.line.run_s * 200_000.0 / 120.0;
    let estimate = daemon.job(waiting).estimate_s.unwrap();
    assert!((expected / 4.0..expected * 4.0).contains(&estimate), "{estimate} s, not {expected} s");
}

#[test]
fn the_progress_of_a_running_job_tells_how_long_others_of_its_class_take() {
    let _alone = alone();
    let daemon = Daemon::start(cores(1).and(&QUICK));
    let bar =
        || JobRequest { exclusive: true, class: Some("bars".to_owned()), ..daemon.shell(BAR) };
    let [first, second, third] = [0, 1, 2].map(|_| daemon.submit(&bar()));
    wait_until("those that wait know", || {
        daemon.job(second).estimate_from.unwrap().contains("progress of a running job")
    });
    let [own, others] = [first, third].map(|id| daemon.job(id).estimate_s.unwrap());
    assert!((0.5..2.0).contains(&(own / others)), "{own} s and {others} s");
    let reason = daemon.job(third).line.reason.unwrap();
    assert!(reason.contains(&format!("job {first} ends in about ")), "{reason}");
    let answer = daemon.client().explain(third, None).unwrap();
    let [earliest, _, latest] = answer.start_in_s.unwrap();
    assert!(earliest > own / 2.0 && latest < own * 8.0, "{answer:?}");
}

/// Jobs that are not planned yet, because their user has so many, are counted all the same.
#[test]
fn the_start_of_a_job_behind_the_planned_ones_is_a_range_too() {
    let _alone = alone();
    let options = Options::fake(2).and(&["--set", "limits.planned_per_user=50"]);
    let daemon = Daemon::start(options);
    let many = JobRequest {
        array: Some("1-1000".to_owned()),
        exclusive: true,
        estimate_s: Some(30.0),
        ..daemon.shell("sleep 30")
    };
    let ids = daemon.client().submit(&many).unwrap().ids.clone();
    for place in [400, 1000] {
        let truth = (place - 2) as f64 / 2.0 * 30.0;
        let answer = daemon.client().explain(ids[place - 1], None).unwrap();
        let [earliest, _, latest] = answer.start_in_s.unwrap();
        assert!(
            earliest <= truth && truth <= latest && latest < 5.0 * truth,
            "{place}: {answer:?}"
        );
    }
    // Behind all of them comes one that is yet to be submitted.
    let one = JobRequest { array: None, ..many };
    let answer = daemon.client().dry_run(&one, None).unwrap();
    let [earliest, _, latest] = answer.start_in_s.unwrap();
    assert!(earliest <= 15_000.0 && 15_000.0 <= latest, "{answer:?}");
    daemon.ok(&["cancel", "all"]);
}

/// 5,000 jobs of 30 s on two devices take 20 hours and 50 minutes.
#[test]
fn the_start_of_the_last_of_many_jobs_is_a_range_or_not_known() {
    let _alone = alone();
    let daemon = Daemon::start(Options::fake(2));
    let truth = 4998.0 / 2.0 * 30.0;
    let many = |estimate_s| JobRequest {
        array: Some("1-5000".to_owned()),
        exclusive: true,
        estimate_s,
        ..daemon.shell("sleep 30")
    };
    let unknown = daemon.client().submit(&many(None)).unwrap().ids.clone();
    let began = Instant::now();
    let answer = daemon.client().explain(*unknown.last().unwrap(), None).unwrap();
    let took = began.elapsed();
    println!("explain of the last of 5,000 jobs: {:.2} s", took.as_secs_f64());
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert!(answer.start_in_s.is_none(), "{:?}", answer.start_in_s);
    assert!(answer.start_note.as_deref().unwrap().contains("have not finished"), "{answer:?}");
    let said = daemon.ok(&["explain", &unknown.last().unwrap().to_string()]).stdout;
    assert!(said.contains("when it starts is not known"), "{said}");
    daemon.ok(&["cancel", "all"]);
    wait_until("the devices are free", || device(&daemon).jobs.is_empty());

    let known = daemon.client().submit(&many(Some(30.0))).unwrap().ids.clone();
    let answer = daemon.client().explain(*known.last().unwrap(), None).unwrap();
    let [earliest, _, latest] = answer.start_in_s.unwrap();
    println!(
        "the last of 5,000 jobs starts in {earliest:.0} s to {latest:.0} s, in truth {truth:.0} s"
    );
    assert!(earliest <= truth && truth <= latest, "{answer:?}");
    assert!(latest < 10.0 * truth, "a range that says something: {answer:?}");
    daemon.ok(&["cancel", "all"]);
}

/// Two jobs that print nothing and want the whole core gain nothing together: they are kept apart. Two that
/// sleep share.
#[test]
fn silent_jobs_share_only_if_they_leave_their_core_idle() {
    quiet_and_busy(silent_jobs);
}

fn silent_jobs() {
    let daemon = Daemon::start(cores(1).and(&QUICK).and(&["--policy", "tandem:slice_s=1"]));
    let silent = |class: &str, line: &str| JobRequest {
        class: Some(class.to_owned()),
        ..daemon.shell(line)
    };
    let busy = [0, 1].map(|_| daemon.submit(&silent("busy", "while :; do :; done")));
    wait_until("the daemon knows how much they use the core", || {
        class(&daemon, "busy").is_some_and(|class| class.duty.is_some_and(|duty| duty > 0.8))
    });
    wait_until("their memory is known", || {
        class(&daemon, "busy").is_some_and(|class| class.memory_bytes.is_some())
    });
    let until = Instant::now() + Duration::from_secs(6);
    let mut together = 0;
    while Instant::now() < until {
        let device = device(&daemon);
        together += u32::from(device.jobs.len() > 1);
        assert!(device.normalised_throughput.is_none_or(|sum| sum < 1.4), "{device:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(together < 3, "they were together {together} times of 60");
    for id in busy {
        daemon.client().cancel(id).unwrap();
    }
    let idle = [0, 1].map(|_| daemon.submit(&silent("idle", "sleep 1000")));
    wait_until("two that sleep share", || {
        let jobs = device(&daemon).jobs;
        idle.iter().all(|id| jobs.contains(id))
    });
}

/// What a class does alone tells what it does beside another before the two have met.
#[test]
fn a_pair_that_never_met_is_predicted_by_what_both_do_alone() {
    let _alone = alone();
    let daemon = Daemon::start(cores(1).and(&QUICK));
    let names = [("busy", "0"), ("idle", "80")];
    for (name, gap) in names {
        let request = train(&daemon, Some(name), &["--steps", "100000", "--gap", gap]);
        let id = daemon.submit(&JobRequest { exclusive: true, ..request });
        wait_until("what it does alone is known", || {
            class(&daemon, name).is_some_and(|class| {
                class.duty.is_some() && class.memory_bytes.is_some() && class.steps_per_s.len() == 1
            })
        });
        daemon.client().cancel(id).unwrap();
        daemon.await_state(id, "cancelled");
    }
    let host = train(&daemon, Some("busy"), &["--steps", "100000", "--gap", "0"]);
    daemon.await_pid(daemon.submit(&host));
    let rate_beside_it = |name: &str| {
        let request = train(&daemon, Some(name), &["--steps", "10"]);
        let answer = daemon.client().dry_run(&request, None).unwrap();
        let reason = answer.devices[0].reason.clone();
        let rate = reason.split_once("would run at ").and_then(|(_, rate)| rate.split_once(','));
        rate.and_then(|(rate, _)| rate.parse::<f64>().ok()).unwrap_or_else(|| panic!("{reason}"))
    };
    let (busy, idle) = (rate_beside_it("busy"), rate_beside_it("idle"));
    println!(
        "predicted beside one that wants all of the core: {busy} for another, {idle} for an idle one"
    );
    assert!((0.45..0.62).contains(&busy), "two that want all of the core: {busy}");
    assert!(idle > busy + 0.1, "one that leaves most of it: {idle}, and {busy}");
}

/// A script that draws a bar as tqdm does, with carriage returns on standard error.
const BAR: &str = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); \
    printf '\\rEpoch 1/1:  %d%%|####  | %d/3000 [00:01<00:10, 49.1it/s, loss=0.3]' $((i/30)) $i >&2; sleep 0.02; done";

#[test]
fn a_progress_bar_tells_speed_and_total_without_a_pattern() {
    quiet_and_busy(progress_bar);
}

fn progress_bar() {
    let daemon = Daemon::start(cores(1).and(&QUICK));
    let request = JobRequest {
        class: Some("bar".to_owned()),
        stderr: Some("bar.err".into()),
        ..daemon.shell(BAR)
    };
    let id = daemon.submit(&request);
    wait_until("its speed is known", || {
        class(&daemon, "bar").is_some_and(|class| class.steps_per_s.contains_key(&1))
    });
    let speed = class(&daemon, "bar").unwrap().steps_per_s[&1];
    assert!((1.0..60.0).contains(&speed), "{speed} steps per second, at most 50");
    wait_until("its total is known", || {
        daemon.job(id).estimate_from.as_deref() == Some("its own progress")
    });
    let job = daemon.job(id);
    let (estimate, speed) =
        (job.estimate_s.unwrap(), class(&daemon, "bar").unwrap().steps_per_s[&1]);
    let ratio = estimate * speed / 3000.0;
    assert!((0.4..2.5).contains(&ratio), "{estimate} s for 3000 steps at {speed} per second");
}

/// With the configuration as it comes.
#[test]
fn jobs_share_soon_after_their_class_is_known() {
    let _alone = alone();
    let daemon = Daemon::start(cores(1));
    let steps = ["--steps", "100000", "--gap", "60"];
    let request = train(&daemon, Some("soon"), &steps);
    let jobs = [0, 1].map(|_| daemon.submit(&request));
    wait_until("the first one reports steps", || !daemon.job(jobs[0]).caps.is_empty());
    let share = |jobs: [u64; 2]| {
        let on = device(&daemon).jobs;
        jobs.iter().all(|id| on.contains(id))
    };
    let unknown = wait_until("two jobs of an unknown class share", || share(jobs));
    for id in jobs {
        daemon.client().cancel(id).unwrap();
    }
    wait_until("the core is free", || device(&daemon).jobs.is_empty());
    let first = daemon.submit(&request);
    daemon.await_pid(first);
    let answer = daemon.client().submit(&request).unwrap().value;
    let second = answer.ids[0];
    let outlook = answer.outlook.unwrap();
    let slowdown = outlook.slowdown.unwrap_or_else(|| panic!("{outlook:?}"));
    assert_eq!(
        outlook.text,
        format!("starts now on GPU 0 beside job {first} (expected slow-down {slowdown:.2})")
    );
    assert!((1.0..2.0).contains(&slowdown), "{outlook:?}");
    let known = wait_until("two jobs of a known class share", || share([first, second]));
    let seconds = [unknown, known].map(|span| span.as_secs_f64());
    println!(
        "first sharing: {:.1} s after the first steps of an unknown class, {:.1} s of a known one",
        seconds[0], seconds[1]
    );
    // The aim is 15 s and 2 s on a quiet machine; the policy by itself decides every 60 s.
    assert!(seconds[0] < 30.0 && seconds[1] < 5.0, "{seconds:?}");
}

#[test]
fn models_are_classes_and_seeds_are_not() {
    let daemon = Daemon::start(Options::fake(4).and(&QUICK));
    let run = |arguments: &str| {
        let request = JobRequest {
            command: ["sh", "train.sh"]
                .iter()
                .copied()
                .chain(arguments.split(' '))
                .map(str::to_owned)
                .collect(),
            ..daemon.shell("")
        };
        let id = daemon.submit(&request);
        daemon.await_state(id, "completed").line.class
    };
    std::fs::write(daemon.dir.path().join("train.sh"), "sleep 0.1\n").unwrap();
    let small = run("--model small --seed 1 --out /tmp/a");
    assert_eq!(small, run("--model small --seed 2 --out /tmp/b"));
    assert_ne!(small, run("--model huge --seed 1 --out /tmp/a"));
    let shown = daemon.ok(&["classes"]).stdout;
    assert!(shown.contains("sh train.sh model=small") && shown.contains("--class"), "{shown}");
    let learned = class(&daemon, &small).unwrap();
    assert_eq!(
        (learned.finished, learned.defined_by.as_deref()),
        (2, Some("sh train.sh model=small"))
    );
}
