//! The configuration: flags override the environment, then files, then defaults. Each value has its origin.

mod example;
mod keys;
mod resolve;
#[cfg(test)]
mod tests;
mod typed;

pub use example::{example, markdown};
pub use resolve::{ConfigError, Origin, Origins, ResolvedSetting, Sources};

use crate::client::Address;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tandem_backends::providers::Foreign;

/// The socket of a daemon that serves several users.
pub const SHARED_SOCKET: &str = "/run/tandem/daemon.sock";

/// All settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The daemon.
    pub daemon: DaemonConfig,
    /// The client.
    pub client: ClientConfig,
    /// The processes of jobs.
    pub jobs: JobsConfig,
    /// How job classes are learned.
    pub learning: LearningConfig,
    /// What users may have.
    pub limits: crate::limits::RequestLimits,
    /// When devices are shared.
    pub sharing: SharingConfig,
    /// NVIDIA's GPUs.
    pub nvidia: NvidiaConfig,
    /// `[slurm]`
    pub slurm: SlurmConfig,
    /// `[kubernetes]`
    pub kubernetes: KubernetesConfig,
}

/// `[daemon]`
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonConfig {
    /// Its unix socket.
    pub socket: PathBuf,
    /// The folder of the store.
    pub state: PathBuf,
    /// TCP address; no TCP if absent.
    pub listen: Option<String>,
    /// Address of the dashboard; not served if absent.
    pub web: Option<String>,
    /// The program that sends mail.
    pub sendmail: PathBuf,
    /// The server that sends mail instead.
    pub smtp: Option<String>,
    /// Accounts, limits and qualities of service.
    pub shares: Option<PathBuf>,
    /// TCP is encrypted.
    pub tls: bool,
    /// The certificate chain.
    pub tls_cert: Option<PathBuf>,
    /// Its key.
    pub tls_key: Option<PathBuf>,
    /// Users who are operators besides root and the user of the daemon.
    pub operators: Vec<String>,
    /// `NAME[:key=value,...]`
    pub policy: String,
    /// Where the devices come from.
    pub provider: ProviderKind,
    /// Number of `fake` devices or `cpu` cores; 0 for all.
    pub devices: u32,
    /// Memory of each device of `fake`.
    pub fake_memory_mib: u64,
    /// Time between SIGTERM and SIGKILL.
    pub kill_grace_s: f64,
    /// Time that a preempted job has to save its state.
    pub stop_grace_s: f64,
    /// Restore time of a preempted job; depends on the provider if absent.
    pub restore_s: Option<f64>,
    /// Log level.
    pub log: String,
    /// Days that ended jobs are kept; for ever if absent.
    pub history_days: Option<u64>,
    /// Webhooks are enabled.
    pub webhooks: bool,
    /// Jobs run in control groups where the system allows it.
    pub cgroups: bool,
}

impl DaemonConfig {
    /// Restore time of a preempted job with that provider.
    pub fn restore_s_with(&self, provider: &str) -> f64 {
        self.restore_s.unwrap_or(if provider == "cpu" { 1.0 } else { 40.0 })
    }
}

/// Where devices come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderKind {
    /// GPUs if there are any, otherwise cores.
    Auto,
    /// One core is one device.
    Cpu,
    /// NVIDIA's GPUs.
    Nvidia,
    /// Simulated devices, for tests.
    Fake,
    /// The GPUs of a Slurm cluster, which runs the jobs.
    Slurm,
    /// The GPUs of a Kubernetes cluster, which runs the pods.
    Kubernetes,
}

/// `[jobs]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobsConfig {
    /// Mask of permissions for files, in octal.
    pub umask: String,
    /// Most open files.
    pub open_files: Option<u64>,
    /// Most processes of the user.
    pub processes: Option<u64>,
    /// Most memory that a process locks.
    pub locked_mib: Option<u64>,
    /// Largest core dump.
    pub core_mib: Option<u64>,
}

/// `[client]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Host and port of a daemon on TCP; the unix socket if absent.
    pub host: Option<String>,
    /// File with the token.
    pub token_file: Option<PathBuf>,
    /// Certificates to trust instead of those of the system.
    pub ca_file: Option<PathBuf>,
}

/// `[learning]`
#[derive(Clone, Debug, PartialEq)]
pub struct LearningConfig {
    /// A job is not co-located before its memory has been stable for this time,
    pub settle_s: f64,
    /// or for this many steps.
    pub settle_steps: u64,
    /// Fewest steps in a window in which a rate is measured.
    pub window_steps: u64,
    /// Shortest such window.
    pub window_s: f64,
    /// Interval between two samples of the devices.
    pub sample_s: f64,
    /// Arguments of commands that belong to the class of a job, besides those that are known to matter.
    pub class_arguments: Option<String>,
    /// Arguments that do not, although they would.
    pub class_ignore: Option<String>,
}

/// `[sharing]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharingConfig {
    /// What foreign processes on a device mean.
    pub foreign: Foreign,
    /// Jobs may share devices.
    pub enabled: bool,
}

/// `[nvidia]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvidiaConfig {
    /// The NVML library; found by the dynamic loader if absent.
    pub library: Option<PathBuf>,
    /// Share GPUs through the Multi-Process Service (MPS).
    pub mps: bool,
    /// The MPS control program.
    pub mps_control: PathBuf,
    /// Allow pausing processes on GPUs.
    pub pause: bool,
}

/// `[slurm]`
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmConfig {
    /// The partition whose GPU jobs Tandem places.
    pub partition: String,
    /// Memory of each GPU.
    pub gpu_memory_mib: u64,
    /// GPU memory of a job without a hint; 0 lets it run alone.
    pub job_memory_mib: u64,
    /// Interval between two polls of the queue.
    pub poll_s: f64,
    /// After this time without the daemon Slurm starts waiting jobs itself.
    pub reservation_s: u64,
    /// A job that has not begun on its GPU by then gives it back.
    pub start_within_s: u64,
    /// Places that Slurm did not give, after which a job goes on as a plain Slurm job.
    pub tries: u64,
    /// A job may start before others whose Slurm priority is higher by up to this part.
    pub priority_window: f64,
    /// The job completion log of Slurm.
    pub completions: Option<PathBuf>,
    /// TCP address for the relays of jobs on the nodes.
    pub listen: Option<String>,
    /// File with the secret that relays share with the daemon.
    pub secret_file: PathBuf,
}

/// `[kubernetes]`
#[derive(Clone, Debug, PartialEq)]
pub struct KubernetesConfig {
    /// The namespace of Tandem's Lease.
    pub namespace: String,
    /// GPU memory of a pod without an annotation; 0 lets it run alone.
    pub job_memory_mib: u64,
    /// Interval between two lists of pods and claims.
    pub poll_s: f64,
}

impl Config {
    /// Loads flags, the environment and the default files; `flags` are pairs of `section.key` and value.
    pub fn load(flags: &[(&str, String)]) -> Result<(Config, Origins), ConfigError> {
        let mut sources = Sources::of_process();
        sources.flags =
            flags.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        Self::resolve(&sources)
    }

    /// The address of the daemon for a client: the own daemon of the user, or the shared one of the machine.
    pub fn client_address(&self, origins: &Origins) -> Result<Address, ConfigError> {
        if let Some(host) = &self.client.host {
            let host = host.trim_end_matches('/');
            if let Some(host) = host.strip_prefix("http://") {
                return Ok(Address::Tcp(host.to_owned()));
            }
            let host = host.strip_prefix("https://").unwrap_or(host).to_owned();
            return Ok(Address::Tls { host, authorities: self.client.ca_file.clone() });
        }
        let socket = &self.daemon.socket;
        if *origins.of("daemon.socket") == Origin::Default {
            if !socket.exists() && Path::new(SHARED_SOCKET).exists() {
                return Ok(Address::Unix(SHARED_SOCKET.into()));
            }
            check_folder(socket)?;
        }
        Ok(Address::Unix(socket.clone()))
    }

    /// The token that a client sends.
    pub fn client_token(&self) -> Result<Option<String>, ConfigError> {
        let file = self.client.token_file.as_ref();
        let Some(file) = file.filter(|_| self.client.host.is_some()) else { return Ok(None) };
        let token = std::fs::read_to_string(file).map_err(|cause| ConfigError::Unreadable {
            file: file.clone(),
            cause: cause.to_string(),
        })?;
        Ok(Some(token.trim().to_owned()))
    }
}

/// Rejects a default socket in a folder of another user, who could impersonate the daemon.
fn check_folder(socket: &Path) -> Result<(), ConfigError> {
    let Some(folder) = socket.parent() else { return Ok(()) };
    let Ok(metadata) = folder.symlink_metadata() else { return Ok(()) };
    let own = rustix::process::geteuid().as_raw();
    let is_trusted = metadata.uid() == own || metadata.uid() == 0;
    if metadata.is_dir() && is_trusted && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(ConfigError::UnsafeFolder { folder: folder.to_owned() })
}
