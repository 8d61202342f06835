//! The configuration as a file and as a table, with every key: for packages and for the documentation.

use super::keys::{DefaultValue, KEYS, Key, ValueKind};

/// A configuration file in which every key is commented out, with its meaning and its default.
pub fn example() -> String {
    let mut text = "# Configuration of Tandem: /etc/tandem/config.toml for everyone, ~/.config/tandem/config.toml for one user.\n\
                    # Every key has its default, or an example where it has none. `tandem config show --origin` shows what is in force.\n"
        .to_owned();
    let mut current = "";
    for key in KEYS {
        let (section, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if section != current {
            text += &format!("\n[{section}]\n");
            current = section;
        }
        text += &format!("# {}{}\n# {name} = {}\n", key.help, allowed(key.kind), value(key));
    }
    text
}

/// A Markdown table of all keys.
pub fn markdown() -> String {
    let mut text = "| key | default | meaning |\n|---|---|---|\n".to_owned();
    for key in KEYS {
        let default = match key.default {
            DefaultValue::Absent => "none".to_owned(),
            DefaultValue::Computed(_) => "by user".to_owned(),
            _ => format!("`{}`", value(key)),
        };
        let allowed = allowed(key.kind).replace('|', "\\|");
        text += &format!("| `{}` | {default} | {}{allowed} |\n", key.name, key.help);
    }
    text
}

/// The value of a key in TOML: its default, else an example.
fn value(key: &Key) -> String {
    match (key.default, key.kind) {
        (DefaultValue::Text(text), _) => format!("{text:?}"),
        (DefaultValue::Integer(number), _) => number.to_string(),
        (DefaultValue::Number(number), _) => format!("{number:?}"),
        (DefaultValue::Bool(value), _) => value.to_string(),
        (_, ValueKind::OneOf(values)) => format!("{:?}", values.first().copied().unwrap_or("")),
        (_, ValueKind::Integer(least, most)) => 30.clamp(least, most).to_string(),
        (_, ValueKind::Number(least, most)) => format!("{:?}", 40_f64.clamp(least, most)),
        (_, ValueKind::Bool) => "true".to_owned(),
        (_, ValueKind::Path | ValueKind::Text) => format!("{:?}", example_text(key.name)),
    }
}

/// An example of a path or a text that has no default.
fn example_text(name: &str) -> &'static str {
    match name {
        "daemon.socket" => "/run/tandem/daemon.sock",
        "daemon.state" => "/var/lib/tandem",
        "daemon.shares" => "/etc/tandem/shares.toml",
        "daemon.listen" => "0.0.0.0:7171",
        "daemon.web" => "0.0.0.0:7172",
        "daemon.tls_cert" => "/etc/tandem/tls-cert.pem",
        "daemon.tls_key" => "/etc/tandem/tls-key.pem",
        "daemon.operators" => "ann,bob",
        "daemon.smtp" => "localhost:25",
        "client.host" => "gpu1:7171",
        "client.token_file" => "/etc/tandem/token",
        "client.ca_file" => "/etc/tandem/ca.pem",
        "learning.class_arguments" => "width,depth",
        "learning.class_ignore" => "note,tag",
        "nvidia.library" => "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "slurm.completions" => "/var/log/slurm/jobcomp",
        "slurm.listen" => "0.0.0.0:7173",
        _ => "",
    }
}

/// What a key allows, after its description.
fn allowed(kind: ValueKind) -> String {
    match kind {
        ValueKind::OneOf(values) => format!(": {}", values.join(", ")),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Origin, Sources};
    use super::*;

    /// The example with its keys uncommented, as a user would who sets them all.
    fn uncommented() -> String {
        let is_key = |line: &str| {
            let name = line.strip_prefix("# ").and_then(|line| line.split_once(" = "));
            name.is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
        };
        let line = |line: &str| if is_key(line) { line[2..].to_owned() } else { line.to_owned() };
        example().lines().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_key_of_the_example_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.toml");
        std::fs::write(&file, uncommented()).unwrap();
        let sources = Sources { files: vec![file.clone()], uid: 1000, ..Sources::default() };
        let (_, origins) = Config::resolve(&sources).unwrap();
        for key in KEYS {
            assert_eq!(*origins.of(key.name), Origin::File(file.clone()), "{}", key.name);
        }
    }

    #[test]
    fn every_path_and_address_of_the_example_is_another_one() {
        let is_text = |key: &&Key| matches!(key.kind, ValueKind::Path | ValueKind::Text);
        let values: Vec<String> = KEYS.iter().filter(is_text).map(value).collect();
        let distinct: std::collections::BTreeSet<&String> = values.iter().collect();
        let tandem = format!("{:?}", "tandem");
        // A policy, a namespace and a partition have the name of the program.
        let same = values.iter().filter(|value| **value == tandem).count();
        assert_eq!(distinct.len(), values.len() - same + 1, "{values:?}");
        assert!(!values.contains(&"\"\"".to_owned()), "{values:?}");
    }

    #[test]
    fn the_example_as_it_is_sets_nothing_and_the_table_names_every_key() {
        let table: toml::Table = example().parse().unwrap();
        assert!(
            table.values().all(|section| section.as_table().is_some_and(toml::Table::is_empty))
        );
        assert!(KEYS.iter().all(|key| markdown().contains(&format!("| `{}` |", key.name))));
    }
}
