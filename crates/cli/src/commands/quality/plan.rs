//! The plan of `tandem bench quality`: the cases of every section, and their policies.

use super::args::QualityArgs;
use super::case::QualityCase;
use super::inputs::Inputs;
use crate::commands::simulate::every_policy;
use crate::failure::Failure;
use crate::units;
use clap::ValueEnum;
use std::collections::BTreeMap;
use tandem_policies::{PolicyParam, PolicySpec, Value};

/// The load of sections with a single load.
const FOCUS_LOAD: &str = "1.5";
/// Memory of the GPUs on which sub-batches are tried.
const SMALL_GPUS_MIB: [u64; 3] = [12_288, 16_384, 24_576];
const NOISY: &str = "noisy:1.0";
/// The flag of the policies that can divide batches.
const ACCUMULATE: &str = "accumulate";

/// A policy, and its variants with one flag off.
pub(super) struct Ablation {
    pub(super) policy: PolicySpec,
    /// The flag, and the policy without it.
    pub(super) without: Vec<(&'static str, PolicySpec)>,
}

/// The policies that are named on the command line.
pub(super) struct Chosen {
    policies: Vec<PolicySpec>,
    judged: Option<String>,
    ablated: Vec<PolicySpec>,
}

impl Chosen {
    pub(super) fn new(args: &QualityArgs) -> Result<Self, Failure> {
        let policies = match &args.policies {
            Some(list) => PolicySpec::parse_list(list)?,
            None => every_policy(),
        };
        let judged = policies.iter().find(|policy| policy.text == args.judge);
        let ablated = match (&args.ablate, judged) {
            (Some(list), _) => PolicySpec::parse_list(list)?,
            (None, judged) => judged.cloned().into_iter().collect(),
        };
        let judged = judged.map(|policy| policy.text.clone());
        Ok(Self { policies, judged, ablated })
    }
}

pub(super) struct QualityPlan {
    pub(super) policies: Vec<PolicySpec>,
    /// The policy that the criteria are for, if it is among them.
    pub(super) judged: Option<String>,
    pub(super) loads: Vec<String>,
    pub(super) spreads: Vec<String>,
    pub(super) focus_load: String,
    /// Every combination of trace, table, load and spread penalty.
    pub(super) grid: Vec<QualityCase>,
    /// With the trace's own estimates, by load.
    pub(super) weak: Vec<QualityCase>,
    /// Pairs of cases with true and with learned pair rates.
    pub(super) online: Vec<(QualityCase, QualityCase)>,
    pub(super) noisy: Vec<QualityCase>,
    pub(super) small_gpus: Vec<QualityCase>,
    pub(super) accumulating: Vec<Ablation>,
    pub(super) ablations: Vec<Ablation>,
    pub(super) ablation_cases: Vec<QualityCase>,
}

impl QualityPlan {
    pub(super) fn new(
        args: &QualityArgs,
        Chosen { policies, judged, ablated }: Chosen,
        inputs: &Inputs,
    ) -> Result<Self, Failure> {
        let cases = Cases::new(args, inputs);
        let accumulates = |policy: &&PolicySpec| flags(policy).any(|flag| flag.name == ACCUMULATE);
        let accumulating = policies.iter().filter(accumulates);
        Ok(Self {
            judged,
            loads: args.loads.clone(),
            spreads: args.spread.clone(),
            focus_load: cases.focus_load.clone(),
            grid: cases.grid(),
            weak: cases.weak(),
            online: cases.online(),
            noisy: cases
                .focus()
                .map(|case| QualityCase { estimates: NOISY.to_owned(), ..case })
                .collect(),
            small_gpus: cases.small_gpus(),
            accumulating: accumulating
                .map(|policy| ablation(policy, Some(ACCUMULATE)))
                .collect::<Result<_, _>>()?,
            ablations: ablated
                .iter()
                .map(|policy| ablation(policy, None))
                .collect::<Result<_, _>>()?,
            ablation_cases: cases.ablation(),
            policies,
        })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.policies.iter().map(|policy| policy.text.as_str())
    }

    /// How many jobs the policy of that name lets run on a GPU, in words.
    pub(super) fn tenants_max_of(&self, name: &str) -> String {
        let policy = self.policies.iter().find(|policy| policy.text == name);
        units::counted(policy.map_or(1, PolicySpec::tenants_max), "job")
    }

    pub(super) fn exclusive(&self) -> impl Iterator<Item = &str> {
        let exclusive = self.policies.iter().filter(|policy| policy.entry.tenants_max == 1);
        exclusive.map(|policy| policy.text.as_str())
    }

    pub(super) fn sharing(&self) -> impl Iterator<Item = &str> {
        let sharing = self.policies.iter().filter(|policy| policy.entry.tenants_max > 1);
        sharing.map(|policy| policy.text.as_str())
    }

    /// Every simulation once: the policies of each case.
    pub(super) fn tasks(&self) -> Vec<(QualityCase, Vec<PolicySpec>)> {
        let mut tasks: BTreeMap<QualityCase, BTreeMap<String, PolicySpec>> = BTreeMap::new();
        let mut add = |case: &QualityCase, policy: &PolicySpec| {
            let policies = tasks.entry(case.clone()).or_default();
            policies.insert(policy.text.clone(), policy.clone());
        };
        for policy in &self.policies {
            let cases = self.grid.iter().chain(&self.weak).chain(&self.noisy);
            cases.for_each(|case| add(case, policy));
            if policy.entry.tenants_max > 1 {
                let both = self.online.iter().flat_map(|(known, learned)| [known, learned]);
                both.for_each(|case| add(case, policy));
            }
        }
        let small = self.accumulating.iter().map(|ablation| (ablation, &self.small_gpus));
        let all = self.ablations.iter().map(|ablation| (ablation, &self.ablation_cases));
        for (ablation, cases) in small.chain(all) {
            for case in cases {
                add(case, &ablation.policy);
                ablation.without.iter().for_each(|(_, policy)| add(case, policy));
            }
        }
        let owned = tasks.into_iter();
        owned.map(|(case, by)| (case, by.into_values().collect())).collect()
    }
}

/// The flags of a policy that are on by default and were not set.
fn flags(policy: &PolicySpec) -> impl Iterator<Item = &'static PolicyParam> {
    let given = policy.text.clone();
    let params = policy.entry.params.iter();
    params.filter(move |param| {
        param.default == Value::Flag(true) && !given.contains(&format!("{}=", param.name))
    })
}

fn ablation(policy: &PolicySpec, only: Option<&str>) -> Result<Ablation, Failure> {
    let mut without = Vec::new();
    for flag in flags(policy).filter(|flag| only.is_none_or(|only| only == flag.name)) {
        let separator = if policy.text.contains(':') { ',' } else { ':' };
        let text = format!("{}{separator}{}=false", policy.text, flag.name);
        without.push((flag.name, PolicySpec::parse(&text)?));
    }
    Ok(Ablation { policy: policy.clone(), without })
}

/// Makes the cases of the sections.
struct Cases<'a> {
    args: &'a QualityArgs,
    inputs: &'a Inputs,
    beliefs: String,
    focus_load: String,
    /// The first spread penalty and the first table of the options.
    spread: String,
    table: String,
}

impl<'a> Cases<'a> {
    fn new(args: &'a QualityArgs, inputs: &'a Inputs) -> Self {
        let focus = args.loads.iter().find(|load| *load == FOCUS_LOAD).or(args.loads.last());
        let first = |list: &[String], otherwise: &str| {
            list.first().cloned().unwrap_or_else(|| otherwise.to_owned())
        };
        let beliefs = args.beliefs.to_possible_value();
        Self {
            args,
            inputs,
            beliefs: beliefs.map_or_else(|| "true".to_owned(), |name| name.get_name().to_owned()),
            focus_load: focus.cloned().unwrap_or_else(|| FOCUS_LOAD.to_owned()),
            spread: first(&args.spread, "0"),
            table: inputs.tables.first().map_or("", |table| table.name).to_owned(),
        }
    }

    fn case(&self, trace: &str, table: &str, load: &str) -> QualityCase {
        QualityCase {
            trace: trace.to_owned(),
            table: table.to_owned(),
            load: load.to_owned(),
            spread: self.spread.clone(),
            estimates: "true".to_owned(),
            beliefs: "true".to_owned(),
            gpu_mib: None,
        }
    }

    fn grid(&self) -> Vec<QualityCase> {
        let mut grid = Vec::new();
        for trace in &self.inputs.traces {
            for table in &self.inputs.tables {
                for spread in &self.args.spread {
                    for load in &self.args.loads {
                        grid.push(QualityCase {
                            spread: spread.clone(),
                            estimates: self.args.estimates.clone(),
                            beliefs: self.beliefs.clone(),
                            ..self.case(&trace.name, table.name, load)
                        });
                    }
                }
            }
        }
        grid
    }

    /// Recorded traces with their own estimates.
    fn weak(&self) -> Vec<QualityCase> {
        let recorded = self.inputs.traces.iter().filter(|trace| trace.name != "generated");
        let estimated = recorded.filter(|trace| trace.has_estimates());
        estimated
            .flat_map(|trace| {
                self.args.loads.iter().map(|load| QualityCase {
                    estimates: "trace".to_owned(),
                    ..self.case(&trace.name, &self.table, load)
                })
            })
            .collect()
    }

    /// Every trace and table at the focus load.
    fn focus(&self) -> impl Iterator<Item = QualityCase> {
        self.inputs.traces.iter().flat_map(move |trace| {
            let tables = self.inputs.tables.iter();
            tables.map(|table| self.case(&trace.name, table.name, &self.focus_load))
        })
    }

    fn online(&self) -> Vec<(QualityCase, QualityCase)> {
        let learned =
            |known: &QualityCase| QualityCase { beliefs: "online".to_owned(), ..known.clone() };
        self.focus().map(|known| (known.clone(), learned(&known))).collect()
    }

    fn small_gpus(&self) -> Vec<QualityCase> {
        let lucid = self.inputs.tables.iter().any(|table| table.name == "lucid");
        if !lucid || !self.inputs.has_solo() || self.inputs.trace("window").is_none() {
            return Vec::new();
        }
        let case = self.case("window", "lucid", &self.focus_load);
        SMALL_GPUS_MIB.map(|mib| QualityCase { gpu_mib: Some(mib), ..case.clone() }).to_vec()
    }

    /// Every trace with the first two tables, and the cases with weak estimates.
    fn ablation(&self) -> Vec<QualityCase> {
        let tables: Vec<&str> = self.inputs.tables.iter().take(2).map(|table| table.name).collect();
        let focus = self.focus().filter(|case| tables.contains(&case.table.as_str()));
        focus.chain(self.weak().into_iter().filter(|case| case.load == self.focus_load)).collect()
    }
}
