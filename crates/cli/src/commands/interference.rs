//! `tandem model eval|predict|online|fit`: how jobs slow each other down.

use super::model::SCHEMA;
use super::print;
use crate::args::{PairDataArgs, ProtocolArg};
use crate::failure::Failure;
use crate::files::OutputFile;
use crate::table;
use serde_json::{Map, Value, json};
use std::path::Path;
use tandem_models::interference::evaluate::{
    AfterThree, HeldOut, Noise, PairData, Protocol, Scores, fit_without, fourth_partner,
    learning_curve, parts, predict_part, scores,
};
use tandem_models::interference::{ClassProfile, FitError, Offline, Online};
use tandem_sim::interference::{GpuModel, ModelFile, PairTable};
use tandem_sim::profiles::SoloProfiles;
use tandem_sim::thread_cpu_ns;

/// Change of the true rates in the drift scenario.
const DRIFT: f64 = -0.2;
/// Number of draws of the three known partners when a fourth one is predicted.
const DRAWS: usize = 20;

pub(super) fn eval(
    args: &PairDataArgs,
    protocol: ProtocolArg,
    seed: u64,
    json: bool,
) -> Result<(), Failure> {
    let (table, data) = read(args, args.gpu.as_deref())?;
    let protocol = match protocol {
        ProtocolArg::FiveFold => Protocol::FiveFold,
        ProtocolArg::LeaveModelOut => Protocol::LeaveModelOut,
    };
    let (mut held_out, mut train_s) = (Vec::<HeldOut>::new(), 0.0_f64);
    for part in parts(&data, protocol, seed) {
        let begin_ns = thread_cpu_ns();
        let offline = fit_without(&data, &part.1, seed)?;
        train_s = train_s.max((thread_cpu_ns() - begin_ns) as f64 / 1e9);
        held_out.extend(predict_part(&data, &part, &offline));
    }
    let (all, by_model) = scores(&held_out);
    let (pairs, suspect) = (data.pairs.len(), table.suspect_count());
    if json {
        let by_model: Map<String, Value> = by_model
            .iter()
            .map(|(model, scores)| {
                let Scores { rates, r2, mae, rmse } = scores;
                let value = json!({ "rates": rates, "r2": r2, "mae": mae, "rmse": rmse });
                ((*model).to_owned(), value)
            })
            .collect();
        let object = json!({
            "schema": SCHEMA, "pairs": pairs, "r2": all.r2, "mae": all.mae, "rmse": all.rmse,
            "by_model": by_model, "train_s": train_s, "rates": all.rates, "suspect": suspect,
        });
        return print(&object.to_string());
    }
    let row = |name: &str, scores: &Scores| {
        let Scores { rates, r2, mae, rmse } = scores;
        vec![
            name.to_owned(),
            table::grouped(*rates as u64),
            format!("{r2:.3}"),
            format!("{mae:.4}"),
            format!("{rmse:.4}"),
        ]
    };
    let rows = by_model.iter().map(|(model, scores)| row(model, scores));
    let rows = rows.chain([row("all", &all)]).collect();
    print(&table::plain(&["model", "rates", "R²", "MAE", "RMSE"], rows))?;
    print(&format!(
        "{pairs} pairs, {suspect} rates of exactly 1, slowest training {train_s:.2} s of CPU"
    ))
}

/// A fitted model and what it was trained on.
pub(super) struct FittedModel {
    trained_on: String,
    model: GpuModel,
}

impl FittedModel {
    /// From a file, or the built-in one.
    pub(super) fn read(file: Option<&str>, gpu: Option<&str>) -> Result<Self, Failure> {
        let models = match file {
            Some(file) => ModelFile::read(file)?,
            None => ModelFile::shipped(),
        };
        let model = models.for_gpu(gpu, file.unwrap_or("the shipped model"))?.clone();
        Ok(Self { trained_on: models.trained_on, model })
    }
}

pub(super) fn predict(fitted: &FittedModel, classes: [&str; 2], json: bool) -> Result<(), Failure> {
    let FittedModel { trained_on, model } = fitted;
    let [a, b] = classes.map(|text| find_class(text, model));
    let (a, b) = (a?, b?);
    let (of_a, of_b) = (model.offline.predict(&a, &b), model.offline.predict(&b, &a));
    if json {
        let object = json!({
            "schema": SCHEMA, "a": a.name, "b": b.name, "gpu": model.gpu,
            "rate_a": of_a.rate, "rate_b": of_b.rate, "rmse_a": of_a.rmse, "rmse_b": of_b.rmse,
            "familiar": of_a.familiar, "trained_on": trained_on,
        });
        return print(&object.to_string());
    }
    let row = |name: &str, rate: f64, rmse: f64| {
        vec![name.to_owned(), format!("{rate:.3}"), format!("{rmse:.3}")]
    };
    let rows = vec![row(&a.name, of_a.rate, of_a.rmse), row(&b.name, of_b.rate, of_b.rmse)];
    print(&table::plain(&["class", "rate beside the other", "± RMSE"], rows))?;
    if !of_a.familiar {
        print("A class that was never measured beside others: a rough prediction.")?;
    }
    Ok(())
}

pub(super) fn partners(
    fitted: &FittedModel,
    class: &str,
    count: usize,
    noise: f64,
    json: bool,
) -> Result<(), Failure> {
    let FittedModel { trained_on, model } = fitted;
    let class = find_class(class, model)?;
    let mut online = Online::new(model.offline.clone());
    let number = online.class(&class);
    let others = model.profiles.iter().filter(|profile| profile.name != class.name);
    let others: Vec<(u32, &ClassProfile)> =
        others.map(|profile| (online.class(profile), profile)).collect();
    let candidates: Vec<u32> = others.iter().map(|&(number, _)| number).collect();
    let next = online.next_experiments(number, &candidates, count, noise);
    let partners: Vec<(&ClassProfile, [f64; 2])> = next
        .partners
        .iter()
        .filter_map(|best| others.iter().find(|(number, _)| number == best))
        .map(|&(partner, profile)| {
            let rates = [(number, partner), (partner, number)];
            (profile, rates.map(|(a, b)| online.belief(a, b).rate))
        })
        .collect();
    if json {
        let partner = |(profile, [of_class, of_partner]): &(&ClassProfile, [f64; 2])| json!({ "class": profile.name, "rate": of_class, "rate_partner": of_partner });
        let object = json!({
            "schema": SCHEMA, "class": class.name, "gpu": model.gpu, "noise": noise,
            "partners": partners.iter().map(partner).collect::<Vec<Value>>(),
            "rmse_before": next.rmse_before, "rmse_after": next.rmse_after,
            "trained_on": trained_on,
        });
        return print(&object.to_string());
    }
    let row = |(profile, [of_class, of_partner]): &(&ClassProfile, [f64; 2])| {
        vec![profile.name.clone(), format!("{of_class:.3}"), format!("{of_partner:.3}")]
    };
    let head = ["measure it beside", "its rate, predicted", "the other's"];
    print(&table::plain(&head, partners.iter().map(row).collect()))?;
    print(&format!(
        "RMSE to expect over all pairs of {}: {:.3} now, {:.3} after these",
        class.name, next.rmse_before, next.rmse_after
    ))
}

pub(super) fn online(
    args: &PairDataArgs,
    observations: usize,
    noise: Noise,
    json: bool,
) -> Result<(), Failure> {
    let (_, data) = read(args, args.gpu.as_deref())?;
    let mae = learning_curve(&data, observations, noise, None)?;
    let drift = learning_curve(&data, observations, noise, Some(DRIFT))?;
    let drift = &drift[observations + 1..];
    let fourth = fourth_partner(&data, DRAWS, observations, noise)?;
    if json {
        let gains = |after: &AfterThree| {
            json!({
                "rates": after.rates, "offline_mae": after.offline_mae,
                "online_mae": after.once_mae, "gain": after.gain(after.once_mae),
                "repeated": {
                    "observations": observations,
                    "online_mae": after.repeated_mae, "gain": after.gain(after.repeated_mae),
                },
            })
        };
        let mut fourth_partner = gains(&fourth.drawn);
        fourth_partner["telling"] = gains(&fourth.informative);
        let object = json!({
            "schema": SCHEMA, "mae": mae,
            "drift": { "moved": DRIFT, "mae": drift },
            "fourth_partner": fourth_partner,
        });
        return print(&object.to_string());
    }
    let row = |(count, (mae, drift)): (usize, (&f64, &f64))| {
        vec![count.to_string(), format!("{mae:.4}"), format!("{drift:.4}")]
    };
    let rows = mae.iter().zip(drift).enumerate().map(row).collect();
    let after = format!("MAE after the truth moved by {DRIFT}");
    print(&table::plain(&["observations", "MAE", &after], rows))?;
    let row = |(partners, after): (&str, &AfterThree)| {
        let known = |mae: f64| format!("{mae:.4}, {:.0} % less", 100.0 * after.gain(mae));
        vec![
            partners.to_owned(),
            format!("{:.4}", after.offline_mae),
            known(after.once_mae),
            known(after.repeated_mae),
        ]
    };
    let rows = [("drawn at random", &fourth.drawn), ("that tell most", &fourth.informative)];
    let repeated = format!("{observations} times each");
    print("A class of an unknown model beside a fourth partner, after three others:")?;
    print(&table::plain(
        &["the three", "MAE offline", "seen once each", &repeated],
        rows.into_iter().map(row).collect(),
    ))
}

pub(super) fn fit(
    args: &PairDataArgs,
    out: &Path,
    trained_on: Option<&str>,
    seed: u64,
) -> Result<(), Failure> {
    let kinds: Vec<Option<&str>> = match &args.gpu {
        Some(list) => list.split(',').map(|gpu| Some(gpu.trim())).collect(),
        None => vec![None],
    };
    let mut gpus = Vec::new();
    let mut name = String::new();
    for gpu in kinds {
        let (table, PairData { profiles, pairs }) = read(args, gpu)?;
        let offline = Offline::fit(&profiles, &pairs, seed)?;
        name = table.name;
        gpus.push(GpuModel { gpu: gpu.unwrap_or_default().to_owned(), profiles, offline });
    }
    let trained_on = trained_on.map_or(name, str::to_owned);
    let text = ModelFile { trained_on, gpus }.to_json();
    OutputFile::open(out)?.write(|file| writeln!(file, "{text}"))
}

pub(super) fn read(
    args: &PairDataArgs,
    gpu: Option<&str>,
) -> Result<(PairTable, PairData), Failure> {
    let table = match gpu {
        Some(gpu) => PairTable::read(&format!("{}:gpu={gpu}", args.interference))?,
        None => PairTable::read(&args.interference)?,
    };
    let solo = args.solo.as_deref().map(SoloProfiles::read).transpose()?;
    let data = table.pair_data(solo.as_ref());
    // Five folds need at least five pairs.
    let pairs = data.pairs.len();
    if pairs < 5 {
        return Err(FitError::TooFewPairs { pairs }.into());
    }
    Ok((table, data))
}

/// A class of the model by name, or one described by its profile.
fn find_class(text: &str, model: &GpuModel) -> Result<ClassProfile, Failure> {
    let known = model.profiles.iter().find(|class| class.name.eq_ignore_ascii_case(text));
    if let Some(known) = known {
        return Ok(known.clone());
    }
    if text.contains('=') {
        return describe_class(text);
    }
    let names: Vec<&str> = model.profiles.iter().map(|class| class.name.as_str()).collect();
    let problem = "describe it as gpu_util=90,bandwidth_util=40,... or name one of";
    Err(Failure::bad_input(format!("class '{text}' is not known; {problem}: {}", names.join(", "))))
}

fn describe_class(text: &str) -> Result<ClassProfile, Failure> {
    let mut class = ClassProfile { name: text.to_owned(), ..ClassProfile::default() };
    for item in text.split(',') {
        let (key, value) = item.split_once('=').unwrap_or((item, ""));
        let number = || {
            let number = value.parse::<f64>().ok().filter(|number| *number >= 0.0);
            let problem = format!("class '{text}': {key} needs a number that is not negative");
            number.ok_or_else(|| Failure::bad_input(problem))
        };
        match key.trim() {
            "model" => value.trim().clone_into(&mut class.model),
            "gpu_util" => class.gpu_util = Some(number()? / 100.0),
            "bandwidth_util" => class.bandwidth_util = Some(number()? / 100.0),
            "memory_mib" => class.memory_mib = Some(number()?),
            "steps_per_s" => class.steps_per_s = Some(number()?),
            "batch" => class.batch = Some(number()?),
            "amp" => class.amp = number()? > 0.0,
            _ => {
                let known = "model, gpu_util, bandwidth_util, memory_mib, steps_per_s, batch, amp";
                let problem = format!("class '{text}': unknown key '{key}'; known are {known}");
                return Err(Failure::bad_input(problem));
            }
        }
    }
    Ok(class)
}
