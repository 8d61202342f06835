//! Clients on TCP: TLS, and tokens that stand for one user, within their scopes, until they end.

mod common;
mod hostile;

use hostile::{ANN, BOB, Daemon, ROOT, command, exchange, home, open_folder, program, two_people};
use serde_json::{Value, json};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tandem_backends::Owner;
use tandem_backends::local::as_user;

/// A port that was free a moment ago.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it has an address").to_string()
}

/// A daemon on a loopback address without TLS, so that tests can speak HTTP.
fn plain(address: &str) -> Daemon {
    Daemon::start(&["--listen", address, "--set", "daemon.tls=false"])
}

fn ask(
    address: &str,
    token: Option<&str>,
    method: &str,
    path: &str,
    body: &str,
) -> hostile::Answer {
    let stream = TcpStream::connect(address).expect("the daemon listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time is set");
    let token = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<(&str, &str)> =
        token.iter().map(|token| ("authorization", token.as_str())).collect();
    exchange(stream, method, path, &headers, body.as_bytes())
}

fn get(address: &str, token: Option<&str>, path: &str) -> hostile::Answer {
    ask(address, token, "GET", path, "")
}

/// A token of whoever runs the test, as somebody makes it.
fn create(daemon: &Daemon, who: Owner, request: &Value) -> (u64, String) {
    let answer = daemon.post(who, "/v1/tokens", request);
    assert_eq!(answer.status, 201, "{}", answer.text());
    let answer = answer.json();
    let secret = answer["token"].as_str().expect("a secret").to_owned();
    (answer["info"]["id"].as_u64().expect("a number"), secret)
}

/// The user of this process by name, as root has to give it.
fn own_name() -> String {
    tandem_daemon::users::name(rustix::process::getuid().as_raw())
}

#[test]
fn tcp_wants_a_token() {
    let address = free_address();
    let daemon = plain(&address);
    let (_, token) = create(&daemon, ROOT, &json!({"user": own_name()}));
    let longer = format!("{token}0");
    let other = token.replace(|_| true, "0");
    let wrong =
        [None, Some(""), Some("x"), Some(&token[1..]), Some(longer.as_str()), Some(other.as_str())];
    for given in wrong {
        for path in
            ["/v1/jobs", "/v1/info", "/healthz", "/metrics", "/events", "/openapi.json", "/none"]
        {
            let answer = get(&address, given, path);
            assert_eq!(answer.status, 401, "{given:?} {path}: {}", answer.text());
            assert_eq!(answer.json()["error"]["code"], "unauthorized");
        }
    }
    for scheme in ["Basic", "bearer", "Bearer  "] {
        let stream = TcpStream::connect(&address).expect("the daemon listens");
        let value = format!("{scheme} {token}");
        let answer = exchange(stream, "GET", "/v1/info", &[("authorization", &value)], b"");
        assert_eq!(answer.status, 401, "{scheme}");
    }
    for path in ["/v1/jobs", "/v1/info", "/healthz", "/metrics"] {
        assert_eq!(get(&address, Some(&token), path).status, 200, "{path}");
    }
    assert_eq!(get(&address, Some(&token), "/none").status, 404);
    assert!(!daemon.log().contains(&token));
}

#[test]
fn a_token_is_one_user_within_its_scopes() {
    if !two_people() {
        return;
    }
    let address = free_address();
    let daemon = plain(&address);
    let dir = home(daemon.dir.path(), "ann", ANN);
    // Never root by default, and never somebody else without being an operator.
    assert_eq!(daemon.post(ROOT, "/v1/tokens", &json!({})).status, 400);
    for user in ["root", "daemon"] {
        assert_eq!(daemon.post(ANN, "/v1/tokens", &json!({"user": user})).status, 403, "{user}");
    }
    assert_eq!(daemon.post(ANN, "/v1/tokens", &json!({"user": "no-such-user"})).status, 400);
    assert_eq!(daemon.post(ANN, "/v1/tokens", &json!({"expires_s": 0})).status, 400);

    let job = json!({"command": ["sh", "-c", "id -u > out"], "dir": dir}).to_string();
    assert_eq!(daemon.post(ANN, "/v1/tokens", &json!({"scopes": []})).status, 400);
    let (reader, reads) = create(&daemon, ANN, &json!({"scopes": ["read"], "name": "looks"}));
    let (_, submits) = create(&daemon, ANN, &json!({}));
    assert_eq!(ask(&address, Some(&reads), "POST", "/v1/jobs", &job).status, 403);
    let answer = ask(&address, Some(&submits), "POST", "/v1/jobs", &job);
    assert_eq!(answer.status, 201, "{}", answer.text());
    let id = answer.json()["ids"][0].as_u64().expect("a number");
    assert_eq!(daemon.over(id)["user"], "nobody");
    assert_eq!(std::fs::read_to_string(dir.join("out")).expect("it ran").trim(), "65534");
    // Ann sees her own job in full, and changes nobody else's.
    assert!(get(&address, Some(&reads), &format!("/v1/jobs/{id}")).text().contains("id -u"));
    let bobs = daemon
        .submit(BOB, &json!({"command": ["sleep", "100"], "dir": "/", "stdout": "/dev/null"}));
    let cancel = format!("/v1/jobs/{bobs}");
    assert_eq!(ask(&address, Some(&submits), "DELETE", &cancel, "").status, 403);

    // Root's token operates only if that was asked for.
    let (_, plain) = create(&daemon, ROOT, &json!({"user": "root"}));
    let (_, operates) = create(&daemon, ROOT, &json!({"user": "root", "scopes": ["operate"]}));
    let drain = "/v1/devices/0/drain";
    assert_eq!(ask(&address, Some(&plain), "POST", drain, "").status, 403);
    assert_eq!(ask(&address, Some(&plain), "DELETE", &cancel, "").status, 403);
    assert_eq!(ask(&address, Some(&operates), "POST", drain, "").status, 200);

    // A token makes no token, and only its user sees and revokes it.
    assert_eq!(ask(&address, Some(&operates), "POST", "/v1/tokens", "{}").status, 403);
    let count = |who| daemon.get(who, "/v1/tokens").json()["tokens"].as_array().map(Vec::len);
    assert_eq!((count(ANN), count(BOB), count(ROOT)), (Some(2), Some(0), Some(4)));
    let revoke = format!("/v1/tokens/{reader}");
    assert_eq!(daemon.ask(BOB, "DELETE", &revoke, b"").status, 404);
    assert_eq!(daemon.ask(ANN, "DELETE", &revoke, b"").status, 200);
    assert_eq!(get(&address, Some(&reads), "/v1/info").status, 401, "it was revoked");
}

#[test]
fn configured_operators_operate() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&["--set", "daemon.operators=nobody"]);
    assert_eq!(daemon.ask(BOB, "POST", "/v1/devices/0/drain", b"").status, 403);
    assert_eq!(daemon.ask(ANN, "POST", "/v1/devices/0/drain", b"").status, 200);
    assert_eq!(daemon.post(ANN, "/v1/tokens", &json!({"user": "daemon"})).status, 201);
    assert_eq!(daemon.post(ANN, "/v1/tokens", &json!({"user": "root"})).status, 403);
}

#[test]
fn tokens_survive_a_restart_by_their_hash_and_end_in_time() {
    let address = free_address();
    let mut daemon = plain(&address);
    let (_, kept) = create(&daemon, ROOT, &json!({"user": own_name()}));
    let (_, short) = create(&daemon, ROOT, &json!({"user": own_name(), "expires_s": 1}));
    daemon.child.kill().expect("it lives");
    daemon.child.wait().expect("it ends");
    for file in std::fs::read_dir(daemon.dir.path().join("state")).expect("it is there").flatten() {
        if file.path().is_file() {
            let bytes = std::fs::read(file.path()).expect("it can be read");
            let has = bytes.windows(kept.len()).any(|part| part == kept.as_bytes());
            assert!(!has, "the secret is in {}", file.path().display());
        }
    }
    let options = ["--listen", &address, "--set", "daemon.tls=false"];
    let mut again = command(Path::new(env!("CARGO_BIN_EXE_tandem")), daemon.dir.path(), &options);
    daemon.child = again.stderr(Stdio::null()).spawn().expect("it can be started");
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while TcpStream::connect(&address).is_err() || daemon.connect(ROOT).is_err() {
        assert!(std::time::Instant::now() < deadline, "not up");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(get(&address, Some(&kept), "/v1/info").status, 200);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(get(&address, Some(&short), "/v1/info").status, 401, "it has ended");
}

fn cli(dir: &Path, args: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", dir).args(args);
    let output = command.stdin(Stdio::null()).output().expect("it can be started");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn tcp_is_encrypted_and_the_certificate_is_checked() {
    let address = free_address();
    let daemon = Daemon::start(&["--listen", &address]);
    let dir = daemon.dir.path();
    let socket = daemon.socket().display().to_string();
    let (ok, token, said) = cli(
        dir,
        &["token", "create", "--socket", &socket, "--user", &own_name(), "--name", "laptop"],
    );
    assert!(ok, "{said}");
    let file = dir.join("token");
    std::fs::write(&file, &token).expect("a file can be made");
    let (file, port) = (file.display().to_string(), address.rsplit(':').next().expect("a port"));
    let authority = dir.join("state/tls-cert.pem").display().to_string();
    for host in [address.clone(), format!("https://localhost:{port}")] {
        let asks = ["info", "1", "--host", &host, "--token-file", &file, "--ca-file", &authority];
        let (ok, _, said) = cli(dir, &asks);
        assert!(!ok && said.contains("there is no job 1"), "{said}");
        let (ok, out, said) = cli(
            dir,
            &["queue", "--host", &host, "--token-file", &file, "--json", "--ca-file", &authority],
        );
        assert!(ok && out.contains("\"jobs\""), "{said}");
    }
    // Nobody in between is trusted, and nothing goes out in the clear.
    let (ok, _, said) = cli(dir, &["queue", "--host", &address, "--token-file", &file]);
    assert!(!ok && said.contains("certificate"), "{said}");
    let answer = get(&address, Some(token.trim()), "/v1/info");
    assert_ne!(answer.status, 200, "{}", answer.text());
    let (ok, out, said) = cli(dir, &["token", "list", "--socket", &socket, "-o", "csv"]);
    assert!(ok && out.contains("laptop"), "{out} {said}");
    assert!(cli(dir, &["token", "revoke", "--socket", &socket, "1"]).0);
    let asks = ["queue", "--host", &address, "--token-file", &file, "--ca-file", &authority];
    let (ok, _, said) = cli(dir, &asks);
    assert!(!ok && said.contains("token"), "{said}");
}

#[test]
fn tokens_are_not_shown_to_the_network() {
    let dir = open_folder();
    let options = ["--listen", "0.0.0.0:0", "--set", "daemon.tls=false"];
    let mut daemon = command(Path::new(env!("CARGO_BIN_EXE_tandem")), dir.path(), &options);
    let output = daemon.stderr(Stdio::piped()).output().expect("it can be started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("without TLS"), "{said}");
}

#[test]
fn the_client_sends_nothing_to_a_squatter() {
    if !two_people() {
        return;
    }
    let dir = open_folder();
    let program = program(dir.path());
    let bobs = home(dir.path(), "bobs", BOB);
    std::fs::set_permissions(&bobs, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("root may");
    // Sticky, so that nothing but the owner of the socket gives Bob away.
    let open = dir.path().join("open");
    std::fs::create_dir(&open).expect("a folder can be made");
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o1777))
        .expect("ours");
    // A socket that Ann owns, at which Bob listens: only the kernel can tell.
    for (socket, is_anns) in
        [(bobs.join("s"), false), (open.join("s"), false), (open.join("t"), true)]
    {
        let listen = || UnixListener::bind(&socket);
        let listener = as_user(Some(BOB), listen).expect("root may").expect("he can listen");
        std::fs::set_permissions(&socket, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .expect("root may");
        if is_anns {
            std::os::unix::fs::chown(&socket, Some(ANN.uid), Some(ANN.gid)).expect("root may");
        }
        let mut command = Command::new(&program);
        command.env_clear().env("HOME", "/nonexistent").env("SECRET", "hidden");
        command.args(["submit", "--socket"]).arg(&socket).args(["--", "true"]).current_dir("/");
        let output = command.uid(ANN.uid).gid(ANN.gid).output().expect("it can be started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains("not to you or root") || said.contains("not yours or root's"),
            "{said}"
        );
        listener.set_nonblocking(true).expect("it is ours");
        if let Ok((mut stream, _)) = listener.accept() {
            let mut sent = Vec::new();
            stream.set_nonblocking(true).expect("it is ours");
            let _ = std::io::Read::read_to_end(&mut stream, &mut sent);
            assert!(sent.is_empty(), "{}", String::from_utf8_lossy(&sent));
        }
    }
}

#[test]
fn webhooks_are_called_over_tls_by_those_who_are_trusted() {
    let dir = open_folder();
    let files = tandem_daemon::tls::CertificateFiles::own(dir.path());
    files.make(vec!["localhost".to_owned()]).expect("a certificate can be made");
    let config = files.server().expect("it is valid");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    let mut plain = command(Path::new(env!("CARGO_BIN_EXE_tandem")), dir.path(), &[]);
    plain.env("SSL_CERT_FILE", &files.certificate);
    let daemon = Daemon::spawn(dir, plain);
    let hook = format!("https://localhost:{port}/hook");
    let job = json!({"command": ["true"], "dir": "/", "stdout": "/dev/null", "webhook": hook});
    let id = daemon.submit(ROOT, &job);
    let (stream, _) = listener.accept().expect("it calls");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time is set");
    let connection = rustls::ServerConnection::new(config).expect("it is valid");
    let mut stream = rustls::StreamOwned::new(connection, stream);
    let (mut said, mut bytes) = (String::new(), [0; 4096]);
    while !said.contains("completed") {
        let read = std::io::Read::read(&mut stream, &mut bytes).expect("it speaks TLS");
        assert!(read > 0, "{said}");
        said += &String::from_utf8_lossy(&bytes[..read]);
    }
    assert!(said.starts_with("POST /hook HTTP/1.1\r\n"), "{said}");
    assert!(said.contains(&format!("\"id\":{id}")), "{said}");
    let _ = std::io::Write::write_all(&mut stream, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
}

#[test]
fn priority_above_0_is_for_operators() {
    if !two_people() {
        return;
    }
    let daemon = Daemon::start(&["--set", "daemon.operators=daemon"]);
    let job = |priority: i32| {
        json!({
            "command": ["sleep", "100"], "dir": "/", "stdout": "/dev/null", "gpus": 4,
            "exclusive": true, "priority": priority, "estimate_s": 100,
        })
    };
    let runs = daemon.submit(ANN, &job(0));
    daemon.until(runs, &["running"]);
    let cases = [
        (ANN, 1, 403),
        (ANN, 20, 403),
        (ANN, 0, 201),
        (ANN, -20, 201),
        (BOB, 20, 201),
        (ROOT, 20, 201),
    ];
    for (who, priority, status) in cases {
        let answer = daemon.post(who, "/v1/jobs", &job(priority));
        assert_eq!(answer.status, status, "{who:?} {priority}: {}", answer.text());
    }
}
