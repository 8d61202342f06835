//! The site's own slurm.conf: which of Tandem's lines it needs, and which would replace a line of the site.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Files that include each other end here.
const DEPTH_MAX: usize = 8;
/// A longer file is no slurm.conf.
const LENGTH_MAX: u64 = 4 << 20;

/// Why slurm.conf cannot be read.
#[derive(Debug, Error)]
pub enum SiteConfError {
    /// A file cannot be read.
    #[error("{}: {cause}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// It is too long, or includes itself.
    #[error("{}: {what}", file.display())]
    Endless {
        /// The file.
        file: PathBuf,
        /// What is too much of it.
        what: &'static str,
    },
}

/// A parameter of slurm.conf and where it is set.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Parameter {
    key: String,
    value: String,
    file: PathBuf,
    line: usize,
}

/// The parameters of a slurm.conf and the files that it includes, without those of our own file.
#[derive(Clone, Debug, Default)]
pub(super) struct SiteConf {
    parameters: Vec<Parameter>,
    /// How our own file is included.
    ours: Option<String>,
}

/// How a parameter of Slurm takes a second value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// As a list.
    List,
    /// As a program that calls the other.
    Program,
}

/// A change that the operators have to make in a file of theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteEdit {
    /// File and line.
    pub place: String,
    /// What to do there.
    pub what: String,
}

impl fmt::Display for SiteEdit {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{}: {}", self.place, self.what)
    }
}

impl SiteConf {
    /// Reads slurm.conf of a folder; without that file nothing is set.
    pub(super) fn read(folder: &Path) -> Result<Self, SiteConfError> {
        let mut site = Self::default();
        let conf = folder.join("slurm.conf");
        if conf.exists() {
            site.add(folder, &conf, DEPTH_MAX)?;
        }
        Ok(site)
    }

    fn add(&mut self, folder: &Path, file: &Path, depth: usize) -> Result<(), SiteConfError> {
        let endless = |what| SiteConfError::Endless { file: file.to_owned(), what };
        if depth == 0 {
            return Err(endless("too many files include each other"));
        }
        let unreadable = |cause| SiteConfError::Unreadable { file: file.to_owned(), cause };
        if fs::metadata(file).map_err(unreadable)?.len() > LENGTH_MAX {
            return Err(endless("longer than any slurm.conf"));
        }
        let text = fs::read(file).map_err(unreadable)?;
        for (line, words) in lines(&String::from_utf8_lossy(&text)) {
            if let Some(included) = include(&words) {
                // Our own file says nothing about the site.
                if Path::new(included).ends_with("tandem.conf") {
                    self.ours = Some(included.to_owned());
                } else {
                    self.add(folder, &folder.join(included), depth - 1)?;
                }
            } else if let Some((key, value)) = words.split_once('=') {
                let value = value.trim().trim_matches('"').to_owned();
                let (key, file) = (key.trim().to_owned(), file.to_owned());
                self.parameters.push(Parameter { key, value, file, line });
            }
        }
        Ok(())
    }

    /// What is wrong with the line that loads our lines.
    pub(super) fn include_fault(&self, folder: &Path, wanted: &str) -> Option<SiteEdit> {
        let place = folder.join("slurm.conf").display().to_string();
        let what = match &self.ours {
            None => format!("add the line {wanted}"),
            // slurmctld does not send a file with a path to the nodes, which then cannot read slurm.conf.
            Some(file) if self.is_configless() && file.contains('/') => {
                format!("write {wanted} in place of Include {file}: nodes get no file with a path")
            }
            Some(_) => return None,
        };
        Some(SiteEdit { place, what })
    }

    /// The last line that sets a parameter: it is the one that counts.
    fn parameter(&self, key: &str) -> Option<&Parameter> {
        self.parameters.iter().rev().find(|one| one.key.eq_ignore_ascii_case(key))
    }

    /// Whether slurmctld sends the configuration to the nodes.
    pub(super) fn is_configless(&self) -> bool {
        self.parameter("SlurmctldParameters")
            .is_some_and(|one| items(&one.value).any(|item| item == "enable_configless"))
    }

    /// What one of our lines needs: the line itself, a change of the site's line, or nothing.
    pub(super) fn needs(&self, key: &str, ours: &str, joined: Joined) -> Need {
        let Some(site) = self.parameter(key) else { return Need::Line(format!("{key}={ours}")) };
        let place = format!("{} line {}", site.file.display(), site.line);
        let now = format!("{key}={}", site.value);
        match joined {
            Joined::List => {
                let has = |wanted: &str| {
                    let mut items = items(&site.value);
                    items.any(|item| item.eq_ignore_ascii_case(wanted) || implies(item, wanted))
                };
                let missing: Vec<&str> = items(ours).filter(|wanted| !has(wanted)).collect();
                if missing.is_empty() {
                    return Need::Nothing;
                }
                let whole: Vec<&str> = items(&site.value).chain(missing).collect();
                let what = format!("write {key}={} in place of {now}", whole.join(","));
                Need::Edit(SiteEdit { place, what })
            }
            Joined::Program if calls(&site.value, ours) => Need::Nothing,
            Joined::Program => {
                let what = format!("keep {now}, and run {ours} from that program");
                Need::Edit(SiteEdit { place, what })
            }
        }
    }
}

/// What a line of ours needs in a slurm.conf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// The site does not set the parameter.
    Line(String),
    /// The site sets it: a second line would replace the site's.
    Edit(SiteEdit),
    /// The site has it.
    Nothing,
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// Flags of Slurm's prolog that contain another.
fn implies(flag: &str, wanted: &str) -> bool {
    let contains = ["Contain", "X11", "RunInJob", "NoHold"];
    wanted == "Alloc" && contains.iter().any(|one| flag.eq_ignore_ascii_case(one))
}

/// Whether a program of the site is ours or calls it.
fn calls(program: &str, ours: &str) -> bool {
    program == ours || fs::read_to_string(program).is_ok_and(|text| text.contains(ours))
}

/// The file of a line such as `Include /etc/slurm/nodes.conf`.
fn include(line: &str) -> Option<&str> {
    let (word, rest) = line.split_once(char::is_whitespace)?;
    word.eq_ignore_ascii_case("include").then(|| rest.trim())
}

/// The lines of a file without comments, with their numbers; a backslash continues a line.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut whole: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = match line.split_once('#') {
            Some((before, _)) if !before.ends_with('\\') => before,
            _ => line,
        };
        let line = line.trim();
        let (part, more) = match line.strip_suffix('\\') {
            Some(part) => (part, true),
            None => (line, false),
        };
        match whole.last_mut() {
            Some((_, last)) if continues => last.push_str(part),
            _ => whole.push((number, part.to_owned())),
        }
        continues = more;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(files: &[(&str, &str)]) -> (tempfile::TempDir, Result<SiteConf, SiteConfError>) {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            fs::write(folder.path().join(name), text).expect("a file");
        }
        let conf = SiteConf::read(folder.path());
        (folder, conf)
    }

    fn edit(need: Need) -> String {
        let Need::Edit(edit) = need else { panic!("{need:?}") };
        edit.to_string()
    }

    #[test]
    fn a_line_that_would_replace_the_sites_is_reported_with_the_line_to_write() {
        let (_folder, conf) = site(&[
            (
                "slurm.conf",
                "# a site\nClusterName=c\njobsubmitplugins = throttle # ours\nInclude more.conf\n",
            ),
            ("more.conf", "Licenses=matlab:5, \\\n  ansys:2\nPrologFlags=Contain\n"),
        ]);
        let conf = conf.unwrap();
        let plugins = edit(conf.needs("JobSubmitPlugins", "lua", Joined::List));
        assert!(
            plugins.contains("slurm.conf line 3: write JobSubmitPlugins=throttle,lua in place of")
        );
        let licenses = edit(conf.needs("Licenses", "tandem_gate:9", Joined::List));
        assert!(
            licenses.contains("more.conf line 1: write Licenses=matlab:5,ansys:2,tandem_gate:9")
        );
        // Contain includes Alloc.
        assert_eq!(conf.needs("PrologFlags", "Alloc", Joined::List), Need::Nothing);
        let line = Need::Line("CliFilterPlugins=lua".to_owned());
        assert_eq!(conf.needs("CliFilterPlugins", "lua", Joined::List), line);
    }

    #[test]
    fn a_program_of_the_site_stays_and_calls_ours() {
        let (folder, _) =
            site(&[("prolog", "#!/bin/sh\n/opt/check\n"), ("other", "run /t/prolog.sh")]);
        let conf = |program: &str| {
            let line = format!("Prolog={}\n", folder.path().join(program).display());
            fs::write(folder.path().join("slurm.conf"), line).expect("a file");
            SiteConf::read(folder.path()).unwrap().needs("Prolog", "/t/prolog.sh", Joined::Program)
        };
        assert!(edit(conf("prolog")).ends_with("/prolog, and run /t/prolog.sh from that program"));
        assert_eq!(conf("other"), Need::Nothing);
    }

    #[test]
    fn the_last_line_counts_and_our_own_file_does_not() {
        let (_folder, conf) = site(&[
            (
                "slurm.conf",
                "TaskProlog=/a\nTaskProlog=/b\nSlurmctldParameters=enable_configless\nInclude tandem.conf\n",
            ),
            ("tandem.conf", "JobSubmitPlugins=lua\n"),
        ]);
        let conf = conf.unwrap();
        assert!(conf.is_configless());
        assert_eq!(conf.include_fault(Path::new("/"), "Include tandem.conf"), None);
        assert!(
            edit(conf.needs("TaskProlog", "/t", Joined::Program))
                .contains("line 2: keep TaskProlog=/b")
        );
        assert!(matches!(conf.needs("JobSubmitPlugins", "lua", Joined::List), Need::Line(_)));
    }

    #[test]
    fn a_configless_site_includes_without_a_path() {
        let fault = |text: &str| {
            let (_folder, conf) = site(&[("slurm.conf", text)]);
            let fault = conf.unwrap().include_fault(Path::new("/s"), "Include tandem.conf");
            fault.map(|edit| edit.to_string())
        };
        let path = "Include /etc/slurm/tandem/tandem.conf\n";
        assert_eq!(fault(path), None);
        assert_eq!(fault("").as_deref(), Some("/s/slurm.conf: add the line Include tandem.conf"));
        let configless = fault(&format!("SlurmctldParameters=enable_configless\n{path}"));
        assert!(configless.unwrap().contains("write Include tandem.conf in place of Include /etc"));
    }

    #[test]
    fn files_that_cannot_be_read_are_named() {
        let (_folder, conf) = site(&[("slurm.conf", "Include slurm.conf\n")]);
        assert!(
            conf.unwrap_err()
                .to_string()
                .ends_with("slurm.conf: too many files include each other")
        );
        let (_folder, conf) = site(&[("slurm.conf", "Include none.conf\n")]);
        assert!(conf.unwrap_err().to_string().contains("none.conf: "));
        let (_folder, conf) = site(&[]);
        assert!(!conf.unwrap().is_configless());
    }
}
