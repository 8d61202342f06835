//! The nodes and GPUs of the partitions that we place jobs in, from `sinfo --json`.

use super::commands;
use super::jobs::number;
use super::syntax::{self, Gres};
use serde_json::Value;
use thiserror::Error;

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlurmNode {
    pub(super) name: String,
    pub(super) partitions: Vec<String>,
    /// The Gres Type of each of its GPUs, by index.
    pub(super) gpu_types: Vec<String>,
    /// Shards of each GPU, by index.
    pub(super) shards: Vec<u64>,
    /// CPUs and memory in MiB that no job has.
    pub(super) free_cpus: u64,
    pub(super) free_memory_mib: u64,
    pub(super) features: Vec<String>,
    /// It has no jobs.
    pub(super) is_idle: bool,
    /// Why it accepts no jobs; `None` if it does.
    pub(super) unavailable: Option<String>,
    /// What is wrong with the Gres configuration of its GPUs.
    pub(super) fault: Option<String>,
}

/// Why the nodes cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NodeListError {
    /// The output of `sinfo` has an unknown format.
    #[error("sinfo: its list of nodes cannot be read: {0}")]
    Unreadable(String),
    /// The partition has no GPUs.
    #[error("Slurm has no GPUs in partition {0}; see `tandem slurm install --print`")]
    NoGpus(String),
    /// The GPUs of a node cannot be told apart.
    #[error("node {node}: {fault}; see `tandem slurm install --print`")]
    Fault {
        /// The node.
        node: String,
        /// What is wrong.
        fault: String,
    },
}

/// Reads the output of `sinfo --json`.
pub(super) fn read(json: &[u8]) -> Result<Vec<SlurmNode>, NodeListError> {
    let unreadable = |error: &dyn std::fmt::Display| NodeListError::Unreadable(error.to_string());
    let document: Value = serde_json::from_slice(json).map_err(|error| unreadable(&error))?;
    let nodes = document.get("nodes").and_then(Value::as_array);
    let nodes = nodes.ok_or_else(|| unreadable(&"there is no list of nodes"))?;
    let mut listed: Vec<SlurmNode> = nodes.iter().filter_map(node).collect();
    listed.sort_by(|one, other| natural(&one.name).cmp(&natural(&other.name)));
    Ok(listed)
}

/// Lists Slurm's nodes.
pub(super) fn list() -> Result<Vec<SlurmNode>, super::SlurmError> {
    NodeLister::default().get()
}

/// Lists nodes by the program that has worked before.
#[derive(Debug, Default)]
pub(super) struct NodeLister {
    by_scontrol: bool,
}

impl NodeLister {
    pub(super) fn get(&mut self) -> Result<Vec<SlurmNode>, super::SlurmError> {
        if self.by_scontrol {
            let answer = commands::output("scontrol", &["show", "nodes", "--json"])?;
            return Ok(read(&answer)?);
        }
        let answer = commands::output("sinfo", &["--json"])?;
        match read(&answer) {
            Ok(nodes) => Ok(nodes),
            // Since 23.02 sinfo lists groups of nodes; scontrol lists the nodes.
            Err(error) => {
                let newer = commands::output("scontrol", &["show", "nodes", "--json"]);
                let nodes = newer.ok().and_then(|answer| read(&answer).ok()).ok_or(error)?;
                self.by_scontrol = true;
                Ok(nodes)
            }
        }
    }
}

/// The nodes of a partition that have GPUs. Those whose GPUs cannot be told apart are left out; an error if
/// there are no others.
pub(super) fn gpu_nodes(
    nodes: Vec<SlurmNode>,
    partition: &str,
) -> Result<Vec<SlurmNode>, NodeListError> {
    let is_used = |node: &SlurmNode| {
        let has_gpus = !node.gpu_types.is_empty() || node.fault.is_some();
        has_gpus && node.partitions.iter().any(|of| of == partition)
    };
    let (faulty, usable): (Vec<SlurmNode>, Vec<SlurmNode>) =
        nodes.into_iter().filter(is_used).partition(|node| node.fault.is_some());
    if usable.is_empty() {
        let fault = faulty.into_iter().find_map(|node| Some((node.name, node.fault?)));
        return Err(match fault {
            Some((node, fault)) => NodeListError::Fault { node, fault },
            None => NodeListError::NoGpus(partition.to_owned()),
        });
    }
    for SlurmNode { name, fault, .. } in &faulty {
        let fault = fault.as_deref().unwrap_or_default();
        tracing::warn!(
            "node {name}: {fault}; it is left out until the daemon is restarted; see `tandem slurm doctor`"
        );
    }
    Ok(usable)
}

/// What is wrong with nodes of a partition, which are left out.
pub(super) fn faults(nodes: &[SlurmNode], partition: &str) -> Vec<String> {
    let of = nodes.iter().filter(|node| node.partitions.iter().any(|of| of == partition));
    of.filter_map(|node| Some(format!("{}: {}", node.name, node.fault.as_ref()?))).collect()
}

/// Sort key of a node: `n10` comes after `n9`.
fn natural(name: &str) -> (String, u64, &str) {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (head, tail) = name.split_at(name.len() - digits);
    (head.to_owned(), tail.parse().unwrap_or(0), name)
}

fn node(node: &Value) -> Option<SlurmNode> {
    let text_of = |name: &str| node.get(name).and_then(Value::as_str).unwrap_or_default();
    let texts = |name: &str| -> Vec<String> {
        match node.get(name) {
            Some(Value::Array(list)) => {
                list.iter().filter_map(Value::as_str).map(str::to_uppercase).collect()
            }
            Some(Value::String(text)) => vec![text.to_uppercase()],
            _ => Vec::new(),
        }
    };
    let name = node.get("name")?.as_str()?.to_owned();
    let partitions = node.get("partitions").and_then(Value::as_array);
    let partitions = partitions.into_iter().flatten().filter_map(Value::as_str);
    let (gpu_types, shards, fault) = gpus(&syntax::gres(text_of("gres")));
    let mut states = texts("state");
    states.extend(texts("state_flags"));
    let number_of = |name: &str| number(node.get(name)).unwrap_or(0);
    let cpus = number(node.get("effective_cpus")).unwrap_or_else(|| number_of("cpus"));
    let features = node.get("active_features").or_else(|| node.get("features"));
    Some(SlurmNode {
        name,
        partitions: partitions.map(str::to_owned).collect(),
        gpu_types,
        shards,
        free_cpus: cpus.saturating_sub(number_of("alloc_cpus")),
        free_memory_mib: number_of("real_memory").saturating_sub(number_of("alloc_memory")),
        features: listed(features),
        is_idle: number_of("alloc_cpus") == 0,
        unavailable: unavailable(&states, text_of("reason")),
        fault,
    })
}

/// Names in a list, or in a text with commas.
fn listed(value: Option<&Value>) -> Vec<String> {
    let texts = match value {
        Some(Value::Array(texts)) => texts.iter().filter_map(Value::as_str).collect(),
        value => value.and_then(Value::as_str).into_iter().collect::<Vec<_>>(),
    };
    let names = texts.into_iter().flat_map(|text| text.split(','));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The Types of the GPUs by index, the shards of each, and what is wrong with the configuration.
fn gpus(gres: &[Gres]) -> (Vec<String>, Vec<u64>, Option<String>) {
    let gpus: Vec<&Gres> = gres.iter().filter(|one| one.name == "gpu" && one.count > 0).collect();
    let mut fault = None;
    let mut types = Vec::new();
    for gpu in &gpus {
        match &gpu.gres_type {
            Some(kind) if gpu.count == 1 && !types.contains(kind) => types.push(kind.clone()),
            _ => {
                fault = Some("its GPUs need a Type each, such as gpu:g0:1,gpu:g1:1".to_owned());
            }
        }
    }
    let shards: Vec<&Gres> = gres.iter().filter(|one| one.name == "shard").collect();
    // Before the node has registered its GPUs, Slurm has one pool of shards.
    let count = |kind: Option<&String>| {
        let of = shards.iter().filter(|one| one.gres_type.as_ref() == kind).map(|one| one.count);
        of.fold(0, u64::saturating_add)
    };
    let pool = count(None);
    let of = |kind: &String| (pool / types.len() as u64).saturating_add(count(Some(kind)));
    let each: Vec<u64> = types.iter().map(of).collect();
    if fault.is_none() && !types.is_empty() && each.iter().all(|&shards| shards == 0) {
        fault = Some("it has no shards".to_owned());
    }
    (types, each, fault)
}

/// Why a node in these states accepts no jobs.
fn unavailable(states: &[String], reason: &str) -> Option<String> {
    const UNAVAILABLE: [&str; 13] = [
        "DOWN",
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "FAIL",
        "FAILING",
        "NOT_RESPONDING",
        "MAINT",
        "RESERVED",
        "REBOOT_ISSUED",
        "REBOOT_REQUESTED",
        "UNKNOWN",
        "ERROR",
    ];
    let state = states.iter().find(|state| {
        UNAVAILABLE.iter().any(|name| state.trim_end_matches(['*', '$', '@', '~', '#']) == *name)
            || state.ends_with('*')
    })?;
    let state = state.to_lowercase();
    Some(if reason.is_empty() { state } else { format!("{state}: {reason}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gpu_needs_a_type_of_its_own() {
        let read = |text: &str| gpus(&syntax::gres(text));
        let (types, shards, fault) = read("gpu:g0:1,gpu:g1:1,shard:g0:100,shard:g1:100");
        assert_eq!((types.len(), shards, fault), (2, vec![100, 100], None));
        assert_eq!(read("gpu:g0:1,gpu:g1:1,shard:200").1, [100, 100]);
        assert_eq!(read("gpu:g0:1,gpu:g1:1,shard:g0:0,shard:g1:100").1, [0, 100]);
        assert!(read("gpu:a100:4,shard:400").2.is_some());
        assert!(read("gpu:4,shard:400").2.is_some());
        assert!(read("gpu:g0:1").2.is_some());
        assert_eq!(read(""), (Vec::new(), Vec::new(), None));
    }

    #[test]
    fn nodes_are_sorted_by_number() {
        let mut names = ["n10", "n9", "a", "n1"];
        names.sort_by_key(|name| natural(name));
        assert_eq!(names, ["a", "n1", "n9", "n10"]);
    }

    #[test]
    fn reads_the_nodes_of_22_05() {
        let nodes = read(include_bytes!("fixtures/sinfo-22.05.json")).unwrap();
        let [n0, n1] = &nodes[..] else { panic!("{nodes:?}") };
        assert_eq!((n0.name.as_str(), n1.name.as_str()), ("n0", "n1"));
        assert_eq!(n0.partitions, ["tandem", "plain"]);
        assert_eq!(
            (&n0.gpu_types[..], &n0.shards[..]),
            (&["g0", "g1"].map(str::to_owned)[..], &[100, 100][..])
        );
        assert_eq!((&n0.unavailable, &n0.fault), (&None, &None));
        assert_eq!(n1.unavailable.as_deref(), Some("drain: disk is full"));
    }

    #[test]
    fn reads_the_format_of_newer_versions() {
        // There sinfo lists groups of nodes, and scontrol is used instead.
        let groups = read(include_bytes!("fixtures/sinfo-24.05.json"));
        assert!(matches!(groups, Err(NodeListError::Unreadable(_))));
        let nodes = read(include_bytes!("fixtures/nodes-24.05.json")).unwrap();
        assert_eq!(nodes.len(), 2);
        assert_eq!((&nodes[0].shards[..], &nodes[0].unavailable), (&[100, 100][..], &None));
        assert_eq!(nodes[1].unavailable.as_deref(), Some("drain: disk is full"));
    }

    #[test]
    fn only_nodes_of_the_partition_with_gpus_are_used() {
        let node = |name: &str, partition: &str, gres: &str| {
            let json = serde_json::json!({ "name": name, "partitions": [partition], "gres": gres });
            super::node(&json).unwrap()
        };
        let good = "gpu:g0:1,shard:100";
        let nodes = vec![
            node("n0", "tandem", good),
            node("n1", "tandem", ""),
            node("n2", "plain", "gpu:4"),
        ];
        let names =
            |nodes: Vec<SlurmNode>| nodes.into_iter().map(|node| node.name).collect::<Vec<_>>();
        assert_eq!(gpu_nodes(nodes.clone(), "tandem").map(names), Ok(vec!["n0".to_owned()]));
        assert!(
            matches!(gpu_nodes(nodes.clone(), "plain"), Err(NodeListError::Fault { node, .. }) if node == "n2")
        );
        // A faulty node is left out.
        let mixed = vec![node("n0", "tandem", good), node("n1", "tandem", "gpu:4")];
        let faults = faults(&mixed, "tandem");
        assert!(faults.len() == 1 && faults[0].starts_with("n1: its GPUs need a Type each"));
        assert_eq!(gpu_nodes(mixed, "tandem").map(names), Ok(vec!["n0".to_owned()]));
        assert_eq!(gpu_nodes(nodes, "none"), Err(NodeListError::NoGpus("none".to_owned())));
    }

    proptest::proptest! {
        #[test]
        fn any_resources_are_read(text in "((gpu|shard)(:g[0-9]|:[a-z]{0,2})?(:[0-9]{0,20})?,?|\\PC){0,8}") {
            let json = serde_json::json!({ "nodes": [{ "name": "n0", "gres": text, "state": text }] });
            let nodes = read(json.to_string().as_bytes()).unwrap();
            proptest::prop_assert_eq!(nodes[0].gpu_types.len(), nodes[0].shards.len());
        }
    }

    #[test]
    fn unavailable_nodes_have_a_reason() {
        let states = |list: &[&str]| list.iter().map(|&state| state.to_owned()).collect::<Vec<_>>();
        assert_eq!(unavailable(&states(&["IDLE"]), ""), None);
        assert_eq!(
            unavailable(&states(&["IDLE", "DRAIN"]), "disk"),
            Some("drain: disk".to_owned())
        );
        assert_eq!(unavailable(&states(&["DOWN"]), ""), Some("down".to_owned()));
        assert_eq!(unavailable(&states(&["IDLE*"]), ""), Some("idle*".to_owned()));
    }
}
