//! A fake NVML with the functions that `tandem-backends` calls. Their answers come from a JSON file that is
//! read at every call: the one that `FAKE_NVML_STATE` names, else `state.json` beside the library. Tests in
//! one process can so have a copy of the library each, with a state of its own.
//!
//! ```json
//! {"driver": true, "driver_version": "550.54.15", "devices": [
//!   {"uuid": "GPU-…", "name": "Tesla V100", "memory_total": 17179869184, "memory_used": 0, "utilisation": 40,
//!    "capability": [7, 0], "mig": null, "lost": false,
//!    "compute": [{"pid": 17, "memory": 1048576}], "graphics": [], "mps": []}]}
//! ```

use serde::Deserialize;
use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 2;
const NOT_SUPPORTED: c_int = 3;
const NOT_FOUND: c_int = 6;
const INSUFFICIENT_SIZE: c_int = 7;
const DRIVER_NOT_LOADED: c_int = 9;
const GPU_IS_LOST: c_int = 15;
const UNKNOWN: c_int = 999;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FakeState {
    #[serde(default = "default_driver")]
    driver: bool,
    #[serde(default)]
    driver_version: String,
    #[serde(default)]
    devices: Vec<FakeGpu>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FakeGpu {
    uuid: String,
    name: String,
    memory_total: Option<u64>,
    #[serde(default)]
    memory_used: u64,
    utilisation: Option<u32>,
    capability: Option<(i32, i32)>,
    mig: Option<bool>,
    #[serde(default)]
    lost: bool,
    #[serde(default)]
    compute: Vec<FakeProcess>,
    #[serde(default)]
    graphics: Vec<FakeProcess>,
    #[serde(default)]
    mps: Vec<FakeProcess>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FakeProcess {
    pid: u32,
    /// Unknown if absent.
    memory: Option<u64>,
}

fn default_driver() -> bool {
    true
}

/// What `dladdr` fills in.
#[repr(C)]
struct DlInfo {
    file: *const c_char,
    base: *mut c_void,
    name: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

/// An address in this library.
static HERE: u8 = 0;

fn path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FAKE_NVML_STATE") {
        return Some(path.into());
    }
    let mut info = DlInfo {
        file: std::ptr::null(),
        base: std::ptr::null_mut(),
        name: std::ptr::null(),
        address: std::ptr::null_mut(),
    };
    // SAFETY: the address is one of ours, and `info` has the layout that `dladdr` expects.
    if unsafe { dladdr((&raw const HERE).cast(), &mut info) } == 0 || info.file.is_null() {
        return None;
    }
    // SAFETY: `dladdr` succeeded, so the name is a string that lives as long as the library.
    let file = unsafe { CStr::from_ptr(info.file) };
    Some(Path::new(OsStr::from_bytes(file.to_bytes())).with_file_name("state.json"))
}

fn state() -> Result<FakeState, c_int> {
    let text = std::fs::read_to_string(path().ok_or(UNKNOWN)?).map_err(|_| UNKNOWN)?;
    let state: FakeState = serde_json::from_str(&text).map_err(|_| UNKNOWN)?;
    if state.driver { Ok(state) } else { Err(DRIVER_NOT_LOADED) }
}

/// The handle of a device is its index plus one, so it is never null.
fn gpu(device: *mut c_void) -> Result<FakeGpu, c_int> {
    let index = (device as usize).checked_sub(1).ok_or(INVALID_ARGUMENT)?;
    let gpu = state()?.devices.into_iter().nth(index).ok_or(INVALID_ARGUMENT)?;
    if gpu.lost { Err(GPU_IS_LOST) } else { Ok(gpu) }
}

fn code(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(SUCCESS)
}

/// Writes a string with its final zero.
///
/// # Safety
/// `to` must have room for `len` bytes.
unsafe fn write_text(text: &str, to: *mut c_char, len: c_uint) -> Result<(), c_int> {
    if text.len() >= len as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: it fits, as checked above.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len());
        *to.add(text.len()) = 0;
    }
    Ok(())
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct NvmlMemory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlUtilization_t`.
#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlProcessInfo_t`.
#[repr(C)]
pub struct ProcessInfo {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Writes a list if it fits, and its length in any case.
///
/// # Safety
/// `count` must say for how many entries `to` has room.
unsafe fn write_processes(
    list: &[FakeProcess],
    count: *mut c_uint,
    to: *mut ProcessInfo,
) -> Result<(), c_int> {
    // SAFETY: the caller gave room for `count` entries; with none, `to` may be null.
    unsafe {
        let room = *count as usize;
        *count = c_uint::try_from(list.len()).unwrap_or(c_uint::MAX);
        if list.len() > room {
            return Err(INSUFFICIENT_SIZE);
        }
        for (i, process) in list.iter().enumerate() {
            to.add(i).write(ProcessInfo {
                pid: process.pid,
                used: process.memory.unwrap_or(u64::MAX),
                gpu_instance: c_uint::MAX,
                compute_instance: c_uint::MAX,
            });
        }
    }
    Ok(())
}

/// As in NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> c_int {
    code(state().map(|_| ()))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> c_int {
    SUCCESS
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, len: c_uint) -> c_int {
    // SAFETY: NVML's callers give a buffer of `len` bytes.
    code(state().and_then(|state| unsafe { write_text(&state.driver_version, to, len) }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> c_int {
    code(state().map(|state| {
        let found = c_uint::try_from(state.devices.len()).unwrap_or(c_uint::MAX);
        // SAFETY: NVML's callers give a place to write to.
        unsafe { *count = found };
    }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(
    index: c_uint,
    device: *mut *mut c_void,
) -> c_int {
    code(state().and_then(|state| {
        if index as usize >= state.devices.len() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: NVML's callers give a place to write to.
        unsafe { *device = (index as usize + 1) as *mut c_void };
        Ok(())
    }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    device: *mut *mut c_void,
) -> c_int {
    // SAFETY: NVML's callers give a string that ends in zero.
    let uuid = unsafe { CStr::from_ptr(uuid) };
    code(state().and_then(|state| {
        let index = state
            .devices
            .iter()
            .position(|gpu| gpu.uuid.as_bytes() == uuid.to_bytes())
            .ok_or(NOT_FOUND)?;
        // SAFETY: NVML's callers give a place to write to.
        unsafe { *device = (index + 1) as *mut c_void };
        Ok(())
    }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(
    device: *mut c_void,
    to: *mut c_char,
    len: c_uint,
) -> c_int {
    // SAFETY: NVML's callers give a buffer of `len` bytes.
    code(gpu(device).and_then(|gpu| unsafe { write_text(&gpu.uuid, to, len) }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(
    device: *mut c_void,
    to: *mut c_char,
    len: c_uint,
) -> c_int {
    // SAFETY: NVML's callers give a buffer of `len` bytes.
    code(gpu(device).and_then(|gpu| unsafe { write_text(&gpu.name, to, len) }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(
    device: *mut c_void,
    to: *mut NvmlMemory,
) -> c_int {
    code(gpu(device).and_then(|gpu| {
        let total = gpu.memory_total.ok_or(NOT_SUPPORTED)?;
        // SAFETY: NVML's callers give a place to write to.
        let to = unsafe { &mut *to };
        to.total = total;
        to.reserved = 0;
        to.used = gpu.memory_used;
        to.free = total.saturating_sub(gpu.memory_used);
        Ok(())
    }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(
    device: *mut c_void,
    to: *mut Utilization,
) -> c_int {
    code(gpu(device).and_then(|gpu| {
        let busy = gpu.utilisation.ok_or(NOT_SUPPORTED)?;
        // SAFETY: NVML's callers give a place to write to.
        unsafe { to.write(Utilization { gpu: busy, memory: 0 }) };
        Ok(())
    }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: *mut c_void,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> c_int {
    code(gpu(device).and_then(|gpu| {
        let mode = c_uint::from(gpu.mig.ok_or(NOT_SUPPORTED)?);
        // SAFETY: NVML's callers give places to write to.
        unsafe {
            *current = mode;
            *pending = mode;
        }
        Ok(())
    }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: *mut c_void,
    major: *mut c_int,
    minor: *mut c_int,
) -> c_int {
    code(gpu(device).and_then(|gpu| {
        let found = gpu.capability.ok_or(NOT_SUPPORTED)?;
        // SAFETY: NVML's callers give places to write to.
        unsafe {
            *major = found.0;
            *minor = found.1;
        }
        Ok(())
    }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    to: *mut ProcessInfo,
) -> c_int {
    // SAFETY: NVML's callers give room for `count` entries.
    code(gpu(device).and_then(|gpu| unsafe { write_processes(&gpu.compute, count, to) }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    to: *mut ProcessInfo,
) -> c_int {
    // SAFETY: NVML's callers give room for `count` entries.
    code(gpu(device).and_then(|gpu| unsafe { write_processes(&gpu.graphics, count, to) }))
}

/// As in NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
    device: *mut c_void,
    count: *mut c_uint,
    to: *mut ProcessInfo,
) -> c_int {
    // SAFETY: NVML's callers give room for `count` entries.
    code(gpu(device).and_then(|gpu| unsafe { write_processes(&gpu.mps, count, to) }))
}
