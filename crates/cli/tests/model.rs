//! Predicting pair rates through the binary: what `tandem model` prints, which files it refuses, how
//! runs that believe a prediction behave, and how good it is on the reference data.

mod common;

use common::refusal::Complaints;
use common::{Dice, folder, read, reference_data, run_in, succeed_in, write};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

const CLASSES: u64 = 8;

fn util(class: u64) -> f64 {
    15.0 + 70.0 * ((class * 5) % CLASSES) as f64 / CLASSES as f64
}

fn rate(class: u64, beside: u64) -> f64 {
    1.0 - 0.5 * util(class) * util(beside) / 1e4
}

/// Pairs of classes whose rates follow from their utilisation, as Lucid writes them.
fn lucid() -> (String, String) {
    let side = |class: u64| format!("m{},d,1,{},{}", class / 2, 32 << (class % 2), class % 2);
    let columns = |n: u8| format!("model{n},dataset{n},gpu_num{n},batchsize{n},amp{n},speed{n}");
    let mut pairs = format!(",{},{},gpu_util,gmem_util,gmem\n", columns(1), columns(2));
    let mut solo =
        ",model,dataset,gpu_num,batchsize,amp,speed,gpu_util,gmem_util,gmem\n".to_owned();
    for a in 0..CLASSES {
        let row = format!("{a},{},100.5,{:.1},{:.1},3000\n", side(a), util(a), util(a) / 2.0);
        solo += &row;
        for b in a..CLASSES {
            let (of_a, of_b) = (rate(a, b), rate(b, a));
            writeln!(pairs, "0,{},{of_a:.4},{},{of_b:.4},60,30,5000", side(a), side(b))
                .expect("text grows");
        }
    }
    (pairs, solo)
}

/// The same for two kinds of GPU, as Gavel writes them; the last pair does not fit.
fn gavel() -> String {
    let name = |class: u64| format!("('M{} (batch size {})', 1)", class / 2, 16 << (class % 2));
    let solo = |class: u64| 2.0 + class as f64;
    let row = |a: u64| {
        let mut row = serde_json::Map::new();
        row.insert("null".to_owned(), solo(a).into());
        for b in 0..CLASSES {
            let fits = if (a, b) == (7, 7) { 0.0 } else { 1.0 };
            let speeds = [solo(a) * rate(a, b) * fits, solo(b) * rate(b, a) * fits];
            row.insert(name(b), speeds.as_slice().into());
        }
        Value::Object(row)
    };
    let rows: serde_json::Map<String, Value> = (0..CLASSES).map(|a| (name(a), row(a))).collect();
    serde_json::json!({ "v100": rows, "k80": rows }).to_string()
}

fn files() -> tempfile::TempDir {
    let dir = folder();
    let (pairs, solo) = lucid();
    write(dir.path(), "pairs.csv", pairs);
    write(dir.path(), "solo.csv", solo);
    write(dir.path(), "pairs.json", gavel());
    dir
}

fn number(object: &Value, field: &str) -> f64 {
    object[field].as_f64().unwrap_or_else(|| panic!("no number '{field}' in {object}"))
}

fn numbers(list: &Value) -> Vec<f64> {
    let list = list.as_array().unwrap_or_else(|| panic!("no list: {list}"));
    list.iter().map(|value| value.as_f64().expect("a number")).collect()
}

#[test]
fn eval_prints_the_errors_on_held_out_rates() {
    let dir = files();
    let lucid = ["--interference", "pairs.csv", "--solo", "solo.csv"];
    let gavel = ["--interference", "pairs.json", "--gpu", "k80"];
    for (table, pairs) in [(&lucid, 36), (&gavel, 35)] {
        for protocol in ["5fold", "leave-model-out"] {
            let args = [&["model", "eval"], &table[..], &["--protocol", protocol, "--json"]];
            let object = succeed_in(dir.path(), &args.concat()).json();
            assert_eq!((&object["schema"], &object["pairs"]), (&1.into(), &pairs.into()));
            let r2 = number(&object, "r2");
            assert!(r2 > 0.5 || protocol != "5fold", "{object}");
            assert!(number(&object, "mae") <= number(&object, "rmse"), "{object}");
            assert!(number(&object, "train_s") >= 0.0);
            let by_model = object["by_model"].as_object().expect("errors by model");
            assert_eq!(by_model.len(), 4);
            by_model.values().for_each(|errors| assert!(number(errors, "mae") < 0.2, "{object}"));
            let mut again = succeed_in(dir.path(), &args.concat()).json();
            again["train_s"] = object["train_s"].clone();
            assert_eq!(again, object, "the same but for the clock");
        }
    }
    let table = succeed_in(dir.path(), &[&["model", "eval"], &lucid[..]].concat());
    assert!(table.stdout.contains("36 pairs"), "{table:?}");
}

#[test]
fn a_fitted_model_predicts_both_directions() {
    let dir = files();
    let fit = ["model", "fit", "--interference", "pairs.csv", "--solo", "solo.csv", "--out"];
    succeed_in(dir.path(), &[&fit[..], &["one.json"]].concat());
    succeed_in(dir.path(), &[&fit[..], &["two.json"]].concat());
    assert_eq!(read(&dir.path().join("one.json")), read(&dir.path().join("two.json")));
    let model: Value = serde_json::from_str(&read(&dir.path().join("one.json"))).expect("JSON");
    let names: Vec<&str> = model["model"]["gpus"][0]["profiles"]
        .as_array()
        .expect("classes")
        .iter()
        .map(|class| class["name"].as_str().expect("a name"))
        .collect();
    let predict = |a: &str, b: &str| {
        let args = ["model", "predict", "--a", a, "--b", b, "--model", "one.json", "--json"];
        succeed_in(dir.path(), &args).json()
    };
    let (one, other) = (predict(names[0], names[3]), predict(names[3], names[0]));
    assert_eq!((&one["schema"], &one["familiar"]), (&1.into(), &true.into()));
    assert_eq!((&one["a"], &one["b"]), (&names[0].into(), &names[3].into()));
    assert_eq!((&one["rate_a"], &one["rmse_a"]), (&other["rate_b"], &other["rmse_b"]));
    assert!((number(&one, "rate_a") - rate(0, 3)).abs() < 0.05, "{one}");
    let stranger = predict("gpu_util=90,bandwidth_util=45", names[0]);
    assert_eq!(stranger["familiar"], false);
    assert!((0.01..=1.5).contains(&number(&stranger, "rate_a")), "{stranger}");
    let kinds = ["model", "fit", "--interference", "pairs.json", "--gpu", "v100,k80"];
    let named = ["--trained-on", "a small table", "--out", "kinds.json"];
    succeed_in(dir.path(), &[&kinds[..], &named].concat());
    let model: Value = serde_json::from_str(&read(&dir.path().join("kinds.json"))).expect("JSON");
    assert_eq!(model["model"]["trained_on"], "a small table");
    assert_eq!(model["model"]["gpus"].as_array().map(Vec::len), Some(2));
}

#[test]
fn online_prints_the_error_after_each_observation() {
    let dir = files();
    let args = ["model", "online", "--interference", "pairs.json", "--observations", "4", "--json"];
    let object = succeed_in(dir.path(), &args).json();
    assert_eq!(object["schema"], 1);
    assert_eq!(numbers(&object["mae"]).len(), 5, "before any, and after each");
    assert_eq!(numbers(&object["drift"]["mae"]).len(), 5);
    for after_three in ["/fourth_partner", "/fourth_partner/telling"] {
        let after_three = object.pointer(after_three).expect("errors beside a fourth partner");
        for field in ["rates", "offline_mae", "online_mae", "gain"] {
            number(after_three, field);
        }
        let repeated = &after_three["repeated"];
        assert_eq!(repeated["observations"], 4);
        for field in ["online_mae", "gain"] {
            number(repeated, field);
        }
    }
    assert_eq!(succeed_in(dir.path(), &args).json(), object);
}

#[test]
fn a_table_without_strangers_still_has_a_learning_curve() {
    let dir = folder();
    let pairs = lucid().0;
    let one_model = pairs.replace("m1,d", "m0,e").replace("m2,d", "m0,f").replace("m3,d", "m0,g");
    let few: Vec<&str> = pairs.lines().take(6).collect();
    for (case, text) in [("one model", one_model), ("few partners", few.join("\n") + "\n")] {
        write(dir.path(), "pairs.csv", text);
        let args = ["model", "online", "--interference", "pairs.csv", "--json"];
        let object = succeed_in(dir.path(), &args).json();
        assert_eq!(numbers(&object["mae"]).len(), 9, "{case}");
        assert_eq!(object["fourth_partner"]["rates"], 0, "{case}");
        assert_eq!(number(&object["fourth_partner"], "gain"), 0.0, "{case}");
    }
}

#[test]
fn partners_to_measure_a_class_beside_are_named() {
    let dir = files();
    let fit = ["model", "fit", "--interference", "pairs.csv", "--solo", "solo.csv", "--out"];
    succeed_in(dir.path(), &[&fit[..], &["model.json"]].concat());
    let args = ["model", "partners", "--class", "gpu_util=50", "--model", "model.json"];
    let object = succeed_in(dir.path(), &[&args[..], &["--count", "2", "--json"]].concat()).json();
    assert_eq!((&object["schema"], &object["gpu"]), (&1.into(), &"".into()));
    let partners = object["partners"].as_array().expect("a list");
    assert_eq!(partners.len(), 2);
    assert_ne!(partners[0]["class"], partners[1]["class"]);
    for partner in partners {
        for field in ["rate", "rate_partner"] {
            assert!((0.01..=1.5).contains(&number(partner, field)), "{object}");
        }
    }
    assert!(number(&object, "rmse_after") < number(&object, "rmse_before"), "{object}");
    let table = succeed_in(dir.path(), &args).stdout;
    assert!(table.contains("RMSE to expect over all pairs of"), "{table}");
    let known = partners[0]["class"].as_str().expect("a name");
    let args = ["model", "partners", "--class", known, "--model", "model.json", "--count", "400"];
    let object = succeed_in(dir.path(), &[&args[..], &["--json"]].concat()).json();
    let others: Vec<&Value> =
        object["partners"].as_array().expect("a list").iter().map(|one| &one["class"]).collect();
    assert_eq!(others.len() as u64, CLASSES - 1, "all but itself");
    assert!(!others.contains(&&Value::from(known)));
    let mut complaints = Complaints::default();
    let unknown = ["model", "partners", "--class", "nothing", "--model", "model.json"];
    complaints.refused(dir.path(), "class", &unknown, &["nothing"]);
    let none = ["model", "partners", "--class", known, "--model", "model.json", "--count", "0"];
    complaints.refused(dir.path(), "count", &none, &["--count"]);
}

#[test]
fn model_files_of_another_version_or_damaged_are_refused() {
    let dir = files();
    let fit = ["model", "fit", "--interference", "pairs.csv", "--out", "good.json"];
    succeed_in(dir.path(), &fit);
    let good = read(&dir.path().join("good.json"));
    let digit = good.find("\"mean\":0.").expect("a mean") + "\"mean\":0.".len();
    let other = if &good[digit..=digit] == "7" { "8" } else { "7" };
    let damaged = format!("{}{other}{}", &good[..digit], &good[digit + 1..]);
    let cases: [(&str, String, &[&str]); 6] = [
        ("version", good.replacen("\"version\":3", "\"version\":2", 1), &["is of version 2"]),
        ("digit", damaged, &["is damaged"]),
        ("cut", good[..good.len() / 2].to_owned(), &["bad.json:1: not a model file"]),
        ("empty", String::new(), &["bad.json:1: not a model file"]),
        ("format", good.replacen("tandem-interference", "other", 1), &["its format is"]),
        ("table", lucid().0, &["not a model file", "tandem model fit"]),
    ];
    write(dir.path(), "trace.csv", TRACE);
    let mut complaints = Complaints::default();
    for (case, text, says) in cases {
        write(dir.path(), "bad.json", text);
        let predict = ["model", "predict", "--a", "batch=1", "--b", "batch=2", "--model"];
        complaints.refused(dir.path(), case, &[&predict[..], &["bad.json"]].concat(), says);
        let run = sim(&["--beliefs", "model", "--model", "bad.json"]);
        complaints.refused(dir.path(), case, &run, says);
    }
    let missing = sim(&["--beliefs", "model", "--model", "none.json"]);
    complaints.refused(dir.path(), "missing", &missing, &["none.json"]);
}

const TRACE: &str = "job_id,submit_s,gpus,duration_s,model,dataset,batch,amp\n1,0,1,10,m0,d,32,0\n";

fn sim<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["sim", "--trace", "trace.csv", "--cluster", "1x4", "--policy", "fifo"], more].concat()
}

#[test]
fn beliefs_need_something_to_learn_from() {
    let dir = folder();
    write(dir.path(), "trace.csv", TRACE);
    let mut complaints = Complaints::default();
    for kind in ["model", "online"] {
        let args = sim(&["--beliefs", kind]);
        complaints.refused(dir.path(), kind, &args, &["--interference FILE", "--model FILE"]);
    }
    write(dir.path(), "pairs.csv", lucid().0);
    let few = ["--beliefs", "model", "--interference", "pairs.csv", "--train-pairs", "0.05"];
    complaints.refused(dir.path(), "few", &sim(&few), &["--train-pairs", "too few"]);
}

/// Jobs of all classes on so few GPUs that they have to share.
fn busy_trace() -> String {
    let mut dice = Dice(7);
    let mut trace =
        "job_id,submit_s,gpus,duration_s,model,dataset,batch,amp,memory_mib,gpu_util,bandwidth_util\n"
            .to_owned();
    for job in 0..150 {
        let class = dice.between(0, CLASSES - 1);
        let (submit, duration) = (job * 40, dice.between(200, 4000));
        let (model, batch, amp) = (class / 2, 32 << (class % 2), class % 2);
        let (gpu, bandwidth) = (util(class), util(class) / 2.0);
        writeln!(
            trace,
            "{job},{submit},1,{duration},m{model},d,{batch},{amp},3000,{gpu},{bandwidth}"
        )
        .expect("text grows");
    }
    trace
}

/// All that a run leaves behind, but for the clock.
fn outcome(dir: &Path, beliefs: &str, more: &[&str]) -> (Value, Vec<String>) {
    const POLICIES: [&str; 2] = ["sjf-bsbf", "lucid"];
    let list = POLICIES.join(",");
    let fixed = ["compare", "--trace", "trace.csv", "--cluster", "2x4", "--policies", &list];
    let table = ["--interference", "pairs.csv", "--beliefs", beliefs, "--out", "out"];
    succeed_in(dir, &[&fixed[..], &table, more].concat());
    let results = read(&dir.join("out/results.json"));
    let jobs = POLICIES.map(|policy| read(&dir.join(format!("out/jobs-{policy}.csv"))));
    let report = read(&dir.join("out/report.html"));
    let files = jobs.into_iter().chain([report]).collect();
    (serde_json::from_str(&results).expect("JSON"), files)
}

#[test]
fn runs_that_believe_are_deterministic() {
    let dir = files();
    write(dir.path(), "trace.csv", busy_trace());
    for beliefs in ["model", "online"] {
        let first = outcome(dir.path(), beliefs, &["--threads", "1"]);
        assert_eq!(first.0["jobs"], 150);
        assert!(number(&first.0["runs"][0], "shared_gpu_time") > 0.0, "nobody shared");
        assert!(outcome(dir.path(), beliefs, &["--threads", "1"]) == first, "{beliefs}: twice");
        assert!(outcome(dir.path(), beliefs, &["--threads", "2"]) == first, "{beliefs}: threads");
    }
    let fit = ["model", "fit", "--interference", "pairs.csv", "--out", "model.json"];
    succeed_in(dir.path(), &fit);
    outcome(dir.path(), "online", &["--model", "model.json"]);
    let unknown = sim(&["--beliefs", "model", "--model", "model.json:gpu=h100"]);
    let ran = run_in(dir.path(), &unknown);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

/// Runs `tandem model` on the reference data.
fn reference(data: &Path, command: &str, table: &str, more: &[&str]) -> Value {
    let path = |name: &str| data.join(name).display().to_string();
    let (pairs, solo) = (path("lucid/colocate_info.csv"), path("lucid/single_data.csv"));
    let gavel = path("gavel/simulation_throughputs.json");
    let table: &[&str] = match table {
        "lucid" => &["--interference", &pairs, "--solo", &solo],
        "lucid without profiles" => &["--interference", &pairs],
        gpu => &["--interference", &gavel, "--gpu", gpu],
    };
    succeed_in(data, &[&["model", command], table, more, &["--json"]].concat()).json()
}

#[test]
fn held_out_pairs_are_predicted_as_well_as_by_boosted_trees() {
    let Some(data) = reference_data() else { return };
    let lucid = reference(&data, "eval", "lucid", &["--protocol", "5fold"]);
    assert_eq!(lucid["pairs"], 1388);
    assert!(number(&lucid, "mae") <= 0.037 && number(&lucid, "r2") >= 0.80, "{lucid}");
    for (gpu, r2) in [("v100", 0.75), ("p100", 0.92), ("k80", 0.82)] {
        let gavel = reference(&data, "eval", gpu, &["--protocol", "5fold"]);
        assert!(number(&gavel, "r2") >= r2, "{gpu}: {gavel}");
    }
}

#[test]
fn held_out_models_are_predicted_as_well_as_by_boosted_trees() {
    let Some(data) = reference_data() else { return };
    let lucid = reference(&data, "eval", "lucid", &["--protocol", "leave-model-out"]);
    assert!(number(&lucid, "mae") <= 0.059, "{lucid}");
}

#[test]
fn observations_correct_predictions_as_fast_as_the_reference() {
    let Some(data) = reference_data() else { return };
    let more = ["--noise", "0.05", "--observations", "8"];
    let mae = numbers(&reference(&data, "online", "lucid", &more)["mae"]);
    for (observations, most) in [(1, 0.036), (2, 0.027), (4, 0.020), (8, 0.014)] {
        assert!(mae[observations] <= most, "after {observations}: {mae:?}");
    }
}

#[test]
fn a_class_seen_with_three_partners_is_known_beside_a_fourth() {
    let Some(data) = reference_data() else { return };
    for table in ["lucid without profiles", "v100", "p100", "k80", "lucid"] {
        let more = ["--noise", "0.05", "--observations", "8"];
        let gained = &reference(&data, "online", table, &more)["fourth_partner"];
        let telling = &gained["telling"];
        assert!(number(&telling["repeated"], "gain") >= 0.25, "{table}: {gained}");
        // Solo profiles leave less to learn: docs/models.md says how much is missing.
        if table != "lucid" {
            assert!(number(&gained["repeated"], "gain") >= 0.25, "{table}: {gained}");
            assert!(number(telling, "gain") >= 0.25, "{table}: {gained}");
        }
    }
}
