//! The sample job beside a daemon that the test plays.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{Daemon, Job, losses, numbers};
use serde_json::json;
use std::io::Write;
use std::time::{Duration, Instant};

/// How far losses may differ when a batch is computed in other parts.
const SAME: f64 = 1e-5;

fn assert_close(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs();
        assert!(difference <= SAME, "step {}: {found} and not {expected}", step + 1);
    }
}

#[test]
fn says_who_it_is_how_far_it_is_and_goodbye() {
    let job = Job::new(&["--steps", "200", "--batch", "16"]);
    let daemon = Daemon::listen(&job);
    let child = job.start_with(&[("TANDEM_JOB_ID", "17")]);
    let mut talk = daemon.accept();
    let hello = talk.hear();
    let expected = json!({
        "op": "hello", "v": 1, "job": "17", "pid": child.id(), "batch": 16,
        "caps": ["accum", "stop", "gate"],
    });
    assert_eq!(hello, expected);
    let said = talk.hear_all();
    let (bye, steps) = said.split_last().expect("something was said");
    assert_eq!(*bye, json!({ "op": "bye", "done": true }));
    let mut before = 0;
    let mut seconds = 0.0;
    for step in steps {
        assert_eq!(step["op"], "step");
        assert_eq!(step["accum"], 1);
        let (n, dt) = (step["n"].as_u64().unwrap(), step["dt"].as_f64().unwrap());
        assert!(n > before, "{n} after {before}");
        assert!(dt > 0.0);
        seconds += dt * (n - before) as f64;
        before = n;
    }
    assert_eq!(before, 200, "the last report counts every step");
    // At most one in 10 ms, beside the last.
    assert!((steps.len() - 1) as f64 <= seconds / 0.01, "{} in {seconds} s", steps.len());
    assert_eq!(child.wait(), 0);
}

#[test]
fn obeys_changes_of_parts_and_loses_nothing_by_them() {
    for model in ["mlp", "cnn", "memory"] {
        let alone = Job::new(&["--model", model, "--steps", "40", "--losses", "losses.csv"]);
        assert_eq!(alone.start().wait(), 0);
        let expected = losses(&alone);
        assert!(expected.iter().all(|row| row.accum == 1));

        let shared = Job::new(&["--model", model, "--steps", "40", "--losses", "losses.csv"]);
        let daemon = Daemon::listen(&shared);
        let child = shared.start();
        let mut talk = daemon.accept();
        talk.hear();
        // The gate lets the test keep up with the job.
        talk.say(&json!({ "op": "set", "accum": 1, "gate_ms": 15 }));
        talk.hear_step_after(5);
        talk.say(&json!({ "op": "set", "accum": 4 }));
        let after = talk.hear_step_after(18);
        assert_eq!(after["accum"], 4);
        talk.say(&json!({ "op": "set", "accum": 1, "gate_ms": 0, "whatever": [1] }));
        talk.hear_all();
        assert_eq!(child.wait(), 0);
        let found = losses(&shared);
        let parts: Vec<u64> = found.iter().map(|row| row.accum).collect();
        assert_eq!(parts.first(), Some(&1), "{model}: {parts:?}");
        assert_eq!(parts.last(), Some(&1), "{model}: {parts:?}");
        assert!(parts.iter().filter(|&&parts| parts == 4).count() >= 10, "{model}: {parts:?}");
        assert_close(&numbers(&found), &numbers(&expected));
        let (first, last) = (numbers(&expected)[0], *numbers(&expected).last().unwrap());
        assert!(last < first, "{model} learns: {first} to {last}");
    }
}

#[test]
fn any_number_of_parts_gives_the_same_losses() {
    let run = |accum: &str| {
        let args = ["--steps", "20", "--batch", "12", "--losses", "losses.csv", "--accum", accum];
        let job = Job::new(&args);
        assert_eq!(job.start().wait(), 0);
        losses(&job)
    };
    let expected = numbers(&run("1"));
    for (asked, used) in [("2", 2), ("5", 5), ("7", 7), ("12", 12), ("13", 12), ("4000000000", 12)]
    {
        let found = run(asked);
        assert!(found.iter().all(|row| row.accum == used));
        assert_close(&numbers(&found), &expected);
    }
    // The environment is asked when the command line says nothing; nonsense there means 1.
    for (value, used) in [("3", 3), ("0", 1), ("many", 1)] {
        let job = Job::new(&["--steps", "2", "--batch", "12", "--losses", "losses.csv"]);
        assert_eq!(job.start_with(&[("TANDEM_ACCUM", value)]).wait(), 0);
        assert!(losses(&job).iter().all(|row| row.accum == used));
    }
}

#[test]
fn continues_bit_by_bit_after_a_stop() {
    for model in ["mlp", "cnn", "memory"] {
        let args = ["--model", model, "--steps", "40", "--losses", "losses.csv"];
        let whole = Job::new(&args);
        assert_eq!(whole.start().wait(), 0);

        let args = [&args[..], &["--checkpoint", "state"]].concat();
        let parted = Job::new(&args);
        let daemon = Daemon::listen(&parted);
        let child = parted.start();
        let mut talk = daemon.accept();
        talk.hear();
        talk.say(&json!({ "op": "set", "gate_ms": 15 }));
        talk.hear_step_after(10);
        talk.say(&json!({ "op": "stop" }));
        let said = talk.hear_all();
        assert_eq!(said.last(), Some(&json!({ "op": "bye", "done": false })));
        let last = said.iter().rev().find(|said| said["op"] == "step");
        assert_eq!(child.wait(), 0);
        let so_far = losses(&parted);
        assert!((10..40).contains(&so_far.len()), "{model}: stopped after {}", so_far.len());
        if let Some(last) = last {
            assert_eq!(last["n"].as_u64(), Some(so_far.len() as u64));
        }

        let child = parted.start();
        let mut talk = daemon.accept();
        assert_eq!(talk.hear()["op"], "hello");
        let said = talk.hear_all();
        assert_eq!(said.last(), Some(&json!({ "op": "bye", "done": true })));
        assert_eq!(said[said.len() - 2]["n"], 40, "steps before the checkpoint count");
        assert_eq!(child.wait(), 0);
        assert_eq!(losses(&parted), losses(&whole), "{model}");
    }
}

#[test]
fn a_gate_ends_with_a_stop() {
    let job = Job::new(&["--steps", "1000"]);
    let daemon = Daemon::listen(&job);
    let child = job.start();
    let mut talk = daemon.accept();
    talk.say(&json!({ "op": "set", "gate_ms": 1e300 }));
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    talk.say(&json!({ "op": "stop" }));
    assert_eq!(child.wait(), 0);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn nonsense_from_the_daemon_is_ignored() {
    let job = Job::new(&["--steps", "40", "--batch", "8", "--losses", "losses.csv"]);
    let daemon = Daemon::listen(&job);
    let child = job.start();
    let mut talk = daemon.accept();
    talk.hear();
    let too_long = format!("{{\"op\":\"stop\",\"x\":\"{}\"}}\n", "x".repeat(70_000));
    let lines: [&[u8]; 14] = [
        b"\n",
        b"hello?\n",
        b"{\"op\":\"stop\"\n",
        b"\xff\xfe\x00\n",
        b"[]\n",
        b"7\n",
        b"{\"op\":7}\n",
        b"{\"op\":\"dance\"}\n",
        b"{\"op\":\"set\",\"accum\":\"4\",\"gate_ms\":\"x\"}\n",
        b"{\"op\":\"set\",\"accum\":null,\"gate_ms\":-1e400}\n",
        b"{\"op\":\"set\",\"accum\":1.5,\"gate_ms\":-5}\n",
        too_long.as_bytes(),
        b"{\"op\":\"set\",\"accum\":-3}\n",
        b"{\"op\":\"set\",\"acc",
    ];
    for line in lines {
        talk.stream.write_all(line).unwrap();
    }
    std::thread::sleep(Duration::from_millis(20));
    talk.stream.write_all(b"um\":99999999999999999999}\n{\"op\":\"set\",\"accum\":99}\n").unwrap();
    let said = talk.hear_all();
    assert_eq!(said.last(), Some(&json!({ "op": "bye", "done": true })));
    assert_eq!(child.wait(), 0);
    let parts: Vec<u64> = losses(&job).iter().map(|row| row.accum).collect();
    assert_eq!(parts.len(), 40);
    assert!(parts.iter().all(|parts| [1, 8].contains(parts)), "{parts:?}");
    assert_eq!(parts.last(), Some(&8), "a number that is too large is clipped to the batch");
}

#[test]
fn a_daemon_that_goes_is_not_missed_and_one_that_returns_is_found() {
    let job =
        Job::new(&["--steps", "1200", "--batch", "16", "--gap", "50", "--losses", "losses.csv"]);
    let daemon = Daemon::listen(&job);
    let child = job.start();
    let mut talk = daemon.accept();
    talk.hear();
    talk.say(&json!({ "op": "set", "accum": 4 }));
    talk.hear_step_after(20);
    drop(talk);
    daemon.vanish();
    std::thread::sleep(Duration::from_millis(300));
    let daemon = Daemon::listen(&job);
    let start = Instant::now();
    let mut talk = daemon.accept();
    assert!(start.elapsed() < Duration::from_secs(4), "it tries again every two seconds");
    assert_eq!(talk.hear()["op"], "hello");
    let step = talk.hear();
    assert_eq!(step["accum"], 4, "what the first daemon said still holds");
    assert!(step["n"].as_u64().unwrap() > 20);
    talk.say(&json!({ "op": "stop" }));
    assert_eq!(talk.hear_all().last(), Some(&json!({ "op": "bye", "done": false })));
    assert_eq!(child.wait(), 0);
}

#[test]
fn no_daemon_at_all() {
    for socket in ["absent.sock", "/dev/null", "", &"x".repeat(300)] {
        let job = Job::new(&["--steps", "3", "--batch", "4", "--losses", "losses.csv"]);
        assert_eq!(job.start_with(&[("TANDEM_SOCK", socket)]).wait(), 0);
        assert_eq!(losses(&job).len(), 3);
    }
}
