//! The commands that talk to the daemon, against canned answers: what they send, print and return.

mod common;

use common::server::{Asked, Say, Server, error, isolated, ok};
use common::{finish, folder};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

fn line(id: u64, name: &str, state: &str) -> Value {
    json!({
        "id": id, "name": name, "user": "ann", "state": state, "reason": null, "task": null, "gpus": 1.0,
        "class": "python train.py", "devices": [0], "beside": [], "rate": 0.82, "rate_measured": true,
        "submit_time": "2026-11-16T05:00:00Z", "start_time": null, "end_time": null, "run_s": 61.0,
        "shared_s": 5.0, "exit_code": null,
    })
}

/// All about job 17.
fn info(state: &str, exit_code: Option<i32>) -> String {
    let mut job = line(17, "train", state);
    let more = json!({
        "exit_code": exit_code, "uid": 1000, "pid": 4242, "runs": 1, "retried": 0, "signal": null,
        "share": 0.5, "enforcement": "advisory", "sub_batches": 1, "caps": ["report"],
        "slowdown_predicted": 1.25, "slowdown_measured": 1.22, "normalised_throughput": 1.6, "done_s": 50.0, "estimate_s": 100.0,
        "memory_peak_bytes": 1 << 30, "gpu_memory_bytes": null, "exclusive": false,
        "max_slowdown": 1.5, "time_limit_s": 3600.0, "priority": 0, "cpu_s": 0.0,
        "dependency": null, "beside": [18], "private": {
            "command": ["python", "train.py"], "dir": "/w", "stdout": "/w/out", "stderr": "/w/out", "env": {},
        },
    });
    for (name, value) in more.as_object().expect("an object") {
        job[name] = value.clone();
    }
    json!({ "schema": 1, "job": job }).to_string()
}

fn daemon_info() -> String {
    json!({
        "schema": 1, "version": "0.1.0", "policy": "tandem", "provider": "fake", "devices": 1, "up_s": 5.0,
        "uid": 1000, "pid": 7, "jobs": {"running": 1}, "plans_rejected": 0,
    })
    .to_string()
}

fn page(jobs: &[Value]) -> Say {
    ok(json!({ "schema": 1, "jobs": jobs }).to_string())
}

#[test]
fn a_daemon_that_is_not_there() {
    let dir = folder();
    let socket = dir.path().join("none.sock");
    for args in
        [&["queue"][..], &["submit", "--", "true"], &["info", "last"], &["wait", "1"], &["top"]]
    {
        let ran = finish(&mut isolated(dir.path(), args, &socket));
        assert_eq!(ran.code, Some(3), "{args:?}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
        assert!(ran.stderr.contains("start it with: tandem daemon"), "{ran:?}");
        assert_eq!(ran.stdout, "");
    }
    let ran = finish(&mut isolated(dir.path(), &["queue", "--json"], &socket));
    let said: Value = serde_json::from_str(&ran.stderr).expect("an error is JSON too");
    assert!(said["error"].as_str().expect("a text").contains("none.sock"));
}

#[test]
fn refusals_have_exit_codes() {
    let cases = [
        (400, "bad_request", 2),
        (401, "unauthorized", 2),
        (403, "forbidden", 2),
        (404, "not_found", 4),
        (409, "conflict", 2),
        (413, "too_large", 2),
        (422, "infeasible", 5),
        (503, "unavailable", 3),
        (500, "internal", 1),
    ];
    for (status, code, exit) in cases {
        let server = Server::start(move |_| error(status, code, "job 9: no\u{1b}[31m\nnever"));
        let ran = server.run(&["submit", "--", "true"]);
        assert_eq!(ran.code, Some(exit), "{code}: {ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{code}: {ran:?}");
        assert!(ran.stderr.starts_with("tandem: job 9: no\\u{1b}[31m never"), "{code}: {ran:?}");
        assert_eq!(ran.stderr.contains("--token-file"), code == "unauthorized", "{code}: {ran:?}");
        let ran = server.run(&["info", "9", "--json"]);
        assert_eq!(ran.code, Some(exit), "{code}: {ran:?}");
        let said: Value = serde_json::from_str(&ran.stderr).expect("an error is JSON too");
        assert!(said["error"].is_string());
    }
    let server = Server::start(|_| ok("<html>"));
    let ran = server.run(&["info", "9"]);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1), "{ran:?}");
}

#[test]
fn the_queue_in_every_format() {
    let names = ["a,\"b\"", "evil\u{1b}]0;x\u{7}\u{202e}"];
    let server = Server::start(move |_| {
        page(&[line(18, names[1], "pending"), line(17, names[0], "running")])
    });
    let ran = server.run(&["queue"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stdout.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{ran:?}");
    assert!(ran.stdout.contains("evil\\u{1b}]0;x\\u{7}\\u{202e}"), "{ran:?}");
    let rows: Vec<&str> = ran.stdout.lines().skip(2).map(|row| row.trim_start()).collect();
    assert!(rows[0].starts_with("17 ") && rows[1].starts_with("18 "), "{ran:?}");
    let asked = &server.asked()[0].path;
    assert_eq!(asked, "/v1/jobs?state=pending,held&limit=1000&order=desc");

    let csv = server.run(&["queue", "-o", "csv"]).stdout;
    let first = csv.lines().nth(1).expect("a row");
    assert!(csv.starts_with("id,name,user,state,"), "{csv}");
    assert!(first.starts_with("17,\"a,\"\"b\"\"\",ann,running,"), "{csv}");
    assert_eq!(server.run(&["queue", "--json"]).json()["jobs"][0]["id"], 17);
    assert_eq!(server.run(&["queue", "-o", "jsonl"]).stdout.lines().count(), 2);
    let ran = finish(server.command(&["queue"]).env("TANDEM_OUTPUT", "csv"));
    assert_eq!(ran.stdout, csv);
    let ran = finish(server.command(&["queue"]).env("TANDEM_OUTPUT", "xml"));
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1));
    assert!(server.run(&["queue", "--color", "always"]).stdout.contains("\u{1b}["));

    server.run(&["queue", "--state", "R,oom", "--user", "bob", "--limit", "5"]);
    // Those that have devices are asked for apart, and come first.
    let asked: Vec<String> = server.asked().into_iter().map(|asked| asked.path).collect();
    let last = &asked[asked.len() - 2..];
    let path = |state: &str| format!("/v1/jobs?state={state}&user=bob&limit=5&order=desc");
    assert_eq!(last, [path("oom"), path("running")]);
}

#[test]
fn what_is_submitted() {
    let server = Server::start(|_| Say { status: 201, ..ok(r#"{"schema":1,"ids":[17,18]}"#) });
    let args =
        ["submit", "-J", "x", "-G", "0.5", "-t", "90", "--gpu-memory", "2G", "--param", "lr=1,2"];
    let command =
        ["--export", "A=1,HOME", "--priority", "-3", "--", "python", "train.py", "--json"];
    let ran = server.run(&[&args[..], &command].concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "submitted jobs 17-18\n"), "{ran:?}");
    let Asked { method, path, body, .. } = server.asked().pop().expect("it asked");
    assert_eq!((method.as_str(), path.as_str()), ("POST", "/v1/jobs"));
    let body: Value = serde_json::from_str(&body).expect("a request is JSON");
    assert_eq!(body["command"], json!(["python", "train.py", "--json"]));
    assert_eq!((&body["gpus"], &body["time_limit_s"]), (&json!(0.5), &json!(5400.0)));
    assert_eq!((&body["gpu_memory_bytes"], &body["priority"]), (&json!(2_u64 << 30), &json!(-3)));
    assert_eq!(body["env"]["A"], "1");
    assert_eq!(body["env"].get("TANDEM_DAEMON__SOCKET"), None);
    let here = server.dir.path().canonicalize().expect("it is there");
    assert_eq!(body["dir"], here.to_str().expect("UTF-8"));

    let ran = server.run(&["submit", "--parsable", "--", "true"]);
    assert_eq!(ran.stdout, "17\n18\n");
    assert_eq!(server.run(&["submit", "--json", "--", "true"]).json()["ids"], json!([17, 18]));
}

#[test]
fn scripts() {
    let server = Server::start(|_| Say { status: 201, ..ok(r#"{"schema":1,"ids":[17]}"#) });
    let script = "#!/bin/bash -e\n#SBATCH --job-name=s --mem=4G -t 5\n#TANDEM -G 2\necho $1\n";
    common::write(server.dir.path(), "job.sh", script);
    let ran = server.run(&["submit", "-G", "1", "job.sh", "--epochs", "3"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "submitted job 17\n"), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(ran.stderr.contains("--mem"), "{ran:?}");
    let body: Value = serde_json::from_str(&server.asked()[0].body).expect("a request is JSON");
    let path = server.dir.path().canonicalize().expect("it is there").join("job.sh");
    let path = path.to_str().expect("UTF-8");
    assert_eq!(body["command"], json!(["/bin/bash", "-e", path, "--epochs", "3"]));
    assert_eq!((&body["gpus"], &body["name"]), (&json!(1.0), &json!("s")));
    assert_eq!(body["time_limit_s"], 300.0);

    common::write(server.dir.path(), "bad.sh", "#!/bin/sh\n#TANDEM --gpuz 2\n");
    let cases: &[(&[&str], &str)] = &[
        (&["submit", "bad.sh"], "bad.sh:2: "),
        (&["submit", "absent.sh"], "tandem submit -- python train.py"),
        (&["submit", "-t", "never", "--", "true"], "1h30m"),
        (&["submit", "-G", "1.5", "--", "true"], "gpus: "),
        (&["submit", "-a", "5-1", "--", "true"], "array: "),
        (&["submit"], "COMMAND"),
        (&["cancel", "seventeen"], "'seventeen' names no job"),
        (&["gpus", "drain", "x"], "'x' names no GPU"),
        (&["queue", "--state", "RR"], "'RR' is no state"),
    ];
    let before = server.asked().len();
    for (args, says) in cases {
        let ran = server.run(args);
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{args:?}: {ran:?}");
        assert!(ran.stderr.contains(says), "{args:?}: {ran:?}");
    }
    assert_eq!(server.asked().len(), before, "nothing was asked");
}

/// A stream that says that job 17 is over.
const OVER: &str = ": hello\n\nid: 5\nevent: job\ndata: {\"seq\":5,\"time\":\"2026-11-16T05:00:00Z\",\"id\":17,\
                    \"state\":\"completed\",\"reason\":null,\"devices\":[],\"exit_code\":0}\n\n";

/// A daemon that runs job 17, which says hello and ends thus.
fn runs(state: &'static str, exit_code: Option<i32>) -> Server {
    let looks = AtomicUsize::new(0);
    Server::start(move |asked| match (asked.method.as_str(), asked.path.as_str()) {
        ("POST", "/v1/jobs") => Say { status: 201, ..ok(r#"{"schema":1,"ids":[17]}"#) },
        ("GET", "/v1/info") => ok(daemon_info()),
        ("GET", "/events") => ok(OVER),
        ("GET", "/v1/jobs/17") if looks.fetch_add(1, Ordering::SeqCst) == 0 => {
            ok(info("running", None))
        }
        ("GET", "/v1/jobs/17") => ok(info(state, exit_code)),
        ("GET", path) if path.contains("/logs?stream=stdout&offset=0&") => {
            Say { size: Some(6), ..ok("hello\n") }
        }
        ("GET", path) if path.contains("/logs?") => Say { size: Some(6), ..ok("") },
        _ => error(404, "not_found", "no such thing"),
    })
}

#[test]
fn run_shows_the_output_and_returns_the_exit_code() {
    for (state, code, exit) in [
        ("completed", Some(0), 0),
        ("failed", Some(7), 7),
        ("failed", Some(137), 137),
        ("oom", Some(253), 253),
        ("cancelled", None, 1),
    ] {
        let server = runs(state, code);
        let ran = server.run(&["run", "--", "python", "train.py"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(exit), "hello\n"), "{state}: {ran:?}");
        let server = runs(state, code);
        assert_eq!(server.run(&["submit", "-W", "--", "x"]).code, Some(exit), "{state}");
        let server = runs(state, code);
        let ran = server.run(&["wait", "17"]);
        assert_eq!(ran.code, Some(i32::from(exit != 0)), "{state}: {ran:?}");
        let server = runs(state, code);
        assert_eq!(server.run(&["wait", "--exit-code", "17"]).code, Some(exit), "{state}");
    }
}

#[test]
fn waiting_follows_the_stream_and_can_be_given_up() {
    let looks = AtomicUsize::new(0);
    let server = Server::start(move |asked| match asked.path.as_str() {
        "/v1/info" => ok(daemon_info()),
        "/events" => ok(OVER),
        "/v1/jobs/17" if looks.fetch_add(1, Ordering::SeqCst) == 0 => ok(info("running", None)),
        "/v1/jobs/17" => ok(info("completed", Some(0))),
        "/v1/jobs/18" => ok(info("running", None)),
        _ => error(404, "not_found", "no such thing"),
    });
    let ran = server.run(&["wait", "17"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "job 17 (train) completed\n"), "{ran:?}");
    let ran = server.run(&["wait", "18", "--timeout", "0.2s"]);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(1), 1), "{ran:?}");
    assert_eq!(server.run(&["wait", "19"]).code, Some(4));
}

#[test]
fn output_of_jobs() {
    let text = "one\ntwo\nthree\n";
    let server = Server::start(move |asked| match asked.path.as_str() {
        "/v1/jobs/17" => ok(info("completed", Some(0))),
        "/v1/jobs/18" => ok(info("pending", None)),
        path if path.starts_with("/v1/jobs/17/logs?") => {
            let number = |key: &str| {
                let (_, rest) = path.split_once(key).expect("it is there");
                rest.split('&').next().expect("a number").parse::<usize>().expect("a number")
            };
            let begin = number("offset=").min(text.len());
            let end = begin.saturating_add(number("limit=")).min(text.len());
            Say { size: Some(text.len()), ..ok(&text[begin..end]) }
        }
        _ => error(404, "not_found", "no such thing"),
    });
    assert_eq!(server.run(&["logs", "17"]).stdout, text);
    assert_eq!(server.run(&["logs", "17", "-f", "-n", "1"]).stdout, "three\n");
    assert_eq!(server.run(&["logs", "17", "-n", "2"]).stdout, "two\nthree\n");
    assert_eq!(server.run(&["logs", "17", "-n", "9"]).stdout, text);
    assert_eq!(server.run(&["logs", "17", "-n", "0"]).stdout, "");
    assert_eq!(server.run(&["logs", "17", "--json"]).json()["text"], text);
    let ran = server.run(&["logs", "18"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""));
    assert_eq!(server.run(&["logs", "19"]).code, Some(4));
}

#[test]
fn changes_of_several_jobs() {
    let server = Server::start(|asked| match asked.path.as_str() {
        "/v1/jobs/change" => {
            let body: Value = serde_json::from_str(&asked.body).expect("a body");
            let failed = json!({"id": 2, "code": "not_found", "error": "there is no job 2"});
            let (done, failed) = match body["jobs"][0].as_str().expect("a selector") {
                "1-3" => (json!([1, 3]), json!([failed])),
                "2" => (json!([]), json!([failed])),
                _ => (json!([5]), json!([])),
            };
            ok(json!({"schema": 1, "done": done, "failed": failed}).to_string())
        }
        _ => ok(r#"{"schema":1}"#),
    });
    // One request, however many jobs.
    let ran = server.run(&["cancel", "1-3"]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert!(ran.stderr.contains("1 of 3 failed: job 2: there is no job 2"), "{ran:?}");
    let asked = server.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].body, r#"{"action":"cancel","jobs":["1-3"]}"#);
    let ran = server.run(&["cancel", "2"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(4), "tandem: there is no job 2\n"));
    assert_eq!(
        server.run(&["hold", "last", "--json"]).json(),
        json!({"schema": 1, "done": [5], "failed": []})
    );
    for verb in ["release", "pause", "resume", "requeue"] {
        assert_eq!(server.run(&[verb, "all"]).code, Some(0));
        let body = server.asked().pop().expect("it asked").body;
        assert_eq!(body, format!(r#"{{"action":"{verb}","jobs":["all"]}}"#));
    }
    assert_eq!(server.run(&["gpus", "drain", "0-1"]).code, Some(0));
    assert_eq!(server.asked().pop().expect("it asked").path, "/v1/devices/1/drain");
}

#[test]
fn what_people_read() {
    let device = json!({
        "index": 0, "name": "fake0", "kind": "Fake", "memory_bytes": 24_u64 << 30, "memory_used_bytes": 1 << 30,
        "utilization": 0.5, "state": "up", "foreign_bytes": null, "jobs": [17, 18],
        "normalised_throughput": 1.42, "measured": false,
    });
    let devices = json!({ "schema": 1, "provider": "fake", "devices": [device] }).to_string();
    let class = json!({
        "name": "c", "memory_bytes": null, "steps_per_s": {"1": 2.5}, "finished": 3,
        "beside": {"d": {"rate": 0.8, "measurements": 4}},
    });
    let explanation = json!({
        "schema": 1, "id": 17, "state": "pending", "policy": "tandem", "waits": "no GPU is free",
        "devices": [{"device": 0, "reason": "job 3 is exclusive"}], "ahead": [], "after": [3],
        "start_in_s": [60.0, 60.0, 60.0], "end_in_s": null, "beside": [], "slowdown": null,
        "draws_started": 8, "draws": 8, "effect_on_others_s": null,
    });
    let server = Server::start(move |asked| match asked.path.as_str() {
        "/v1/info" => ok(daemon_info()),
        "/v1/devices" => ok(devices.clone()),
        "/v1/jobs/17" => ok(info("running", None)),
        "/v1/jobs/17/explain?policy=fifo" | "/v1/jobs/dry-run?policy=fifo" => {
            ok(explanation.to_string())
        }
        "/v1/usage" => ok(
            r#"{"schema":1,"users":[{"user":"ann","jobs":2,"gpu_hours":1.5,"shared_gpu_hours":0.5}]}"#,
        ),
        "/v1/classes" => ok(json!({ "schema": 1, "classes": [class] }).to_string()),
        _ => page(&[line(18, "eval", "running"), line(17, "train", "running")]),
    });
    let says = |args: &[&str], all: &[&str]| {
        let ran = server.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:?}");
        for text in all {
            assert!(ran.stdout.contains(text), "{args:?} does not say '{text}': {}", ran.stdout);
        }
    };
    says(&["gpus"], &["17 train 0.82 + 18 eval 0.82", "~1.42", "1.0 GiB of 24 GiB", "50 %"]);
    says(&["gpus", "-o", "csv"], &["index,name,kind", "17 18"]);
    says(
        &["info", "17"],
        &["advisory", "predicted 1.25, measured 1.22", "job 18", "50 % of each", "python train.py"],
    );
    says(
        &["explain", "17", "--policy", "fifo"],
        &["no GPU is free", "GPU 0: job 3 is exclusive", "in 1 min"],
    );
    says(&["submit", "--dry-run", "--policy", "fifo", "--", "x"], &["no GPU is free"]);
    says(&["usage"], &["ann", "1.50"]);
    says(&["classes"], &["d 0.80 (4)", "2.500"]);
    says(&["top"], &["policy tandem, 1 fake device,", "17 train", "eval"]);
    for args in [&["gpus"][..], &["info", "17"], &["usage"], &["classes"], &["top"]] {
        assert_eq!(server.run(&[args, &["--json"]].concat()).json()["schema"], 1, "{args:?}");
    }
}

#[test]
fn a_token_over_tcp() {
    let (server, address) = Server::start_tcp(|asked| match asked.token.as_deref() {
        Some("Bearer secret") => ok(daemon_info()),
        _ => error(401, "unauthorized", "a token is missing"),
    });
    common::write(server.dir.path(), "token", "secret\n");
    let address = format!("http://{address}");
    let ran = server.run(&["top", "--host", &address]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    server.run(&["top", "--host", &address, "--token-file", "token"]);
    assert_eq!(server.asked()[1].token.as_deref(), Some("Bearer secret"));
    let ran = server.run(&["queue", "--host", &address, "--token-file", "absent"]);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{ran:?}");
}

#[test]
fn configuration_and_doctor() {
    let dir = folder();
    let socket = dir.path().join("none.sock");
    std::fs::create_dir_all(dir.path().join(".config/tandem")).expect("a folder can be made");
    let file = dir.path().join(".config/tandem/config.toml");
    std::fs::write(&file, "[daemon]\npolicy = 'sjf'\n").expect("it can be written");
    let run = |args: &[&str]| finish(&mut isolated(dir.path(), args, &socket));
    let ran = run(&["config", "show", "--origin"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let row = |key: &str| {
        ran.stdout.lines().find(|line| line.contains(key)).expect("every key is there").to_owned()
    };
    assert!(
        row("daemon.policy").contains("sjf") && row("daemon.policy").contains("config.toml"),
        "{ran:?}"
    );
    assert!(row("daemon.socket").contains("environment TANDEM_DAEMON__SOCKET"), "{ran:?}");
    assert!(row("learning.settle_s").contains("default"), "{ran:?}");
    assert!(
        run(&["config", "show", "--json"]).json()["settings"].as_array().expect("a list").len()
            > 20
    );
    let checks = |ran: &common::Ran| {
        let checks = ran.json()["checks"].as_array().expect("a list").clone();
        checks
            .into_iter()
            .map(|check| (check["check"].clone(), check["status"].clone()))
            .collect::<Vec<_>>()
    };
    let ran = finish(
        isolated(dir.path(), &["doctor", "--json"], &socket).env("XDG_STATE_HOME", dir.path()),
    );
    assert!(checks(&ran).contains(&(json!("daemon"), json!("warn"))), "{ran:?}");
    assert!(checks(&ran).contains(&(json!("state"), json!("ok"))), "{ran:?}");

    std::fs::write(&file, "[daemon]\npolcy = 'sjf'\n").expect("it can be written");
    let ran = run(&["queue"]);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(2), 1), "{ran:?}");
    assert!(
        ran.stderr
            .contains("config.toml: there is no key 'daemon.polcy'; did you mean 'daemon.policy'?")
    );
    let ran = run(&["doctor", "--json"]);
    assert_eq!(ran.code, Some(1));
    assert!(checks(&ran).contains(&(json!("configuration"), json!("fail"))), "{ran:?}");
}

#[test]
fn completions_and_manual() {
    let dir = folder();
    for shell in ["bash", "zsh", "fish"] {
        let ran = common::succeed_in(dir.path(), &["completions", shell]);
        assert!(ran.stdout.contains("submit"), "{shell}");
    }
    common::succeed_in(dir.path(), &["man", "--out", "man"]);
    let page =
        std::fs::read_to_string(dir.path().join("man/tandem-submit.1")).expect("a page per verb");
    assert!(page.contains("gpu\\-memory"), "{page}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let server = Server::start(|asked| match asked.path.as_str() {
        path if path.contains("/logs?") => Say { size: Some(1 << 30), ..ok("x\n".repeat(1 << 19)) },
        _ => ok(info("completed", Some(0))),
    });
    let mut child = server
        .command(&["logs", "17"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}
