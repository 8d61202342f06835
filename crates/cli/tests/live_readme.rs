//! The transcript of the README is what happens: its commands are executed, and what they print is what
//! it says, where `...` stands for anything and a decimal number for one that is not far from it.

#![allow(clippy::unwrap_used)]

mod common;

use common::processes::end_processes_of;
use common::sample_job;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// How long the jobs have time to share and to be measured.
const PATIENCE: Duration = Duration::from_secs(180);

/// Commands of the first transcript, each with the lines that it is said to print.
fn transcript() -> Vec<(String, Vec<String>)> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let begin = readme.find("```console\n").expect("the README has a transcript");
    let text = readme[begin..].split("```").nth(1).unwrap();
    let mut steps: Vec<(String, Vec<String>)> = Vec::new();
    for line in text.lines().skip(1).filter(|line| !line.starts_with("# ")) {
        match line.strip_prefix("$ ") {
            Some(command) => steps.push((command.to_owned(), Vec::new())),
            None => steps.last_mut().unwrap().1.push(line.to_owned()),
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

/// What is installed is the program under test; whether the packages can be installed is another test.
const INSTALL: &str = "pip install tandem-gpu";

#[test]
fn the_transcript_of_the_readme_is_what_happens() {
    let session = Session { folder: tempfile::tempdir().unwrap() };
    let steps = transcript();
    assert!(steps.len() <= 6, "{} commands are too many for a newcomer", steps.len());
    assert_eq!(steps[0], (INSTALL.to_owned(), Vec::new()));
    for (command, expected) in &steps[1..] {
        // On a busy machine it takes longer until there is something to see; looking again changes nothing.
        let looks = ["tandem gpus", "tandem info last"].contains(&command.as_str());
        let begin = Instant::now();
        loop {
            let output = session.run(command);
            let text = String::from_utf8(output.stdout).unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> = text.lines().collect();
            if output.status.success() && all_fit(expected, &lines) {
                break;
            }
            assert!(
                looks && begin.elapsed() < PATIENCE,
                "$ {command}\nexpected:\n{}\nprinted:\n{text}{said}",
                expected.join("\n")
            );
            std::thread::sleep(Duration::from_secs(1));
        }
    }
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
