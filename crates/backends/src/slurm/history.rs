//! What a site's accounting knows of the jobs of the last days, and the size of a partition.

use super::commands::{self, CallError};
use super::syntax;
use crate::program::run_program;
use std::process::Command;
use std::time::Duration;

/// The database of a large site takes its time.
const TIMEOUT: Duration = Duration::from_secs(600);
const COLUMNS: &str = "JobID,User,Partition,State,Submit,Eligible,Start,ElapsedRaw,ReqTRES,AllocTRES,TimelimitRaw,JobName";

/// The jobs of a partition in the last days, as `sacct` prints them.
pub fn history(partition: &str, days: u32) -> Result<Vec<u8>, CallError> {
    let program = || "sacct".to_owned();
    let mut command = Command::new("sacct");
    let kept = std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "SLURM_CONF");
    command.env_clear().envs(kept).env("LC_ALL", "C").env("SLURM_TIME_FORMAT", "%s");
    command.args(["-a", "-D", "-X", "-P", "-o", COLUMNS, "-r", partition]);
    command.args(["-S", &format!("now-{days}days")]);
    match run_program(&mut command, "", TIMEOUT) {
        Ok(Some(output)) if output.succeeded => Ok(output.stdout),
        Ok(Some(output)) => {
            let message = output.error_lines().pop();
            let message = message.unwrap_or_else(|| "it failed without a message".to_owned());
            Err(CallError::Failed { program: program(), message })
        }
        Ok(None) => Err(CallError::Late { program: program(), seconds: TIMEOUT.as_secs() }),
        Err(cause) => Err(CallError::Missing { program: program(), cause: cause.to_string() }),
    }
}

/// The GPUs of each node of a partition. They need no Type each, unlike those that Tandem places jobs on.
pub fn gpus_of_nodes(partition: &str) -> Result<Vec<u64>, CallError> {
    let answer = commands::output("sinfo", &["-h", "-N", "-p", partition, "-o", "%G"])?;
    let gpus = |line: &str| {
        let gres = syntax::gres(line.trim());
        gres.iter()
            .filter(|one| one.name == "gpu")
            .fold(0, |sum: u64, one| sum.saturating_add(one.count))
    };
    let nodes =
        String::from_utf8_lossy(&answer).lines().map(gpus).filter(|&gpus| gpus > 0).collect();
    Ok(nodes)
}
