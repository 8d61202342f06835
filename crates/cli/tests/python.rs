//! The Python module: its own tests. That it can be installed is a test of the packages.

mod common;

use common::{Ran, finish, skipped, workspace};
use std::path::Path;
use std::process::{Command, Stdio};

/// Whether there is a Python; says that the test is skipped if not.
fn has_python() -> bool {
    let ran = Command::new("python3").arg("--version").stdout(Stdio::null()).status();
    let there = ran.is_ok_and(|status| status.success());
    if !there {
        skipped("python3 is not installed");
    }
    there
}

/// Python that leaves no byte code in the checkout.
fn python(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    command
}

/// Runs the tests of the module with this Python, on the module that it finds.
fn run_tests(command: &mut Command) -> Ran {
    let tests = workspace().join("python/tests").canonicalize().expect("the tests are there");
    let ran = finish(command.current_dir(tests).args(["-W", "error", "-m", "unittest", "-v"]));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran
}

#[test]
fn module() {
    if !has_python() {
        return;
    }
    let source = workspace().join("python/src").canonicalize().expect("the module is there");
    let ran = run_tests(python(Path::new("python3")).env("PYTHONPATH", source));
    for line in ran.stderr.lines().filter(|line| line.contains("... skipped")) {
        skipped(line);
    }
}

#[test]
fn example_says_what_to_install() {
    if !has_python() {
        return;
    }
    let example = workspace().join("examples/python/train_torch.py");
    // Isolated, so that at least the module is not found.
    let ran = finish(python(Path::new("python3")).arg("-I").arg(example));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("install"), "{ran:?}");
}
