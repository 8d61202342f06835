//! The interface is as its description says: the committed description is the present one, every path is in
//! it, and thousands of requests made from it, sense and nonsense, are answered as it promises.

mod common;
mod hostile;

use hostile::{Answer, Daemon, ROOT, exchange};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

const METHODS: [&str; 5] = ["get", "post", "put", "delete", "patch"];

fn description() -> Value {
    serde_json::to_value(tandem_daemon::api::openapi()).expect("a description is JSON")
}

#[test]
fn the_committed_description_is_the_present_one() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let present =
        serde_json::to_string_pretty(&description()).expect("a description is JSON") + "\n";
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(&file, &present).expect("it can be written");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == present,
        "docs/openapi.json is old; UPDATE_OPENAPI=1 cargo test --test live_openapi"
    );
}

/// Paths and methods as the routers' sources have them: `.route("PATH", get(f).post(g))`.
fn routes() -> BTreeSet<(String, String)> {
    let body = |source: &'static str, name: &str| {
        let start = source.find(name).expect("there is a router");
        &source[start..start + source[start..].find("\n}").expect("it ends")]
    };
    let main = body(include_str!("../../daemon/src/api/routes.rs"), "fn router(");
    let dashboard = body(include_str!("../../daemon/src/api/dashboard.rs"), "fn routes(");
    let (jobs, rest) = main
        .split_once("Router::new()\n        .nest(\"/v1/jobs\", jobs)")
        .expect("jobs are nested");
    let mut found = BTreeSet::new();
    for (prefix, text) in [("/v1/jobs", jobs), ("", rest), ("", dashboard)] {
        for route in text.split(".route(\"").skip(1) {
            let (path, handlers) = route.split_once("\", ").expect("a path and handlers");
            let path =
                format!("{prefix}{}", if path == "/" && !prefix.is_empty() { "" } else { path });
            for method in METHODS {
                if handlers.contains(&format!("{method}(")) {
                    found.insert((path.clone(), method.to_owned()));
                }
            }
        }
    }
    found
}

#[test]
fn every_path_is_described() {
    let description = description();
    let mut described = BTreeSet::new();
    for (path, item) in description["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            described.insert((path.clone(), method.clone()));
            let responses = operation["responses"].as_object().expect("responses");
            assert!(
                responses.contains_key("default"),
                "{method} {path}: refusals are not described"
            );
            assert!(responses.keys().any(|status| status.starts_with('2')), "{method} {path}");
            for name in path.split('{').skip(1).filter_map(|rest| rest.split('}').next()) {
                let parameters = operation["parameters"].as_array().expect("parameters");
                assert!(
                    parameters.iter().any(|given| given["name"] == name),
                    "{method} {path}: {name}"
                );
            }
        }
    }
    assert_eq!(described, routes());
    assert!(described.len() >= 25, "{described:?}");
    assert_eq!(description["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    assert_eq!(description["security"], json!([{}, {"token": []}]));
}

/// What a schema says, followed to where it is written.
fn resolve<'a>(description: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/components/schemas/")) {
        Some(name) => resolve(description, &description["components"]["schemas"][name]),
        None => schema,
    }
}

/// What is wrong with a value, by its schema.
fn problem(description: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    let schema = resolve(description, schema);
    for key in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[key].as_array() {
            let fits = |choice: &&Value| problem(description, choice, value, at).is_none();
            return choices
                .iter()
                .find(fits)
                .is_none()
                .then(|| format!("{at}: fits none of {schema}"));
        }
    }
    if let Some(parts) = schema["allOf"].as_array() {
        return parts.iter().find_map(|part| problem(description, part, value, at));
    }
    if let Some(names) = schema["enum"].as_array()
        && !names.contains(value)
    {
        return Some(format!("{at}: {value} is none of {names:?}"));
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{at}: what is {other}?"),
    };
    if !kinds.iter().any(|kind| is(kind)) {
        return Some(format!("{at}: {value} is not {kinds:?}"));
    }
    if let Some(object) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(name) {
                return Some(format!("{at}: has no {name}: {value}"));
            }
        }
        for (name, value) in object {
            let described = &schema["properties"][name];
            let described =
                if described.is_null() { &schema["additionalProperties"] } else { described };
            if described.is_object()
                && let Some(problem) =
                    problem(description, described, value, &format!("{at}.{name}"))
            {
                return Some(problem);
            }
        }
    }
    let items = value.as_array().into_iter().flatten().filter(|_| schema["items"].is_object());
    items.enumerate().find_map(|(index, item)| {
        problem(description, &schema["items"], item, &format!("{at}[{index}]"))
    })
}

/// Makes requests from the description.
struct Maker<'a> {
    description: &'a Value,
    /// Of a generator that is the same everywhere.
    random: u64,
    /// The last job that was submitted.
    latest: u64,
}

impl Maker<'_> {
    fn below(&mut self, limit: usize) -> usize {
        // splitmix64
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % limit as u64).expect("it is below a usize")
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn one_in(&mut self, chances: usize) -> bool {
        self.below(chances) == 0
    }

    /// Anything at all.
    fn nonsense(&mut self) -> Value {
        let texts = [
            "",
            "\0",
            "\n",
            "\u{1b}[31m",
            "../../etc",
            "é\u{202e}",
            "-1",
            "NaN",
            "'; DROP TABLE jobs",
            "{a}",
            "%x%",
        ];
        match self.below(10) {
            0 => Value::Null,
            1 => json!(-1),
            2 => json!(u64::MAX),
            3 => json!(1e300),
            4 => json!([[[]]]),
            5 => json!({"a": {"b": null}}),
            6 => json!("x".repeat(300)),
            7 => json!(i64::MIN),
            8 => json!(true),
            _ => json!(self.pick(&texts)),
        }
    }

    /// A value that fits a schema, mostly.
    fn value(&mut self, schema: &Value, name: &str) -> Value {
        if self.one_in(30) {
            return self.nonsense();
        }
        let known: &[Value] = &match name {
            "command" => vec![json!(["true"]), json!(["true", "{lr}"])],
            "dir" => vec![json!("/"), json!("/tmp"), json!("relative"), json!("/nowhere")],
            "stdout" | "stderr" => {
                vec![json!("/dev/null"), json!("/dev/null"), Value::Null, json!("/no/%j")]
            }
            "gpus" => {
                vec![json!(1), json!(0.5), json!(2), json!(4), json!(5), json!(0), json!(1.5)]
            }
            "array" => vec![
                json!("0-3"),
                json!("1-9:2%2"),
                json!("7"),
                Value::Null,
                Value::Null,
                json!("x"),
            ],
            "params" => vec![
                json!([]),
                json!([{"name": "lr", "values": ["1", "2"]}]),
                json!([{"name": "lr", "values": []}]),
            ],
            "dependency" => vec![
                Value::Null,
                json!("afterok:1"),
                json!("afterany:1:2,afternotok:3"),
                json!("after"),
            ],
            "progress_regex" => vec![Value::Null, json!("step (\\d+)"), json!("(")],
            "user" => [Value::Null, json!("root"), json!("nobody"), json!("x y")].to_vec(),
            "webhook" => vec![Value::Null, json!("http://127.0.0.1:1/"), json!("ftp://x")],
            "time_limit_s" | "estimate_s" => vec![json!(10), json!(0.01), Value::Null, json!(-1)],
            "begin_unix_s" => vec![Value::Null, json!(0), json!(4e9), json!(1e11)],
            "kill_grace_s" => vec![Value::Null, json!(0), json!(1)],
            "max_slowdown" => vec![Value::Null, json!(1.2), json!(0.5)],
            "gpu_memory_bytes" => vec![Value::Null, json!(1 << 30), json!(1_u64 << 45)],
            "partition" => vec![Value::Null, json!("local"), json!("remote")],
            "policy" => ["tandem", "fifo", "srtf", "gshare", "tiresias", "nonsense", "tandem:a=b"]
                .map(Value::from)
                .to_vec(),
            "state" => ["active", "running,failed", "R", "x"].map(Value::from).to_vec(),
            "order" => ["asc", "desc", "up"].map(Value::from).to_vec(),
            "stream" => ["stdout", "stderr", "x"].map(Value::from).to_vec(),
            "id" => (self.latest.saturating_sub(12)..=self.latest)
                .map(Value::from)
                .chain([json!(999_999), json!("x"), json!(u64::MAX)])
                .collect(),
            "device" => (0..4).map(Value::from).chain([json!(9), json!("x"), json!(-1)]).collect(),
            _ => vec![],
        };
        if !known.is_empty() {
            return self.pick(known);
        }
        let schema = resolve(self.description, schema);
        if let Some(choices) = schema["oneOf"].as_array() {
            let choice = self.pick(choices);
            return self.value(&choice, "");
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => vec!["null"],
        };
        match self.pick(&kinds) {
            "object" => self.object(schema),
            "array" => {
                let count = self.below(3);
                (0..count).map(|_| self.value(&schema["items"], "")).collect()
            }
            "string" => json!(self.pick(&["a", "name", "x y", "\u{fc}", "long-name-0123456789"])),
            "integer" => json!(self.pick(&[0_i64, 1, 2, 5, 100, -1, 1 << 40])),
            "number" => json!(self.pick(&[0.0, 0.5, 1.0, 10.0, -1.0, 1e9])),
            "boolean" => json!(self.one_in(2)),
            _ => Value::Null,
        }
    }

    fn object(&mut self, schema: &Value) -> Value {
        let mut object = json!({});
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let is_required =
                schema["required"].as_array().is_some_and(|all| all.contains(&json!(name)));
            // Many fields at once would hardly ever be right together.
            if is_required || name == "command" || name == "hold" || self.one_in(6) {
                object[name] = self.value(property, name);
            }
        }
        // Programs that do nothing, so that nothing happens.
        if object["command"][0] != "true" && object["command"].is_array() {
            object["command"] = json!(["true"]);
        }
        if object.get("command").is_some() && object["stdout"].is_null() {
            object["stdout"] = json!("/dev/null");
        }
        if self.one_in(40) {
            object["surplus"] = self.nonsense();
        }
        object
    }

    /// The path with its query, and the body.
    fn request(&mut self, path: &str, operation: &Value) -> (String, Vec<u8>) {
        let mut path = path.to_owned();
        let mut query = Vec::new();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = parameter["name"].as_str().expect("a name");
            let value = self.value(&parameter["schema"], name);
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match parameter["in"].as_str() {
                Some("path") => path = path.replace(&format!("{{{name}}}"), &escape(&text)),
                Some("query") if self.one_in(2) => query.push(format!("{name}={}", escape(&text))),
                _ => {}
            }
        }
        if self.one_in(40) {
            query.push("surplus=1".to_owned());
        }
        if !query.is_empty() {
            path += &format!("?{}", query.join("&"));
        }
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let body = if schema.is_null() { Value::Null } else { self.value(schema, "") };
        let mut body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        if !body.is_empty() && self.one_in(20) {
            let at = self.below(body.len());
            body[at] = self.pick(&[0, 0xff, b'"', b'{', b' ']);
            let keep = 1 + self.below(body.len());
            body.truncate(if self.one_in(2) { keep } else { body.len() });
        }
        (path, body)
    }
}

/// A text as it may stand in an address.
fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._,:".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// What is wrong with an answer, by the description.
fn wrong(description: &Value, operation: &Value, answer: &Answer) -> Option<String> {
    let responses = &operation["responses"];
    let described = match &responses[answer.status.to_string()] {
        Value::Null if (200..300).contains(&answer.status) => {
            return Some("is not described".to_owned());
        }
        Value::Null => &responses["default"],
        described => described,
    };
    if answer.status == 0 || answer.status >= 500 && answer.status != 503 {
        return Some("is the daemon's fault".to_owned());
    }
    let content = described["content"].as_object();
    let (kind, media) = content.and_then(|content| content.iter().next())?;
    if !answer.head.to_ascii_lowercase().contains(&format!("content-type: {kind}")) {
        return Some(format!("is not {kind}"));
    }
    if answer.status >= 400 {
        let text = answer.text();
        if text.lines().count() != 1 || text.len() > 8000 {
            return Some("is not one line".to_owned());
        }
    }
    if kind == "application/json" {
        let value: Value = match serde_json::from_slice(&answer.body) {
            Ok(value) => value,
            Err(error) => return Some(error.to_string()),
        };
        return problem(description, &media["schema"], &value, "answer");
    }
    None
}

#[test]
fn requests_from_the_description_are_answered_as_it_says() {
    let seed = std::env::var("FUZZ_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_261_116_u64);
    let count: usize =
        std::env::var("FUZZ_COUNT").ok().and_then(|count| count.parse().ok()).unwrap_or(4000);
    println!("FUZZ_SEED={seed} FUZZ_COUNT={count}");
    let description = description();
    let daemon = Daemon::start(&[]);
    let mut maker = Maker { description: &description, random: seed, latest: 1 };
    let operations: Vec<(String, String, Value)> = description["paths"]
        .as_object()
        .expect("paths")
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().expect("methods").iter();
            methods.map(move |(method, operation)| {
                (path.clone(), method.to_uppercase(), operation.clone())
            })
        })
        // A stream does not end by itself; it is asked for elsewhere.
        .filter(|(_, _, operation)| {
            operation["responses"]["200"]["content"]["text/event-stream"].is_null()
        })
        .collect();
    let mut seen: BTreeMap<(String, u16), usize> = BTreeMap::new();
    for number in 0..count {
        // Submissions often, so that there is something to ask about.
        let (path, method, operation) = if number % 5 == 0 {
            operations
                .iter()
                .find(|(path, method, _)| path == "/v1/jobs" && method == "POST")
                .expect("it is there")
                .clone()
        } else {
            maker.pick(&operations)
        };
        let (asked, body) = maker.request(&path, &operation);
        let stream = daemon.connect(ROOT).expect("the daemon listens");
        let answer = exchange(stream, &method, &asked, &[], &body);
        *seen.entry((format!("{method} {path}"), answer.status)).or_default() += 1;
        if answer.status == 201 && path == "/v1/jobs" {
            maker.latest = answer.json()["ids"]
                .as_array()
                .and_then(|ids| ids.last()?.as_u64())
                .expect("numbers");
        }
        if let Some(wrong) = wrong(&description, &operation, &answer) {
            let (said, body) = (answer.text(), String::from_utf8_lossy(&body).into_owned());
            panic!(
                "FUZZ_SEED={seed}, request {number}: {method} {asked}\n{body}\n{}: {wrong}: {said}",
                answer.status
            );
        }
    }
    for (what, count) in &seen {
        println!("{} {}: {count}", what.0, what.1);
    }
    // Each was answered with success at least once, those that take a job in a rare state or a selector excepted.
    for (path, method, _) in &operations {
        let name = format!("{method} {path}");
        let ever = seen.keys().any(|(other, status)| *other == name && (200..300).contains(status));
        let rare = [
            "pause",
            "requeue",
            "resume",
            "accum",
            "tokens/{id}",
            "reservations",
            "reservations/{id}",
            "change",
        ]
        .iter()
        .any(|rare| path.ends_with(rare));
        assert!(ever || rare || count < 4000, "{name} never succeeded");
    }
    daemon.assert_well("all that");
    let answer = daemon.get(ROOT, "/v1/info");
    assert_eq!(answer.json()["plans_rejected"], 0, "{}", answer.text());
}

/// Schemathesis, which knows nothing of the daemon but the description: requests that fit it and that do not, and
/// answers that have to. `TANDEM_TEST_EXAMPLES=500` tries more of each operation.
#[test]
fn schemathesis_finds_no_difference() {
    let script = common::workspace().join("scripts/python-env");
    let ran = common::finish(Command::new(script).arg("--api"));
    if ran.code != Some(0) {
        common::skipped(ran.stderr.trim());
        return;
    }
    let program = Path::new(ran.stdout.trim()).with_file_name("schemathesis");
    let port = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = port.local_addr().expect("it has an address").to_string();
    drop(port);
    let daemon = Daemon::start(&["--listen", &address, "--set", "daemon.tls=false"]);
    let uid = rustix::process::getuid().as_raw();
    let user = tandem_daemon::users::name(uid);
    let request = json!({"user": user, "scopes": ["read", "submit", "operate"]});
    let made = daemon.post(ROOT, "/v1/tokens", &request).json();
    let token = made["token"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
    // Something to ask about.
    let job = json!({"command": ["true"], "dir": "/", "stdout": "/dev/null", "array": "0-4"});
    daemon.submit(ROOT, &job);
    let config = daemon.dir.path().join("schemathesis.toml");
    std::fs::write(&config, SCHEMATHESIS).expect("a file can be written");
    let examples = std::env::var("TANDEM_TEST_EXAMPLES").unwrap_or_else(|_| "20".to_owned());
    let mut command = Command::new(program);
    command.arg("--config-file").arg(&config).arg("run");
    command.arg(common::workspace().join("docs/openapi.json"));
    command.args(["--url", &format!("http://{address}"), "--max-examples", &examples]);
    command.arg("--header").arg(format!("Authorization: Bearer {token}"));
    command.args(["--phases", "examples,coverage,fuzzing", "--seed", "1", "--workers", "2"]);
    command.args(["--generation-database", "none", "--continue-on-failure", "--no-color"]);
    // Streams do not end by themselves.
    command.args(["--exclude-path-regex", "(events|logs/tail)$"]);
    command.current_dir(daemon.dir.path());
    let ran = common::finish(&mut command);
    let end = ran.stdout.len().saturating_sub(6000);
    let end = (end..).find(|&at| ran.stdout.is_char_boundary(at)).unwrap_or(0);
    assert_eq!(ran.code, Some(0), "{}\n{}", &ran.stdout[end..], ran.stderr);
    daemon.assert_well("Schemathesis");
}

/// What is checked. That a request fits the description does not mean that it can be granted: a job may not exist,
/// a pattern may be none.
const SCHEMATHESIS: &str = "
[checks]
positive_data_acceptance.enabled = false
";
