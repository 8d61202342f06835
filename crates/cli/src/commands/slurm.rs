//! `tandem slurm`: installs Tandem in a Slurm cluster and removes it again.

use super::{print, remark, slurm_shadow};
use crate::failure::Failure;
use crate::output::clean;
use crate::slurm_args::{RelayArgs, ShadowCommand, SlurmCommand, SlurmInstallArgs};
use serde_json::json;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tandem_backends::relay::{self, Relay};
use tandem_backends::slurm::{self, ReleaseReport, Setup, SetupCheck, SetupFile, SetupOptions};

/// Files outside of the folder `tandem`. A site may have its own plugins.
const OUTSIDE: [&str; 3] = ["job_submit.lua", "cli_filter.lua", "tandem.conf"];

pub(super) fn run(command: &SlurmCommand) -> Result<(), Failure> {
    match command {
        SlurmCommand::Install(args) => install(args),
        SlurmCommand::Uninstall { dir } => uninstall(dir),
        SlurmCommand::Release { dry_run, json } => release(*dry_run, *json),
        SlurmCommand::Doctor { partition, json } => doctor(partition, *json),
        SlurmCommand::Shadow(ShadowCommand::Report(args)) => slurm_shadow::report(args),
        SlurmCommand::Relay(args) => relay(args),
    }
}

fn install(args: &SlurmInstallArgs) -> Result<(), Failure> {
    let (gpus, slurm_uid) = match args.gpus {
        // This does not need a running Slurm.
        Some(gpus) => (gpus, slurm::default_slurm_uid()),
        None => slurm::detect(&args.partition).map_err(|error| {
            Failure::failed(format!("{error}; or give the GPUs of a node with --gpus"))
        })?,
    };
    let options = SetupOptions {
        folder: args.dir.clone(),
        partition: args.partition.clone(),
        gpus,
        slurm_uid,
        program: args.program.clone(),
        report_to: args.report_to.clone(),
        secret_file: args.dir.join("tandem/secret"),
    };
    let setup = slurm::setup(&options).map_err(Failure::bad_input)?;
    if args.print {
        return show(&options, &setup);
    }
    let mut steps = Vec::new();
    for file in &setup.files {
        if !write(file)? {
            let instead = file.instead.clone().unwrap_or_default();
            steps.push(format!("{}: is the site's; {instead}", file.path.display()));
        }
    }
    make_secret(&options.secret_file)?;
    remark(&next_steps(&options, &setup, steps), false);
    Ok(())
}

/// The steps that remain for the operator, who owns slurm.conf and plugins of the site.
fn next_steps(options: &SetupOptions, setup: &Setup, mut steps: Vec<String>) -> String {
    let dir = options.folder.display();
    steps.extend(setup.edits.iter().map(ToString::to_string));
    steps.extend([
        format!("in {dir}/slurm.conf: {}", setup.include),
        "GPUs as `tandem slurm install --print` shows them, one Type each, and a pool of shards"
            .to_owned(),
        format!("{dir}/tandem and {dir}/cli_filter.lua on every node, then: scontrol reconfigure"),
        "tandem slurm doctor, and tandem daemon --provider slurm as root or SlurmUser".to_owned(),
    ]);
    let numbered = (1..).zip(&steps).map(|(number, step)| format!("{number}. {step}"));
    format!("written to {dir}/tandem; now\n{}", numbered.collect::<Vec<_>>().join("\n"))
}

fn show(options: &SetupOptions, setup: &Setup) -> Result<(), Failure> {
    let (node, gres) = slurm::gres_lines("NODES", options.gpus);
    print("# slurm.conf: the nodes of the partition, one Type for each GPU and shards for all")?;
    print(&format!("GresTypes=gpu,shard\n{node}\n"))?;
    print(&format!("# gres.conf\n{gres}\n"))?;
    for edit in &setup.edits {
        print(&format!("# {edit}\n"))?;
    }
    for SetupFile { path, content, .. } in &setup.files {
        print(&format!("# {}\n{content}", path.display()))?;
    }
    print(&format!(
        "# {}: 64 random bytes, mode 600, the same on every node",
        options.secret_file.display()
    ))
}

/// Writes a file atomically. A file of the site is left alone; whether it was ours to write.
fn write(file: &SetupFile) -> Result<bool, Failure> {
    let SetupFile { path, content, is_executable, instead } = file;
    let shown = path.display();
    let fails = |error: io::Error| Failure::failed(format!("{shown}: {error}"));
    match fs::read_to_string(path) {
        Ok(present) if present == *content => return Ok(true),
        Ok(present) if instead.is_some() && !is_ours(&present) => return Ok(calls_ours(&present)),
        _ => {}
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(fails)?;
    }
    let mode = if *is_executable { 0o755 } else { 0o644 };
    let draft = path.with_extension("new");
    fs::write(&draft, content).map_err(fails)?;
    fs::set_permissions(&draft, Permissions::from_mode(mode)).map_err(fails)?;
    fs::rename(&draft, path).map_err(fails)?;
    Ok(true)
}

/// Whether `install` wrote a file: it begins so.
fn is_ours(content: &str) -> bool {
    let first = content.lines().next().unwrap_or_default();
    first.contains("Tandem") && (first.starts_with("-- Slurm's") || first.starts_with("# Tandem"))
}

/// Whether a plugin of the site loads ours.
fn calls_ours(content: &str) -> bool {
    content.contains("tandem/tandem.lua") || content.contains("tandem/steps.lua")
}

/// Creates the secret. An existing one stays, because the nodes have it.
fn make_secret(file: &Path) -> Result<(), Failure> {
    let fails = |error: io::Error| Failure::failed(format!("{}: {error}", file.display()));
    let mut random = [0u8; 64];
    io::Read::read_exact(&mut fs::File::open("/dev/urandom").map_err(fails)?, &mut random)
        .map_err(fails)?;
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(file) {
        Ok(mut made) => made.write_all(text.as_bytes()).map_err(fails),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(fails(error)),
    }
}

fn uninstall(dir: &Path) -> Result<(), Failure> {
    let ours = dir.join("tandem");
    for name in OUTSIDE {
        let file = dir.join(name);
        if fs::read_to_string(&file).is_ok_and(|content| is_ours(&content)) {
            fs::remove_file(&file)
                .map_err(|error| Failure::failed(format!("{}: {error}", file.display())))?;
        }
    }
    match fs::remove_dir_all(&ours) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Failure::failed(format!("{}: {error}", ours.display())));
        }
        _ => {}
    }
    let conf = dir.join("slurm.conf");
    remark(
        &format!(
            "removed; take the Include of tandem.conf out of {}, then: scontrol reconfigure. Jobs that \
             are still held: tandem slurm release",
            conf.display()
        ),
        false,
    );
    Ok(())
}

fn release(dry_run: bool, json: bool) -> Result<(), Failure> {
    let ReleaseReport { released, resumed, refused } =
        slurm::release_all(dry_run).map_err(Failure::failed)?;
    if json {
        let answer =
            json!({ "schema": 1, "released": released, "resumed": resumed, "refused": refused });
        print(&answer.to_string())?;
    } else {
        let verb = if dry_run { "would be" } else { "were" };
        print(&format!(
            "{} jobs {verb} released to Slurm, {} resumed",
            released.len(),
            resumed.len()
        ))?;
        for message in &refused {
            print(&format!("Slurm says: {message}"))?;
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(Failure::Exit(1)) }
}

fn doctor(partition: &str, json: bool) -> Result<(), Failure> {
    let checks = slurm::check(partition);
    let is_fine = checks.iter().all(|check| check.found.is_ok());
    if json {
        let of = |SetupCheck { name, found }: &SetupCheck| {
            let detail = found.as_ref().unwrap_or_else(|fault| fault);
            json!({ "check": name, "ok": found.is_ok(), "detail": detail })
        };
        let checks: Vec<_> = checks.iter().map(of).collect();
        print(&json!({ "schema": 1, "ok": is_fine, "checks": checks }).to_string())?;
    } else {
        for SetupCheck { name, found } in &checks {
            let (word, detail) = match found {
                Ok(found) => ("ok  ", found),
                Err(fault) => ("fail", fault),
            };
            print(&clean(&format!("{word} {name}: {detail}")))?;
        }
    }
    if is_fine { Ok(()) } else { Err(Failure::Exit(1)) }
}

fn relay(args: &RelayArgs) -> Result<(), Failure> {
    if args.stop {
        relay::stop(&args.dir, args.job);
        return Ok(());
    }
    let (Some(to), Some(file), Some(uid)) = (&args.to, &args.secret_file, args.uid) else {
        return Err(Failure::bad_input("a relay needs --to, --secret-file and --uid"));
    };
    if args.detach {
        // In a process group of its own: Slurm kills the group of a prolog when the prolog ends.
        let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--detach");
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn()?;
        return Ok(());
    }
    let secret = relay::secret(file)
        .map_err(|error| Failure::bad_input(format!("{}: {error}", file.display())))?;
    let relay = Relay { dir: args.dir.clone(), job: args.job, uid, to: to.clone(), secret };
    match relay.serve() {
        Err(error) => Err(Failure::failed(format!("relay: {error}"))),
        Ok(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn args(dir: &Path, partition: &str) -> SlurmInstallArgs {
        SlurmInstallArgs {
            print: false,
            dir: dir.to_owned(),
            partition: partition.to_owned(),
            gpus: Some(4),
            report_to: None,
            program: PathBuf::from("/usr/bin/tandem"),
        }
    }

    #[test]
    fn install_replaces_its_own_files_and_keeps_the_secret() {
        let own = tempfile::tempdir().expect("a folder can be created");
        let read = |name: &str| fs::read_to_string(own.path().join(name)).expect("it was written");
        install(&args(own.path(), "gpu")).map_err(drop).expect("it can be written");
        let secret = read("tandem/secret");
        // Files of an earlier version differ.
        for name in ["tandem/epilog.sh", "tandem/task-prolog.sh", "tandem/tandem.lua"] {
            fs::write(own.path().join(name), "an earlier version").expect("it can be written");
        }
        install(&args(own.path(), "other")).map_err(drop).expect("it can be written");
        assert!(read("tandem/epilog.sh").contains("/usr/bin/tandem"));
        assert!(read("tandem/tandem.lua").contains("[\"other\"] = 4"));
        assert_eq!(read("tandem/secret"), secret);
    }

    #[test]
    fn install_leaves_the_files_of_a_site_alone() {
        let own = tempfile::tempdir().expect("a folder can be created");
        let read = |name: &str| fs::read_to_string(own.path().join(name)).expect("it is there");
        let put = |name: &str, text: &str| {
            fs::write(own.path().join(name), text).expect("it can be written");
        };
        put("job_submit.lua", "-- the site's, beside Tandem");
        put("slurm.conf", "JobSubmitPlugins=throttle\nTaskProlog=/site/prolog\n");
        let args =
            SlurmInstallArgs { report_to: Some("h:1".to_owned()), ..args(own.path(), "gpu") };
        install(&args).map_err(drop).expect("it can be written");
        assert_eq!(read("job_submit.lua"), "-- the site's, beside Tandem");
        // Lines that would replace the site's are left to the operators.
        let lines = read("tandem/tandem.conf");
        assert!(!lines.contains("JobSubmitPlugins") && !lines.contains("TaskProlog"), "{lines}");
        assert!(lines.contains("CliFilterPlugins=lua") && lines.contains("\nProlog="), "{lines}");
        uninstall(own.path()).map_err(drop).expect("it can be removed");
        assert_eq!(read("job_submit.lua"), "-- the site's, beside Tandem");
        assert!(!own.path().join("tandem").exists() && !own.path().join("cli_filter.lua").exists());
    }
}
