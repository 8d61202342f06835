//! What the sample job prints and exits with.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{Job, finish};
use serde_json::Value;

const SMALL: [&str; 4] = ["--batch", "4", "--steps", "3"];

fn small(args: &[&str]) -> Job {
    Job::new(&[&SMALL[..], args].concat())
}

/// The only object on standard output.
fn json(job: &Job) -> Value {
    let output = finish(job);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn prints_lines_that_a_progress_expression_finds() {
    let job = small(&["--print-every", "1", "--losses", "losses.csv"]);
    let output = finish(&job);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let steps: Vec<&str> = text.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(steps, ["1", "2", "3"], "{text}");
    assert!(text.lines().all(|line| line.starts_with("step ") && line.contains(" loss ")));
    assert_eq!(std::fs::read_to_string(job.file("losses.csv")).unwrap().lines().count(), 4);
}

#[test]
fn exit_codes() {
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--fail-at", "2", "--fail-code", "42"], 42, "failed after step 2"),
        (&["--checkpoint", "bad"], 2, "bad: is damaged, or no checkpoint"),
        (&["--losses", "absent/losses.csv"], 2, "absent/losses.csv: cannot be written"),
        (&["--allocate", "999999999999"], 1, "out of memory"),
        (&["--gap", "96"], 2, "--gap"),
        (&["--accum", "0"], 2, "--accum"),
    ];
    for (args, code, said) in cases {
        let job = small(args);
        std::fs::write(job.file("bad"), "no checkpoint").unwrap();
        let output = finish(&job);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        assert!(text.starts_with("tandem-train: ") && text.contains(said), "{args:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{args:?}: {text}");
    }
}

#[test]
fn json_is_one_object() {
    let args = ["--json", "--print-every", "2", "--checkpoint", "state"];
    let job = small(&args);
    let first = json(&job);
    assert_eq!(
        (&first["schema"], &first["first_step"], &first["steps"]),
        (&1.into(), &0.into(), &3.into())
    );
    assert_eq!((&first["done"], &first["accum"]), (&true.into(), &1.into()));
    assert!(first["loss"].is_f64(), "{first}");
    let losses = first["losses"].as_array().expect("a list");
    assert_eq!((losses.len(), &losses[0]["step"]), (1, &2.into()), "{first}");
    // Nothing is left to do.
    let second = json(&job);
    assert_eq!((&second["first_step"], &second["loss"]), (&3.into(), &Value::Null));
    let failing = [&args[..], &["--fail-at", "9", "--losses", "absent/x"]].concat();
    let output = finish(&small(&failing));
    assert_eq!(output.status.code(), Some(2));
    let error: Value = serde_json::from_slice(&output.stderr).expect("an object");
    assert!(error["error"].as_str().is_some_and(|text| text.contains("absent/x")), "{error}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let job = Job::new(&["--batch", "4", "--steps", "1000000", "--print-every", "1"]);
    let mut command = job.command();
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}
