//! Transcripts (code blocks marked `console`) of the README and of the documents are what happens: their commands are
//! executed, and what they print is what they say, where `...` stands for anything and a decimal number for one that
//! is not far from it.

#![allow(clippy::unwrap_used)]

mod common;

use common::processes::end_processes_of;
use common::{sample_job, workspace};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// How long the jobs have time to share and to be measured.
const PATIENCE: Duration = Duration::from_secs(180);

fn page(name: &str) -> String {
    std::fs::read_to_string(workspace().join(name)).unwrap()
}

/// Commands of a page's transcripts, each with the lines that it is said to print.
fn transcript(page: &str) -> Vec<(String, Vec<String>)> {
    let mut steps: Vec<(String, Vec<String>)> = Vec::new();
    for block in page.split("```console\n").skip(1) {
        let text = block.split("```").next().unwrap();
        for line in text.lines().filter(|line| !line.starts_with("# ")) {
            match line.strip_prefix("$ ") {
                Some(command) => steps.push((command.to_owned(), Vec::new())),
                None => steps.last_mut().unwrap().1.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Measured numbers may be this many times as large or as small on another machine.
const FACTOR: f64 = 1.6;

/// A decimal number such as `1.73`; whole numbers are names of jobs and devices.
fn decimal(word: &str) -> Option<f64> {
    let plain = word.trim_end_matches([',', ';', ')']);
    plain.split_once('.').filter(|(whole, part)| !whole.is_empty() && !part.is_empty())?;
    plain.parse().ok()
}

/// Whether a word is what was expected: the same, or a number that is close.
fn word_fits(expected: &str, word: &str) -> bool {
    match (decimal(expected), decimal(word)) {
        (Some(expected), Some(number)) => {
            number <= expected * FACTOR && number * FACTOR >= expected
        }
        _ => expected == word,
    }
}

/// Whether a line is what was expected, where the word `...` stands for any words.
fn fits(expected: &str, line: &str) -> bool {
    fn all(expected: &[&str], words: &[&str]) -> bool {
        match (expected.split_first(), words.split_first()) {
            (None, None) => true,
            (Some((&"...", rest)), _) => {
                all(rest, words) || !words.is_empty() && all(expected, &words[1..])
            }
            (Some((first, rest)), Some((word, words))) => {
                word_fits(first, word) && all(rest, words)
            }
            _ => false,
        }
    }
    let (expected, line): (Vec<&str>, Vec<&str>) =
        (expected.split_whitespace().collect(), line.split_whitespace().collect());
    all(&expected, &line)
}

/// Whether lines are what was expected, where a line of `...` stands for any number of them.
fn all_fit(expected: &[String], lines: &[&str]) -> bool {
    match (expected.split_first(), lines.split_first()) {
        (None, None) => true,
        (Some((first, rest)), _) if first.trim() == "..." => {
            all_fit(rest, lines) || !lines.is_empty() && all_fit(expected, &lines[1..])
        }
        (Some((first, rest)), Some((line, lines))) => fits(first, line) && all_fit(rest, lines),
        _ => false,
    }
}

struct Session {
    folder: tempfile::TempDir,
}

impl Session {
    fn run(&self, command: &str) -> Output {
        let path = std::env::var("PATH").unwrap();
        let beside = Path::new(sample_job()).parent().unwrap().display();
        let folder = self.folder.path();
        Command::new("sh")
            .args(["-c", command])
            .current_dir(folder)
            .env("PATH", format!("{beside}:{path}"))
            .env("NO_COLOR", "1")
            .env("XDG_RUNTIME_DIR", folder.join("run"))
            .env("XDG_STATE_HOME", folder.join("state"))
            .env("XDG_CONFIG_HOME", folder.join("config"))
            .env("TANDEM_DAEMON__STATE", folder.join("state"))
            .env("TANDEM_DAEMON__SOCKET", folder.join("d.sock"))
            .output()
            .unwrap()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.run("tandem cancel all; tandem wait --timeout 30s all; tandem daemon stop");
        end_processes_of(self.folder.path());
    }
}

/// How a checkout is installed: what these commands put into the PATH is the program under test here, built already;
/// whether the packages can be installed is another test.
const INSTALL: &str = "
```
cargo build --release -p tandem-cli -p tandem-train
export PATH=$PWD/target/release:$PATH PYTHONPATH=$PWD/python/src
```
";

/// The first steps with Tandem, in more words.
const TUTORIAL: &str = "docs/tutorials/first-shared-pair.md";

/// Runs a step until it prints what is expected; whether that came in time.
fn check(session: &Session, command: &str, expected: &[String]) {
    // On a busy machine it takes longer until there is something to see; looking again changes nothing.
    let looks = ["tandem gpus", "tandem info last"].contains(&command);
    let begin = Instant::now();
    loop {
        let output = session.run(command);
        let text = String::from_utf8(output.stdout).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().collect();
        if output.status.success() && all_fit(expected, &lines) {
            return;
        }
        assert!(
            looks && begin.elapsed() < PATIENCE,
            "$ {command}\nexpected:\n{}\nprinted:\n{text}{said}",
            expected.join("\n")
        );
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn the_transcript_of_the_readme_is_what_happens_and_the_tutorial_ends_it() {
    let session = Session { folder: tempfile::tempdir().unwrap() };
    let readme = page("README.md");
    assert!(readme.contains(INSTALL), "README.md installs a checkout in another way");
    let to_install = INSTALL.trim().lines().filter(|line| !line.starts_with("```")).count();
    let steps = transcript(&readme);
    let count = to_install + steps.len();
    assert!(count <= 6, "{count} commands are too many for a newcomer");
    for (command, expected) in &steps {
        check(&session, command, expected);
    }
    // The tutorial has the same commands, and those that end it.
    let tutorial = transcript(&page(TUTORIAL));
    let (same, end) = tutorial.split_at(steps.len());
    for ((command, _), (other, _)) in steps.iter().zip(same) {
        assert_eq!(other.trim_start_matches("sleep 30; "), command);
    }
    assert_eq!(end.len(), 2, "{end:?}");
    for (command, _) in end {
        check(&session, command, &["...".to_owned()]);
    }
}

#[test]
fn transcripts_of_the_documents_are_what_is_printed() {
    let mut count = 0;
    for (name, content) in common::listing(&workspace().join("docs")) {
        let is_page = name.extension().is_some_and(|end| end == "md");
        if !is_page || TUTORIAL.ends_with(name.to_str().unwrap()) {
            continue;
        }
        let session = Session { folder: tempfile::tempdir().unwrap() };
        for (command, expected) in transcript(&String::from_utf8(content.unwrap()).unwrap()) {
            check(&session, &command, &expected);
            count += 1;
        }
    }
    assert!(count >= 2, "{count} commands were found");
}

#[test]
fn dots_stand_for_anything_and_numbers_for_close_ones() {
    assert!(fits("  beside  job 2 ...", "  beside  job 2 (left)"));
    assert!(fits("4   alone ... CA ...", "   4   alone  root  CA  0:00 "));
    assert!(!fits("state running", "state pending"));
    assert!(fits(
        "slow-down predicted 1.29, measured 1.10",
        "slow-down  predicted 1.10, measured 1.31"
    ));
    assert!(!fits("throughput 1.73 times", "throughput 0.93 times"));
    assert!(!fits("beside job 2", "beside job 3"));
    let expected = ["a".to_owned(), "...".to_owned(), "z".to_owned()];
    assert!(all_fit(&expected, &["a", "b", "c", "z"]) && all_fit(&expected, &["a", "z"]));
    assert!(!all_fit(&expected, &["a", "b"]));
}
