//! Traces and tables, read once, and the workload of a case made from them.

use super::args::{QualityArgs, TableName, TraceName};
use super::case::QualityCase;
use super::state::Fingerprint;
use crate::failure::Failure;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tandem_core::{Cluster, ClusterBuilder, GpuId, Interference, Memory};
use tandem_sim::interference::{Learning, PairTable, trace_beliefs};
use tandem_sim::profiles::SoloProfiles;
use tandem_sim::trace::{GenerateOptions, ReadOptions, Trace, generate, read};
use tandem_sim::{RunOptions, Workload, WorkloadOptions, WorldOptions, assign_classes, clusters};

/// The generated trace, and the cluster of traces without one.
const GENERATED_JOBS: usize = 4000;
const GENERATED_GPUS: u32 = 64;
const CLUSTER: &str = "8x8";
/// The cluster of Pollux's evaluation.
const POLLUX_CLUSTER: &str = "16x4";
/// Share of the measured pairs that a predictor is trained on.
const TRAIN_PAIRS: f64 = 0.5;

pub(super) struct TraceSource {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) trace: Trace,
    /// Where it was read from, for messages.
    file: String,
    cluster: Arc<Cluster>,
    fingerprint: Fingerprint,
}

impl TraceSource {
    /// Whether every job comes with an estimate of its duration.
    pub(super) fn has_estimates(&self) -> bool {
        self.trace.jobs.iter().all(|job| job.estimate.is_some())
    }
}

pub(super) struct TableSource {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    table: PairTable,
    fingerprint: Fingerprint,
}

struct SoloSource {
    profiles: SoloProfiles,
    fingerprint: Fingerprint,
}

pub(super) struct Inputs {
    pub(super) traces: Vec<TraceSource>,
    pub(super) tables: Vec<TableSource>,
    solo: Option<SoloSource>,
    seed: u64,
    /// Hash of the program and of options that apply to all cases.
    fingerprint: Fingerprint,
}

/// A case ready to be simulated.
pub(super) struct PreparedCase {
    pub(super) workload: Workload,
    pub(super) truth: Arc<dyn Interference>,
    pub(super) options: RunOptions,
}

impl Inputs {
    pub(super) fn read(args: &QualityArgs) -> Result<Self, Failure> {
        let tables = args.tables.iter().map(|&name| read_table(&args.data, name));
        let tables: Vec<TableSource> = tables.collect::<Result<_, _>>()?;
        let named = args.traces.iter().filter(|&&name| name != TraceName::None);
        let mut traces: Vec<TraceSource> =
            named.map(|&name| read_named(args, name)).collect::<Result<_, _>>()?;
        if let (Some(file), Some(cluster)) = (&args.trace, &args.cluster) {
            traces.push(read_further(file, cluster, &tables)?);
        }
        if traces.is_empty() {
            let problem = "no trace is named; give --traces, or --trace FILE with --cluster SPEC";
            return Err(Failure::bad_input(problem));
        }
        let names: Vec<&str> = traces.iter().map(|source| source.name.as_str()).collect();
        unique("trace", &names)?;
        unique("table", &tables.iter().map(|source| source.name).collect::<Vec<_>>())?;
        let seed = args.seed.to_le_bytes();
        let fingerprint = Fingerprint::of_program()?.with(Fingerprint::of([seed.as_slice()]));
        let solo = read_solo(&args.data.join("lucid/single_data.csv"))?;
        Ok(Self { traces, tables, solo, seed: args.seed, fingerprint })
    }

    pub(super) fn trace(&self, name: &str) -> Option<&TraceSource> {
        self.traces.iter().find(|source| source.name == name)
    }

    fn table(&self, name: &str) -> Option<&TableSource> {
        self.tables.iter().find(|source| source.name == name)
    }

    /// Whether there are solo profiles, which sub-batches follow from.
    pub(super) fn has_solo(&self) -> bool {
        self.solo.is_some()
    }

    /// A hash of everything that a result of `case` depends on besides the case; `None` for a case of other
    /// inputs.
    pub(super) fn fingerprint(&self, case: &QualityCase) -> Option<Fingerprint> {
        let (trace, table) = (self.trace(&case.trace)?, self.table(&case.table)?);
        let mut fingerprint = self.fingerprint.with(trace.fingerprint).with(table.fingerprint);
        if case.gpu_mib.is_some() {
            fingerprint = fingerprint.with(self.solo.as_ref()?.fingerprint);
        }
        Some(fingerprint)
    }

    pub(super) fn prepare(&self, case: &QualityCase) -> Result<PreparedCase, Failure> {
        let (Some(source), Some(table)) = (self.trace(&case.trace), self.table(&case.table)) else {
            return Err(Failure::bad_input(format!("{}: no such case", case.name())));
        };
        let mut trace = source.trace.clone();
        let measured = match table.table.for_trace(&trace) {
            Ok(measured) => measured,
            // The trace lacks the classes of the table, so each job gets a random one.
            Err(_) => {
                assign_classes(&mut trace, &table.table, self.seed);
                table.table.for_trace(&trace)?
            }
        };
        let truth: Arc<dyn Interference> = Arc::new(measured);
        let beliefs = match case.beliefs.as_str() {
            "true" => None,
            kind => {
                let online = kind == "online";
                let learning = Learning { train_pairs: TRAIN_PAIRS, seed: self.seed, online };
                let table = Some(&table.table);
                Some(trace_beliefs(&trace, truth.clone(), table, None, None, learning)?)
            }
        };
        let options = WorkloadOptions {
            estimates: case.estimates()?,
            load: case.load()?,
            seed: self.seed,
            // A job that fits no GPU of the smaller size is left out for all policies.
            skip_bad: case.gpu_mib.is_some(),
            ..WorkloadOptions::default()
        };
        let cluster = match case.gpu_mib {
            Some(mib) => Arc::new(with_memory(&source.cluster, Memory::from_mib(mib))),
            None => source.cluster.clone(),
        };
        let mut workload = Workload::new(trace, cluster, &source.file, &options)?;
        if let (Some(_), Some(solo)) = (case.gpu_mib, &self.solo) {
            workload.offer_measured_sub_batches(&solo.profiles);
        }
        let world = WorldOptions { spread_rate: case.spread_keeps()?, ..WorldOptions::default() };
        let options = RunOptions { world, seed: self.seed, beliefs, ..RunOptions::default() };
        Ok(PreparedCase { workload, truth, options })
    }
}

fn unique(what: &str, names: &[&str]) -> Result<(), Failure> {
    match names.iter().enumerate().find(|(index, name)| names[..*index].contains(name)) {
        Some((_, name)) => Err(Failure::bad_input(format!("{what} {name} is named twice"))),
        None => Ok(()),
    }
}

fn read_table(data: &Path, name: TableName) -> Result<TableSource, Failure> {
    let gavel = data.join("gavel/simulation_throughputs.json");
    let (name, title, file, gpu) = match name {
        TableName::Lucid => ("lucid", "Lucid, RTX 3090", data.join("lucid/colocate_info.csv"), ""),
        TableName::V100 => ("v100", "Gavel, V100", gavel, ":gpu=v100"),
        TableName::P100 => ("p100", "Gavel, P100", gavel, ":gpu=p100"),
        TableName::K80 => ("k80", "Gavel, K80", gavel, ":gpu=k80"),
    };
    let table = PairTable::read(&format!("{}{gpu}", file.display()))?;
    let fingerprint = Fingerprint::of_file(&file)?;
    Ok(TableSource { name, title, table, fingerprint })
}

fn read_solo(file: &Path) -> Result<Option<SoloSource>, Failure> {
    if !file.exists() {
        return Ok(None);
    }
    let profiles = SoloProfiles::read(&file.display().to_string())?;
    Ok(Some(SoloSource { profiles, fingerprint: Fingerprint::of_file(file)? }))
}

fn read_named(args: &QualityArgs, name: TraceName) -> Result<TraceSource, Failure> {
    let plain = ReadOptions::default();
    let muri = |name: &str, title: &str, file: &str| {
        read_source(name, title, &args.data.join(file), CLUSTER, &plain)
    };
    let pollux = |name: &str, title: &str, file: &str| {
        read_source(name, title, &args.data.join(file), POLLUX_CLUSTER, &plain)
    };
    match name {
        TraceName::Window => {
            let partitions = args.data.join("venus/partitions.csv").display().to_string();
            let (file, title) = (args.data.join("venus/window.csv"), "26-day window");
            read_source("window", title, &file, &partitions, &plain)
        }
        TraceName::Muri1 => muri("muri1", "Muri 1", "muri/trace1.csv"),
        TraceName::Muri3 => muri("muri3", "Muri 3", "muri/trace3.csv"),
        TraceName::Pollux1 => pollux("pollux1", "Pollux 1", "pollux/workloads/workload-1.csv"),
        TraceName::Pollux2 => pollux("pollux2", "Pollux 2", "pollux/workloads/workload-2.csv"),
        TraceName::Pollux3 => pollux("pollux3", "Pollux 3", "pollux/workloads/workload-3.csv"),
        TraceName::Generated | TraceName::None => generated(args.seed),
    }
}

fn generated(seed: u64) -> Result<TraceSource, Failure> {
    let (jobs, gpus) = (GENERATED_JOBS, GENERATED_GPUS);
    let trace = generate(&GenerateOptions { jobs, gpus, load: 1.0, seed });
    Ok(TraceSource {
        name: "generated".to_owned(),
        title: "Generated".to_owned(),
        trace,
        file: "generated".to_owned(),
        cluster: Arc::new(clusters::cluster(CLUSTER)?),
        // Every fingerprint contains the program and the seed, and thereby the generated trace.
        fingerprint: Fingerprint::of([]),
    })
}

fn read_further(
    file: &Path,
    cluster: &str,
    tables: &[TableSource],
) -> Result<TraceSource, Failure> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let speeds = tables.iter().map(|source| &source.table.speeds).find(|speeds| !speeds.is_empty());
    let options = ReadOptions { speeds, ..ReadOptions::default() };
    read_source(&name, &name, file, cluster, &options)
}

fn read_source(
    name: &str,
    title: &str,
    file: &Path,
    cluster: &str,
    options: &ReadOptions<'_>,
) -> Result<TraceSource, Failure> {
    let trace = read(file, options)?;
    let described = clusters::cluster(cluster)?;
    let mut fingerprint = Fingerprint::of_file(file)?.with(Fingerprint::of([cluster.as_bytes()]));
    // A shorthand says all there is to say.
    let cluster = PathBuf::from(cluster);
    if cluster.exists() {
        fingerprint = fingerprint.with(Fingerprint::of_file(&cluster)?);
    }
    Ok(TraceSource {
        name: name.to_owned(),
        title: title.to_owned(),
        trace,
        file: file.display().to_string(),
        cluster: Arc::new(described),
        fingerprint,
    })
}

/// The same machines with GPUs of another size.
fn with_memory(cluster: &Cluster, memory: Memory) -> Cluster {
    let mut builder = ClusterBuilder::default();
    let types = cluster.types().iter();
    let kinds: Vec<_> = types.map(|kind| builder.gpu_type(&kind.name, kind.factor)).collect();
    for partition in cluster.partitions() {
        builder.partition(&partition.name);
        let nodes = partition.nodes.start as usize..partition.nodes.end as usize;
        for node in &cluster.nodes()[nodes] {
            let kind = cluster.gpu(GpuId(node.gpus.start)).kind;
            builder.node(node.gpus.end - node.gpus.start, kinds[kind.index()], memory);
        }
    }
    match cluster.partition_named(None) {
        Some(_) => builder.taking_every_job().build(),
        None => builder.build(),
    }
}
