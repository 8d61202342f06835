//! The Python module: its own tests, and that it can be installed.

mod common;

use common::{Ran, finish, folder, skipped, workspace};
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
fn installation() {
    if !has_python() {
        return;
    }
    let dir = folder();
    let venv = dir.path().join("venv");
    if finish(python(Path::new("python3")).args(["-m", "venv"]).arg(&venv)).code != Some(0) {
        skipped("python3 -m venv does not work here");
        return;
    }
    let program = venv.join("bin/python3");
    // Built from a copy: setuptools leaves folders beside the source.
    let copy = dir.path().join("python");
    let copied = Command::new("cp").arg("-r").arg(workspace().join("python")).arg(&copy).status();
    assert!(copied.is_ok_and(|status| status.success()), "the module can be copied");
    // With what the machine has, and as a user would, for which setuptools is fetched.
    let ways: [&[&str]; 2] = [&["--no-index", "--no-build-isolation"], &[]];
    let [mut offline, mut plain] = ways.map(|options| {
        let mut command = python(&program);
        command.args(["-m", "pip", "install", "--quiet"]).args(options).arg(&copy);
        command.env("PIP_DISABLE_PIP_VERSION_CHECK", "1").env("PIP_RETRIES", "0");
        command
    });
    if finish(&mut offline).code != Some(0) {
        let ran = finish(&mut plain);
        if ran.stderr.contains("No matching distribution found for setuptools") {
            skipped("neither setuptools and wheel nor a network to fetch them");
            return;
        }
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
    let told = "import tandem; print(tandem.__version__, tandem.Job().accum, tandem.__file__)";
    let ran = finish(python(&program).current_dir(dir.path()).args(["-c", told]));
    assert!(ran.stdout.starts_with("0.1.0 1 "), "{ran:?}");
    assert!(ran.stdout.contains("site-packages"), "{ran:?}");
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
