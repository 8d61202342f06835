//! What has to be put into Slurm's configuration, and whether it is there.

use super::nodes::{self, SlurmNode};
use super::{SlurmError, commands, jobs};
use std::path::{Path, PathBuf};
use thiserror::Error;

const PLUGIN: &str = include_str!("files/tandem.lua");
const SUBMIT: &str = include_str!("files/job_submit.lua");
const PROLOG: &str = include_str!("files/prolog.sh");
const EPILOG: &str = include_str!("files/epilog.sh");
const TASK_PROLOG: &str = include_str!("files/task-prolog.sh");

/// What the files depend on.
#[derive(Clone, Debug)]
pub struct SetupOptions {
    /// The folder of slurm.conf.
    pub folder: PathBuf,
    /// The partition whose GPU jobs are ours.
    pub partition: String,
    /// GPUs of its largest node.
    pub gpus: u32,
    /// The user as whom slurmctld runs.
    pub slurm_uid: u32,
    /// This program, on the nodes.
    pub program: PathBuf,
    /// Where the daemon hears relays, as nodes reach it; none if jobs do not report.
    pub report_to: Option<String>,
    /// The file of the secret that relays and the daemon share.
    pub secret_file: PathBuf,
}

/// Why the files cannot be made.
#[derive(Debug, Error)]
pub enum SetupError {
    /// A name that cannot be part of a script.
    #[error("{what}: '{text}' has characters that a script would take for its own; choose another")]
    Hostile {
        /// Which one.
        what: &'static str,
        /// What it is.
        text: String,
    },
    /// Slurm cannot be asked.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
}

/// One file: where, what, and whether it is a program.
pub type SetupFile = (PathBuf, String, bool);

/// Our own files. All of them are in a folder of ours but job_submit.lua, which Slurm wants beside its
/// slurm.conf.
pub fn files(setup: &SetupOptions) -> Result<Vec<SetupFile>, SetupError> {
    let ours = setup.folder.join("tandem");
    let relay = setup.report_to.as_ref();
    let words: [(&'static str, &'static str, String); 7] = [
        ("partition", "@PARTITION@", setup.partition.clone()),
        ("gpus", "@GPUS@", setup.gpus.to_string()),
        ("uid", "@SLURM_UID@", setup.slurm_uid.to_string()),
        ("folder", "@FOLDER@", text(&ours)),
        ("program", "@PROGRAM@", text(&setup.program)),
        ("address", "@ADDRESS@", relay.cloned().unwrap_or_default()),
        ("secret file", "@SECRET@", text(&setup.secret_file)),
    ];
    let plain =
        |character: char| character.is_ascii_alphanumeric() || "/._-+@:[]".contains(character);
    for (what, _, text) in &words {
        if !text.chars().all(plain) {
            return Err(SetupError::Hostile { what, text: text.clone() });
        }
    }
    let fill = |template: &str| {
        words.iter().fold(template.to_owned(), |text, (_, mark, word)| text.replace(mark, word))
    };
    let script = |name: &str, template: &str| (ours.join(name), fill(template), true);
    Ok(vec![
        (ours.join("tandem.lua"), fill(PLUGIN), false),
        (ours.join("tandem.conf"), conf(&ours), false),
        (setup.folder.join("job_submit.lua"), fill(SUBMIT), false),
        script("prolog.sh", PROLOG),
        script("epilog.sh", EPILOG),
        script("task-prolog.sh", TASK_PROLOG),
    ])
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Lines for slurm.conf.
fn conf(ours: &Path) -> String {
    let ours = ours.display();
    format!(
        "# For slurm.conf: `Include {ours}/tandem.conf`, or these lines themselves.\n\
         JobSubmitPlugins=lua\n\
         PrologFlags=Alloc\n\
         Prolog={ours}/prolog.sh\n\
         Epilog={ours}/epilog.sh\n\
         TaskProlog={ours}/task-prolog.sh\n"
    )
}

/// Lines of slurm.conf and gres.conf that describe the GPUs of nodes, one Type each.
pub fn gres_lines(node: &str, gpus: u32) -> (String, String) {
    let types: Vec<String> = (0..gpus).map(|gpu| format!("gpu:g{gpu}:1")).collect();
    let shards = gpus * 100;
    let node_line = format!("NodeName={node} ... Gres={},shard:{shards}", types.join(","));
    let gpu = |gpu: u32| format!("NodeName={node} Name=gpu Type=g{gpu} File=/dev/nvidia{gpu}\n");
    let gpus: String = (0..gpus).map(gpu).collect();
    (node_line, format!("{gpus}NodeName={node} Name=shard Count={shards}"))
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupCheck {
    /// What.
    pub name: &'static str,
    /// What was found; an error says what to do.
    pub found: Result<String, String>,
}

/// Looks at the Slurm that this machine belongs to.
pub fn check(partition: &str) -> Vec<SetupCheck> {
    let mut checks = Vec::new();
    let mut add = |name, found| checks.push(SetupCheck { name, found });
    let listing = super::list();
    add(
        "slurm",
        match &listing {
            Ok(jobs::JobList { version: Some((major, minor, micro)), records }) => {
                Ok(format!("{major}.{minor:02}.{micro} answers; it knows {} jobs", records.len()))
            }
            Ok(_) => Err("its version is not known; Tandem needs 22.05 or newer".to_owned()),
            Err(error) => Err(format!("{error}; is slurmctld up, and SLURM_CONF right?")),
        },
    );
    if listing.is_err() {
        return checks;
    }
    let nodes = nodes::list().and_then(|nodes| Ok(nodes::ours(nodes, partition)?));
    add("gpus", nodes.as_ref().map(|nodes| described(nodes)).map_err(ToString::to_string));
    let config = commands::output("scontrol", &["show", "config"]);
    let config = config.map(|text| String::from_utf8_lossy(&text).into_owned());
    let config = match config {
        Ok(config) => config,
        Err(error) => {
            add("configuration", Err(error.to_string()));
            return checks;
        }
    };
    let value = |name: &str| {
        let line = config.lines().find(|line| line.split(['=', ' ']).next() == Some(name))?;
        Some(line.split_once('=')?.1.trim().to_owned())
    };
    let has = |name: &str, word: &str| {
        let value = value(name).unwrap_or_default();
        if value.split(',').any(|part| part.eq_ignore_ascii_case(word)) {
            Ok(value)
        } else {
            Err(format!(
                "{name} is '{value}' and lacks '{word}'; see `tandem slurm install --print`"
            ))
        }
    };
    add("plugin", has("JobSubmitPlugins", "lua"));
    add("gres types", has("GresTypes", "shard").and_then(|_| has("GresTypes", "gpu")));
    add("select", has("SelectType", "select/cons_tres"));
    add("prolog", match value("TaskProlog") {
        Some(path) if !path.is_empty() && path != "(null)" => Ok(path),
        _ => Err("there is no TaskProlog: srun inside of shared jobs fails; see `tandem slurm install --print`".to_owned()),
    });
    add("hold", hold(partition));
    add("rights", rights(value("SlurmUser").as_deref()));
    checks
}

fn described(nodes: &[SlurmNode]) -> String {
    let gpus: usize = nodes.iter().map(|node| node.types.len()).sum();
    let closed = nodes.iter().filter(|node| node.closed.is_some()).count();
    let closed = if closed > 0 { format!(", {closed} nodes closed") } else { String::new() };
    format!("{gpus} GPUs on {} nodes{closed}", nodes.len())
}

/// Whether the plugin refuses what it has to, which shows that it is loaded: nothing is submitted.
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
    let answer = commands::call("sbatch", arguments, "").map_err(|error| error.to_string())?;
    if answer.error_lines().iter().any(|line| line.contains("Tandem:")) {
        Ok(format!("GPU jobs of partition {partition} are held for Tandem"))
    } else {
        Err(format!(
            "GPU jobs of partition {partition} are not held: the plugin is not loaded or knows another \
             partition; see `tandem slurm install --print`, then `scontrol reconfigure`"
        ))
    }
}

/// Placing takes root or SlurmUser.
fn rights(slurm_user: Option<&str>) -> Result<String, String> {
    let uid = rustix::process::geteuid().as_raw();
    let named = slurm_user.and_then(|user| user.split_once('(')?.1.strip_suffix(')')?.parse().ok());
    if uid == 0 || Some(uid) == named {
        Ok(format!("user {uid} may place and release jobs"))
    } else {
        let user = slurm_user.unwrap_or("SlurmUser");
        Err(format!("user {uid} may not place jobs; run the daemon as root or {user}"))
    }
}

/// The user as whom slurmctld usually runs; root if there is none.
pub fn default_slurm_uid() -> u32 {
    nix::unistd::User::from_name("slurm").ok().flatten().map_or(0, |user| user.uid.as_raw())
}

/// What `install` has to know of the present Slurm: GPUs of the largest node of a partition and the user
/// of slurmctld.
pub fn detect(partition: &str) -> Result<(u32, u32), SetupError> {
    let nodes = nodes::ours(nodes::list()?, partition).map_err(SlurmError::from)?;
    let gpus = nodes.iter().map(|node| node.types.len()).max().unwrap_or(0);
    let config = commands::output("scontrol", &["show", "config"]).map_err(SlurmError::from)?;
    let config = String::from_utf8_lossy(&config).into_owned();
    let user = config.lines().find(|line| line.starts_with("SlurmUser "));
    let uid = user.and_then(|line| line.split_once('(')?.1.split(')').next()?.parse().ok());
    Ok((u32::try_from(gpus).unwrap_or(u32::MAX), uid.unwrap_or(0)))
}
