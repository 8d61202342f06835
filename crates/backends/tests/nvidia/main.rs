//! The provider of NVIDIA GPUs on a machine without GPUs: the management library is `fake-nvml`, and the
//! control program of MPS is the script `mps-control`. `scripts/prove-gpu` tests on real GPUs.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod machine;
mod mps;

use machine::*;
use serde_json::{Value, json};
use std::process::Command;
use tandem_backends::providers::nvidia::{Nvidia, NvidiaOptions};
use tandem_backends::{DeviceAllocation, DeviceSample, Enforcement, Provider};

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

/// For programs that load the library where Cargo put it, as this test does.
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
        .env("FAKE_NVML_STATE", state.path().join("state.json"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[test]
fn leaves_out_unusable_gpus_with_a_note() {
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
fn a_missing_function_is_an_error() {
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

    // Older drivers lack these functions but can be used.
    let machine = Machine::with_two();
    machine.lose("nvmlDeviceGetMPSComputeRunningProcesses_v3");
    machine.lose("nvmlDeviceGetMigMode");
    machine.lose("nvmlSystemGetDriverVersion");
    let mut nvidia = machine.open().unwrap();
    assert_eq!(nvidia.driver(), None);
    nvidia.sample().unwrap();
}

#[test]
fn samples_have_memory_and_foreign_processes() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open().unwrap();
    let idle = DeviceSample { memory_used_bytes: GIB, utilisation: Some(0.4), processes: vec![] };
    assert_eq!(nvidia.sample().unwrap()[0], idle);
    assert_eq!(nvidia.sample().unwrap()[1].utilisation, None);

    // 70 is in two lists, the memory of 30 is unknown, 60 is only in the list of MPS.
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
    assert_eq!(samples[0].foreign(&[50, 60, 9999]), [(30, 0), (70, 3 * GIB)]);
    assert_eq!(samples[1].foreign(&[]), []);

    state["devices"][1]["lost"] = json!(true);
    machine.set(&state);
    let line = failed(nvidia.sample());
    assert!(line.contains("GPU 1") && line.contains("fallen off the bus"), "{line}");
}

#[test]
fn without_mps_only_visible_devices_are_set() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open().unwrap();
    let setup = nvidia
        .prepare(
            &DeviceAllocation { share_ppm: 500_000, memory_bytes: GIB, ..allocation(&[1]) },
            uid(),
        )
        .unwrap();
    let env: Vec<_> =
        setup.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(env, [("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", SECOND)]);
    assert_eq!((setup.enforcement, setup.movable), (Enforcement::None, false));

    let setup = nvidia.prepare(&allocation(&[1, 0]), uid()).unwrap();
    assert_eq!(setup.env["CUDA_VISIBLE_DEVICES"], format!("{SECOND},{FIRST}"));
    assert_eq!(nvidia.prepare(&allocation(&[]), uid()).unwrap().env["CUDA_VISIBLE_DEVICES"], "");
    assert!(failed(nvidia.prepare(&allocation(&[2]), uid())).contains("no GPU 2"));
    nvidia.detach(&allocation(&[0]), &[1]).unwrap();
    assert!(nvidia.shutdown().is_empty());
}

#[test]
fn pausing_must_be_enabled() {
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
