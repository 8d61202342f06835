//! What programs may rely on: fields and files, their order, and that nothing but `timing` differs
//! from one run to the next.

mod common;

use common::{JOBS_HEADER, folder, listing, read, succeed_in, write};
use serde_json::Value;
use std::path::Path;
use tandem_policies::REGISTRY;

const POLICIES: &str = "fifo,sjf:backfill=true,srtf,srsf,tiresias:interval_s=120,threshold_gpu_s=9000,\
                        sjf-ffs,sjf-bsbf:order=benefit,consolidate=true,lucid";
const POLICY_TEXTS: [&str; 8] = [
    "fifo",
    "sjf:backfill=true",
    "srtf",
    "srsf",
    "tiresias:interval_s=120,threshold_gpu_s=9000",
    "sjf-ffs",
    "sjf-bsbf:order=benefit,consolidate=true",
    "lucid",
];
const RUN_FIELDS: [&str; 15] = [
    "policy",
    "avg_jct_s",
    "median_jct_s",
    "p99_jct_s",
    "avg_wait_s",
    "makespan_s",
    "gpu_busy",
    "goodput",
    "avg_slowdown",
    "shared_gpu_time",
    "preemptions",
    "restores",
    "decisions",
    "active_jobs_max",
    "timing",
];

fn generate(dir: &Path, jobs: &str) {
    succeed_in(
        dir,
        &["trace", "generate", "--jobs", jobs, "--gpus", "32", "--seed", "7", "--out", "trace.csv"],
    );
}

fn compare_args<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["compare", "--trace", "trace.csv", "--cluster", "8x8", "--policies", POLICIES];
    [&fixed, extra].concat()
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn json_has_the_fields_of_the_contract_in_their_order() {
    let dir = folder();
    generate(dir.path(), "200");
    let ran = succeed_in(dir.path(), &compare_args(&["--json"]));
    let results = ran.json();
    assert_eq!(keys(&results), ["schema", "trace", "jobs", "gpus", "lower_bound", "runs"]);
    assert_eq!(results["schema"], 1);
    assert_eq!(results["trace"], "trace.csv");
    assert_eq!((&results["jobs"], &results["gpus"]), (&200.into(), &64.into()));
    let bound = |kind: &str| results["lower_bound"][kind].as_f64().unwrap();
    assert_eq!(keys(&results["lower_bound"]), ["exclusive_s", "sharing_s", "tenants_max"]);
    assert!(0.0 < bound("sharing_s") && bound("sharing_s") <= bound("exclusive_s"));
    let runs = results["runs"].as_array().unwrap();
    let named: Vec<&str> = runs.iter().map(|run| run["policy"].as_str().unwrap()).collect();
    assert_eq!(named, POLICY_TEXTS);
    for run in runs {
        assert_eq!(keys(run), RUN_FIELDS);
        assert_eq!(
            keys(&run["timing"]),
            ["decision_p99_ms", "event_p99_ms", "slice_p99_ms", "cpu_s"]
        );
        for share in ["gpu_busy", "shared_gpu_time"] {
            assert!((0.0..=1.0).contains(&run[share].as_f64().unwrap()), "{share}: {run}");
        }
        for count in ["preemptions", "restores", "decisions", "active_jobs_max"] {
            assert!(run[count].is_u64(), "{count}: {run}");
        }
    }
    let sim = ["sim", "--trace", "trace.csv", "--cluster", "8x8", "--policy", POLICY_TEXTS[4]];
    let one = succeed_in(dir.path(), &[&sim[..], &["--json"]].concat()).json();
    assert_eq!(without_timing(one)["runs"][0], without_timing(results)["runs"][4]);
}

fn without_timing(mut results: Value) -> Value {
    for run in results["runs"].as_array_mut().expect("a list") {
        run.as_object_mut().expect("an object").remove("timing").expect("every run has it");
    }
    results
}

#[test]
fn the_folder_of_results_holds_what_it_should_and_no_clock() {
    let dir = folder();
    generate(dir.path(), "150");
    let printed = succeed_in(dir.path(), &compare_args(&["--json", "--out", "a/b"])).json();
    let files = listing(&dir.path().join("a/b"));
    let mut expected: Vec<String> = POLICY_TEXTS
        .iter()
        .map(|text| format!("jobs-{}.csv", text.replace([':', ','], "-")))
        .collect();
    expected.extend(["report.html", "results.json"].map(str::to_owned));
    expected.sort_unstable();
    assert_eq!(files.keys().map(|name| name.display().to_string()).collect::<Vec<_>>(), expected);
    for name in expected.iter().filter(|name| name.starts_with("jobs-")) {
        let jobs = read(&dir.path().join("a/b").join(name));
        assert_eq!(jobs.lines().next(), Some(JOBS_HEADER), "{name}");
        assert_eq!(jobs.lines().count(), 151, "{name}");
    }
    let results = read(&dir.path().join("a/b/results.json"));
    let results: Value = serde_json::from_str(&results).unwrap();
    assert_eq!(results, without_timing(printed));
    for (name, content) in files {
        let text = String::from_utf8(content.unwrap()).unwrap();
        for word in ["decision_p99_ms", "cpu_s", "\"timing\""] {
            assert!(!text.contains(word), "{word} in {}", name.display());
        }
    }
}

#[test]
fn runs_and_threads_do_not_change_a_byte() {
    let dir = folder();
    generate(dir.path(), "300");
    let noisy = ["--estimates", "noisy:0.5", "--faults", "mtbf_h=200,repair_h=2", "--seed", "5"];
    let run = |out: &str, threads: &str| {
        let extra = [&["--json", "--out", out, "--threads", threads], &noisy[..]].concat();
        let printed = succeed_in(dir.path(), &compare_args(&extra)).json();
        // As text, so that also the order of the fields has to be the same.
        (without_timing(printed).to_string(), listing(&dir.path().join(out)))
    };
    let first = run("first", "1");
    for (out, threads) in [("again", "1"), ("two", "2"), ("eight", "8")] {
        let (printed, files) = run(out, threads);
        assert_eq!(printed, first.0, "--threads {threads}");
        assert!(files == first.1, "--threads {threads}: the files differ");
    }
    // The seed matters, so the comparison above is not one of constants.
    let other = ["--json", "--estimates", "noisy:0.5", "--seed", "6"];
    let other = succeed_in(dir.path(), &compare_args(&other)).json();
    assert_ne!(without_timing(other).to_string(), first.0);
}

#[test]
fn standard_error_is_empty_when_quiet_and_free_of_bars_when_no_terminal() {
    let dir = folder();
    write(dir.path(), "trace.csv", "job_id,submit_s,gpus,duration_s\n1,0,1,0.2\n2,0,0,5\n");
    let loud = succeed_in(dir.path(), &compare_args(&["--skip-bad"]));
    assert_eq!(loud.stderr.lines().count(), 2, "{}", loud.stderr);
    assert!(!loud.stderr.contains(['\u{1b}', '\r']), "{:?}", loud.stderr);
    let quiet = succeed_in(dir.path(), &compare_args(&["--skip-bad", "--quiet"]));
    assert_eq!(quiet.stderr, "");
    assert_eq!(quiet.stdout, loud.stdout);
    assert!(!quiet.stdout.contains('\u{1b}'), "{:?}", quiet.stdout);
}

#[test]
fn help_lists_every_policy_and_parameter() {
    let dir = folder();
    for command in ["sim", "compare"] {
        let help = succeed_in(dir.path(), &[command, "--help"]).stdout;
        for entry in REGISTRY {
            let listed = help.lines().any(|line| line.trim_start().starts_with(entry.name));
            assert!(listed, "{command}: {}", entry.name);
            for param in entry.params {
                assert!(help.contains(&format!("{}=", param.name)), "{}", param.name);
            }
        }
    }
}

#[test]
fn without_a_list_every_policy_is_compared() {
    let dir = folder();
    generate(dir.path(), "20");
    let args = ["compare", "--trace", "trace.csv", "--cluster", "8x8", "--json"];
    let results = succeed_in(dir.path(), &args).json();
    let bound = |kind: &str| results["lower_bound"][kind].as_f64().unwrap();
    assert_eq!(keys(&results["lower_bound"]), ["exclusive_s", "sharing_s", "tenants_max"]);
    assert!(0.0 < bound("sharing_s") && bound("sharing_s") <= bound("exclusive_s"));
    let runs = results["runs"].as_array().unwrap();
    let named: Vec<&str> = runs.iter().map(|run| run["policy"].as_str().unwrap()).collect();
    assert_eq!(named, REGISTRY.iter().map(|entry| entry.name).collect::<Vec<_>>());
}

#[test]
fn a_generated_trace_follows_from_its_seed() {
    let dir = folder();
    let make = |seed: &str| {
        let args = ["trace", "generate", "--jobs", "250", "--gpus", "64", "--seed", seed];
        succeed_in(dir.path(), &args).stdout
    };
    let trace = make("1");
    assert_eq!(trace, make("1"));
    assert_ne!(trace, make("2"));
    write(dir.path(), "trace.csv", &trace);
    let args = ["sim", "--trace", "trace.csv", "--cluster", "8x8", "--policy", "fifo", "--json"];
    assert_eq!(succeed_in(dir.path(), &args).json()["jobs"], 250);
}

/// Every writable format and back; a second round must change nothing at all, and the first must
/// keep submit, gang and duration, which all of them hold.
#[test]
fn conversion_keeps_what_the_format_can_hold() {
    let dir = folder();
    generate(dir.path(), "60");
    let original = read(&dir.path().join("trace.csv"));
    let column = |text: &str, name: &str| -> Vec<String> {
        let header: Vec<&str> = text.lines().next().expect("a header").split(',').collect();
        let index = header.iter().position(|column| *column == name).expect("the column");
        text.lines()
            .skip(1)
            .map(|line| line.split(',').nth(index).expect("it").to_owned())
            .collect()
    };
    let convert = |file: &str, to: &str, out: &str| {
        succeed_in(dir.path(), &["trace", "convert", file, "--to", to, "--out", out]);
        read(&dir.path().join(out))
    };
    let always = ["submit_s", "gpus", "duration_s"];
    let everything = [
        "job_id",
        "user",
        "estimate_s",
        "model",
        "batch",
        "amp",
        "memory_mib",
        "gpu_util",
        "bandwidth_util",
    ];
    let cases: [(&str, &[&str]); 5] = [
        ("tandem", &everything),
        ("venus", &everything),
        ("philly", &[]),
        ("muri", &["job_id", "model", "batch"]),
        ("alibaba2023", &["job_id"]),
    ];
    for (format, also) in cases {
        let there = convert("trace.csv", format, "there.csv");
        let back = convert("there.csv", "tandem", "back.csv");
        for name in always.iter().chain(also) {
            assert_eq!(column(&back, name), column(&original, name), "{format}: {name}");
        }
        assert_eq!(convert("back.csv", format, "again.csv"), there, "{format}");
    }
    assert_eq!(convert("trace.csv", "tandem", "same.csv"), original);
}

/// submit' = first + ⌊(submit − first) / f⌋ in whole seconds, ties in file order.
#[test]
fn load_divides_the_distance_from_the_first_submission() {
    let dir = folder();
    let trace = "\
job_id,submit_s,gpus,duration_s
late,110,1,1
early,100.25,1,1
tie,103.3,1,1
first,103.25,1,1
";
    write(dir.path(), "trace.csv", trace);
    let submits = |load: &str| -> Vec<String> {
        let args = ["sim", "--trace", "trace.csv", "--cluster", "8x8", "--policy", "fifo"];
        succeed_in(dir.path(), &[&args[..], &["--load", load, "--jobs-csv", "jobs.csv"]].concat());
        let jobs = read(&dir.path().join("jobs.csv"));
        let field = |line: &str, index: usize| line.split(',').nth(index).unwrap().to_owned();
        jobs.lines().skip(1).map(|line| format!("{} {}", field(line, 0), field(line, 2))).collect()
    };
    assert_eq!(submits("1"), ["early 100.25", "first 103.25", "tie 103.3", "late 110"]);
    assert_eq!(submits("1.5"), ["early 100.25", "tie 102.25", "first 102.25", "late 106.25"]);
    assert_eq!(submits("0.5"), ["early 100.25", "tie 106.25", "first 106.25", "late 119.25"]);
}
