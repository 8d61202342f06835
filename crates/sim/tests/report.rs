//! The data of the report page, on cases small enough to compute by hand.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{cluster, generated, simulate, workload};
use serde_json::{Value, json};
use std::sync::Arc;
use tandem_core::{Interference, Memory, Ratio, SubBatch, SubBatches};
use tandem_policies::PolicySpec;
use tandem_sim::interference::{Learning, ModelFile, PairTable, trace_beliefs};
use tandem_sim::report::{PairHeatMap, html};
use tandem_sim::trace::{ReadOptions, parse};
use tandem_sim::{LowerBound, RunOptions, SimRun, Workload};

fn recorded(workload: &Workload, policy: &str) -> SimRun {
    let options = RunOptions { record: true, ..RunOptions::default() };
    simulate(workload, &PolicySpec::parse(policy).unwrap(), &options)
}

fn page(workload: &Workload, runs: &[SimRun], pairs: Option<&PairHeatMap>) -> Value {
    let bound = LowerBound { exclusive_s: 2.0, sharing_s: 1.0, tenants_max: 2 };
    let page = html(workload, bound, runs, &[], pairs);
    let data = page.split("type=\"application/json\">").nth(1).unwrap();
    serde_json::from_str(data.split("</script>").next().unwrap()).unwrap()
}

#[test]
fn partners_are_counted_by_the_gpu_time_that_they_share() {
    // 80 % + 80 %: both run at 0.625. b shares a's GPU from 10 to 26 s, c runs there alone later.
    let rows = "a,0,1,100,M,80\nb,10,1,10,N,80\nc,500,1,10,M,80\n";
    let trace = format!("job_id,submit_s,gpus,duration_s,model,gpu_util\n{rows}");
    let workload = workload(&trace, cluster("1x1"));
    let page =
        page(&workload, &["sjf", "sjf-bsbf"].map(|policy| recorded(&workload, policy)), None);
    assert_eq!(page["runs"][0]["sharing"], Value::Null, "no sharing under sjf");
    let sharing = &page["runs"][1]["sharing"];
    assert_eq!(sharing["pairs"], json!([["M", "N", 16.0]]));
    assert_eq!((&sharing["all_pairs"], &sharing["all_gpu_s"]), (&json!(1), &json!(16.0)));
    assert_eq!(sharing["sub_batches"], json!([[1, 3]]));
    assert_eq!(sharing["slowdown"], json!([[1.06, 0.5], [1.6, 1.0]]), "106 s of 100, 16 s of 10");
    assert_eq!(page["pairs"], Value::Null);
}

#[test]
fn jobs_are_counted_by_their_sub_batches() {
    let rows = "a,0,1,1000,40,800\nb,1,1,10,40,700\n";
    let trace = format!("job_id,submit_s,gpus,duration_s,gpu_util,memory_mib\n{rows}");
    let mut workload = workload(&trace, cluster("1x1:1000"));
    let (slowdown, memory) = (Ratio::new(16, 10), Memory::from_mib(200));
    let ways = SubBatches::new([SubBatch { count: 4, slowdown, memory }]);
    workload.offer_sub_batches(|spec| match spec.profile.memory {
        Memory(700_000) => ways.clone(),
        _ => SubBatches::default(),
    });
    let page = page(&workload, &[recorded(&workload, "sjf-bsbf")], None);
    let sharing = &page["runs"][0]["sharing"];
    assert_eq!(sharing["sub_batches"], json!([[1, 1], [4, 1]]));
    assert_eq!(sharing["pairs"], json!([["no class", "no class", 16.0]]));
}

#[test]
fn shared_gpu_time_adds_up_to_that_of_the_summary() {
    let workload = generated(300, 1.5, 3, cluster("4x4"));
    let runs = ["sjf-ffs", "sjf-bsbf", "lucid"].map(|policy| recorded(&workload, policy));
    let page = page(&workload, &runs, None);
    for run in page["runs"].as_array().unwrap() {
        let number = |value: &Value| value.as_f64().unwrap_or(0.0);
        let metrics = &run["metrics"];
        let all = 16.0 * number(&metrics["makespan_s"]) * number(&metrics["shared_gpu_time"]);
        let told = number(&run["sharing"]["all_gpu_s"]);
        assert!((told - all).abs() <= 1e-6 * all, "{}: {told} of {all}", run["policy"]);
    }
}

#[test]
fn pair_rates_are_those_of_the_classes_that_occur() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pairs.csv");
    let table = "model1,dataset1,batchsize1,amp1,speed1,model2,dataset2,batchsize2,amp2,speed2\n\
                 A,d,1,0,0.9,B,d,1,0,0.8\nB,d,1,0,0,B,d,1,0,0\nA,d,1,0,0.5,Z,d,1,0,0.5\n";
    std::fs::write(&file, table).unwrap();
    let table = PairTable::read(file.to_str().unwrap()).unwrap();
    let csv = "job_id,submit_s,gpus,duration_s,model,dataset,batch,amp\n\
                 1,0,1,9,A,d,1,0\n2,0,1,9,B,d,1,0\n3,0,1,9,B,d,1,0\n4,0,1,9,C,d,1,0\n";
    let trace = parse(csv.as_bytes(), "trace.csv", &ReadOptions::default()).unwrap();
    let workload = workload(csv, cluster("1x4"));
    let truth = Arc::new(table.for_trace(&trace).unwrap());
    let shipped = ModelFile::shipped();
    let model = shipped.for_gpu(None, "shipped").unwrap();
    let learning = Learning { train_pairs: 1.0, seed: 1, online: false };
    let shared: Arc<dyn Interference> = truth.clone();
    let beliefs = trace_beliefs(&trace, shared, Some(&table), None, Some(model), learning).unwrap();
    let pairs = |beliefs| {
        let pairs = PairHeatMap::new(&trace, &truth, beliefs);
        page(&workload, &[recorded(&workload, "sjf")], Some(&pairs))["pairs"].clone()
    };
    let told = pairs(None);
    assert_eq!(told["classes"], json!(["B d b1", "A d b1", "C d b1"]), "the most frequent first");
    assert_eq!((&told["jobs"], &told["all_classes"]), (&json!([2, 1, 1]), &json!(3)));
    assert_eq!(told["measured"], json!([[0.0, 0.8, null], [0.9, null, null], [null, null, null]]));
    assert_eq!(told["believed"], Value::Null);
    let believed = pairs(Some(&beliefs))["believed"].clone();
    let rates = believed.as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
    let rates: Vec<Option<f64>> = rates.map(Value::as_f64).collect();
    let measured: Vec<bool> = rates.iter().map(Option::is_some).collect();
    let of_table = [true, true, false, true, false, false, false, false, false];
    assert_eq!(measured, of_table, "unmeasured pairs are not believed either");
    assert!(rates.iter().flatten().all(|rate| (0.01..=1.5).contains(rate)), "{rates:?}");
}
