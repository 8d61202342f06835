//! `tandem bench quality`: every policy on published traces, under all loads, tables and spread
//! penalties; writes the results as Markdown and a chart.

mod args;
mod case;
mod chart;
mod inputs;
mod page;
mod plan;
mod state;
mod verdict;

pub(crate) use args::QualityArgs;

use super::{print, remark};
use crate::failure::Failure;
use crate::files::OutputFile;
use crate::progress::ProgressDisplay;
use case::{CaseResults, Figures, QualityCase};
use inputs::Inputs;
use page::Section;
use plan::{Chosen, QualityPlan};
use rayon::prelude::*;
use serde::Serialize;
use state::ResultLog;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use tandem_policies::PolicySpec;
use tandem_sim::LowerBound;
use verdict::CriterionVerdict;

pub(crate) fn run(args: &QualityArgs) -> Result<(), Failure> {
    let chosen = Chosen::new(args)?;
    let inputs = Inputs::read(args)?;
    let plan = QualityPlan::new(args, chosen, &inputs)?;
    let chart = args.out.with_extension("svg");
    // Open and drop every output, so that an unwritable path is reported before the simulations.
    let stem = args.out.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let tables = args.out.with_file_name(format!("{stem}-tables.md"));
    let csv = args.out.with_extension("csv");
    for path in [&args.out, &chart, &tables, &csv] {
        OutputFile::open(path)?;
    }
    let found = simulate(args, &inputs, &plan)?;
    let csv_name = format!("{stem}.csv");
    let sections = page::sections(&plan, &inputs, &found, &csv_name);
    let heading = page::Heading {
        command: command(),
        chart: &chart.file_name().unwrap_or_default().to_string_lossy(),
        tables: &format!("{stem}-tables.md"),
        judged: plan.judged.as_deref(),
    };
    let conclusion = page::conclusion(&plan, &found);
    let text = page::summary(&sections, &conclusion, &page::worst_cells(&plan, &found), &heading);
    OutputFile::open(&args.out)?.write(|out| out.write_all(text.as_bytes()))?;
    let text = page::tables(&sections, &heading);
    OutputFile::open(&tables)?.write(|out| out.write_all(text.as_bytes()))?;
    OutputFile::open(&csv)?.write(|out| out.write_all(page::csv(&found).as_bytes()))?;
    let drawing = chart::draw(&plan, &inputs, &found);
    OutputFile::open(&chart)?.write(|out| out.write_all(drawing.as_bytes()))?;
    if args.json {
        let results = QualityResults::new(&sections, &found);
        return print(&serde_json::to_string(&results).expect("plain data always serialises"));
    }
    let verdicts = sections.iter().flat_map(|section| &section.verdicts);
    for verdict in verdicts {
        print(&verdict.line())?;
        verdict.misses.iter().try_for_each(|miss| print(&format!("  {miss}")))?;
    }
    remark(
        &format!("wrote {}, {} and {}", args.out.display(), tables.display(), chart.display()),
        args.quiet,
    );
    Ok(())
}

/// Runs the simulations that the state file lacks.
fn simulate(
    args: &QualityArgs,
    inputs: &Inputs,
    plan: &QualityPlan,
) -> Result<CaseResults, Failure> {
    let tasks = plan.tasks();
    let is_planned = |case: &QualityCase| tasks.iter().any(|(planned, _)| planned == case);
    let (state, found) = ResultLog::open(&args.state, |case, of| {
        inputs.fingerprint(case) == Some(of) && is_planned(case)
    })?;
    let count = |tasks: &[(QualityCase, Vec<PolicySpec>)]| -> usize {
        tasks.iter().map(|(_, policies)| policies.len()).sum()
    };
    let all = count(&tasks);
    let pending: Vec<(QualityCase, Vec<PolicySpec>)> = tasks
        .into_iter()
        .map(|(case, mut policies)| {
            policies.retain(|policy| !found.has(&case, &policy.text));
            (case, policies)
        })
        .filter(|(_, policies)| !policies.is_empty())
        .collect();
    let known = all - count(&pending);
    if known > 0 {
        let text = format!("{known} of {all} simulations are known from {}", args.state.display());
        remark(&text, args.quiet);
    }
    let jobs =
        |case: &QualityCase| inputs.trace(&case.trace).map_or(0, |source| source.trace.jobs.len());
    let total: usize = pending.iter().map(|(case, policies)| jobs(case) * policies.len()).sum();
    let progress = ProgressDisplay::start(total as u64, args.quiet);
    let found = Mutex::new(found);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads).build();
    pool.map_err(|cause| Failure::from(std::io::Error::other(cause)))?.install(|| {
        pending.par_iter().try_for_each(|(case, policies)| {
            simulate_case(inputs, case, policies, &state, &found, &progress.done)
        })
    })?;
    Ok(found.into_inner().expect("no thread panics while it inserts"))
}

fn simulate_case(
    inputs: &Inputs,
    case: &QualityCase,
    policies: &[PolicySpec],
    state: &ResultLog,
    found: &Mutex<CaseResults>,
    done: &AtomicU64,
) -> Result<(), Failure> {
    let prepared = inputs.prepare(case)?;
    let (workload, truth) = (&prepared.workload, &prepared.truth);
    // Each policy has the bound for its own number of jobs on a GPU.
    let tenants: BTreeSet<usize> = policies.iter().map(PolicySpec::tenants_max).collect();
    let bound = |tenants| (tenants, LowerBound::new(workload, truth.as_ref(), tenants));
    let bounds: BTreeMap<usize, LowerBound> = tenants.into_iter().map(bound).collect();
    let of = inputs.fingerprint(case).expect("a case that was prepared has its inputs");
    policies.par_iter().try_for_each(|policy| {
        let run = tandem_sim::run(workload, policy, truth, &prepared.options, done)?;
        let figures = Figures::new(&run, bounds[&policy.tenants_max()]);
        state.add(of, case, &policy.text, figures)?;
        found.lock().expect("no thread panics while it inserts").insert(
            case,
            &policy.text,
            figures,
        );
        Ok(())
    })
}

/// The command line, without options that do not affect the results.
fn command() -> String {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let hidden = ["--threads", "--state", "--quiet", "--json"];
    let mut words = vec!["tandem".to_owned()];
    let mut skip = false;
    for word in given {
        if std::mem::take(&mut skip) {
            continue;
        }
        let name = word.split('=').next().unwrap_or(&word);
        if hidden.contains(&name) {
            skip = !word.contains('=') && ["--threads", "--state"].contains(&name);
            continue;
        }
        words.push(word);
    }
    words.join(" ")
}

/// The object of `--json`.
#[derive(Serialize)]
struct QualityResults<'a> {
    schema: u32,
    verdicts: Vec<&'a CriterionVerdict>,
    runs: Vec<QualityRun<'a>>,
}

#[derive(Serialize)]
struct QualityRun<'a> {
    #[serde(flatten)]
    case: &'a QualityCase,
    policy: &'a str,
    #[serde(flatten)]
    figures: &'a Figures,
}

impl<'a> QualityResults<'a> {
    fn new(sections: &'a [Section], found: &'a CaseResults) -> Self {
        let runs = found.iter().map(|(case, policy, figures)| QualityRun { case, policy, figures });
        let verdicts = sections.iter().flat_map(|section| &section.verdicts).collect();
        Self { schema: 1, verdicts, runs: runs.collect() }
    }
}
