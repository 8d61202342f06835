//! `tandem reference`: the pages of the documentation that the program itself knows best, as Markdown.

use crate::failure::Failure;
use crate::files::{Folder, OutputFile};
use crate::help;
use clap::{Arg, Command};
use std::path::Path;
use tandem_policies::REGISTRY;

/// Options that every command which talks to the daemon has; described once.
const COMMON: [&str; 5] = ["json", "color", "socket", "host", "token-file"];

pub(crate) fn write(out: &Path) -> Result<(), Failure> {
    let folder = Folder::open(out)?;
    let pages = [
        ("command-line.md", command_line()),
        ("configuration.md", configuration()),
        ("policy-parameters.md", policies()),
        ("api.md", api()),
    ];
    for (name, text) in pages {
        OutputFile::open(&out.join(name))?.write(|file| file.write_all(text.as_bytes()))?;
    }
    folder.keep();
    Ok(())
}

fn command_line() -> String {
    let mut command = help::command();
    command.build();
    let mut text = "# Commands and options\n\nWritten by `tandem reference` from the definition of the command line. \
                    Rules for all commands, states and exit codes: [command line](../cli.md).\n\n"
        .to_owned();
    let submit = command.find_subcommand("submit");
    let common: Vec<&Arg> = submit.iter().flat_map(|command| options(command, true)).collect();
    text += "## Commands that talk to the daemon\n\n";
    text += &table(&common);
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        describe(child, "tandem", &mut text);
    }
    text
}

/// A command and those below it.
fn describe(command: &Command, above: &str, text: &mut String) {
    if command.get_name() == "help" {
        return;
    }
    let name = format!("{above} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    *text += &format!("\n## `{name}`\n\n{about}.\n\n");
    let usage = command.clone().render_usage().to_string();
    *text += &format!("```text\n{}\n```\n\n", usage.trim_start_matches("Usage: "));
    let own: Vec<&Arg> = options(command, false).collect();
    if !own.is_empty() {
        *text += &table(&own);
    }
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        describe(child, &name, text);
    }
}

/// The visible arguments of a command: the common ones, or the others.
fn options(command: &Command, common: bool) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(move |arg| {
        let is_common = arg.get_long().is_some_and(|long| COMMON.contains(&long));
        !arg.is_hide_set()
            && is_common == common
            && !["help", "version"].contains(&arg.get_id().as_str())
    })
}

fn table(arguments: &[&Arg]) -> String {
    let mut text = "| option | meaning |\n|---|---|\n".to_owned();
    for arg in arguments {
        let values: Vec<&str> = arg
            .get_value_names()
            .unwrap_or_default()
            .iter()
            .map(clap::builder::Str::as_str)
            .collect();
        let takes_value = arg.get_action().takes_values();
        let value = if takes_value { values.join(" ") } else { String::new() };
        let name = match (arg.get_short(), arg.get_long()) {
            (Some(short), Some(long)) => format!("-{short}, --{long} {value}"),
            (None, Some(long)) => format!("--{long} {value}"),
            (Some(short), None) => format!("-{short} {value}"),
            (None, None) => value,
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let default: Vec<_> =
            arg.get_default_values().iter().map(|text| text.to_string_lossy()).collect();
        let default = if takes_value && !default.is_empty() {
            format!("; default `{}`", default.join(" "))
        } else {
            String::new()
        };
        text += &format!("| `{}` | {}{default} |\n", cell(name.trim()), cell(&help));
    }
    text
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ").replace('<', "&lt;")
}

fn configuration() -> String {
    format!(
        "# Configuration keys\n\nWritten by `tandem reference` from the keys of the program. Files and precedence: \
         [command line](../cli.md#configuration). `tandem config example` prints a file with all of them.\n\n{}",
        tandem_daemon::config::markdown()
    )
}

/// Every path of the daemon's interface, from its own description.
fn api() -> String {
    let mut text = "# HTTP interface\n\nWritten by `tandem reference` from [openapi.json](../openapi.json), which has every field and which \
                    the daemon serves at `/openapi.json`. It listens on a unix socket, and on TCP if configured ([security](../security.md)). \
                    An error is `{\"error\": …, \"code\": …}` with a status of 4xx or 5xx.\n\n| request | meaning |\n|---|---|\n"
        .to_owned();
    let description = serde_json::to_value(tandem_daemon::api::openapi()).unwrap_or_default();
    for (path, operations) in description["paths"].as_object().into_iter().flatten() {
        for (method, operation) in operations.as_object().into_iter().flatten() {
            let says = |field: &str| operation[field].as_str().unwrap_or_default();
            let summary =
                if says("summary").is_empty() { says("description") } else { says("summary") };
            let method = method.to_uppercase();
            text += &format!("| `{method} {path}` | {} |\n", cell(summary));
        }
    }
    text
}

fn policies() -> String {
    let mut text = "# Parameters of policies\n\nWritten by `tandem reference`. Set them with `NAME:key=value,...`. \
                    What the policies do: [policies](../policies.md).\n\n| policy | parameter | default | meaning |\n|---|---|---|---|\n"
        .to_owned();
    for entry in REGISTRY {
        text += &format!("| `{}` | | | {} |\n", entry.name, cell(entry.summary));
        for param in entry.params {
            let help = cell(param.help);
            text += &format!("| | `{}` | `{}` | {help} |\n", param.name, param.default);
        }
    }
    text
}
