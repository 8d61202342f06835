//! Typed settings.

use super::resolve::Origins;
use super::{
    ClientConfig, Config, DaemonConfig, JobsConfig, KubernetesConfig, LearningConfig, NvidiaConfig,
    ProviderKind, SharingConfig, SlurmConfig,
};
use crate::limits::RequestLimits;
use serde_json::Value;
use std::path::PathBuf;
use tandem_backends::providers::Foreign;

/// Converts validated values to their types.
pub(super) fn typed(origins: &Origins) -> Config {
    let value = |name: &str| {
        origins.0.iter().find(|setting| setting.key == name).map(|setting| &setting.value)
    };
    let text = |name: &str| value(name).and_then(Value::as_str).map(str::to_owned);
    let path = |name: &str| text(name).map(PathBuf::from);
    let whole = |name: &str| value(name).and_then(Value::as_u64);
    let number = |name: &str| value(name).and_then(Value::as_f64);
    let switch = |name: &str| value(name).and_then(Value::as_bool).unwrap_or_default();
    Config {
        daemon: DaemonConfig {
            socket: path("daemon.socket").unwrap_or_default(),
            state: path("daemon.state").unwrap_or_default(),
            listen: text("daemon.listen"),
            web: text("daemon.web"),
            sendmail: path("daemon.sendmail").unwrap_or_default(),
            smtp: text("daemon.smtp"),
            shares: path("daemon.shares"),
            tls: switch("daemon.tls"),
            tls_cert: path("daemon.tls_cert"),
            tls_key: path("daemon.tls_key"),
            operators: text("daemon.operators").map_or_else(Vec::new, |names| {
                names.split(',').map(|name| name.trim().to_owned()).collect()
            }),
            policy: text("daemon.policy").unwrap_or_default(),
            provider: match text("daemon.provider").as_deref() {
                Some("cpu") => ProviderKind::Cpu,
                Some("nvidia") => ProviderKind::Nvidia,
                Some("fake") => ProviderKind::Fake,
                Some("slurm") => ProviderKind::Slurm,
                Some("kubernetes") => ProviderKind::Kubernetes,
                _ => ProviderKind::Auto,
            },
            devices: whole("daemon.devices")
                .and_then(|count| u32::try_from(count).ok())
                .unwrap_or_default(),
            fake_memory_mib: whole("daemon.fake_memory_mib").unwrap_or_default(),
            kill_grace_s: number("daemon.kill_grace_s").unwrap_or_default(),
            stop_grace_s: number("daemon.stop_grace_s").unwrap_or_default(),
            restore_s: number("daemon.restore_s"),
            log: text("daemon.log").unwrap_or_default(),
            history_days: whole("daemon.history_days"),
            webhooks: switch("daemon.webhooks"),
            cgroups: text("daemon.cgroups").as_deref() != Some("off"),
        },
        client: ClientConfig {
            host: text("client.host"),
            token_file: path("client.token_file"),
            ca_file: path("client.ca_file"),
        },
        jobs: jobs(origins),
        learning: LearningConfig {
            settle_s: number("learning.settle_s").unwrap_or_default(),
            settle_steps: whole("learning.settle_steps").unwrap_or_default(),
            window_steps: whole("learning.window_steps").unwrap_or_default(),
            window_s: number("learning.window_s").unwrap_or_default(),
            sample_s: number("learning.sample_s").unwrap_or_default(),
            class_arguments: text("learning.class_arguments"),
            class_ignore: text("learning.class_ignore"),
        },
        limits: limits(&whole),
        sharing: SharingConfig {
            foreign: match text("sharing.foreign").as_deref() {
                Some("count") => Foreign::Count,
                _ => Foreign::Avoid,
            },
            enabled: switch("sharing.enabled"),
        },
        nvidia: nvidia(&path, &switch),
        kubernetes: kubernetes(&text, &whole, &number),
        slurm: slurm(&text, &path, &whole, &number),
    }
}

/// `[jobs]`
fn jobs(origins: &Origins) -> JobsConfig {
    let value = |name: &str| {
        origins.0.iter().find(|setting| setting.key == name).map(|setting| &setting.value)
    };
    let whole = |name: &str| value(name).and_then(Value::as_u64);
    JobsConfig {
        umask: value("jobs.umask").and_then(Value::as_str).unwrap_or_default().to_owned(),
        open_files: whole("jobs.open_files"),
        processes: whole("jobs.processes"),
        locked_mib: whole("jobs.locked_mib"),
        core_mib: whole("jobs.core_mib"),
    }
}

fn limits(whole: &dyn Fn(&str) -> Option<u64>) -> RequestLimits {
    let limit = |name: &str| whole(&format!("limits.{name}")).unwrap_or_default();
    RequestLimits {
        jobs: limit("jobs"),
        jobs_per_user: limit("jobs_per_user"),
        planned_per_user: u32::try_from(limit("planned_per_user")).unwrap_or(u32::MAX),
        dependencies_per_user: limit("dependencies_per_user"),
        webhooks_per_user: limit("webhooks_per_user"),
        store_mib_per_user: limit("store_mib_per_user"),
        history_mib_per_user: limit("history_mib_per_user"),
        journal_mib: limit("journal_mib"),
    }
}

fn nvidia(path: &dyn Fn(&str) -> Option<PathBuf>, switch: &dyn Fn(&str) -> bool) -> NvidiaConfig {
    NvidiaConfig {
        library: path("nvidia.library"),
        mps: switch("nvidia.mps"),
        mps_control: path("nvidia.mps_control").unwrap_or_default(),
        pause: switch("nvidia.pause"),
    }
}

/// `[slurm]`
fn slurm(
    text: &dyn Fn(&str) -> Option<String>,
    path: &dyn Fn(&str) -> Option<PathBuf>,
    whole: &dyn Fn(&str) -> Option<u64>,
    number: &dyn Fn(&str) -> Option<f64>,
) -> SlurmConfig {
    SlurmConfig {
        partition: text("slurm.partition").unwrap_or_default(),
        gpu_memory_mib: whole("slurm.gpu_memory_mib").unwrap_or_default(),
        job_memory_mib: whole("slurm.job_memory_mib").unwrap_or_default(),
        poll_s: number("slurm.poll_s").unwrap_or_default(),
        reservation_s: whole("slurm.reservation_s").unwrap_or_default(),
        start_within_s: whole("slurm.start_within_s").unwrap_or_default(),
        tries: whole("slurm.tries").unwrap_or_default(),
        priority_window: number("slurm.priority_window").unwrap_or_default(),
        completions: path("slurm.completions"),
        listen: text("slurm.listen"),
        secret_file: path("slurm.secret_file").unwrap_or_default(),
    }
}

/// `[kubernetes]`
fn kubernetes(
    text: &dyn Fn(&str) -> Option<String>,
    whole: &dyn Fn(&str) -> Option<u64>,
    number: &dyn Fn(&str) -> Option<f64>,
) -> KubernetesConfig {
    KubernetesConfig {
        namespace: text("kubernetes.namespace").unwrap_or_default(),
        job_memory_mib: whole("kubernetes.job_memory_mib").unwrap_or_default(),
        poll_s: number("kubernetes.poll_s").unwrap_or_default(),
    }
}
