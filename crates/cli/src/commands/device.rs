//! `tandem device`: how tenants divide one GPU.

use super::model::SCHEMA;
use super::{device_law, print};
use crate::device_args::{ChartArgs, DeviceArgs, DeviceCommand, ModelArg};
use crate::failure::Failure;
use crate::files::OutputFile;
use crate::{table, tenants};
use serde_json::{Value, json};
use tandem_core::{PPM_ONE, Ppm};
use tandem_models::device::{
    DeviceError, DeviceGpu, DeviceSharing, DeviceTenant, Effort, Goal, Guarantee, Mode, ModeResult,
    Operators, Requests, SHARING_PAYS_FROM, Summary, Unallocated, allocate, check_memory, compare,
    is_budget, pays,
};
use tandem_sim::profiles::{GenerateOperators, write_operators};
use tandem_sim::report::device::{DevicePanel, chart};

pub(crate) fn run(command: &DeviceCommand) -> Result<(), Failure> {
    match command {
        DeviceCommand::Compare { device, modes, chart } => run_compare(device, modes, chart),
        DeviceCommand::Allocate { device, model, chart } => run_allocate(device, *model, chart),
        DeviceCommand::Sweep { device, arrivals } => run_sweep(device, arrivals),
        DeviceCommand::Validate { files, without, batch_max, json } => {
            device_law::validate(files, without, *batch_max, *json)
        }
        DeviceCommand::Pairs { data, json } => device_law::pairs(data, *json),
        DeviceCommand::Generate { operators, duration_us, sms, seed, out } => {
            let (operators, duration_us, sms, seed) = (*operators, *duration_us, *sms, *seed);
            let wanted = GenerateOperators { operators, duration_us, sms, seed };
            match out {
                Some(out) => OutputFile::open(out)?.write(|file| write_operators(&wanted, file)),
                None => Ok(write_operators(&wanted, &mut std::io::stdout().lock())?),
            }
        }
    }
}

/// The tenants, the GPU and the options of a command.
struct DeviceCase {
    gpu: DeviceGpu,
    tenants: Vec<DeviceTenant>,
    goal: Goal,
    seed: u64,
}

impl DeviceCase {
    fn read(args: &DeviceArgs) -> Result<Self, Failure> {
        let mut gpu = tenants::gpu(&args.gpu)?;
        gpu.scheduler = args.scheduler.into();
        let tenants = tenants::tenants(&args.tenants, &gpu)?;
        let guarantee = |tenant: &DeviceTenant| Guarantee {
            weight: tenant.weight,
            floor: tenant.floor,
            p99_ns: tenant.requests.and_then(|requests| requests.p99_ns),
        };
        let guarantees = tenants.iter().map(guarantee).collect();
        let goal = Goal { objective: args.objective.into(), guarantees };
        Ok(Self { gpu, tenants, goal, seed: args.seed })
    }

    /// Requires an arrival rate of every tenant with a latency target.
    fn with_arrivals(self) -> Result<Self, Failure> {
        let without = |tenant: &&DeviceTenant| {
            tenant.requests.is_some_and(|requests| requests.per_second == 0.0)
        };
        match self.tenants.iter().find(without) {
            Some(tenant) => {
                let problem = "needs arrivals=R beside it";
                Err(Failure::bad_input(format!("tenant {}: p99: {problem}", tenant.name)))
            }
            None => Ok(self),
        }
    }

    /// The tenants on their GPU, if their memory fits; checked after all arguments are parsed.
    fn device(&self) -> Result<Operators<'_>, Failure> {
        check_memory(&self.gpu, &self.tenants)?;
        Ok(Operators::new(&self.gpu, &self.tenants, self.seed)?)
    }

    /// Why there are no budgets.
    fn refuse(&self, why: Unallocated<DeviceError>) -> Failure {
        let (failing, closest) = match why {
            Unallocated::Measure(error) => return error.into(),
            Unallocated::Guarantees { tenants, closest, .. } => (tenants, closest),
        };
        let each = failing.iter().map(|&index| {
            let Guarantee { floor, p99_ns, .. } = self.goal.guarantees[index];
            let name = &self.tenants[index].name;
            match (p99_ns, closest.p99_ns.get(index).copied().flatten()) {
                (Some(promised), Some(found)) if found > promised => format!(
                    "{name} (p99 {:.3} ms where {:.3} ms are promised)",
                    found / 1e6,
                    promised / 1e6
                ),
                _ => format!(
                    "{name} ({:.3} of its speed alone where {floor} is promised)",
                    closest.y[index]
                ),
            }
        });
        let each: Vec<String> = each.collect();
        Failure::never(format!("no budgets keep the promise to {}", each.join(" and ")))
    }
}

fn share(budget: Ppm) -> f64 {
    f64::from(budget.0) / f64::from(PPM_ONE)
}

/// `all`, or a list; `v=0.5/0.7` are budgets.
fn parse_modes(text: &str, tenants: usize) -> Result<Vec<Mode>, Failure> {
    let modes = |name: &str| {
        if name == "all" {
            return Ok(Mode::ALL.to_vec());
        }
        if let Some(budgets) = name.strip_prefix("v=") {
            return given(budgets, tenants).map(|mode| vec![mode]);
        }
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        found.map(|mode| vec![mode]).ok_or_else(|| {
            let known = Mode::ALL.map(|mode| mode.name()).join(", ");
            Failure::bad_input(format!(
                "--modes: mode '{name}' is not known; known are all, {known}, v=A/B/..."
            ))
        })
    };
    let modes = text.split(',').map(str::trim).map(modes).collect::<Result<Vec<_>, _>>()?;
    Ok(modes.concat())
}

/// The selected search.
fn paced(mode: Mode, args: &DeviceArgs) -> Mode {
    match mode {
        Mode::Search if args.thorough => Mode::Thorough,
        mode => mode,
    }
}

fn given(text: &str, tenants: usize) -> Result<Mode, Failure> {
    let budget = |part: &str| {
        let share = part.trim().parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
        let ppm = share.map(|share| Ppm((share * f64::from(PPM_ONE)).round() as u32));
        ppm.filter(|ppm| is_budget(*ppm)).ok_or_else(|| {
            Failure::bad_input(format!("--modes: v: budgets are from 0.1 to 1, not '{part}'"))
        })
    };
    let budgets = text.split('/').map(budget).collect::<Result<Vec<Ppm>, Failure>>()?;
    if budgets.len() != tenants {
        let problem = format!("{} budgets for {tenants} tenants", budgets.len());
        return Err(Failure::bad_input(format!("--modes: v: {problem}")));
    }
    Ok(Mode::Given(budgets))
}

fn run_compare(args: &DeviceArgs, modes: &str, chart: &ChartArgs) -> Result<(), Failure> {
    let case = DeviceCase::read(args)?.with_arrivals()?;
    let modes = parse_modes(modes, case.tenants.len())?.into_iter().map(|mode| paced(mode, args));
    let page = chart.chart.as_deref().map(OutputFile::open).transpose()?;
    let mut device = case.device()?;
    let outcomes = modes.map(|mode| compare(&mut device, &mode, &case.goal));
    let outcomes = outcomes.collect::<Result<Vec<ModeResult>, _>>();
    let outcomes = outcomes.map_err(|why| case.refuse(why))?;
    if let Some(page) = page {
        write_chart(page, &case, &outcomes, chart.chart_ms)?;
    }
    if args.json {
        let modes: Vec<Value> = outcomes.iter().map(|outcome| to_json(outcome, &case)).collect();
        let mut object = json!({ "schema": SCHEMA, "modes": modes });
        if let Some(advice) = advice(&outcomes, &case) {
            object["advice"] = json!(advice);
        }
        return print(&object.to_string());
    }
    let mut text = outcomes_table(&outcomes, &case);
    if let Some(advice) = advice(&outcomes, &case) {
        text += &format!("\n{advice}");
    }
    print(&text)
}

/// Advice against sharing if all tenants together would end later than one after the other, even if the
/// throughput is higher: throughput alone would reward starving a tenant.
fn advice(outcomes: &[ModeResult], case: &DeviceCase) -> Option<String> {
    let shared = outcomes.iter().filter(|outcome| outcome.mode.name() != "sequential");
    let best = shared.max_by(|a, b| a.measured.stp().total_cmp(&b.measured.stp()))?;
    ends_later(best, case).then(|| against(best, case))
}

/// Whether all tenants together end later than one after the other. Servers have no end.
fn ends_later(outcome: &ModeResult, case: &DeviceCase) -> bool {
    let has_servers = case.tenants.iter().any(|tenant| tenant.requests.is_some());
    !has_servers && outcome.makespan_ratio(&case.tenants) < 1.0
}

fn against(outcome: &ModeResult, case: &DeviceCase) -> String {
    format!(
        "do not share so: {} has the most throughput, {:.2}, but all tenants together would end later than one after the other (makespan ratio {:.2})",
        outcome.mode.name(),
        outcome.measured.stp(),
        outcome.makespan_ratio(&case.tenants),
    )
}

fn to_json(outcome: &ModeResult, case: &DeviceCase) -> Value {
    let measured = &outcome.measured;
    let v: Vec<f64> = outcome.budgets.iter().copied().map(share).collect();
    let mut object = json!({
        "mode": outcome.mode.name(), "stp": measured.stp(), "worst": measured.worst(),
        "makespan_ratio": outcome.makespan_ratio(&case.tenants), "y": measured.y, "v": v,
        "evaluations": outcome.evaluations, "noise": outcome.noise(),
    });
    if measured.p99_ns.iter().any(Option::is_some) {
        let p99: Vec<Option<f64>> =
            measured.p99_ns.iter().map(|p99| p99.map(|ns| ns / 1e6)).collect();
        object["p99_ms"] = json!(p99);
    }
    object
}

fn outcomes_table(outcomes: &[ModeResult], case: &DeviceCase) -> String {
    let serves = case.tenants.iter().any(|tenant| tenant.requests.is_some());
    let names: Vec<&str> = case.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    let y_header = format!("y of {}", names.join(" / "));
    let mut header = vec!["mode", "STP", "worst", "makespan ratio", &y_header, "v"];
    header.extend(serves.then_some("p99 ms"));
    header.extend(["evaluations", "noise"]);
    let row = |outcome: &ModeResult| {
        let measured = &outcome.measured;
        let mut row = vec![
            outcome.mode.name().to_owned(),
            format!("{:.2}", measured.stp()),
            format!("{:.2}", measured.worst()),
            format!("{:.2}", outcome.makespan_ratio(&case.tenants)),
            joined(measured.y.iter().map(|y| format!("{y:.2}"))),
            joined(outcome.budgets.iter().map(|budget| format!("{:.2}", share(*budget)))),
        ];
        row.extend(serves.then(|| milliseconds(&measured.p99_ns)));
        row.push(outcome.evaluations.to_string());
        row.push(format!("{:.4}", outcome.noise()));
        row
    };
    table::plain(&header, outcomes.iter().map(row).collect())
}

fn joined(parts: impl Iterator<Item = String>) -> String {
    parts.collect::<Vec<_>>().join(" / ")
}

fn milliseconds(p99_ns: &[Option<f64>]) -> String {
    joined(p99_ns.iter().flatten().map(|ns| format!("{:.2}", ns / 1e6)))
}

fn run_allocate(args: &DeviceArgs, model: ModelArg, chart: &ChartArgs) -> Result<(), Failure> {
    if args.thorough && model == ModelArg::Summary {
        return Err(Failure::bad_input("--thorough: the summary is not searched thoroughly"));
    }
    let case = DeviceCase::read(args)?.with_arrivals()?;
    let page = chart.chart.as_deref().map(OutputFile::open).transpose()?;
    let mut device = case.device()?;
    let mut outcomes = Vec::new();
    for mode in Mode::ALL.map(|mode| paced(mode, args)) {
        let outcome = match (&mode, model) {
            (Mode::Search, ModelArg::Summary) => by_summary(&case, &mut device),
            _ => compare(&mut device, &mode, &case.goal),
        };
        outcomes.push(outcome.map_err(|why| case.refuse(why))?);
    }
    if let Some(page) = page {
        write_chart(page, &case, &outcomes, chart.chart_ms)?;
    }
    let found = outcomes.last().expect("there are modes");
    let is_late = ends_later(found, &case);
    let shares = pays(&outcomes) && !is_late;
    let by_stp = |a: &&ModeResult, b: &&ModeResult| a.measured.stp().total_cmp(&b.measured.stp());
    let best = outcomes.iter().max_by(by_stp).expect("there are modes");
    if args.json {
        let names: Vec<&str> = case.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        let mut object = json!({
            "schema": SCHEMA, "share": shares, "objective": args.objective.name(),
            "model": model.name(), "tenants": names,
            "best_mode": best.mode.name(), "best_stp": best.measured.stp(),
        });
        if is_late {
            object["advice"] = json!(against(found, &case));
        }
        // Budgets that break a promise are not printed.
        if shares {
            let (Value::Object(object), Value::Object(more)) = (&mut object, to_json(found, &case))
            else {
                unreachable!("both are objects")
            };
            object.extend(more);
            object.insert("floor".to_owned(), json!(floors(&found.budgets)));
        }
        return print(&object.to_string());
    }
    if is_late {
        return print(&against(found, &case));
    }
    if !shares {
        return print(&format!(
            "do not share: no mode gives more than {SHARING_PAYS_FROM} times one after the other; the best, {}, gives {:.2}",
            best.mode.name(),
            best.measured.stp()
        ));
    }
    print(&allocation_table(found, &case))
}

/// Searches with the summary and evaluates what it finds event by event.
fn by_summary(
    case: &DeviceCase,
    device: &mut Operators<'_>,
) -> Result<ModeResult, Unallocated<DeviceError>> {
    let mut summary = Summary::new(&case.gpu, &case.tenants).map_err(Unallocated::Measure)?;
    let found = allocate(&mut summary, &case.goal, Effort::QUICK)?;
    let mode = Mode::Given(found.budgets);
    let outcome = compare(device, &mode, &case.goal)?;
    let (tenants, evaluations) = (case.goal.failing(&outcome.measured), found.evaluations);
    if tenants.is_empty() {
        return Ok(ModeResult { mode: Mode::Search, evaluations, ..outcome });
    }
    // The summary is rough: its budgets count only if the operators confirm them.
    Err(Unallocated::Guarantees { tenants, closest: outcome.measured, evaluations })
}

/// The guaranteed share of each tenant: what remains if all others use their whole budgets.
fn floors(budgets: &[Ppm]) -> Vec<f64> {
    let sum: u64 = budgets.iter().map(|budget| u64::from(budget.0)).sum();
    let floor = |budget: &Ppm| u64::from(PPM_ONE).saturating_sub(sum - u64::from(budget.0));
    budgets.iter().map(|budget| floor(budget) as f64 / f64::from(PPM_ONE)).collect()
}

fn allocation_table(found: &ModeResult, case: &DeviceCase) -> String {
    let floors = floors(&found.budgets);
    let row = |index: usize| {
        let budget = found.budgets[index];
        let y = found.measured.y[index];
        let p99 = found.measured.p99_ns.get(index).copied().flatten();
        vec![
            case.tenants[index].name.clone(),
            format!("{:.2}", share(budget)),
            case.gpu.cap(budget).to_string(),
            format!("{:.2}", floors[index]),
            format!("{y:.3}"),
            p99.map_or("-".to_owned(), |ns| format!("{:.2}", ns / 1e6)),
        ]
    };
    let header = ["tenant", "budget", "SMs at most", "floor", "y", "p99 ms"];
    let table = table::plain(&header, (0..case.tenants.len()).map(row).collect());
    format!(
        "{table}\nSTP {:.2} ± {:.4}, worst {:.2}, makespan ratio {:.2}, {} evaluations",
        found.measured.stp(),
        found.noise(),
        found.measured.worst(),
        found.makespan_ratio(&case.tenants),
        found.evaluations
    )
}

fn write_chart(
    page: OutputFile,
    case: &DeviceCase,
    outcomes: &[ModeResult],
    chart_ms: f64,
) -> Result<(), Failure> {
    let device = case.device()?;
    let mut panels = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.mode != Mode::Sequential) {
        let sharing = match outcome.mode {
            Mode::Slice => DeviceSharing::Slice,
            _ => DeviceSharing::Budgets(&outcome.budgets),
        };
        let budgets = joined(outcome.budgets.iter().map(|budget| format!("{:.2}", share(*budget))));
        panels.push(DevicePanel {
            title: format!(
                "{}: STP {:.2}, worst {:.2}, budgets {budgets}",
                outcome.mode.name(),
                outcome.measured.stp(),
                outcome.measured.worst()
            ),
            segments: device.record(sharing, chart_ms * 1e6)?,
        });
    }
    let names: Vec<&str> = case.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    let html = chart(&case.gpu.name, case.gpu.sms, &names, chart_ms, &panels);
    page.write(|file| file.write_all(html.as_bytes()))
}

/// The results at one arrival rate.
struct SweepStep {
    per_second: f64,
    alone_ns: Vec<Option<f64>>,
    uncapped: ModeResult,
    equal: ModeResult,
    /// `None` if no budgets meet the targets.
    found: Option<ModeResult>,
}

fn run_sweep(args: &DeviceArgs, arrivals: &[f64]) -> Result<(), Failure> {
    let mut case = DeviceCase::read(args)?;
    if !case.goal.guarantees.iter().any(|guarantee| guarantee.p99_ns.is_some()) {
        let problem = "no tenant has a latency to keep; give one p99=MS";
        return Err(Failure::bad_input(format!("--tenants: {problem}")));
    }
    let mut steps = Vec::new();
    for &per_second in arrivals {
        for requests in case.tenants.iter_mut().filter_map(|tenant| tenant.requests.as_mut()) {
            if requests.p99_ns.is_some() {
                *requests = Requests { per_second, ..*requests };
            }
        }
        steps.push(sweep_step(&case, per_second)?);
    }
    if args.json {
        let steps: Vec<Value> = steps.iter().map(|step| step_json(step, &case)).collect();
        return print(&json!({ "schema": SCHEMA, "steps": steps }).to_string());
    }
    let p99 = |outcome: &ModeResult| milliseconds(&outcome.measured.p99_ns);
    let y = |outcome: &ModeResult| joined(outcome.measured.y.iter().map(|y| format!("{y:.2}")));
    let row = |step: &SweepStep| {
        let found = |of: &dyn Fn(&ModeResult) -> String| {
            step.found.as_ref().map_or("cannot be kept".to_owned(), of)
        };
        vec![
            step.per_second.to_string(),
            milliseconds(&step.alone_ns),
            p99(&step.uncapped),
            y(&step.uncapped),
            p99(&step.equal),
            y(&step.equal),
            found(&|outcome| {
                joined(outcome.budgets.iter().map(|budget| format!("{:.2}", share(*budget))))
            }),
            found(&p99),
            found(&y),
        ]
    };
    let header = [
        "requests/s",
        "p99 alone ms",
        "p99 uncapped",
        "y",
        "p99 equal",
        "y",
        "budgets found",
        "p99",
        "y",
    ];
    print(&table::plain(&header, steps.iter().map(row).collect()))
}

fn sweep_step(case: &DeviceCase, per_second: f64) -> Result<SweepStep, Failure> {
    let mut device = case.device()?;
    let mut outcome = |mode: &Mode| compare(&mut device, mode, &case.goal);
    let uncapped = outcome(&Mode::Uncapped).map_err(|why| case.refuse(why))?;
    let equal = outcome(&Mode::Equal).map_err(|why| case.refuse(why))?;
    let found = match outcome(&Mode::Search) {
        Ok(found) => Some(found),
        Err(Unallocated::Guarantees { .. }) => None,
        Err(why) => return Err(case.refuse(why)),
    };
    let window_ns = uncapped.measured.window_ns;
    let alone_ns =
        (0..case.tenants.len()).map(|index| device.p99_alone_ns(index, window_ns)).collect();
    Ok(SweepStep { per_second, alone_ns, uncapped, equal, found })
}

fn step_json(step: &SweepStep, case: &DeviceCase) -> Value {
    let alone: Vec<Option<f64>> = step.alone_ns.iter().map(|ns| ns.map(|ns| ns / 1e6)).collect();
    json!({
        "arrivals": step.per_second, "p99_alone_ms": alone,
        "uncapped": to_json(&step.uncapped, case), "equal": to_json(&step.equal, case),
        "found": step.found.as_ref().map(|found| to_json(found, case)),
    })
}
