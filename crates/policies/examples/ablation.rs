//! What each part and each tuned number of `tandem` contributes: every one is switched off, halved and
//! doubled in turn, on generated traces with seeds by which nothing was chosen.
//!
//! ```text
//! cargo run --release -p tandem-policies --example ablation -- [--data DIR] [--jobs N] [--seeds A-B]
//!     [--loads L,...] [--tables lucid,v100,k80] [--only NAME,...] [--also KEY=VALUE,...]...
//!     [--trace FILE --cluster SPEC]
//! ```
//!
//! `--only` restricts the numbers that are varied (`--only none`: none of them), `--also` adds a variant.
//!
//! With `--trace` that trace is used instead of generated ones; seeds then only draw job classes.
//!
//! The columns are changes relative to `tandem` as it is, averaged over all cells (table, load and seed),
//! with their standard errors: above zero the variant is worse, so what it changes pays.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tandem_core::Interference;
use tandem_policies::{PolicySpec, REGISTRY, Value};
use tandem_sim::interference::PairTable;
use tandem_sim::trace::{GenerateOptions, ReadOptions, Trace, generate, read};
use tandem_sim::{
    LoadFactor, RunOptions, Workload, WorkloadOptions, assign_classes, clusters, compare,
};

const POLICY: &str = "tandem";
const GPUS: u32 = 64;

/// What to measure.
struct Options {
    data: String,
    jobs: usize,
    seeds: (u64, u64),
    loads: Vec<String>,
    tables: Vec<String>,
    only: Vec<String>,
    also: Vec<String>,
    trace: Option<String>,
    cluster: String,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            data: "../shared/data".to_owned(),
            jobs: 2000,
            seeds: (701, 704),
            loads: list("1,1.5"),
            tables: list("lucid,v100,k80"),
            only: Vec::new(),
            also: Vec::new(),
            trace: None,
            cluster: "8x8".to_owned(),
        };
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            let bad = || format!("{name} cannot be '{value}'");
            match name.as_str() {
                "--data" => options.data = value,
                "--jobs" => options.jobs = value.parse().map_err(|_| bad())?,
                "--seeds" => {
                    let (first, last) = value.split_once('-').ok_or_else(bad)?;
                    let seed = |text: &str| text.parse().map_err(|_| bad());
                    options.seeds = (seed(first)?, seed(last)?);
                }
                "--loads" => options.loads = list(&value),
                "--tables" => options.tables = list(&value),
                "--only" => options.only = list(&value),
                "--also" => options.also.push(value),
                "--trace" => options.trace = Some(value),
                "--cluster" => options.cluster = value,
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(options)
    }

    fn trace(&self, seed: u64) -> Result<Trace, String> {
        match &self.trace {
            Some(file) => {
                read(file.as_ref(), &ReadOptions::default()).map_err(|error| error.to_string())
            }
            None => {
                let jobs = self.jobs;
                Ok(generate(&GenerateOptions { jobs, gpus: GPUS, load: 1.0, seed }))
            }
        }
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

/// The policy as it is, and its variants: `NAME=VALUE` of what is changed.
fn variants(only: &[String]) -> Vec<String> {
    let entry = REGISTRY.iter().find(|entry| entry.name == POLICY).expect("it is registered");
    let mut variants = Vec::new();
    let params = entry.params.iter().map(|param| ("", param));
    for (prefix, param) in params.chain(entry.tuning.iter().map(|param| ("tuning.", param))) {
        if !only.is_empty() && !only.iter().any(|name| name == param.name) {
            continue;
        }
        let values = match param.default {
            Value::Flag(flag) => vec![(!flag).to_string()],
            Value::Whole(number) => {
                let mut others = vec![0, number / 2, number * 2];
                others.retain(|&other| other != number);
                others.dedup();
                others.iter().map(u64::to_string).collect()
            }
            Value::Share(_) | Value::Choice { .. } => Vec::new(),
        };
        variants.extend(values.iter().map(|value| format!("{prefix}{}={value}", param.name)));
    }
    variants
}

/// Mean and p99 of the JCT by variant.
type Figures = Vec<(f64, f64)>;

/// One workload to run all variants on.
struct Cell<'a> {
    table: &'a PairTable,
    load: &'a str,
    seed: u64,
}

fn simulate(
    options: &Options,
    Cell { table, load, seed }: Cell<'_>,
    policies: &[PolicySpec],
) -> Result<Figures, String> {
    let mut trace = options.trace(seed)?;
    assign_classes(&mut trace, table, seed);
    let truth = table.for_trace(&trace).map_err(|error| error.to_string())?;
    let truth: Arc<dyn Interference> = Arc::new(truth);
    let load = LoadFactor::parse(load).ok_or_else(|| format!("{load} is not a load"))?;
    let cluster = clusters::cluster(&options.cluster).map_err(|error| error.to_string())?;
    let options = WorkloadOptions { load, seed, ..WorkloadOptions::default() };
    let workload = Workload::new(trace, Arc::new(cluster), "trace", &options)
        .map_err(|error| error.to_string())?;
    let options = RunOptions { seed, ..RunOptions::default() };
    let runs = compare(&workload, policies, &truth, &options, 0, &AtomicU64::new(0));
    let runs = runs.map_err(|error| error.to_string())?;
    Ok(runs.iter().map(|run| (run.metrics.avg_jct_s, run.metrics.p99_jct_s)).collect())
}

fn table(data: &str, name: &str) -> Result<PairTable, String> {
    let file = match name {
        "lucid" => format!("{data}/lucid/colocate_info.csv"),
        gpu => format!("{data}/gavel/simulation_throughputs.json:gpu={gpu}"),
    };
    PairTable::read(&file).map_err(|error| error.to_string())
}

/// Geometric mean of ratios as a change, and its standard error, in percent.
fn change(ratios: impl Iterator<Item = f64>) -> String {
    let logs: Vec<f64> = ratios.map(f64::ln).collect();
    let count = logs.len() as f64;
    let mean = logs.iter().sum::<f64>() / count;
    let variance =
        logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let error = 100.0 * (variance / count).sqrt();
    format!("{:+.2} ± {error:.2} %", 100.0 * (mean.exp() - 1.0))
}

fn measure(options: &Options) -> Result<(), String> {
    let mut variants = variants(&options.only);
    variants.extend(options.also.iter().cloned());
    let texts = variants.iter().map(|variant| format!("{POLICY}:{variant}"));
    let policies: Vec<PolicySpec> = std::iter::once(POLICY.to_owned())
        .chain(texts)
        .map(|text| PolicySpec::parse(&text).map_err(|error| error.to_string()))
        .collect::<Result<_, _>>()?;
    // By variant and table: ratios of means and of p99s.
    let mut found: BTreeMap<(usize, usize), Vec<(f64, f64)>> = BTreeMap::new();
    for (column, name) in options.tables.iter().enumerate() {
        let table = table(&options.data, name)?;
        for seed in options.seeds.0..=options.seeds.1 {
            for load in &options.loads {
                let figures = simulate(options, Cell { table: &table, load, seed }, &policies)?;
                let (mean, p99) = figures[0];
                eprintln!("{name}, load {load}, seed {seed}: mean JCT {mean:.0} s, p99 {p99:.0} s");
                for (index, figure) in figures[1..].iter().enumerate() {
                    let ratios = found.entry((index, column)).or_default();
                    ratios.push((figure.0 / mean, figure.1 / p99));
                }
            }
        }
    }
    print(options, &variants, &found);
    Ok(())
}

fn print(
    options: &Options,
    variants: &[String],
    found: &BTreeMap<(usize, usize), Vec<(f64, f64)>>,
) {
    let tables = options.tables.join(" | ");
    println!("| variant | mean JCT | {tables} | p99 JCT |");
    println!("|---|---:|{}---:|", "---:|".repeat(options.tables.len()));
    for (index, variant) in variants.iter().enumerate() {
        let columns = 0..options.tables.len();
        let by_table: Vec<&[(f64, f64)]> =
            columns.map(|column| found[&(index, column)].as_slice()).collect();
        let mean = change(by_table.concat().iter().map(|ratio| ratio.0));
        let p99 = change(by_table.concat().iter().map(|ratio| ratio.1));
        let by_table = by_table.iter().map(|cells| change(cells.iter().map(|ratio| ratio.0)));
        let by_table = by_table.collect::<Vec<_>>().join(" | ");
        println!("| `{variant}` | {mean} | {by_table} | {p99} |");
    }
}

fn main() -> ExitCode {
    let measured = Options::parse(std::env::args().skip(1)).and_then(|options| measure(&options));
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ablation: {error}");
            ExitCode::FAILURE
        }
    }
}
