//! The files that Tandem adds to Slurm's configuration.

use super::SlurmError;
use super::checks::{ScontrolConfig, uid_of};
use super::licence::{COUNT, GATE, STRIPPED};
use super::nodes;
use super::site_conf::{Joined, Need, SiteConf, SiteConfError, SiteEdit};
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
    /// The site's slurm.conf cannot be read.
    #[error(transparent)]
    SiteConf(#[from] SiteConfError),
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
    /// What a site with a file of its own at this place has to do instead.
    pub instead: Option<String>,
}

/// What to install, and what the operators have to do themselves.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The files.
    pub files: Vec<SetupFile>,
    /// Lines of the site that ours would replace.
    pub edits: Vec<SiteEdit>,
    /// The line that loads ours.
    pub include: String,
}

/// The files to install. All are in the folder `tandem`, except for those that Slurm expects beside slurm.conf.
pub fn setup(options: &SetupOptions) -> Result<Setup, SetupError> {
    let ours = options.folder.join("tandem");
    let relay = options.report_to.as_ref();
    let words: [(&'static str, &'static str, String); 7] = [
        ("partition", "@PARTITION@", options.partition.clone()),
        ("gpus", "@GPUS@", options.gpus.to_string()),
        ("uid", "@SLURM_UID@", options.slurm_uid.to_string()),
        ("folder", "@FOLDER@", text(&ours)),
        ("program", "@PROGRAM@", text(&options.program)),
        ("address", "@ADDRESS@", relay.cloned().unwrap_or_default()),
        ("secret file", "@SECRET@", text(&options.secret_file)),
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
    let file = |path: PathBuf, content: String| SetupFile {
        path,
        content,
        is_executable: false,
        instead: None,
    };
    let script = |name: &str, template: &str| SetupFile {
        is_executable: true,
        ..file(ours.join(name), fill(template))
    };
    // Where a site may have a plugin of its own.
    let plugin = |name: &str, template: &str, module: &str, calls: &str| SetupFile {
        instead: Some(format!(
            "call Tandem from it: local tandem = dofile(\"{}\"), then {calls}",
            ours.join(module).display()
        )),
        ..file(options.folder.join(name), fill(template))
    };
    let site = SiteConf::read(&options.folder)?;
    let (lines, edits) = conf(&site, &ours, relay.is_some());
    let beside = site.is_configless().then(|| options.folder.join("tandem.conf"));
    let mut files = vec![
        file(ours.join("tandem.lua"), fill(PLUGIN)),
        file(ours.join("steps.lua"), fill(STEPS)),
        file(ours.join("tandem.conf"), lines.clone()),
        plugin("job_submit.lua", SUBMIT, "tandem.lua", "tandem.submit and tandem.modify"),
        plugin(
            "cli_filter.lua",
            &CLI_FILTER.replace("@STEPS@", STEPS),
            "steps.lua",
            "tandem.pre_submit(options) in slurm_cli_pre_submit",
        ),
        script("prolog.sh", PROLOG),
        script("epilog.sh", EPILOG),
        script("task-prolog.sh", TASK_PROLOG),
    ];
    files.extend(beside.map(|path| file(path, lines)));
    Ok(Setup { files, edits, include: include(&site, &ours) })
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The parameters of slurm.conf that Tandem needs.
fn parameters(ours: &Path, reports: bool) -> Vec<(&'static str, String, Joined)> {
    let program = |name: &str| text(&ours.join(name));
    let mut parameters = vec![
        ("JobSubmitPlugins", "lua".to_owned(), Joined::List),
        ("CliFilterPlugins", "lua".to_owned(), Joined::List),
        ("Licenses", format!("{GATE}:{COUNT},{STRIPPED}:{COUNT}"), Joined::List),
    ];
    if reports {
        parameters.extend([
            ("PrologFlags", "Alloc".to_owned(), Joined::List),
            ("Prolog", program("prolog.sh"), Joined::Program),
            ("Epilog", program("epilog.sh"), Joined::Program),
            ("TaskProlog", program("task-prolog.sh"), Joined::Program),
        ]);
    }
    parameters
}

/// Lines for slurm.conf, and changes of lines that the site has.
fn conf(site: &SiteConf, ours: &Path, reports: bool) -> (String, Vec<SiteEdit>) {
    let mut lines = "# Tandem's lines of slurm.conf.\n".to_owned();
    let mut edits = Vec::new();
    for (key, value, joined) in parameters(ours, reports) {
        match site.needs(key, &value, joined) {
            Need::Line(line) => lines += &format!("{line}\n"),
            Need::Edit(edit) => edits.push(edit),
            Need::Nothing => {}
        }
    }
    (lines, edits)
}

/// The line of slurm.conf that loads ours. slurmctld sends an included file to nodes only if it is beside
/// slurm.conf and named without a path.
fn include(site: &SiteConf, ours: &Path) -> String {
    if site.is_configless() {
        "Include tandem.conf".to_owned()
    } else {
        format!("Include {}/tandem.conf", ours.display())
    }
}

/// What is still to be changed in the site's files.
pub(super) fn outstanding(folder: &Path) -> Result<Vec<SiteEdit>, SiteConfError> {
    let (site, ours) = (SiteConf::read(folder)?, folder.join("tandem"));
    let (lines, mut edits) = conf(&site, &ours, reports(folder));
    if lines.lines().count() > 1 {
        edits.extend(site.include_fault(folder, &include(&site, &ours)));
    }
    Ok(edits)
}

/// Whether jobs report from nodes in this installation.
pub(super) fn reports(folder: &Path) -> bool {
    let prolog = std::fs::read_to_string(folder.join("tandem/prolog.sh")).unwrap_or_default();
    !prolog.is_empty() && !prolog.contains("[ -n \"\" ]")
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
