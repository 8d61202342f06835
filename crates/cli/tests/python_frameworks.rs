//! Training jobs with torch, Hugging Face's Trainer, Lightning and DDP under a real daemon, and the adapters of
//! `tandem.integrations` by themselves. Runs with `TANDEM_TEST_FRAMEWORKS=1`, in the environment that
//! `scripts/python-env` makes; skipped in one line otherwise.

mod common;

use common::{finish, skipped, tell, workspace};
use std::path::PathBuf;
use std::process::Command;

/// The interpreter that has the frameworks.
fn interpreter() -> Option<PathBuf> {
    let ran = finish(Command::new(workspace().join("scripts/python-env")).arg("--find"));
    (ran.code == Some(0)).then(|| PathBuf::from(ran.stdout.trim()))
}

#[test]
fn frameworks() {
    let wanted = std::env::var_os("TANDEM_TEST_FRAMEWORKS").is_some();
    let Some(python) = interpreter().filter(|_| wanted) else {
        skipped(
            "set TANDEM_TEST_FRAMEWORKS=1 after scripts/python-env to test torch and the frameworks",
        );
        return;
    };
    let folder = |name: &str| workspace().join(name).canonicalize().expect("the folder is there");
    let built = std::env::current_exe().expect("the test has a path");
    let path =
        std::env::join_paths(["python/src", "python/tests"].map(folder)).expect("plain paths");
    let mut command = Command::new(python);
    command
        .args(["-m", "unittest", "discover", "-v"])
        .current_dir(folder("python/tests/frameworks"))
        .env("PYTHONPATH", path)
        .env("TANDEM_TEST_BINARY", env!("CARGO_BIN_EXE_tandem"))
        // Cargo puts the library beside the tests that depend on it.
        .env("TANDEM_TEST_FAKE_NVML", built.with_file_name("libfake_nvml.so"));
    let ran = finish(&mut command);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    for line in ran.stderr.lines() {
        if line.contains("... skipped") {
            skipped(line);
        } else if let Some((_, measured)) = line.split_once("measured: ") {
            tell(measured);
        }
    }
}
