//! How runs start, and their environment.

use crate::fixture::{TestBackend, allocation, code, launch, run_id};
use crate::harness::Test;
use std::time::Duration;
use tandem_backends::{BackendEvent, ExitStatus, Op, Owner, RunId};

pub(crate) const TESTS: &[Test] = &[
    ("exit_codes_and_signals", exit_codes_and_signals),
    ("output_files", output_files),
    ("start_errors_have_a_reason", start_errors_have_a_reason),
    ("a_clean_environment", a_clean_environment),
    ("hostile_arguments", hostile_arguments),
    ("another_user", another_user),
    ("unknown_runs_are_refused", unknown_runs_are_refused),
    ("a_missing_device_is_refused", a_missing_device_is_refused),
    ("sent_twice_runs_once", sent_twice_runs_once),
    ("a_full_disk_is_transient", a_full_disk_is_transient),
];

fn exit_codes_and_signals() {
    let mut backend = TestBackend::new();
    assert_eq!(backend.run(1, "exit 0").status, code(0));
    assert_eq!(backend.run(2, "exit 7").status, code(7));
    let exit = backend.run(3, "kill -9 $$");
    assert_eq!((exit.status, exit.status.code()), (ExitStatus::Signal(9), 137));
    let exit = backend.run(4, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done");
    assert!(exit.cpu_s > 0.02 && exit.cpu_s < 20.0, "{exit:?}");
    assert!(exit.rss_max_bytes > 1 << 19 && !exit.oom, "{exit:?}");
    assert!(backend.run(5, "echo 'RuntimeError: CUDA out of memory. Tried' >&2; exit 1").oom);
    assert!(!backend.run(6, "echo 'CUDA out of memory'; exit 0").oom);
}

fn output_files() {
    let mut backend = TestBackend::new();
    let mut first = backend.script(1, "pwd; echo to err >&2; cat; echo $X");
    first.env.insert("X".to_owned(), "x".to_owned());
    first.dir = "/tmp".into();
    backend.start(first);
    backend.started();
    backend.exited();
    assert_eq!(backend.output(1), "/tmp\nto err\nx\n");
    let mut next = backend.script(1, "echo more; echo apart >&2");
    next.run = RunId { job: 1, run: 2 };
    next.append = true;
    next.stderr = Some(backend.dir.join("err"));
    backend.start(next.clone());
    backend.started();
    backend.exited();
    assert_eq!(backend.output(1), "/tmp\nto err\nx\nmore\n");
    assert_eq!(std::fs::read_to_string(backend.dir.join("err")).unwrap(), "apart\n");
    next.run.run = 3;
    next.append = false;
    next.stdout = "1.out".into();
    backend.start(next);
    backend.started();
    backend.exited();
    assert_eq!(backend.output(1), "more\n");
    // The output of an earlier run does not count.
    std::fs::write(backend.dir.join("2.out"), "MemoryError\n").unwrap();
    let mut later = backend.script(2, "exit 1");
    later.append = true;
    backend.start(later);
    backend.started();
    assert!(!backend.exited().oom);
}

fn start_errors_have_a_reason() {
    let mut backend = TestBackend::new();
    let mut one = launch(&backend.dir, 1, &["/no/such/program"]);
    backend.start(one.clone());
    let reason = backend.not_started();
    assert!(reason.starts_with("cannot run /no/such/program: No such file"), "{reason}");
    one.run.job = 2;
    one.command = vec!["/bin/true".to_owned()];
    one.dir = "/no/such/dir".into();
    backend.start(one.clone());
    let reason = backend.not_started();
    assert!(reason.starts_with("cannot enter directory /no/such/dir: No such file"), "{reason}");
    one.run.job = 3;
    one.dir = "/".into();
    one.stdout = "/no/such/dir/out".into();
    backend.start(one.clone());
    let reason = backend.not_started();
    assert!(
        reason.starts_with("cannot open output file /no/such/dir/out: No such file"),
        "{reason}"
    );
    one.run.job = 4;
    one.command.clear();
    backend.start(one.clone());
    assert_eq!(backend.not_started(), "the command is empty");
    one.run.job = 5;
    one.command = vec!["/bin/echo".to_owned(), "nul\0byte".to_owned()];
    one.stdout = backend.dir.join("5.out");
    backend.start(one.clone());
    assert!(backend.not_started().contains("nul byte"));
    one.run.job = 6;
    one.command = vec!["/bin/true".to_owned()];
    one.stdout = backend.dir.join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&one.stdout).status().unwrap().success());
    backend.start(one);
    assert!(backend.not_started().starts_with("cannot open output file"));
    // A start that was answered is not answered again.
    backend.start(backend.script(1, "true"));
    assert_eq!(backend.next_within(Duration::from_millis(200)), None);
}

fn a_clean_environment() {
    // A descriptor without close-on-exec.
    let leak = rustix::io::dup(std::io::stdin()).unwrap();
    let mut backend = TestBackend::new();
    let script =
        "ls /proc/self/fd; readlink /proc/self/fd/0; cat /proc/self/status; cat /proc/$$/stat";
    backend.start(backend.script(1, script));
    let pid = backend.started();
    backend.exited();
    drop(leak);
    let output = backend.output(1);
    // The fourth descriptor is that of the listing.
    assert!(output.starts_with("0\n1\n2\n3\n/dev/null\n"), "{output}");
    assert!(output.contains("SigBlk:\t0000000000000000"), "{output}");
    let ignored = output.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).unwrap();
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & (1 << 12), 0, "SIGPIPE");
    let stat: Vec<&str> = output.lines().last().unwrap().split(' ').collect();
    assert_eq!(stat[4], pid.to_string(), "leads its group");
    assert_ne!(stat[5], pid.to_string(), "the session is the supervisor's");
    // From /proc: if our session leader is outside of the pid namespace it shows as 0, which the wrapper of the
    // system call does not accept.
    let ours = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = ours.rsplit_once(") ").unwrap().1;
    assert_ne!(Some(stat[5]), after_name.split(' ').nth(3));
}

fn hostile_arguments() {
    let mut backend = TestBackend::new();
    let words = ["a\nb", "'\"`$(reboot)\\", "", " ", "*", "ü\u{1}\u{7f}", "--", "-n"];
    let mut command = vec!["/usr/bin/printf", "%s|"];
    command.extend(words);
    let mut one = launch(&backend.dir, 1, &command);
    one.env.insert("BIG".to_owned(), "x".repeat(100_000));
    one.env.insert("LINES\nAND=".to_owned(), "\"\n".to_owned());
    backend.start(one);
    backend.started();
    assert_eq!(backend.exited().status, code(0));
    assert_eq!(backend.output(1), words.join("|") + "|");
    let mut two = backend.script(2, "echo ${#BIG} $CUDA_VISIBLE_DEVICES");
    two.env.insert("BIG".to_owned(), "y".repeat(100_000));
    two.allocation.devices = vec![1, 3];
    backend.start(two);
    backend.started();
    backend.exited();
    assert_eq!(backend.output(2), "100000 1,3\n");
    let mut huge = backend.script(3, "true");
    huge.env.insert("HUGE".to_owned(), "z".repeat(4 << 20));
    backend.start(huge);
    assert!(backend.not_started().contains("rgument list too long"));
}

fn another_user() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let mut backend = TestBackend::new();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&backend.dir, open).unwrap();
    let mut one = backend.script(1, "id -u; id -g; id -G; echo $(umask) >/dev/null; touch mine");
    one.owner = Some(Owner { uid: 65534, gid: 65534 });
    backend.start(one.clone());
    backend.started();
    assert_eq!(backend.exited().status, code(0));
    assert_eq!(backend.output(1), "65534\n65534\n65534\n");
    let data = std::fs::metadata(backend.dir.join("1.out")).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&data), 65534);
    one.run.job = 2;
    one.stdout = "/root/no".into();
    backend.start(one.clone());
    assert!(backend.not_started().contains("Permission denied"));
    one.run.job = 3;
    one.stdout = backend.dir.join("3.out");
    one.command[2] = "ls state/runs".to_owned();
    backend.start(one);
    backend.started();
    assert_ne!(backend.exited().status, code(0), "other users cannot read records");
}

fn unknown_runs_are_refused() {
    let mut backend = TestBackend::new();
    backend.apply(1, Op::Pause { run: run_id(1) });
    assert!(matches!(backend.next(), BackendEvent::Refused { .. }));
    backend.apply(2, Op::End { run: run_id(1), grace_ms: 0 });
    assert!(matches!(backend.next(), BackendEvent::Refused { .. }));
}

fn a_missing_device_is_refused() {
    let mut backend = TestBackend::new();
    let mut one = backend.script(1, "true");
    one.allocation = allocation(9);
    backend.start(one.clone());
    assert!(matches!(backend.next(), BackendEvent::Refused { .. }));
    one.allocation = allocation(3);
    backend.start(one);
    backend.started();
    backend.exited();
}

fn sent_twice_runs_once() {
    let mut backend = TestBackend::new();
    let one = backend.script(1, "echo once; sleep 0.3");
    backend.start(one.clone());
    backend.start(one.clone());
    let pid = backend.started();
    backend.start(one);
    assert_eq!(backend.started(), pid, "a start that is sent again is answered again");
    backend.exited();
    assert_eq!(backend.output(1), "once\n");
    // By two daemons at the same time.
    for job in 2..52 {
        let mut other = TestBackend::at(&backend.dir);
        let one = backend.script(job, "echo once");
        let (mine, theirs) = (one.clone(), one);
        std::thread::scope(|scope| {
            scope.spawn(|| backend.start(mine));
            scope.spawn(|| other.start(theirs));
        });
        for backend in [&mut backend, &mut other] {
            backend.started();
            assert_eq!(backend.exited().status, code(0));
        }
        assert_eq!(backend.output(job), "once\n");
    }
}

/// A small file system.
struct Disk(std::path::PathBuf);

impl Disk {
    /// `None`, with a line that says so, if it cannot be mounted.
    fn mount(path: &std::path::Path, options: &str) -> Option<Self> {
        std::fs::create_dir(path).unwrap();
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(path);
        let mounted = mount.stderr(std::process::Stdio::null()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            println!("skipped a_full_disk_is_transient: no disk can be mounted here");
            return None;
        }
        Some(Disk(path.to_owned()))
    }

    fn fill(&self) {
        let _ = std::fs::write(self.0.join("large"), vec![1; 2 << 20]);
    }

    fn empty(&self) {
        std::fs::remove_file(self.0.join("large")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn a_full_disk_is_transient() {
    let own = tempfile::tempdir().unwrap();
    // The disk of the records.
    let Some(disk) = Disk::mount(&own.path().join("records"), "size=512k") else { return };
    let mut backend = TestBackend::at(&disk.0);
    disk.fill();
    backend.start(backend.script(1, "exit 3"));
    match backend.next() {
        BackendEvent::Refused { reason, transient: true, .. } => {
            assert!(reason.contains("No space left"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    disk.empty();
    backend.start(backend.script(1, "exit 3"));
    backend.started();
    assert_eq!(backend.exited().status, code(3));
    drop(backend);
    // The disk of the output: it has space, but no room for one more file.
    let Some(files) = Disk::mount(&own.path().join("output"), "size=512k,nr_inodes=2") else {
        return;
    };
    files.fill();
    let mut backend = TestBackend::new();
    let mut one = backend.script(1, "echo begun");
    one.stdout = files.0.join("out");
    backend.start(one.clone());
    match backend.next() {
        BackendEvent::NotStarted { reason, transient: true, .. } => {
            assert!(reason.starts_with("cannot open output file"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    files.empty();
    one.run.run = 2;
    backend.start(one);
    backend.started();
    assert_eq!(backend.exited().status, code(0));
    assert_eq!(std::fs::read_to_string(files.0.join("out")).unwrap(), "begun\n");
}
