//! `tandem daemon`: from the configuration to a running daemon; and the two hidden commands of every run.

use crate::daemon_args::DaemonArgs;
use crate::failure::Failure;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use tandem_backends::providers::cpu::Cpu;
use tandem_backends::providers::fake::Fake;
use tandem_backends::providers::nvidia::{MpsOptions, Nvidia, NvidiaOptions};
use tandem_backends::{ProcessLimits, Provider, ProviderError, local, relay, slurm};
use tandem_daemon::class::ClassRules;
use tandem_daemon::config::{Config, ProviderKind};
use tandem_daemon::daemon::{self, BackendChoice, DaemonOptions};
use tandem_daemon::mail::Mailer;
use tandem_daemon::meter::MeterOptions;
use tandem_daemon::relays::RelayOptions;
use tandem_daemon::scheduler::People;
use tandem_daemon::tls::CertificateFiles;
use tandem_policies::PolicySpec;
use tracing_subscriber::filter::LevelFilter;

pub(super) fn daemon(args: &DaemonArgs) -> Result<(), Failure> {
    if let Some(control) = &args.control {
        return super::daemon_control::run(control);
    }
    if args.detached {
        // Leaves the terminal, so that the daemon outlives it.
        let _ = rustix::process::setsid();
    }
    let (config, _) = Config::load(&args.flags.flags())?;
    start_log(&config.daemon.log)?;
    let policy = PolicySpec::parse(&config.daemon.policy)?;
    let backend = backend(&config, &policy)?;
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    let options = DaemonOptions {
        state: config.daemon.state.clone(),
        socket: config.daemon.socket.clone(),
        listen: address("daemon.listen", config.daemon.listen.as_deref())?,
        web: address("daemon.web", config.daemon.web.as_deref())?,
        people: people(&config)?,
        mailer: Some(match &config.daemon.smtp {
            Some(server) => Mailer::Smtp(server.clone()),
            None => Mailer::Sendmail(config.daemon.sendmail.clone()),
        }),
        process: process_limits(&config)?,
        tls: config.daemon.tls,
        certificate: certificate(&config)?,
        operators: config.daemon.operators.clone(),
        share: config.sharing.enabled,
        supervisor: vec!["/proc/self/exe".into()],
        kill_grace: seconds(config.daemon.kill_grace_s),
        stop_grace: seconds(config.daemon.stop_grace_s),
        restore_s: config.daemon.restore_s_with(backend.name()),
        meter: MeterOptions {
            settle_s: config.learning.settle_s,
            settle_steps: config.learning.settle_steps,
            window_steps: config.learning.window_steps,
            window_s: config.learning.window_s,
        },
        class_rules: ClassRules::new(
            config.learning.class_arguments.as_deref(),
            config.learning.class_ignore.as_deref(),
        ),
        sample_every: seconds(config.learning.sample_s),
        foreign: config.sharing.foreign,
        history: config.daemon.history_days.map(|days| Duration::from_secs(days * 86_400)),
        limits: config.limits.clone(),
        webhooks: config.daemon.webhooks,
        relays: relays(&config)?,
        cgroups: config.daemon.cgroups,
        policy,
    };
    let name = backend.name();
    daemon::run(&options, backend, || greet(&options, name))?;
    Ok(())
}

/// The address of a key, if it is set.
fn address(key: &str, text: Option<&str>) -> Result<Option<SocketAddr>, Failure> {
    let parse = |text: &str| {
        let message = format!("{key}: '{text}' is not of the form 127.0.0.1:7007");
        text.parse().map_err(|_| Failure::bad_input(message))
    };
    text.map(parse).transpose()
}

/// Logs to standard error from this level up.
fn start_log(level: &str) -> Result<(), Failure> {
    let level: LevelFilter = level
        .parse()
        .map_err(|error| Failure::bad_input(format!("daemon.log: '{level}': {error}")))?;
    // A full disk, where the log cannot be written, does not stop the daemon.
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        // A log that goes to a file is read by people and programs later.
        .with_ansi(std::io::stderr().is_terminal())
        .log_internal_errors(false)
        .init();
    Ok(())
}

fn greet(options: &DaemonOptions, provider: &str) {
    let devices = match provider {
        "cpu" => "CPU cores as devices: real processes, real sharing",
        "fake" => "fake GPUs: real processes on devices that exist only as numbers",
        "slurm" => "jobs of Slurm; users submit with sbatch",
        "kubernetes" => "pods of Kubernetes; users submit with kubectl",
        _ => "NVIDIA GPUs",
    };
    eprintln!("tandem: ready at {} ({devices})", options.socket.display());
    if let Some(address) = options.listen {
        let scheme = if options.tls { "https" } else { "http" };
        eprintln!("tandem: and at {scheme}://{address} for clients with a token (tandem token)");
        if options.tls && options.certificate.is_none() {
            let own = CertificateFiles::own(&options.state).certificate;
            eprintln!("tandem: clients trust it by --ca-file with a copy of {}", own.display());
        }
    }
    if let Some(address) = options.web {
        eprintln!("tandem: dashboard at https://{address}/, sign in with a token (tandem token)");
    }
}

/// Shares between users; a cluster has its own unless a file says otherwise.
fn people(config: &Config) -> Result<People, Failure> {
    let file = config.daemon.shares.as_deref();
    let is_cluster =
        matches!(config.daemon.provider, ProviderKind::Slurm | ProviderKind::Kubernetes);
    if file.is_none() && is_cluster {
        return Ok(People::default());
    }
    tandem_daemon::people::read(file).map_err(Failure::bad_input)
}

/// Mask and limits of the processes of jobs.
fn process_limits(config: &Config) -> Result<ProcessLimits, Failure> {
    let text = &config.jobs.umask;
    let umask = u32::from_str_radix(text, 8).ok().filter(|mask| *mask <= 0o777);
    let wrong =
        || Failure::bad_input(format!("jobs.umask: '{text}' is not a mask; give 022 or 077"));
    Ok(ProcessLimits {
        umask: umask.ok_or_else(wrong)?,
        open_files: config.jobs.open_files,
        processes: config.jobs.processes,
        locked_bytes: config.jobs.locked_mib.map(|mib| mib << 20),
        core_bytes: config.jobs.core_mib.map(|mib| mib << 20),
    })
}

/// The configured certificate.
fn certificate(config: &Config) -> Result<Option<CertificateFiles>, Failure> {
    match (config.daemon.tls_cert.clone(), config.daemon.tls_key.clone()) {
        (Some(certificate), Some(key)) => Ok(Some(CertificateFiles { certificate, key })),
        (None, None) => Ok(None),
        _ => Err(Failure::bad_input("daemon.tls_cert and daemon.tls_key: give both or none")),
    }
}

/// The address for reports of jobs on Slurm's nodes.
fn relays(config: &Config) -> Result<Option<RelayOptions>, Failure> {
    let Some(listen) = &config.slurm.listen else { return Ok(None) };
    let listen = listen.parse().map_err(|_| {
        Failure::bad_input(format!("slurm.listen: '{listen}' is not of the form 0.0.0.0:7008"))
    })?;
    let file = &config.slurm.secret_file;
    let secret = relay::secret(file).map_err(|error| {
        let file = file.display();
        Failure::bad_input(format!("{file}: {error}; tandem slurm install makes one"))
    })?;
    Ok(Some(RelayOptions { listen, secret }))
}

/// The back end that carries out decisions.
fn backend(config: &Config, policy: &PolicySpec) -> Result<BackendChoice, Failure> {
    let tenants_max = if config.sharing.enabled { policy.entry.tenants_max } else { 1 };
    match config.daemon.provider {
        ProviderKind::Slurm => {}
        ProviderKind::Kubernetes => return kubernetes_backend(config, tenants_max as u64),
        _ => return Ok(BackendChoice::Local(provider(config)?)),
    }
    let options = slurm::SlurmOptions {
        partition: config.slurm.partition.clone(),
        tenants_max: tenants_max as u64,
        gpu_memory_bytes: config.slurm.gpu_memory_mib << 20,
        poll_every: Duration::from_secs_f64(config.slurm.poll_s),
        reservation: Duration::from_secs(config.slurm.reservation_s),
        start_within: Duration::from_secs(config.slurm.start_within_s),
        tries_max: u32::try_from(config.slurm.tries).unwrap_or(u32::MAX),
        priority_window: config.slurm.priority_window,
        known_nodes: config.daemon.state.join("slurm-nodes.json"),
        completions: config.slurm.completions.clone(),
    };
    let job_memory_mib = Some(config.slurm.job_memory_mib).filter(|&mib| mib > 0);
    Ok(BackendChoice::Slurm { options, job_memory_bytes: job_memory_mib.map(|mib| mib << 20) })
}

#[cfg(feature = "kubernetes")]
fn kubernetes_backend(config: &Config, tenants_max: u64) -> Result<BackendChoice, Failure> {
    let options = tandem_backends::kubernetes::KubernetesOptions {
        tenants_max,
        poll_every: Duration::from_secs_f64(config.kubernetes.poll_s),
        namespace: config.kubernetes.namespace.clone(),
    };
    let job_memory_mib = Some(config.kubernetes.job_memory_mib).filter(|&mib| mib > 0);
    let job_memory_bytes = job_memory_mib.map(|mib| mib << 20);
    Ok(BackendChoice::Kubernetes { options, job_memory_bytes })
}

#[cfg(not(feature = "kubernetes"))]
fn kubernetes_backend(_: &Config, _: u64) -> Result<BackendChoice, Failure> {
    Err(super::kube::not_built())
}

/// The configured devices; by default GPUs if there are any, else CPU cores.
fn provider(config: &Config) -> Result<Box<dyn Provider>, Failure> {
    let count = (config.daemon.devices > 0).then_some(config.daemon.devices as usize);
    let cpu = || Ok::<Box<dyn Provider>, ProviderError>(Box::new(Cpu::new(count)?));
    let nvidia = || {
        let mps = config.nvidia.mps.then(|| MpsOptions {
            control: config.nvidia.mps_control.clone(),
            dir: config.daemon.state.join("mps"),
        });
        let options = NvidiaOptions {
            lib_path: config.nvidia.library.clone(),
            mps,
            pause: config.nvidia.pause,
        };
        Ok::<Box<dyn Provider>, ProviderError>(Box::new(Nvidia::open(options)?))
    };
    let made = match config.daemon.provider {
        ProviderKind::Cpu => cpu(),
        ProviderKind::Nvidia => nvidia(),
        ProviderKind::Fake => {
            let count = if config.daemon.devices > 0 { config.daemon.devices } else { 4 };
            let memory = config.daemon.fake_memory_mib << 20;
            return Ok(Box::new(Fake::new(count, "fake", memory)));
        }
        ProviderKind::Slurm | ProviderKind::Kubernetes | ProviderKind::Auto => match nvidia() {
            Err(ProviderError::Absent(_)) => cpu(),
            made => made,
        },
    };
    made.map_err(|error| Failure::bad_input(format!("devices: {error}")))
}

/// Acts as the supervisor, or as the process of a run, if this process was started as one.
pub(crate) fn step_of_a_run() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next()?.to_str()? {
        "supervise" => Some(local::supervise(Path::new(&arguments.next()?))),
        "enter" => Some(local::exec_stage()),
        _ => None,
    }
}
