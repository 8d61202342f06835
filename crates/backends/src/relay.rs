//! Relays the job protocol from a job on a node of the cluster to the daemon: a unix socket for the job, a
//! TCP connection to the daemon. The job uses the protocol as it would on the daemon's machine. A relay runs
//! as root; on Slurm the prolog starts it. Daemon and relay share a secret, which is never sent: the relay
//! proves that it knows the secret by a MAC over a nonce.

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

/// Delay before the next attempt to reach the daemon.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Time limit of a handshake, for either side.
pub const HANDSHAKE: Duration = Duration::from_secs(5);
/// The longest line of a handshake, in bytes.
pub const LINE_MAX: u64 = 4096;
/// What the daemon sends to a relay whose job it knows.
pub const WELCOME: &str = "{\"ok\":true}";
/// The longest first line of a job that is kept for a new connection, in bytes.
const HELLO_MAX: usize = 64 << 10;

/// The first message, from the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Challenge {
    /// The version of this protocol.
    pub v: u32,
    /// Used once.
    pub nonce: String,
}

/// The relay's answer: proves that it knows the secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RelayProof {
    /// The cluster's number of the job.
    pub job: u64,
    /// The job's user.
    pub uid: u32,
    /// MAC over the nonce, the job and the user.
    pub mac: String,
}

impl RelayProof {
    /// The proof for a job.
    pub fn new(secret: &[u8], nonce: &str, job: u64, uid: u32) -> Self {
        let mac = mac(secret, nonce, job, uid).finalize().into_bytes();
        let mac = mac.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { job, uid, mac }
    }

    /// Whether its sender knows the secret.
    pub fn verify(&self, secret: &[u8], nonce: &str) -> bool {
        let byte = |at: usize| u8::from_str_radix(self.mac.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..self.mac.len()).step_by(2).map(byte).collect();
        bytes.is_some_and(|bytes| {
            mac(secret, nonce, self.job, self.uid).verify_slice(&bytes).is_ok()
        })
    }
}

fn mac(secret: &[u8], nonce: &str, job: u64, uid: u32) -> Hmac<Sha256> {
    let mut mac =
        <Hmac<Sha256> as KeyInit>::new_from_slice(secret).expect("HMAC accepts keys of any length");
    mac.update(format!("tandem relay 1 {nonce} {job} {uid}").as_bytes());
    mac
}

/// Reads the secret from a file, which only its owner may read.
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

/// The relay of one job.
#[derive(Clone, Debug)]
pub struct Relay {
    /// The folder of the jobs' sockets.
    pub dir: PathBuf,
    /// The cluster's number of the job.
    pub job: u64,
    /// The job's user.
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
                // One connection at a time, as the daemon accepts it.
                Ok((stream, _)) => self.forward(&stream),
                Err(_) => std::thread::sleep(RETRY_DELAY),
            }
        }
    }

    /// Forwards the connection of a job until the job closes it. Reconnects when the daemon goes away.
    fn forward(&self, job: &UnixStream) {
        let mut reader = BufReader::new(job);
        // The job's first line, which a restarted daemon has to receive too.
        let mut hello = Vec::new();
        loop {
            match self.connect() {
                Ok(daemon) => {
                    if forward_both_ways(job, &mut reader, &mut hello, &daemon).is_ok() {
                        return;
                    }
                }
                Err(_) if is_gone(job) => return,
                Err(_) => {}
            }
            std::thread::sleep(RETRY_DELAY);
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let addresses = self.to.to_socket_addrs()?;
        let mut last = io::Error::other("the daemon has no address");
        for address in addresses {
            match TcpStream::connect_timeout(&address, HANDSHAKE) {
                Ok(stream) => return self.handshake(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn handshake(&self, mut stream: TcpStream) -> io::Result<TcpStream> {
        stream.set_read_timeout(Some(HANDSHAKE))?;
        stream.set_nodelay(true)?;
        let challenge: Challenge = serde_json::from_str(&read_line(&mut stream)?)?;
        let proof = RelayProof::new(&self.secret, &challenge.nonce, self.job, self.uid);
        let proof = serde_json::to_string(&proof)? + "\n";
        stream.write_all(proof.as_bytes())?;
        // Nothing of the job is forwarded before the daemon has accepted it.
        if read_line(&mut stream)?.trim() != WELCOME {
            return Err(io::Error::other("the daemon does not know the job"));
        }
        stream.set_read_timeout(None)?;
        Ok(stream)
    }
}

/// Reads a line byte by byte, because the bytes after it belong to the job.
fn read_line(stream: &mut TcpStream) -> io::Result<String> {
    let mut line = String::new();
    let mut byte = [0];
    while !line.ends_with('\n') && (line.len() as u64) < LINE_MAX {
        stream.read_exact(&mut byte)?;
        line.push(char::from(byte[0]));
    }
    Ok(line)
}

/// Whether a job has closed its connection and everything it sent was read.
fn is_gone(job: &UnixStream) -> bool {
    let mut byte = [0];
    let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
    matches!(rustix::net::recv(job, &mut byte, flags), Ok((_, 0)))
}

/// Forwards both ways. An error if the daemon closed the connection before the job did.
fn forward_both_ways(
    job: &UnixStream,
    reader: &mut BufReader<&UnixStream>,
    hello: &mut Vec<u8>,
    mut daemon: &TcpStream,
) -> io::Result<()> {
    let (mut from_daemon, mut to_job) = (daemon.try_clone()?, job.try_clone()?);
    let to_job = std::thread::spawn(move || {
        let _ = io::copy(&mut from_daemon, &mut to_job);
        // The other direction is blocked reading from the job, which may send nothing for a long time.
        let _ = from_daemon.shutdown(Shutdown::Both);
    });
    let mut to_daemon = || -> io::Result<()> {
        if hello.ends_with(b"\n") {
            daemon.write_all(hello)?;
        }
        loop {
            let bytes = reader.fill_buf()?;
            if bytes.is_empty() {
                return Ok(());
            }
            if !hello.ends_with(b"\n") && hello.len() < HELLO_MAX {
                let end =
                    bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |at| at + 1);
                hello.extend_from_slice(&bytes[..end]);
            }
            daemon.write_all(bytes)?;
            let count = bytes.len();
            reader.consume(count);
        }
    };
    let result = to_daemon();
    let _ = daemon.shutdown(Shutdown::Both);
    let _ = to_job.join();
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
        // Pids are reused: the process must be the relay of this job.
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
    fn only_a_sender_with_the_secret_is_verified() {
        let proof = RelayProof::new(b"secret", "nonce", 5, 1000);
        assert!(proof.verify(b"secret", "nonce"));
        assert!(!proof.verify(b"other", "nonce"));
        assert!(!proof.verify(b"secret", "another"));
        assert!(!RelayProof { uid: 0, ..proof.clone() }.verify(b"secret", "nonce"));
        assert!(!RelayProof { job: 6, ..proof.clone() }.verify(b"secret", "nonce"));
        for mac in ["", "0", "zz", "é", &proof.mac[2..]] {
            assert!(
                !RelayProof { mac: mac.to_owned(), ..proof.clone() }.verify(b"secret", "nonce")
            );
        }
    }
}
