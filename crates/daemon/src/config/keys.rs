//! Every key: its kind, default and description.

use super::resolve::Sources;
use serde_json::{Value, json};

/// The values that a key allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValueKind {
    /// A non-empty string.
    Text,
    /// A path; `~/` is the home folder.
    Path,
    /// An integer in this range.
    Integer(u64, u64),
    /// A number in this range.
    Number(f64, f64),
    /// `true` or `false`.
    Bool,
    /// One of these strings.
    OneOf(&'static [&'static str]),
}

/// The default of a key.
#[derive(Clone, Copy)]
pub(super) enum DefaultValue {
    Absent,
    Text(&'static str),
    Integer(u64),
    Number(f64),
    Bool(bool),
    /// Depends on the user and the environment.
    Computed(fn(&Sources) -> Value),
}

impl DefaultValue {
    /// The default as JSON; null is absent.
    pub(super) fn value(self, sources: &Sources) -> Value {
        match self {
            Self::Absent => Value::Null,
            Self::Text(text) => json!(text),
            Self::Integer(number) => json!(number),
            Self::Number(number) => json!(number),
            Self::Bool(value) => json!(value),
            Self::Computed(compute) => compute(sources),
        }
    }
}

/// One key.
pub(super) struct Key {
    /// `section.key`
    pub(super) name: &'static str,
    pub(super) kind: ValueKind,
    pub(super) default: DefaultValue,
    pub(super) help: &'static str,
}

const DAY_S: f64 = 86_400.0;

const fn key(
    name: &'static str,
    kind: ValueKind,
    default: DefaultValue,
    help: &'static str,
) -> Key {
    Key { name, kind, default, help }
}

/// All keys, in the order of the documentation.
#[rustfmt::skip] // One line per key.
pub(super) const KEYS: &[Key] = &[
    key("daemon.socket", ValueKind::Path, DefaultValue::Computed(Sources::default_socket), "unix socket of the daemon"),
    key("daemon.shares", ValueKind::Path, DefaultValue::Absent, "file of accounts, limits and qualities of service; equal shares if absent"),
    key("daemon.state", ValueKind::Path, DefaultValue::Computed(Sources::default_state), "folder of the daemon's store"),
    key("daemon.listen", ValueKind::Text, DefaultValue::Absent, "TCP address to listen on as well, for clients with a token"),
    key("daemon.web", ValueKind::Text, DefaultValue::Absent, "address of the dashboard over TLS, where users sign in with tokens"),
    key("daemon.tls", ValueKind::Bool, DefaultValue::Bool(true), "encrypt TCP; false is allowed on loopback addresses only"),
    key("daemon.tls_cert", ValueKind::Path, DefaultValue::Absent, "certificate chain in PEM; one that the daemon makes if absent"),
    key("daemon.tls_key", ValueKind::Path, DefaultValue::Absent, "key of the certificate in PEM"),
    key("daemon.operators", ValueKind::Text, DefaultValue::Absent, "users who are operators besides root and the daemon's own, separated by commas"),
    key("daemon.policy", ValueKind::Text, DefaultValue::Text("tandem"), "policy: NAME[:key=value,...]"),
    key("daemon.provider", ValueKind::OneOf(&["auto", "cpu", "nvidia", "fake", "slurm", "kubernetes"]), DefaultValue::Text("auto"), "where devices come from"),
    key("daemon.devices", ValueKind::Integer(0, 65_536), DefaultValue::Integer(0), "number of fake devices or cpu cores; 0 for all"),
    key("daemon.fake_memory_mib", ValueKind::Integer(1, 1 << 30), DefaultValue::Integer(24_576), "memory of a fake device"),
    key("daemon.kill_grace_s", ValueKind::Number(0.0, DAY_S), DefaultValue::Number(30.0), "time between SIGTERM and SIGKILL"),
    key("daemon.stop_grace_s", ValueKind::Number(0.0, DAY_S), DefaultValue::Number(60.0), "time that a preempted job has to save its state"),
    key("daemon.restore_s", ValueKind::Number(0.0, DAY_S), DefaultValue::Absent, "restore time of a preempted job; 1 on cpu, otherwise 40"),
    key("daemon.log", ValueKind::OneOf(&["error", "warn", "info", "debug", "trace"]), DefaultValue::Text("info"), "log level"),
    key("daemon.history_days", ValueKind::Integer(1, 1_000_000), DefaultValue::Absent, "days that ended jobs are kept"),
    key("daemon.webhooks", ValueKind::Bool, DefaultValue::Bool(true), "call webhooks, each with the permissions of the user of its job"),
    key("daemon.cgroups", ValueKind::OneOf(&["auto", "off"]), DefaultValue::Text("auto"), "control groups for jobs on cores, where the system allows it"),
    key("daemon.sendmail", ValueKind::Path, DefaultValue::Text("/usr/sbin/sendmail"), "program that sends the mail of jobs, run as their user"),
    key("daemon.smtp", ValueKind::Text, DefaultValue::Absent, "HOST:PORT of a mail server to use instead"),
    key("jobs.umask", ValueKind::Text, DefaultValue::Text("022"), "mask of permissions for files that jobs make, in octal"),
    key("jobs.open_files", ValueKind::Integer(16, 1 << 30), DefaultValue::Absent, "most open files of a process of a job; that of the daemon if absent"),
    key("jobs.processes", ValueKind::Integer(16, 1 << 30), DefaultValue::Absent, "most processes of the user of a job"),
    key("jobs.locked_mib", ValueKind::Integer(0, 1 << 30), DefaultValue::Absent, "most memory that a process of a job may lock"),
    key("jobs.core_mib", ValueKind::Integer(0, 1 << 30), DefaultValue::Absent, "largest core dump of a job"),
    key("client.host", ValueKind::Text, DefaultValue::Absent, "HOST:PORT of a daemon on TCP; http://HOST:PORT without TLS"),
    key("client.token_file", ValueKind::Path, DefaultValue::Absent, "file with the token for client.host"),
    key("client.ca_file", ValueKind::Path, DefaultValue::Absent, "certificates to trust instead of those of the system, such as the daemon's own"),
    key("learning.settle_s", ValueKind::Number(0.0, DAY_S), DefaultValue::Number(60.0), "a job is not co-located before its memory has been stable for this time"),
    key("learning.settle_steps", ValueKind::Integer(0, u32::MAX as u64), DefaultValue::Integer(100), "or for this many steps"),
    key("learning.window_steps", ValueKind::Integer(1, u32::MAX as u64), DefaultValue::Integer(50), "fewest steps in a window in which a rate is measured"),
    key("learning.window_s", ValueKind::Number(0.001, DAY_S), DefaultValue::Number(1.0), "shortest such window"),
    key("learning.sample_s", ValueKind::Number(0.01, DAY_S), DefaultValue::Number(1.0), "interval between two samples of the devices"),
    key("learning.class_arguments", ValueKind::Text, DefaultValue::Absent, "arguments that belong to the class of a job, besides those known to matter: NAME,..."),
    key("learning.class_ignore", ValueKind::Text, DefaultValue::Absent, "arguments that do not belong to the class of a job: NAME,..."),
    key("limits.jobs", ValueKind::Integer(1, 10_000_000), DefaultValue::Integer(1_000_000), "most jobs of all users that have not ended"),
    key("limits.jobs_per_user", ValueKind::Integer(1, 10_000_000), DefaultValue::Integer(100_000), "most jobs of a user that have not ended; limits per user do not hold for operators"),
    key("limits.planned_per_user", ValueKind::Integer(1, 1_000_000), DefaultValue::Integer(5_000), "most jobs of a user that are planned at a time; the others wait behind them"),
    key("limits.dependencies_per_user", ValueKind::Integer(1, 100_000_000), DefaultValue::Integer(200_000), "most dependencies of a user's jobs"),
    key("limits.webhooks_per_user", ValueKind::Integer(0, 10_000_000), DefaultValue::Integer(10_000), "most jobs of a user that have not ended and call a webhook"),
    key("limits.store_mib_per_user", ValueKind::Integer(1, 1 << 30), DefaultValue::Integer(256), "most MiB of commands and environments of a user's jobs that have not ended"),
    key("limits.history_mib_per_user", ValueKind::Integer(1, 1 << 30), DefaultValue::Integer(256), "MiB of a user's ended jobs beyond which the oldest are deleted"),
    key("limits.journal_mib", ValueKind::Integer(1, 1 << 20), DefaultValue::Integer(256), "MiB of inputs that are journalled after a start"),
    key("sharing.foreign", ValueKind::OneOf(&["avoid", "count"]), DefaultValue::Text("avoid"), "a device with foreign processes: avoid it, or count their memory"),
    key("sharing.enabled", ValueKind::Bool, DefaultValue::Bool(true), "jobs may share devices"),
    key("nvidia.library", ValueKind::Path, DefaultValue::Absent, "the NVML library"),
    key("nvidia.mps", ValueKind::Bool, DefaultValue::Bool(false), "share GPUs through the Multi-Process Service (MPS)"),
    key("nvidia.mps_control", ValueKind::Path, DefaultValue::Text("nvidia-cuda-mps-control"), "the MPS control program"),
    key("nvidia.pause", ValueKind::Bool, DefaultValue::Bool(false), "allow pausing processes on GPUs"),
    key("kubernetes.namespace", ValueKind::Text, DefaultValue::Text("tandem"), "namespace of Tandem's Lease"),
    key("kubernetes.job_memory_mib", ValueKind::Integer(0, 1 << 30), DefaultValue::Integer(0), "GPU memory of a pod without an annotation; 0 lets it run alone"),
    key("kubernetes.poll_s", ValueKind::Number(0.1, 3600.0), DefaultValue::Number(1.0), "interval between two lists of pods and claims"),
    key("slurm.partition", ValueKind::Text, DefaultValue::Text("tandem"), "Slurm partition whose GPU jobs Tandem places"),
    key("slurm.gpu_memory_mib", ValueKind::Integer(1, 1 << 30), DefaultValue::Integer(24_576), "memory of each GPU, which Slurm does not know"),
    key("slurm.job_memory_mib", ValueKind::Integer(0, 1 << 30), DefaultValue::Integer(0), "GPU memory of a job without a hint; 0 lets it run alone"),
    key("slurm.poll_s", ValueKind::Number(0.1, 3600.0), DefaultValue::Number(2.0), "longest interval between two polls of the queue; shorter while a poll takes little time"),
    key("slurm.reservation_s", ValueKind::Integer(10, 86_400), DefaultValue::Integer(300), "after this time without the daemon Slurm starts waiting jobs itself"),
    key("slurm.start_within_s", ValueKind::Integer(1, 86_400), DefaultValue::Integer(30), "a job that Slurm has not started on its GPU by then gives it back"),
    key("slurm.tries", ValueKind::Integer(1, 1000), DefaultValue::Integer(3), "after so many places that Slurm did not give, a job goes on as a plain Slurm job"),
    key("slurm.priority_window", ValueKind::Number(0.0, 1.0), DefaultValue::Number(0.1), "a job may start before others whose Slurm priority is higher by up to this part; 0: never, 1: always"),
    key("slurm.completions", ValueKind::Path, DefaultValue::Absent, "file of JobCompType=jobcomp/filetxt, for jobs that ended while the daemon was down"),
    key("slurm.listen", ValueKind::Text, DefaultValue::Absent, "TCP address for the relays of jobs on the nodes"),
    key("slurm.secret_file", ValueKind::Path, DefaultValue::Text("/etc/slurm/tandem/secret"), "file with the secret that relays share with the daemon"),
];

/// The most similar name, if one is similar enough for a suggestion.
pub(super) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = name.chars().count().max(3) / 2;
    let near = names
        .map(|other| (strsim::levenshtein(name, other), other))
        .filter(|&(distance, _)| distance <= most);
    near.min_by_key(|&(distance, _)| distance).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_found() {
        assert_eq!(nearest("sokcet", ["socket", "state"].into_iter()), Some("socket"));
        assert_eq!(nearest("zzzzzz", ["socket", "state"].into_iter()), None);
    }
}
