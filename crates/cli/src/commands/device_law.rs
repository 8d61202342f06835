//! `tandem device validate`: the duty law against measurements of several copies of one model.

use super::model::SCHEMA;
use super::{interference, print};
use crate::args::PairDataArgs;
use crate::failure::Failure;
use crate::table;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use tandem_models::device::{DutyLaw, DutyPoint, DutyShares};
use tandem_models::errors::Errors;
use tandem_models::interference::ClassProfile;
use tandem_sim::profiles::{CopiesPoint, read_copies};

/// The instance that is the whole GPU.
const WHOLE: u32 = 7;
/// What the table of measurements shows.
const COPIES_SHOWN: [u32; 3] = [2, 3, 5];

/// Measurements of one model.
struct MeasuredModel {
    name: String,
    points: Vec<CopiesPoint>,
}

/// Where the duty comes from.
#[derive(Clone, Copy, PartialEq)]
enum DutySource {
    /// Solo throughput ÷ the best over batch sizes.
    Batch,
    /// Solo throughput ÷ that of the smallest instance that fits, scaled up to the whole GPU.
    Slice,
}

impl DutySource {
    const ALL: [DutySource; 2] = [DutySource::Batch, DutySource::Slice];

    fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Slice => "slice",
        }
    }

    fn law(self) -> DutyLaw {
        match self {
            Self::Batch => DutyLaw::BY_BATCH,
            Self::Slice => DutyLaw::BY_SLICE,
        }
    }
}

impl MeasuredModel {
    fn throughput(&self, instance: u32, batch: u32, copies: u32) -> Option<f64> {
        let is_it = |point: &&CopiesPoint| {
            (point.instance, point.batch, point.copies) == (instance, batch, copies)
        };
        let found = self.points.iter().find(is_it).map(|point| point.throughput);
        found.filter(|throughput| *throughput > 0.0)
    }

    fn batches(&self) -> BTreeSet<u32> {
        self.points.iter().map(|point| point.batch).collect()
    }

    /// The duty of one process, its busy share of the GPU; `None` without a measurement.
    fn duty(&self, source: DutySource, batch: u32, batch_max: u32) -> Option<f64> {
        let solo = self.throughput(WHOLE, batch, 1)?;
        let best = || {
            let batches = self.batches().into_iter().filter(|&batch| batch <= batch_max);
            batches.filter_map(|batch| self.throughput(WHOLE, batch, 1)).reduce(f64::max)
        };
        let scaled_up = |instance: u32| {
            let part = self.throughput(instance, batch, 1)?;
            Some(part * f64::from(WHOLE) / f64::from(instance))
        };
        let full = match source {
            DutySource::Batch => best(),
            DutySource::Slice => (1..WHOLE).find_map(scaled_up).or_else(best),
        };
        full.map(|full| solo / full)
    }

    /// Throughput of all copies ÷ of one, where both fit.
    fn stp(&self, batch: u32, copies: u32) -> Option<f64> {
        let solo = self.throughput(WHOLE, batch, 1)?;
        Some(f64::from(copies) * self.throughput(WHOLE, batch, copies)? / solo)
    }

    /// The points that the errors are computed over.
    fn duty_points(&self, source: DutySource, batch_max: u32) -> Vec<DutyPoint> {
        let counts = |point: &&CopiesPoint| {
            point.instance == WHOLE && point.copies > 1 && point.batch <= batch_max
        };
        let duty_point = |point: &CopiesPoint| {
            let duty = self.duty(source, point.batch, batch_max)?;
            let stp = self.stp(point.batch, point.copies)?;
            Some(DutyPoint { copies: point.copies, duty, stp })
        };
        self.points.iter().filter(counts).filter_map(duty_point).collect()
    }
}

/// The errors of one law.
struct Judged {
    source: DutySource,
    points: usize,
    mape: f64,
    p95: f64,
    /// The law fitted to all other models, judged on each; by model.
    left_out: f64,
    /// Model, points, error of the shipped law, error of the law fitted without it.
    by_model: Vec<(String, usize, f64, f64)>,
}

pub(super) fn validate(
    files: &[PathBuf],
    without: &[String],
    batch_max: u32,
    json: bool,
) -> Result<(), Failure> {
    let mut models = Vec::new();
    for file in files {
        let points = read_copies(&file.display().to_string())?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        models.push(MeasuredModel { name, points });
    }
    if let Some(name) = without.iter().find(|name| !models.iter().any(|model| model.name == **name))
    {
        return Err(Failure::bad_input(format!("--without '{name}': no file is of this model")));
    }
    let measured = measured(&models);
    let counted: Vec<&MeasuredModel> =
        models.iter().filter(|model| !without.contains(&model.name)).collect();
    let judged = DutySource::ALL.map(|source| judge(&counted, source, batch_max));
    if json { print_json(&measured, &judged) } else { print_tables(&measured, &judged) }
}

/// STP by batch and copies: mean, least, largest over the models that were measured there.
type MeasuredStp = BTreeMap<(u32, u32), (f64, f64, f64)>;

fn measured(models: &[MeasuredModel]) -> MeasuredStp {
    let batches: BTreeSet<u32> = models.iter().flat_map(MeasuredModel::batches).collect();
    let mut found = MeasuredStp::new();
    for batch in batches {
        for copies in COPIES_SHOWN {
            let stp: Vec<f64> =
                models.iter().filter_map(|model| model.stp(batch, copies)).collect();
            if !stp.is_empty() {
                let mean = stp.iter().sum::<f64>() / stp.len() as f64;
                let (least, largest) =
                    stp.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), &value| {
                        (low.min(value), high.max(value))
                    });
                found.insert((batch, copies), (mean, least, largest));
            }
        }
    }
    found
}

fn judge(models: &[&MeasuredModel], source: DutySource, batch_max: u32) -> Judged {
    let law = source.law();
    let points: Vec<(&str, Vec<DutyPoint>)> = models
        .iter()
        .map(|model| (model.name.as_str(), model.duty_points(source, batch_max)))
        .collect();
    let all: Vec<DutyPoint> = points.iter().flat_map(|(_, points)| points).copied().collect();
    let mut errors: Vec<f64> = all.iter().map(|point| law.relative(point)).collect();
    errors.sort_unstable_by(f64::total_cmp);
    let by_model: Vec<(String, usize, f64, f64)> = points
        .iter()
        .map(|(name, of_model)| {
            let others = points.iter().filter(|(other, _)| other != name);
            let others: Vec<DutyPoint> = others.flat_map(|(_, points)| points).copied().collect();
            let fitted = DutyLaw::fit(&others);
            ((*name).to_owned(), of_model.len(), law.error(of_model), fitted.error(of_model))
        })
        .collect();
    let left_out: f64 = by_model.iter().map(|(_, count, _, error)| *count as f64 * error).sum();
    Judged {
        source,
        points: all.len(),
        mape: law.error(&all),
        p95: quantile(&errors, 0.95),
        left_out: left_out / all.len().max(1) as f64,
        by_model,
    }
}

/// A quantile of sorted values, interpolated; 0 if there are none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len().max(1) - 1) as f64;
    let value = |index: f64| sorted.get(index as usize).copied().unwrap_or(0.0);
    value(at.floor()) + (value(at.ceil()) - value(at.floor())) * at.fract()
}

fn print_json(measured: &MeasuredStp, judged: &[Judged]) -> Result<(), Failure> {
    let measured: Vec<Value> = measured
        .iter()
        .map(|((batch, copies), (mean, min, max))| {
            json!({ "batch": batch, "n": copies, "stp": mean, "min": min, "max": max })
        })
        .collect();
    let laws: Vec<Value> = judged
        .iter()
        .map(|judged| {
            let by_model: Map<String, Value> = judged
                .by_model
                .iter()
                .map(|(model, points, mape, left_out)| {
                    let value =
                        json!({ "points": points, "mape": mape, "leave_model_out": left_out });
                    (model.clone(), value)
                })
                .collect();
            let law = judged.source.law();
            json!({
                "duty": judged.source.name(), "eta": law.eta, "exponent": law.exponent,
                "points": judged.points, "mape": judged.mape, "p95": judged.p95,
                "leave_model_out": judged.left_out, "by_model": by_model,
            })
        })
        .collect();
    print(&json!({ "schema": SCHEMA, "measured": measured, "laws": laws }).to_string())
}

fn print_tables(measured: &MeasuredStp, judged: &[Judged]) -> Result<(), Failure> {
    let batches: BTreeSet<u32> = measured.keys().map(|(batch, _)| *batch).collect();
    let cell = |batch: u32, copies: u32| match measured.get(&(batch, copies)) {
        Some((mean, min, max)) => format!("{mean:.2} ({min:.2}–{max:.2})"),
        None => "-".to_owned(),
    };
    let rows = batches.iter().map(|&batch| {
        let mut row = vec![batch.to_string()];
        row.extend(COPIES_SHOWN.map(|copies| cell(batch, copies)));
        row
    });
    print(&table::plain(&["batch", "STP, n=2", "n=3", "n=5"], rows.collect()))?;
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    for Judged { source, points, mape, p95, left_out, by_model } in judged {
        let DutyLaw { eta, exponent } = source.law();
        print(&format!(
            "\nduty by {}: η = {eta}, exponent {exponent}; {points} points, MAPE {}, p95 {}, leave one model out {}",
            source.name(),
            percent(*mape),
            percent(*p95),
            percent(*left_out)
        ))?;
        let row = |(model, points, mape, left_out): &(String, usize, f64, f64)| {
            vec![model.clone(), points.to_string(), percent(*mape), percent(*left_out)]
        };
        let header = ["model", "points", "MAPE", "left out"];
        print(&table::plain(&header, by_model.iter().map(row).collect()))?;
    }
    Ok(())
}

/// The rates of measured pairs from utilisations alone: by the closed form and by the device model.
pub(super) fn pairs(args: &PairDataArgs, json: bool) -> Result<(), Failure> {
    let (_, data) = interference::read(args, args.gpu.as_deref())?;
    let duty = |class: &ClassProfile| match (class.gpu_util, class.bandwidth_util) {
        (Some(busy), Some(bandwidth)) => Some(busy.max(bandwidth)),
        (busy, bandwidth) => busy.or(bandwidth),
    };
    let duties: Vec<Option<f64>> = data.profiles.iter().map(duty).collect();
    let law = DutyShares::default();
    let (mut closed, mut device) = (Vec::new(), Vec::new());
    for pair in &data.pairs {
        let both = [(pair.a, pair.b, pair.rate_a), (pair.b, pair.a, pair.rate_b)];
        for (job, beside, rate) in both {
            if let (Some(own), Some(other)) = (duties[job], duties[beside]) {
                closed.push((1.0_f64.min(1.0 / (own + other)), rate));
                device.push((law.kept((own, 1.0), [(other, 1.0)]), rate));
            }
        }
    }
    if closed.is_empty() {
        let problem = "no pair of classes with a known utilisation; give --solo FILE";
        return Err(Failure::bad_input(problem));
    }
    let judged = [("closed form", Errors::of(&closed)), ("device model", Errors::of(&device))];
    if json {
        let [closed, device] = judged.map(|(_, errors)| errors);
        return print(
            &json!({ "schema": SCHEMA, "closed_form": closed, "device": device }).to_string(),
        );
    }
    let row = |(name, errors): (&str, Errors)| {
        let r2 = errors.r2.map_or("-".to_owned(), |r2| format!("{r2:.3}"));
        vec![name.to_owned(), errors.rows.to_string(), r2, format!("{:.4}", errors.mae)]
    };
    print(&table::plain(&["rates by", "rates", "R²", "MAE"], judged.map(row).to_vec()))
}
