//! The loopback server between a browser and a daemon, both played by this test over real sockets.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tandem_dashboard::{Dashboard, Upstream};

struct Site {
    port: u16,
    token: String,
    /// Heads of the requests that reached the daemon.
    arrived: Receiver<String>,
    socket: PathBuf,
    _folder: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

/// Answers `/v1/events` with an event at once and another one when the first was read; anything else whole.
fn play_daemon(socket: &std::path::Path) -> Receiver<String> {
    let listener = UnixListener::bind(socket).unwrap();
    let (tell, arrived) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, tell) = (stream.unwrap(), tell.clone());
            std::thread::spawn(move || {
                let mut head = Vec::new();
                let mut byte = [0_u8];
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read(&mut byte).unwrap_or(0) == 0 {
                        return;
                    }
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                let is_stream = head.starts_with("GET /v1/events");
                let length = head
                    .lines()
                    .find_map(|line| {
                        line.to_lowercase().strip_prefix("content-length: ")?.parse().ok()
                    })
                    .unwrap_or(0_usize);
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                tell.send(head + &String::from_utf8(body).unwrap()).unwrap();
                let answer: &[&str] = if is_stream {
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nset-cookie: a=b\r\n\
                                transfer-encoding: chunked\r\n\r\n";
                    &[head, "8\r\ndata: 1\n\r\n", "8\r\ndata: 2\n\r\n", "0\r\n\r\n"]
                } else {
                    &[
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nserver: x\r\ncontent-length: 2\r\n\r\n{}",
                    ]
                };
                for part in answer {
                    if stream.write_all(part.as_bytes()).is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(if is_stream { 150 } else { 0 }));
                }
            });
        }
    });
    arrived
}

fn site() -> Site {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let arrived = play_daemon(&socket);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let upstream = Upstream::Unix(socket.clone());
    let dashboard = runtime.block_on(Dashboard::bind(0, upstream)).unwrap();
    let (port, url) = (dashboard.port(), dashboard.url());
    let prefix = format!("http://127.0.0.1:{port}/?token=");
    let token = url.strip_prefix(&prefix).expect("the address holds the token").to_owned();
    runtime.spawn(dashboard.serve());
    Site { port, token, arrived, socket, _folder: folder, _runtime: runtime }
}

impl Site {
    /// A whole answer to a request with these lines of header.
    fn ask(&self, method: &str, path: &str, lines: &[&str]) -> String {
        self.send(method, path, lines, "")
    }

    fn send(&self, method: &str, path: &str, lines: &[&str], body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let host = format!("host: 127.0.0.1:{}", self.port);
        let own = lines.iter().any(|line| line.starts_with("host:"));
        let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
        for line in lines.iter().chain((!own).then_some(&host.as_str())) {
            head += &format!("{line}\r\n");
        }
        if !body.is_empty() {
            head += &format!("content-length: {}\r\n", body.len());
        }
        let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes());
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    /// The line of the session cookie.
    fn enter(&self) -> String {
        let answer = self.ask("GET", &format!("/?token={}", self.token), &[]);
        let cookie = answer.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        format!("cookie: {}", cookie.expect("a cookie").split(';').next().unwrap())
    }

    fn origin(&self) -> String {
        format!("origin: http://127.0.0.1:{}", self.port)
    }

    fn reached(&self) -> Option<String> {
        self.arrived.recv_timeout(Duration::from_millis(300)).ok()
    }
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[test]
fn without_the_token_there_is_nothing() {
    let site = site();
    let (wrong, short) =
        (format!("/?token={}", "0".repeat(64)), format!("/?token={}", &site.token[1..]));
    for path in ["/", "/dashboard.js", "/v1/jobs", "/v1/events", "/nothing", &wrong, &short] {
        let answer = site.ask("GET", path, &[]);
        assert_eq!(status(&answer), 401, "{path}: {answer}");
        assert!(!answer.contains("<script") && !answer.contains("set-cookie"), "{answer}");
    }
    let forged = format!("cookie: tandem-{}={}", site.port, "0".repeat(64));
    assert_eq!(status(&site.ask("GET", "/v1/jobs", &[&forged])), 401);
    assert_eq!(site.reached(), None, "nothing was asked of the daemon");
}

#[test]
fn the_token_is_good_once_and_the_session_for_all_pages() {
    let site = site();
    let cookie = site.enter();
    assert_eq!(status(&site.ask("GET", &format!("/?token={}", site.token), &[])), 401, "used");
    let again = site.ask("GET", &format!("/?token={}", site.token), &[&cookie]);
    assert_eq!(status(&again), 200, "its own browser may reload it");
    assert!(!again.contains("set-cookie"));
    let page = site.ask("GET", "/", &[&cookie]);
    assert!(page.contains("<script src=\"/dashboard.js\""), "{page}");
    for (path, kind) in [("/dashboard.js", "text/javascript"), ("/dashboard.css", "text/css")] {
        let answer = site.ask("GET", path, &[&cookie]);
        assert!(status(&answer) == 200 && answer.contains(kind), "{path}");
    }
    assert_eq!(status(&site.ask("GET", "/nothing", &[&cookie])), 404);
}

#[test]
fn every_answer_is_strict_about_its_content() {
    let site = site();
    let cookie = site.enter();
    for answer in [
        site.ask("GET", "/", &[&cookie]),
        site.ask("GET", "/v1/jobs", &[&cookie]),
        site.ask("GET", "/", &[]),
    ] {
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "frame-ancestors 'none'",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(answer.contains(header), "{header}: {answer}");
        }
        assert!(!answer.contains("unsafe-inline"));
    }
}

#[test]
fn requests_reach_the_daemon_without_what_concerns_this_server() {
    let site = site();
    let cookie = site.enter();
    let origin = site.origin();
    let lines = [
        cookie.as_str(),
        origin.as_str(),
        "authorization: Bearer x",
        "content-type: application/json",
    ];
    let answer = site.send("POST", "/v1/what-if", &lines, "{\"add_devices\":1}");
    assert!(answer.ends_with("{}") && !answer.contains("server: x"), "{answer}");
    let seen = site.reached().expect("it arrived").to_lowercase();
    assert!(
        seen.starts_with("post /v1/what-if http/1.1") && seen.ends_with("{\"add_devices\":1}"),
        "{seen}"
    );
    for private in ["cookie", "authorization", "origin", &site.port.to_string()] {
        assert!(!seen.contains(private), "{private} in {seen}");
    }
    assert_eq!(status(&site.ask("GET", "/v1/jobs?state=active", &[&cookie])), 200);
    assert!(site.reached().unwrap().starts_with("GET /v1/jobs?state=active "));
    let last = site.ask("GET", "/v1/events", &[&cookie, "last-event-id: 7"]);
    assert!(!last.contains("set-cookie"), "{last}");
    assert!(site.reached().unwrap().contains("last-event-id: 7"));
}

#[test]
fn events_are_passed_on_as_they_come() {
    let site = site();
    let cookie = site.enter();
    let mut stream = TcpStream::connect(("127.0.0.1", site.port)).unwrap();
    let request =
        format!("GET /v1/events HTTP/1.1\r\nhost: 127.0.0.1:{}\r\n{cookie}\r\n\r\n", site.port);
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    let mut part = [0; 4096];
    while !text.contains("data: 1") {
        let read = stream.read(&mut part).unwrap();
        assert!(read > 0, "ended early: {text}");
        text += &String::from_utf8_lossy(&part[..read]);
    }
    assert!(!text.contains("data: 2"), "the first event waited for the second: {text}");
}

#[test]
fn other_sites_and_rebound_names_get_nothing() {
    let site = site();
    let (cookie, origin) = (site.enter(), site.origin());
    let rebound = format!("host: evil.example:{}", site.port);
    assert_eq!(status(&site.ask("GET", "/v1/jobs", &[&cookie, &rebound])), 421);
    let token = format!("/?token={}", site.token);
    assert_eq!(status(&site.ask("GET", &token, &[&rebound])), 421);
    let foreign = "origin: http://evil.example";
    for lines in [vec![&*cookie], vec![&*cookie, foreign], vec![&*cookie, "origin: null"]] {
        assert_eq!(status(&site.ask("DELETE", "/v1/jobs/7", &lines)), 403, "{lines:?}");
    }
    let hidden = [&*cookie, "sec-fetch-site: cross-site", "sec-fetch-mode: no-cors"];
    assert_eq!(status(&site.ask("GET", "/v1/jobs", &hidden)), 403);
    assert_eq!(site.reached(), None, "nothing was asked of the daemon");
    assert_eq!(status(&site.ask("DELETE", "/v1/jobs/7", &[&cookie, &origin])), 200);
    assert!(site.reached().is_some());
}

#[test]
fn a_session_cannot_submit_nor_send_much() {
    let site = site();
    let (cookie, origin) = (site.enter(), site.origin());
    let lines = [&*cookie, &*origin];
    let submit = site.send("POST", "/v1/jobs", &lines, "{\"command\":[\"sh\"]}");
    assert_eq!(status(&submit), 404, "{submit}");
    let large = site.send("POST", "/v1/what-if", &lines, &"x".repeat(100_000));
    assert_eq!(status(&large), 413, "{large}");
    assert_eq!(site.reached(), None);
}

#[test]
fn a_daemon_that_is_away_is_said_to_be_and_found_again() {
    let site = site();
    let cookie = site.enter();
    let moved = site.socket.with_extension("away");
    std::fs::rename(&site.socket, &moved).unwrap();
    for path in ["/v1/info", "/v1/events"] {
        let answer = site.ask("GET", path, &[&cookie]);
        assert_eq!(status(&answer), 503, "{answer}");
        assert!(answer.contains("\"code\":\"unavailable\""), "{answer}");
    }
    std::fs::rename(&moved, &site.socket).unwrap();
    assert_eq!(status(&site.ask("GET", "/v1/info", &[&cookie])), 200);
}

#[test]
fn another_user_who_has_got_hold_of_the_cookie_gets_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let site = site();
    let cookie = site.enter();
    let ask = |uid: u32, method: &str, path: &str| {
        let (port, origin) = (site.port, site.origin());
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{method} {path} HTTP/1.1\\r\\nhost: 127.0.0.1:{port}\\r\\n\
             {cookie}\\r\\n{origin}\\r\\nconnection: close\\r\\n\\r\\n' >&3; cat <&3"
        );
        let mut bash = std::process::Command::new("bash");
        let output = bash.args(["-c", &script]).current_dir("/").uid(uid).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(status(&ask(0, "GET", "/v1/jobs")), 200, "the script works");
    assert!(site.reached().is_some());
    for (method, path) in [("GET", "/"), ("GET", "/v1/jobs"), ("DELETE", "/v1/jobs/7")] {
        let answer = ask(61_002, method, path);
        assert_eq!(status(&answer), 403, "{answer}");
        assert!(answer.contains("that of another user"), "{answer}");
    }
    assert_eq!(site.reached(), None, "nothing was asked of the daemon");
}
