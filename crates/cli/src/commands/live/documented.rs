//! Every command line in the documents is one that the program accepts: its options exist, have values of the right
//! form and do not exclude each other.

use super::script::words;
use crate::help;
use std::path::{Path, PathBuf};
use tandem_daemon::job::JobState;

/// Markdown files of a folder and of those in it, without what the program writes.
fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("reference") {
            pages(&path, found);
        } else if path.extension().is_some_and(|end| end == "md") {
            found.push(path);
        }
    }
}

/// Lines of code blocks and code spans that begin with `tandem`; in a transcript the lines after `$`.
fn commands(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", " ");
    let mut found = Vec::new();
    for (index, part) in text.split("```").enumerate() {
        if index % 2 == 0 {
            found.extend(part.split('`').skip(1).step_by(2).map(str::to_owned));
            continue;
        }
        let is_transcript = part.contains("\n$ ");
        let lines = part.lines().filter(|line| !is_transcript || line.starts_with("$ "));
        found.extend(lines.map(|line| line.trim_start().trim_start_matches("$ ").to_owned()));
    }
    let parts = found.iter().flat_map(|line| line.split("; ")).map(str::trim);
    parts.filter(|part| part.starts_with("tandem ")).map(str::to_owned).collect()
}

/// A word for which a reader puts in something of their own, or one of alternatives.
fn is_pattern(word: &str) -> bool {
    let is_value = ["ALL", "NONE"].contains(&word) || JobState::parse(word).is_some();
    let is_name = word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    (is_name && !is_value)
        || word.starts_with('[')
        || word.contains(['|', '…', '$', '<'])
        || word.contains("...")
}

/// What the program says against a command, if anything.
fn complaint(command: &str) -> Option<String> {
    let words = words(command)?;
    let end = |word: &&String| !["|", ">", "&&", "&", "<"].contains(&word.as_str());
    let words: Vec<String> = words.iter().take_while(end).cloned().collect();
    if words.len() < 2 || words.iter().take_while(|word| *word != "--").any(|word| is_pattern(word))
    {
        return None;
    }
    let error = help::command().try_get_matches_from(words).err()?;
    let is_help = !error.use_stderr();
    let first = error.to_string().lines().next().unwrap_or("").to_owned();
    // Prose names a command without the job that it needs, an option without its value.
    let is_short = first.ends_with("but none was supplied")
        || error.kind() == clap::error::ErrorKind::MissingRequiredArgument
        || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    (!is_help && !is_short).then_some(first)
}

#[test]
fn every_command_line_of_the_documents_is_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md")];
    pages(&root.join("docs"), &mut found);
    let (mut count, mut wrong) = (0, Vec::new());
    for page in found {
        for command in commands(&std::fs::read_to_string(&page).unwrap()) {
            count += 1;
            if let Some(complaint) = complaint(&command) {
                wrong.push(format!("{}: {command}: {complaint}", page.display()));
            }
        }
    }
    assert!(count > 100, "only {count} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(complaint("tandem queue --all --state OOM").is_some());
    assert!(complaint("tandem wait 1 --timeout soon").is_some());
}
