//! `tandem dashboard`: the command itself, what the daemon serves for it, and the pages in a real browser
//! (`web/e2e`).

mod common;
mod hostile;

use hostile::{Daemon, ROOT};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const BIN: &str = env!("CARGO_BIN_EXE_tandem");

#[test]
fn a_daemon_that_is_away_is_one_line() {
    let dir = common::folder();
    let socket = dir.path().join("none.sock");
    let output = Command::new(BIN)
        .args(["dashboard", "--no-open", "--socket"])
        .arg(&socket)
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    assert!(said.contains("none.sock") && output.stdout.is_empty(), "{said}");
}

#[test]
fn the_address_is_printed_and_ends_with_the_command() {
    let daemon = Daemon::start(&[]);
    let mut child = Command::new(BIN)
        .args(["dashboard", "--no-open", "--json", "--socket"])
        .arg(daemon.socket())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program runs");
    let mut line = String::new();
    let mut said = BufReader::new(child.stdout.take().expect("it prints"));
    said.read_line(&mut line).expect("it prints a line");
    let told: Value = serde_json::from_str(&line).expect("JSON");
    let port = told["port"].as_u64().and_then(|port| u16::try_from(port).ok()).expect("a port");
    let url = told["url"].as_str().expect("an address");
    assert!(url.starts_with(&format!("http://127.0.0.1:{port}/?token=")), "{url}");
    let taken = Command::new(BIN)
        .args(["dashboard", "--no-open", "--port", &port.to_string(), "--socket"])
        .arg(daemon.socket())
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&taken.stderr).into_owned();
    assert!(!taken.status.success() && text.contains("--port"), "{text}");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
}

/// Installs what the browser tests need from npm; false if that cannot be had.
fn has_packages(web: &Path) -> bool {
    let runs = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).current_dir(web).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let is_new = "process.exit(Number(process.versions.node.split('.')[0]) >= 20 ? 0 : 1)";
    let install = ["install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund"];
    runs("node", &["-e", is_new])
        && (web.join("node_modules/.package-lock.json").exists() || runs("npm", &install))
}

#[test]
fn the_pages_work_in_a_browser() {
    if std::env::var_os("TANDEM_SKIP_BROWSER").is_some() {
        return common::skipped("TANDEM_SKIP_BROWSER is set");
    }
    let chromium = std::env::var_os("CHROMIUM").unwrap_or_else(|| "/usr/bin/chromium".into());
    if !Path::new(&chromium).exists() {
        return common::skipped(&format!("there is no {}", chromium.display()));
    }
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web");
    if !has_packages(&web) {
        return common::skipped("node 20 or the packages of web/package.json cannot be had");
    }
    let output = Command::new("node")
        .args(["node_modules/vitest/vitest.mjs", "run", "--config", "e2e/vitest.config.ts"])
        .current_dir(&web)
        .env("TANDEM_BIN", BIN)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .expect("node runs");
    let text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success(), "{}", text.concat());
    for line in text[0].lines().filter(|line| line.contains("by the clock")) {
        common::tell(line);
    }
}

/// A job that reports steps and values until it has done so many.
const REPORTS: &str = r#"
import json, os, socket, time
line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["TANDEM_SOCK"])
say = lambda **message: line.sendall(json.dumps(message).encode() + b"\n")
say(op="hello", v=1, job="", pid=os.getpid(), batch=1, caps=[])
for n in range(1, 200):
    time.sleep(0.02)
    say(op="step", n=n, loss=1 / n, scalars={"val/acc": 0.5, "bad name": 1, "text": "x"})
say(op="bye", done=True)
"#;

fn reporting(name: &str) -> Value {
    json!({"command": ["python3", "-c", REPORTS], "dir": "/", "stdout": "/dev/null", "name": name})
}

#[test]
fn what_happened_is_in_the_interface_for_programs() {
    let daemon = Daemon::start(&[]);
    let ids = ["one", "two"].map(|name| daemon.submit(ROOT, &reporting(name)));
    for id in ids {
        assert_eq!(daemon.over(id)["state"], "completed");
    }
    let get = |path: &str| daemon.get(ROOT, path).json();

    // Every job was placed and has left; pages hold all of it once.
    let all = get("/v1/timeline");
    let placements = all["placements"].as_array().expect("placements").clone();
    assert!(placements.len() >= 2 && all["next_before"].is_null(), "{all}");
    assert!(placements.iter().all(|one| one["to"].is_string() && one["rate"].is_number()), "{all}");
    let mut paged = Vec::new();
    let mut path = "/v1/timeline?limit=1".to_owned();
    loop {
        let page = get(&path);
        paged.extend(page["placements"].as_array().expect("placements").clone());
        let Some(before) = page["next_before"].as_u64() else { break };
        path = format!("/v1/timeline?limit=1&before={before}");
    }
    assert_eq!(paged, placements);
    assert_eq!(get("/v1/timeline?since=4e9")["placements"], json!([]));
    assert_eq!(get("/v1/timeline?until=1")["placements"], json!([]));

    let decisions = get(&format!("/v1/jobs/{}/decisions", ids[0]))["decisions"].clone();
    let actions: Vec<&Value> =
        decisions.as_array().expect("decisions").iter().map(|one| &one["action"]).collect();
    assert_eq!((actions.first(), actions.last()), (Some(&&json!("start")), Some(&&json!("stop"))));
    assert_eq!(
        decisions.as_array().and_then(|all| all.last()).expect("one")["reason"],
        "completed"
    );

    // Values are there by valid names, in no more points than asked for, and for the owner only.
    let series = get(&format!("/v1/jobs/{}/series?points=3", ids[0]));
    let names: Vec<&String> = series["scalars"].as_object().expect("scalars").keys().collect();
    assert_eq!(names, ["loss", "val/acc"]);
    let loss = series["scalars"]["loss"].as_array().expect("values");
    assert!((1..=3).contains(&loss.len()) && loss[0].as_f64() > loss[loss.len() - 1].as_f64());
    if hostile::two_people() {
        let path = format!("/v1/jobs/{}/series", ids[0]);
        assert_eq!(daemon.get(hostile::BOB, &path).json()["scalars"], json!({}));
    }
    let machine = get("/v1/series?seconds=60&points=5");
    let devices = machine["devices"].as_array().expect("devices");
    assert!(
        !devices.is_empty() && devices[0]["throughput"].as_array().is_some_and(|s| s.len() <= 5)
    );
    assert_eq!(get("/v1/health")["checks"].as_array().map(Vec::len), Some(5));
    assert!(get("/v1/savings")["method"].as_str().is_some_and(|text| text.contains("GPU-hours")));
    assert_eq!(daemon.get(ROOT, "/v1/series?seconds=-1").status, 400);
    assert_eq!(daemon.get(ROOT, "/v1/timeline?nonsense=1").status, 400);
}

#[test]
fn what_if_compares_the_present_with_a_change() {
    let daemon = Daemon::start(&[]);
    let long =
        json!({"command": ["sleep", "300"], "dir": "/", "stdout": "/dev/null", "estimate_s": 300});
    let ids: Vec<u64> = (0..12).map(|_| daemon.submit(ROOT, &long)).collect();
    let forecast = daemon.get(ROOT, "/v1/forecast").json();
    assert_eq!(forecast["jobs"].as_array().map(Vec::len), Some(ids.len()), "{forecast}");
    assert!(!forecast["placements"].as_array().expect("placements").is_empty());
    let ask = |change: Value| daemon.post(ROOT, "/v1/what-if", &change);
    let more = ask(json!({"add_devices": 12})).json();
    let end = |side: &str| more[side]["last_end_s"].as_f64().expect("a time");
    assert!(end("after") < end("before"), "more GPUs end it sooner: {more}");
    let job = ask(json!({"policy": "fifo", "job": long})).json();
    assert_eq!((&job["policy"], &job["jobs"][0]["id"]), (&json!("fifo"), &Value::Null), "{job}");
    assert_eq!(ask(json!({"drain": [99]})).status, 404);
    assert_eq!(ask(json!({"add_devices": 5000})).status, 400);
    assert_eq!(ask(json!({"policy": "nonsense"})).status, 400);
    assert_eq!(ask(json!({"surplus": 1})).status, 400);
    for id in ids {
        daemon.ask(ROOT, "DELETE", &format!("/v1/jobs/{id}"), b"");
    }
}
