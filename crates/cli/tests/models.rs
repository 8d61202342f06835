//! `tandem model`: figures on the reference data, and how bad input is refused. Without the data the
//! tests that need them say that they are skipped.

mod common;

use common::refusal::{Complaints, good_files};
use common::{folder, reference_data, succeed_in, write};
use serde_json::Value;

fn number(value: &Value, pointer: &str) -> f64 {
    let found = value.pointer(pointer).and_then(Value::as_f64);
    found.unwrap_or_else(|| panic!("{pointer} is no number in {value}"))
}

/// The fits that `args` print, by the field that names them.
fn fits(args: &[&str]) -> Vec<Value> {
    let dir = folder();
    let printed = succeed_in(dir.path(), args).json();
    assert_eq!(printed["schema"], 1);
    printed["fits"].as_array().expect("a list").clone()
}

#[test]
fn step_times_of_six_models() {
    let Some(data) = reference_data() else { return };
    // α and β in seconds, and the least R² on one GPU.
    let known = [
        ("bert", 0.2130, 0.05784, 0.98),
        ("cifar10", 0.0172, 0.000664, 0.98),
        ("deepspeech2", 0.0913, 0.02905, 0.98),
        ("imagenet", 0.0784, 0.00421, 0.98),
        ("ncf", 0.0074, 0.0, 0.98),
        ("yolov3", 0.2164, 0.0243, 0.66),
    ];
    for (model, alpha, beta, r2) in known {
        let file = data.join(format!("pollux/{model}/placements.csv")).display().to_string();
        let fit = &fits(&["model", "throughput", &file, "--json"])[0];
        assert!((number(fit, "/model/compute/alpha") - alpha).abs() < 1e-4, "{fit}");
        assert!((number(fit, "/model/compute/beta") - beta).abs() < 1e-5, "{fit}");
        assert!(number(fit, "/one_gpu/r2") >= r2, "{fit}");
        assert!(number(fit, "/inside/relative") < 0.10, "{fit}");
        assert!(number(fit, "/across/relative") < 0.10, "{fit}");
        assert!((1.0..=10.0).contains(&number(fit, "/model/gamma")), "{fit}");
        assert!((0.05..0.65).contains(&number(fit, "/across_share")), "{fit}");
        assert_eq!(number(fit, "/price/1"), 1.0);
        let price = match model {
            "cifar10" => Some(("/price/8", 1.17)),
            "yolov3" => Some(("/price/4", 2.07)),
            _ => None,
        };
        if let Some((pointer, expected)) = price {
            assert!((number(fit, pointer) - expected).abs() < 0.005, "{fit}");
        }
    }
}

#[test]
fn memory_of_every_class_with_two_batch_sizes() {
    let Some(data) = reference_data() else { return };
    let file = data.join("lucid/single_data.csv").display().to_string();
    let memory = fits(&["model", "memory", &file, "--json"]);
    // All but BERT, which was measured at one batch size.
    assert_eq!(memory.len(), 23);
    for fit in &memory {
        assert!(number(fit, "/errors/relative") < 0.13, "{fit}");
        assert!(number(fit, "/fixed_mib") > 0.0 && number(fit, "/per_example_mib") >= 0.0, "{fit}");
    }
    assert_eq!(fits(&["model", "throughput", &file, "--json"]).len(), 23);
}

#[test]
fn estimates_from_history_rank_better_than_those_of_the_window() {
    let Some(data) = reference_data() else { return };
    let file = |name: &str| data.join(name).display().to_string();
    let (trace, cluster) = (file("venus/window.csv"), file("venus/partitions.csv"));
    let dir = folder();
    let mut args = vec!["sim", "--trace", &trace, "--cluster", &cluster, "--policy", "sjf"];
    args.extend(["--estimates", "history", "--json"]);
    let run = succeed_in(dir.path(), &args).json()["runs"][0].clone();
    // Those that come with the window have 0.29.
    assert!(number(&run, "/estimates/spearman") > 0.5, "{run}");
    assert!(number(&run, "/estimates/median_factor") < 3.0, "{run}");
}

#[test]
fn bad_measurements_are_refused_in_one_line() {
    let mut complaints = Complaints::default();
    let dir = good_files();
    let header = "placement,local_bsz,step_time,sync_time";
    let steps: &[(&str, String, &[&str])] = &[
        ("nothing", String::new(), &["bad.csv:1: placement: missing column"]),
        ("no rows", format!("{header}\n"), &["bad.csv: ", "two batch sizes"]),
        ("one batch size", format!("{header}\n1,4,1,0\n2,8,1,0\n"), &["bad.csv: ", "two batch"]),
        ("a word", format!("{header}\n1,4,x,0\n"), &["bad.csv:2: step_time: ", "'x'"]),
        ("no node", format!("{header}\n10,4,1,0\n"), &["bad.csv:2: placement: ", "'10'"]),
    ];
    for (case, content, says) in steps {
        write(dir.path(), "bad.csv", content);
        complaints.refused(dir.path(), case, &["model", "throughput", "bad.csv"], says);
    }
    let header = "model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem,label";
    let solo: &[(&str, String, &[&str])] = &[
        ("nothing", String::new(), &["bad.csv:1: model: missing column"]),
        ("no rows", format!("{header}\n"), &["bad.csv: ", "two batch sizes"]),
        ("a flag", format!("{header}\nA,d,8,2,1,1,1,1,0\n"), &["bad.csv:2: amp: ", "'2'"]),
        ("no batch", format!("{header}\nA,d,0,0,1,1,1,1,0\n"), &["bad.csv:2: batchsize: ", "'0'"]),
    ];
    for (case, content, says) in solo {
        write(dir.path(), "bad.csv", content);
        complaints.refused(dir.path(), case, &["model", "memory", "bad.csv"], says);
    }
    complaints.refused(dir.path(), "absent", &["model", "memory", "absent"], &["absent: cannot"]);
    complaints.refused(dir.path(), "no file", &["model", "throughput"], &["FILE"]);
}
