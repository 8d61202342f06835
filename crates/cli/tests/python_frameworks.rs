//! Training jobs with torch, DDP, Hugging Face's Trainer and Lightning under a real daemon: paused, stopped with a
//! checkpoint, requeued and finished with the losses of the same job without interruption. They run in the
//! environment that `scripts/python-env` makes, and are skipped in one line where it cannot be had. With
//! `TANDEM_TEST_FRAMEWORKS=1` also Composer, DDP under the frameworks and the adapters of `tandem.integrations`.

mod common;

use common::{finish, skipped, tell, workspace};
use std::path::PathBuf;
use std::process::Command;

/// The interpreter that has the frameworks.
fn interpreter() -> Option<PathBuf> {
    let ran = finish(Command::new(workspace().join("scripts/python-env")).arg("--find"));
    (ran.code == Some(0)).then(|| PathBuf::from(ran.stdout.trim()))
}

/// Types and style, one job of each kind, and two ranks whose sub-batches change: two minutes on a quiet machine.
const EACH_KIND: [&str; 8] = [
    "test_lint",
    "test_live.Torch.test_unmodified",
    "test_live.Torch.test_saves_on_a_signal",
    "test_live.Torch.test_with_tandem_job",
    "test_live.Torch.test_ddp",
    "test_live.HuggingFace.test_trainer",
    "test_live.Lightning.test_trainer",
    "test_units.Epochs",
];

#[test]
fn frameworks() {
    let Some(python) = interpreter() else {
        skipped("scripts/python-env makes the environment to test torch and the frameworks");
        return;
    };
    let folder = |name: &str| workspace().join(name).canonicalize().expect("the folder is there");
    let path =
        std::env::join_paths(["python/src", "python/tests"].map(folder)).expect("plain paths");
    let mut command = Command::new(python);
    command.args(["-m", "unittest"]);
    if std::env::var_os("TANDEM_TEST_FRAMEWORKS").is_some() {
        command.args(["discover", "-v"]);
    } else {
        command.arg("-v").args(EACH_KIND);
    }
    command
        .current_dir(folder("python/tests/frameworks"))
        .env("PYTHONPATH", path)
        .env("TANDEM_TEST_BINARY", env!("CARGO_BIN_EXE_tandem"));
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
