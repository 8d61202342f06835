//! The sample job as the binary offers it: its output and its exit codes.
#![cfg(feature = "train")]

mod common;

use common::{folder, read, run_in, succeed_in, write};

const SMALL: [&str; 5] = ["train", "--batch", "4", "--steps", "3"];

#[test]
fn prints_lines_that_a_progress_expression_finds() {
    let dir = folder();
    let args = [&SMALL[..], &["--print-every", "1", "--losses", "losses.csv"]].concat();
    let ran = succeed_in(dir.path(), &args);
    let steps: Vec<&str> = ran.stdout.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(steps, ["1", "2", "3"], "{}", ran.stdout);
    assert!(ran.stdout.lines().all(|line| line.starts_with("step ") && line.contains(" loss ")));
    assert_eq!(ran.stderr, "");
    assert_eq!(read(&dir.path().join("losses.csv")).lines().count(), 4);
}

#[test]
fn exit_codes() {
    let dir = folder();
    write(dir.path(), "bad", "no checkpoint");
    let cases: [(&[&str], i32, &str); 6] = [
        (&["--fail-at", "2", "--fail-code", "42"], 42, "failed after step 2"),
        (&["--checkpoint", "bad"], 2, "bad: is damaged, or no checkpoint"),
        (&["--losses", "absent/losses.csv"], 2, "absent/losses.csv: cannot be written"),
        (&["--allocate", "999999999999"], 1, "out of memory"),
        (&["--gap", "96"], 2, "--gap"),
        (&["--accum", "0"], 2, "--accum"),
    ];
    for (args, code, said) in cases {
        let ran = run_in(dir.path(), &[&SMALL[..], args].concat());
        assert_eq!(ran.code, Some(code), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(said), "{args:?}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{args:?}: {ran:?}");
    }
}

#[test]
fn json_is_one_object() {
    let dir = folder();
    let args = [&SMALL[..], &["--json", "--print-every", "2", "--checkpoint", "state"]].concat();
    let ran = succeed_in(dir.path(), &args);
    let json = ran.json();
    assert_eq!(
        (&json["schema"], &json["first_step"], &json["steps"]),
        (&1.into(), &0.into(), &3.into())
    );
    assert_eq!((&json["done"], &json["accum"]), (&true.into(), &1.into()));
    assert!(json["loss"].is_f64(), "{json}");
    let losses = json["losses"].as_array().expect("a list");
    assert_eq!((losses.len(), &losses[0]["step"]), (1, &2.into()), "{json}");
    // Nothing is left to do.
    let json = succeed_in(dir.path(), &args).json();
    assert_eq!((&json["first_step"], &json["loss"]), (&3.into(), &serde_json::Value::Null));
    let ran =
        run_in(dir.path(), &[&args[..], &["--fail-at", "9", "--losses", "absent/x"]].concat());
    assert_eq!(ran.code, Some(2));
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).expect("an object");
    assert!(error["error"].as_str().is_some_and(|text| text.contains("absent/x")), "{error}");
}
