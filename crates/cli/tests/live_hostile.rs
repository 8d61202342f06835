//! Requests, connections and jobs that mean harm: the daemon says no in one line, goes on, and stays small.

#![allow(clippy::too_many_lines, reason = "tables of cases")]

mod common;
mod hostile;

use hostile::{BOB, Daemon, ROOT, exchange, parse, shell, two_people};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Every refusal is one line of JSON with a code and a message.
fn assert_refusal(answer: &hostile::Answer, status: u16, what: &str) {
    let text = answer.text();
    assert_eq!(answer.status, status, "{what}: {}", &text[..text.len().min(500)]);
    let error = &answer.json()["error"];
    let message = error["message"].as_str().unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(error["code"].is_string() && !message.is_empty(), "{what}: {text}");
    assert!(!message.contains(char::is_control) && text.len() < 10_000, "{what}: {text}");
}

#[test]
fn bad_requests() {
    let daemon = Daemon::start(&[]);
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    let with = |field: &str, value: Value| {
        let mut job = json!({"command": ["true"]});
        job[field] = value;
        job.to_string().into_bytes()
    };
    let long = "x".repeat(1 << 20);
    let many = |text: &str, count: usize| text.repeat(count);
    let param = |name: &str, values: Vec<&str>| json!({"name": name, "values": values});
    let ten_thousand = "afterok:1".to_owned() + &many(":1", 10_000);
    let cases: Vec<(&str, u16, Vec<u8>)> = vec![
        ("nothing", 400, vec![]),
        ("no JSON", 400, b"hello".to_vec()),
        ("a list", 400, b"[]".to_vec()),
        ("not UTF-8", 400, b"{\"command\":[\"tr\xff\xfeue\"]}".to_vec()),
        ("half a surrogate", 400, br#"{"command":["\ud800"]}"#.to_vec()),
        ("a list in a list in a list", 400, nested(100_000).into_bytes()),
        ("nested fields", 400, format!("{{\"command\":{}}}", nested(100_000)).into_bytes()),
        ("nested objects", 400, ("{\"env\":".repeat(100_000)).into_bytes()),
        ("an unknown field", 400, with("shell", json!(true))),
        ("a field twice", 400, br#"{"command":["true"],"command":["false"]}"#.to_vec()),
        ("no command", 400, b"{}".to_vec()),
        ("an empty program", 400, br#"{"command":[""]}"#.to_vec()),
        ("NUL in the command", 400, br#"{"command":["true\u0000x"]}"#.to_vec()),
        ("a newline in the name", 400, with("name", json!("a\nb"))),
        ("an escape in the name", 400, with("name", json!("\u{1b}[31mred"))),
        ("a long name", 400, with("name", json!(long))),
        ("no name", 400, with("name", json!(""))),
        ("an escape in the class", 400, with("class", json!("\u{1b}]0;x\u{7}"))),
        ("a variable with =", 400, with("env", json!({"A=B": "c"}))),
        ("a variable with NUL", 400, with("env", json!({"A": "c\0"}))),
        ("an empty variable", 400, with("env", json!({"": "c"}))),
        ("a large environment", 400, with("env", json!({"A": long.clone() + "x"}))),
        ("a relative directory", 400, with("dir", json!("../../etc"))),
        ("NUL in the directory", 400, with("dir", json!("/a\0b"))),
        ("NUL in the output", 400, with("stdout", json!("a\0b"))),
        ("a long output", 400, with("stdout", json!(many("%x", 100_000)))),
        ("negative GPUs", 400, with("gpus", json!(-1))),
        ("GPUs that are none", 400, br#"{"command":["true"],"gpus":NaN}"#.to_vec()),
        ("GPUs without end", 400, br#"{"command":["true"],"gpus":1e999}"#.to_vec()),
        ("GPUs as text", 400, with("gpus", json!("1"))),
        ("a negative time", 400, with("time_limit_s", json!(-5))),
        ("an endless time", 400, with("time_limit_s", json!(1e300))),
        ("a negative count", 400, with("retries", json!(-1))),
        ("too many retries", 400, with("retries", json!(4_000_000_000_u32))),
        ("a number that is too large", 400, with("gpu_memory_bytes", json!(u64::MAX))),
        ("more memory than there is", 422, with("gpu_memory_bytes", json!(1_u64 << 49))),
        ("more GPUs than there are", 422, with("gpus", json!(1000))),
        ("another partition", 422, with("partition", json!(long))),
        ("a priority out of range", 400, with("priority", json!(127))),
        ("a huge array", 400, with("array", json!("0-4294967295"))),
        ("a huge array by steps", 400, with("array", json!("0-4294967295:2"))),
        (
            "the same array again and again",
            400,
            with("array", json!(many("0-99999,", 400_000) + "1")),
        ),
        ("an array of ones", 400, with("array", json!(many("1,", 1_000_000) + "1"))),
        ("an array of text", 400, with("array", json!(many("\u{1b}", 100_000)))),
        ("params without end", 400, with("params", json!(vec![param("a", vec!["1", "2"]); 40]))),
        ("params without values", 400, with("params", json!([param("a", vec![])]))),
        ("params with odd names", 400, with("params", json!([param("a}{", vec!["1"])]))),
        (
            "a large parameter often",
            400,
            with("params", json!([param("a", vec![&long]), param("b", vec!["1"; 100_000])])),
        ),
        (
            "a parameter in many places",
            400,
            json!({"command": ["true", many("{a}", 300_000)], "params": [param("a", vec![&long])]})
                .to_string()
                .into_bytes(),
        ),
        ("10,001 dependencies", 400, with("dependency", json!(ten_thousand + ":1"))),
        (
            "dependencies on everybody, again and again",
            400,
            with("dependency", json!("afterok".to_owned() + &many(":1-100000", 400_000))),
        ),
        ("a dependency on nobody", 400, with("dependency", json!("afterok:18446744073709551615"))),
        ("a dependency on itself", 400, with("dependency", json!("afterok:999999"))),
        ("a pattern that explodes", 400, with("progress_regex", json!("(((a{100}){100}){100})"))),
        ("a pattern of many", 400, with("progress_regex", json!(many("(\\w{100})", 10_000)))),
        ("a deep pattern", 400, with("progress_regex", json!(many("(", 100_000)))),
        ("no pattern", 400, with("progress_regex", json!("*"))),
        ("a webhook to a file", 400, with("webhook", json!("file:///etc/shadow"))),
        ("a webhook over TLS to nowhere", 400, with("webhook", json!("https://"))),
        ("a webhook to a socket", 400, with("webhook", json!("unix:///run/docker.sock"))),
        ("a webhook with a line of its own", 400, with("webhook", json!("http://a/\r\nx: y"))),
        ("a webhook to nowhere", 400, with("webhook", json!("http://"))),
        ("too much", 413, vec![b' '; 10 << 20]),
        ("too much JSON", 413, with("env", json!({"A": many("x", 10 << 20)}))),
    ];
    for (what, status, body) in &cases {
        for path in ["/v1/jobs", "/v1/jobs/dry-run"] {
            // Whether a dependency exists is no question of a dry run.
            if path.ends_with("dry-run") && what.contains("dependency on") {
                continue;
            }
            let began = Instant::now();
            let answer = daemon.ask(ROOT, "POST", path, body);
            assert_refusal(&answer, *status, what);
            assert!(began.elapsed() < Duration::from_secs(10), "{what}: {:?}", began.elapsed());
        }
        daemon.assert_well(what);
    }
    let jobs = daemon.get(ROOT, "/v1/jobs").json();
    assert_eq!(jobs["jobs"], json!([]), "nothing was accepted");
    let change = json!({"action": "cancel", "jobs": vec!["1-100000"; 10_000]});
    let began = Instant::now();
    assert_refusal(&daemon.post(ROOT, "/v1/jobs/change", &change), 400, "everybody often");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    daemon.assert_well("a change of everybody, again and again");
    for (method, path, status) in [
        ("GET", "/v1/jobs/-1", 400),
        ("GET", "/v1/jobs/18446744073709551615", 404),
        ("GET", "/v1/jobs/18446744073709551616", 400),
        ("GET", "/v1/jobs/%00", 400),
        ("GET", "/v1/jobs/%ff", 400),
        ("GET", "/v1/jobs/..%2f..%2fetc%2fshadow", 400),
        ("GET", "/../../etc/shadow", 404),
        ("GET", "/v1/jobs?limit=-1", 400),
        ("GET", "/v1/jobs?state=%27%20OR%201=1", 400),
        ("GET", "/v1/jobs?what=1", 400),
        ("GET", "/v1/jobs?after=18446744073709551615", 400),
        ("GET", "/v1/jobs?order=%1b[31m", 400),
        ("GET", "/v1/usage?since=now", 400),
        ("POST", "/v1/devices/99/drain", 404),
        ("POST", "/v1/devices/-1/drain", 400),
        ("PUT", "/v1/jobs/1/accum", 400),
        ("BREW", "/v1/jobs", 405),
        ("DELETE", "/v1/jobs", 405),
    ] {
        assert_refusal(&daemon.ask(ROOT, method, path, b""), status, path);
    }
    for since in ["-1", "NaN", "inf"] {
        let path = format!("/v1/usage?since={since}");
        assert_refusal(&daemon.get(ROOT, &path), 400, &path);
    }
    assert_eq!(daemon.get(ROOT, "/v1/usage?since=1e300").status, 200);
    let user = "/v1/jobs?user=%27%3B%20DROP%20TABLE%20jobs%3B--&after=9223372036854775807&limit=4294967295";
    assert_eq!(daemon.get(ROOT, user).json()["jobs"], json!([]));
    for policy in
        ["nonsense", "tandem:x=1", "tandem:%1b", "%ff", "srtf:period=-1", "tiresias:queues=1e99"]
    {
        let answer = daemon.ask(
            ROOT,
            "POST",
            &format!("/v1/jobs/dry-run?policy={policy}"),
            b"{\"command\":[\"true\"]}",
        );
        assert_refusal(&answer, 400, policy);
    }
    daemon.assert_well("bad paths");
}

#[test]
fn odd_requests_that_are_allowed_do_no_harm() {
    let daemon = Daemon::start(&[]);
    let dir = daemon.dir.path();
    std::fs::create_dir(dir.join("sub")).expect("a folder can be made");
    // A name that is the program's is not checked; whoever shows it has to.
    let evil = "evil\u{1b}]0;x\u{7}\n\u{202e}";
    let named = daemon.submit(ROOT, &json!({"command": [evil], "dir": dir}));
    assert_eq!(daemon.over(named)["state"], "failed");
    let mut job = shell(&dir.join("sub"), "echo up");
    job["stdout"] = "../../../../../../../../../../../../tmp/../".to_owned().into();
    assert_eq!(daemon.over(daemon.submit(ROOT, &job))["state"], "failed", "a folder is no file");
    job["stdout"] = "../out-%j-%a-%x-%%-%".into();
    job["name"] = "../a b".into();
    let id = daemon.submit(ROOT, &job);
    assert_eq!(daemon.over(id)["state"], "completed");
    assert!(dir.join(format!("out-{id}-0-.._a b-%-%")).is_file());
    let big = json!({"command": ["true"], "dir": "/", "stdout": "/dev/null", "env": {"A": "x".repeat(1 << 20).split_off(1)}});
    let ended = daemon.over(daemon.submit(ROOT, &big));
    assert!(ended["reason"].as_str().expect("a reason").contains("too long"), "{ended}");
    let depends = "afterok:".to_owned() + &vec![id.to_string(); 10_000].join(":");
    let id = daemon
        .submit(ROOT, &json!({"command": ["true"], "stdout": "/dev/null", "dependency": depends}));
    assert_eq!(daemon.over(id)["state"], "completed");
    daemon.assert_well("odd requests");
    for args in
        [&["queue", "--all"][..], &["info", &named.to_string()], &["queue", "--all", "-o", "csv"]]
    {
        let output = Command::new(env!("CARGO_BIN_EXE_tandem"))
            .args(args)
            .env("TANDEM_DAEMON__SOCKET", daemon.socket())
            .stdin(Stdio::null())
            .output()
            .expect("it can be started");
        let shown = String::from_utf8(output.stdout).expect("UTF-8");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        let raw = if args.contains(&"csv") {
            &['\u{1b}', '\u{7}'][..]
        } else {
            &['\u{1b}', '\u{7}', '\u{202e}']
        };
        assert!(!shown.contains(raw), "{args:?}: {shown:?}");
        assert!(shown.contains("evil"), "{args:?}: {shown:?}");
    }
    let array =
        json!({"command": ["true"], "stdout": "/dev/null", "hold": true, "array": "0-9999"});
    assert_eq!(
        daemon.post(ROOT, "/v1/jobs", &array).json()["ids"].as_array().map(Vec::len),
        Some(10_000)
    );
    daemon.assert_well("an array");
}

#[test]
fn silent_and_many_connections() {
    let daemon = Daemon::start(&[]);
    let mut silent = Vec::new();
    for sent in [
        "",
        "G",
        "GET /v1/jobs HTTP/1.1\r\n",
        "POST /v1/jobs HTTP/1.1\r\ncontent-length: 100\r\n\r\n{",
    ] {
        for _ in 0..20 {
            let mut stream = daemon.connect(ROOT).expect("the daemon listens");
            stream.write_all(sent.as_bytes()).expect("it reads");
            silent.push(stream);
        }
    }
    daemon.assert_well("silent connections");
    // Garbage of several kinds.
    for garbage in
        [&b"\0\0\0\0\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", &[b'A'; 1 << 20]]
    {
        let mut stream = daemon.connect(ROOT).expect("the daemon listens");
        let _ = stream.write_all(garbage);
        let mut bytes = Vec::new();
        stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a time is set");
        let _ = stream.read_to_end(&mut bytes);
        assert!([0, 400, 431].contains(&parse(&bytes).status), "{bytes:?}");
    }
    let headers: Vec<(String, String)> =
        (0..1000).map(|n| (format!("x-{n}"), "y".repeat(1000))).collect();
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    let answer =
        exchange(daemon.connect(ROOT).expect("it listens"), "GET", "/healthz", &headers, b"");
    assert!([0, 400, 431].contains(&answer.status), "{answer:?}");
    // Chunks without end.
    let mut stream = daemon.connect(ROOT).expect("the daemon listens");
    let _ = stream
        .write_all(b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = [b"10000\r\n".to_vec(), vec![b' '; 0x10000], b"\r\n".to_vec()].concat();
    let sent = (0..200).take_while(|_| stream.write_all(&chunk).is_ok()).count();
    assert!(sent < 200 || parse(&read_some(&mut stream)).status == 413, "{sent}");
    daemon.assert_well("garbage");
    drop(silent);
    if !two_people() {
        return;
    }
    // One user with more than the daemon may have files: others still get in, and so does the user once
    // there are fewer.
    drop(daemon);
    let daemon = Daemon::start_with_files(256);
    let open: Vec<_> = (0..700).filter_map(|_| daemon.connect(BOB).ok()).collect();
    let answer = daemon.get(BOB, "/healthz");
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.json()["error"]["code"], "unavailable");
    for _ in 0..20 {
        daemon.assert_well("thousands of connections");
    }
    let id = daemon.submit(ROOT, &json!({"command": ["true"], "stdout": "/dev/null"}));
    assert_eq!(daemon.over(id)["state"], "completed", "jobs can still be started");
    drop(open);
    let deadline = Instant::now() + Duration::from_secs(20);
    while daemon.get(BOB, "/healthz").status != 200 {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn read_some(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    stream.set_read_timeout(Some(Duration::from_secs(5))).expect("a time is set");
    let read = stream.read(&mut bytes).unwrap_or(0);
    bytes.truncate(read);
    bytes
}

#[test]
fn jobs_that_talk_nonsense() {
    let daemon =
        Daemon::start(&["--set", "learning.window_s=0.05", "--set", "learning.window_steps=1"]);
    let id = daemon.submit(ROOT, &shell(daemon.dir.path(), "sleep 1000"));
    daemon.until(id, &["running"]);
    let socket = daemon.socket().with_extension("jobs").join(format!("{id}.sock"));
    let connect = || {
        let stream = UnixStream::connect(&socket).expect("it listens");
        stream.set_write_timeout(Some(Duration::from_secs(2))).expect("a time is set");
        stream
    };
    let said: Vec<Vec<u8>> = vec![
        vec![0; 1 << 20],
        vec![b'\n'; 1 << 16],
        vec![0xff; 1 << 20],
        b"{\"op\":".repeat(20_000),
        b"[[[[[[[[[[[[[[[[[[[[[[[\n".repeat(100),
        [
            b"{\"op\":\"hello\",\"caps\":[".to_vec(),
            b"\"x\",".repeat(10_000),
            b"\"accum\"]}\n".to_vec(),
        ]
        .concat(),
        b"{\"op\":\"step\",\"n\":18446744073709551615,\"accum\":0}\n".to_vec(),
        b"{\"op\":\"step\",\"n\":0,\"accum\":4294967295}\n{\"op\":\"step\",\"n\":1e99}\n".to_vec(),
        b"{\"op\":\"hello\",\"batch\":0,\"caps\":[\"accum\",\"stop\",\"gate\"]}\n".to_vec(),
        b"{\"op\":\"hello\",\"batch\":4294967295,\"caps\":[]}\n{\"op\":\"hello\",\"batch\":-1}\n"
            .to_vec(),
        b"{\"op\":\"bye\",\"done\":false}\n{\"op\":\"bye\",\"done\":true}\n".to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ];
    for bytes in &said {
        let mut stream = connect();
        let _ = stream.write_all(bytes);
        std::thread::sleep(Duration::from_millis(60));
        daemon.assert_well("nonsense");
    }
    // Numbers of steps that leap.
    let mut stream = connect();
    for n in [1, 1 << 40, u64::MAX - 1, 0, u64::MAX, 5, u64::MAX] {
        let _ = stream.write_all(format!("{{\"op\":\"step\",\"n\":{n},\"accum\":1}}\n").as_bytes());
        std::thread::sleep(Duration::from_millis(120));
    }
    daemon.assert_well("leaps");
    // What it says about itself over and over is not written down each time.
    let size = || {
        let state = daemon.dir.path().join("state");
        let bytes = |file| std::fs::metadata(state.join(file)).map_or(0, |metadata| metadata.len());
        bytes("state.db") + bytes("state.db-wal")
    };
    let before = size();
    let flood =
        b"{\"op\":\"hello\",\"caps\":[\"accum\"]}\n{\"op\":\"hello\",\"caps\":[\"stop\"]}\n"
            .repeat(500);
    let deadline = Instant::now() + Duration::from_secs(3);
    while Instant::now() < deadline {
        let mut stream = connect();
        stream.set_write_timeout(Some(Duration::from_millis(100))).expect("a time is set");
        let _ = stream.write_all(&flood);
    }
    daemon.assert_well("a flood");
    let grown = size().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes for nothing");
    let job = daemon.info(id);
    assert_eq!(job["state"], "running", "{job}");
    // Everything about it can still be shown.
    for path in ["/v1/jobs", "/v1/classes", "/metrics", "/v1/devices"] {
        assert_eq!(daemon.get(ROOT, path).status, 200, "{path}");
    }
    assert_eq!(daemon.get(ROOT, &format!("/v1/jobs/{id}/explain")).status, 200);
    assert_eq!(daemon.ask(ROOT, "DELETE", &format!("/v1/jobs/{id}"), b"").status, 200);
    assert_eq!(daemon.over(id)["state"], "cancelled");
}

/// The name of a user is asked of a service that does not answer: others are served meanwhile.
#[test]
fn a_slow_name_service_keeps_nobody_else_waiting() {
    if !two_people() {
        return;
    }
    let dir = hostile::open_folder();
    let id = dir.path().join("id");
    std::fs::write(&id, "#!/bin/sh\nexec /bin/sleep 30\n").expect("a file can be written");
    std::fs::set_permissions(&id, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("it is ours");
    let tandem = std::path::Path::new(env!("CARGO_BIN_EXE_tandem"));
    let mut command = hostile::command(tandem, dir.path(), &[]);
    command.env("PATH", format!("{}:/usr/bin:/bin", dir.path().display()));
    let daemon = Daemon::spawn(dir, command);
    let strangers = 40_000_001..40_000_005;
    std::thread::scope(|scope| {
        let asked: Vec<_> = strangers
            .map(|uid| {
                let stranger = tandem_backends::Owner { uid, gid: uid };
                let daemon = &daemon;
                scope.spawn(move || daemon.get(stranger, "/v1/jobs"))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        assert_eq!(daemon.get(BOB, "/v1/jobs").status, 200);
        daemon.submit(BOB, &json!({"command": ["true"], "dir": "/", "stdout": "/dev/null"}));
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert!(asked.iter().all(|one| !one.is_finished()), "they were not slow");
        for answer in asked {
            assert_refusal(&answer.join().expect("it is answered"), 503, "a stranger");
        }
    });
}
