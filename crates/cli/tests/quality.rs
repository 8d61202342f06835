//! `tandem bench quality` on a small folder of data: files, resuming, bad input.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{finish, folder, read, run_in, succeed_in, workspace, write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const SUBSET: [&str; 14] = [
    "bench",
    "quality",
    "--data",
    "data",
    "--out",
    "results.md",
    "--state",
    "state.jsonl",
    "--policies",
    "srtf,sjf-bsbf,gshare",
    "--loads",
    "1,1.5",
    "--judge",
    "gshare",
];
const OWN: [&str; 6] = ["--traces", "none", "--trace", "own.csv", "--cluster", "cluster.toml"];

/// The examples in the layout of the data folder, and a trace of ours.
fn data() -> TempDir {
    let dir = folder();
    let examples = workspace().join("examples");
    for part in ["lucid", "gavel"] {
        std::fs::create_dir_all(dir.path().join("data").join(part)).unwrap();
    }
    let copies = [
        ("pairs.csv", "data/lucid/colocate_info.csv"),
        ("solo.csv", "data/lucid/single_data.csv"),
        ("pairs.json", "data/gavel/simulation_throughputs.json"),
        ("trace.csv", "own.csv"),
        ("cluster.toml", "cluster.toml"),
    ];
    for (from, to) in copies {
        std::fs::copy(examples.join(from), dir.path().join(to)).unwrap();
    }
    dir
}

fn arguments<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    [&SUBSET[..], &OWN, &["--tables", "lucid", "--spread", "0,0.2"], extra].concat()
}

fn lines(dir: &Path) -> Vec<String> {
    read(&dir.join("state.jsonl")).lines().map(str::to_owned).collect()
}

#[test]
fn writes_markdown_and_chart_and_runs_nothing_twice() {
    let dir = data();
    let ran = succeed_in(dir.path(), &arguments(&[]));
    assert!(ran.stdout.contains("mean JCT of `gshare` the lowest"), "{ran:?}");
    let (page, chart) =
        (read(&dir.path().join("results.md")), read(&dir.path().join("results.svg")));
    let tables = read(&dir.path().join("results-tables.md"));
    for part in [
        "](results.svg)",
        "## What holds of `gshare`",
        "## Worst cells of `gshare`",
        "| learned |",
        "](results-tables.md#the-traces-own-estimates)",
    ] {
        assert!(page.contains(part), "no {part} in:\n{page}");
    }
    let first = page.lines().nth(2).unwrap();
    assert!(first.starts_with("**`gshare` ") && first.contains("lower bound"), "{page}");
    for part in [
        "at ×1.5: the trace",
        "\nown:\n",
        "| sjf-bsbf |",
        "](results.csv)",
        "lower bound, up to 2 jobs on a GPU",
        "## The trace's own estimates",
        "## Noisy estimates",
        "## Goodput",
        "### Tails",
    ] {
        assert!(tables.contains(part), "no {part} in:\n{tables}");
    }
    let csv = read(&dir.path().join("results.csv"));
    assert!(
        csv.lines().any(|line| line.starts_with("own,lucid,1.5,0.2,true,true,,sjf-bsbf,")),
        "{csv}"
    );
    assert!(chart.starts_with("<svg ") && chart.ends_with("</svg>\n"));
    assert!(chart.contains("prefers-color-scheme:dark") && !chart.contains("NaN"), "{chart}");
    let first = lines(dir.path());
    let again = succeed_in(dir.path(), &arguments(&[]));
    let all = first.len();
    assert!(again.stderr.contains(&format!("{all} of {all} simulations are known")), "{again:?}");
    assert_eq!(lines(dir.path()), first);
    assert_eq!(read(&dir.path().join("results.md")), page);
    // Another seed means other classes and noise: nothing of it is known.
    succeed_in(dir.path(), &arguments(&["--seed", "2"]));
    assert_eq!(lines(dir.path()).len(), 2 * all);
}

/// Grey in the chart is what no policy can reach, whatever number of jobs it lets run on a GPU.
#[test]
fn the_grey_area_ends_at_the_lowest_bound_of_all_policies() {
    let dir = data();
    // More work at once than one GPU can do alone.
    let job = |id: u32| format!("{id},0,1,1000,TinyNet,toy-images,32,0,2100,38\n");
    let header = "job_id,submit_s,gpus,duration_s,model,dataset,batch,amp,memory_mib,gpu_util\n";
    let jobs: String = (0..12).map(job).collect();
    write(dir.path(), "own.csv", format!("{header}{jobs}"));
    let mut args = arguments(&["--quiet"]);
    args.retain(|arg| *arg != "cluster.toml");
    let cluster = args.iter().position(|arg| *arg == "--cluster").unwrap();
    args.insert(cluster + 1, "1x1");
    succeed_in(dir.path(), &args);
    let csv = read(&dir.path().join("results.csv"));
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    let column = |name: &str| rows[0].iter().position(|head| *head == name).unwrap();
    let least = |load: &str, name: &str, policies: &[&str]| {
        let is_here = |row: &&Vec<&str>| {
            row[..6] == ["own", "lucid", load, "0", "true", "true"]
                && row[column("gpu_mib")].is_empty()
                && policies.contains(&row[column("policy")])
        };
        let values = rows.iter().filter(is_here);
        values.map(|row| row[column(name)].parse().unwrap()).fold(f64::INFINITY, f64::min)
    };
    let chart = read(&dir.path().join("results.svg"));
    let path = |after: &str, class: &str| {
        let at = chart.split(after).nth(1).unwrap();
        let at = at.split(&format!("class=\"{class}\" d=\"")).nth(1).unwrap();
        let words = at.split('"').next().unwrap().split(['M', 'V', 'L', 'H', 'h', 'z', ' ']);
        words.filter_map(|word| word.parse().ok()).collect::<Vec<f64>>()
    };
    // M left floor V y L x y L x y H right V floor z; the height of the best policy that does not share.
    let (bound, par) = (path("<clipPath", "bound"), path("<clipPath", "par")[1]);
    for (load, y) in [("1", bound[4]), ("1.5", bound[6])] {
        let reach = least(load, "bound_sharing_s", &["srtf", "sjf-bsbf", "gshare"])
            / least(load, "mean_jct_s", &["srtf"]);
        let wanted = bound[1] - (bound[1] - par) * reach;
        assert!((y - wanted).abs() < 0.15, "load {load}: {y} instead of {wanted}");
    }
    let exclusive = least("1.5", "bound_exclusive_s", &["srtf"]);
    assert!(least("1.5", "bound_sharing_s", &["gshare"]) < exclusive, "nothing is tested");
}

#[test]
fn goes_on_after_a_torn_line_and_starts_over_when_an_input_changes() {
    let dir = data();
    succeed_in(dir.path(), &arguments(&["--quiet"]));
    let (whole, page) = (lines(dir.path()), read(&dir.path().join("results.md")));
    let torn = format!("{}\n{}", whole[0], &whole[1][..whole[1].len() / 2]);
    write(dir.path(), "state.jsonl", &torn);
    let ran = succeed_in(dir.path(), &arguments(&[]));
    assert!(ran.stderr.contains(&format!("1 of {} simulations", whole.len())), "{ran:?}");
    let now = lines(dir.path());
    assert_eq!(now.len(), whole.len() + 1, "what was torn stays, and is made again");
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    let complete = now.into_iter().filter(|line| whole.contains(line)).collect();
    assert_eq!(sorted(complete), sorted(whole.clone()));
    assert_eq!(read(&dir.path().join("results.md")), page);
    let table = dir.path().join("data/lucid/colocate_info.csv");
    let text = read(&table).replacen("0.918", "0.917", 1);
    write(dir.path(), "data/lucid/colocate_info.csv", text);
    let ran = succeed_in(dir.path(), &arguments(&[]));
    assert!(!ran.stderr.contains("are known"), "{ran:?}");
}

#[test]
fn another_program_starts_over() {
    let dir = data();
    succeed_in(dir.path(), &arguments(&["--quiet"]));
    let known = lines(dir.path()).len();
    // What follows the program in its file is not loaded, but makes it another file.
    let other = dir.path().join("other");
    let mut bytes = std::fs::read(env!("CARGO_BIN_EXE_tandem")).unwrap();
    bytes.push(0);
    std::fs::write(&other, bytes).unwrap();
    std::fs::set_permissions(&other, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ran = finish(Command::new(&other).args(arguments(&[])).current_dir(dir.path()));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stderr.contains("are known"), "{ran:?}");
    assert_eq!(lines(dir.path()).len(), 2 * known);
}

#[test]
fn results_do_not_depend_on_threads_and_json_has_them_all() {
    let dir = data();
    let json = |threads: &str, state: &str| {
        let extra = ["--json", "--threads", threads, "--state", state];
        let mut args = arguments(&[]);
        args.retain(|arg| !["--state", "state.jsonl"].contains(arg));
        args.extend(extra);
        succeed_in(dir.path(), &args).json()
    };
    let one = json("1", "one.jsonl");
    assert_eq!(one, json("3", "three.jsonl"));
    let runs = one["runs"].as_array().unwrap();
    assert_eq!(runs.len(), read(&dir.path().join("one.jsonl")).lines().count());
    for run in runs {
        let figure = |name: &str| run[name].as_f64().unwrap();
        assert!(figure("avg_jct_s") >= figure("least_sharing_s"), "{run}");
    }
    for verdict in one["verdicts"].as_array().unwrap() {
        let count = |name: &str| verdict[name].as_u64().unwrap();
        let misses = verdict["misses"].as_array().unwrap().len() as u64;
        assert_eq!(count("held") + misses, count("cells"), "{verdict}");
    }
}

#[test]
fn flags_are_switched_off_in_turn() {
    let dir = data();
    succeed_in(dir.path(), &arguments(&["--ablate", "sjf-bsbf"]));
    let page = read(&dir.path().join("results-tables.md"));
    let ablation = page.split("## Ablation").nth(1).unwrap();
    assert!(ablation.contains("`sjf-bsbf`") && ablation.contains("| accumulate |"), "{ablation}");
}

#[test]
fn bad_input_is_one_line_and_nothing_is_written() {
    let dir = data();
    let cases: [(&[&str], &str); 6] = [
        (&["--policies", "nonsense"], "unknown policy 'nonsense'"),
        (&["--loads", "0"], "--loads"),
        (&["--traces", "muri1", "--data", "data"], "trace1.csv: cannot be read"),
        (&["--traces", "none"], "no trace is named"),
        (&["--trace", "missing.csv", "--cluster", "1x1", "--traces", "none"], "missing.csv"),
        (&["--tables", "lucid,lucid", "--traces", "generated"], "table lucid is named twice"),
    ];
    for (extra, words) in cases {
        let fixed = ["bench", "quality", "--out", "results.md", "--state", "state.jsonl"];
        let mut args = [&fixed[..], extra].concat();
        if !extra.contains(&"--data") {
            args.extend(["--data", "data"]);
        }
        let ran = run_in(dir.path(), &args);
        assert_eq!(ran.code, Some(2), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(words) && ran.stderr.lines().count() == 1, "{args:?}: {ran:?}");
        for file in ["results.md", "results-tables.md", "results.csv", "results.svg", "state.jsonl"]
        {
            assert!(!dir.path().join(file).exists(), "{args:?} wrote {file}");
        }
    }
}
