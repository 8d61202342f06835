//! Bad options and outputs, values at the edge of what is accepted, and a reader that goes away.

#![allow(clippy::too_many_lines, reason = "tables of cases")]

mod common;

use common::refusal::{Complaints, good_files, sim_args};
use common::{listing, run_in, write};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn options() {
    let mut complaints = Complaints::default();
    let cases: &[(&[&str], &[&str])] = &[
        (&["--policy", "sjff"], &["'sjff'", "fifo", "sjf", "srtf", "srsf", "tiresias"]),
        (&["--policy", ""], &["policy", "fifo"]),
        (&["--policy", "fifo,sjf"], &["'fifo,sjf'"]),
        (&["--policy", "fifo:"], &["fifo"]),
        (&["--policy", "fifo:backfil=true"], &["'backfil'", "backfill"]),
        (&["--policy", "fifo:backfill=1"], &["backfill", "'1'"]),
        (&["--policy", "fifo:backfill"], &["'backfill'", "key=value"]),
        (&["--policy", "fifo:backfill=true,backfill=true"], &["backfill", "twice"]),
        (&["--policy", "srtf:x=1"], &["'x'"]),
        (&["--policy", "tiresias:interval_s=-1"], &["interval_s", "'-1'"]),
        (&["--policy", "tiresias:interval_s=1.5"], &["interval_s", "'1.5'"]),
        (&["--policy", "tiresias:threshold_gpu_s=99999999999999999999"], &["threshold_gpu_s"]),
        (
            &["--format", "excel"],
            &["excel", "tandem, venus, philly, muri, pollux, gavel, alibaba2023, sacct"],
        ),
        (&["--placement", "tight"], &["tight", "--placement"]),
        (&["--placement", "stric"], &["did you mean 'strict'?"]),
        (&["--classes", "mine"], &["mine", "--classes"]),
        (&["--classes", "table"], &["--classes"]),
        (&["--classes", "table:x"], &["--classes", "table:SEED"]),
        (&["--classes", "table:1"], &["--classes", "--interference"]),
        (&["--estimates", "guess"], &["guess", "--estimates"]),
        (&["--estimates", "noisy"], &["--estimates"]),
        (&["--estimates", "noisy:-1"], &["--estimates"]),
        (&["--estimates", "noisy:nan"], &["--estimates"]),
        (&["--estimates", "trace"], &["trace.csv:2: estimate_s: "]),
        (&["--estimates", "history:2"], &["--estimates", "history"]),
        (&["--network", "on"], &["--network", "contention"]),
        (&["--network", "contention:absent.csv"], &["absent.csv: cannot be read"]),
        (&["--network", "contention:pairs.csv"], &["pairs.csv:1: model: missing column"]),
        (&["--beliefs", "none"], &["none", "--beliefs"]),
        (&["--load", "0"], &["--load"]),
        (&["--load=-1"], &["--load"]),
        (&["--load", "nan"], &["--load"]),
        (&["--load", "1e400"], &["--load"]),
        (&["--spread-penalty", "1"], &["--spread-penalty"]),
        (&["--spread-penalty", "x"], &["--spread-penalty"]),
        (&["--seed", "x"], &["--seed"]),
        (&["--restore-s", "40,x"], &["--restore-s"]),
        (&["--restore-s", "40,60,80"], &["--restore-s"]),
        (&["--context-mib", "x"], &["--context-mib"]),
        (&["--context-mib", "24000"], &["trace.csv:2: memory"]),
        (&["--faults", "mtbf_h=1"], &["--faults", "repair_h"]),
        (&["--faults", "mtbf_h=0,repair_h=1"], &["--faults", "mtbf_h"]),
        (&["--faults", "often"], &["--faults", "'often'"]),
        (&["--threads", "x"], &["--threads"]),
        (&["--interference", "absent.csv"], &["absent.csv: cannot be read"]),
        (&["--interference", "folder"], &["folder: cannot be read"]),
        (&["--interference", "pairs.csv:gpu=v100"], &["pairs.csv:gpu=v100"]),
        (&["--interference", "pairs.csv:cpu=v100"], &["cpu=v100", "gpu=NAME"]),
        (&["--nonsense"], &["--nonsense"]),
        (&["stray"], &["stray"]),
    ];
    let dir = good_files();
    for (given, says) in cases {
        let mut args = vec!["sim", "--trace", "trace.csv", "--cluster", "8x8", "--out", "results"];
        args.extend(*given);
        if !given.contains(&"--policy") {
            args.extend(["--policy", "fifo"]);
        }
        complaints.refused(dir.path(), given[0], &args, says);
    }
    let commands: &[(&[&str], &[&str])] = &[
        (&["sim"], &["--trace"]),
        (&["sim", "--trace", "trace.csv", "--policy", "fifo"], &["--cluster"]),
        (&["simulate"], &["simulate"]),
        (&["submt"], &["'submt'", "did you mean 'submit'?"]),
        (&["queue", "--al"], &["'--al'", "did you mean '--all'?"]),
        (
            &["sim", "--trace", "absent.csv", "--cluster", "8x8", "--policy", "fifo"],
            &["absent.csv: cannot be read"],
        ),
        (
            &["sim", "--trace", "folder", "--cluster", "8x8", "--policy", "fifo"],
            &["folder: cannot be read"],
        ),
        (
            &["compare", "--trace", "trace.csv", "--cluster", "8x8", "--policies", "fifo,sjff"],
            &["'sjff'"],
        ),
        (
            &["compare", "--trace", "trace.csv", "--cluster", "8x8", "--policies", "fifo,,sjf"],
            &["policy"],
        ),
        (
            &["compare", "--trace", "trace.csv", "--cluster", "8x8", "--policies", "backfill=true"],
            &["backfill=true"],
        ),
        (
            &["compare", "--trace", "trace.csv", "--cluster", "8x8", "--jobs-csv", "jobs.csv"],
            &["--jobs-csv", "--out"],
        ),
        (&["trace", "info", "absent.csv"], &["absent.csv: cannot be read"]),
        (&["trace", "convert", "trace.csv", "--to", "pollux"], &[]),
        (&["trace", "convert", "trace.csv", "--to", "sacct"], &[]),
        (&["trace", "generate", "--jobs", "0", "--gpus", "8"], &[]),
        (&["trace", "generate", "--jobs", "10", "--gpus", "0"], &[]),
        (&["trace", "generate", "--jobs", "10", "--gpus", "8", "--load", "0"], &[]),
    ];
    for (args, says) in commands {
        complaints.refused(dir.path(), args[0], args, says);
    }
}

/// Permissions would not stop root, so what cannot be written here is impossible for anybody.
#[test]
fn outputs() {
    let mut complaints = Complaints::default();
    let long = "x".repeat(300);
    let long_inside = format!("new/{long}");
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("folder is a file", &["--out", "trace.csv"], &["trace.csv: "]),
        ("folder below a file", &["--out", "trace.csv/results"], &["trace.csv/results: "]),
        ("folder below a device", &["--out", "/dev/null/results"], &["/dev/null/results: "]),
        ("folder with too long a name", &["--out", &long], &[&long]),
        ("too long a name in a new folder", &["--out", &long_inside], &[&long]),
        ("file is a folder", &["--jobs-csv", "folder"], &["folder: is a folder"]),
        ("file below a file", &["--jobs-csv", "trace.csv/jobs.csv"], &["trace.csv/jobs.csv: "]),
        ("file in an absent folder", &["--jobs-csv", "absent/jobs.csv"], &["absent/jobs.csv: "]),
        ("file with too long a name", &["--jobs-csv", &long], &[&long]),
        ("file without a name", &["--jobs-csv", ""], &[]),
        (
            "good file, bad folder",
            &["--jobs-csv", "jobs.csv", "--out", "trace.csv/results"],
            &["trace.csv/results: "],
        ),
        (
            "bad file, good folder",
            &["--jobs-csv", "folder", "--out", "results"],
            &["folder: is a folder"],
        ),
    ];
    let dir = good_files();
    for (case, given, says) in cases {
        let mut args = vec!["sim", "--trace", "trace.csv", "--cluster", "8x8", "--policy", "fifo"];
        args.extend(*given);
        complaints.refused(dir.path(), case, &args, says);
    }
    let generate = ["trace", "generate", "--jobs", "5", "--gpus", "8", "--out", "folder"];
    let convert = ["trace", "convert", "trace.csv", "--out", "trace.csv/new.csv"];
    for args in [&generate[..], &convert, &["demo", "--out", "trace.csv"]] {
        let before = listing(dir.path());
        let ran = run_in(dir.path(), args);
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{args:?}: {ran:?}");
        assert_eq!((ran.stdout.as_str(), listing(dir.path())), ("", before), "{args:?}");
    }
}

/// Whatever stands in the way inside the folder is found before any of its files is written.
#[test]
fn a_results_folder_in_which_one_file_cannot_be_written_stays_as_it_was() {
    let mut complaints = Complaints::default();
    for obstacle in ["report.html", "results.json", "jobs-fifo.csv"] {
        let dir = good_files();
        std::fs::create_dir_all(dir.path().join("results").join(obstacle)).unwrap();
        let args = sim_args(&["--trace", "trace.csv", "--cluster", "8x8"]);
        complaints.refused(dir.path(), obstacle, &args, &[obstacle, "is a folder"]);
    }
    // The name of a jobs file follows from the policy as given, which may be longer than a name.
    let dir = good_files();
    let policy = format!("tiresias:interval_s={}60", "0".repeat(300));
    let args = ["sim", "--trace", "trace.csv", "--cluster", "8x8", "--policy", &policy];
    let args = [&args[..], &["--out", "results"]].concat();
    complaints.refused(dir.path(), "long policy", &args, &["results"]);
}

#[test]
fn links_and_devices_are_written_through() {
    let dir = good_files();
    write(dir.path(), "real.csv", "old");
    std::os::unix::fs::symlink("real.csv", dir.path().join("link.csv")).expect("a link");
    let sim = ["sim", "--trace", "trace.csv", "--cluster", "4x8", "--policy", "fifo", "--json"];
    let ran = run_in(dir.path(), &[&sim[..], &["--jobs-csv", "link.csv"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let files = listing(dir.path());
    let link = std::fs::symlink_metadata(dir.path().join("link.csv")).expect("still there");
    assert!(link.is_symlink(), "{files:?}");
    let written = std::fs::read_to_string(dir.path().join("real.csv")).expect("still there");
    assert!(written.starts_with(common::JOBS_HEADER), "{written}");

    // A named pipe is opened once: its reader gets all rows and then the end.
    let fifo = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let reader = std::thread::spawn(move || std::fs::read_to_string(fifo).expect("rows"));
    let ran = run_in(dir.path(), &[&sim[..], &["--jobs-csv", "pipe"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(reader.join().expect("the reader ends"), written);

    // Standard output in a file: rows first, then the object, nothing over anything.
    let out = std::fs::File::create(dir.path().join("out.txt")).expect("a file");
    let args = [&sim[..], &["--jobs-csv", "/dev/stdout"]].concat();
    let status = common::tandem(&args).current_dir(dir.path()).stdout(out).status();
    assert!(status.expect("it runs").success());
    let said = std::fs::read_to_string(dir.path().join("out.txt")).expect("still there");
    assert!(said.starts_with(&format!("{}\n", common::JOBS_HEADER)), "{said}");
    assert!(said.lines().last().is_some_and(|line| line.starts_with("{\"schema\":1")), "{said}");
}

#[test]
fn a_trace_is_not_overwritten_by_its_results() {
    let dir = good_files();
    let mut complaints = Complaints::default();
    let args = ["sim", "--trace", "trace.csv", "--cluster", "4x8", "--policy", "fifo"];
    let args = [&args[..], &["--jobs-csv", "./trace.csv"]].concat();
    complaints.refused(
        dir.path(),
        "the trace as output",
        &args,
        &["trace.csv: is the trace itself"],
    );
}

/// A simulation that cannot end says so instead of running for ever.
#[test]
fn faults_that_leave_no_hope() {
    let dir = common::folder();
    write(dir.path(), "gang.csv", "job_id,submit_s,gpus,duration_s\na,0,16,3600\n");
    write(dir.path(), "one.csv", "job_id,submit_s,gpus,duration_s\na,0,1,3600\n");
    for (trace, cluster, faults) in [
        ("gang.csv", "2x8", "mtbf_h=0.5,repair_h=1"),
        ("one.csv", "1x1", "mtbf_h=0.001,repair_h=1e9"),
        ("one.csv", "1x1", "mtbf_h=0.001,repair_h=0.001"),
    ] {
        let args = ["sim", "--trace", trace, "--cluster", cluster, "--policy", "fifo"];
        let ran = run_in(dir.path(), &[&args[..], &["--faults", faults]].concat());
        assert!(matches!(ran.code, Some(1 | 2)), "{faults}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{faults}: {ran:?}");
    }
}

/// Values at the edge of what is accepted: they run, or are refused in the usual way.
#[test]
fn extreme_but_accepted_values_do_not_panic() {
    let mut complaints = Complaints::default();
    let dir = common::folder();
    let header = "job_id,submit_s,gpus,duration_s\n";
    let far = format!("{header}1,0,1,5\n2,100000000000,1,5\n");
    write(dir.path(), "far.csv", far);
    let long: String = (0..300).map(|id| format!("{id},0,1,100000000000\n")).collect();
    write(dir.path(), "long.csv", format!("{header}{long}"));
    write(dir.path(), "plain.csv", format!("{header}1,0,1,5\n2,1,1,5\n"));
    let cases: &[&[&str]] = &[
        &["sim", "--trace", "far.csv", "--cluster", "1x1", "--policy", "fifo", "--load", "0.001"],
        &[
            "sim",
            "--trace",
            "far.csv",
            "--cluster",
            "1x1",
            "--policy",
            "sjf",
            "--load",
            "0.000000001",
        ],
        &["sim", "--trace", "far.csv", "--cluster", "1x1", "--policy", "tiresias"],
        &["sim", "--trace", "long.csv", "--cluster", "1x1", "--policy", "fifo"],
        &["sim", "--trace", "long.csv", "--cluster", "1x1", "--policy", "srtf"],
        &[
            "sim",
            "--trace",
            "plain.csv",
            "--cluster",
            "1x1",
            "--policy",
            "tiresias:interval_s=18446744073709551615",
        ],
        &[
            "sim",
            "--trace",
            "plain.csv",
            "--cluster",
            "1x1",
            "--policy",
            "tiresias:threshold_gpu_s=18446744073709551615",
        ],
        &[
            "sim",
            "--trace",
            "plain.csv",
            "--cluster",
            "1x1",
            "--policy",
            "fifo",
            "--seed",
            "18446744073709551615",
        ],
        &[
            "sim",
            "--trace",
            "plain.csv",
            "--cluster",
            "1x1",
            "--policy",
            "srtf",
            "--restore-s",
            "100000000,100000000",
        ],
        &[
            "sim",
            "--trace",
            "plain.csv",
            "--cluster",
            "1x1",
            "--policy",
            "fifo",
            "--context-mib",
            "1000000000000",
        ],
        &["compare", "--trace", "plain.csv", "--cluster", "1x1", "--threads", "64"],
        &[
            "compare",
            "--trace",
            "plain.csv",
            "--cluster",
            "1x1",
            "--threads",
            "18446744073709551615",
        ],
    ];
    for args in cases {
        let ran = run_in(dir.path(), args);
        if !matches!(ran.code, Some(0 | 2)) || ran.stderr.contains("panicked") {
            complaints.0.push(format!("tandem {}: {ran:?}", args.join(" ")));
        }
    }
}

/// A reader that has seen enough, such as `head -1`, is no error.
#[test]
fn a_closed_pipe_is_no_failure() {
    let dir = good_files();
    let commands: &[&[&str]] = &[
        &["trace", "generate", "--jobs", "20000", "--gpus", "64"],
        &["trace", "generate", "--jobs", "5", "--gpus", "64"],
        &["trace", "info", "trace.csv"],
        &["sim", "--trace", "trace.csv", "--cluster", "8x8", "--policy", "fifo", "--json"],
        &["sim", "--help"],
    ];
    for args in commands {
        for lines in [0, 1] {
            let mut child = common::tandem(args)
                .current_dir(dir.path())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut pipe = BufReader::with_capacity(64, child.stdout.take().unwrap());
            for _ in 0..lines {
                pipe.read_line(&mut String::new()).unwrap();
            }
            drop(pipe);
            let output = child.wait_with_output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{args:?}: {stderr}");
            assert!(!stderr.contains("panicked") && !stderr.contains("pipe"), "{args:?}: {stderr}");
        }
    }
}
