//! The sharing policies against an independent implementation in Python, job by job, on random cases
//! full of ties and limits. Every case comes from a seed that the message of a failure names.

mod common;

use common::{read, reference_data, workspace};
use std::path::Path;
use std::process::Command;

const SEEDS: std::ops::Range<u64> = 1..31;
/// As ours is told, and as the Python is, which knows no sub-batches.
type Both = (&'static str, &'static [&'static str]);
const POLICIES: [Both; 2] = [
    ("sjf-ffs:accumulate=false", &["--policy", "sjf-ffs"]),
    ("sjf-bsbf:accumulate=false", &["--policy", "sjf-bsbf"]),
];
/// One of them for each case.
const SETTINGS: [Both; 4] = [
    ("sjf-bsbf:order=benefit", &["--policy", "sjf-bsbf", "--order", "benefit"]),
    ("sjf-bsbf:consolidate=true", &["--policy", "sjf-bsbf", "--consolidate"]),
    ("sjf-ffs:consolidate=true", &["--policy", "sjf-ffs", "--consolidate"]),
    (
        "sjf-bsbf:order=benefit,consolidate=true",
        &["--policy", "sjf-bsbf", "--order", "benefit", "--consolidate"],
    ),
];

#[test]
fn random_cases() {
    for seed in SEEDS {
        let dir = common::folder();
        let case = ["--seed", &seed.to_string(), "--out", "."].map(str::to_owned);
        python(dir.path(), "random_case.py", &case);
        let options: Vec<String> =
            read(&dir.path().join("args.txt")).lines().map(str::to_owned).collect();
        let setting = SETTINGS[(seed % 4) as usize];
        for policy in POLICIES.into_iter().chain([setting]) {
            if let Some(difference) = compare(dir.path(), policy, &options) {
                let kept = dir.keep();
                panic!("seed {seed}, {}: {difference}\nfiles in {}", policy.0, kept.display());
            }
        }
    }
}

/// Every job of the window, and the means that the two must give.
#[test]
fn the_window() {
    let Some(data) = reference_data() else { return };
    let file = |name: &str| data.join(name).canonicalize().expect("it is there");
    let options: Vec<String> = [
        ("--trace", "venus/window.csv"),
        ("--cluster", "venus/partitions.csv"),
        ("--interference", "lucid/colocate_info.csv"),
    ]
    .into_iter()
    .flat_map(|(option, name)| [option.to_owned(), file(name).display().to_string()])
    .collect();
    for (policy, mean) in POLICIES.into_iter().zip(["13910.279", "13434.439"]) {
        let dir = common::folder();
        assert_eq!(compare(dir.path(), policy, &options), None, "{}", policy.0);
        let mut args = vec!["sim", "--policy", policy.0, "--json"];
        args.extend(options.iter().map(String::as_str));
        let results = common::succeed_in(dir.path(), &args).json();
        let found = results["runs"][0]["avg_jct_s"].as_f64().expect("a number");
        assert_eq!(format!("{found:.3}"), mean, "{}", policy.0);
    }
}

/// The first difference between the two programs, if there is one.
fn compare(dir: &Path, (ours, theirs): Both, options: &[String]) -> Option<String> {
    let theirs = theirs.iter().chain(&["--jobs-csv", "oracle.csv"]).map(|&arg| arg.to_owned());
    python(dir, "sharing.py", &theirs.chain(options.iter().cloned()).collect::<Vec<_>>());
    let mut args = vec!["sim", "--policy", ours, "--jobs-csv", "tandem.csv", "--quiet"];
    args.extend(options.iter().map(String::as_str));
    common::succeed_in(dir, &args);
    let (expected, found) = (read(&dir.join("oracle.csv")), read(&dir.join("tandem.csv")));
    if expected.lines().count() != found.lines().count() {
        return Some(format!("{} lines, not {}", found.lines().count(), expected.lines().count()));
    }
    let (expected, found) =
        expected.lines().zip(found.lines()).find(|(expected, found)| expected != found)?;
    Some(format!("expected {expected}, found {found}"))
}

fn python(dir: &Path, script: &str, args: &[String]) {
    let script = workspace().join("tests/oracle").join(script).canonicalize().expect("it is there");
    let output = Command::new("python3").arg(script).args(args).current_dir(dir).output();
    let output = output.expect("the oracle needs python3: apt-get install python3");
    assert!(output.status.success(), "oracle: {}", String::from_utf8_lossy(&output.stderr));
}
