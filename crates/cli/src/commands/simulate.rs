//! `tandem sim` and `tandem compare`: read, check, open the outputs, run, write.

use super::{print, remark};
use crate::args::{
    BeliefsArg, ClassesArg, CompareArgs, NetworkArg, SimArgs, SimulationArgs, TraceInput,
    UnmeasuredArg,
};
use crate::failure::Failure;
use crate::files::{Folder, OutputFile};
use crate::progress::ProgressDisplay;
use crate::table;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tandem_core::{ClosedForm, Interference, Shares};
use tandem_models::device::DutyShares;
use tandem_policies::{PolicySpec, REGISTRY};
use tandem_python_policy::FirstError;
use tandem_sim::interference::{
    Beliefs, Learning, ModelFile, MuriStages, PairTable, trace_beliefs,
};
use tandem_sim::profiles::{SoloProfiles, read_shares};
use tandem_sim::report::PairHeatMap;
use tandem_sim::trace::{ReadOptions, SacctCounts, Trace};
use tandem_sim::{
    Estimates, LowerBound, Network, RunOptions, SimResults, SimRun, Workload, WorkloadOptions,
    WorldOptions, assign_classes, clusters, report, trace, write_jobs_csv,
};

pub(crate) fn sim(args: &SimArgs) -> Result<(), Failure> {
    let (policy, errors) = read_policy(&args.policy)?;
    named_by_python(&errors, simulate(&[policy], &args.common))
}

pub(crate) fn compare(args: &CompareArgs) -> Result<(), Failure> {
    let list = args.policies.as_deref().map(PolicySpec::split_list);
    let (policies, errors): (Vec<PolicySpec>, Vec<Option<FirstError>>) = match list {
        Some(list) => {
            let read: Result<Vec<_>, Failure> = list.iter().map(|text| read_policy(text)).collect();
            read?.into_iter().unzip()
        }
        None => (every_policy(), Vec::new()),
    };
    if args.common.jobs_csv.is_some() && policies.len() > 1 {
        let problem = "--jobs-csv is for one policy; with several use --out DIR";
        return Err(Failure::bad_input(problem));
    }
    let done = simulate(&policies, &args.common);
    errors.iter().fold(done, |done, errors| named_by_python(errors, done))
}

/// A policy of the registry, or a class in a Python file with the place of its errors.
fn read_policy(text: &str) -> Result<(PolicySpec, Option<FirstError>), Failure> {
    if !text.starts_with(tandem_python_policy::PREFIX) {
        return Ok((PolicySpec::parse(text)?, None));
    }
    let spec = tandem_python_policy::spec(text, &python()).map_err(Failure::bad_input)?;
    Ok((spec.0, Some(spec.1)))
}

/// The interpreter: `$TANDEM_PYTHON`, that of the environment in which this program is installed, else that
/// of the path.
fn python() -> PathBuf {
    if let Some(named) = std::env::var_os("TANDEM_PYTHON").filter(|name| !name.is_empty()) {
        return named.into();
    }
    let beside = std::env::current_exe().map(|program| program.with_file_name("python3"));
    beside.ok().filter(|path| path.is_file()).unwrap_or_else(|| "python3".into())
}

/// A run that ended because a Python policy failed fails with that policy's error.
fn named_by_python(errors: &Option<FirstError>, done: Result<(), Failure>) -> Result<(), Failure> {
    match errors.as_ref().and_then(FirstError::get) {
        Some(error) => Err(Failure::bad_input(error)),
        None => done,
    }
}

/// Every policy of the registry with its defaults.
pub(crate) fn every_policy() -> Vec<PolicySpec> {
    REGISTRY.iter().map(PolicySpec::of).collect()
}

/// The most jobs that any of the policies puts on one GPU.
pub(crate) fn tenants_max(policies: &[PolicySpec]) -> usize {
    policies.iter().map(PolicySpec::tenants_max).max().unwrap_or(1)
}

/// Reads a trace, and the table that comes with it.
pub(crate) fn read_trace(
    path: &Path,
    input: &TraceInput,
) -> Result<(Trace, Option<PairTable>), Failure> {
    let table = input.interference.as_deref().filter(|&name| name != MuriStages::NAME);
    let table = table.map(PairTable::read).transpose()?;
    let options = ReadOptions {
        format: input.format,
        skip_bad: input.skip_bad,
        speeds: table.as_ref().map(|table| &table.speeds),
    };
    Ok((trace::read(path, &options)?, table))
}

fn simulate(policies: &[PolicySpec], args: &SimulationArgs) -> Result<(), Failure> {
    let PreparedRun { workload, shares, truth, beliefs, pairs } = prepare(args)?;
    let network = read_network(&args.network)?;
    if !workload.trace.skipped.is_empty() {
        let skipped = &workload.trace.skipped;
        let first = &skipped[0];
        let rows = if skipped.len() == 1 { "bad row was" } else { "bad rows were" };
        let text = format!("{} {rows} left out, the first at line {first}", skipped.len());
        remark(&text, args.quiet);
    }
    for text in workload.trace.sacct.iter().flat_map(SacctCounts::remarks) {
        remark(&text, args.quiet);
    }
    if workload.trace.raised > 0 {
        let raised = workload.trace.raised;
        let durations = if raised == 1 { "duration" } else { "durations" };
        let text = format!("{raised} {durations} below one second raised to one second");
        remark(&text, args.quiet);
    }
    // Opened and dropped: an unwritable path is reported before the simulation.
    Outputs::open(args, policies)?;
    let options = RunOptions {
        placement: args.placement.into(),
        context: args.context_mib,
        world: WorldOptions {
            spread_rate: args.spread_penalty,
            restore: args.restore_s,
            checkpoint: args
                .faults
                .map_or(WorldOptions::default().checkpoint, |faults| faults.checkpoint),
        },
        network,
        faults: args.faults,
        seed: args.seed,
        beliefs,
        shares,
        record: args.out.is_some(),
        log_actions: false,
        verify: false,
    };
    let progress = ProgressDisplay::start((workload.len() * policies.len()) as u64, args.quiet);
    let runs =
        tandem_sim::compare(&workload, policies, &truth, &options, args.threads, &progress.done)?;
    drop(progress);
    // The bound takes time, and a single policy's jobs CSV does not need it.
    let bound = (args.json || args.out.is_some() || runs.len() > 1)
        .then(|| LowerBound::new(&workload, truth.as_ref(), tenants_max(policies)));
    let Outputs { jobs_csv, folder } = Outputs::open(args, policies)?;
    if let (Some(file), [run]) = (jobs_csv, runs.as_slice()) {
        file.write(|mut out| write_jobs_csv(&workload, run, &mut out))?;
    }
    if let (Some(folder), Some(bound)) = (folder, bound) {
        folder.write(&workload, bound, &runs, &notes(args, &runs), pairs.as_ref())?;
    }
    match bound {
        Some(bound) if args.json => {
            let results = SimResults::new(&workload, bound, &runs, true);
            print(&serde_json::to_string(&results).expect("plain data always serialises"))
        }
        Some(bound) if runs.len() > 1 => {
            print(&format!("{}\n\n{}", table::comparison(&runs), table::left(bound, &runs)))
        }
        _ => print(&table::comparison(&runs)),
    }
}

/// What a simulation needs.
struct PreparedRun {
    workload: Workload,
    /// Shares and limits between users.
    shares: Arc<Shares>,
    truth: Arc<dyn Interference>,
    beliefs: Option<Beliefs>,
    /// The rates that the report shows, where there is a table.
    pairs: Option<PairHeatMap>,
}

fn read_network(arg: &NetworkArg) -> Result<Option<Network>, Failure> {
    Ok(match arg {
        NetworkArg::Off => None,
        NetworkArg::Contention { shares: None } => Some(Network::default()),
        NetworkArg::Contention { shares: Some(file) } => Some(read_shares(file)?),
    })
}

/// Reads and checks all inputs before anything is written.
fn prepare(args: &SimulationArgs) -> Result<PreparedRun, Failure> {
    let (cluster, shares) = clusters::cluster_and_shares(&args.cluster)?;
    let cluster = Arc::new(cluster);
    let (mut trace, table) = read_trace(&args.trace, &args.input)?;
    let measured = match (&table, args.classes) {
        (Some(table), classes) => {
            if let ClassesArg::Table { seed } = classes {
                assign_classes(&mut trace, table, seed);
            }
            let measured = table.for_trace(&trace)?;
            Some(Arc::new(match args.unmeasured {
                UnmeasuredArg::ClosedForm => measured,
                UnmeasuredArg::Device => measured.with_device(DutyShares::default()),
            }))
        }
        (None, ClassesArg::Trace) => None,
        (None, ClassesArg::Table { .. }) => {
            let problem = "--classes table:SEED needs a table: give --interference FILE";
            return Err(Failure::bad_input(problem));
        }
    };
    let solo = args.solo.as_deref().map(SoloProfiles::read).transpose()?;
    let has_stages = args.input.interference.as_deref() == Some(MuriStages::NAME);
    let truth: Arc<dyn Interference> = match &measured {
        Some(measured) => measured.clone(),
        None if has_stages => {
            Arc::new(MuriStages::read(&mut trace, &args.trace.display().to_string())?)
        }
        None => match args.unmeasured {
            UnmeasuredArg::ClosedForm => Arc::new(ClosedForm),
            UnmeasuredArg::Device => Arc::new(DutyShares::default()),
        },
    };
    let beliefs = match args.beliefs {
        BeliefsArg::True => None,
        kind => Some(beliefs(args, kind, &trace, &truth, table.as_ref(), solo.as_ref())?),
    };
    let pairs = measured.map(|measured| PairHeatMap::new(&trace, &measured, beliefs.as_ref()));
    let options = WorkloadOptions {
        estimates: args.estimates,
        load: args.load,
        seed: args.seed,
        placement: args.placement.into(),
        context: args.context_mib,
        skip_bad: args.input.skip_bad,
    };
    let file = args.trace.display().to_string();
    let mut workload = Workload::new(trace, cluster, &file, &options)?;
    if let Some(solo) = &solo {
        workload.offer_measured_sub_batches(solo);
    }
    let shares = Arc::new(workload.share(&shares));
    Ok(PreparedRun { workload, shares, truth, beliefs, pairs })
}

fn beliefs(
    args: &SimulationArgs,
    kind: BeliefsArg,
    trace: &Trace,
    truth: &Arc<dyn Interference>,
    table: Option<&PairTable>,
    solo: Option<&SoloProfiles>,
) -> Result<Beliefs, Failure> {
    let learning = Learning {
        train_pairs: args.train_pairs,
        seed: args.seed,
        online: matches!(kind, BeliefsArg::Online),
    };
    let model = args.model.as_deref().map(|text| {
        let (file, gpu) = match text.rsplit_once(":gpu=") {
            Some((file, gpu)) => (file, Some(gpu)),
            None => (text, None),
        };
        ModelFile::read(file)?.for_gpu(gpu, file).cloned()
    });
    let model = model.transpose()?;
    Ok(trace_beliefs(trace, truth.clone(), table, solo, model.as_ref(), learning)?)
}

/// Notes for the report: the assumptions behind the figures.
fn notes(args: &SimulationArgs, runs: &[SimRun]) -> Vec<String> {
    let mut notes = Vec::new();
    let unmeasured = match args.unmeasured {
        UnmeasuredArg::ClosedForm => "min(1, 100 / (sum of GPU utilisations))",
        UnmeasuredArg::Device => "those of the device model, from utilisations and budgets",
    };
    notes.push(match &args.input.interference {
        Some(name) if name == MuriStages::NAME => {
            "Co-located jobs interleave the stages of their iterations, from the stage times of the trace."
                .to_owned()
        }
        Some(table) => format!(
            "Pair rates are measured ones from {}; for pairs that it lacks they are {unmeasured}.",
            Path::new(table).file_name().unwrap_or_default().to_string_lossy()
        ),
        None => format!("Pair rates, where jobs share a GPU, are {unmeasured}."),
    });
    if args.unmeasured == UnmeasuredArg::ClosedForm && runs.iter().any(|run| run.has_three_tenants)
    {
        notes.push(
            "Three or more tenants on a GPU run at the product of their pair rates: an assumption."
                .to_owned(),
        );
    }
    if args.estimates == Estimates::History {
        notes.push(
            "Policies estimate durations from the jobs that have finished earlier in the run."
                .to_owned(),
        );
    }
    if !matches!(args.network, NetworkArg::Off) {
        notes.push(
            "Gangs across nodes pay for the network and divide the link of a node where they meet: a model."
                .to_owned(),
        );
    }
    if args.faults.is_some() {
        notes.push("GPUs fail and are repaired at random, from the seed.".to_owned());
    }
    notes
}

/// All outputs besides standard output.
struct Outputs {
    jobs_csv: Option<OutputFile>,
    folder: Option<ResultFolder>,
}

impl Outputs {
    fn open(args: &SimulationArgs, policies: &[PolicySpec]) -> Result<Self, Failure> {
        let is_trace = |path: &&Path| {
            let (output, trace) = (path.canonicalize().ok(), args.trace.canonicalize().ok());
            output.is_some() && output == trace
        };
        if let Some(path) = args.jobs_csv.as_deref().filter(is_trace) {
            let problem = "is the trace itself; name another file for --jobs-csv";
            return Err(Failure::bad_input(format!("{}: {problem}", path.display())));
        }
        let folder = args.out.as_deref().map(|path| ResultFolder::open(path, policies));
        Ok(Self {
            jobs_csv: args.jobs_csv.as_deref().map(OutputFile::open).transpose()?,
            folder: folder.transpose()?,
        })
    }
}

/// The folder of `--out`, its files opened.
struct ResultFolder {
    report: OutputFile,
    results: OutputFile,
    jobs: Vec<OutputFile>,
    /// Dropped last, when the files in it are gone.
    folder: Folder,
}

impl ResultFolder {
    fn open(path: &Path, policies: &[PolicySpec]) -> Result<Self, Failure> {
        let folder = Folder::open(path)?;
        let open = |name: &str| OutputFile::open(&path.join(name));
        let jobs = policies.iter().map(|policy| open(&jobs_file(&policy.text)));
        Ok(Self {
            report: open("report.html")?,
            results: open("results.json")?,
            jobs: jobs.collect::<Result<_, _>>()?,
            folder,
        })
    }

    fn write(
        self,
        workload: &Workload,
        bound: LowerBound,
        runs: &[SimRun],
        notes: &[String],
        pairs: Option<&PairHeatMap>,
    ) -> Result<(), Failure> {
        let html = report::html(workload, bound, runs, notes, pairs);
        self.report.write(|out| out.write_all(html.as_bytes()))?;
        let results = SimResults::new(workload, bound, runs, false);
        let json = serde_json::to_string_pretty(&results).expect("plain data always serialises");
        self.results.write(|out| writeln!(out, "{json}"))?;
        for (file, run) in self.jobs.into_iter().zip(runs) {
            file.write(|mut out| write_jobs_csv(workload, run, &mut out))?;
        }
        self.folder.keep();
        Ok(())
    }
}

/// `jobs-POLICY.csv`, with special characters replaced.
fn jobs_file(policy: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "=._-".contains(c) { c } else { '-' };
    format!("jobs-{}.csv", policy.chars().map(plain).collect::<String>())
}
