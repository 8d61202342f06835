//! The event-driven evaluation against an independent one in Python, tenant by tenant, on random traces
//! full of ties and extremes. Every case comes from a seed that the message of a failure names.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{Dice, finish, folder, succeed_in, workspace, write};
use serde_json::Value;
use std::fmt::Write;
use std::process::Command;

const SEEDS: std::ops::Range<u64> = 1..25;

/// A trace in which round numbers make many instants fall together.
fn trace(dice: &mut Dice) -> String {
    let mut text = "Name,Profile,Memory_footprint,SM_usage,Duration\n".to_owned();
    for _ in 0..dice.between(1, 12) {
        let profile = dice.pick(&[1, 0, -1]);
        let sms = dice.pick(&[1, 5, 20, 40, 48, 79, 80, 81, 160, 500]);
        let duration = dice.pick(&[1000, 5000, 20_000, 28_000, 40_000, 123_457, 1_000_000]);
        writeln!(text, "kernel<a, b>,{profile},0,{sms},{duration}").unwrap();
    }
    text
}

#[test]
fn random_cases() {
    for seed in SEEDS {
        let mut dice = Dice(seed);
        let dir = folder();
        let count = dice.between(1, 4);
        let sms = dice.pick(&["80", "108", "40"]);
        let scheduler = dice.pick(&["fifo", "prop", "slice"]);
        let (mut tenants, mut specs, mut budgets) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..count {
            let name = format!("net{index}_4_fwd");
            write(dir.path(), &name, trace(&mut dice));
            let batch = dice.pick(&[1, 2, 4, 5, 16, 32]);
            let (launch, host) = (dice.pick(&[0, 2, 28]), dice.pick(&[0, 100, 300]));
            tenants.push(format!("{name}:batch={batch},h={launch},H={host}"));
            specs.push(format!("{name}:4:{batch}:{launch}:{host}"));
            budgets.push(dice.pick(&["0.1", "0.333333", "0.5", "0.6", "0.67", "0.999", "1"]));
        }
        let mode = match scheduler {
            "slice" => "slice".to_owned(),
            _ => format!("v={}", budgets.join("/")),
        };
        let (gpu, tenants) = (format!("v100:sms={sms}"), tenants.join(","));
        let ours = if scheduler == "slice" { "fifo" } else { scheduler };
        let mut args = vec!["device", "compare", "--gpu", &gpu, "--tenants", &tenants];
        args.extend(["--scheduler", ours, "--modes", &mode, "--json"]);
        let found = succeed_in(dir.path(), &args).json()["modes"][0]["y"].clone();
        let script = workspace().join("tests/oracle/device.py").canonicalize().unwrap();
        let mut python = Command::new("python3");
        python.current_dir(dir.path()).arg(script).args(["--sms", sms, "--scheduler", scheduler]);
        let ran = finish(python.args(["--v", &budgets.join(",")]).args(&specs));
        assert_eq!(ran.code, Some(0), "seed {seed}: {}", ran.stderr);
        let expected: Value = serde_json::from_str(&ran.stdout).unwrap();
        let pairs = found.as_array().unwrap().iter().zip(expected["y"].as_array().unwrap());
        for (index, (found, expected)) in pairs.enumerate() {
            let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
            // One operator at the end of the window may be counted by one and not by the other.
            let same = (found - expected).abs() <= 1e-3 * expected.max(0.01);
            assert!(same, "seed {seed}, tenant {index}: {found} and not {expected}: {args:?}");
        }
    }
}
