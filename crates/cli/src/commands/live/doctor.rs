//! `tandem doctor`: checks the machine and the configuration, with advice.

use super::configuration;
use crate::commands::print;
use crate::failure::Failure;
use crate::live_args::ClientArgs;
use crate::output::{self, TableCell, clean};
use comfy_table::Color;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tandem_backends::local::Cgroups;
use tandem_daemon::api::live_types::HealthCheck;
use tandem_daemon::client::{Client, ClientError};
use tandem_daemon::config::{Config, Origins, ProviderKind};

/// No machine that runs this has an earlier clock: 2026-01-01.
const EARLIEST_S: u64 = 1_767_225_600;
/// Larger differences between two clocks of one machine are a fault.
const SKEW_MAX: Duration = Duration::from_secs(60);
/// Where NVIDIA's library is, besides what `LD_LIBRARY_PATH` says.
const LIBRARY_FOLDERS: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckStatus {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    status: CheckStatus,
    found: String,
    /// What to do.
    advice: String,
}

fn finding(
    check: &'static str,
    status: CheckStatus,
    found: impl Into<String>,
    advice: &str,
) -> Finding {
    Finding { check, status, found: found.into(), advice: advice.to_owned() }
}

pub(super) fn run(args: &ClientArgs) -> Result<(), Failure> {
    let mut findings = Vec::new();
    match configuration(args) {
        Ok((config, origins)) => {
            findings.push(finding("configuration", CheckStatus::Ok, "no mistake in it", ""));
            let (found, groups) = daemon(&config, &origins);
            findings.extend(found);
            findings.push(state_folder(&config.daemon.state));
            if config.daemon.provider == ProviderKind::Slurm {
                findings.extend(slurm(&config));
            } else {
                findings.push(nvml(&config));
                findings.push(mps(&config));
                findings.push(cgroups(&config, groups));
            }
        }
        Err(Failure::Said { message, .. }) => {
            findings.push(finding("configuration", CheckStatus::Fail, message, "correct it"));
        }
        Err(failure) => return Err(failure),
    }
    findings.push(clock());
    findings.push(python());
    report(&findings, args)?;
    let failed = findings.iter().any(|finding| finding.status == CheckStatus::Fail);
    if failed { Err(Failure::Exit(1)) } else { Ok(()) }
}

fn report(findings: &[Finding], args: &ClientArgs) -> Result<(), Failure> {
    if args.json {
        return print(&serde_json::json!({ "schema": 1, "checks": findings }).to_string());
    }
    let rows = findings.iter().map(|finding| {
        let (word, color) = match finding.status {
            CheckStatus::Ok => ("ok", Color::Green),
            CheckStatus::Warn => ("warn", Color::Yellow),
            CheckStatus::Fail => ("fail", Color::Red),
        };
        let status = TableCell::colored(word, Some(color));
        vec![
            finding.check.into(),
            status,
            clean(&finding.found).into(),
            clean(&finding.advice).into(),
        ]
    });
    print(&output::table(
        &["check", "", "~found", "~what to do"],
        rows.collect(),
        args.color.is_on(),
    ))
}

/// Socket, daemon and version, and what the daemon says about its control groups.
fn daemon(config: &Config, origins: &Origins) -> (Vec<Finding>, Option<String>) {
    let address = match config.client_address(origins) {
        Ok(address) => address,
        Err(error) => {
            let advice = "remove that folder";
            return (vec![finding("socket", CheckStatus::Fail, error.to_string(), advice)], None);
        }
    };
    let token = match config.client_token() {
        Ok(token) => token,
        Err(error) => {
            let advice = "correct token_file";
            return (vec![finding("token", CheckStatus::Fail, error.to_string(), advice)], None);
        }
    };
    let answer = Client::new(address.clone(), token)
        .and_then(|mut client| client.info().map(|info| (info, unhealthy(&mut client))));
    match answer {
        Ok((info, unhealthy)) => {
            let own = env!("CARGO_PKG_VERSION");
            let text = format!(
                "{address}, process {}, policy {}, {} {} devices",
                info.pid, info.policy, info.devices, info.provider
            );
            let version = if info.version == own {
                finding("version", CheckStatus::Ok, own, "")
            } else {
                let found = format!("the daemon's is {}, ours {own}", info.version);
                finding(
                    "version",
                    CheckStatus::Warn,
                    found,
                    "restart the daemon; jobs go on meanwhile",
                )
            };
            let mut found = vec![finding("daemon", CheckStatus::Ok, text, ""), version];
            found.extend(unhealthy);
            (found, Some(info.cgroups.clone()))
        }
        Err(error @ ClientError::Unreachable { .. }) => {
            let ClientError::Unreachable { address, cause } = error else {
                return (Vec::new(), None);
            };
            let advice = if cause == "permission denied" {
                "ask the owner of the daemon for access"
            } else {
                "start it with: tandem daemon start"
            };
            (
                vec![finding("daemon", CheckStatus::Warn, format!("{address}: {cause}"), advice)],
                None,
            )
        }
        Err(error) => {
            let advice = "look at the daemon's log";
            (vec![finding("daemon", CheckStatus::Fail, error.to_string(), advice)], None)
        }
    }
}

/// What the daemon found wrong with itself.
fn unhealthy(client: &mut Client) -> Vec<Finding> {
    let told = |check: HealthCheck| {
        let (status, advice) = match check.name.as_str() {
            "Store" | "Disk" => (CheckStatus::Fail, "make room on the disk of the state folder"),
            "GPUs" => (CheckStatus::Warn, "tandem gpus says why"),
            _ => (CheckStatus::Warn, "look at the daemon's log"),
        };
        finding("health", status, format!("{}: {}", check.name, check.text), advice)
    };
    super::failed_checks(client).into_iter().map(told).collect()
}

/// The daemon creates the folder, so its nearest existing ancestor must be writable.
fn state_folder(state: &Path) -> Finding {
    let shown = state.display().to_string();
    let advice = "set daemon.state to a folder of yours";
    let Some(folder) = state.ancestors().find(|folder| folder.exists()) else {
        return finding("state", CheckStatus::Fail, format!("{shown}: no such folder"), advice);
    };
    let probe = tempfile::Builder::new().prefix(".tandem-doctor-").tempfile_in(folder);
    let probe = match probe {
        Ok(probe) => probe,
        Err(cause) => {
            return finding(
                "state",
                CheckStatus::Fail,
                format!("{}: {cause}", folder.display()),
                advice,
            );
        }
    };
    let written = probe.as_file().metadata().and_then(|metadata| metadata.modified());
    let skew = written.ok().map(|written| {
        let now = SystemTime::now();
        now.duration_since(written).or_else(|_| written.duration_since(now)).unwrap_or_default()
    });
    match skew {
        Some(skew) if skew > SKEW_MAX => {
            let found = format!("{shown}: its clock is {} s off", skew.as_secs());
            finding("state", CheckStatus::Warn, found, "put daemon.state on a disk of this machine")
        }
        _ => finding("state", CheckStatus::Ok, format!("{shown} can be written"), ""),
    }
}

/// The Slurm cluster.
fn slurm(config: &Config) -> Vec<Finding> {
    let checks = tandem_backends::slurm::check(&config.slurm.partition);
    let told = |check: tandem_backends::slurm::SetupCheck| match check.found {
        Ok(found) => finding(check.name, CheckStatus::Ok, found, ""),
        Err(fault) => {
            let (found, advice) = fault.split_once("; ").unwrap_or((&fault, ""));
            finding(check.name, CheckStatus::Fail, found, advice)
        }
    };
    checks.into_iter().map(told).collect()
}

/// Searches for the library without loading it.
fn nvml(config: &Config) -> Finding {
    let wanted = config.daemon.provider == ProviderKind::Nvidia;
    let missing = if wanted { CheckStatus::Fail } else { CheckStatus::Ok };
    let library = match &config.nvidia.library {
        Some(path) => Some(path.clone()).filter(|path| path.exists()),
        None => {
            let own = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
            let folders = own.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from);
            let folders = folders.chain(LIBRARY_FOLDERS.iter().map(PathBuf::from));
            folders.map(|folder| folder.join("libnvidia-ml.so.1")).find(|path| path.exists())
        }
    };
    let driver =
        Path::new("/proc/driver/nvidia/version").exists() || Path::new("/dev/dxg").exists();
    match (library, driver) {
        (Some(library), true) => {
            finding("provider", CheckStatus::Ok, format!("nvidia: {}", library.display()), "")
        }
        (Some(library), false) => {
            let found = format!("{}, but no driver is loaded", library.display());
            let advice = "load NVIDIA's driver, or use CPU cores: daemon.provider = \"cpu\"";
            finding(
                "provider",
                if wanted { CheckStatus::Fail } else { CheckStatus::Warn },
                found,
                advice,
            )
        }
        (None, true) => {
            let advice = "install libnvidia-ml.so.1, or set nvidia.library";
            let status = if wanted { CheckStatus::Fail } else { CheckStatus::Warn };
            finding("provider", status, "NVIDIA's driver without its library", advice)
        }
        (None, false) => {
            let advice =
                if wanted { "install NVIDIA's driver, or set daemon.provider" } else { "" };
            finding("provider", missing, "no NVIDIA GPU; CPU cores are the devices", advice)
        }
    }
}

fn mps(config: &Config) -> Finding {
    let program = &config.nvidia.mps_control;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = if program.components().count() > 1 {
        Some(program.clone()).filter(|program| program.exists())
    } else {
        std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
    };
    match (found, config.nvidia.mps) {
        (Some(found), _) => finding("MPS", CheckStatus::Ok, found.display().to_string(), ""),
        (None, true) => {
            let found = format!("{} is not there", program.display());
            finding(
                "MPS",
                CheckStatus::Fail,
                found,
                "install it, set nvidia.mps_control, or nvidia.mps = false",
            )
        }
        (None, false) => finding("MPS", CheckStatus::Ok, "not there, and not asked for", ""),
    }
}

/// The cgroups that the daemon found; without a daemon, those that it would find.
fn cgroups(config: &Config, daemon: Option<String>) -> Finding {
    let found = match daemon.filter(|found| !found.is_empty()) {
        Some(found) => found,
        None if !config.daemon.cgroups => "none: switched off".to_owned(),
        None => Cgroups::find().to_string(),
    };
    let chosen = ["none: switched off", "none: they do not limit"];
    let complete = found.starts_with('v') && !found.contains(", no memory: ");
    if complete || chosen.iter().any(|reason| found.starts_with(reason)) {
        return finding("cgroups", CheckStatus::Ok, found, "");
    }
    let advice = "limits are only advisory; for more, run the daemon as a service with Delegate=yes and DelegateSubgroup=tandem-daemon";
    finding("cgroups", CheckStatus::Warn, found, advice)
}

fn clock() -> Finding {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if now < EARLIEST_S {
        return finding(
            "clock",
            CheckStatus::Fail,
            "it is in the past",
            "set the clock of the machine",
        );
    }
    finding("clock", CheckStatus::Ok, "plausible", "")
}

/// Run in a folder without another module named `tandem`.
fn python() -> Finding {
    let program = "import tandem; print(getattr(tandem, '__version__', '')); tandem.Job";
    let mut command = Command::new("python3");
    command.args(["-c", program]).current_dir("/").stdin(Stdio::null());
    let advice = "only for jobs that report steps: pip install tandem-gpu";
    match command.output() {
        Ok(output) if output.status.success() => {
            let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            finding("python", CheckStatus::Ok, format!("module tandem {version}").trim_end(), "")
        }
        Ok(_) => finding("python", CheckStatus::Warn, "python3 has no module tandem", advice),
        Err(_) => finding("python", CheckStatus::Warn, "there is no python3", advice),
    }
}
