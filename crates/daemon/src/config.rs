//! The configuration: flag, then environment, then files, then defaults; each value knows its origin.

mod keys;
mod resolve;
#[cfg(test)]
mod tests;
mod typed;

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
    /// Who asks it.
    pub client: ClientConfig,
    /// How classes are learnt.
    pub learning: LearningConfig,
    /// When devices are shared.
    pub sharing: SharingConfig,
    /// NVIDIA's GPUs.
    pub nvidia: NvidiaConfig,
    /// `[slurm]`
    pub slurm: SlurmConfig,
}

/// `[daemon]`
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonConfig {
    /// Its unix socket.
    pub socket: PathBuf,
    /// The folder of its store.
    pub state: PathBuf,
    /// TCP address; off if absent.
    pub listen: Option<String>,
    /// File of the token for TCP.
    pub token_file: Option<PathBuf>,
    /// `NAME[:key=value,...]`
    pub policy: String,
    /// Where the devices come from.
    pub provider: ProviderKind,
    /// Devices of `fake`, cores of `cpu`; 0 is all there are.
    pub devices: u32,
    /// Memory of each device of `fake`.
    pub fake_memory_mib: u64,
    /// Time between the request to end and the end by force.
    pub kill_grace_s: f64,
    /// Time that a job has to save its state when it is stopped.
    pub stop_grace_s: f64,
    /// What a stopped job needs before it makes progress again; by provider if absent.
    pub restore_s: Option<f64>,
    /// Level of the log.
    pub log: String,
    /// Days that jobs are remembered; for ever if absent.
    pub history_days: Option<u64>,
    /// Webhooks are called.
    pub webhooks: bool,
    /// Runs get control groups where the system allows it.
    pub cgroups: bool,
}

impl DaemonConfig {
    /// What a stopped job needs before it makes progress again, with that provider.
    pub fn restore_s_with(&self, provider: &str) -> f64 {
        self.restore_s.unwrap_or(if provider == "cpu" { 1.0 } else { 40.0 })
    }
}

/// Where devices come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderKind {
    /// GPUs if there are any, else cores.
    Auto,
    /// One core is one device.
    Cpu,
    /// NVIDIA's GPUs.
    Nvidia,
    /// Devices that are only said to be there.
    Fake,
    /// Those of a Slurm cluster, which runs the jobs.
    Slurm,
}

/// `[client]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// Host and port of a daemon that listens on TCP; the socket is used if absent.
    pub host: Option<String>,
    /// File of the token; that of the daemon if absent.
    pub token_file: Option<PathBuf>,
}

/// `[learning]`
#[derive(Clone, Debug, PartialEq)]
pub struct LearningConfig {
    /// No partner joins before a job's memory has been flat for so long.
    pub settle_s: f64,
    /// Or for so many steps.
    pub settle_steps: u64,
    /// Steps of a window in which a rate is measured.
    pub window_steps: u64,
    /// The least length of such a window.
    pub window_s: f64,
    /// Time between two looks at the devices.
    pub sample_s: f64,
}

/// `[sharing]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharingConfig {
    /// What strangers' processes on a device mean.
    pub foreign: Foreign,
    /// Jobs may share devices at all.
    pub enabled: bool,
}

/// `[nvidia]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvidiaConfig {
    /// The NVML library; looked for by the system's loader if absent.
    pub library: Option<PathBuf>,
    /// Share through the multi-process service.
    pub mps: bool,
    /// The program that controls it.
    pub mps_control: PathBuf,
    /// Pause processes on GPUs.
    pub pause: bool,
}

/// `[slurm]`
#[derive(Clone, Debug, PartialEq)]
pub struct SlurmConfig {
    /// The partition whose GPU jobs Tandem places.
    pub partition: String,
    /// Memory of each GPU.
    pub gpu_memory_mib: u64,
    /// Memory that a job takes of a GPU if it says nothing; 0 lets it run alone.
    pub job_memory_mib: u64,
    /// Time between two lists of jobs.
    pub poll_s: f64,
    /// The file in which Slurm writes down jobs that are over.
    pub completions: Option<PathBuf>,
    /// Where relays of jobs on the nodes reach the daemon.
    pub listen: Option<String>,
    /// The file of the secret that relays and the daemon share.
    pub secret_file: PathBuf,
}

impl Config {
    /// From the process's environment and the usual files; `flags` are `section.key` and value.
    pub fn load(flags: &[(&str, String)]) -> Result<(Config, Origins), ConfigError> {
        let mut sources = Sources::of_process();
        sources.flags =
            flags.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        Self::resolve(&sources)
    }

    /// Where a client finds its daemon. One that has none of its own uses that of the machine.
    pub fn client_address(&self, origins: &Origins) -> Result<Address, ConfigError> {
        if let Some(host) = &self.client.host {
            let host = host.strip_prefix("http://").unwrap_or(host).trim_end_matches('/');
            return Ok(Address::Tcp(host.to_owned()));
        }
        let socket = &self.daemon.socket;
        if *origins.of("daemon.socket") == Origin::Default {
            if !socket.exists() && Path::new(SHARED_SOCKET).exists() {
                return Ok(Address::Unix(SHARED_SOCKET.into()));
            }
            own_folder(socket)?;
        }
        Ok(Address::Unix(socket.clone()))
    }

    /// The token that a client shows.
    pub fn client_token(&self) -> Result<Option<String>, ConfigError> {
        let file = self.client.token_file.as_ref().or(self.daemon.token_file.as_ref());
        let Some(file) = file.filter(|_| self.client.host.is_some()) else { return Ok(None) };
        let token = std::fs::read_to_string(file).map_err(|cause| ConfigError::Unreadable {
            file: file.clone(),
            cause: cause.to_string(),
        })?;
        Ok(Some(token.trim().to_owned()))
    }
}

/// In a folder that everybody may write to, anybody could listen in the daemon's place.
fn own_folder(socket: &Path) -> Result<(), ConfigError> {
    let Some(folder) = socket.parent().filter(|folder| folder.starts_with("/tmp")) else {
        return Ok(());
    };
    let Ok(metadata) = folder.symlink_metadata() else { return Ok(()) };
    let own = rustix::process::getuid().as_raw();
    if metadata.is_dir() && metadata.uid() == own && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(ConfigError::NotOurs { folder: folder.to_owned() })
}
