//! Tenants under MPS: limits, control daemons, detaching, and NVIDIA's own control program.

use crate::machine::*;
use serde_json::json;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tandem_backends::providers::nvidia::{MpsControl, Nvidia};
use tandem_backends::{DeviceAllocation, Enforcement, Provider};

#[test]
fn each_tenant_has_its_limits() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    let mut env = |share_ppm, memory_bytes| {
        let allocation = DeviceAllocation { share_ppm, memory_bytes, ..allocation(&[0]) };
        let setup = nvidia.prepare(&allocation, uid()).unwrap();
        assert_eq!(setup.enforcement, Enforcement::Mps);
        assert_eq!(setup.env["CUDA_VISIBLE_DEVICES"], FIRST);
        let pipe = machine.mps().join("GPU-11111111/pipe");
        assert_eq!(OsStr::new(&setup.env["CUDA_MPS_PIPE_DIRECTORY"]), pipe);
        ["ACTIVE_THREAD_PERCENTAGE", "PINNED_DEVICE_MEM_LIMIT"]
            .map(|name| setup.env.get(&format!("CUDA_MPS_{name}")).cloned().unwrap_or_default())
    };
    assert_eq!(env(1_000_000, 0), ["", ""]);
    assert_eq!(env(999_999, 0), ["", ""]);
    assert_eq!(env(300_000, 8 * GIB), ["30", "0=8192M"]);
    assert_eq!(env(666_667, 1), ["67", "0=1M"]);
    assert_eq!(env(1, GIB + 1), ["1", "0=1025M"]);
}

#[test]
fn each_gpu_has_a_control_daemon_of_its_own() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    assert_eq!(machine.calls(), [""; 0]);
    nvidia.prepare(&allocation(&[0]), uid()).unwrap();
    nvidia.prepare(&allocation(&[0]), uid()).unwrap();
    nvidia.prepare(&allocation(&[1]), uid()).unwrap();
    let mps = machine.mps().display().to_string();
    let expected = [("GPU-11111111", FIRST), ("GPU-22222222", SECOND)].map(|(short, uuid)| {
        format!(
            "{short} start CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_MPS_LOG_DIRECTORY={mps}/{short}/log \
             CUDA_MPS_PIPE_DIRECTORY={mps}/{short}/pipe CUDA_VISIBLE_DEVICES={uuid} "
        )
    });
    assert_eq!(machine.calls_with("start"), expected);

    // A process can use one control daemon only.
    let setup = nvidia
        .prepare(&DeviceAllocation { share_ppm: 300_000, ..allocation(&[0, 1]) }, uid())
        .unwrap();
    assert_eq!(setup.enforcement, Enforcement::None);
    assert_eq!(setup.env.len(), 2);
    assert_eq!(machine.calls_with("start").len(), 2);
}

#[test]
fn a_socket_without_a_daemon_is_not_a_daemon() {
    let machine = Machine::with_two();
    machine.write("GPU-11111111/pipe/control", &"");
    machine.open_mps().prepare(&allocation(&[0]), uid()).unwrap();
    assert_eq!(machine.calls_with("start").len(), 1);
    // A later provider finds it running.
    machine.open_mps().prepare(&allocation(&[0]), uid()).unwrap();
    assert_eq!(machine.calls_with("start").len(), 1);
}

#[test]
fn a_control_program_that_fails_is_named() {
    let machine = Machine::with_two();
    machine.write("refuse", &"start");
    let line = failed(machine.open_mps().prepare(&allocation(&[0]), uid()));
    assert!(line.contains(FIRST) && line.contains("No MPS for you"), "{line}");

    let mut options = machine.mps_options();
    options.mps.as_mut().unwrap().control = "/nowhere/nvidia-cuda-mps-control".into();
    let line = failed(Nvidia::open(options).unwrap().prepare(&allocation(&[0]), uid()));
    assert!(line.contains("/nowhere/nvidia-cuda-mps-control"), "{line}");
}

#[test]
fn mps_before_volta_is_not_used() {
    let mut state = two();
    state["devices"][0]["capability"] = json!([6, 1]);
    let machine = Machine::new(&state);
    let mut nvidia = machine.open_mps();
    assert!(nvidia.notes()[0].contains("older than Volta"), "{:?}", nvidia.notes());
    assert_eq!(nvidia.prepare(&allocation(&[0]), uid()).unwrap().enforcement, Enforcement::None);
    assert_eq!(nvidia.prepare(&allocation(&[1]), uid()).unwrap().enforcement, Enforcement::Mps);
}

#[test]
fn a_second_user_is_rejected_while_the_first_has_clients() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.prepare(&allocation(&[0]), uid()).unwrap();
    let server = Process::sleep();
    machine.write("GPU-11111111/servers", &server.pid());
    machine.write(&format!("GPU-11111111/clients.{}", server.pid()), &4711);
    let line = failed(nvidia.prepare(&allocation(&[0]), uid() + 1));
    assert!(
        line.contains(&format!("user {} cannot share {FIRST} with user {}", uid() + 1, uid())),
        "{line}"
    );
    nvidia.prepare(&allocation(&[0]), uid()).unwrap();
    nvidia.prepare(&allocation(&[1]), uid() + 1).unwrap();
    // Without clients MPS replaces the server.
    machine.write(&format!("GPU-11111111/clients.{}", server.pid()), &"");
    nvidia.prepare(&allocation(&[0]), uid() + 1).unwrap();
}

#[test]
fn a_tenant_counts_before_it_connects_to_mps() {
    if uid() != 0 {
        eprintln!("skipped: only root can start a process of another user");
        return;
    }
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    let setup = nvidia.prepare(&allocation(&[0]), 65_534).unwrap();
    let _tenant = Process::start(
        Command::new("/bin/sleep").arg("60").envs(&setup.env).uid(65_534).current_dir("/"),
    );
    nvidia.prepare(&allocation(&[0]), 65_534).unwrap();
    let line = failed(nvidia.prepare(&allocation(&[0]), 65_533));
    assert!(line.contains("with user 65534"), "{line}");
    nvidia.prepare(&allocation(&[1]), 65_533).unwrap();
}

#[test]
fn clients_are_detached_before_they_may_be_killed() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.prepare(&allocation(&[0]), uid()).unwrap();
    let (server, mut client, neighbour) = (Process::sleep(), Process::sleep(), Process::sleep());
    machine.write("GPU-11111111/servers", &server.pid());
    let list = format!("GPU-11111111/clients.{}", server.pid());
    machine.write(&list, &format!("{}\n{}", client.pid(), neighbour.pid()));
    machine.write("GPU-11111111/linger", &3);
    let before = machine.calls().len();
    nvidia.detach(&allocation(&[0]), &[1, client.pid()]).unwrap();
    // Detaching sends no signal: the caller kills the process.
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
    // The list was read until the client was no longer in it.
    let at = calls.iter().position(|call| call.contains("terminate_client")).unwrap();
    let lists = calls[at..].iter().filter(|call| call.contains("get_client_list")).count();
    assert_eq!(lists, 5, "{calls:?}");
    assert_eq!(
        fs::read_to_string(machine.mps().join(list)).unwrap(),
        format!("{}\n", neighbour.pid())
    );
}

#[test]
fn nothing_to_detach_is_no_error() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.detach(&allocation(&[0]), &[1]).unwrap();
    nvidia.prepare(&allocation(&[0]), uid()).unwrap();
    nvidia.detach(&allocation(&[0]), &[1]).unwrap();
    machine.write("GPU-11111111/servers", &4711);
    machine.write("GPU-11111111/clients.4711", &4712);
    nvidia.detach(&allocation(&[0]), &[1]).unwrap();
    nvidia.detach(&allocation(&[0, 1]), &[4712]).unwrap();
    assert_eq!(machine.calls_with("terminate_client"), [""; 0]);
}

#[test]
fn only_the_answer_0_counts_as_terminated() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.prepare(&allocation(&[0]), uid()).unwrap();
    machine.write("GPU-11111111/servers", &4711);
    machine.write("GPU-11111111/clients.4711", &4712);
    machine.write("GPU-11111111/linger", &1_000_000);
    machine.write("GPU-11111111/answer", &0);
    nvidia.detach(&allocation(&[0]), &[4712]).unwrap();
    assert_eq!(machine.calls_with("terminate_client").len(), 1);

    machine.write("GPU-11111111/answer", &"Client 4712 not ready\n1");
    let line = failed(nvidia.detach(&allocation(&[0]), &[4712]));
    assert!(line.contains("4712") && line.contains("10 s"), "{line}");
    assert!(machine.calls_with("terminate_client").len() > 2);
}

#[test]
fn a_control_program_that_hangs_is_killed() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    machine.write("hang", &"start");
    let begin = Instant::now();
    let line = failed(nvidia.prepare(&allocation(&[0]), uid()));
    assert!(line.contains("no answer to '-d' within 5 s"), "{line}");
    let took = begin.elapsed();
    assert!(took >= Duration::from_secs(5) && took < Duration::from_secs(20), "{took:?}");
    // Its child process was killed too.
    let child = fs::read_to_string(machine.mps().join("hanging")).unwrap();
    let state = || fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
    let ended = |state: String| state.is_empty() || state.contains(") Z ");
    assert!((0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        ended(state())
    }));
}

#[test]
fn our_own_server_is_not_foreign() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.prepare(&allocation(&[0]), uid()).unwrap();
    // A foreign server has the same program name.
    let link = machine.path().join("nvidia-cuda-mps-server");
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
    assert_eq!(sample.foreign(&[]), [(theirs.pid(), 2 * GIB)]);
    assert_eq!(sample.memory_used_bytes, 3 * GIB);
}

#[test]
fn control_daemons_end_when_they_have_no_clients() {
    let machine = Machine::with_two();
    let mut nvidia = machine.open_mps();
    nvidia.prepare(&allocation(&[0]), uid()).unwrap();
    // The daemon of the second GPU was started by others.
    machine.write("GPU-22222222/alive", &"");
    machine.write("GPU-22222222/pipe/control", &"");
    nvidia.prepare(&allocation(&[1]), uid()).unwrap();
    machine.write("GPU-11111111/servers", &4711);
    machine.write("GPU-11111111/clients.4711", &4712);
    let stays = nvidia.shutdown();
    assert!(
        stays.len() == 1 && stays[0].contains(FIRST) && stays[0].contains("1 clients"),
        "{stays:?}"
    );
    assert_eq!(machine.calls_with("quit"), [""; 0]);

    // A tenant that may still connect.
    machine.write("GPU-11111111/clients.4711", &"");
    let env = nvidia.prepare(&allocation(&[0]), uid()).unwrap().env;
    let tenant = Process::start(Command::new("sleep").arg("60").envs(env));
    let stays = nvidia.shutdown();
    assert!(stays.len() == 1 && stays[0].contains(&tenant.pid().to_string()), "{stays:?}");
    drop(tenant);

    // A later provider ends daemons that an earlier one started.
    assert_eq!(machine.open_mps().shutdown(), [""; 0]);
    assert_eq!(machine.calls_with("quit"), ["GPU-11111111 quit"]);
    assert_eq!(nvidia.shutdown(), [""; 0]);
    nvidia.prepare(&allocation(&[0]), uid()).unwrap();
    assert_eq!(machine.calls_with("start").len(), 2);
}

/// NVIDIA's own control program, which runs without a GPU but never starts a server.
#[test]
fn the_real_control_program_works() {
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
    let control = MpsControl::new(&program, &dir.path().join("GPU-0"), FIRST).unwrap();
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
        assert_eq!(
            nvidia.prepare(&allocation(&[device]), uid()).unwrap().enforcement,
            Enforcement::Mps
        );
        nvidia.detach(&allocation(&[device]), &[1]).unwrap();
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
struct Quit(MpsControl);

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
