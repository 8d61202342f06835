//! The way from a job on a node to the daemon: a socket beside the job, a connection to the daemon. The
//! job speaks as it would on one machine. Runs as root, started by Slurm's prolog; the daemon believes it
//! because both know a secret, which never crosses the network.

use hmac::{Hmac, KeyInit, Mac};
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::fs::{self, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A daemon that is away is asked again after this.
const AGAIN: Duration = Duration::from_secs(2);
/// Either side of a handshake has so long.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// No line of a handshake is longer.
pub const LINE_MAX: u64 = 4096;
/// What the daemon says to a relay whose job it knows.
pub const WELCOME: &str = "{\"ok\":true}";
/// A first line that is longer is not kept.
const GREETING_MAX: usize = 64 << 10;

/// What the daemon says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Challenge {
    /// The version of this protocol.
    pub v: u32,
    /// Never the same twice.
    pub nonce: String,
}

/// What the relay answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The job's number in Slurm.
    pub job: u64,
    /// Whose it is.
    pub uid: u32,
    /// Shows that the secret is known.
    pub mac: String,
}

impl Answer {
    /// The answer for a job.
    pub fn new(secret: &[u8], nonce: &str, job: u64, uid: u32) -> Self {
        let mac = mac(secret, nonce, job, uid).finalize().into_bytes();
        let mac = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { job, uid, mac }
    }

    /// Whether whoever gave it knows the secret.
    pub fn is_right(&self, secret: &[u8], nonce: &str) -> bool {
        let byte = |at: usize| u8::from_str_radix(self.mac.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..self.mac.len()).step_by(2).map(byte).collect();
        bytes.is_some_and(|bytes| {
            mac(secret, nonce, self.job, self.uid).verify_slice(&bytes).is_ok()
        })
    }
}

fn mac(secret: &[u8], nonce: &str, job: u64, uid: u32) -> Hmac<Sha256> {
    let mut mac =
        <Hmac<Sha256> as KeyInit>::new_from_slice(secret).expect("a key may have any length");
    mac.update(format!("tandem relay 1 {nonce} {job} {uid}").as_bytes());
    mac
}

/// The secret of a file, which must be a secret.
pub fn secret(file: &Path) -> io::Result<Vec<u8>> {
    let open = fs::metadata(file)?.permissions().mode() & 0o077;
    if open != 0 {
        let message = "others may read it; give it mode 600";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    let secret = fs::read(file)?;
    if secret.len() < 32 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a secret has at least 32 bytes"));
    }
    Ok(secret)
}

/// What a relay serves.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Where sockets of jobs are.
    pub dir: PathBuf,
    /// The job's number in Slurm.
    pub job: u64,
    /// Whose it is.
    pub uid: u32,
    /// The daemon's address.
    pub to: String,
    /// The secret.
    pub secret: Vec<u8>,
}

impl Relay {
    /// Serves until it is killed.
    pub fn serve(&self) -> io::Result<std::convert::Infallible> {
        fs::create_dir_all(&self.dir)?;
        fs::set_permissions(&self.dir, Permissions::from_mode(0o711))?;
        let socket = socket(&self.dir, self.job);
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket)?;
        fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
        std::os::unix::fs::chown(&socket, Some(self.uid), None)?;
        fs::write(pid_file(&self.dir, self.job), std::process::id().to_string())?;
        loop {
            match listener.accept() {
                // One at a time, as the daemon hears it.
                Ok((stream, _)) => self.carry(&stream),
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }

    /// Carries what a job says until it leaves; a daemon that goes away is sought again.
    fn carry(&self, job: &UnixStream) {
        let mut reader = BufReader::new(job);
        // What it said first, by which every daemon has to know it.
        let mut greeting = Vec::new();
        loop {
            match self.connect() {
                Ok(daemon) => {
                    if pipe(job, &mut reader, &mut greeting, &daemon).is_ok() {
                        return;
                    }
                }
                Err(_) if is_gone(job) => return,
                Err(_) => {}
            }
            std::thread::sleep(AGAIN);
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let addresses = self.to.to_socket_addrs()?;
        let mut last = io::Error::other("it has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, HANDSHAKE) {
                Ok(stream) => return self.shake_hands(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn shake_hands(&self, mut stream: TcpStream) -> io::Result<TcpStream> {
        stream.set_read_timeout(Some(HANDSHAKE))?;
        stream.set_nodelay(true)?;
        let challenge: Challenge = serde_json::from_str(&line(&mut stream)?)?;
        let answer = Answer::new(&self.secret, &challenge.nonce, self.job, self.uid);
        let answer = serde_json::to_string(&answer)? + "\n";
        stream.write_all(answer.as_bytes())?;
        // The job speaks only when somebody listens.
        if line(&mut stream)?.trim() != WELCOME {
            return Err(io::Error::other("the daemon does not know the job"));
        }
        stream.set_read_timeout(None)?;
        Ok(stream)
    }
}

/// A line, byte by byte: what follows is for the job.
fn line(stream: &mut TcpStream) -> io::Result<String> {
    let mut line = String::new();
    let mut byte = [0];
    while !line.ends_with('\n') && (line.len() as u64) < LINE_MAX {
        stream.read_exact(&mut byte)?;
        line.push(char::from(byte[0]));
    }
    Ok(line)
}

/// Whether a job has closed its end and left nothing to be read.
fn is_gone(job: &UnixStream) -> bool {
    let mut byte = [0];
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    matches!(rustix::net::recv(job, &mut byte, flags), Ok((_, 0)))
}

/// Carries both ways. An error if the daemon went first.
fn pipe(
    job: &UnixStream,
    reader: &mut BufReader<&UnixStream>,
    greeting: &mut Vec<u8>,
    mut daemon: &TcpStream,
) -> io::Result<()> {
    let back = (daemon.try_clone()?, job.try_clone()?);
    let answers = std::thread::spawn(move || {
        let (mut daemon, mut job) = back;
        let _ = io::copy(&mut daemon, &mut job);
        // The other way waits for the job, which may say nothing for long.
        let _ = daemon.shutdown(Shutdown::Both);
    });
    let mut carry = || -> io::Result<()> {
        if greeting.ends_with(b"\n") {
            daemon.write_all(greeting)?;
        }
        loop {
            let said = reader.fill_buf()?;
            if said.is_empty() {
                return Ok(());
            }
            if !greeting.ends_with(b"\n") && greeting.len() < GREETING_MAX {
                let end =
                    said.iter().position(|&byte| byte == b'\n').map_or(said.len(), |at| at + 1);
                greeting.extend_from_slice(&said[..end]);
            }
            daemon.write_all(said)?;
            let count = said.len();
            reader.consume(count);
        }
    };
    let result = carry();
    let _ = daemon.shutdown(Shutdown::Both);
    let _ = answers.join();
    result
}

fn socket(dir: &Path, job: u64) -> PathBuf {
    dir.join(format!("{job}.sock"))
}

fn pid_file(dir: &Path, job: u64) -> PathBuf {
    dir.join(format!("{job}.pid"))
}

/// Ends the relay of a job, if there is one.
pub fn stop(dir: &Path, job: u64) {
    let file = pid_file(dir, job);
    let pid = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok());
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        // Numbers are given again: it has to be the relay of this job.
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
        let job = job.to_string();
        if words.contains(&&b"relay"[..]) && words.contains(&job.as_bytes()) {
            let _ = rustix::process::kill_process(pid, Signal::TERM);
        }
    }
    let _ = fs::remove_file(file);
    let _ = fs::remove_file(socket(dir, job));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_knows_the_secret_is_right() {
        let answer = Answer::new(b"secret", "nonce", 5, 1000);
        assert!(answer.is_right(b"secret", "nonce"));
        assert!(!answer.is_right(b"other", "nonce"));
        assert!(!answer.is_right(b"secret", "another"));
        assert!(!Answer { uid: 0, ..answer.clone() }.is_right(b"secret", "nonce"));
        assert!(!Answer { job: 6, ..answer.clone() }.is_right(b"secret", "nonce"));
        for mac in ["", "0", "zz", "é", &answer.mac[2..]] {
            assert!(!Answer { mac: mac.to_owned(), ..answer.clone() }.is_right(b"secret", "nonce"));
        }
    }
}
