//! The provider of NVIDIA's GPUs on a machine without one: the management library is `fake-nvml`, and the
//! control program of MPS is the script `mps-control`. Nothing here shows what a GPU does; that is what
//! `scripts/prove-gpu` is for.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tandem_backends::providers::nvidia::{
    Control, MpsOptions, Nvidia, NvidiaOptions, family, foreign,
};
use tandem_backends::{DeviceSample, Enforcement, Provider, ProviderError, Seat};
use tempfile::TempDir;

const FIRST: &str = "GPU-11111111-aaaa-aaaa-aaaa-aaaaaaaaaaaa";
const SECOND: &str = "GPU-22222222-bbbb-bbbb-bbbb-bbbbbbbbbbbb";
const GIB: u64 = 1 << 30;

/// A machine as the library and the control program show it.
struct Machine {
    dir: TempDir,
}

impl Machine {
    fn new(state: &Value) -> Machine {
        let machine = Machine { dir: tempfile::tempdir().unwrap() };
        // Cargo puts the library beside the tests that depend on it.
        let built = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
        fs::copy(&built, machine.library())
            .unwrap_or_else(|error| panic!("{}: {error}", built.display()));
        machine.set(state);
        machine
    }

    fn with_two() -> Machine {
        Machine::new(&two())
    }

    fn set(&self, state: &Value) {
        fs::write(self.dir.path().join("state.json"), state.to_string()).unwrap();
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("libnvidia-ml.so.1")
    }

    /// Gives a function of the library another name.
    fn lose(&self, function: &str) {
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

    fn options(&self) -> NvidiaOptions {
        NvidiaOptions { lib_path: Some(self.library()), mps: None, pause: false }
    }

    fn open(&self) -> Result<Nvidia, ProviderError> {
        Nvidia::open(self.options())
    }

    fn mps_options(&self) -> NvidiaOptions {
        let control = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mps-control");
        NvidiaOptions { mps: Some(MpsOptions { control, dir: self.mps() }), ..self.options() }
    }

    fn open_mps(&self) -> Nvidia {
        Nvidia::open(self.mps_options()).unwrap()
    }

    fn mps(&self) -> PathBuf {
        self.dir.path().join("mps")
    }

    /// Writes a file that the control program reads.
    fn write(&self, name: &str, text: &dyn Display) {
        let path = self.mps().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// What the control program was asked, in order.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.mps().join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Calls that contain a word.
    fn calls_with(&self, word: &str) -> Vec<String> {
        self.calls().into_iter().filter(|call| call.contains(word)).collect()
    }
}

fn two() -> Value {
    json!({"driver_version": "550.54.15", "devices": [
        {"uuid": FIRST, "name": "Tesla V100", "memory_total": 16 * GIB, "memory_used": GIB, "utilisation": 40,
         "capability": [7, 0]},
        {"uuid": SECOND, "name": "A100", "memory_total": 40 * GIB, "capability": [8, 0], "mig": false},
    ]})
}

fn seat(devices: &[u32]) -> Seat {
    Seat {
        devices: devices.to_vec(),
        share_ppm: 1_000_000,
        memory_bytes: 0,
        sub_batches: 1,
        nice: 0,
    }
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// A process that ends with the test.
struct Process(Child);

impl Process {
    fn start(command: &mut Command) -> Process {
        Process(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn sleep() -> Process {
        Process::start(Command::new("sleep").arg("60"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn absent<T>(result: Result<T, ProviderError>) -> String {
    match result.err() {
        Some(ProviderError::Absent(line)) => line,
        other => panic!("expected Absent, found {other:?}"),
    }
}

fn failed<T>(result: Result<T, ProviderError>) -> String {
    match result.err() {
        Some(ProviderError::Failed(line)) => line,
        other => panic!("expected Failed, found {other:?}"),
    }
}

#[test]
fn finds_gpus_by_uuid() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open().unwrap();
    assert_eq!(nvidia.name(), "nvidia");
    assert_eq!(nvidia.driver().as_deref(), Some("550.54.15"));
    let devices = nvidia.list().unwrap();
    let shown: Vec<_> = devices
        .iter()
        .map(|d| (d.index, d.name.as_str(), d.kind.as_str(), d.memory_bytes))
        .collect();
    assert_eq!(shown, [(0, FIRST, "Tesla V100", 16 * GIB), (1, SECOND, "A100", 40 * GIB)]);
    assert!(nvidia.notes().is_empty());
}

/// The variable is for programs that load the library where Cargo put it; here one is this test itself.
#[test]
fn the_state_may_be_named_by_the_environment() {
    let library = std::env::current_exe().unwrap().with_file_name("libfake_nvml.so");
    if std::env::var_os("FAKE_NVML_STATE").is_some() {
        let options = NvidiaOptions { lib_path: Some(library), ..Default::default() };
        assert_eq!(Nvidia::open(options).unwrap().list().unwrap().len(), 2);
        return;
    }
    let state = Machine::with_two();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_state_may_be_named_by_the_environment"])
        .env("FAKE_NVML_STATE", state.dir.path().join("state.json"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn leaves_out_what_it_cannot_use_and_says_so() {
    let mut state = two();
    state["devices"][0]["mig"] = json!(true);
    let machine = Machine::new(&state);
    let mut nvidia = machine.open().unwrap();
    let devices = nvidia.list().unwrap();
    assert_eq!((devices.len(), devices[0].index, devices[0].name.as_str()), (1, 0, SECOND));
    assert_eq!(nvidia.notes().len(), 1);
    assert!(
        nvidia.notes()[0].contains("GPU 0") && nvidia.notes()[0].contains("MIG"),
        "{:?}",
        nvidia.notes()
    );

    state["devices"][1]["mig"] = json!(true);
    machine.set(&state);
    assert!(absent(machine.open()).contains("MIG"));

    let mut state = two();
    state["devices"][0]["lost"] = json!(true);
    state["devices"][1]["memory_total"] = Value::Null;
    machine.set(&state);
    assert!(failed(machine.open()).contains("fallen off the bus"));
}

#[test]
fn no_library_no_driver_and_no_gpu_are_normal() {
    let options =
        NvidiaOptions { lib_path: Some("/nowhere/libnvidia-ml.so.1".into()), ..Default::default() };
    let line = absent(Nvidia::open(options));
    assert!(line.contains("/nowhere/libnvidia-ml.so.1") && !line.contains('\n'), "{line}");

    let machine = Machine::new(&json!({"driver": false}));
    assert_eq!(absent(machine.open()), "the NVIDIA driver is not loaded");
    machine.set(&json!({"devices": []}));
    assert_eq!(absent(machine.open()), "the NVIDIA driver sees no GPU");
}

#[test]
fn a_function_that_is_missing_is_an_error() {
    let machine = Machine::with_two();
    machine.lose("nvmlDeviceGetMemoryInfo_v2");
    let line = failed(machine.open());
    assert!(line.contains("too old") && line.contains("nvmlDeviceGetMemoryInfo_v2"), "{line}");

    let machine = Machine::with_two();
    machine.lose("nvmlDeviceGetComputeRunningProcesses_v3");
    let mut nvidia = machine.open().unwrap();
    let line = failed(nvidia.sample());
    assert!(line.contains("too old") && line.contains("GPU 0"), "{line}");

    let machine = Machine::with_two();
    machine.lose("nvmlInit_v2");
    assert!(failed(machine.open()).contains("is not NVIDIA's management library"));

    // Drivers that do not know these are old, but not too old.
    let machine = Machine::with_two();
    machine.lose("nvmlDeviceGetMPSComputeRunningProcesses_v3");
    machine.lose("nvmlDeviceGetMigMode");
    machine.lose("nvmlSystemGetDriverVersion");
    let mut nvidia = machine.open().unwrap();
    assert_eq!(nvidia.driver(), None);
    nvidia.sample().unwrap();
}

#[test]
fn memory_is_what_the_gpu_says_and_strangers_are_known() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open().unwrap();
    let idle = DeviceSample { memory_used_bytes: GIB, utilisation: Some(0.4), processes: vec![] };
    assert_eq!(nvidia.sample().unwrap()[0], idle);
    assert_eq!(nvidia.sample().unwrap()[1].utilisation, None);

    // 70 computes and draws, of 30 the memory is not known, 60 is in the list of MPS only.
    let mut state = two();
    state["devices"][0]["memory_used"] = json!(9 * GIB);
    state["devices"][0]["compute"] =
        json!([{"pid": 70, "memory": 3 * GIB}, {"pid": 50, "memory": 4 * GIB}]);
    state["devices"][0]["graphics"] = json!([{"pid": 70, "memory": 3 * GIB}, {"pid": 30}]);
    state["devices"][0]["mps"] = json!([{"pid": 60, "memory": GIB}]);
    machine.set(&state);
    let samples = nvidia.sample().unwrap();
    assert_eq!(samples[0].memory_used_bytes, 9 * GIB);
    assert_eq!(samples[0].processes, [(30, 0), (50, 4 * GIB), (60, GIB), (70, 3 * GIB)]);
    assert_eq!(foreign(&samples[0], &[50, 60, 9999]), [(30, 0), (70, 3 * GIB)]);
    assert_eq!(foreign(&samples[1], &[]), []);

    state["devices"][1]["lost"] = json!(true);
    machine.set(&state);
    let line = failed(nvidia.sample());
    assert!(line.contains("GPU 1") && line.contains("fallen off the bus"), "{line}");
}

#[test]
fn a_family_is_everybody_that_came_of_a_process() {
    // A shell that leads a session, with a child that has a child.
    let script = "sh -c 'sleep 60 & echo $! $$; wait' & wait";
    let mut command = Command::new("sh");
    command.args(["-c", script]).process_group(0).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut shell = Process(command.spawn().unwrap());
    let mut line = String::new();
    let stdout = shell.0.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let below: Vec<u32> = line.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(below.len(), 2);
    let family = family(&[shell.pid()]);
    for pid in below.iter().chain([&shell.pid()]) {
        assert!(family.contains(pid), "{pid} is not in {family:?}");
    }
    assert!(!family.contains(&std::process::id()));
    for pid in below {
        let _ = Command::new("kill").arg(pid.to_string()).stderr(Stdio::null()).status();
    }
}

#[test]
fn without_mps_a_seat_is_what_is_visible() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open().unwrap();
    let setting = nvidia
        .prepare(&Seat { share_ppm: 500_000, memory_bytes: GIB, ..seat(&[1]) }, uid())
        .unwrap();
    let env: Vec<_> =
        setting.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(env, [("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", SECOND)]);
    assert_eq!((setting.enforcement, setting.movable), (Enforcement::None, false));

    let setting = nvidia.prepare(&seat(&[1, 0]), uid()).unwrap();
    assert_eq!(setting.env["CUDA_VISIBLE_DEVICES"], format!("{SECOND},{FIRST}"));
    assert_eq!(nvidia.prepare(&seat(&[]), uid()).unwrap().env["CUDA_VISIBLE_DEVICES"], "");
    assert!(failed(nvidia.prepare(&seat(&[2]), uid())).contains("no GPU 2"));
    nvidia.detach(&seat(&[0]), &[1]).unwrap();
    assert!(nvidia.shutdown().is_empty());
}

#[test]
fn pausing_has_to_be_allowed() {
    let machine = Machine::with_two();
    let forbidden = |options| Nvidia::open(options).unwrap().pause_forbidden();
    assert!(forbidden(machine.options()).unwrap().contains("memory"));
    assert!(forbidden(machine.mps_options()).unwrap().contains("MPS"));
    assert_eq!(forbidden(NvidiaOptions { pause: true, ..machine.options() }), None);
    assert_eq!(forbidden(NvidiaOptions { pause: true, ..machine.mps_options() }), None);
    assert!(!machine.open().unwrap().pause_frees_device());

    let mut state = two();
    state["devices"][1]["capability"] = json!([6, 1]);
    machine.set(&state);
    assert_eq!(forbidden(NvidiaOptions { pause: true, ..machine.options() }), None);
    let line = forbidden(NvidiaOptions { pause: true, ..machine.mps_options() }).unwrap();
    assert!(line.contains("GPU 1") && line.contains("Volta"), "{line}");
}

#[test]
fn each_tenant_has_its_limits() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    let mut env = |share_ppm, memory_bytes, nice| {
        let seat = Seat { share_ppm, memory_bytes, nice, ..seat(&[0]) };
        let setting = nvidia.prepare(&seat, uid()).unwrap();
        assert_eq!(setting.enforcement, Enforcement::Mps);
        assert_eq!(setting.env["CUDA_VISIBLE_DEVICES"], FIRST);
        let pipe = machine.mps().join("GPU-11111111/pipe");
        assert_eq!(OsStr::new(&setting.env["CUDA_MPS_PIPE_DIRECTORY"]), pipe);
        ["ACTIVE_THREAD_PERCENTAGE", "PINNED_DEVICE_MEM_LIMIT", "CLIENT_PRIORITY"]
            .map(|name| setting.env.get(&format!("CUDA_MPS_{name}")).cloned().unwrap_or_default())
    };
    assert_eq!(env(1_000_000, 0, 0), ["", "", ""]);
    assert_eq!(env(999_999, 0, 0), ["", "", ""]);
    assert_eq!(env(300_000, 8 * GIB, 0), ["30", "0=8192M", ""]);
    assert_eq!(env(666_667, 1, 1), ["67", "0=1M", "1"]);
    assert_eq!(env(1, GIB + 1, -5), ["1", "0=1025M", ""]);
}

#[test]
fn each_gpu_has_a_control_daemon_of_its_own() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    assert_eq!(machine.calls(), [""; 0]);
    nvidia.prepare(&seat(&[0]), uid()).unwrap();
    nvidia.prepare(&seat(&[0]), uid()).unwrap();
    nvidia.prepare(&seat(&[1]), uid()).unwrap();
    let mps = machine.mps().display().to_string();
    let expected = [("GPU-11111111", FIRST), ("GPU-22222222", SECOND)].map(|(short, uuid)| {
        format!(
            "{short} start CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_MPS_LOG_DIRECTORY={mps}/{short}/log \
             CUDA_MPS_PIPE_DIRECTORY={mps}/{short}/pipe CUDA_VISIBLE_DEVICES={uuid} "
        )
    });
    assert_eq!(machine.calls_with("start"), expected);

    // A process can talk to one of them only.
    let setting = nvidia.prepare(&Seat { share_ppm: 300_000, ..seat(&[0, 1]) }, uid()).unwrap();
    assert_eq!(setting.enforcement, Enforcement::None);
    assert_eq!(setting.env.len(), 2);
    assert_eq!(machine.calls_with("start").len(), 2);
}

#[test]
fn a_socket_without_a_daemon_is_not_a_daemon() {
    let machine = Machine::with_two();
    machine.write("GPU-11111111/pipe/control", &"");
    machine.open_mps().prepare(&seat(&[0]), uid()).unwrap();
    assert_eq!(machine.calls_with("start").len(), 1);
    // The next one finds it running.
    machine.open_mps().prepare(&seat(&[0]), uid()).unwrap();
    assert_eq!(machine.calls_with("start").len(), 1);
}

#[test]
fn a_control_program_that_fails_is_named() {
    let machine = Machine::with_two();
    machine.write("refuse", &"start");
    let line = failed(machine.open_mps().prepare(&seat(&[0]), uid()));
    assert!(line.contains(FIRST) && line.contains("No MPS for you"), "{line}");

    let mut options = machine.mps_options();
    options.mps.as_mut().unwrap().control = "/nowhere/nvidia-cuda-mps-control".into();
    let line = failed(Nvidia::open(options).unwrap().prepare(&seat(&[0]), uid()));
    assert!(line.contains("/nowhere/nvidia-cuda-mps-control"), "{line}");
}

#[test]
fn mps_before_volta_is_not_used() {
    let mut state = two();
    state["devices"][0]["capability"] = json!([6, 1]);
    let machine = Machine::new(&state);
    let mut nvidia = machine.open_mps();
    assert!(nvidia.notes()[0].contains("older than Volta"), "{:?}", nvidia.notes());
    assert_eq!(nvidia.prepare(&seat(&[0]), uid()).unwrap().enforcement, Enforcement::None);
    assert_eq!(nvidia.prepare(&seat(&[1]), uid()).unwrap().enforcement, Enforcement::Mps);
}

#[test]
fn a_second_user_is_refused_while_the_first_is_there() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.prepare(&seat(&[0]), uid()).unwrap();
    let server = Process::sleep();
    machine.write("GPU-11111111/servers", &server.pid());
    machine.write(&format!("GPU-11111111/clients.{}", server.pid()), &4711);
    let line = failed(nvidia.prepare(&seat(&[0]), uid() + 1));
    assert!(
        line.contains(&format!("user {} cannot share {FIRST} with user {}", uid() + 1, uid())),
        "{line}"
    );
    nvidia.prepare(&seat(&[0]), uid()).unwrap();
    nvidia.prepare(&seat(&[1]), uid() + 1).unwrap();
    // Without clients MPS replaces the server.
    machine.write(&format!("GPU-11111111/clients.{}", server.pid()), &"");
    nvidia.prepare(&seat(&[0]), uid() + 1).unwrap();
}

#[test]
fn a_tenant_counts_before_it_calls_on_mps() {
    if uid() != 0 {
        eprintln!("skipped: only root can start a process of another user");
        return;
    }
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    let setting = nvidia.prepare(&seat(&[0]), 65_534).unwrap();
    let _tenant = Process::start(
        Command::new("/bin/sleep").arg("60").envs(&setting.env).uid(65_534).current_dir("/"),
    );
    nvidia.prepare(&seat(&[0]), 65_534).unwrap();
    let line = failed(nvidia.prepare(&seat(&[0]), 65_533));
    assert!(line.contains("with user 65534"), "{line}");
    nvidia.prepare(&seat(&[1]), 65_533).unwrap();
}

#[test]
fn clients_are_detached_before_they_may_be_killed() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.prepare(&seat(&[0]), uid()).unwrap();
    let (server, mut client, neighbour) = (Process::sleep(), Process::sleep(), Process::sleep());
    machine.write("GPU-11111111/servers", &server.pid());
    let list = format!("GPU-11111111/clients.{}", server.pid());
    machine.write(&list, &format!("{}\n{}", client.pid(), neighbour.pid()));
    machine.write("GPU-11111111/linger", &3);
    let before = machine.calls().len();
    nvidia.detach(&seat(&[0]), &[1, client.pid()]).unwrap();
    // No signal comes from here: the process is there until the caller kills it.
    assert!(client.runs());
    drop(client);

    let calls = machine.calls().split_off(before);
    let ends: Vec<_> = calls.iter().filter(|call| call.contains("terminate_client")).collect();
    assert!(!ends.is_empty(), "{calls:?}");
    assert!(
        ends[0].starts_with(&format!("GPU-11111111 terminate_client {} ", server.pid())),
        "{calls:?}"
    );
    assert!(ends.iter().all(|call| call.ends_with(" alive")), "{calls:?}");
    // The list was read until the client had gone from it.
    let at = calls.iter().position(|call| call.contains("terminate_client")).unwrap();
    let looks = calls[at..].iter().filter(|call| call.contains("get_client_list")).count();
    assert_eq!(looks, 5, "{calls:?}");
    assert_eq!(
        fs::read_to_string(machine.mps().join(list)).unwrap(),
        format!("{}\n", neighbour.pid())
    );
}

#[test]
fn nothing_to_detach_is_no_error() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.detach(&seat(&[0]), &[1]).unwrap();
    nvidia.prepare(&seat(&[0]), uid()).unwrap();
    nvidia.detach(&seat(&[0]), &[1]).unwrap();
    machine.write("GPU-11111111/servers", &4711);
    machine.write("GPU-11111111/clients.4711", &4712);
    nvidia.detach(&seat(&[0]), &[1]).unwrap();
    nvidia.detach(&seat(&[0, 1]), &[4712]).unwrap();
    assert_eq!(machine.calls_with("terminate_client"), [""; 0]);
}

#[test]
fn a_zero_is_enough_and_another_answer_is_not() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.prepare(&seat(&[0]), uid()).unwrap();
    machine.write("GPU-11111111/servers", &4711);
    machine.write("GPU-11111111/clients.4711", &4712);
    machine.write("GPU-11111111/linger", &1_000_000);
    machine.write("GPU-11111111/answer", &0);
    nvidia.detach(&seat(&[0]), &[4712]).unwrap();
    assert_eq!(machine.calls_with("terminate_client").len(), 1);

    machine.write("GPU-11111111/answer", &"Client 4712 not ready\n1");
    let line = failed(nvidia.detach(&seat(&[0]), &[4712]));
    assert!(line.contains("4712") && line.contains("10 s"), "{line}");
    assert!(machine.calls_with("terminate_client").len() > 2);
}

#[test]
fn a_control_program_that_hangs_is_given_up() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    machine.write("hang", &"start");
    let begin = Instant::now();
    let line = failed(nvidia.prepare(&seat(&[0]), uid()));
    assert!(line.contains("no answer to '-d' within 5 s"), "{line}");
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(20), "{took:?}");
    // What it had started is gone as well.
    let child = fs::read_to_string(machine.mps().join("hanging")).unwrap();
    let state = || fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
    let ended = |state: String| state.is_empty() || state.contains(") Z ");
    assert!((0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        ended(state())
    }));
}

#[test]
fn a_server_of_ours_is_no_stranger() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.prepare(&seat(&[0]), uid()).unwrap();
    // Its name is what makes one ask; that of a stranger's server does too.
    let link = machine.dir.path().join("nvidia-cuda-mps-server");
    std::os::unix::fs::symlink("/bin/sh", &link).unwrap();
    let server = || Process::start(Command::new(&link).args(["-c", "read line"]));
    let (ours, theirs) = (server(), server());
    machine.write("GPU-11111111/servers", &ours.pid());
    let mut state = two();
    let list =
        json!([{"pid": ours.pid(), "memory": GIB}, {"pid": theirs.pid(), "memory": 2 * GIB}]);
    state["devices"][0]["compute"] = list;
    state["devices"][0]["memory_used"] = json!(3 * GIB);
    machine.set(&state);
    let wait = Instant::now();
    while fs::read_to_string(format!("/proc/{}/comm", theirs.pid())).unwrap() != "nvidia-cuda-mps\n"
    {
        assert!(wait.elapsed() < Duration::from_secs(10));
    }
    let sample = nvidia.sample().unwrap().swap_remove(0);
    assert_eq!(foreign(&sample, &[]), [(theirs.pid(), 2 * GIB)]);
    assert_eq!(sample.memory_used_bytes, 3 * GIB);
}

#[test]
fn daemons_are_ended_when_nobody_uses_them() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.prepare(&seat(&[0]), uid()).unwrap();
    // That of the second GPU was there before.
    machine.write("GPU-22222222/alive", &"");
    machine.write("GPU-22222222/pipe/control", &"");
    nvidia.prepare(&seat(&[1]), uid()).unwrap();
    machine.write("GPU-11111111/servers", &4711);
    machine.write("GPU-11111111/clients.4711", &4712);
    let stays = nvidia.shutdown();
    assert!(
        stays.len() == 1 && stays[0].contains(FIRST) && stays[0].contains("1 clients"),
        "{stays:?}"
    );
    assert_eq!(machine.calls_with("quit"), [""; 0]);

    // A tenant that may yet call on it.
    machine.write("GPU-11111111/clients.4711", &"");
    let env = nvidia.prepare(&seat(&[0]), uid()).unwrap().env;
    let tenant = Process::start(Command::new("sleep").arg("60").envs(env));
    let stays = nvidia.shutdown();
    assert!(stays.len() == 1 && stays[0].contains(&tenant.pid().to_string()), "{stays:?}");
    drop(tenant);

    // One who comes later knows what was started before.
    assert_eq!(machine.open_mps().shutdown(), [""; 0]);
    assert_eq!(machine.calls_with("quit"), ["GPU-11111111 quit"]);
    assert_eq!(nvidia.shutdown(), [""; 0]);
    nvidia.prepare(&seat(&[0]), uid()).unwrap();
    assert_eq!(machine.calls_with("start").len(), 2);
}

/// NVIDIA's own control program, which runs without a GPU but never starts a server.
#[test]
fn the_real_control_program_does_as_it_is_told() {
    if std::env::var_os("TANDEM_TEST_MPS").is_none() {
        eprintln!(
            "skipped: TANDEM_TEST_MPS=1 fetches NVIDIA's control program from Debian's non-free and tries it"
        );
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = match std::env::var_os("TANDEM_MPS_CONTROL") {
        Some(path) => path.into(),
        None => fetch(dir.path()),
    };
    let control = Control::new(&program, &dir.path().join("GPU-0"), FIRST).unwrap();
    let _end = Quit(control.clone());
    assert!(absent(control.ask("get_server_list")).contains("no MPS control daemon"));
    control.start().unwrap();
    control.start().unwrap();
    assert_eq!(control.servers().unwrap(), [0; 0]);
    assert_eq!(control.clients(1).unwrap(), [0; 0]);
    let ask = |command: &str| control.ask(command).unwrap().trim().to_owned();
    ask("set_default_active_thread_percentage 30");
    assert_eq!(ask("get_default_active_thread_percentage"), "30.0");
    ask("set_default_device_pinned_mem_limit 0 8192M");
    assert_eq!(ask("get_default_device_pinned_mem_limit 0"), "8G");
    assert!(ask("terminate_client 1 2").ends_with("\n1"));
    ask("quit");
    // The socket stays; the daemon does not.
    assert!(control.pipe().join("control").exists());
    assert!(absent(control.ask("get_server_list")).contains("does not answer"));

    // As the provider uses it.
    let machine = Machine::with_two();
    let mut options = machine.mps_options();
    options.mps.as_mut().unwrap().control = program;
    let mut nvidia = Nvidia::open(options).unwrap();
    let _ends = [0, 1].map(|device| Quit(nvidia.control(device).unwrap().clone()));
    for device in [0, 1] {
        assert_eq!(nvidia.prepare(&seat(&[device]), uid()).unwrap().enforcement, Enforcement::Mps);
        nvidia.detach(&seat(&[device]), &[1]).unwrap();
    }
    assert_eq!(nvidia.shutdown(), [""; 0]);
    for device in [0, 1] {
        assert!(
            absent(nvidia.control(device).unwrap().ask("get_server_list"))
                .contains("does not answer")
        );
    }
}

/// Ends a control daemon, also when a test fails.
struct Quit(Control);

impl Drop for Quit {
    fn drop(&mut self) {
        let _ = self.0.ask("quit");
    }
}

/// Unpacks Debian's package; nothing is installed.
fn fetch(dir: &Path) -> PathBuf {
    let script = r#"
        set -e
        mkdir -p parts lists/partial cache/archives/partial
        echo "deb http://deb.debian.org/debian bookworm non-free" >parts/non-free.list
        set -- -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$PWD/parts" \
            -o Dir::State::lists="$PWD/lists" -o Dir::Cache="$PWD/cache" -o APT::Sandbox::User=
        apt-get "$@" update
        apt-get "$@" download nvidia-cuda-mps
        dpkg -x nvidia-cuda-mps_*.deb unpacked
    "#;
    let status = Command::new("sh").args(["-c", script]).current_dir(dir).status().unwrap();
    assert!(status.success(), "Debian's package nvidia-cuda-mps cannot be fetched");
    dir.join("unpacked/usr/bin/nvidia-cuda-mps-control")
}
