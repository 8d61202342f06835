//! The files in `examples/` and the commands that its README gives for them.

mod common;

use common::{listing, read, succeed_in, workspace};

#[test]
fn every_command_of_the_readme_runs_and_every_file_is_used() {
    let examples = workspace().join("examples");
    let readme = read(&examples.join("README.md"));
    let commands: Vec<&str> =
        readme.lines().filter_map(|line| line.strip_prefix("    tandem ")).collect();
    assert!(commands.len() >= 5, "{commands:?}");
    let before = listing(&examples);
    for command in &commands {
        let args: Vec<&str> = command.split_whitespace().collect();
        let ran = succeed_in(&examples, &args);
        assert!(!ran.stdout.is_empty(), "{command}");
    }
    assert!(listing(&examples) == before, "a command of the README writes into the folder");
    let files = before.iter().filter(|(_, content)| content.is_some()).map(|(name, _)| name);
    for name in files.filter(|name| !name.ends_with("README.md")) {
        let name = name.display().to_string();
        let used = commands.iter().any(|command| command.contains(&name));
        // Scripts are not read by `tandem`; the tests of the Python module run them.
        assert!(used || name.starts_with("python"), "{name} is not used");
        assert!(readme.contains(&format!("`{name}`")), "{name} is not described");
    }
}

/// The table has measured pairs for every class of the trace, or it would show nothing.
#[test]
fn the_pairs_are_those_of_the_trace() {
    let examples = workspace().join("examples");
    let class = |line: &str, columns: [usize; 4]| {
        let fields: Vec<&str> = line.split(',').collect();
        columns.map(|column| fields[column].to_owned())
    };
    let (trace, pairs) = (read(&examples.join("trace.csv")), read(&examples.join("pairs.csv")));
    let known: Vec<_> = pairs.lines().skip(1).map(|line| class(line, [1, 2, 4, 5])).collect();
    for line in trace.lines().skip(1) {
        assert!(known.contains(&class(line, [7, 8, 9, 10])), "{line}");
    }
}
