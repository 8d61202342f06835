//! `tandem model`: fit the models to measurements and show how well they describe them.

use super::{interference, print};
use crate::args::ModelCommand;
use crate::failure::Failure;
use crate::table;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tandem_models::errors::Errors;
use tandem_models::interference::evaluate::Noise;
use tandem_models::memory::MemoryFit;
use tandem_models::throughput::{self, Gang, Throughput};
use tandem_sim::profiles::{SoloProfiles, StepGroup, read_steps};

/// Version of every JSON object that is printed.
pub(super) const SCHEMA: u32 = 1;
/// Numbers of sub-batches whose cost is shown.
const COUNTS: [u32; 4] = [1, 2, 4, 8];

pub(crate) fn run(command: &ModelCommand) -> Result<(), Failure> {
    match command {
        ModelCommand::Eval { data, protocol, seed, json } => {
            interference::eval(data, *protocol, *seed, *json)
        }
        ModelCommand::Predict { a, b, model, gpu, json } => {
            let fitted = interference::FittedModel::read(model.as_deref(), gpu.as_deref())?;
            interference::predict(&fitted, [a, b], *json)
        }
        ModelCommand::Partners { class, count, noise, model, gpu, json } => {
            let fitted = interference::FittedModel::read(model.as_deref(), gpu.as_deref())?;
            interference::partners(&fitted, class, *count as usize, *noise, *json)
        }
        ModelCommand::Online { data, noise, observations, seed, json } => {
            let noise = Noise { deviation: *noise, seed: *seed };
            interference::online(data, *observations as usize, noise, *json)
        }
        ModelCommand::Fit { data, out, trained_on, seed } => {
            interference::fit(data, out, trained_on.as_deref(), *seed)
        }
        ModelCommand::Throughput { files, json } => throughput(files, *json),
        ModelCommand::Memory { file, json } => memory(file, *json),
    }
}

/// Prints `fits` as one object, or as `table`.
fn print_fits<T: Serialize>(
    fits: &[T],
    json: bool,
    table: impl FnOnce() -> String,
) -> Result<(), Failure> {
    if json {
        let object = serde_json::json!({ "schema": SCHEMA, "fits": fits });
        print(&object.to_string())
    } else {
        print(&table())
    }
}

/// A path as text.
fn name(path: &Path) -> String {
    path.display().to_string()
}

#[derive(Serialize)]
struct ThroughputRow {
    name: String,
    #[serde(flatten)]
    fit: throughput::Fit,
    /// The batch that is split: the largest one on one GPU.
    batch: f64,
    /// By number of sub-batches, on one GPU.
    price: BTreeMap<u32, f64>,
}

impl ThroughputRow {
    fn new(file: &str, group: StepGroup) -> Result<Self, Failure> {
        let StepGroup { name, steps } = group;
        let subject = if name == file { String::new() } else { format!(" {name}:") };
        let fit = throughput::fit(&steps)
            .map_err(|error| Failure::bad_input(format!("{file}:{subject} {error}")))?;
        let alone = steps.iter().filter(|step| step.gang == Gang::ONE);
        let batch = alone.map(|step| step.batch).fold(0.0, f64::max);
        let price = COUNTS.map(|count| (count, fit.model.price(batch, count, Gang::ONE)));
        Ok(Self { name, fit, batch, price: BTreeMap::from(price) })
    }

    fn one_gpu(&self) -> Vec<String> {
        let compute = self.fit.model.compute;
        let mut cells = vec![short(&self.name)];
        cells.extend([format!("{:.4}", compute.alpha), format!("{:.3e}", compute.beta)]);
        cells.extend(errors(Some(&self.fit.one_gpu), 4));
        cells.push(format!("{}", self.batch));
        cells.extend(self.price.values().map(|price| format!("{price:.2}")));
        cells
    }

    fn several_gpus(&self) -> Vec<String> {
        let Throughput { gamma, inside, across, .. } = self.fit.model;
        let net = |net: throughput::Net| format!("{:.4} + {:.4}", net.base, net.per_gpu);
        let mut cells = vec![short(&self.name), format!("{gamma:.2}")];
        for (coefficients, fitted) in [(inside, &self.fit.inside), (across, &self.fit.across)] {
            cells.push(fitted.map_or(String::new(), |_| net(coefficients)));
            cells.extend(errors(fitted.as_ref(), 3));
        }
        cells.push(self.fit.across_share.map_or(String::new(), |share| format!("{share:.2}")));
        cells
    }

    fn has_several_gpus(&self) -> bool {
        self.fit.inside.is_some() || self.fit.across.is_some()
    }
}

/// The last folder and the file name, which distinguish the files of a collection.
fn short(name: &str) -> String {
    let parts: Vec<&str> = name.rsplit('/').take(2).collect();
    parts.into_iter().rev().collect::<Vec<_>>().join("/")
}

/// R², mean absolute and mean relative error.
fn errors(errors: Option<&Errors>, decimals: usize) -> [String; 3] {
    let Some(errors) = errors else { return [const { String::new() }; 3] };
    [
        errors.r2.map_or("-".to_owned(), |r2| format!("{r2:.3}")),
        format!("{:.decimals$}", errors.mae),
        format!("{:.1} %", errors.relative * 100.0),
    ]
}

fn throughput(files: &[PathBuf], json: bool) -> Result<(), Failure> {
    let mut fits = Vec::new();
    for file in files {
        let file = name(file);
        for group in read_steps(&file)? {
            // A class of a table that was measured at one batch size says nothing about others.
            let batches = group.steps.iter().map(|step| step.batch);
            let varies = batches.clone().any(|batch| Some(batch) != batches.clone().next());
            if varies || group.name == file {
                fits.push(ThroughputRow::new(&file, group)?);
            }
        }
    }
    print_fits(&fits, json, || throughput_tables(&fits))
}

fn throughput_tables(fits: &[ThroughputRow]) -> String {
    let header =
        ["one GPU", "α s", "β s", "R²", "MAE s", "error", "batch", "a(1)", "a(2)", "a(4)", "a(8)"];
    let mut text = table::plain(&header, fits.iter().map(ThroughputRow::one_gpu).collect());
    let several = fits.iter().filter(|fit| fit.has_several_gpus());
    let rows: Vec<_> = several.map(ThroughputRow::several_gpus).collect();
    if !rows.is_empty() {
        let place = |place: &'static str| [place, "R²", "MAE s", "error"];
        let (inside, across) = (place("in a node s"), place("across nodes s"));
        let header = [&["several", "γ"][..], &inside, &across, &["share"]];
        text += &format!("\n\n{}", table::plain(&header.concat(), rows));
    }
    text
}

#[derive(Serialize)]
struct MemoryRow {
    class: String,
    batches: Vec<u32>,
    fixed_mib: f64,
    per_example_mib: f64,
    above_max_mib: f64,
    smallest_held_out: Option<f64>,
    errors: Errors,
}

fn memory(file: &Path, json: bool) -> Result<(), Failure> {
    let file = name(file);
    let fits: Vec<MemoryRow> = SoloProfiles::read(&file)?
        .fits()
        .into_iter()
        .map(|fit| {
            let MemoryFit { fixed, per_example, above_max, smallest_held_out, errors } = fit.memory;
            MemoryRow {
                class: fit.class.to_string(),
                batches: fit.batches,
                fixed_mib: fixed,
                per_example_mib: per_example,
                above_max_mib: above_max,
                smallest_held_out,
                errors,
            }
        })
        .collect();
    if fits.is_empty() {
        let problem = "no model, data set and precision has two batch sizes";
        return Err(Failure::bad_input(format!("{file}: {problem}")));
    }
    print_fits(&fits, json, || {
        let header = [
            "class",
            "batches",
            "fixed MiB",
            "per example",
            "R²",
            "MAE MiB",
            "error",
            "above by",
            "held out",
        ];
        let cells = |row: &MemoryRow| {
            let batches: Vec<String> = row.batches.iter().map(u32::to_string).collect();
            let mut cells = vec![row.class.clone(), batches.join(" ")];
            cells.push(format!("{:.0}", row.fixed_mib));
            cells.push(format!("{:.2}", row.per_example_mib));
            cells.extend(errors(Some(&row.errors), 0));
            cells.push(format!("{:.0}", row.above_max_mib));
            let held_out = row.smallest_held_out.map(|error| format!("{:+.1} %", error * 100.0));
            cells.push(held_out.unwrap_or_default());
            cells
        };
        table::plain(&header, fits.iter().map(cells).collect())
    })
}
