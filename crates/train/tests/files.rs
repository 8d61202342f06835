//! What the sample job leaves behind, and what it makes of bad input.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{Job, finish, losses, numbers};

fn complaint(job: &Job) -> String {
    let output = finish(job);
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn runs_repeat_bit_by_bit_and_differ_by_seed() {
    for model in ["mlp", "cnn", "memory"] {
        let run = |seed: &str| {
            let job = Job::new(&[
                "--model",
                model,
                "--steps",
                "10",
                "--losses",
                "losses.csv",
                "--seed",
                seed,
            ]);
            assert!(finish(&job).status.success());
            losses(&job)
        };
        assert_eq!(run("3"), run("3"), "{model}");
        assert_ne!(run("3"), run("4"), "{model}");
        assert!(numbers(&run("3")).iter().all(|loss| loss.is_finite()));
    }
}

#[test]
fn a_job_that_fails_continues_from_its_last_checkpoint() {
    let fixed = ["--steps", "20", "--batch", "16", "--losses", "losses.csv"];
    let whole = Job::new(&fixed);
    assert!(finish(&whole).status.success());
    let failing =
        ["--checkpoint", "state", "--checkpoint-every", "4", "--fail-at", "10", "--fail-code", "3"];
    let mut job = Job::new(&[&fixed[..], &failing[..]].concat());
    assert_eq!(finish(&job).status.code(), Some(3));
    assert_eq!(losses(&job).len(), 10, "what was done is on file");
    // Continued from step 8, not 10.
    let names: Vec<_> = std::fs::read_dir(job.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.len(), 2, "nothing but losses and checkpoint: {names:?}");
    let continued = Job::new(&[&fixed[..], &["--checkpoint", "state"]].concat());
    job.become_like(continued);
    let output = finish(&job);
    assert!(output.status.success());
    assert_eq!(losses(&job), losses(&whole));
    // All steps are done: nothing is trained, and nothing is lost.
    assert!(finish(&job).status.success());
    assert_eq!(losses(&job), losses(&whole));
}

#[test]
fn prints_steps() {
    let job = Job::new(&["--steps", "7", "--batch", "4", "--print-every", "3"]);
    let output = finish(&job);
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(words.len(), 2, "{text}");
    for (words, step) in words.iter().zip(["3", "6"]) {
        assert_eq!(words[..3], ["step", step, "loss"]);
        assert!(words[3].parse::<f64>().unwrap() > 0.0);
    }
}

#[test]
fn checkpoints_that_are_none_are_refused_and_left_alone() {
    let args = ["--steps", "2", "--batch", "4", "--checkpoint", "state"];
    for content in [&b""[..], b"hello", &[0; 100], &[255; 100]] {
        let job = Job::new(&args);
        std::fs::write(job.file("state"), content).unwrap();
        let complaint = complaint(&job);
        assert!(complaint.contains("state: is damaged, or no checkpoint"), "{complaint}");
        assert_eq!(std::fs::read(job.file("state")).unwrap(), content);
    }
    let mut job = Job::new(&args);
    assert!(finish(&job).status.success());
    let saved = std::fs::read(job.file("state")).unwrap();
    for other in [["--seed", "9"], ["--batch", "5"], ["--model", "cnn"]] {
        let args = ["--steps", "2", "--checkpoint", "state", other[0], other[1]];
        let same_batch = if other[0] == "--batch" { &[][..] } else { &["--batch", "4"] };
        job.become_like(Job::new(&[&args[..], same_batch].concat()));
        let complaint = complaint(&job);
        assert!(complaint.contains("of another model, batch or seed"), "{complaint}");
    }
    job.become_like(Job::new(&args));
    std::fs::write(job.file("state"), &saved[..saved.len() - 1]).unwrap();
    assert!(complaint(&job).contains("is damaged"));
}

#[test]
fn places_that_cannot_be_written_to_are_named_at_once() {
    for option in ["--checkpoint", "--losses"] {
        let job = Job::new(&["--steps", "1000000000", option, "absent/file"]);
        let complaint = complaint(&job);
        assert!(complaint.contains("absent/file: cannot be written"), "{complaint}");
    }
    let job = Job::new(&["--steps", "1000000000", "--allocate", "999999999999"]);
    assert!(complaint(&job).contains("out of memory"));
    let job = Job::new(&["--steps", "1000000000", "--allocate", "99999999999999999"]);
    assert!(complaint(&job).contains("out of memory"));
}
