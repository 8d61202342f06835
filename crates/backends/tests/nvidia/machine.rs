//! A machine with two fake GPUs.

use serde_json::{Value, json};
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tandem_backends::providers::nvidia::{MpsOptions, Nvidia, NvidiaOptions};
use tandem_backends::{DeviceAllocation, ProviderError};
use tempfile::TempDir;

pub(crate) const FIRST: &str = "GPU-11111111-aaaa-aaaa-aaaa-aaaaaaaaaaaa";
pub(crate) const SECOND: &str = "GPU-22222222-bbbb-bbbb-bbbb-bbbbbbbbbbbb";
pub(crate) const GIB: u64 = 1 << 30;

/// A machine as NVML and the MPS control program show it.
pub(crate) struct Machine {
    dir: TempDir,
}

impl Machine {
    pub(crate) fn new(state: &Value) -> Machine {
        let machine = Machine { dir: tempfile::tempdir().unwrap() };
        // Cargo puts the library beside the tests that depend on it.
        let built = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
        fs::copy(&built, machine.library())
            .unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        machine.set(state);
        machine
    }

    pub(crate) fn with_two() -> Machine {
        Machine::new(&two())
    }

    pub(crate) fn set(&self, state: &Value) {
        fs::write(self.path().join("state.json"), state.to_string()).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn library(&self) -> PathBuf {
        self.path().join("libnvidia-ml.so.1")
    }

    /// Removes a function from the library by renaming it.
    pub(crate) fn lose(&self, function: &str) {
        let mut bytes = fs::read(self.library()).unwrap();
        let found: Vec<usize> = bytes
            .windows(function.len() + 1)
            .enumerate()
            .filter(|(_, part)| part.starts_with(function.as_bytes()) && part.ends_with(b"\0"))
            .map(|(at, _)| at)
            .collect();
        assert!(!found.is_empty());
        for at in found {
            bytes[at] = b'x';
        }
        fs::remove_file(self.library()).unwrap();
        fs::write(self.library(), bytes).unwrap();
    }

    pub(crate) fn options(&self) -> NvidiaOptions {
        NvidiaOptions { lib_path: Some(self.library()), mps: None, pause: false }
    }

    pub(crate) fn open(&self) -> Result<Nvidia, ProviderError> {
        Nvidia::open(self.options())
    }

    pub(crate) fn mps_options(&self) -> NvidiaOptions {
        let control = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mps-control");
        NvidiaOptions { mps: Some(MpsOptions { control, dir: self.mps() }), ..self.options() }
    }

    pub(crate) fn open_mps(&self) -> Nvidia {
        Nvidia::open(self.mps_options()).unwrap()
    }

    pub(crate) fn mps(&self) -> PathBuf {
        self.path().join("mps")
    }

    /// Writes a file that the control program reads.
    pub(crate) fn write(&self, name: &str, text: &dyn Display) {
        let path = self.mps().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// The calls of the control program, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.mps().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Calls that contain a word.
    pub(crate) fn calls_with(&self, word: &str) -> Vec<String> {
        self.calls().into_iter().filter(|call| call.contains(word)).collect()
    }
}

pub(crate) fn two() -> Value {
    json!({"driver_version": "550.54.15", "devices": [
        {"uuid": FIRST, "name": "Tesla V100", "memory_total": 16 * GIB, "memory_used": GIB, "utilisation": 40,
         "capability": [7, 0]},
        {"uuid": SECOND, "name": "A100", "memory_total": 40 * GIB, "capability": [8, 0], "mig": false},
    ]})
}

pub(crate) fn allocation(devices: &[u32]) -> DeviceAllocation {
    DeviceAllocation {
        devices: devices.to_vec(),
        share_ppm: 1_000_000,
        memory_bytes: 0,
        sub_batches: 1,
        goes_first: false,
    }
}

pub(crate) fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A process that ends with the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Process {
        Process(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn sleep() -> Process {
        Process::start(Command::new("sleep").arg("60"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn absent<T>(result: Result<T, ProviderError>) -> String {
    match result.err() {
        Some(ProviderError::Absent(line)) => line,
        other => panic!("expected Absent, found {other:?}"),
    }
}

pub(crate) fn failed<T>(result: Result<T, ProviderError>) -> String {
    match result.err() {
        Some(ProviderError::Failed(line)) => line,
        other => panic!("expected Failed, found {other:?}"),
    }
}
