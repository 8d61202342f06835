//! `tandem --help`: the commands grouped by what people do with them.

use crate::args::Cli;
use clap::{Command, CommandFactory};

/// Commands that belong together.
struct CommandGroup {
    title: &'static str,
    commands: &'static [&'static str],
}

/// Every visible command is in exactly one group, which a test checks.
const GROUPS: [CommandGroup; 5] = [
    CommandGroup {
        title: "Jobs",
        commands: &[
            "submit", "run", "queue", "info", "explain", "logs", "wait", "cancel", "hold",
            "release", "pause", "resume", "requeue", "accum",
        ],
    },
    CommandGroup {
        title: "GPUs and users",
        commands: &["top", "dashboard", "gpus", "reserve", "usage", "classes"],
    },
    CommandGroup {
        title: "Daemon and administration",
        commands: &[
            "daemon",
            "doctor",
            "config",
            "token",
            "store",
            "slurm",
            "kube",
            "node",
            "mcp",
            "completions",
            "man",
        ],
    },
    CommandGroup {
        title: "Simulate and compare",
        commands: &["demo", "sim", "compare", "trace", "export"],
    },
    CommandGroup {
        title: "Research tools",
        commands: &["replay", "bench", "model", "matching", "device"],
    },
];

/// The command line with its help.
pub(crate) fn command() -> Command {
    let command = Cli::command();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}{}\n{{options}}{{after-help}}",
        groups(&command),
        heading(&command, "Options")
    );
    command.help_template(template).after_help("tandem COMMAND --help says more about a command.")
}

fn heading(command: &Command, title: &str) -> String {
    let style = command.get_styles().get_header();
    format!("{style}{title}:{style:#}")
}

fn groups(command: &Command) -> String {
    let style = command.get_styles().get_literal();
    let width = GROUPS.iter().flat_map(|group| group.commands).map(|name| name.len()).max();
    let width = width.unwrap_or(0);
    let line = |name: &&str| {
        let about = command.find_subcommand(name).and_then(Command::get_about);
        let about = about.map(ToString::to_string).unwrap_or_default();
        format!("  {style}{name:<width$}{style:#}  {about}\n")
    };
    GROUPS.iter().fold(String::new(), |text, group| {
        let lines: String = group.commands.iter().map(line).collect();
        format!("{text}{}\n{lines}\n", heading(command, group.title))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_is_in_exactly_one_group() {
        let command = Cli::command();
        let mut visible: Vec<&str> = command
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(Command::get_name)
            .collect();
        let mut grouped: Vec<&str> =
            GROUPS.iter().flat_map(|group| group.commands).copied().collect();
        visible.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, visible);
    }

    #[test]
    fn help_lists_live_commands_first_and_fits_a_terminal() {
        let text = command().render_help().to_string();
        let place = |name: &str| text.find(&format!("\n  {name} ")).expect("it is listed");
        assert!(place("submit") < place("daemon") && place("daemon") < place("sim"), "{text}");
        assert!(place("compare") < place("bench"), "{text}");
        assert!(!text.contains("\n  train "), "{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "too long: {line}");
        }
    }
}
