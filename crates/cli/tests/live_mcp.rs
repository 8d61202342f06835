//! `tandem mcp` as an assistant sees it: an exchange of the Model Context Protocol over standard input and output.

#![allow(clippy::unwrap_used)]

mod common;

use common::daemon::{Daemon, Options};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// A session that was initialized.
struct Session {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    calls: u64,
}

impl Session {
    fn open(socket: &Path, args: &[&str]) -> (Self, Value) {
        let mut command = common::tandem(&["mcp", "--socket"]);
        command.arg(socket).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut session = Self { child, input, output, calls: 0 };
        let hello = session.request(
            "initialize",
            &json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } }),
        );
        session.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        (session, hello["result"].clone())
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input.as_mut().unwrap(), "{message}").unwrap();
    }

    /// The whole response to a request.
    fn request(&mut self, method: &str, params: &Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }));
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let response: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        assert_eq!(response["id"], json!(id), "{response}");
        response
    }

    fn tools(&mut self) -> Vec<Value> {
        let listed = self.request("tools/list", &json!({}));
        listed["result"]["tools"].as_array().unwrap().clone()
    }

    /// Whether a call failed, and its text.
    fn call(&mut self, tool: &str, arguments: &Value) -> (bool, String) {
        let answer = self.request("tools/call", &json!({ "name": tool, "arguments": arguments }));
        let result = &answer["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        (result["isError"] == json!(true), text.to_owned())
    }

    fn ok(&mut self, tool: &str, arguments: &Value) -> Value {
        let (failed, text) = self.call(tool, arguments);
        assert!(!failed, "{tool}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Ends with the input, as clients end it.
    fn close(mut self) {
        drop(self.input.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn names(tools: &[Value]) -> Vec<&str> {
    tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[test]
fn tools_read_the_queue_and_change_nothing_by_default() {
    let daemon = Daemon::start(Options::fake(1));
    let running = daemon.submit(&daemon.shell("sleep 600"));
    daemon.await_state(running, "running");
    let (mut session, hello) = Session::open(&daemon.socket, &[]);
    assert_eq!(hello["serverInfo"]["name"], "tandem");
    let tools = session.tools();
    assert_eq!(names(&tools), ["queue", "info", "explain", "what_if", "gpus", "usage", "classes"]);
    assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == json!(true)));

    let queue = session.ok("queue", &json!({}));
    assert_eq!(queue["jobs"][0]["id"], json!(running));
    let info = session.ok("info", &json!({ "job": running }));
    assert_eq!(info["job"]["state"], "running");
    // The command is the owner's to see, but keys and passwords of the environment go to no assistant.
    assert!(info["job"]["private"]["command"].is_array(), "{info}");
    assert!(info["job"]["private"].get("env").is_none(), "{info}");
    assert_eq!(session.ok("gpus", &json!({}))["devices"].as_array().unwrap().len(), 1);
    assert!(session.ok("usage", &json!({ "since": "7d" }))["users"].is_array());
    assert!(session.ok("classes", &json!({}))["classes"].is_array());
    assert_eq!(session.ok("explain", &json!({ "job": "last" }))["id"], json!(running));
    let forecast = session.ok(
        "what_if",
        &json!({ "command": ["true"], "exclusive": true, "time": "1h", "policy": "fifo" }),
    );
    assert!(forecast["devices"][0]["reason"].is_string(), "{forecast}");

    // What changes something is neither offered nor done.
    for hidden in ["submit", "cancel"] {
        let call = json!({ "name": hidden, "arguments": { "job": running, "command": ["true"] } });
        let refused = session.request("tools/call", &call);
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(message.contains("--allow-changes"), "{refused}");
    }
    assert_eq!(daemon.jobs().len(), 1);
    daemon.await_state(running, "running");
    session.close();
}

#[test]
fn jobs_are_submitted_and_cancelled_where_that_is_allowed() {
    let daemon = Daemon::start(Options::fake(1));
    let (mut session, _) = Session::open(&daemon.socket, &["--allow-changes"]);
    let tools = session.tools();
    assert_eq!(&names(&tools)[7..], ["submit", "cancel"]);
    assert_eq!(tools[7]["annotations"]["readOnlyHint"], json!(false));
    let job = json!({ "command": ["sleep", "600"], "job_name": "asked", "gpus": 1, "output": "/dev/null" });
    let id = session.ok("submit", &job)["ids"][0].as_u64().unwrap();
    daemon.await_state(id, "running");
    assert_eq!(daemon.job(id).line.name, "asked");
    session.ok("cancel", &json!({ "job": id }));
    daemon.await_state(id, "cancelled");
    session.close();
}

#[test]
fn bad_calls_are_answered_and_the_session_goes_on() {
    let mut daemon = Daemon::start(Options::fake(1));
    let (mut session, _) = Session::open(&daemon.socket, &["--allow-changes"]);
    let bad = [
        ("info", json!({ "job": 99 }), "99"),
        ("info", json!({}), "needs 'job'"),
        ("info", json!({ "job": 1, "jobs": 2 }), "no argument 'jobs'"),
        ("queue", json!({ "states": ["nonsense"] }), "is no state"),
        ("queue", json!({ "limit": -1 }), "whole number"),
        ("submit", json!({ "command": [] }), "empty"),
        ("submit", json!({ "command": "rm -rf /" }), "list of strings"),
        ("submit", json!({ "command": ["true"], "gpus": "many" }), "many"),
        ("submit", json!({ "command": ["true"], "gpus": 64 }), "64"),
        ("explain", json!({ "job": "1; true" }), "names no job"),
        ("usage", json!({ "since": 5 }), "is a string"),
    ];
    for (tool, arguments, expected) in bad {
        let (failed, text) = session.call(tool, &arguments);
        assert!(failed && text.contains(expected), "{tool} {arguments}: {text}");
    }
    assert!(daemon.jobs().is_empty());
    let unknown = session.request("tools/call", &json!({ "name": "format_disk", "arguments": {} }));
    assert!(unknown["error"]["message"].as_str().unwrap().contains("there is no tool"));

    // A daemon that is gone, and back.
    daemon.stop();
    let (failed, text) = session.call("queue", &json!({}));
    assert!(failed && text.contains("not reachable"), "{text}");
    daemon.restart();
    session.ok("queue", &json!({}));
    session.close();
}

/// Everything that comes out for lines that a client should not send, until the input ends.
fn output_of(socket: &Path, lines: &[u8]) -> (bool, Vec<Value>, String) {
    let mut command = common::tandem(&["mcp", "--socket"]);
    command.arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(lines);
    let ran = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    let text = String::from_utf8(ran.stdout).unwrap();
    let answers = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (ran.status.success(), answers, said)
}

const HELLO: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#,
    "\n",
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    "\n"
);
const LIST: &str = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"tools/list\"}\n";

#[test]
fn lines_that_are_no_messages_do_not_end_the_session() {
    let daemon = Daemon::start(Options::fake(1));
    let deep = format!("{}{}\n", "[".repeat(100_000), "]".repeat(100_000));
    let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":3,\"x\":\"{}\"}}\n", "x".repeat(3_000_000));
    let bad: [&[u8]; 8] = [
        b"hello\n",
        b"\n",
        b"{\"jsonrpc\":\"2.0\"\n",
        b"\xff\xfe\x00\n",
        deep.as_bytes(),
        long.as_bytes(),
        b"{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"no/such\"}\n",
        b"{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/call\",\"params\":{\"name\":7}}\n",
    ];
    for line in bad {
        let input = [HELLO.as_bytes(), line, LIST.as_bytes()].concat();
        let (ended_well, answers, said) = output_of(&daemon.socket, &input);
        let shown = String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
        assert!(ended_well, "{shown}: {said}");
        let listed = answers.iter().find(|answer| answer["id"] == json!(7));
        let tools = listed.and_then(|answer| answer["result"]["tools"].as_array());
        assert_eq!(tools.map(Vec::len), Some(7), "{shown}: {answers:?} {said}");
    }
}

#[test]
fn a_client_that_says_nothing_or_nonsense_gets_one_line() {
    let daemon = Daemon::start(Options::fake(1));
    for input in [b"".as_slice(), LIST.as_bytes(), b"GET / HTTP/1.1\r\n\r\n"] {
        let (_, _, said) = output_of(&daemon.socket, input);
        assert!(said.lines().count() <= 1, "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn values_out_of_range_are_refused() {
    let daemon = Daemon::start(Options::fake(1));
    let (mut session, _) = Session::open(&daemon.socket, &["--allow-changes"]);
    let long = "x".repeat(2_000_000);
    let bad = [
        ("submit", json!({ "command": ["true\u{0}"] })),
        ("submit", json!({ "command": [long] })),
        ("submit", json!({ "command": [""] })),
        ("submit", json!({ "command": ["true"], "gpus": -1 })),
        ("submit", json!({ "command": ["true"], "gpus": 1e300 })),
        ("submit", json!({ "command": ["true"], "time": "-5" })),
        ("submit", json!({ "command": ["true"], "array": "0-99999999" })),
        ("submit", json!({ "command": ["true"], "gpu_memory": "9999999T" })),
        ("submit", json!({ "command": ["true"], "dependency": "afterok:99" })),
        ("submit", json!({ "command": ["true"], "chdir": "relative/\u{0}" })),
        ("what_if", json!({ "command": ["true"], "policy": "nonsense" })),
        ("what_if", json!({ "command": ["true"], "policy": "python:/etc/passwd:X" })),
        ("explain", json!({ "job": 18_446_744_073_709_551_615_u64 })),
        ("cancel", json!({ "job": "all" })),
        ("cancel", json!({ "job": 1.5 })),
        ("cancel", json!({ "job": null })),
        ("usage", json!({ "since": "never" })),
        ("queue", json!({ "user": "\u{1b}[31m" , "limit": 1.5 })),
    ];
    for (tool, arguments) in bad {
        let (failed, text) = session.call(tool, &arguments);
        let shown: String = arguments.to_string().chars().take(100).collect();
        assert!(failed, "{tool} {shown}: {text}");
        assert!(text.lines().count() == 1 && text.len() < 2_000, "{tool} {shown}: {text:.300}");
    }
    assert!(daemon.jobs().is_empty());
    session.close();
}
