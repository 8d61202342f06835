//! Resolves every key from flags, environment, files and defaults.

use super::keys::{KEYS, Key, ValueKind, nearest};
use super::typed::typed;
use super::{Config, SHARED_SOCKET};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Prefix of variables that set a key.
const PREFIX: &str = "TANDEM_";
/// Prefix of sweep parameters, which are not settings.
const PARAMETERS: &str = "TANDEM_PARAM_";
/// Another name of `TANDEM_DAEMON__SOCKET`.
const SOCKET_VARIABLE: &str = "TANDEM_DAEMON_SOCKET";

/// An error in the configuration, in one line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// An unknown key.
    #[error("{place}: there is no key '{key}'{}", .nearest.as_ref().map_or_else(String::new, |name| format!("; did you mean '{name}'?")))]
    Unknown {
        /// The file or the variable.
        place: String,
        /// The key.
        key: String,
        /// The most similar key.
        nearest: Option<String>,
    },
    /// A value that the key does not allow.
    #[error("{place}: {key} {problem}")]
    Value {
        /// The file, the variable or the flag.
        place: String,
        /// The key.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// The file is not valid TOML.
    #[error("{}: {problem}", file.display())]
    Syntax {
        /// The file.
        file: PathBuf,
        /// What is wrong, and in which line.
        problem: String,
    },
    /// The file exists and cannot be read.
    #[error("{}: cannot be read: {cause}", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Why.
        cause: String,
    },
    /// The folder of the socket is writable by other users.
    #[error("{}: not owned by you or writable by other users; remove it or set daemon.socket", folder.display())]
    UnsafeFolder {
        /// The folder.
        folder: PathBuf,
    },
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag,
    /// An environment variable.
    Environment(String),
    /// A file.
    File(PathBuf),
    /// The default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("flag"),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Default => f.write_str("default"),
        }
    }
}

impl Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One key with its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ResolvedSetting {
    /// `section.key`
    pub key: &'static str,
    /// Null is absent.
    pub value: Value,
    /// Where it comes from.
    pub origin: Origin,
    /// Description of the key.
    pub help: &'static str,
}

/// All settings with their origins, in the order of the documentation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Origins(pub Vec<ResolvedSetting>);

impl Origins {
    /// Where the value of a key comes from.
    pub fn of(&self, key: &str) -> &Origin {
        self.0
            .iter()
            .find(|setting| setting.key == key)
            .map_or(&Origin::Default, |setting| &setting.origin)
    }
}

/// Where values can come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// `section.key` and value.
    pub flags: Vec<(String, String)>,
    /// The environment.
    pub env: BTreeMap<String, String>,
    /// Files, which need not exist; the first has precedence.
    pub files: Vec<PathBuf>,
    /// The user id.
    pub uid: u32,
    /// The id of the machine, as a part of a path.
    pub machine: String,
}

impl Sources {
    /// Environment, files and user of this process.
    pub fn of_process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        let env: BTreeMap<String, String> = std::env::vars_os().filter_map(text).collect();
        let uid = rustix::process::getuid().as_raw();
        let mut sources = Self {
            flags: Vec::new(),
            env,
            files: Vec::new(),
            uid,
            machine: crate::machine::short_id(),
        };
        sources.files = sources.default_files();
        sources
    }

    /// The file of the user, then the one of the machine.
    pub fn default_files(&self) -> Vec<PathBuf> {
        let own = self
            .folder("XDG_CONFIG_HOME", ".config")
            .map(|folder| folder.join("tandem/config.toml"));
        own.into_iter().chain([PathBuf::from("/etc/tandem/config.toml")]).collect()
    }

    /// A folder from its variable or below the home folder; relative paths are ignored.
    fn folder(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let absolute =
            |name: &str| self.env.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
    }

    pub(super) fn default_socket(&self) -> Value {
        let runtime =
            self.env.get("XDG_RUNTIME_DIR").filter(|folder| Path::new(folder).is_absolute());
        json!(match runtime {
            Some(folder) => format!("{folder}/tandem/daemon.sock"),
            None if self.uid == 0 => SHARED_SOCKET.to_owned(),
            None => format!("{}/daemon.sock", self.socket_folder()),
        })
    }

    /// A folder in /tmp, which goes with a reboot; below the state if somebody else has taken that name.
    fn socket_folder(&self) -> String {
        let folder = format!("/tmp/tandem-{}", self.uid);
        let is_ours = |metadata: std::fs::Metadata| metadata.uid() == self.uid;
        if Path::new(&folder).symlink_metadata().map_or(true, is_ours) {
            return folder;
        }
        let base = self.folder("XDG_STATE_HOME", ".local/state");
        base.map_or(folder, |base| format!("{}/tandem/socket-{}", base.display(), self.machine))
    }

    /// The folder of the store. A home folder may be that of several machines, so the machine is part of it; a
    /// store of an earlier version stays where it is.
    pub(super) fn default_state(&self) -> Value {
        let own = self.env.get("XDG_STATE_HOME").filter(|folder| Path::new(folder).is_absolute());
        let base = match own {
            Some(folder) => format!("{folder}/tandem"),
            None if self.uid == 0 => return json!("/var/lib/tandem"),
            None => self.folder("", ".local/state/tandem").map_or_else(
                || format!("/tmp/tandem-{}/state", self.uid),
                |folder| folder.display().to_string(),
            ),
        };
        if self.machine.is_empty() || Path::new(&base).join("state.db").exists() {
            return json!(base);
        }
        json!(format!("{base}/{}", self.machine))
    }

    fn home(&self) -> Option<&str> {
        self.env.get("HOME").map(String::as_str)
    }
}

impl Config {
    /// Resolves all keys. Unknown keys are errors.
    pub fn resolve(sources: &Sources) -> Result<(Config, Origins), ConfigError> {
        let mut found: BTreeMap<&'static str, (Value, Origin)> = BTreeMap::new();
        for file in sources.files.iter().rev() {
            for (key, value) in read(file)? {
                let value = accept(key, value, sources, &file.display().to_string())?;
                found.insert(key.name, (value, Origin::File(file.clone())));
            }
        }
        for (variable, text) in &sources.env {
            let Some(key) = key_of_variable(variable)? else { continue };
            let value = accept(key, from_text(key, text), sources, variable)?;
            found.insert(key.name, (value, Origin::Environment(variable.clone())));
        }
        for (name, text) in &sources.flags {
            let key = find(name).ok_or_else(|| unknown("command line", name))?;
            let value = accept(key, from_text(key, text), sources, "command line")?;
            found.insert(key.name, (value, Origin::Flag));
        }
        let setting = |key: &Key| {
            let default = || (key.default.value(sources), Origin::Default);
            let (value, origin) = found.remove(key.name).unwrap_or_else(default);
            ResolvedSetting { key: key.name, value, origin, help: key.help }
        };
        let origins = Origins(KEYS.iter().map(setting).collect());
        Ok((typed(&origins), origins))
    }
}

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

fn unknown(place: &str, name: &str) -> ConfigError {
    let nearest = nearest(name, KEYS.iter().map(|key| key.name)).map(str::to_owned);
    ConfigError::Unknown { place: place.to_owned(), key: name.escape_debug().to_string(), nearest }
}

/// The key that a variable sets, if any.
fn key_of_variable(variable: &str) -> Result<Option<&'static Key>, ConfigError> {
    if variable == SOCKET_VARIABLE {
        return Ok(find("daemon.socket"));
    }
    let rest = variable.strip_prefix(PREFIX).filter(|_| !variable.starts_with(PARAMETERS));
    let Some((section, name)) = rest.and_then(|rest| rest.split_once("__")) else {
        return Ok(None);
    };
    let name = format!("{section}.{name}").to_ascii_lowercase();
    find(&name).map(Some).ok_or_else(|| unknown(variable, &name))
}

/// The values of a file, none if it does not exist.
fn read(file: &Path) -> Result<Vec<(&'static Key, Value)>, ConfigError> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(cause)
            if matches!(
                cause.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(cause) => {
            return Err(ConfigError::Unreadable {
                file: file.to_owned(),
                cause: cause.to_string(),
            });
        }
    };
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line =
            error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let problem = error.message().replace('\n', " ");
        let problem =
            line.map_or_else(|| problem.clone(), |line| format!("line {line}: {problem}"));
        ConfigError::Syntax { file: file.to_owned(), problem }
    })?;
    let place = file.display().to_string();
    let mut values = Vec::new();
    for (section, content) in table {
        let toml::Value::Table(content) = content else { return Err(unknown(&place, &section)) };
        if content.is_empty()
            && !KEYS.iter().any(|key| key.name.split('.').next() == Some(&section))
        {
            return Err(unknown(&place, &section));
        }
        for (name, value) in content {
            let name = format!("{section}.{name}");
            let key = find(&name).ok_or_else(|| unknown(&place, &name))?;
            let value = serde_json::to_value(&value).unwrap_or(Value::Null);
            values.push((key, value));
        }
    }
    Ok(values)
}

/// Parses the text of a flag or a variable.
fn from_text(key: &Key, text: &str) -> Value {
    let parsed = match key.kind {
        ValueKind::Integer(..) => text.parse::<u64>().ok().map(Value::from),
        ValueKind::Number(..) => text.parse::<f64>().ok().map(Value::from),
        ValueKind::Bool => match text {
            "true" | "1" | "yes" | "on" => Some(json!(true)),
            "false" | "0" | "no" | "off" => Some(json!(false)),
            _ => None,
        },
        ValueKind::Text | ValueKind::Path | ValueKind::OneOf(_) => None,
    };
    parsed.unwrap_or_else(|| json!(text))
}

/// Validates a value and expands `~/` in paths.
fn accept(key: &Key, value: Value, sources: &Sources, place: &str) -> Result<Value, ConfigError> {
    let problem = |wanted: String| {
        let problem = format!("is {value}; give {wanted}");
        Err(ConfigError::Value { place: place.to_owned(), key: key.name.to_owned(), problem })
    };
    match key.kind {
        ValueKind::Text => match value.as_str() {
            Some(text) if !text.is_empty() => Ok(value),
            _ => problem("a non-empty string".to_owned()),
        },
        ValueKind::Path => match (value.as_str(), sources.home()) {
            (Some(text), Some(home)) if text.starts_with("~/") => {
                Ok(json!(format!("{home}{}", &text[1..])))
            }
            (Some(text), _) if !text.is_empty() && !text.contains('\0') => Ok(value),
            _ => problem("a path".to_owned()),
        },
        ValueKind::Integer(least, most) => match value.as_u64() {
            Some(number) if (least..=most).contains(&number) => Ok(value),
            _ => problem(format!("a whole number from {least} to {most}")),
        },
        ValueKind::Number(least, most) => match value.as_f64() {
            Some(number) if (least..=most).contains(&number) => Ok(json!(number)),
            _ => problem(format!("a number from {least} to {most}")),
        },
        ValueKind::Bool => match value.as_bool() {
            Some(_) => Ok(value),
            None => problem("true or false".to_owned()),
        },
        ValueKind::OneOf(words) => match value.as_str() {
            Some(text) if words.contains(&text) => Ok(value),
            _ => problem(words.join(", ")),
        },
    }
}
