//! `tandem device`: figures on the reference data, the JSON that is promised, how bad input is refused
//! and how what can never run is named. Without the data the tests that need them say that they are
//! skipped.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::refusal::Complaints;
use common::{folder, listing, read, reference_data, run_in, succeed_in, workspace, write};
use serde_json::Value;
use std::path::Path;

const MODES: [&str; 6] = ["sequential", "slice", "equal", "double", "uncapped", "search"];

fn compare(dir: &Path, tenants: &str, more: &[&str]) -> Vec<Value> {
    let args =
        [&["device", "compare", "--gpu", "v100", "--tenants", tenants, "--json"], more].concat();
    let printed = succeed_in(dir, &args).json();
    assert_eq!(printed["schema"], 1);
    printed["modes"].as_array().expect("a list").clone()
}

fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {value}"))
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().unwrap()).collect()
}

/// STP of slice, equal, double, uncapped, budgets found by hand and these, and of uncapped tenants under
/// `prop`.
type Known = (&'static str, [f64; 4], f64, &'static str, f64);
const MIXES: [Known; 3] = [
    (
        "resnet50_4_fwd:h=28,H=300,mobilenetv2_4_fwd,resnet101_4_fwd",
        [1.60, 2.09, 2.35, 2.29],
        2.35,
        "v=0.6/0.67/0.67",
        2.34,
    ),
    (
        "resnet50_4_fwd:batch=32,mobilenetv2_4_fwd:batch=4,resnet101_4_fwd:batch=2",
        [1.50, 1.97, 2.04, 1.34],
        2.12,
        "v=0.5/0.67/0.67",
        2.12,
    ),
    (
        "resnet50_32_fb1:h=10,H=100,resnet50_4_fwd:batch=1,h=10,H=100,mobilenetv2_4_fwd:batch=1,h=10,H=100",
        [1.14, 1.91, 2.00, 1.38],
        2.02,
        "v=0.6/1/1",
        2.01,
    ),
];

#[test]
fn three_mixes_of_measured_traces() {
    let Some(data) = reference_data() else { return };
    let orion = data.join("orion");
    for (tenants, fixed, best, by_hand, prop) in MIXES {
        let modes = format!("slice,equal,double,uncapped,{by_hand},search");
        let args = ["--objective", "stp", "--modes", &modes];
        let found = compare(&orion, tenants, &[&args[..], &["--thorough"]].concat());
        let expected = fixed.into_iter().chain([best]);
        for (mode, expected) in found.iter().zip(expected) {
            let stp = number(mode, "stp");
            assert!((stp - expected).abs() < 0.01, "{tenants}: {expected} in {mode}");
        }
        let searched = number(&found[5], "stp");
        assert!(found[..5].iter().all(|mode| number(mode, "stp") <= searched), "{found:?}");
        // A decision of milliseconds is not below the best fixed mode either, and within a percent.
        let decided = &compare(&orion, tenants, &args)[5];
        let least =
            found[..4].iter().map(|mode| number(mode, "stp")).fold(0.99 * searched, f64::max);
        let reached = number(decided, "stp") + number(decided, "noise");
        assert!(reached >= least, "{tenants}: {least} and {decided}");
        let mut args = vec!["--scheduler", "prop", "--modes", "uncapped"];
        let uncapped = compare(&orion, tenants, &args);
        assert!((number(&uncapped[0], "stp") - prop).abs() < 0.01, "{uncapped:?}");
        // Nash does not starve: its worst tenant has more than that of the total.
        args = vec!["--modes", "search,equal,double,uncapped"];
        let nash = compare(&orion, tenants, &args);
        let product = |mode: &Value| numbers(&mode["y"]).iter().product::<f64>();
        assert!(nash[1..].iter().all(|mode| product(mode) <= product(&nash[0])), "{nash:?}");
        assert!(number(&nash[0], "worst") >= number(&found[5], "worst") - 0.01, "{nash:?}");
    }
}

#[test]
fn batch_decides_whether_three_gain() {
    let Some(data) = reference_data() else { return };
    let three = |batch: u32| {
        let tenant = format!("resnet50_4_fwd:batch={batch}");
        let tenants = [tenant.as_str(); 3].join(",");
        number(&compare(&data.join("orion"), &tenants, &["--modes", "uncapped"])[0], "stp")
    };
    for (batch, expected) in [(1, 2.72), (4, 1.97), (8, 1.44), (16, 1.14), (32, 1.00)] {
        let stp = three(batch);
        assert!((stp - expected).abs() < 0.05, "batch {batch}: {stp}");
    }
}

#[test]
fn copies_of_one_model_follow_the_law() {
    let Some(data) = reference_data() else { return };
    let files: Vec<String> = common::listing(&data.join("parvagpu"))
        .keys()
        .filter(|name| name.extension().is_some_and(|end| end == "csv"))
        .map(|name| data.join("parvagpu").join(name).display().to_string())
        .collect();
    let validate = |more: &[&str]| {
        let mut args = vec!["device", "validate", "--json"];
        args.extend(files.iter().map(String::as_str));
        args.extend(more);
        succeed_in(Path::new("."), &args).json()
    };
    let all = validate(&[]);
    // Batch, then mean STP of 2, 3 and 5 copies, and the range of 3.
    let known = [
        (1, [1.85, 2.63, 4.06], (1.40, 3.09)),
        (4, [1.83, 2.57, 3.41], (1.27, 3.02)),
        (8, [1.70, 2.19, 2.45], (1.11, 2.86)),
        (16, [1.39, 1.49, 1.61], (1.05, 1.87)),
        (32, [1.18, 1.21, 1.28], (1.02, 1.81)),
    ];
    let measured = all["measured"].as_array().unwrap();
    for (batch, means, (low, high)) in known {
        for (copies, mean) in [2, 3, 5].into_iter().zip(means) {
            let is_it = |row: &&Value| row["batch"] == batch && row["n"] == copies;
            let row = measured.iter().find(is_it).unwrap();
            assert!((number(row, "stp") - mean).abs() <= 0.0051, "{row}");
            if copies == 3 {
                assert!((number(row, "min") - low).abs() <= 0.0051, "{row}");
                assert!((number(row, "max") - high).abs() <= 0.0051, "{row}");
            }
        }
    }
    let [by_batch, by_slice] = [&all["laws"][0], &all["laws"][1]];
    assert_eq!(by_slice["points"], 326);
    assert!(number(by_slice, "leave_model_out") < 0.055, "{by_slice}");
    assert!(number(by_batch, "mape") > 2.0 * number(by_slice, "mape"));
    let some = validate(&["--without", "bert", "--batch-max", "128"]);
    assert_eq!(some["laws"][0]["points"], 287);
    assert!((number(&some["laws"][0], "mape") - 0.076).abs() < 0.001, "{}", some["laws"][0]);
    assert!(number(&some["laws"][1], "leave_model_out") < 0.04, "{}", some["laws"][1]);
}

#[test]
fn utilisations_say_more_by_the_device_model_than_by_the_closed_form() {
    let Some(data) = reference_data() else { return };
    let file = |name: &str| data.join("lucid").join(name).display().to_string();
    let (pairs, solo) = (file("colocate_info.csv"), file("single_data.csv"));
    let args = ["device", "pairs", "--interference", &pairs, "--solo", &solo, "--json"];
    let printed = succeed_in(Path::new("."), &args).json();
    assert_eq!(printed["device"]["rows"], 2776);
    let mae = |law: &str| number(&printed[law], "mae");
    assert!((mae("closed_form") - 0.081).abs() < 0.002, "{printed}");
    assert!(mae("device") < 0.073, "{printed}");
}

#[test]
fn latency_holds_while_training_uses_the_rest() {
    let Some(data) = reference_data() else { return };
    let tenants = "resnet50_32_fb1:h=10,H=100,mobilenetv2_4_fwd:batch=1,h=10,H=100,p99=10";
    let args = ["device", "sweep", "--tenants", tenants, "--arrivals", "50,100,150,400", "--json"];
    let printed = succeed_in(&data.join("orion"), &args).json();
    let steps = printed["steps"].as_array().unwrap();
    for step in &steps[..3] {
        assert!(step["found"]["p99_ms"][1].as_f64().unwrap() <= 10.0, "{step}");
        assert!(step["uncapped"]["p99_ms"][1].as_f64().unwrap() > 10.0, "{step}");
        let training = |mode: &str| step[mode]["y"][0].as_f64().unwrap();
        assert!(training("found") > 0.7 && training("found") > training("equal"), "{step}");
    }
    // More than the GPU could answer in time alone.
    assert!(steps[3]["found"].is_null(), "{}", steps[3]);
}

/// Generated traces, so that these tests need no data.
fn generated() -> tempfile::TempDir {
    let dir = folder();
    let traces =
        [("narrow_4_fwd", "12", "1"), ("wide_4_fwd", "90", "2"), ("full_4_fwd", "2000", "3")];
    for (name, sms, seed) in traces {
        let args = ["device", "generate", "--operators", "40", "--sms", sms, "--seed", seed];
        succeed_in(dir.path(), &[&args[..], &["--out", name]].concat());
    }
    dir
}

#[test]
fn json_has_the_fields_that_are_promised() {
    let dir = generated();
    let found = compare(dir.path(), "narrow_4_fwd,wide_4_fwd:batch=8,weight=2", &[]);
    assert_eq!(found.iter().map(|mode| mode["mode"].as_str().unwrap()).collect::<Vec<_>>(), MODES);
    for mode in &found {
        let keys: Vec<&str> = mode.as_object().unwrap().keys().map(String::as_str).collect();
        let expected = ["mode", "stp", "worst", "makespan_ratio", "y", "v", "evaluations", "noise"];
        assert_eq!(keys, expected);
        let y = numbers(&mode["y"]);
        assert!((y.iter().sum::<f64>() - number(mode, "stp")).abs() < 1e-9);
        assert_eq!(y.iter().copied().fold(f64::INFINITY, f64::min), number(mode, "worst"));
        assert!(numbers(&mode["v"]).iter().all(|v| (0.1..=1.0).contains(v)));
    }
    assert_eq!(numbers(&found[0]["y"]), [0.5, 0.5]);
    let again = compare(dir.path(), "narrow_4_fwd,wide_4_fwd:batch=8,weight=2", &[]);
    assert_eq!(found, again);
}

#[test]
fn sharing_is_advised_where_it_pays_and_refused_where_it_does_not() {
    let dir = generated();
    let allocate = |tenants: &str, more: &[&str]| {
        let args = [&["device", "allocate", "--json", "--tenants", tenants], more].concat();
        succeed_in(dir.path(), &args).json()
    };
    for model in ["operators", "summary"] {
        let pays = allocate("narrow_4_fwd,narrow_4_fwd:slo=0.6", &["--model", model]);
        assert_eq!(pays["share"], true, "{pays}");
        assert!(number(&pays, "stp") > 1.5 && numbers(&pays["y"])[1] >= 0.6, "{pays}");
        assert_eq!(pays["tenants"][1], "narrow_4_fwd#2");
        let does_not = allocate("full_4_fwd:h=0,H=0,full_4_fwd:h=0,H=0", &["--model", model]);
        assert_eq!(does_not["share"], false, "{does_not}");
        assert!(does_not.get("v").is_none(), "{does_not}");
        assert!(number(&does_not, "best_stp") <= 1.05, "{does_not}");
    }
}

#[test]
fn a_chart_shows_every_mode_that_shares() {
    let dir = generated();
    let tenants = "narrow_4_fwd,wide_4_fwd";
    succeed_in(dir.path(), &["device", "compare", "--tenants", tenants, "--chart", "page.html"]);
    let page = read(&dir.path().join("page.html"));
    assert_eq!(page.matches("<svg").count(), MODES.len() - 1);
    assert!(page.matches("<path").count() > 100 && !page.contains("http"));
}

#[test]
fn what_can_never_run_is_named_with_exit_code_5() {
    let dir = generated();
    let never = |tenants: &str, says: &[&str]| {
        for command in ["compare", "allocate"] {
            let before = listing(dir.path());
            let args = ["device", command, "--tenants", tenants, "--chart", "page.html"];
            let ran = run_in(dir.path(), &args);
            assert_eq!(ran.code, Some(5), "{tenants}: {ran:?}");
            assert!(ran.stdout.is_empty() && ran.stderr.lines().count() == 1, "{ran:?}");
            assert!(says.iter().all(|part| ran.stderr.contains(part)), "{ran:?}");
            assert!(listing(dir.path()) == before);
        }
    };
    never(
        "narrow_4_fwd:mem=9G,wide_4_fwd:mem=8G",
        &["16384 MiB", "narrow_4_fwd (9216 MiB)", "wide_4_fwd (8192 MiB)", "500 MiB"],
    );
    never("wide_4_fwd:slo=0.95,full_4_fwd:slo=0.9", &["no budgets keep the promise to", "_4_fwd"]);
    never(
        "narrow_4_fwd:arrivals=20,p99=0.5,name=server,wide_4_fwd",
        &["server (p99", "0.500 ms are promised"],
    );
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let dir = generated();
    let header = "Name,Profile,Memory_footprint,SM_usage,Duration\n";
    write(dir.path(), "empty", "");
    write(dir.path(), "header", header);
    let files = [
        ("nan", "f,1,0,4,NaN", "Duration"),
        ("negative", "f,1,0,4,-3", "Duration"),
        ("zero", "f,1,0,4,0", "Duration"),
        ("huge", "f,1,0,4,1e99", "Duration"),
        ("sms", "f,1,0,inf,3", "SM_usage"),
        ("class", "f,7,0,4,3", "Profile"),
        ("short", "f,1,3", "row"),
    ];
    let mut complaints = Complaints::default();
    let mut refused = |case: &str, tenants: &str, says: &[&str]| {
        for command in ["compare", "allocate"] {
            let args = ["device", command, "--tenants", tenants, "--chart", "page.html"];
            complaints.refused(dir.path(), case, &args, says);
        }
    };
    for (name, row, field) in files {
        write(dir.path(), name, format!("{header}ok,1,0,1,1\n{row}\n"));
        refused(name, &format!("narrow_4_fwd,{name}"), &[&format!("{name}:3: {field}")]);
    }
    write(dir.path(), "column", format!("{}x,1,0,4,3\n", header.replace("Profile", "Colour")));
    refused("column", "column", &["column:1: Colour: unknown column"]);
    refused("empty", "empty", &["empty:1: header"]);
    refused("header only", "header", &["header:2: row: there are no operators"]);
    refused("no file", "nothing", &["nothing: cannot be read"]);
    refused("no tenant", "", &["empty"]);
    refused("option first", "h=3", &["stands before the first name"]);
    refused("unknown key", "narrow_4_fwd:size=3", &["unknown key 'size'"]);
    refused("twice", "narrow_4_fwd:h=3,h=4", &["h is given twice"]);
    refused("names", "narrow_4_fwd:name=a,wide_4_fwd:name=a", &["another one has this name"]);
    for (key, values) in [
        ("batch", &["0", "-1", "1.5", "nan", "99999999999"][..]),
        ("h", &["-1", "nan", "inf", "1e300", "x"]),
        ("H", &["-0.1", ""]),
        ("mem", &["-1G", "nanM", "4X", "1e99T"]),
        ("slo", &["-0.1", "1.1", "nan"]),
        ("weight", &["0", "-1", "inf"]),
        ("arrivals", &["0", "-3", "nan"]),
        ("p99", &["0", "-3"]),
    ] {
        for value in values {
            let tenants = format!("narrow_4_fwd:{key}={value}");
            refused(key, &tenants, &["narrow_4_fwd", key]);
        }
    }
    refused("p99 alone", "narrow_4_fwd:p99=30", &["needs arrivals"]);
    write(dir.path(), "unnamed", format!("{header}x,1,0,4,3\n"));
    refused("no base", "unnamed:batch=3", &["base=N"]);
    let tenants = ["device", "compare", "--tenants", "narrow_4_fwd,wide_4_fwd"];
    for (more, says) in [
        (&["--gpu", "k9"][..], "unknown GPU 'k9'"),
        (&["--gpu", "v100:sms=3"], "3 SMs"),
        (&["--gpu", "v100:colour=3"], "unknown key 'colour'"),
        (&["--gpu", "v100:kappa=nan"], "kappa"),
        (&["--modes", "best"], "mode 'best' is not known"),
        (&["--modes", "v=0.5"], "1 budgets for 2 tenants"),
        (&["--modes", "v=0.5/0.05"], "budgets are from 0.1 to 1"),
        (&["--modes", ""], "mode '' is not known"),
        (&["--scheduler", "random"], "scheduler"),
        (&["--objective", "max"], "objective"),
        (&["--chart-ms", "0"], "chart-ms"),
    ] {
        complaints.refused(dir.path(), "option", &[&tenants[..], more].concat(), &[says]);
    }
    let sweep = ["device", "sweep", "--tenants", "narrow_4_fwd", "--arrivals", "10"];
    complaints.refused(dir.path(), "sweep", &sweep, &["no tenant has a latency to keep"]);
    write(
        dir.path(),
        "parva.csv",
        "Mig instance,Batch size,Workload Number,Throughput,Latency\n7,1,1,nan,0\n",
    );
    let validate = ["device", "validate", "parva.csv"];
    complaints.refused(dir.path(), "validate", &validate, &["parva.csv:2: Throughput"]);
}

#[test]
fn many_tenants_are_searched_for_within_bounds() {
    let dir = generated();
    let tenants = "narrow_4_fwd,narrow_4_fwd:slo=0.5,wide_4_fwd,wide_4_fwd:batch=2";
    let found = compare(dir.path(), tenants, &["--modes", "equal,double,uncapped,search"]);
    let nash = |mode: &Value| numbers(&mode["y"]).iter().map(|y| y.ln()).sum::<f64>();
    assert!(found[..3].iter().all(|mode| nash(mode) <= nash(&found[3])), "{found:?}");
    assert!(numbers(&found[3]["y"])[1] >= 0.5 && number(&found[3], "evaluations") <= 240.0);
}

#[test]
fn the_script_for_a_gpu_says_what_it_would_do_and_what_it_lacks() {
    let script = workspace().join("scripts/measure-gpu");
    let run = |args: &[&str]| {
        let mut python = std::process::Command::new("python3");
        common::finish(python.arg(&script).args(args))
    };
    let listed = run(&["--list"]);
    assert!(listed.code == Some(0) && listed.stdout.lines().count() == 5, "{listed:?}");
    assert!(listed.stdout.contains("stp: 60 runs of 10 s"), "{listed:?}");
    let unknown = run(&["--only", "colour"]);
    assert_eq!((unknown.code, unknown.stderr.lines().count()), (Some(1), 1), "{unknown:?}");
    assert!(unknown.stderr.contains("'colour' is not known"), "{unknown:?}");
}

#[test]
fn generated_traces_are_those_of_the_examples() {
    let examples = workspace().join("examples");
    let dir = folder();
    for (name, sms, seed) in [("conv_4_fwd.csv", "30", "1"), ("small_1_fwd.csv", "8", "2")] {
        let args = ["device", "generate", "--operators", "60", "--sms", sms, "--seed", seed];
        succeed_in(dir.path(), &[&args[..], &["--out", name]].concat());
        assert_eq!(read(&dir.path().join(name)), read(&examples.join(name)));
    }
}

/// The throughput of a mix may hide that one of its tenants starves.
#[test]
fn a_mix_that_ends_later_than_one_after_the_other_is_advised_against() {
    let data = common::workspace().join("../shared/data/orion");
    let names = ["bert_2_fwd", "efficientnet_4_fwd", "transformer_xl_4_fwd"];
    let tenants: Vec<String> =
        names.iter().map(|name| data.join(name).to_string_lossy().into_owned()).collect();
    if !tenants.iter().all(|file| std::path::Path::new(file).exists()) {
        println!("skipped: {} has no operator traces", data.display());
        return;
    }
    let tenants = tenants.join(",");
    for objective in ["nash", "stp"] {
        let ran = common::finish(&mut common::tandem(&[
            "device",
            "allocate",
            "--json",
            "--objective",
            objective,
            "--tenants",
            &tenants,
        ]));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let answer = ran.json();
        assert_eq!(answer["share"], false, "{answer}");
        assert!(answer["advice"].as_str().is_some_and(|text| text.contains("makespan ratio 0.")));
        assert!(answer.get("v").is_none(), "{answer}");
    }
}
