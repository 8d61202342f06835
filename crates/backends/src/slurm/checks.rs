//! Checks the configuration of the Slurm that this machine belongs to.

use super::commands::{self, CallError};
use super::jobs::JobList;
use super::list_jobs;
use super::nodes::{self, SlurmNode};
use super::setup;
use std::path::{Path, PathBuf};

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupCheck {
    /// What was checked.
    pub name: &'static str,
    /// What was found; an error says what to do.
    pub found: Result<String, String>,
}

/// Checks that Tandem can manage the GPU jobs of a partition.
pub fn check(partition: &str) -> Vec<SetupCheck> {
    let list = list_jobs(None);
    let mut checks = vec![SetupCheck {
        name: "slurm",
        found: match &list {
            Ok(list) => version(list),
            Err(error) => Err(format!("{error}; is slurmctld up, and SLURM_CONF right?")),
        },
    }];
    if list.is_err() {
        return checks;
    }
    let nodes = nodes::list();
    let faults = nodes.as_ref().map(|nodes| nodes::faults(nodes, partition)).unwrap_or_default();
    if !faults.is_empty() {
        let faults = faults.join(". ");
        let found = Err(format!("left out: {faults}; see `tandem slurm install --print`"));
        checks.push(SetupCheck { name: "nodes", found });
    }
    let nodes = nodes.and_then(|nodes| Ok(nodes::gpu_nodes(nodes, partition)?));
    let found = nodes.as_ref().map(|nodes| summary(nodes)).map_err(ToString::to_string);
    checks.push(SetupCheck { name: "gpus", found });
    match ScontrolConfig::read() {
        Ok(config) => checks.extend(check_config(&config, partition)),
        Err(error) => {
            checks.push(SetupCheck { name: "configuration", found: Err(error.to_string()) });
        }
    }
    checks
}

fn check_config(config: &ScontrolConfig, partition: &str) -> Vec<SetupCheck> {
    let gres_types = config.has("GresTypes", "shard").and_then(|_| config.has("GresTypes", "gpu"));
    let checks = [
        ("plugin", config.has("JobSubmitPlugins", "lua")),
        ("gres types", gres_types),
        ("select", config.has("SelectType", "select/cons_tres")),
        ("steps", config.has("CliFilterPlugins", "lua")),
        ("files", files(config.folder().as_deref())),
        ("hold", hold(partition)),
        ("rights", rights(config.value("SlurmUser").as_deref())),
    ];
    checks.into_iter().map(|(name, found)| SetupCheck { name, found }).collect()
}

/// The files of Slurm's folder on this machine.
fn files(folder: Option<&Path>) -> Result<String, String> {
    let Some(folder) = folder.filter(|folder| folder.join("slurm.conf").exists()) else {
        return Ok("slurm.conf is on another machine; run this there as well".to_owned());
    };
    let shown = folder.display();
    if !folder.join("tandem/tandem.lua").exists() {
        return Err(format!("{shown} has no folder tandem; tandem slurm install --dir {shown}"));
    }
    for (name, module) in [("job_submit.lua", "tandem.lua"), ("cli_filter.lua", "steps.lua")] {
        let plugin = folder.join(name);
        let calls = |text: String| text.contains("Tandem") || text.contains(module);
        if !std::fs::read_to_string(&plugin).is_ok_and(calls) {
            let plugin = plugin.display();
            return Err(format!(
                "{plugin} does not call Tandem; it has to load {shown}/tandem/{module}"
            ));
        }
    }
    let outstanding = setup::outstanding(folder).map_err(|error| error.to_string())?;
    match &outstanding[..] {
        [] => Ok(format!("{shown} loads Tandem's lines")),
        edits => {
            let edits: Vec<String> = edits.iter().map(ToString::to_string).collect();
            Err(format!("Tandem's lines are not complete; {}", edits.join(". ")))
        }
    }
}

/// The output of `scontrol show config`.
pub(super) struct ScontrolConfig(String);

impl ScontrolConfig {
    pub(super) fn read() -> Result<Self, CallError> {
        let text = commands::output("scontrol", &["show", "config"])?;
        Ok(Self(String::from_utf8_lossy(&text).into_owned()))
    }

    /// The value of a parameter.
    pub(super) fn value(&self, name: &str) -> Option<String> {
        let line = self.0.lines().find(|line| line.split(['=', ' ']).next() == Some(name))?;
        Some(line.split_once('=')?.1.trim().to_owned())
    }

    /// The folder of slurm.conf.
    fn folder(&self) -> Option<PathBuf> {
        Some(PathBuf::from(self.value("SLURM_CONF")?).parent()?.to_owned())
    }

    /// The value of a parameter that must contain a word.
    fn has(&self, name: &str, word: &str) -> Result<String, String> {
        let value = self.value(name).unwrap_or_default();
        if value.split(',').any(|part| part.eq_ignore_ascii_case(word)) {
            Ok(value)
        } else {
            Err(format!(
                "{name} is '{value}' and lacks '{word}'; see `tandem slurm install --print`"
            ))
        }
    }
}

/// The user id of `slurm(64030)`.
pub(super) fn uid_of(slurm_user: &str) -> Option<u32> {
    slurm_user.split_once('(')?.1.split(')').next()?.parse().ok()
}

fn version(list: &JobList) -> Result<String, String> {
    match list.version {
        Some((major, minor, micro)) => {
            Ok(format!("{major}.{minor:02}.{micro} answers; it lists {} jobs", list.records.len()))
        }
        None => Err("its version is unknown; Tandem needs 22.05 or newer".to_owned()),
    }
}

fn summary(nodes: &[SlurmNode]) -> String {
    let gpus: usize = nodes.iter().map(|node| node.gpu_types.len()).sum();
    let unavailable = nodes.iter().filter(|node| node.unavailable.is_some()).count();
    let unavailable =
        if unavailable > 0 { format!(", {unavailable} nodes unavailable") } else { String::new() };
    format!("{gpus} GPUs on {} nodes{unavailable}", nodes.len())
}

/// Whether the plugin is loaded: it must reject a request for shards. Nothing is submitted.
fn hold(partition: &str) -> Result<String, String> {
    let arguments = [
        "--test-only",
        "-p",
        partition,
        "--gres=shard:1",
        "-n",
        "1",
        "--wrap",
        "true",
        "-o",
        "/dev/null",
    ];
    let output = commands::call("sbatch", arguments, "").map_err(|error| error.to_string())?;
    if output.error_lines().iter().any(|line| line.contains("Tandem:")) {
        Ok(format!("GPU jobs of partition {partition} are held for Tandem"))
    } else {
        Err(format!(
            "GPU jobs of partition {partition} are not held: the plugin is not loaded or is for another \
             partition; see `tandem slurm install --print`, then `scontrol reconfigure`"
        ))
    }
}

/// Only root and SlurmUser may place jobs.
fn rights(slurm_user: Option<&str>) -> Result<String, String> {
    let uid = rustix::process::geteuid().as_raw();
    if uid == 0 || Some(uid) == slurm_user.and_then(uid_of) {
        Ok(format!("user {uid} may place and release jobs"))
    } else {
        let user = slurm_user.unwrap_or("SlurmUser");
        Err(format!("user {uid} may not place jobs; run the daemon as root or {user}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_found_by_their_whole_name() {
        let text = "Configuration data as of now\nGresTypes               = gpu,shard\nPrologFlags = Alloc\n\
                    SlurmUser               = slurm(64030)\nTaskProlog              = (null)\n";
        let config = ScontrolConfig(text.to_owned());
        assert_eq!(config.value("GresTypes").as_deref(), Some("gpu,shard"));
        assert_eq!(config.value("Prolog"), None);
        assert_eq!(config.has("GresTypes", "shard"), Ok("gpu,shard".to_owned()));
        assert!(config.has("PrologFlags", "Contain").is_err());
        assert_eq!(config.value("SlurmUser").as_deref().and_then(uid_of), Some(64030));
        assert_eq!(uid_of("root"), None);
    }
}
