//! Runs tests by name, a few at a time. The usual harness prints to the standard output that the
//! supervisor's second stage reports through, so this binary has its own.

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A test and its name.
pub(crate) type Test = (&'static str, fn());

/// How many run at a time.
const ABREAST: usize = 4;

/// Runs those whose names contain one of the arguments, or all.
pub(crate) fn run(arguments: &[String], tests: &[&[Test]]) -> ExitCode {
    let flag = |name: &str| arguments.iter().any(|argument| argument == name);
    let mut words = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--format" | "--test-threads" | "--skip" | "--color" | "--logfile" => drop(rest.next()),
            other if other.starts_with('-') => {}
            other => words.push(other),
        }
    }
    let wanted = |name: &str| {
        words.is_empty()
            || words
                .iter()
                .any(|&word| if flag("--exact") { name == word } else { name.contains(word) })
    };
    let chosen: Vec<Test> = tests
        .iter()
        .flat_map(|tests| tests.iter())
        .copied()
        .filter(|(name, _)| wanted(name))
        .collect();
    if flag("--list") {
        let shown = if flag("--ignored") { &[] } else { chosen.as_slice() };
        shown.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    println!("\nrunning {} tests", chosen.len());
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..ABREAST {
            scope.spawn(|| {
                while let Some(&(name, test)) = chosen.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let begin = Instant::now();
                    let ok = catch_unwind(test).is_ok();
                    let ms = begin.elapsed().as_millis();
                    println!("test {name} ... {} ({ms} ms)", if ok { "ok" } else { "FAILED" });
                    if !ok {
                        failed.lock().unwrap().push(name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    println!(
        "\ntest result: {} passed; {} failed {failed:?}\n",
        chosen.len() - failed.len(),
        failed.len()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
