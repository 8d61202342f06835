//! Cluster descriptions: a shorthand, a `partition,nodes` CSV or a TOML file.

use crate::one_line::OneLine;
use crate::shares::{
    AccountEntry, FairShareEntry, LimitsEntry, ReservationEntry, SharesFile, UserEntry,
};
use serde::Deserialize;
use std::path::Path;
use tandem_core::{Cluster, ClusterBuilder, Memory, Ratio};
use thiserror::Error;

/// Memory of a GPU where the description does not state it.
pub const DEFAULT_MEMORY: Memory = Memory::from_mib(24_576);
/// GPUs per node of a `partition,nodes` CSV.
const CSV_GPUS_PER_NODE: u32 = 8;
/// Upper limit of a cluster, so that a typing error does not take all memory.
const GPUS_MAX: u64 = 4_000_000;
const MEMORY_MIB_MAX: u64 = 1 << 40;

/// What is wrong with a cluster description.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// Neither a shorthand nor a readable file.
    #[error(
        "cluster '{}': cannot be read: {cause}; give NODESxGPUS[:MIB], a partition,nodes CSV or a TOML file",
        OneLine(spec)
    )]
    Io {
        /// The description.
        spec: String,
        /// The cause.
        cause: std::io::Error,
    },
    /// A line of a file.
    #[error("{}:{line}: {field}: {}", OneLine(file), OneLine(problem))]
    Line {
        /// The file.
        file: String,
        /// The line, from one.
        line: usize,
        /// The field.
        field: String,
        /// What is wrong.
        problem: String,
    },
    /// The description as a whole.
    #[error("cluster '{}': {}", OneLine(spec), OneLine(problem))]
    Whole {
        /// The description.
        spec: String,
        /// What is wrong.
        problem: String,
    },
}

/// Reads `NODESxGPUS[:MIB]`, a `partition,nodes` CSV or a TOML file.
pub fn cluster(spec: &str) -> Result<Cluster, ClusterError> {
    Ok(cluster_and_shares(spec)?.0)
}

/// Reads a cluster, and the shares between users that a TOML file may state.
pub fn cluster_and_shares(spec: &str) -> Result<(Cluster, SharesFile), ClusterError> {
    if let Some(shorthand) = shorthand(spec) {
        return Ok((shorthand?, SharesFile::default()));
    }
    let io = |cause| ClusterError::Io { spec: spec.to_owned(), cause };
    let bytes = std::fs::read(Path::new(spec)).map_err(io)?;
    let text = String::from_utf8(bytes).map_err(|_| ClusterError::Whole {
        spec: spec.to_owned(),
        problem: "is not UTF-8".to_owned(),
    })?;
    parse(&text, spec)
}

/// Reads the text of a cluster file; the name of the file says its format.
pub(crate) fn parse(text: &str, spec: &str) -> Result<(Cluster, SharesFile), ClusterError> {
    let (cluster, shares) = if spec.ends_with(".toml") {
        toml(text, spec)?
    } else {
        (csv(text, spec)?, SharesFile::default())
    };
    if cluster.gpus().is_empty() {
        return Err(whole(spec, "has no GPUs"));
    }
    Ok((cluster, shares))
}

fn whole(spec: &str, problem: &str) -> ClusterError {
    ClusterError::Whole { spec: spec.to_owned(), problem: problem.to_owned() }
}

/// `None` if `spec` does not look like a shorthand.
fn shorthand(spec: &str) -> Option<Result<Cluster, ClusterError>> {
    let (size, memory) = match spec.split_once(':') {
        Some((size, memory)) => (size, Some(memory)),
        None => (spec, None),
    };
    let (nodes, gpus) = size.split_once('x')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(nodes) || !is_number(gpus) {
        return None;
    }
    let parsed = (|| {
        let memory = match memory {
            None => DEFAULT_MEMORY,
            Some(text) => Memory::from_mib(text.parse().ok().filter(|&mib| mib <= MEMORY_MIB_MAX)?),
        };
        let (nodes, gpus): (u32, u32) = (nodes.parse().ok()?, gpus.parse().ok()?);
        let total = u64::from(nodes) * u64::from(gpus);
        (1..=GPUS_MAX).contains(&total).then(|| Cluster::uniform(nodes, gpus, memory))
    })();
    let problem = "is not NODESxGPUS[:MIB] with 1 to 4000000 GPUs, such as 8x8 or 8x8:49140";
    Some(parsed.ok_or_else(|| whole(spec, problem)))
}

fn csv(text: &str, file: &str) -> Result<Cluster, ClusterError> {
    let error = |line: usize, field: &str, problem: String| ClusterError::Line {
        file: file.to_owned(),
        line,
        field: field.to_owned(),
        problem,
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let header = lines.next().map_or("", |(_, line)| line);
    if header != "partition,nodes" {
        let problem = format!("header is '{header}', a cluster CSV has partition,nodes");
        return Err(error(1, "header", problem));
    }
    let mut builder = ClusterBuilder::default();
    let kind = builder.gpu_type("gpu", Ratio::ONE);
    let mut names = Vec::new();
    let mut gpus = 0;
    for (line, row) in lines.filter(|(_, row)| !row.is_empty()) {
        let (name, nodes) = row
            .split_once(',')
            .ok_or_else(|| error(line, "row", format!("'{row}' is not partition,nodes")))?;
        let count: u32 = nodes
            .trim()
            .parse()
            .map_err(|_| error(line, "nodes", format!("'{nodes}' is not a number of nodes")))?;
        if name.is_empty() || names.contains(&name) {
            return Err(error(line, "partition", format!("'{name}' is empty or named twice")));
        }
        gpus += u64::from(count) * u64::from(CSV_GPUS_PER_NODE);
        if count == 0 || gpus > GPUS_MAX {
            return Err(error(line, "nodes", format!("'{nodes}' is none or too many")));
        }
        names.push(name);
        builder.partition(name);
        for _ in 0..count {
            builder.node(CSV_GPUS_PER_NODE, kind, DEFAULT_MEMORY);
        }
    }
    Ok(builder.build())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    gpu_type: Vec<TypeEntry>,
    partition: Vec<PartitionEntry>,
    fair_share: Option<FairShareEntry>,
    #[serde(default)]
    limits: LimitsEntry,
    #[serde(default)]
    account: Vec<AccountEntry>,
    #[serde(default)]
    user: Vec<UserEntry>,
    #[serde(default)]
    reservation: Vec<ReservationEntry>,
}

impl File {
    fn shares(&mut self) -> SharesFile {
        SharesFile {
            shared_classes: Vec::new(),
            fair_share: self.fair_share,
            limits: self.limits,
            account: std::mem::take(&mut self.account),
            user: std::mem::take(&mut self.user),
            qos: Vec::new(),
            reservation: std::mem::take(&mut self.reservation),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypeEntry {
    name: String,
    factor: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PartitionEntry {
    /// Absent in a cluster with one partition that takes every job.
    name: Option<String>,
    nodes: Vec<NodesEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NodesEntry {
    #[serde(default = "one")]
    count: toml::Spanned<u32>,
    gpus: toml::Spanned<u32>,
    gpu_type: Option<toml::Spanned<String>>,
    memory_mib: Option<toml::Spanned<u64>>,
}

fn one() -> toml::Spanned<u32> {
    toml::Spanned::new(0..0, 1)
}

fn toml(text: &str, file: &str) -> Result<(Cluster, SharesFile), ClusterError> {
    let line_of = |offset: usize| text[..offset].matches('\n').count() + 1;
    let error = |offset: usize, field: &str, problem: String| ClusterError::Line {
        file: file.to_owned(),
        line: line_of(offset),
        field: field.to_owned(),
        problem,
    };
    let mut parsed: File = ::toml::from_str(text).map_err(|cause| {
        let offset = cause.span().map_or(0, |span| span.start);
        error(offset, "toml", cause.message().replace('\n', "; "))
    })?;
    let shares = parsed.shares();
    if let Some(problem) = shares.problem() {
        return Err(whole(file, &problem));
    }
    let mut builder = ClusterBuilder::default();
    let mut types = Vec::new();
    for entry in &parsed.gpu_type {
        if !(0.001..=1000.0).contains(&entry.factor) {
            let problem = format!("factor of gpu_type '{}' is not in 0.001..1000", entry.name);
            return Err(whole(file, &problem));
        }
        types.push((
            entry.name.as_str(),
            builder.gpu_type(&entry.name, Ratio::from_f64(entry.factor)),
        ));
    }
    if types.is_empty() {
        types.push(("gpu", builder.gpu_type("gpu", Ratio::ONE)));
    }
    let takes_all = parsed.partition.len() == 1 && parsed.partition[0].name.is_none();
    let mut names: Vec<&str> = Vec::new();
    let mut total = 0;
    for partition in &parsed.partition {
        let name = match partition.name.as_deref() {
            Some(name) => name,
            None if takes_all => "all",
            None => return Err(whole(file, "has several partitions and one without a name")),
        };
        if names.contains(&name) {
            return Err(whole(file, &format!("names partition '{name}' twice")));
        }
        names.push(name);
        builder.partition(name);
        for nodes in &partition.nodes {
            let kind = match &nodes.gpu_type {
                None => types[0].1,
                Some(wanted) => {
                    let found = types.iter().find(|(name, _)| name == wanted.get_ref());
                    let problem = format!("'{}' is not declared as [[gpu_type]]", wanted.get_ref());
                    found.ok_or_else(|| error(wanted.span().start, "gpu_type", problem))?.1
                }
            };
            let memory = match &nodes.memory_mib {
                None => DEFAULT_MEMORY,
                Some(mib) if *mib.get_ref() <= MEMORY_MIB_MAX => Memory::from_mib(*mib.get_ref()),
                Some(mib) => {
                    return Err(error(mib.span().start, "memory_mib", "is too large".to_owned()));
                }
            };
            let (count, gpus) = (*nodes.count.get_ref(), *nodes.gpus.get_ref());
            total += u64::from(count) * u64::from(gpus);
            if count == 0 || gpus == 0 || total > GPUS_MAX {
                let problem = format!("{count} nodes of {gpus} GPUs are none or too many");
                return Err(error(nodes.gpus.span().start, "gpus", problem));
            }
            for _ in 0..count {
                builder.node(gpus, kind, memory);
            }
        }
    }
    let cluster = if takes_all { builder.taking_every_job().build() } else { builder.build() };
    Ok((cluster, shares))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorthands() {
        let described = cluster("8x4:49140").unwrap();
        assert_eq!((described.nodes().len(), described.gpus().len()), (8, 32));
        assert_eq!(described.gpus()[0].memory, Memory::from_mib(49_140));
        assert!(described.partition_named(Some("whatever")).is_some());
        for bad in ["0x8", "8x0", "8x8:", "8x8:x", "99999999999x1", "4000001x1"] {
            assert!(cluster(bad).unwrap_err().to_string().starts_with("cluster '"), "{bad}");
        }
    }

    #[test]
    fn partition_csv_errors_name_line_and_field() {
        let message = |text| csv(text, "p.csv").unwrap_err().to_string();
        assert_eq!(
            message("a,b\n"),
            "p.csv:1: header: header is 'a,b', a cluster CSV has partition,nodes"
        );
        assert_eq!(
            message("partition,nodes\nx,y\n"),
            "p.csv:2: nodes: 'y' is not a number of nodes"
        );
        assert_eq!(message("partition,nodes\nx\n"), "p.csv:2: row: 'x' is not partition,nodes");
        assert_eq!(
            message("partition,nodes\nx,1\nx,1\n"),
            "p.csv:3: partition: 'x' is empty or named twice"
        );
        assert_eq!(message("partition,nodes\nx,0\n"), "p.csv:2: nodes: '0' is none or too many");
    }

    #[test]
    fn toml_describes_types_and_partitions() {
        let text = "
[[gpu_type]]
name = \"v100\"
factor = 1.0
[[gpu_type]]
name = \"k80\"
factor = 0.25
[[partition]]
name = \"old\"
nodes = [{ count = 2, gpus = 4, gpu_type = \"k80\", memory_mib = 12000 }, { gpus = 8 }]
[[partition]]
name = \"new\"
nodes = [{ gpus = 8 }]
";
        let (described, _) = toml(text, "c.toml").unwrap();
        assert_eq!(described.gpus().len(), 24);
        assert_eq!(described.partition_named(Some("new")).unwrap().0, 1);
        assert_eq!(described.partition_named(None), None);
        assert_eq!(described.types()[1].factor, Ratio::new(1, 4));
        assert_eq!(described.partitions()[0].fewest_nodes(12), 2);
    }

    #[test]
    fn toml_errors_name_the_line() {
        let message = |text| toml(text, "c.toml").unwrap_err().to_string();
        let unknown = message("[[partition]]\nnodes = [{ gpus = 8, gpu_type = \"x\" }]\n");
        assert_eq!(unknown, "c.toml:2: gpu_type: 'x' is not declared as [[gpu_type]]");
        assert!(
            message("[[partition]]\nnodes = [{ gpu = 8 }]\n")
                .starts_with("c.toml:2: toml: unknown field")
        );
        assert!(message("nonsense").starts_with("c.toml:1: toml: "));
        assert!(!message("nonsense").contains('\n'));
    }
}
