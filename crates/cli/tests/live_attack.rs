//! A user who tries everything at once against a daemon of root, while another one works: submit, queue and cancel
//! stay quick for the other, and after a restart everything is there. Some seconds in an ordinary run;
//! `TANDEM_TEST_ATTACK_S=300` attacks for five minutes, and only with `--release` times are held against 200 ms.

mod common;
mod hostile;

use common::tell;
use hostile::{ANN, Answer, BOB, Daemon, ROOT, exchange, open_folder, program, two_people};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seconds of an ordinary run.
const SECONDS: u64 = 15;
/// Pause of an attacker between two requests: the processor is shared by the kernel, and is not what is attacked.
const PAUSE: Duration = Duration::from_millis(2);
/// Pause of the other user between two rounds.
const ROUND: Duration = Duration::from_millis(20);

/// One attacker among several, all of them the same user.
struct Attack<'a> {
    daemon: &'a Daemon,
    stop: &'a AtomicBool,
    requests: &'a AtomicU64,
    /// Jobs whose submission was acknowledged.
    acknowledged: &'a Mutex<Vec<u64>>,
}

impl Attack<'_> {
    fn goes_on(&self) -> bool {
        std::thread::sleep(PAUSE);
        !self.stop.load(Ordering::Relaxed)
    }

    /// A request, whatever the answer; `None` if there is no connection for it.
    fn ask(&self, method: &str, path: &str, body: &[u8]) -> Option<Answer> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let stream = self.daemon.connect(ANN).ok()?;
        self.requests.fetch_add(1, Ordering::Relaxed);
        Some(exchange(stream, method, path, &[], body))
    }

    fn submit(&self, body: &[u8]) -> Vec<u64> {
        let answer = self.ask("POST", "/v1/jobs", body).filter(|answer| answer.status == 201);
        let ids: Vec<u64> = answer.map_or_else(Vec::new, |answer| {
            let ids = answer.json();
            ids["ids"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect()
        });
        self.acknowledged.lock().expect("nobody panics with it").extend(&ids);
        ids
    }

    fn change(&self, action: &str, jobs: &Value) {
        let body = json!({"action": action, "jobs": jobs}).to_string();
        self.ask("POST", "/v1/jobs/change", body.as_bytes());
    }
}

fn job(fields: Value) -> Vec<u8> {
    let mut job = json!({"command": ["true"], "dir": "/", "stdout": "/dev/null"});
    let Value::Object(fields) = fields else { unreachable!("fields are an object") };
    for (name, value) in fields {
        job[name] = value;
    }
    job.to_string().into_bytes()
}

/// Requests as large as they may be, and larger.
fn large_requests(attack: &Attack<'_>) {
    let text = "x".repeat(1_000_000);
    let words = vec!["x"; 400_000];
    let large = job(json!({"command": ["true", text], "env": {"A": text}, "hold": true}));
    let many = job(json!({"command": words, "hold": true}));
    let array = job(json!({"command": ["true", text], "hold": true, "array": "0-1099"}));
    let too_large = vec![b' '; 5 << 20];
    while attack.goes_on() {
        for body in [&large, &many, &array, &too_large] {
            attack.submit(body);
        }
    }
}

/// Dependencies on the same job, on a hundred thousand, and of a whole array on a whole array.
fn dependencies(attack: &Attack<'_>) {
    let of = |dependency: String| job(json!({"hold": true, "dependency": dependency}));
    let long = job(json!({"command": ["true", "x".repeat(1_000_000)], "hold": true}));
    while attack.goes_on() {
        let Some(&id) = attack.submit(&long).first() else {
            std::thread::sleep(ROUND);
            continue;
        };
        attack.submit(&of(format!("afterany{}:999999999", format!(":{id}").repeat(1000))));
        attack.submit(&of(format!("afterok{}", ":1-100000".repeat(400_000))));
        attack.submit(&of(format!("afterok:{id}_0-99999")));
        let first = attack.submit(&job(json!({"hold": true, "array": "0-19999"})));
        if let Some(first) = first.first() {
            let dependents = json!({"array": "0-9999", "dependency": format!("afterok:{first}_*")});
            attack.submit(&job(dependents));
            attack.change("cancel", &json!([first.to_string()]));
        }
        attack.change("cancel", &json!([id.to_string()]));
    }
}

/// Arrays with parameters, with few tasks at a time, and the end of all of them.
fn arrays(attack: &Attack<'_>) {
    let empty: Vec<Value> =
        (0..64).map(|n| json!({"name": format!("p{n}"), "values": [""]})).collect();
    let values: Vec<String> = (0..20_000).map(|n| n.to_string()).collect();
    let long = "x{a}".repeat(20_000);
    let bodies = [
        job(json!({"hold": true, "array": "0-99999", "params": empty})),
        job(json!({"array": "0-19999%1"})),
        job(
            json!({"hold": true, "command": ["true", long], "params": [{"name": "a", "values": values}]}),
        ),
        job(json!({"array": "0-99999", "begin_unix_s": 4_000_000_000_u64})),
    ];
    while attack.goes_on() {
        for body in &bodies {
            attack.submit(body);
            attack.change("hold", &json!(["all"]));
            attack.change("release", &json!(["all"]));
            attack.change("cancel", &json!(["all"]));
        }
    }
}

/// Changes that name the same jobs thousands of times.
fn selectors(attack: &Attack<'_>) {
    let all = json!(vec!["1-100000"; 10_000]);
    let same = json!(vec!["all"; 10_000]);
    let each: Vec<String> = (1..=10_000).map(|id| id.to_string()).collect();
    let tasks: Vec<String> = (0..10_000).map(|task| format!("1_{task}")).collect();
    while attack.goes_on() {
        for jobs in [&all, &same, &json!(each), &json!(tasks), &json!(["1_0-99999"])] {
            attack.change("release", jobs);
        }
    }
}

/// Connections that say nothing, and bodies that never end.
fn connections(attack: &Attack<'_>) {
    let part = vec![b'x'; 1 << 20];
    while attack.goes_on() {
        let mut open: Vec<UnixStream> = Vec::new();
        while let Ok(mut stream) = attack.daemon.connect(ANN) {
            let head = "POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 4000000\r\n\r\n";
            let _ = stream.set_write_timeout(Some(Duration::from_millis(20)));
            if open.len().is_multiple_of(4) && open.len() < 600 {
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&part));
            }
            open.push(stream);
            if open.len() >= 1500 || !attack.goes_on() {
                break;
            }
        }
    }
}

/// Webhooks to a server that never answers, and mail to nobody.
fn webhooks(attack: &Attack<'_>) {
    let hole = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = format!("http://{}/", hole.local_addr().expect("it has one"));
    let body = job(json!({"array": "0-49", "webhook": address, "mail": "nobody@localhost"}));
    while attack.goes_on() {
        attack.submit(&body);
    }
}

/// What only operators may, and what outlasts a limit.
fn privileges(attack: &Attack<'_>) {
    let stubborn = ["/bin/sh", "-c", "trap '' TERM; sleep 20"];
    while attack.goes_on() {
        attack.submit(&job(json!({"priority": 20, "exclusive": true})));
        attack.submit(&job(json!({"kill_grace_s": 1e10})));
        for id in attack.submit(&job(json!({"command": stubborn, "kill_grace_s": 3600}))) {
            std::thread::sleep(Duration::from_millis(200));
            attack.ask("DELETE", &format!("/v1/jobs/{id}"), b"");
            attack.ask("DELETE", &format!("/v1/jobs/{id}"), b"");
        }
        attack.ask("POST", "/v1/devices/0/drain", b"");
        attack.submit(&job(json!({"reservation": 1, "qos": "urgent", "account": "root"})));
    }
}

/// Jobs of ever other classes, that come, run and go.
fn classes(attack: &Attack<'_>) {
    for count in 0.. {
        if !attack.goes_on() {
            return;
        }
        let class = if count % 2 == 0 { format!("c{count}") } else { format!("root/c{count}") };
        attack.submit(&job(json!({"class": class})));
        attack.submit(&job(json!({"command": ["true", format!("--flavour=f{count}")]})));
    }
}

/// Event streams that nobody reads.
fn streams(attack: &Attack<'_>) {
    while attack.goes_on() {
        let mut open = Vec::new();
        for path in ["/events", "/v1/events"].iter().cycle().take(400) {
            let Ok(mut stream) = attack.daemon.connect(ANN) else { break };
            let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nlast-event-id: 1\r\n\r\n");
            let _ = stream.write_all(head.as_bytes());
            open.push(stream);
        }
        std::thread::sleep(Duration::from_secs(2));
    }
}

/// Readers that keep the log of the store from ending, and questions that take long to answer.
fn readers(attack: &Attack<'_>) {
    let asked = job(json!({}));
    let paths = [
        "/v1/usage?by=user,account,month",
        "/v1/jobs?limit=10000",
        "/v1/jobs?state=active&limit=10000&order=desc",
        "/v1/info",
        "/metrics",
        "/v1/forecast",
        "/v1/timeline",
        "/v1/savings",
        "/v1/series",
        "/v1/health",
        "/v1/shares",
        "/v1/classes",
        "/v1/jobs/1/explain",
        "/openapi.json",
    ];
    while attack.goes_on() {
        for path in paths {
            attack.ask("GET", path, b"");
        }
        attack.ask("POST", "/v1/jobs/dry-run", &asked);
        attack.ask("POST", "/v1/what-if", br#"{"devices":8}"#);
    }
}

const ATTACKS: [fn(&Attack<'_>); 13] = [
    large_requests,
    dependencies,
    arrays,
    selectors,
    connections,
    webhooks,
    privileges,
    classes,
    streams,
    readers,
    readers,
    readers,
    readers,
];

/// How long the requests of the other user took.
#[derive(Default)]
struct Times {
    submit: Vec<Duration>,
    queue: Vec<Duration>,
    cancel: Vec<Duration>,
    /// The same by the command line: submit, queue and cancel in one.
    commands: Vec<Duration>,
}

/// The other user's work until the time is over; gives the jobs that are to be there at the end.
fn work(daemon: &Daemon, until: Instant, times: &mut Times) -> Vec<u64> {
    let held = job(json!({"hold": true}));
    let (mut kept, mut round) = (Vec::new(), 0_u64);
    let timed = |all: &mut Vec<Duration>, method: &str, path: &str, body: &[u8]| {
        let began = Instant::now();
        let answer = daemon.ask(BOB, method, path, body);
        all.push(began.elapsed());
        assert!((200..300).contains(&answer.status), "{method} {path}: {}", answer.text());
        answer
    };
    while Instant::now() < until {
        let answer = timed(&mut times.submit, "POST", "/v1/jobs", &held);
        let id = answer.json()["ids"][0].as_u64().expect("a number");
        let page = "/v1/jobs?state=active&limit=1000&order=desc&user=daemon";
        let queue = timed(&mut times.queue, "GET", page, b"");
        let shown = queue.json()["jobs"].as_array().map_or(0, Vec::len);
        assert!(shown >= 1, "the queue shows what was submitted");
        timed(&mut times.queue, "GET", "/v1/jobs?state=active&limit=1000&order=desc", b"");
        round += 1;
        if round % 10 == 1 {
            kept.push(id);
        } else {
            timed(&mut times.cancel, "DELETE", &format!("/v1/jobs/{id}"), b"");
        }
        if round.is_multiple_of(25) {
            let began = Instant::now();
            command_line(daemon);
            times.commands.push(began.elapsed());
        }
        std::thread::sleep(ROUND);
    }
    kept
}

/// `tandem submit`, `queue` and `cancel` one after the other, as the other user.
fn command_line(daemon: &Daemon) {
    let program = daemon.dir.path().join("tandem");
    for args in [&["submit", "--hold", "--", "true"][..], &["queue"], &["cancel", "last"]] {
        let mut command = Command::new(&program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent");
        command.env("TANDEM_DAEMON_SOCKET", daemon.socket()).args(args).current_dir("/");
        command.stdin(Stdio::null()).uid(BOB.uid).gid(BOB.gid);
        let output = command.output().expect("it can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
    }
}

fn p99(all: &mut [Duration]) -> Duration {
    if all.is_empty() {
        return Duration::ZERO;
    }
    all.sort();
    all[(all.len() * 99).div_ceil(100).max(1) - 1]
}

/// A daemon that everybody may start programs of.
fn daemon() -> Daemon {
    let options = ["--set", "daemon.sendmail=/bin/true", "--set", "daemon.kill_grace_s=0.2"];
    let dir = open_folder();
    program(dir.path());
    Daemon::start_in(dir, &options, None)
}

#[test]
fn another_user_works_on_while_one_tries_everything() {
    if !two_people() {
        return;
    }
    let seconds = std::env::var("TANDEM_TEST_ATTACK_S").ok().and_then(|text| text.parse().ok());
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(SECONDS));
    let mut daemon = daemon();
    let first = daemon
        .submit(BOB, &json!({"command": ["sleep", "600"], "dir": "/", "stdout": "/dev/null"}));
    daemon.until(first, &["running"]);
    let (stop, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    let acknowledged = Mutex::new(Vec::new());
    let (mut times, mut kept, mut memory) = (Times::default(), Vec::new(), 0);
    let attack =
        Attack { daemon: &daemon, stop: &stop, requests: &requests, acknowledged: &acknowledged };
    let attack = &attack;
    std::thread::scope(|scope| {
        for one in ATTACKS {
            scope.spawn(move || one(attack));
        }
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            kept = work(&daemon, until, &mut times);
            memory = daemon.memory_mib();
        }));
        stop.store(true, Ordering::Relaxed);
        worked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let [submit, queue, cancel, commands] =
        [&mut times.submit, &mut times.queue, &mut times.cancel, &mut times.commands]
            .map(|all| (p99(all), all.len()));
    let theirs = acknowledged.into_inner().expect("nobody panicked with it");
    tell(&format!(
        "{} requests of one user, who submitted {} jobs; p99 of another: submit {:.1?}, queue {:.1?}, \
         cancel {:.1?} ({} rounds), the three by the command line {:.1?}; the daemon took {memory} MiB",
        requests.load(Ordering::Relaxed),
        theirs.len(),
        submit.0,
        queue.0,
        cancel.0,
        submit.1,
        commands.0,
    ));
    assert!(theirs.len() > 1000, "the attack was none: {}", theirs.len());
    everything_is_there(&mut daemon, first, &kept, &theirs);
    // A program that is not optimised is ten times slower, and the tests of its crate run beside it.
    if !cfg!(debug_assertions) {
        for (what, (p99, _)) in [("submit", submit), ("queue", queue), ("cancel", cancel)] {
            assert!(p99 < Duration::from_millis(200), "{what}: {p99:?}");
        }
    }
    assert!(memory < 1024, "{memory} MiB");
}

/// After `kill -9` the next daemon starts, and has what was acknowledged.
fn everything_is_there(daemon: &mut Daemon, running: u64, kept: &[u64], theirs: &[u64]) {
    let pid = daemon.info(running)["pid"].clone();
    let began = Instant::now();
    daemon.kill_and_restart(&["--set", "daemon.sendmail=/bin/true"]);
    tell(&format!("the next daemon answers after {:.1?}", began.elapsed()));
    assert!(began.elapsed() < Duration::from_secs(60));
    let job = daemon.info(running);
    assert_eq!((job["state"].as_str(), &job["pid"]), (Some("running"), &pid), "{job}");
    assert!(!kept.is_empty());
    for id in kept {
        assert_eq!(daemon.info(*id)["state"], "held", "{id}");
    }
    // A sample of the others, whose history is bounded: the latest must be there.
    let page = daemon.get(ROOT, "/v1/jobs?user=nobody&limit=1000&order=desc").json();
    let shown: Vec<u64> = page["jobs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|job| job["id"].as_u64())
        .collect();
    let latest = theirs.iter().max().copied().unwrap_or(0);
    assert!(shown.iter().max().is_some_and(|&last| last >= latest), "{latest} is lost");
    let mut stream = daemon.connect(ANN).expect("it listens");
    let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said);
    assert!(said.contains("200 OK"), "{said}");
}
