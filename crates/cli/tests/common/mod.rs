//! What the tests of the binary share: running it, looking at folders, a small seeded generator.

// Every test file is a crate of its own and uses only part of this.
#![allow(dead_code)]

pub(crate) mod cluster_daemon;
pub(crate) mod daemon;
pub(crate) mod processes;
pub(crate) mod refusal;
pub(crate) mod server;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;

/// The header of `--jobs-csv`, the contract with whoever reads it.
pub(crate) const JOBS_HEADER: &str =
    "job_id,partition,submit_s,start_s,end_s,gpus,nodes,shared_s,preemptions";

/// What a finished command left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The only object on standard output.
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.stdout.lines().count(), 1, "one object on one line: {self:?}");
        serde_json::from_str(&self.stdout).expect("standard output is JSON")
    }
}

/// The binary, with nothing on standard input.
pub(crate) fn tandem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(args).stdin(Stdio::null());
    command
}

/// The sample job, which lies beside the binary. Cargo builds no program of another package for a test, so it
/// is built here unless `cargo test --workspace` has done it.
pub(crate) fn sample_job() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        let program = Path::new(env!("CARGO_BIN_EXE_tandem")).with_file_name("tandem-train");
        let folder = program.parent().expect("a program lies in a folder");
        let written = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
        let sources =
            std::fs::read_dir(workspace().join("crates/train/src")).expect("the sources are there");
        let newest = sources.filter_map(|entry| written(&entry.ok()?.path())).max();
        if written(&program) < newest {
            let profile = match folder.file_name().and_then(|name| name.to_str()) {
                Some("debug") | None => "dev",
                Some(name) => name,
            };
            let built = Command::new(env!("CARGO"))
                .args(["build", "--locked", "--package", "tandem-train", "--profile", profile])
                .arg("--target-dir")
                .arg(folder.parent().expect("the folder of the profile is in the target folder"))
                .current_dir(workspace())
                .status();
            assert!(built.is_ok_and(|status| status.success()), "tandem-train cannot be built");
        }
        program.to_str().expect("a plain path").to_owned()
    })
}

/// Runs it in `dir`, so that relative paths in `args` and in messages mean files of the test.
pub(crate) fn run_in(dir: &Path, args: &[&str]) -> Ran {
    finish(tandem(args).current_dir(dir))
}

/// Runs it in `dir` and insists on success.
pub(crate) fn succeed_in(dir: &Path, args: &[&str]) -> Ran {
    let ran = run_in(dir, args);
    assert_eq!(ran.code, Some(0), "tandem {args:?}: {}", ran.stderr);
    ran
}

pub(crate) fn finish(command: &mut Command) -> Ran {
    let output = command.output().expect("the command can be started");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// An empty folder that goes away with the test.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder can be made")
}

pub(crate) fn write(dir: &Path, name: &str, content: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), content).expect("a test file can be written");
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Everything below `dir`: files with their content, folders with none.
pub(crate) fn listing(dir: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![dir.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder can be listed") {
            let path = entry.expect("a folder can be listed").path();
            let name = path.strip_prefix(dir).expect("it lies below").to_owned();
            if path.is_dir() {
                found.insert(name, None);
                folders.push(path);
            } else {
                found.insert(name, Some(std::fs::read(&path).expect("a file can be read")));
            }
        }
    }
    found
}

/// The root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder of reference data, or `None` after saying that the test is skipped.
pub(crate) fn reference_data() -> Option<PathBuf> {
    let data = workspace().join("../shared/data");
    if data.is_dir() {
        return Some(data);
    }
    skipped("the reference data folder ../shared/data is not there");
    None
}

/// Says that a test did nothing.
pub(crate) fn skipped(why: &str) {
    tell(&format!("skipped: {why}"));
}

/// Says something that is worth reading. Written past the capture of the test harness, because nobody
/// looks at the output of a test that passes.
pub(crate) fn tell(what: &str) {
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    // A closed standard error is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{name}: {what}");
}

/// SplitMix64: a few lines, and the same numbers for ever.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True once in `n`.
    pub(crate) fn once_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let last = u64::try_from(of.len()).expect("short") - 1;
        of[usize::try_from(self.between(0, last)).expect("short")]
    }
}
