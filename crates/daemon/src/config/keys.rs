//! Every key: its kind, its default and what it is for.

use super::resolve::Sources;
use serde_json::{Value, json};

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValueKind {
    /// Any text but an empty one.
    Text,
    /// A path; `~/` is the home folder.
    Path,
    /// A whole number in this range.
    Integer(u64, u64),
    /// A number in this range.
    Number(f64, f64),
    /// `true` or `false`.
    Bool,
    /// One of these words.
    OneOf(&'static [&'static str]),
}

/// One key.
pub(super) struct Key {
    /// `section.key`
    pub(super) name: &'static str,
    pub(super) kind: ValueKind,
    /// Null is absent.
    pub(super) default: fn(&Sources) -> Value,
    pub(super) help: &'static str,
}

const DAY_S: f64 = 86_400.0;

const fn key(
    name: &'static str,
    kind: ValueKind,
    default: fn(&Sources) -> Value,
    help: &'static str,
) -> Key {
    Key { name, kind, default, help }
}

pub(super) const KEYS: &[Key] = &[
    key("daemon.socket", ValueKind::Path, Sources::default_socket, "unix socket of the daemon"),
    key("daemon.state", ValueKind::Path, Sources::default_state, "folder of the daemon's store"),
    key(
        "daemon.listen",
        ValueKind::Text,
        |_| Value::Null,
        "TCP address to listen on as well; needs token_file",
    ),
    key("daemon.token_file", ValueKind::Path, |_| Value::Null, "file of the token for TCP"),
    key("daemon.policy", ValueKind::Text, |_| json!("tandem"), "policy: NAME[:key=value,...]"),
    key(
        "daemon.provider",
        ValueKind::OneOf(&["auto", "cpu", "nvidia", "fake", "slurm"]),
        |_| json!("auto"),
        "where devices come from",
    ),
    key(
        "daemon.devices",
        ValueKind::Integer(0, 65_536),
        |_| json!(0),
        "devices of fake, cores of cpu; 0 is all there are",
    ),
    key(
        "daemon.fake_memory_mib",
        ValueKind::Integer(1, 1 << 30),
        |_| json!(24_576),
        "memory of a fake device",
    ),
    key(
        "daemon.kill_grace_s",
        ValueKind::Number(0.0, DAY_S),
        |_| json!(30.0),
        "from the request to end to the end by force",
    ),
    key(
        "daemon.stop_grace_s",
        ValueKind::Number(0.0, DAY_S),
        |_| json!(60.0),
        "what a job has to save its state when it is stopped",
    ),
    key(
        "daemon.restore_s",
        ValueKind::Number(0.0, DAY_S),
        |_| Value::Null,
        "what a stopped job needs before it makes progress again; 1 on cpu, else 40",
    ),
    key(
        "daemon.log",
        ValueKind::OneOf(&["error", "warn", "info", "debug", "trace"]),
        |_| json!("info"),
        "level of the log",
    ),
    key(
        "daemon.history_days",
        ValueKind::Integer(1, 1_000_000),
        |_| Value::Null,
        "days that jobs are remembered",
    ),
    key(
        "daemon.webhooks",
        ValueKind::Bool,
        |_| json!(true),
        "call the webhooks of jobs, each as the user whose job it is",
    ),
    key(
        "daemon.cgroups",
        ValueKind::OneOf(&["auto", "off"]),
        |_| json!("auto"),
        "control groups for jobs on cores, where the system allows it",
    ),
    key(
        "client.host",
        ValueKind::Text,
        |_| Value::Null,
        "HOST:PORT of a daemon that listens on TCP",
    ),
    key(
        "client.token_file",
        ValueKind::Path,
        |_| Value::Null,
        "file of the token; that of the daemon if absent",
    ),
    key(
        "learning.settle_s",
        ValueKind::Number(0.0, DAY_S),
        |_| json!(60.0),
        "no partner before memory has been flat for so long",
    ),
    key(
        "learning.settle_steps",
        ValueKind::Integer(0, u32::MAX as u64),
        |_| json!(100),
        "or for so many steps",
    ),
    key(
        "learning.window_steps",
        ValueKind::Integer(1, u32::MAX as u64),
        |_| json!(50),
        "steps of a window in which a rate is measured",
    ),
    key(
        "learning.window_s",
        ValueKind::Number(0.001, DAY_S),
        |_| json!(1.0),
        "least length of such a window",
    ),
    key(
        "learning.sample_s",
        ValueKind::Number(0.01, DAY_S),
        |_| json!(1.0),
        "time between two looks at the devices",
    ),
    key(
        "sharing.foreign",
        ValueKind::OneOf(&["avoid", "count"]),
        |_| json!("avoid"),
        "a device with strangers' processes: avoid it, or count their memory",
    ),
    key("sharing.enabled", ValueKind::Bool, |_| json!(true), "jobs may share devices"),
    key("nvidia.library", ValueKind::Path, |_| Value::Null, "the NVML library"),
    key("nvidia.mps", ValueKind::Bool, |_| json!(false), "share through the multi-process service"),
    key(
        "nvidia.mps_control",
        ValueKind::Path,
        |_| json!("nvidia-cuda-mps-control"),
        "the program that controls that service",
    ),
    key("nvidia.pause", ValueKind::Bool, |_| json!(false), "pause processes on GPUs"),
    key(
        "slurm.partition",
        ValueKind::Text,
        |_| json!("tandem"),
        "partition of Slurm whose GPU jobs Tandem places",
    ),
    key(
        "slurm.gpu_memory_mib",
        ValueKind::Integer(1, 1 << 30),
        |_| json!(24_576),
        "memory of each GPU, which Slurm does not know",
    ),
    key(
        "slurm.job_memory_mib",
        ValueKind::Integer(0, 1 << 30),
        |_| json!(0),
        "memory that a job takes of a GPU if it says nothing; 0 lets it run alone",
    ),
    key(
        "slurm.poll_s",
        ValueKind::Number(0.1, 3600.0),
        |_| json!(2.0),
        "time between two lists of jobs",
    ),
    key(
        "slurm.completions",
        ValueKind::Path,
        |_| Value::Null,
        "the file of JobCompType=jobcomp/filetxt, for jobs that ended while nobody looked",
    ),
    key(
        "slurm.listen",
        ValueKind::Text,
        |_| Value::Null,
        "TCP address at which jobs on the nodes report through their relays",
    ),
    key(
        "slurm.secret_file",
        ValueKind::Path,
        |_| json!("/etc/slurm/tandem/secret"),
        "file of the secret that relays and the daemon share",
    ),
];

/// The nearest of some names, if any is near enough to be meant.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = name.chars().count().max(3) / 2;
    let near =
        names.map(|other| (distance(name, other), other)).filter(|&(distance, _)| distance <= most);
    near.min_by_key(|&(distance, _)| distance).map(|(_, other)| other)
}

/// Characters to insert, drop or replace.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (above, character) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (index, &theirs) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(theirs != character);
            diagonal = row[index + 1];
            row[index + 1] = replaced.min(diagonal + 1).min(row[index] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
        assert_eq!(nearest("sokcet", ["socket", "state"].into_iter()), Some("socket"));
        assert_eq!(nearest("zzzzzz", ["socket", "state"].into_iter()), None);
    }
}
