//! The order of the nodes, which numbers the devices. It is kept in a file: jobs that run while nodes are added,
//! removed or changed keep the numbers of their devices when the daemon is started again.

use super::nodes::SlurmNode;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::Path;

/// Why a node that Slurm once had accepts no jobs.
const GONE: &str = "Slurm no longer lists it";

/// A node that had devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownNode {
    name: String,
    gpu_types: Vec<String>,
}

/// Puts the listed nodes in the order of the known ones; new ones follow. A known node that is not listed, or
/// has other GPUs now, keeps the numbers of its devices, which are unavailable.
pub(super) fn in_order(known: Vec<KnownNode>, listed: Vec<SlurmNode>) -> Vec<SlurmNode> {
    let mut listed: Vec<Option<SlurmNode>> = listed.into_iter().map(Some).collect();
    let mut ordered = Vec::with_capacity(listed.len());
    for KnownNode { name, gpu_types } in known {
        let is_same = |node: &SlurmNode| node.name == name && node.gpu_types == gpu_types;
        let found = listed.iter_mut().find(|node| node.as_ref().is_some_and(is_same));
        ordered.push(found.and_then(Option::take).unwrap_or_else(|| gone(name, gpu_types)));
    }
    // Two nodes of one name would be confused.
    for node in listed.iter().flatten() {
        for before in ordered.iter_mut().filter(|before| before.name == node.name) {
            before.name.push_str(" before its GPUs changed");
        }
    }
    ordered.extend(listed.into_iter().flatten());
    ordered
}

fn gone(name: String, gpu_types: Vec<String>) -> SlurmNode {
    SlurmNode {
        name,
        partitions: Vec::new(),
        shards: vec![0; gpu_types.len()],
        gpu_types,
        free_cpus: 0,
        free_memory_mib: 0,
        features: Vec::new(),
        is_idle: false,
        unavailable: Some(GONE.to_owned()),
        fault: None,
    }
}

/// Reads the file; without it no node is known.
pub(super) fn read(file: &Path) -> io::Result<Vec<KnownNode>> {
    match fs::read(file) {
        Ok(text) => Ok(serde_json::from_slice(&text)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Writes the file, never by half.
pub(super) fn write(file: &Path, nodes: &[SlurmNode]) -> io::Result<()> {
    let known =
        |node: &SlurmNode| KnownNode { name: node.name.clone(), gpu_types: node.gpu_types.clone() };
    let known: Vec<KnownNode> = nodes.iter().map(known).collect();
    let draft = file.with_extension("new");
    fs::write(&draft, serde_json::to_vec(&known)?)?;
    fs::rename(&draft, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, gpus: usize) -> SlurmNode {
        let gpu_types = (0..gpus).map(|gpu| format!("g{gpu}")).collect();
        SlurmNode { unavailable: None, ..gone(name.to_owned(), gpu_types) }
    }

    fn after(listed: &[SlurmNode], file: &Path) -> Vec<(String, bool)> {
        let ordered = in_order(read(file).unwrap(), listed.to_vec());
        write(file, &ordered).unwrap();
        ordered.into_iter().map(|node| (node.name, node.unavailable.is_none())).collect()
    }

    #[test]
    fn devices_keep_their_numbers_when_nodes_come_and_go() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes.json");
        let names = |nodes: Vec<(String, bool)>| {
            let shown =
                |(name, is_there): (String, bool)| if is_there { name } else { format!("-{name}") };
            nodes.into_iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(names(after(&[node("b", 2), node("c", 2)], &file)), ["b", "c"]);
        // A node that sorts before the others follows them.
        let grown = [node("a", 1), node("b", 2), node("c", 2)];
        assert_eq!(names(after(&grown, &file)), ["b", "c", "a"]);
        // One that is removed keeps its place, and gets it back.
        assert_eq!(names(after(&[node("a", 1), node("c", 2)], &file)), ["-b", "c", "a"]);
        assert_eq!(names(after(&grown, &file)), ["b", "c", "a"]);
        // One with other GPUs has new devices.
        let changed = [node("a", 1), node("b", 4), node("c", 2)];
        let expected = ["-b before its GPUs changed", "c", "a", "b"];
        assert_eq!(names(after(&changed, &file)), expected);
        assert_eq!(names(after(&changed, &file)), expected);
    }

    #[test]
    fn a_damaged_file_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes.json");
        fs::write(&file, "[{").unwrap();
        assert!(read(&file).is_err());
    }
}
