//! A server in the daemon's place, with answers that the test gives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) token: Option<String>,
    pub(crate) body: String,
}

/// What to say.
#[derive(Clone, Debug)]
pub(crate) struct Say {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    /// Size of a file.
    pub(crate) size: Option<usize>,
}

pub(crate) fn ok(body: impl Into<String>) -> Say {
    Say { status: 200, body: body.into().into_bytes(), size: None }
}

pub(crate) fn error(status: u16, code: &str, message: &str) -> Say {
    let body = serde_json::json!({ "error": { "code": code, "message": message } });
    Say { status, ..ok(body.to_string()) }
}

type Answers = Arc<dyn Fn(&Asked) -> Say + Send + Sync>;

pub(crate) struct Server {
    pub(crate) dir: TempDir,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// Listens on a socket in a folder of its own.
    pub(crate) fn start(answers: impl Fn(&Asked) -> Say + Send + Sync + 'static) -> Self {
        let server = Self { dir: super::folder(), asked: Arc::default() };
        let listener = UnixListener::bind(server.socket()).expect("the socket can be made");
        let (answers, asked): (Answers, _) = (Arc::new(answers), Arc::clone(&server.asked));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("connections can be accepted");
                let reader = stream.try_clone().expect("a socket can be shared");
                let (answers, asked) = (Arc::clone(&answers), Arc::clone(&asked));
                std::thread::spawn(move || serve(reader, stream, &answers, &asked));
            }
        });
        server
    }

    /// Listens on TCP. Gives the address.
    pub(crate) fn start_tcp(
        answers: impl Fn(&Asked) -> Say + Send + Sync + 'static,
    ) -> (Self, String) {
        let server = Self { dir: super::folder(), asked: Arc::default() };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it has an address").to_string();
        let (answers, asked): (Answers, _) = (Arc::new(answers), Arc::clone(&server.asked));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.expect("connections can be accepted");
                let reader = stream.try_clone().expect("a socket can be shared");
                serve(reader, stream, &answers, &asked);
            }
        });
        (server, address)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("daemon.sock")
    }

    /// All that was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no answer panicked").clone()
    }

    /// The command, asking this server and nobody else.
    pub(crate) fn command(&self, args: &[&str]) -> std::process::Command {
        isolated(self.dir.path(), args, &self.socket())
    }

    pub(crate) fn run(&self, args: &[&str]) -> super::Ran {
        super::finish(&mut self.command(args))
    }
}

/// The command without the configuration of whoever runs the test.
pub(crate) fn isolated(dir: &Path, args: &[&str], socket: &Path) -> std::process::Command {
    let mut command = super::tandem(args);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("TANDEM_") || name.starts_with("XDG_") || name == "NO_COLOR" {
            command.env_remove(&*name);
        }
    }
    command.current_dir(dir).env("HOME", dir).env("TANDEM_DAEMON__SOCKET", socket);
    command
}

fn serve(reader: impl Read, mut writer: impl Write, answers: &Answers, asked: &Mutex<Vec<Asked>>) {
    let mut reader = BufReader::new(reader);
    while let Some(request) = read(&mut reader) {
        asked.lock().expect("no answer panicked").push(request.clone());
        let Say { status, body, size } = answers(&request);
        let size = size.map(|size| format!("x-tandem-size: {size}\r\n")).unwrap_or_default();
        let stream = request.path == "/events";
        let length =
            if stream { String::new() } else { format!("content-length: {}\r\n", body.len()) };
        let head = format!("HTTP/1.1 {status} X\r\n{length}{size}\r\n");
        let sent = writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(&body));
        if sent.and_then(|()| writer.flush()).is_err() {
            return;
        }
        if stream {
            // A stream stays open until the other side has gone.
            let _ = reader.read(&mut [0]);
            return;
        }
    }
}

fn read(reader: &mut impl BufRead) -> Option<Asked> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut token) = (0, None);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "authorization" => token = Some(value.to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Asked { method, path, token, body: String::from_utf8(body).ok()? })
}
