//! People who share a daemon run by root: fair shares, limits, qualities of service, reservations, usage.

mod common;
mod hostile;

use hostile::{ANN, BOB, Daemon, ROOT, open_folder, two_people};
use serde_json::{Value, json};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tandem_backends::Owner;

/// A daemon with four fake GPUs and this shares file.
fn daemon(shares: &str) -> Daemon {
    let dir = open_folder();
    let file = dir.path().join("shares.toml");
    std::fs::write(&file, shares).expect("a file can be written");
    let setting = format!("daemon.shares={}", file.display());
    Daemon::start_in(dir, &["--set", &setting], None)
}

fn sleeps(gpus: u32) -> Value {
    json!({
        "command": ["sleep", "600"], "dir": "/", "stdout": "/dev/null", "gpus": gpus,
        "exclusive": true, "estimate_s": 600,
    })
}

fn with(mut job: Value, field: &str, value: Value) -> Value {
    job[field] = value;
    job
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Seconds on GPUs of all active jobs of a user, each on one GPU.
fn gpu_seconds(daemon: &Daemon, user: &str) -> f64 {
    let page = daemon.get(ROOT, &format!("/v1/jobs?state=active&user={user}&limit=10000")).json();
    let jobs = page["jobs"].as_array().expect("a list");
    jobs.iter().map(|job| job["run_s"].as_f64().expect("a number")).sum()
}

fn running(daemon: &Daemon, user: &str) -> usize {
    let page = daemon.get(ROOT, &format!("/v1/jobs?state=running&user={user}")).json();
    page["jobs"].as_array().expect("a list").len()
}

fn cli(daemon: &Daemon, args: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", daemon.dir.path()).args(args);
    command.arg("--socket").arg(daemon.socket());
    let output = command.stdin(Stdio::null()).output().expect("it can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_late_user_gets_as_much_gpu_time_as_one_with_a_backlog() {
    if !two_people() {
        return;
    }
    let slice_s = 3.0;
    let daemon = daemon("[fair_share]\nslice_s = 3\n");
    let backlog = with(sleeps(1), "array", json!("0-999"));
    assert_eq!(daemon.post(ANN, "/v1/jobs", &backlog).status, 201);
    wait_for("Ann has all GPUs", || running(&daemon, "nobody") == 4);
    let before = gpu_seconds(&daemon, "nobody");
    assert_eq!(daemon.post(BOB, "/v1/jobs", &with(sleeps(1), "array", json!("0-9"))).status, 201);
    // Both have jobs for more than half of the GPUs, for several slices.
    std::thread::sleep(Duration::from_secs_f64(slice_s * 5.0));
    let (ann, bob) = (gpu_seconds(&daemon, "nobody") - before, gpu_seconds(&daemon, "daemon"));
    assert!((ann - bob).abs() <= slice_s * 4.0, "ann {ann}, bob {bob} GPU-seconds");
    assert!(bob > slice_s * 4.0, "bob {bob} GPU-seconds");
    println!("ann {ann:.1}, bob {bob:.1} GPU-seconds in {} s", slice_s * 5.0);
    let waits = daemon.get(ANN, "/v1/jobs?state=pending&user=nobody&limit=1&order=desc").json();
    let reason = waits["jobs"][0]["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("share"), "{waits}");
}

#[test]
fn limits_accounts_and_qualities_of_service_hold() {
    if !two_people() {
        return;
    }
    let daemon = daemon(
        "[fair_share]\nslice_s = 1\n[limits]\npending = 5\n\
         [[user]]\nname = \"nobody\"\nlimits = { gpus = 2, pending = 5 }\n\
         [[account]]\nname = \"lab\"\nusers = [\"daemon\"]\nweight = 2\n\
         [[qos]]\nname = \"urgent\"\ntier = 5\nusers = [\"daemon\"]\n",
    );
    let three: Vec<u64> = (0..3).map(|_| daemon.submit(ANN, &sleeps(1))).collect();
    daemon.until(three[1], &["running"]);
    let reason = daemon.info(three[2])["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("limit of its user"), "{reason}");
    let status = |who: Owner, job: &Value| daemon.post(who, "/v1/jobs", job).status;
    assert_eq!(status(ANN, &with(sleeps(1), "array", json!("0-9"))), 409, "too many are pending");
    assert_eq!(status(ANN, &with(sleeps(1), "qos", json!("urgent"))), 403);
    assert_eq!(status(ANN, &with(sleeps(1), "qos", json!("none"))), 400);
    assert_eq!(status(ANN, &with(sleeps(1), "account", json!("lab"))), 403);
    assert_eq!(status(ANN, &with(sleeps(1), "account", json!("none"))), 400);
    assert_eq!(status(ANN, &with(sleeps(1), "reservation", json!(1))), 400);
    // An urgent gang takes all GPUs from those who run.
    let urgent = daemon.submit(BOB, &with(sleeps(4), "qos", json!("urgent")));
    daemon.until(urgent, &["running"]);
    assert_eq!(running(&daemon, "nobody"), 0);
    let (ok, out, said) = cli(&daemon, &["usage", "--by", "user,account,month", "-o", "csv"]);
    assert!(ok && out.starts_with("month,account,user,jobs,gpu_hours"), "{out} {said}");
    assert!(out.contains(",lab,daemon,1,"), "{out}");
}

#[test]
fn reservations_keep_gpus_for_their_users_and_are_foreseen() {
    if !two_people() {
        return;
    }
    let mut daemon = daemon("");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.expect("it is after 1970").as_secs_f64();
    let request = |gpus: u32, users: &[&str], start_s: f64| json!({"gpus": gpus, "start_unix_s": now + start_s, "end_unix_s": now + 5000.0, "users": users});
    assert_eq!(daemon.post(ANN, "/v1/reservations", &request(1, &[], 0.0)).status, 403);
    let misspelt = daemon.post(ROOT, "/v1/reservations", &request(1, &["nobodyx"], 0.0));
    assert_eq!(misspelt.status, 400);
    assert!(misspelt.text().contains("users: there is no user 'nobodyx'"), "{}", misspelt.text());
    let (ok, _, said) = cli(&daemon, &["reserve", "-G", "1", "--end", "2020-01-01"]);
    assert!(!ok && said.contains("--end: is not later than now"), "{said}");
    let made = daemon.post(ROOT, "/v1/reservations", &request(3, &["daemon"], 0.0));
    assert_eq!(made.status, 201, "{}", made.text());
    let id = made.json()["reservation"]["id"].clone();
    assert_eq!(daemon.post(ROOT, "/v1/reservations", &request(2, &[], 0.0)).status, 409);
    // One GPU is left for Ann; a gang of hers is expected after the reservation.
    let one = daemon.submit(ANN, &sleeps(1));
    daemon.until(one, &["running"]);
    let gang = daemon.submit(ANN, &sleeps(2));
    assert_eq!(
        daemon.post(ANN, "/v1/jobs", &with(sleeps(1), "reservation", id.clone())).status,
        403
    );
    let bobs = daemon.submit(BOB, &with(sleeps(3), "reservation", id.clone()));
    assert_eq!(daemon.until(bobs, &["running"])["devices"].as_array().map(Vec::len), Some(3));
    let explained = daemon.get(ANN, &format!("/v1/jobs/{gang}/explain")).json();
    let start = explained["start_in_s"][1].as_f64().expect("a forecast");
    assert!((4000.0..5100.0).contains(&start), "{explained}");
    // It is there after a restart, until it is cancelled.
    daemon.child.kill().expect("it lives");
    daemon.child.wait().expect("it ends");
    let log = std::fs::File::create(daemon.dir.path().join("log")).expect("a file can be made");
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_tandem"));
    let mut again = hostile::command(program, daemon.dir.path(), &[]);
    daemon.child = again.stderr(log).spawn().expect("it can be started");
    wait_for("the daemon is up", || daemon.connect(ROOT).is_ok());
    let (ok, out, said) = cli(&daemon, &["reserve", "list", "-o", "csv"]);
    assert!(ok && out.contains("daemon"), "{out} {said}");
    assert_eq!(daemon.info(bobs)["state"], "running");
    assert!(cli(&daemon, &["cancel", &bobs.to_string()]).0);
    daemon.over(bobs);
    assert_eq!(daemon.info(gang)["state"], "pending");
    let (ok, _, said) = cli(&daemon, &["reserve", "cancel", &id.to_string()]);
    assert!(ok, "{said}");
    daemon.until(gang, &["running"]);
}

#[test]
fn a_drain_has_a_reason_and_an_end() {
    let daemon = daemon("");
    let (ok, _, said) =
        cli(&daemon, &["gpus", "drain", "0", "--until", "now+1h", "--reason", "fan"]);
    assert!(ok && said.contains("undrain 0") && said.contains("reservation 1"), "{said}");
    let all = daemon.submit(ROOT, &sleeps(4));
    let (_, out, _) = cli(&daemon, &["reserve", "list"]);
    assert!(out.contains("fan"), "{out}");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(daemon.info(all)["state"], "pending");
    assert!(cli(&daemon, &["reserve", "cancel", "1"]).0);
    daemon.until(all, &["running"]);
    let (ok, _, said) =
        cli(&daemon, &["gpus", "drain", "0", "--until", "now+2", "--reason", "dust"]);
    assert!(ok, "{said}");
    assert_eq!(daemon.info(all)["state"], "running", "a drain stops nothing");
    assert!(cli(&daemon, &["cancel", &all.to_string()]).0);
    let next = daemon.submit(ROOT, &sleeps(4));
    daemon.until(next, &["running"]);
}

#[test]
fn classes_are_kept_apart_by_user() {
    if !two_people() {
        return;
    }
    let daemon = daemon("shared_classes = [\"common\"]\n");
    let class = |who: Owner, class: &str| {
        let job = with(with(sleeps(1), "hold", json!(true)), "class", json!(class));
        let id = daemon.submit(who, &job);
        daemon.info(id)["class"].as_str().unwrap_or_default().to_owned()
    };
    assert_eq!(class(ANN, "net"), "nobody/net");
    assert_eq!(class(BOB, "net"), "daemon/net");
    assert_eq!(class(BOB, "nobody/net"), "daemon/nobody/net", "nobody poses as somebody else");
    assert_eq!((class(ANN, "common"), class(ROOT, "net")), ("common".to_owned(), "net".to_owned()));
}

#[test]
fn jobs_have_a_mask_and_limits_of_their_own() {
    let options = [
        ["--set", "jobs.umask=027"],
        ["--set", "jobs.open_files=333"],
        ["--set", "jobs.locked_mib=3"],
        ["--set", "jobs.core_mib=0"],
    ];
    let options = options.concat();
    let daemon = Daemon::start(&options);
    let out = daemon.dir.path().join("limits");
    let script = "umask; ulimit -n; ulimit -l; ulimit -c";
    let job = json!({"command": ["/bin/sh", "-c", script], "dir": "/", "stdout": out, "env": {}});
    let id = daemon.submit(ROOT, &job);
    daemon.over(id);
    assert_eq!(std::fs::read_to_string(&out).expect("it ran"), "0027\n333\n3072\n0\n");
}

#[test]
fn mail_is_sent_when_a_job_ends() {
    use std::os::unix::fs::PermissionsExt;
    let dir = open_folder();
    let (program, box_file) = (dir.path().join("sendmail"), dir.path().join("box"));
    let script = format!(
        "#!/bin/sh\n(echo \"$*\"; id -u; cat) > {0}.new\nmv {0}.new {0}\n",
        box_file.display()
    );
    std::fs::write(&program, script).expect("a file can be written");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("it is ours");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).expect("it is ours");
    let setting = format!("daemon.sendmail={}", program.display());
    let daemon = Daemon::start_in(dir, &["--set", &setting], None);
    let who = if rustix::process::geteuid().is_root() { ANN } else { ROOT };
    let job =
        |mail: &str| json!({"command": ["false"], "dir": "/", "stdout": "/dev/null", "mail": mail});
    assert_eq!(daemon.post(who, "/v1/jobs", &job("ann\r\nBcc: bob")).status, 400);
    let id = daemon.submit(who, &job("ann@example.org"));
    wait_for("a mail", || box_file.exists());
    let mail = std::fs::read_to_string(&box_file).expect("it is there");
    let mut lines = mail.lines();
    assert_eq!(lines.next(), Some("-i -- ann@example.org"));
    if who == ANN {
        assert_eq!(lines.next(), Some("65534"), "it is sent as the user");
    }
    assert!(mail.contains(&format!("Subject: job {id} false: failed")), "{mail}");
    assert!(mail.contains("exit code 1"), "{mail}");
}

#[test]
fn mail_goes_to_a_server_that_is_configured() {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    let daemon = Daemon::start(&["--set", &format!("daemon.smtp={address}")]);
    let job =
        json!({"command": ["true"], "dir": "/", "stdout": "/dev/null", "mail": "ann@example.org"});
    daemon.submit(ROOT, &job);
    let (stream, _) = listener.accept().expect("it connects");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time is set");
    let mut out = stream.try_clone().expect("it can be copied");
    let mut lines = BufReader::new(stream);
    let (mut said, mut is_text) = (String::new(), false);
    out.write_all(b"220 here\r\n").expect("it listens");
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).expect("it speaks") == 0 {
            break;
        }
        said += &line;
        let answer = match line.trim_end() {
            "." => "250 taken\r\n",
            _ if is_text => continue,
            "DATA" => "354 go on\r\n",
            "QUIT" => break,
            _ => "250-fine\r\n250 go on\r\n",
        };
        is_text = line.trim_end() == "DATA";
        out.write_all(answer.as_bytes()).expect("it listens");
    }
    assert!(said.contains("RCPT TO:<ann@example.org>"), "{said}");
    assert!(said.contains("true: completed"), "{said}");
}
