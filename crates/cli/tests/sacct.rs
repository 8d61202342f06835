//! From a Slurm site's own records to a table: the commands of docs/traces.md on recorded output.

mod common;

use common::{folder, read, run_in, succeed_in, workspace, write};
use std::io::Write;
use std::process::{Command, Stdio};

/// What `sinfo -h -N -o '%R %N %G' | sort -u` prints, with the ways in which GPUs are written.
const SINFO: &str = "\
cpu c0 (null)
old o0 gpu:4(S:0-1)
old o1 gpu:v100:2(S:0,2),gpu:p100:2
train n0 gpu:a100:8,shard:a100:400
train n1 gpu:a100:8
train n2 gpu:a100:4
";

/// `None` where there is no awk.
fn cluster_of(sinfo: &str) -> Option<String> {
    let script = workspace().join("contrib/slurm-cluster.awk");
    let mut awk = Command::new("awk");
    awk.arg("-f").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = awk.spawn().ok()?;
    let mut input = child.stdin.take().expect("a pipe was asked for");
    input.write_all(sinfo.as_bytes()).expect("awk reads");
    drop(input);
    let output = child.wait_with_output().expect("awk ends");
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).expect("plain text"))
}

#[test]
fn a_cluster_is_described_by_what_sinfo_prints() {
    let Some(partitions) = cluster_of(SINFO) else {
        return common::skipped("there is no awk");
    };
    let expected = "\
[[partition]]
name = \"old\"
nodes = [
  { count = 2, gpus = 4 },
]
[[partition]]
name = \"train\"
nodes = [
  { count = 2, gpus = 8 },
  { count = 1, gpus = 4 },
]
";
    assert_eq!(partitions, expected);
    let pool = SINFO.lines().map(|line| line.split_once(' ').expect("a partition").1);
    let pool: String = pool.map(|line| format!("- {line}\n")).collect();
    let pool = cluster_of(&pool).expect("awk was there");
    let expected = "\
[[partition]]
nodes = [
  { count = 3, gpus = 4 },
  { count = 2, gpus = 8 },
]
";
    assert_eq!(pool, expected);
}

#[test]
fn a_recorded_history_is_compared_and_what_was_left_out_is_said() {
    let dir = folder();
    let recorded = read(&workspace().join("crates/sim/tests/fixtures/sacct.txt"));
    write(dir.path(), "history.txt", &recorded);
    write(dir.path(), "cluster.toml", "[[partition]]\nnodes = [{ count = 2, gpus = 4 }]\n");
    let remarks = "\
rows without a GPU left out: 1
rows of jobs that had not started left out: 2
earlier runs of jobs queued again left out: 4
jobs still running, taken as far as they ran: 2
jobs with a share of a GPU, taken to need a whole one: 2
";
    let compare = ["compare", "--trace", "history.txt", "--cluster", "cluster.toml"];
    for format in [&[][..], &["--format", "sacct"]] {
        let args = [&compare[..], format, &["--policies", "fifo,sjf,sjf-ffs", "--json"]].concat();
        let ran = succeed_in(dir.path(), &args);
        assert_eq!(ran.json()["jobs"], 26);
        assert!(ran.stderr.contains(remarks), "{}", ran.stderr);
    }
    let info = succeed_in(dir.path(), &["trace", "info", "history.txt", "--json"]).json();
    assert_eq!((&info["jobs"], &info["estimates"]), (&26.into(), &25.into()));
    assert_eq!(info["sacct"]["never_started"], 2);
    let info = succeed_in(dir.path(), &["trace", "info", "history.txt"]).stdout;
    assert!(info.contains("sacct           rows without a GPU left out: 1\n"), "{info}");
    // Converted, it is the same trace.
    let args = ["trace", "convert", "history.txt", "--out", "converted.csv"];
    assert_eq!(succeed_in(dir.path(), &args).stderr, remarks);
    let back = run_in(dir.path(), &["trace", "convert", "converted.csv", "--to", "sacct"]);
    assert_eq!(back.code, Some(2));
    assert_eq!(back.stderr, "tandem: format sacct is Slurm's own and is only read\n");
    let jobs = |trace: &str| {
        let args = ["sim", "--trace", trace, "--cluster", "2x4", "--policy", "srtf", "--jobs-csv"];
        succeed_in(dir.path(), &[&args[..], &["jobs.csv"]].concat());
        read(&dir.path().join("jobs.csv"))
    };
    assert_eq!(jobs("history.txt"), jobs("converted.csv"));
}

/// Ten jobs of one GPU that arrive at once on one GPU, with the starts that Slurm gave them.
fn history() -> String {
    let header = "JobID|User|Partition|State|Submit|Start|ElapsedRaw|ReqTRES|JobName\n";
    let row = |job: usize| {
        let start = 1000 + 100 * job;
        format!("{job}|ann|gpu|COMPLETED|1000|{start}|100|gres/gpu=1|train{job}\n")
    };
    header.to_owned() + &(0..10).map(row).collect::<String>()
}

/// A row of that history, of a job that did not wait.
fn at_once(line: &str) -> String {
    let mut fields: Vec<&str> = line.split('|').collect();
    if fields[0] != "JobID" {
        fields[5] = "1000";
    }
    fields.join("|")
}

#[test]
fn a_shadow_report_says_what_is_known_and_what_is_drawn() {
    let dir = folder();
    write(dir.path(), "history.txt", history());
    let report = ["slurm", "shadow", "report", "--history", "history.txt", "--cluster", "1x1"];
    // Without rates nothing is gained: the jobs are equal, and each uses its whole GPU.
    let alone = succeed_in(dir.path(), &[&report[..], &["--json"]].concat()).json();
    assert_eq!((&alone["jobs"], &alone["recorded_jct_s"]), (&10.into(), &550.0.into()));
    let draws = alone["draws"].as_array().expect("a list");
    assert_eq!(draws.len(), 1);
    assert_eq!(draws[0]["plain_jct_s"], 550.0);
    assert!(draws[0]["gain"].as_f64().expect("a number").abs() < 0.05, "{alone}");
    // With measured rates the draws differ, and sharing gains.
    let table = workspace().join("examples/pairs.csv").display().to_string();
    let with = [&report[..], &["--interference", &table, "--draws", "5"]].concat();
    let drawn = succeed_in(dir.path(), &[&with[..], &["--json"]].concat()).json();
    let draws = drawn["draws"].as_array().expect("a list");
    let gain = |at: usize| draws[at]["gain"].as_f64().expect("a number");
    assert_eq!(draws.len(), 5);
    assert!(gain(0) < gain(4) && gain(4) > 0.1, "{drawn}");
    assert!(draws[4]["shared_gpu_time"].as_f64() > Some(0.0), "{drawn}");
    let text = succeed_in(dir.path(), &with).stdout;
    for part in ["10 jobs", "550 s in Slurm's records", "worst draw", "5 draws of classes"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("times shorter"), "{text}");
    // Records of a site that had ten GPUs.
    let rows = history().lines().map(|line| at_once(line) + "\n").collect::<String>();
    write(dir.path(), "large.txt", rows);
    let large = [&report[..4], &["large.txt", "--cluster", "1x1"]].concat();
    let text = succeed_in(dir.path(), &large).stdout;
    assert!(text.contains("The recorded time is 5.5 times shorter"), "{text}");
    let refused = run_in(dir.path(), &[&report[..4], &["none.txt", "--cluster", "1x1"]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("none.txt"), "{}", refused.stderr);
}
