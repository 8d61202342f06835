//! Two people and a daemon run by root: what is whose stays theirs.

mod common;
mod hostile;

use hostile::{
    ANN, BOB, Daemon, ROOT, command, exchange, home, open_folder, program, shell, two_people,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tandem_backends::local::as_user;

fn mode(path: &Path) -> u32 {
    let metadata = std::fs::metadata(path);
    metadata.unwrap_or_else(|error| panic!("{}: {error}", path.display())).mode() & 0o777
}

/// What everyone sees of a job: the first two rows of the table in docs/security.md. A new field is added here and
/// there, or is private.
const PUBLIC: &str = "id name user state reason task gpus class devices beside rate rate_measured rate_from submit_time \
    start_time end_time run_s shared_s exit_code uid pid runs retried signal share share_promised enforcement sub_batches \
    caps slowdown_predicted slowdown_measured normalised_throughput done_s estimate_s estimate_from memory_peak_bytes \
    gpu_memory_bytes exclusive max_slowdown time_limit_s priority cpu_s dependency begin_time retries_left stop_signal \
    may_change steps_per_s steps_per_s_alone";

#[test]
fn another_user_sees_nothing_private() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let dir = home(daemon.dir.path(), "SECRET_home", ANN);
    let mut job = shell(&dir, "echo SECRET_output; sleep 100");
    job["command"].as_array_mut().expect("a list").push("SECRET_argument".into());
    job["env"]["SECRET_name"] = "SECRET_value".into();
    job["name"] = "plain".into();
    job["webhook"] = "http://127.0.0.1:1/SECRET_hook".into();
    job["progress_regex"] = "SECRET_(\\d+)".into();
    let runs = daemon.submit(ANN, &job);
    daemon.until(runs, &["running"]);
    // One that fails with a reason that names files, one with a program that is not there.
    let missing = json!({"command": ["true"], "dir": dir.join("SECRET_missing")});
    let failed = daemon.submit(ANN, &missing);
    let program =
        json!({"command": [dir.join("SECRET_folder/program")], "dir": "/", "stdout": "/dev/null"});
    let no_program = daemon.submit(ANN, &program);
    let mut held = job.clone();
    held["hold"] = true.into();
    let held = daemon.submit(ANN, &held);
    for id in [failed, no_program] {
        let job = daemon.over(id);
        assert_eq!(job["state"], "failed");
        assert!(job["reason"].as_str().expect("a reason").contains("SECRET"), "{job}");
    }
    let ids = [runs, failed, no_program, held];
    let mut paths: Vec<String> = ["/v1/jobs", "/v1/jobs?order=desc", "/v1/devices", "/v1/classes"]
        .into_iter()
        .chain(["/v1/usage", "/v1/info", "/metrics", "/openapi.json", "/healthz"])
        .map(str::to_owned)
        .collect();
    for id in ids {
        let pages = ["", "/explain", "/decisions", "/series"];
        paths.extend(pages.map(|page| format!("/v1/jobs/{id}{page}")));
        for stream in ["", "?stream=stdout", "?stream=stderr"] {
            let answer = daemon.get(BOB, &format!("/v1/jobs/{id}/logs{stream}"));
            assert_eq!(answer.status, 403, "{}", answer.text());
            assert!(!answer.text().contains("SECRET"), "{}", answer.text());
        }
    }
    for path in &paths {
        let answer = daemon.get(BOB, path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(!answer.text().contains("SECRET"), "{path}: {}", answer.text());
        assert!(!answer.head.contains("SECRET"), "{path}: {}", answer.head);
    }
    let events = |who| {
        let mut stream = daemon.connect(who).expect("the daemon listens");
        let ask = "GET /events HTTP/1.1\r\nhost: tandem\r\nlast-event-id: 0\r\n\r\n";
        stream.write_all(ask.as_bytes()).expect("it reads");
        stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a time is set");
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let told = events(BOB);
    assert!(told.contains("\"reason\":\"exec\"") && !told.contains("SECRET"), "{told}");
    let explained = daemon.post(BOB, "/v1/jobs/dry-run", &json!({"command": ["true"]}));
    assert_eq!(explained.status, 200);
    assert!(!explained.text().contains("SECRET"));
    // A name is everybody's, also that of a program.
    assert_eq!(daemon.get(BOB, &format!("/v1/jobs/{runs}")).json()["job"]["name"], "plain");

    for who in [ANN, ROOT] {
        let seen = daemon.get(who, &format!("/v1/jobs/{runs}")).json()["job"]["private"].clone();
        assert_eq!(seen["env"]["SECRET_name"], "SECRET_value");
        assert!(seen["command"].to_string().contains("SECRET_argument"));
        assert!(seen["dir"].as_str().expect("a text").ends_with("SECRET_home"));
        assert!(daemon.get(who, &format!("/v1/jobs/{failed}")).text().contains("SECRET_missing"));
        assert!(events(who).contains("SECRET_missing"));
        let logs = daemon.get(who, &format!("/v1/jobs/{runs}/logs"));
        assert_eq!(logs.text(), "SECRET_output\n");
    }
    assert_eq!(mode(&dir.join("out")), 0o600, "what a job prints is its user's");
    let log = daemon.log();
    assert!(
        !log.contains("SECRET_v") && !log.contains("SECRET_a"),
        "the log tells no secrets: {log}"
    );
}

#[test]
fn another_user_sees_of_a_job_what_the_documents_say() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let dir = home(daemon.dir.path(), "ann", ANN);
    let id = daemon.submit(ANN, &shell(&dir, "sleep 100"));
    daemon.until(id, &["running"]);
    let job = daemon.get(BOB, &format!("/v1/jobs/{id}")).json()["job"].clone();
    let seen: BTreeSet<&str> = job.as_object().expect("a job").keys().map(String::as_str).collect();
    assert_eq!(seen, PUBLIC.split_whitespace().collect());
    let series = daemon.get(BOB, &format!("/v1/jobs/{id}/series")).json();
    assert_eq!(series["scalars"], json!({}), "what a job reports is its user's");
}

#[test]
fn another_user_changes_nothing() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let dir = home(daemon.dir.path(), "ann", ANN);
    let runs = daemon.submit(ANN, &shell(&dir, "sleep 100"));
    let mut held = shell(&dir, "true");
    held["hold"] = true.into();
    let held = daemon.submit(ANN, &held);
    daemon.until(runs, &["running"]);
    for id in [runs, held] {
        for (method, what) in [
            ("DELETE", ""),
            ("POST", "/hold"),
            ("POST", "/release"),
            ("POST", "/pause"),
            ("POST", "/resume"),
            ("PUT", "/accum"),
        ] {
            let path = format!("/v1/jobs/{id}{what}");
            let answer = daemon.ask(BOB, method, &path, b"{\"accum\":2}");
            assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
            assert_eq!(answer.json()["error"]["message"], format!("job {id} is not yours"));
        }
    }
    for what in ["drain", "undrain"] {
        for who in [ANN, BOB] {
            assert_eq!(daemon.ask(who, "POST", &format!("/v1/devices/0/{what}"), b"").status, 403);
        }
        assert_eq!(daemon.ask(ROOT, "POST", &format!("/v1/devices/0/{what}"), b"").status, 200);
    }
    assert_eq!(
        (&daemon.info(runs)["state"], &daemon.info(held)["state"]),
        (&json!("running"), &json!("held"))
    );
    assert_eq!(daemon.ask(ANN, "POST", &format!("/v1/jobs/{runs}/pause"), b"").status, 200);
    daemon.until(runs, &["paused"]);
    assert_eq!(daemon.ask(ROOT, "POST", &format!("/v1/jobs/{runs}/resume"), b"").status, 200);
    daemon.until(runs, &["running"]);
    assert_eq!(daemon.ask(ANN, "DELETE", &format!("/v1/jobs/{runs}"), b"").status, 200);
    assert_eq!(daemon.over(runs)["state"], "cancelled");
    // The process itself is out of reach too, being somebody else's.
    let path = format!("/v1/jobs/{runs}");
    assert_eq!(daemon.ask(BOB, "DELETE", &path, b"").status, 403);
    assert_eq!(daemon.ask(ANN, "DELETE", &path, b"").status, 409);
}

#[test]
fn nobody_submits_as_somebody_else() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&[]);
    for field in ["uid", "gid", "user", "owner", "private", "state", "id"] {
        let mut job = json!({"command": ["true"]});
        job[field] = 0.into();
        let answer = daemon.post(BOB, "/v1/jobs", &job);
        assert_eq!(answer.status, 400, "{field}: {}", answer.text());
    }
    let headers =
        [("authorization", "Bearer root"), ("x-remote-user", "root"), ("x-forwarded-for", "::1")];
    let stream = daemon.connect(BOB).expect("the daemon listens");
    let dir = home(daemon.dir.path(), "bob", BOB);
    let mut job = shell(&dir, "id -u");
    for (name, value) in
        [("USER", "root"), ("SUDO_UID", "0"), ("TANDEM_JOB_ID", "9"), ("TANDEM_SOCK", "/x")]
    {
        job["env"][name] = value.into();
    }
    let answer =
        exchange(stream, "POST", "/v1/jobs?user=root", &headers, job.to_string().as_bytes());
    assert_eq!(answer.status, 201, "{}", answer.text());
    let id = answer.json()["ids"][0].as_u64().expect("a number");
    let job = daemon.over(id);
    assert_eq!((&job["uid"], &job["state"]), (&json!(BOB.uid), &json!("completed")), "{job}");
    assert_eq!(daemon.get(BOB, &format!("/v1/jobs/{id}/logs")).text(), "1\n");
}

#[test]
fn a_job_is_its_user_and_nothing_more() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let dir = home(daemon.dir.path(), "ann", ANN);
    let state = daemon.dir.path().join("state");
    let script = format!(
        "id -u; id -ru; id -g; id -G; touch mine; echo $ROOTS_SECRET; \
         ls {state} 2>&1 | grep -c denied; cat {state}/state.db >x 2>/dev/null || echo closed; \
         ls /proc/self/fd | tr '\\n' ' '; grep CapEff /proc/self/status; \
         kill -9 {pid} 2>&1 | grep -c -i permitted; kill -9 $PPID 2>/dev/null || echo safe; echo $TANDEM_JOB_ID",
        state = state.display(),
        pid = daemon.child.id(),
    );
    let mut job = shell(&dir, &script);
    job["env"]["TANDEM_JOB_ID"] = "77".into();
    let id = daemon.submit(ANN, &job);
    let ended = daemon.over(id);
    assert_eq!(ended["state"], "completed", "{ended}");
    let printed = daemon.get(ANN, &format!("/v1/jobs/{id}/logs")).text();
    let lines: Vec<&str> = printed.lines().collect();
    let expected = [
        "65534",
        "65534",
        "65534",
        "65534",
        "",
        "1",
        "closed",
        "0 1 2 3 CapEff:\t0000000000000000",
        "1",
        "safe",
        "1",
    ];
    assert_eq!(lines, expected, "{printed}");
    let mine = std::fs::metadata(dir.join("mine")).expect("the job made it");
    assert_eq!((mine.uid(), mine.gid()), (ANN.uid, ANN.gid));
    daemon.assert_well("kill");
}

#[test]
fn sockets_of_jobs_hear_their_user_only() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let dir = home(daemon.dir.path(), "ann", ANN);
    let id = daemon.submit(ANN, &shell(&dir, "sleep 100"));
    daemon.until(id, &["running"]);
    let socket = daemon.socket().with_extension("jobs").join(format!("{id}.sock"));
    let metadata = std::fs::metadata(&socket).expect("it is there");
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (ANN.uid, 0o600));
    assert_eq!(mode(&daemon.socket().with_extension("jobs")), 0o711);
    let connect = |who| as_user(Some(who), || UnixStream::connect(&socket)).expect("a thread");
    let refused = connect(BOB).expect_err("it is closed to others");
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    // Even where the file lets everybody in, the system says who they are.
    std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).expect("root may do that");
    let hello = b"{\"op\":\"hello\",\"v\":1,\"caps\":[\"accum\",\"stop\"]}\n{\"op\":\"bye\",\"done\":true}\n";
    let mut stream = connect(BOB).expect("the file lets everybody in");
    let _ = stream.write_all(hello);
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time is set");
    let closed = stream.read(&mut [0; 16]);
    assert!(!matches!(closed, Ok(1..)), "{closed:?}");
    assert_eq!(daemon.info(id)["caps"], json!([]), "nobody was heard");
    let mut stream = connect(ANN).expect("it is Ann's");
    stream.write_all(hello).expect("it reads");
    let deadline = Instant::now() + Duration::from_secs(30);
    while daemon.info(id)["caps"] != json!(["report", "accum", "stop"]) {
        assert!(Instant::now() < deadline, "{}", daemon.info(id));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn logs_are_read_as_the_user() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let root = daemon.dir.path();
    let dir = home(root, "ann", ANN);
    std::fs::write(root.join("secret"), "step 41\nMemoryError\n").expect("a file can be made");
    std::fs::set_permissions(root.join("secret"), Permissions::from_mode(0o600)).expect("ours");
    let bobs = home(root, "bob", BOB);
    std::fs::write(bobs.join("diary"), "dear diary").expect("a file can be made");
    std::fs::write(root.join("public"), "for all").expect("a file can be made");
    std::fs::set_permissions(root.join("public"), Permissions::from_mode(0o644)).expect("ours");
    let mut job = shell(&dir, "echo mine; exit 3");
    job["progress_regex"] = "step (\\d+)".into();
    let id = daemon.submit(ANN, &job);
    daemon.over(id);
    let logs = |who| daemon.get(who, &format!("/v1/jobs/{id}/logs"));
    assert_eq!(logs(ANN).text(), "mine\n");
    let out = dir.join("out");
    for target in [root.join("secret"), bobs.join("diary"), root.join("state/state.db")] {
        std::fs::remove_file(&out).expect("it is there");
        symlink(&target, &out).expect("a link can be made");
        for who in [ANN, ROOT] {
            let answer = logs(who);
            assert_eq!(answer.status, 400, "{}: {}", target.display(), answer.text());
            assert!(answer.text().contains("denied"), "{}", answer.text());
        }
    }
    // Folders on the way may be links too.
    std::fs::rename(&dir, root.join("moved")).expect("root may do that");
    symlink(&bobs, &dir).expect("a link can be made");
    std::fs::write(bobs.join("out"), "dear diary").expect("a file can be made");
    assert_eq!(logs(ANN).status, 400);
    std::fs::remove_file(&dir).expect("it is there");
    std::fs::rename(root.join("moved"), &dir).expect("root may do that");
    // What Ann may read anyway she may read here; what is no file is not waited for.
    std::fs::remove_file(&out).expect("it is there");
    symlink(root.join("public"), &out).expect("a link can be made");
    assert_eq!(logs(ANN).text(), "for all");
    for device in ["/dev/zero", "/dev/watchdog", "/dev/kmsg", "/dev/tty"] {
        std::fs::remove_file(&out).expect("it is there");
        symlink(device, &out).expect("a link can be made");
        assert!([200, 400].contains(&logs(ANN).status), "{device}");
        assert!(logs(ANN).body.len() < 10_000, "{device}");
    }
    std::fs::remove_file(&out).expect("it is there");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &out,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .expect("root may do that");
    assert_eq!(logs(ANN).status, 400, "a pipe");
    daemon.assert_well("links");
    // A job that makes its output a link to a file with the words of a lack of memory learns nothing.
    let script = "rm -f out2; ln -s ../secret out2; sleep 2; exit 1";
    let mut job = shell(&dir, script);
    job["stdout"] = "out2".into();
    job["progress_regex"] = "step (\\d+)".into();
    let id = daemon.submit(ANN, &job);
    let ended = daemon.over(id);
    assert_eq!((&ended["state"], &ended["runs"]), (&json!("failed"), &json!(1)), "{ended}");
}

#[test]
fn output_files_are_opened_as_the_user() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let root = daemon.dir.path();
    let dir = home(root, "ann", ANN);
    let closed = home(root, "closed", ROOT);
    let shared = home(root, "shared", ROOT);
    std::fs::set_permissions(&shared, Permissions::from_mode(0o777)).expect("ours");
    std::fs::write(shared.join("bobs"), "precious").expect("a file can be made");
    chown(shared.join("bobs"), Some(BOB.uid), Some(BOB.gid)).expect("root may do that");
    symlink(closed.join("through"), dir.join("link")).expect("a link can be made");
    let cases = [
        closed.join("out"),
        shared.join("bobs"),
        dir.join("link"),
        dir.join("../closed/out"),
        "/etc/shadow".into(),
        "/dev/watchdog".into(),
        root.join("state/state.db"),
        root.join("state/runs/9.1/exit.json"),
    ];
    for (field, path) in
        ["stdout", "stderr"].iter().flat_map(|field| cases.iter().map(move |path| (field, path)))
    {
        let mut job = shell(&dir, "echo overwritten; echo overwritten >&2");
        job[*field] = json!(path);
        let ended = daemon.over(daemon.submit(ANN, &job));
        assert_eq!(ended["state"], "failed", "{field} {}: {ended}", path.display());
        let reason = ended["reason"].as_str().expect("a reason");
        assert!(reason.starts_with("exec: cannot open output file"), "{reason}");
    }
    assert_eq!(std::fs::read_dir(&closed).expect("root may look").count(), 0);
    assert_eq!(std::fs::read_to_string(shared.join("bobs")).expect("root may look"), "precious");
    // A folder that Ann may not enter, and one that is not there.
    for dir in [closed, root.join("nowhere")] {
        let ended = daemon.over(daemon.submit(ANN, &json!({"command": ["true"], "dir": dir})));
        assert!(
            ended["reason"].as_str().expect("a reason").contains("cannot enter directory"),
            "{ended}"
        );
    }
}

#[test]
fn a_daemon_of_a_user_serves_that_user() {
    if !two_people() {
        return;
    }
    let dir = open_folder();
    chown(dir.path(), Some(ANN.uid), Some(ANN.gid)).expect("root may do that");
    let daemon = Daemon::start_in(dir, &[], Some(ANN));
    let root = daemon.dir.path();
    assert_eq!((mode(&daemon.socket()), mode(&root.join("run"))), (0o600, 0o700));
    assert!(daemon.connect(BOB).is_err());
    std::fs::set_permissions(root.join("run"), Permissions::from_mode(0o755)).expect("root may");
    assert!(daemon.connect(BOB).is_err());
    std::fs::set_permissions(daemon.socket(), Permissions::from_mode(0o666)).expect("root may");
    let answer = daemon.post(BOB, "/v1/jobs", &json!({"command": ["true"]}));
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert_eq!(daemon.ask(BOB, "POST", "/v1/devices/0/drain", b"").status, 403);
    let home = home(root, "home", ANN);
    let id = daemon.submit(ANN, &shell(&home, "id -u"));
    assert_eq!(daemon.over(id)["state"], "completed");
    assert_eq!(daemon.get(ANN, &format!("/v1/jobs/{id}/logs")).text(), "65534\n");
    assert_eq!(daemon.get(BOB, &format!("/v1/jobs/{id}/logs")).status, 403);
    // Root may hand in jobs, and they are no more than the daemon is.
    let id = daemon.submit(ROOT, &shell(&home, "id -u"));
    assert_eq!(daemon.over(id)["state"], "completed");
    assert_eq!(daemon.get(ROOT, &format!("/v1/jobs/{id}/logs")).text(), "65534\n");
}

#[test]
fn files_are_closed_to_others() {
    let dir = open_folder();
    // One that was made too openly before is closed.
    let state = dir.path().join("state");
    std::fs::create_dir(&state).expect("a folder can be made");
    std::fs::set_permissions(&state, Permissions::from_mode(0o777)).expect("ours");
    let daemon = Daemon::start_in(dir, &["--listen", "127.0.0.1:0"], None);
    let home = daemon.dir.path().join("home");
    std::fs::create_dir(&home).expect("a folder can be made");
    let id = daemon.submit(ROOT, &shell(&home, "sleep 100"));
    let run = state.join(format!("runs/{id}.1"));
    let deadline = Instant::now() + Duration::from_secs(60);
    while !run.join("running").exists() {
        assert!(Instant::now() < deadline, "{}", daemon.info(id));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(mode(&state), 0o700);
    for file in ["state.db", "state.db-wal", "state.db-shm", "lock", "tls-key.pem"] {
        assert_eq!(mode(&state.join(file)), 0o600, "{file}");
    }
    assert_eq!((mode(&state.join("runs")), mode(&run)), (0o700, 0o700));
    for file in ["spec.json", "claim", "started.json"] {
        assert_eq!(mode(&run.join(file)), 0o600, "{file}");
    }
    let root = rustix::process::geteuid().is_root();
    assert_eq!(mode(&daemon.socket()), if root { 0o666 } else { 0o600 });
    if !two_people() {
        return;
    }
    // A folder of somebody else could be anything tomorrow.
    for (folder, says) in [
        ("state", "is not a folder of user 0"),
        ("run", "could replace the socket"),
        ("run/daemon.jobs", "is not a folder of user 0"),
    ] {
        let dir = open_folder();
        if let Some(above) = Path::new(folder).parent() {
            std::fs::create_dir_all(dir.path().join(above)).expect("a folder can be made");
        }
        hostile::home(dir.path(), folder, BOB);
        let output = command(Path::new(env!("CARGO_BIN_EXE_tandem")), dir.path(), &[])
            .stderr(Stdio::piped())
            .output()
            .expect("the daemon can be started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
}

#[test]
fn there_is_no_tcp_unless_it_is_asked_for() {
    let daemon = Daemon::start(&[]);
    let pid = daemon.child.id();
    let mut own = std::collections::BTreeSet::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives").flatten() {
        if let Ok(target) = std::fs::read_link(entry.path()) {
            let target = target.to_string_lossy().into_owned();
            own.extend(
                target.strip_prefix("socket:[").map(|inode| inode.trim_end_matches(']').to_owned()),
            );
        }
    }
    assert!(!own.is_empty(), "it has its socket");
    for table in ["tcp", "tcp6", "udp", "udp6"] {
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")) else {
            continue;
        };
        for line in text.lines().skip(1) {
            let inode = line.split_ascii_whitespace().nth(9).unwrap_or_default();
            assert!(!own.contains(inode), "{table}: {line}");
        }
    }
}

#[test]
fn webhooks_are_called_as_the_user_or_not_at_all() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let job = json!({
        "command": ["true"], "dir": "/", "stdout": "/dev/null", "webhook": format!("http://{address}/hook?a=b"),
    });
    let id = daemon.submit(ANN, &job);
    let (mut stream, peer) = listener.accept().expect("it calls");
    // The system's own table says whose the connection is.
    let table = std::fs::read_to_string("/proc/net/tcp").expect("there is one");
    let port = format!(":{:04X}", peer.port());
    let line = table.lines().find(|line| {
        line.split_ascii_whitespace().nth(1).is_some_and(|local| local.ends_with(&port))
    });
    let uid = line.and_then(|line| line.split_ascii_whitespace().nth(7)).expect("it is there");
    assert_eq!(uid, ANN.uid.to_string());
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time is set");
    let mut bytes = [0; 4096];
    let mut said = String::new();
    while !said.contains("completed") {
        let read = stream.read(&mut bytes).expect("it speaks");
        assert!(read > 0, "{said}");
        said += &String::from_utf8_lossy(&bytes[..read]);
    }
    assert!(said.starts_with("POST /hook?a=b HTTP/1.1\r\n"), "{said}");
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let body: Value =
        serde_json::from_str(said.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    assert_eq!((&body["id"], &body["state"]), (&json!(id), &json!("completed")));
    drop(daemon);

    let daemon = Daemon::start(&["--set", "daemon.webhooks=false"]);
    let answer = daemon.post(ANN, "/v1/jobs", &job);
    assert_eq!(answer.status, 403, "{}", answer.text());
}

#[test]
fn programs_of_others_reach_the_shared_daemon_as_themselves() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let root = daemon.dir.path();
    let program = program(root);
    let dir = home(root, "ann", ANN);
    let run = |who: tandem_backends::Owner, args: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent").args(args);
        command.env("TANDEM_DAEMON__SOCKET", daemon.socket()).stdin(Stdio::null());
        command.current_dir(if who == ANN { &dir } else { Path::new("/") });
        let output = command.uid(who.uid).gid(who.gid).output().expect("it can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) =
        run(ANN, &["submit", "--parsable", "--", "sh", "-c", "id -u; echo SECRET"]);
    assert_eq!(code, Some(0), "{err}");
    let id = out.trim();
    daemon.over(id.parse().expect("a number"));
    assert_eq!(run(ANN, &["logs", id]).1, "65534\nSECRET\n");
    for args in [&["logs", id][..], &["cancel", id], &["gpus", "drain", "0"]] {
        let (code, out, err) = run(BOB, args);
        assert!(code != Some(0) && !out.contains("SECRET"), "{args:?}: {out} {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
    for args in [&["info", id][..], &["queue", "--all"], &["info", id, "--json"], &["explain", id]]
    {
        let (_, out, err) = run(BOB, args);
        assert!(!out.contains("SECRET") && !err.contains("SECRET"), "{args:?}: {out} {err}");
    }
    assert!(run(ANN, &["info", id, "--json"]).1.contains("SECRET"));
}
