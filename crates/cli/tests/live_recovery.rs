//! What the next daemon finds: jobs that went on, ended, stood still or were lost while nobody watched; a
//! machine that was started anew; states and sockets that others use; stores that cannot be used.

mod common;

use common::daemon::{Daemon, Options, until};
use common::processes::{lives, pid};
use rustix::process::{Resource, Rlimit, Signal, kill_process, prlimit};
use std::path::Path;
use std::time::{Duration, Instant};
use tandem_daemon::request::JobRequest;

/// Waits for a file, then ends with a code.
fn gated(daemon: &Daemon, gate: &str, code: i32) -> JobRequest {
    daemon.shell(&format!("while [ ! -e {gate} ]; do sleep 0.02; done; exit {code}"))
}

fn open(daemon: &Daemon, gate: &str) {
    std::fs::write(daemon.dir.path().join(gate), "").expect("a file can be written");
}

/// The state letter of a process.
fn letter(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?')
}

/// The supervisor of the first run of a job.
fn supervisor(daemon: &Daemon, id: u64) -> u32 {
    let claim = daemon.state.join(format!("runs/{id}.1/claim"));
    let text = std::fs::read_to_string(claim).expect("it is claimed");
    let claim: serde_json::Value = serde_json::from_str(&text).expect("a record");
    u32::try_from(claim["supervisor"]["pid"].as_u64().expect("a pid")).expect("a pid")
}

#[test]
fn a_stop_in_good_order_is_no_end_for_jobs() {
    let mut daemon = Daemon::start(Options::fake(5));
    let goes_on = daemon.submit(&gated(&daemon, "later", 4));
    let ends = daemon.submit(&gated(&daemon, "meanwhile", 7));
    let stands = daemon.submit(&gated(&daemon, "later", 0));
    let lost = daemon.submit(&gated(&daemon, "meanwhile", 0));
    let before: Vec<u32> =
        [goes_on, ends, stands, lost].iter().map(|&id| daemon.await_pid(id)).collect();
    daemon.ok(&["pause", &stands.to_string()]);
    daemon.await_state(stands, "paused");
    daemon.ok(&["gpus", "drain", "4"]);
    let of_lost = supervisor(&daemon, lost);
    daemon.stop();
    assert!(!daemon.socket.exists());
    assert!(before.iter().all(|&pid| lives(pid)));
    kill_process(pid(of_lost), Signal::KILL).expect("it was there");
    open(&daemon, "meanwhile");
    until("two end", || !lives(before[1]) && !lives(before[3]));
    daemon.restart();
    assert_eq!(daemon.job(goes_on).pid, Some(before[0]));
    let job = daemon.await_state(ends, "failed");
    assert_eq!((job.line.exit_code, job.runs), (Some(7), 1));
    let job = daemon.await_state(lost, "unknown");
    assert!(job.line.reason.as_deref().unwrap_or("").contains("supervisor"), "{job:?}");
    let job = daemon.await_state(stands, "paused");
    assert_eq!((job.pid, letter(before[2])), (Some(before[2]), 'T'));
    let devices = daemon.client().devices().expect("devices").value.devices;
    let drained: Vec<bool> = devices.iter().map(|device| device.state == "drained").collect();
    assert_eq!(drained, [false, false, false, false, true]);
    // It still stands still after a kill, and goes on when it is told to.
    daemon.restart();
    daemon.await_state(stands, "paused");
    daemon.ok(&["resume", &stands.to_string()]);
    daemon.await_state(stands, "running");
    open(&daemon, "later");
    assert_eq!(daemon.await_state(goes_on, "failed").line.exit_code, Some(4));
    assert_eq!(daemon.await_state(stands, "completed").runs, 1);
    until("everything is gone", || daemon.processes().is_empty());
}

#[test]
fn time_limits_go_on_and_what_was_cancelled_stays_so() {
    let mut daemon = Daemon::start(Options::fake(2).and(&["--set", "daemon.kill_grace_s=0.3"]));
    let limited = JobRequest { time_limit_s: Some(3.0), ..daemon.shell("exec sleep 1000") };
    let limited = daemon.submit(&limited);
    // It takes no notice of requests to end, and is tried again if it fails.
    let stubborn = daemon.shell("trap '' TERM; while :; do sleep 0.05; done");
    let stubborn = JobRequest { retries: 5, kill_grace_s: Some(1.5), ..stubborn };
    let stubborn = daemon.submit(&stubborn);
    daemon.await_pid(limited);
    let process = daemon.await_pid(stubborn);
    let began = Instant::now();
    std::thread::sleep(Duration::from_millis(300));
    daemon.ok(&["cancel", &stubborn.to_string()]);
    daemon.kill();
    assert!(lives(process));
    std::thread::sleep(Duration::from_millis(1200));
    daemon.restart();
    let job = daemon.await_state(stubborn, "cancelled");
    assert_eq!(job.runs, 1);
    let job = daemon.await_state(limited, "timeout");
    let took = began.elapsed().as_secs_f64();
    assert!((2.5..8.0).contains(&took), "{took} s: {job:?}");
    assert!(job.line.run_s > 2.5, "time while nobody watched counts: {job:?}");
}

#[test]
fn jobs_that_waited_for_others_are_not_forgotten() {
    let mut daemon = Daemon::start(Options::fake(1));
    let first = daemon.submit(&daemon.shell("exit 0"));
    let failed = daemon.submit(&daemon.shell("exit 1"));
    let blocker = daemon.submit(&gated(&daemon, "go", 0));
    let after = |dependency: String| {
        let request = daemon.shell("exit 0");
        daemon.submit(&JobRequest { dependency: Some(dependency), ..request })
    };
    let met = after(format!("afterok:{first}"));
    let both = after(format!("afterok:{first},afterany:{blocker}"));
    let never = after(format!("afterok:{blocker},afterok:{failed}"));
    daemon.await_state(first, "completed");
    daemon.await_pid(blocker);
    daemon.restart();
    daemon.stop();
    open(&daemon, "go");
    std::thread::sleep(Duration::from_millis(200));
    daemon.restart();
    daemon.await_state(met, "completed");
    daemon.await_state(both, "completed");
    let job = daemon.await_state(never, "cancelled");
    assert!(job.line.reason.unwrap_or_default().contains("depends on job"));
}

#[test]
fn what_was_learned_stays() {
    let settings = ["--set", "learning.settle_s=0.2", "--set", "learning.sample_s=0.05", "--set"];
    let mut daemon =
        Daemon::start(Options::fake(1).and(&settings).and(&["learning.settle_steps=0"]));
    let request = JobRequest { class: Some("nap".to_owned()), ..daemon.shell("sleep 1") };
    let id = daemon.submit(&request);
    daemon.await_state(id, "completed");
    let classes = |daemon: &Daemon| daemon.client().classes().expect("classes").value.classes;
    let before = classes(&daemon);
    assert!(before.iter().any(|class| class.name == "nap"), "{before:?}");
    daemon.restart();
    assert_eq!(classes(&daemon), before);
    daemon.stop();
    daemon.restart();
    assert_eq!(classes(&daemon), before);
}

/// Makes the records of a run those of another life of the machine.
fn forge_boot(dir: &Path) {
    for name in ["claim", "started.json"] {
        let file = dir.join(name);
        let text = std::fs::read_to_string(&file).expect("a record");
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
        let forged = text.replace(boot.trim(), "00000000-0000-0000-0000-000000000000");
        assert_ne!(text, forged);
        std::fs::write(&file, forged).expect("a record can be written");
    }
}

#[test]
fn after_a_reboot_jobs_run_again_only_if_they_may() {
    let mut daemon = Daemon::start(Options::fake(3));
    let request =
        daemon.shell("echo $TANDEM_RUN >> runs.$TANDEM_JOB_ID; [ -e rebooted ] || sleep 1000");
    let again = daemon.submit(&JobRequest { requeue: true, ..request.clone() });
    let fails = daemon.submit(&request);
    let cancelled = daemon.submit(&JobRequest {
        kill_grace_s: Some(60.0),
        ..daemon.shell("trap '' TERM; while :; do sleep 0.05; done")
    });
    let depends =
        JobRequest { dependency: Some(format!("afternotok:{fails}")), ..daemon.shell("true") };
    let depends = daemon.submit(&depends);
    for id in [again, fails, cancelled] {
        daemon.await_pid(id);
    }
    daemon.ok(&["cancel", &cancelled.to_string()]);
    daemon.kill();
    open(&daemon, "rebooted");
    for left in daemon.processes() {
        let _ = kill_process(pid(left), Signal::KILL);
    }
    until("all are gone", || daemon.processes().is_empty());
    for id in [again, fails, cancelled] {
        let dir = daemon.state.join(format!("runs/{id}.1"));
        // A machine that goes down leaves no record of an end.
        let _ = std::fs::remove_file(dir.join("exit.json"));
        forge_boot(&dir);
    }
    daemon.restart();
    assert_eq!(daemon.await_state(again, "completed").runs, 2);
    let job = daemon.await_state(fails, "failed");
    assert_eq!((job.line.reason.as_deref(), job.runs), (Some("reboot"), 1));
    daemon.await_state(cancelled, "cancelled");
    daemon.await_state(depends, "completed");
    let runs =
        |id| std::fs::read_to_string(daemon.dir.path().join(format!("runs.{id}"))).expect("ran");
    assert_eq!((runs(again).as_str(), runs(fails).as_str()), ("1\n2\n", "1\n"));
}

/// Runs a daemon that must not start: its exit code and its message.
fn refused(daemon: &Daemon, state: &Path, socket: &Path) -> (Option<i32>, String) {
    let args = ["daemon", "--fake-gpus", "1", "--state"];
    let mut command = common::server::isolated(daemon.dir.path(), &args, socket);
    let ran = common::finish(command.arg(state).arg("--socket").arg(socket));
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    (ran.code, ran.stderr)
}

#[test]
fn a_state_and_a_socket_have_one_daemon() {
    let mut daemon = Daemon::start(Options::fake(1));
    let dir = daemon.dir.path().to_owned();
    let other = |name: &str| dir.join(name);
    let (code, line) = refused(&daemon, &daemon.state, &other("other.sock"));
    assert_eq!(code, Some(1));
    let holder = format!("another daemon, process {}, uses this state", daemon.child.id());
    assert!(line.contains(&holder), "{line}");
    assert!(!other("other.sock").exists());
    let (code, line) = refused(&daemon, &other("other"), &daemon.socket);
    assert_eq!(code, Some(1));
    assert!(line.contains("another daemon listens here"), "{line}");
    // A file that somebody needs is no socket that was left behind.
    common::write(&dir, "precious", "data");
    let (code, line) = refused(&daemon, &other("other"), &other("precious"));
    assert_eq!(code, Some(1));
    assert!(line.contains("is not a socket"), "{line}");
    assert_eq!(common::read(&other("precious")), "data");
    daemon.ok(&["queue"]);
    // That of one that was killed is.
    daemon.kill();
    assert!(daemon.socket.exists());
    daemon.restart();
    daemon.ok(&["queue"]);
}

#[test]
fn a_store_that_is_none_stays_as_it_is() {
    let mut daemon = Daemon::start(Options::fake(1));
    let id = daemon.submit(&daemon.shell("exit 0"));
    daemon.await_state(id, "completed");
    daemon.stop();
    let file = daemon.state.join("state.db");
    let good = std::fs::read(&file).expect("a store");
    let mut torn = good.clone();
    let middle = torn.len() / 2;
    torn[100..middle].fill(0xa5);
    for bad in [b"this is no database, it only stands in its place".repeat(100), torn] {
        std::fs::write(&file, &bad).expect("a file can be written");
        let (code, line) = refused(&daemon, &daemon.state, &daemon.socket);
        assert_eq!(code, Some(1), "{line}");
        assert!(line.contains("state.db"), "{line}");
        assert!(std::fs::read(&file).expect("a store") == bad, "it was changed");
        assert!(!daemon.socket.exists());
    }
    std::fs::write(&file, &good).expect("a file can be written");
    daemon.restart();
    assert_eq!(daemon.job(id).line.exit_code, Some(0));
}

/// Limits the size of files that a daemon may write, as a full disk would.
fn limit(daemon: &Daemon, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    prlimit(Some(pid(daemon.child.id())), Resource::Fsize, limit).expect("a limit can be set");
}

#[test]
fn a_store_without_room_accepts_nothing_and_harms_nobody() {
    let mut options = Options::fake(3);
    // A write beyond the limit shall fail and not kill.
    options.through =
        ["/bin/sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"].map(str::to_owned).to_vec();
    let mut daemon = Daemon::start(options);
    let goes_on = daemon.submit(&gated(&daemon, "later", 0));
    let ends = daemon.submit(&gated(&daemon, "meanwhile", 3));
    let process = daemon.await_pid(goes_on);
    daemon.await_pid(ends);
    limit(&daemon, Some(1));
    let ran = daemon.tandem(&["submit", "--parsable", "--", "true"]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("cannot write") && ran.stderr.contains("state.db"), "{ran:?}");
    for args in [["daemon", "status"], ["doctor", "--json"]] {
        let ran = daemon.tandem(&args);
        assert!(ran.stdout.contains("cannot be written"), "{ran:?}");
    }
    let ran = daemon.tandem(&["cancel", &goes_on.to_string()]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    open(&daemon, "meanwhile");
    std::thread::sleep(Duration::from_millis(300));
    assert!(lives(process));
    daemon.ok(&["queue"]);
    // The log has no room either, and says nothing. Whoever watches is told.
    let metrics = daemon.client().text("/metrics").expect("metrics");
    let failures = metrics.lines().find(|line| line.starts_with("tandem_store_failures_total"));
    let count = failures.and_then(|line| line.split(' ').nth(1)?.parse::<u64>().ok());
    assert!(count.is_some_and(|count| count >= 2), "{failures:?}");
    limit(&daemon, None);
    let job = daemon.await_state(ends, "failed");
    assert_eq!((job.line.exit_code, job.runs), (Some(3), 1));
    let after = daemon.submit(&daemon.shell("exit 0"));
    assert_eq!(after, ends + 1, "what was refused has no number");
    daemon.await_state(after, "completed");
    // Killed while it cannot write, the next one finds everything.
    let last = daemon.submit(&gated(&daemon, "end", 6));
    daemon.await_pid(last);
    limit(&daemon, Some(1));
    open(&daemon, "end");
    std::thread::sleep(Duration::from_millis(300));
    daemon.restart();
    let job = daemon.await_state(last, "failed");
    assert_eq!((job.line.exit_code, job.runs), (Some(6), 1));
    assert_eq!(daemon.job(goes_on).pid, Some(process));
    open(&daemon, "later");
    daemon.await_state(goes_on, "completed");
    daemon.stop();
    let store = daemon.state.join("state.db");
    let ran = daemon.ok(&["replay", store.to_str().expect("a plain path")]);
    assert!(ran.stdout.contains("identical"), "{ran:?}");
}

/// A store as version 1 of the tables wrote it, which no later program can write again: jobs that are over,
/// one that waits, one that is held, and a drained device.
const STORE_1: &str = "crates/cli/tests/fixtures/state-1.db";

/// A daemon about to start on a copy of a store.
fn on_a_copy() -> Daemon {
    let mut daemon = Daemon::start(Options::fake(1));
    daemon.stop();
    std::fs::copy(common::workspace().join(STORE_1), daemon.state.join("state.db"))
        .expect("the fixture is there");
    daemon
}

#[test]
fn a_store_of_the_first_version_opens() {
    let mut daemon = on_a_copy();
    // The journal of an earlier version is refused in one line, until a start of this program follows it.
    let replay = ["replay", "state/state.db"];
    let refused = daemon.tandem(&replay);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("the journal has version 1"), "{refused:?}");
    daemon.restart();
    let states: Vec<(u64, &str, Option<i32>)> =
        daemon.jobs().iter().map(|job| (job.id, job.state.name(), job.exit_code)).collect();
    let expected = [
        (1, "completed", Some(0)),
        (2, "failed", Some(3)),
        (3, "completed", Some(0)),
        (4, "completed", Some(0)),
        (5, "pending", None),
        (6, "held", None),
        (7, "cancelled", None),
    ];
    assert_eq!(states, expected);
    daemon.ok(&["gpus", "undrain", "0"]);
    assert_eq!(daemon.await_state(5, "failed").line.exit_code, Some(4));
    daemon.ok(&["release", "6"]);
    daemon.await_state(6, "completed");
    assert_eq!(daemon.submit(&daemon.shell("exit 0")), 8);
    daemon.await_state(8, "completed");
    daemon.stop();
}

#[test]
fn a_store_of_a_later_program_is_left_alone() {
    let daemon = on_a_copy();
    let file = daemon.state.join("state.db");
    let mut bytes = std::fs::read(&file).expect("a store");
    // Where SQLite keeps `user_version`.
    bytes[60..64].copy_from_slice(&99_u32.to_be_bytes());
    std::fs::write(&file, &bytes).expect("a file can be written");
    let (code, line) = refused(&daemon, &daemon.state, &daemon.socket);
    assert_eq!(code, Some(1), "{line}");
    assert!(line.contains("version 99") && line.contains("upgrade tandem"), "{line}");
    assert!(std::fs::read(&file).expect("a store") == bytes, "it was changed");
}

#[test]
fn a_webhook_that_was_not_answered_is_called_by_the_next_daemon() {
    use std::io::{Read, Write};
    let mut daemon = Daemon::start(Options::fake(1));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let request =
        JobRequest { webhook: Some(format!("http://{address}/hook")), ..daemon.shell("exit 3") };
    let id = daemon.submit(&request);
    let (unanswered, _) = listener.accept().expect("it calls");
    daemon.restart();
    drop(unanswered);
    let (mut stream, _) = listener.accept().expect("the next one calls");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time is set");
    let mut said = String::new();
    let mut bytes = [0; 4096];
    while !said.contains("\"failed\"") {
        let read = stream.read(&mut bytes).expect("it speaks");
        assert!(read > 0, "{said}");
        said += &String::from_utf8_lossy(&bytes[..read]);
    }
    assert!(said.contains(&format!("\"id\":{id},")) && said.contains("\"exit_code\":3"), "{said}");
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("it listens");
    let store = daemon.state.join("state.db");
    until("the call is noted", || {
        let store = tandem_daemon::store::Store::open(&store).expect("it opens");
        store.pending_webhooks().expect("it can be read").is_empty()
    });
    daemon.restart();
    listener.set_nonblocking(true).expect("it can be asked");
    std::thread::sleep(Duration::from_millis(500));
    assert!(listener.accept().is_err(), "nobody calls again");
}

/// A disk without room for a file, for as long as it lives.
struct FullDisk(std::path::PathBuf);

impl FullDisk {
    /// `None`, and a line that says so, where we may not mount one.
    fn mount(path: std::path::PathBuf) -> Option<Self> {
        std::fs::create_dir(&path).expect("a folder can be made");
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k,nr_inodes=2", "tmpfs"]).arg(&path);
        let mounted = mount.stderr(std::process::Stdio::null()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            println!("skipped a_full_disk_delays_a_start: no disk can be mounted here");
            return None;
        }
        std::fs::write(path.join("last"), "").expect("the last file there is room for");
        Some(Self(path))
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_delays_a_start() {
    let mut daemon = Daemon::start(Options::fake(1));
    let Some(disk) = FullDisk::mount(daemon.dir.path().join("disk")) else { return };
    let request = JobRequest { stdout: Some(disk.0.join("out")), ..daemon.shell("echo begun") };
    let id = daemon.submit(&request);
    let waits = |daemon: &Daemon| {
        until("it waits for room", || {
            let job = daemon.job(id);
            assert!(!job.line.state.is_over(), "{job:?}");
            let reason = job.line.reason.unwrap_or_default();
            job.line.state.name() == "pending" && reason.contains("No space left")
        });
    };
    waits(&daemon);
    // Others are not kept waiting.
    let other = daemon.submit(&daemon.shell("exit 0"));
    daemon.await_state(other, "completed");
    // The next daemon tries at once.
    daemon.restart();
    waits(&daemon);
    std::fs::remove_file(disk.0.join("last")).expect("it was there");
    let begin = Instant::now();
    daemon.await_state(id, "completed");
    println!("there was room again, and it began within {:.0} s", begin.elapsed().as_secs_f64());
    assert_eq!(std::fs::read_to_string(disk.0.join("out")).expect("it wrote"), "begun\n");
}
