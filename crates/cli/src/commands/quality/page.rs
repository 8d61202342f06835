//! The results in Markdown.

use super::case::{CaseResults, Figures, QualityCase};
use super::inputs::Inputs;
use super::plan::{Ablation, QualityPlan};
use super::verdict::{self, CriterionVerdict, percent, signed};
use crate::table::{grouped, seconds};
use std::collections::BTreeSet;
use tandem_policies::PolicySpec;

/// Longer lists of misses are folded.
const MISSES_SHOWN: usize = 8;
/// Rows of the list of worst cells.
const WORST_SHOWN: usize = 5;

/// A section: heading, criteria and text.
pub(super) struct Section {
    title: String,
    pub(super) verdicts: Vec<CriterionVerdict>,
    text: String,
}

/// The heading of the pages.
pub(super) struct Heading<'a> {
    /// The command that wrote them.
    pub(super) command: String,
    /// File names, as links.
    pub(super) chart: &'a str,
    pub(super) tables: &'a str,
    pub(super) judged: Option<&'a str>,
}

/// The summary page: conclusion, chart, worst cells, criteria and links to the tables.
pub(super) fn summary(
    sections: &[Section],
    conclusion: &str,
    worst: &str,
    heading: &Heading<'_>,
) -> String {
    let Heading { command, chart, tables, judged } = heading;
    let mut text = format!(
        "# Results\n\n{conclusion}![Mean JCT of the sharing policies relative to the best exclusive policy, by load, for every trace and table]({chart})\n\n{worst}"
    );
    if let Some(judged) = judged {
        text += &format!("## What holds of `{judged}`\n\n");
        for verdict in sections.iter().flat_map(|section| &section.verdicts) {
            text += &format!("- {}\n", sentence(&verdict.line()));
        }
        text.push('\n');
    }
    text += "## Tables\n\n";
    for section in sections {
        text += &format!("- [{}]({tables}#{})\n", section.title, anchor(&section.title));
    }
    text += &format!(
        "\nWritten by `{command}`; simulated, so any machine gets the same figures. An interrupted run goes on where it was.\n\
         What they mean for the choice of a policy is in [policies.md](policies.md); what a lower bound is, in [simulation.md](simulation.md#lower-bound).\n"
    );
    text
}

/// The page of the tables.
pub(super) fn tables(sections: &[Section], heading: &Heading<'_>) -> String {
    let mut text = format!("# Tables of the results\n\nWritten by `{}`.\n\n", heading.command);
    for section in sections {
        text += &format!("## {}\n\n{}\n", section.title, section.text.trim_end());
        for verdict in section.verdicts.iter().filter(|verdict| !verdict.misses.is_empty()) {
            text += &misses(verdict);
        }
        text.push('\n');
    }
    format!("{}\n", text.trim_end())
}

/// Every figure as CSV.
pub(super) fn csv(found: &CaseResults) -> String {
    let mut text =
        "trace,table,load,spread,estimates,beliefs,gpu_mib,policy,mean_jct_s,p99_jct_s,goodput,bound_exclusive_s,bound_sharing_s\n"
            .to_owned();
    for (case, policy, figures) in found.iter() {
        let QualityCase { trace, table, load, spread, estimates, .. } = case;
        let beliefs = &case.beliefs;
        let memory = case.gpu_mib.map(|mib| mib.to_string()).unwrap_or_default();
        // A policy with several parameters has commas.
        let policy = policy.replace(',', ";");
        text += &format!(
            "{trace},{table},{load},{spread},{estimates},{beliefs},{memory},{policy},{:.3},{:.3},{:.4},{:.3},{:.3}\n",
            figures.avg_jct_s,
            figures.p99_jct_s,
            figures.goodput,
            figures.least_exclusive_s,
            figures.least_sharing_s
        );
    }
    text
}

/// The anchor of a heading, as Markdown renderers make it.
fn anchor(title: &str) -> String {
    let plain = |letter: char| match letter {
        ' ' => Some('-'),
        _ => (letter.is_alphanumeric() || letter == '-').then(|| letter.to_ascii_lowercase()),
    };
    title.chars().filter_map(plain).collect()
}

/// The judged policy against the best other one.
struct ComparedCell<'a> {
    case: &'a QualityCase,
    other: &'a str,
    /// In percent; above zero the judged policy loses.
    against: f64,
}

/// Every cell of the grid, and those with learned pair rates, the worst for the judged policy first.
fn compared_cells<'a>(
    plan: &'a QualityPlan,
    found: &CaseResults,
    judged: &str,
) -> Vec<ComparedCell<'a>> {
    let mut cells = Vec::new();
    for case in &plan.grid {
        if let Some((other, mean)) = found.best(case, plan.names().filter(|name| *name != judged)) {
            let against = percent(found.mean(case, judged), mean);
            cells.push(ComparedCell { case, other, against });
        }
    }
    for (known, learned) in plan.online.iter().filter(|(_, learned)| found.has(learned, judged)) {
        // Pair rates mean nothing to policies that do not share.
        let alone = found.best(known, plan.exclusive().filter(|name| *name != judged));
        let shared = found.best(learned, plan.sharing().filter(|name| *name != judged));
        let best = alone.into_iter().chain(shared).min_by(|one, other| one.1.total_cmp(&other.1));
        if let Some((other, mean)) = best {
            let against = percent(found.mean(learned, judged), mean);
            cells.push(ComparedCell { case: learned, other, against });
        }
    }
    cells.sort_by(|one, other| other.against.total_cmp(&one.against));
    cells
}

/// What the page begins with: in how many cells the judged policy is best, where it loses most, and how far
/// the lower bound is below the best policy.
pub(super) fn conclusion(plan: &QualityPlan, found: &CaseResults) -> String {
    let Some(judged) = &plan.judged else { return String::new() };
    let cells = compared_cells(plan, found, judged);
    let Some(worst) = cells.first() else { return String::new() };
    let losses = cells.iter().filter(|cell| cell.against > 0.0).count();
    let mut text = match losses {
        0 => format!("**`{judged}` has the lowest mean JCT in all {} cells.**", cells.len()),
        _ => format!(
            "**`{judged}` loses in {losses} of {} cells, by up to {:.1} %: {}, against `{}`. In the others it has the lowest mean JCT.**",
            cells.len(),
            worst.against,
            worst.case.name(),
            worst.other
        ),
    };
    let least = cells[cells.len() - 1].against;
    text += &format!(
        " Against the best other policy of each cell: {} in the median, {} at best.",
        signed(cells[cells.len() / 2].against),
        signed(least)
    );
    let focus = plan.grid.iter().find(|case| case.load == plan.focus_load);
    if let Some((case, (best, mean))) =
        focus.and_then(|case| Some((case, found.best(case, plan.names())?)))
    {
        let below = -percent(found.of(case, best).least_sharing_s, mean);
        let jobs = plan.tenants_max_of(best);
        text += &format!(
            " On {}, no schedule with up to {jobs} on a GPU can be more than {below:.1} % below `{best}` (lower bound).",
            case.name()
        );
    }
    text + "\n\n"
}

/// The cells in which the judged policy is worst compared with the best other one.
pub(super) fn worst_cells(plan: &QualityPlan, found: &CaseResults) -> String {
    let Some(judged) = &plan.judged else { return String::new() };
    let cells = compared_cells(plan, found, judged);
    if cells.is_empty() {
        return String::new();
    }
    let heads = ["trace; table", "load", "spread", "pair rates", "best other", "against it"];
    let mut rows = MarkdownRows::new(&heads.map(str::to_owned));
    for ComparedCell { case, other, against } in cells.into_iter().take(WORST_SHOWN) {
        let cell = format!("{}; {}", case.trace, case.table);
        let load = format!("×{}", case.load);
        let rates = if case.beliefs == "true" { "known" } else { "learned" };
        let spread = case.spread.clone();
        rows.push(&[cell, load, spread, rates.to_owned(), format!("`{other}`"), signed(against)]);
    }
    format!("## Worst cells of `{judged}`\n\nMean JCT; above zero it loses.\n\n{}\n", rows.0)
}

/// The cells that miss a criterion.
fn misses(verdict: &CriterionVerdict) -> String {
    let list: String = verdict.misses.iter().map(|miss| format!("- {miss}\n")).collect();
    let head =
        format!("Not so in {} of {}: {}", verdict.misses.len(), verdict.cells, verdict.claim);
    if verdict.misses.len() <= MISSES_SHOWN {
        return format!("\n{head}\n\n{list}");
    }
    let head = head.replace('`', "");
    format!("\n<details><summary>{head}</summary>\n\n{list}\n</details>\n")
}

fn sentence(line: &str) -> String {
    let mut letters = line.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

/// All sections; `csv` is the name of the file with all figures.
pub(super) fn sections(
    plan: &QualityPlan,
    inputs: &Inputs,
    found: &CaseResults,
    csv: &str,
) -> Vec<Section> {
    let judged = plan.judged.as_deref();
    type Criteria = fn(&QualityPlan, &CaseResults, &str) -> Vec<CriterionVerdict>;
    let judge =
        |criteria: Criteria| judged.map_or_else(Vec::new, |name| criteria(plan, found, name));
    let mut sections = vec![Section {
        title: "Every trace and table".to_owned(),
        verdicts: judge(verdict::of_grid),
        text: grid(plan, inputs, found, csv),
    }];
    let mut add = |title: &str, verdicts: Vec<CriterionVerdict>, text: String| {
        if !text.is_empty() {
            sections.push(Section { title: title.to_owned(), verdicts, text });
        }
    };
    add("The trace's own estimates", judge(verdict::of_weak), weak(plan, inputs, found));
    add("Pair rates learned during the run", judge(verdict::of_online), online(plan, found));
    add("Noisy estimates", judge(verdict::of_noisy), noisy(plan, inputs, found));
    add("Goodput and share of GPU-time shared", Vec::new(), goodput(plan, inputs, found));
    add("Sub-batches", Vec::new(), sub_batches(plan, found));
    add("Ablation", Vec::new(), ablations(plan, found));
    sections
}

/// The rows of a Markdown table.
struct MarkdownRows(String);

impl MarkdownRows {
    fn new(header: &[String]) -> Self {
        let mut rows = Self(String::new());
        rows.push(header);
        let rule: Vec<String> = header.iter().enumerate().map(|(column, _)| rule(column)).collect();
        rows.push(&rule);
        rows
    }

    fn push(&mut self, cells: &[String]) {
        self.0 += &format!("| {} |\n", cells.join(" | "));
    }
}

fn rule(column: usize) -> String {
    if column == 0 { "---" } else { "---:" }.to_owned()
}

fn prefixed(first: &str, cells: impl IntoIterator<Item = String>) -> Vec<String> {
    std::iter::once(first.to_owned()).chain(cells).collect()
}

/// Mean JCT by policy and case, with the lowest mean of a column in bold, and the lower bounds.
fn means(
    plan: &QualityPlan,
    found: &CaseResults,
    cases: &[&QualityCase],
    heads: Vec<String>,
) -> String {
    let mut rows = MarkdownRows::new(&prefixed("policy", heads));
    let best: Vec<f64> = cases
        .iter()
        .map(|case| found.best(case, plan.names()).map_or(0.0, |(_, mean)| mean))
        .collect();
    for policy in plan.names() {
        let cells = cases.iter().zip(&best).map(|(case, best)| {
            let mean = found.mean(case, policy);
            let mark = if mean <= *best { "**" } else { "" };
            format!("{mark}{}{mark}", seconds(mean))
        });
        rows.push(&prefixed(policy, cells));
    }
    if let Some(judged) = &plan.judged {
        let cells = cases.iter().map(|case| {
            let others = plan.names().filter(|name| name != judged);
            let best = found.best(case, others).map_or(f64::NAN, |(_, mean)| mean);
            change(found.mean(case, judged), best)
        });
        rows.push(&prefixed(&format!("*{judged} against the best other*"), cells));
    }
    let any = plan.names().next().unwrap_or_default();
    let least = |policy: &'_ str, which: fn(&Figures) -> f64| -> Vec<String> {
        let cell = |case: &&QualityCase| format!("*{}*", seconds(which(&found.of(case, policy))));
        cases.iter().map(cell).collect()
    };
    let exclusive = least(any, |figures| figures.least_exclusive_s);
    rows.push(&prefixed("*lower bound, exclusive*", exclusive));
    let tenants: BTreeSet<usize> = plan.policies.iter().map(PolicySpec::tenants_max).collect();
    for tenants in tenants.into_iter().filter(|&tenants| tenants > 1) {
        let like = plan.policies.iter().find(|policy| policy.tenants_max() == tenants);
        let policy = like.map_or(any, |policy| policy.text.as_str());
        let bound = least(policy, |figures| figures.least_sharing_s);
        rows.push(&prefixed(&format!("*lower bound, up to {tenants} jobs on a GPU*"), bound));
    }
    let below = cases.iter().map(|case| match found.best(case, plan.names()) {
        Some((policy, mean)) => change(found.of(case, policy).least_sharing_s, mean),
        None => "-".to_owned(),
    });
    rows.push(&prefixed("*the bound of the best policy against it*", below));
    rows.0
}

/// One table of mean JCTs per trace.
fn means_by_trace(
    plan: &QualityPlan,
    inputs: &Inputs,
    found: &CaseResults,
    cases: &[QualityCase],
) -> String {
    let mut text = String::new();
    for trace in &inputs.traces {
        let cases: Vec<&QualityCase> =
            cases.iter().filter(|case| case.trace == trace.name).collect();
        let heads = cases.iter().map(|case| case.table.clone()).collect();
        text += &format!("\n{}:\n\n{}", trace.title, means(plan, found, &cases, heads));
    }
    text
}

fn change(value: f64, against: f64) -> String {
    if against.is_nan() { "-".to_owned() } else { signed(percent(value, against)) }
}

fn grid(plan: &QualityPlan, inputs: &Inputs, found: &CaseResults, csv: &str) -> String {
    let Some(first) = plan.grid.first() else { return String::new() };
    let shown: Vec<QualityCase> = plan
        .grid
        .iter()
        .filter(|case| case.load == plan.focus_load && case.spread == first.spread)
        .cloned()
        .collect();
    let mut text = format!(
        "Mean JCT in seconds with `--estimates {} --beliefs {}`, by table of pair rates, at ×{load}: the trace with its inter-arrival times divided by {load}. \
         Jobs of traces that lack the classes of a table draw one at random; Muri's and the generated trace run on 8 nodes of 8 GPUs. Other loads and \
         spread penalties (a gang on more nodes than needed loses that share of its rate) are in [{csv}]({csv}).\n",
        first.estimates,
        first.beliefs,
        load = plan.focus_load,
    );
    text += &means_by_trace(plan, inputs, found, &shown);
    if let Some(judged) = &plan.judged {
        text += &tails(plan, inputs, found, judged);
    }
    text
}

/// p99 JCT of the judged policy against the exclusive policy with the lowest mean.
fn tails(plan: &QualityPlan, inputs: &Inputs, found: &CaseResults, judged: &str) -> String {
    if plan.exclusive().next().is_none() {
        return String::new();
    }
    let Some(spread) = plan.spreads.first() else { return String::new() };
    let heads = plan.loads.iter().map(|load| format!("×{load}"));
    let mut rows = MarkdownRows::new(&prefixed("trace; table", heads));
    for trace in &inputs.traces {
        for table in &inputs.tables {
            let here = |case: &&QualityCase| {
                case.trace == trace.name && case.table == table.name && case.spread == *spread
            };
            let cells = plan.grid.iter().filter(here).map(|case| {
                let best = found.best(case, plan.exclusive()).map_or(judged, |(best, _)| best);
                let tail = |policy: &str| found.of(case, policy).p99_jct_s;
                change(tail(judged), tail(best))
            });
            rows.push(&prefixed(&format!("{}; {}", trace.title, table.title), cells));
        }
    }
    format!(
        "\n### Tails\n\np99 JCT of `{judged}` against that of the exclusive policy with the lowest mean JCT in the same cell.\n\n{}",
        rows.0
    )
}

fn weak(plan: &QualityPlan, inputs: &Inputs, found: &CaseResults) -> String {
    let mut text = String::new();
    for trace in &inputs.traces {
        let cases: Vec<&QualityCase> =
            plan.weak.iter().filter(|case| case.trace == trace.name).collect();
        let Some(first) = cases.first() else { continue };
        text += &format!(
            "Mean JCT in seconds on {}, with `--estimates trace` and table {}.\n\n",
            trace.title, first.table
        );
        let heads = cases.iter().map(|case| format!("×{}", case.load)).collect();
        text += &means(plan, found, &cases, heads);
        text.push('\n');
    }
    text
}

fn online(plan: &QualityPlan, found: &CaseResults) -> String {
    if plan.online.is_empty() || plan.sharing().next().is_none() {
        return String::new();
    }
    let heads = prefixed("trace; table", plan.sharing().map(str::to_owned));
    let mut rows = MarkdownRows::new(&heads);
    for (known, learned) in &plan.online {
        let cells = plan.sharing().map(|policy| {
            let (truth, belief) = (found.mean(known, policy), found.mean(learned, policy));
            format!("{} ({})", seconds(belief), change(belief, truth))
        });
        rows.push(&prefixed(&format!("{}; {}", known.trace, known.table), cells));
    }
    format!(
        "Mean JCT in seconds with `--beliefs online`, and its change from `--beliefs true`, at ×{}; the predictor is trained on half of the table's pairs and corrected by what is observed. Pairs that the table lacks follow a rule, which is known ([decision 20](decisions/0020-what-beliefs-may-know.md)).\n\n{}",
        plan.focus_load, rows.0
    )
}

fn noisy(plan: &QualityPlan, inputs: &Inputs, found: &CaseResults) -> String {
    let Some(first) = plan.noisy.first() else { return String::new() };
    format!(
        "Mean JCT in seconds with `--estimates {}` at ×{}, true pair rates, by table.\n{}",
        first.estimates,
        first.load,
        means_by_trace(plan, inputs, found, &plan.noisy)
    )
}

/// Goodput and shared time on the first trace.
fn goodput(plan: &QualityPlan, inputs: &Inputs, found: &CaseResults) -> String {
    let Some(trace) = inputs.traces.first() else { return String::new() };
    let at_focus = |case: &&QualityCase| {
        case.trace == trace.name
            && case.load == plan.focus_load
            && plan.spreads.first() == Some(&case.spread)
    };
    let cases: Vec<&QualityCase> = plan.grid.iter().filter(at_focus).collect();
    if cases.is_empty() || plan.sharing().next().is_none() {
        return String::new();
    }
    let heads = inputs.tables.iter().map(|table| table.title.to_owned());
    let mut rows = MarkdownRows::new(&prefixed("policy", heads));
    for policy in plan.sharing() {
        let cells = cases.iter().map(|case| {
            let figures = found.of(case, policy);
            format!("{:.3}, {:.0} %", figures.goodput, figures.shared_gpu_time * 100.0)
        });
        rows.push(&prefixed(policy, cells));
    }
    format!(
        "{} at ×{}; goodput above 1 means that sharing pays.\n\n{}",
        trace.title, plan.focus_load, rows.0
    )
}

/// GPUs with less memory, on which sub-batches let pairs fit.
fn sub_batches(plan: &QualityPlan, found: &CaseResults) -> String {
    if plan.small_gpus.is_empty() || plan.accumulating.is_empty() {
        return String::new();
    }
    let mut heads = vec!["GPU memory".to_owned()];
    for Ablation { policy, .. } in &plan.accumulating {
        let name = &policy.text;
        heads.extend([format!("{name}, whole batches"), name.clone(), "change".to_owned()]);
    }
    let mut rows = MarkdownRows::new(&heads);
    for case in &plan.small_gpus {
        let mut cells = vec![format!("{} MiB", grouped(case.gpu_mib.unwrap_or_default()))];
        for Ablation { policy, without } in &plan.accumulating {
            let with = found.mean(case, &policy.text);
            for (_, variant) in without {
                let whole = found.mean(case, &variant.text);
                cells.extend([seconds(whole), seconds(with), change(with, whole)]);
            }
        }
        rows.push(&cells);
    }
    format!(
        "The window at ×{} on GPUs of less memory, Lucid's tables; mean JCT in seconds. Jobs that fit into no GPU are left out, so rows are not to be compared.\n\n{}",
        plan.focus_load, rows.0
    )
}

fn ablations(plan: &QualityPlan, found: &CaseResults) -> String {
    let mut text = String::new();
    for Ablation { policy, without } in &plan.ablations {
        if without.is_empty() || plan.ablation_cases.is_empty() {
            continue;
        }
        let heads = plan.ablation_cases.iter().map(|case| match case.estimates.as_str() {
            "true" => format!("{}; {}", case.trace, case.table),
            _ => format!("{}, its own estimates; {}", case.trace, case.table),
        });
        let mut heads = prefixed("without", heads);
        heads.push("mean".to_owned());
        let mut rows = MarkdownRows::new(&heads);
        for (flag, variant) in without {
            let changes: Vec<f64> = plan
                .ablation_cases
                .iter()
                .map(|case| found.mean(case, &variant.text) / found.mean(case, &policy.text))
                .collect();
            let mean = changes.iter().sum::<f64>() / changes.len() as f64;
            let cells = changes.iter().chain([&mean]).map(|ratio| change(*ratio, 1.0));
            rows.push(&prefixed(flag, cells));
        }
        text += &format!(
            "Change of the mean JCT of `{}` at ×{} when one ingredient is switched off: above zero it pays.\n\n{}\n",
            policy.text, plan.focus_load, rows.0
        );
    }
    text
}
