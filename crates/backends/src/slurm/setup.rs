//! The files that Tandem adds to Slurm's configuration.

use super::SlurmError;
use super::checks::{ScontrolConfig, uid_of};
use super::nodes;
use std::path::{Path, PathBuf};
use thiserror::Error;

const PLUGIN: &str = include_str!("files/tandem.lua");
const SUBMIT: &str = include_str!("files/job_submit.lua");
const STEPS: &str = include_str!("files/steps.lua");
const CLI_FILTER: &str = include_str!("files/cli_filter.lua");
const PROLOG: &str = include_str!("files/prolog.sh");
const EPILOG: &str = include_str!("files/epilog.sh");
const TASK_PROLOG: &str = include_str!("files/task-prolog.sh");

/// What the files depend on.
#[derive(Clone, Debug)]
pub struct SetupOptions {
    /// The folder of slurm.conf.
    pub folder: PathBuf,
    /// The partition whose GPU jobs Tandem manages.
    pub partition: String,
    /// GPUs of its largest node.
    pub gpus: u32,
    /// The user id of slurmctld.
    pub slurm_uid: u32,
    /// This program, on the nodes.
    pub program: PathBuf,
    /// The address at which relays on the nodes reach the daemon; none if jobs do not report.
    pub report_to: Option<String>,
    /// The file of the secret that relays and the daemon share.
    pub secret_file: PathBuf,
}

/// Why the files cannot be generated.
#[derive(Debug, Error)]
pub enum SetupError {
    /// A value that is not safe in a script.
    #[error("{what}: '{text}' has characters with a meaning in scripts; choose another")]
    Hostile {
        /// The option.
        what: &'static str,
        /// Its value.
        text: String,
    },
    /// Slurm's configuration cannot be read.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupFile {
    /// Where it goes.
    pub path: PathBuf,
    /// Its content.
    pub content: String,
    /// It must be executable.
    pub is_executable: bool,
}

/// The files to install. All are in the folder `tandem`, except for job_submit.lua and cli_filter.lua, which
/// Slurm expects beside slurm.conf.
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
    let is_safe =
        |character: char| character.is_ascii_alphanumeric() || "/._-+@:[]".contains(character);
    for (what, _, text) in &words {
        if !text.chars().all(is_safe) {
            return Err(SetupError::Hostile { what, text: text.clone() });
        }
    }
    let fill = |template: &str| {
        words.iter().fold(template.to_owned(), |text, (_, mark, word)| text.replace(mark, word))
    };
    let file = |path: PathBuf, content: String| SetupFile { path, content, is_executable: false };
    let script = |name: &str, template: &str| SetupFile {
        is_executable: true,
        ..file(ours.join(name), fill(template))
    };
    Ok(vec![
        file(ours.join("tandem.lua"), fill(PLUGIN)),
        file(ours.join("tandem.conf"), conf(&ours)),
        file(ours.join("steps.lua"), fill(STEPS)),
        file(setup.folder.join("job_submit.lua"), fill(SUBMIT)),
        file(setup.folder.join("cli_filter.lua"), fill(&CLI_FILTER.replace("@STEPS@", STEPS))),
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
         CliFilterPlugins=lua\n\
         PrologFlags=Alloc\n\
         Prolog={ours}/prolog.sh\n\
         Epilog={ours}/epilog.sh\n\
         TaskProlog={ours}/task-prolog.sh\n"
    )
}

/// The lines of slurm.conf and gres.conf that describe the GPUs of nodes, with one Type per GPU.
pub fn gres_lines(node: &str, gpus: u32) -> (String, String) {
    let types: Vec<String> = (0..gpus).map(|gpu| format!("gpu:g{gpu}:1")).collect();
    let shards = gpus * 100;
    let node_line = format!("NodeName={node} ... Gres={},shard:{shards}", types.join(","));
    let gpu = |gpu: u32| format!("NodeName={node} Name=gpu Type=g{gpu} File=/dev/nvidia{gpu}\n");
    let gpus: String = (0..gpus).map(gpu).collect();
    (node_line, format!("{gpus}NodeName={node} Name=shard Count={shards}"))
}

/// The user id that slurmctld usually has; root if there is no user `slurm`.
pub fn default_slurm_uid() -> u32 {
    nix::unistd::User::from_name("slurm").ok().flatten().map_or(0, |user| user.uid.as_raw())
}

/// Reads from the running Slurm what `install` needs: the GPUs of the largest node of a partition and the user
/// id of slurmctld.
pub fn detect(partition: &str) -> Result<(u32, u32), SetupError> {
    let nodes = nodes::gpu_nodes(nodes::list()?, partition).map_err(SlurmError::from)?;
    let gpus = nodes.iter().map(|node| node.gpu_types.len()).max().unwrap_or(0);
    let config = ScontrolConfig::read().map_err(SlurmError::from)?;
    let uid = config.value("SlurmUser").as_deref().and_then(uid_of);
    Ok((u32::try_from(gpus).unwrap_or(u32::MAX), uid.unwrap_or(0)))
}
