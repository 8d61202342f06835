//! E-mail at the end of a job: by the local sendmail, run as the job's user, or by an SMTP server.

use crate::api::types::JobChange;
use crate::job::StoredJob;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tandem_backends::Owner;

/// The longest address.
const ADDRESS_MAX: usize = 254;
/// A server or program that takes longer has failed.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How mail is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mailer {
    /// A program such as sendmail: recipient as an argument, message on standard input.
    Sendmail(PathBuf),
    /// `HOST:PORT` of an SMTP server that accepts mail from this machine.
    Smtp(String),
}

/// Whether a text is an address that can be put into a message and on a command line.
pub fn is_address(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".!#$%&'*+/=?^_`{|}~-".contains(c);
    let parts = text.split_once('@').map_or((text, "localhost"), |parts| parts);
    let (local, domain) = parts;
    let in_domain = |c: char| c.is_ascii_alphanumeric() || ".-".contains(c);
    text.len() <= ADDRESS_MAX
        && !text.starts_with('-')
        && !local.is_empty()
        && local.chars().all(is_plain)
        && !domain.is_empty()
        && domain.chars().all(in_domain)
}

/// The message of a job that ended.
pub(crate) fn message(job: &StoredJob, change: &JobChange, to: &str) -> String {
    let plain = |text: &str| -> String {
        text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect()
    };
    let (name, state, host) = (plain(&job.name()), change.state.name(), crate::tls::host_name());
    let exit = change.exit_code.map_or_else(String::new, |code| format!(", exit code {code}"));
    let reason = change
        .reason
        .as_deref()
        .map_or_else(String::new, |text| format!("Reason: {}\r\n", plain(text)));
    let user = plain(&job.user);
    format!(
        "From: {user}@{host}\r\nTo: {to}\r\nSubject: job {id} {name}: {state}\r\n\r\n\
         StoredJob {id} ({name}) on {host}: {state}{exit}, at {time}.\r\n{reason}",
        id = job.id,
        time = change.time,
    )
}

impl Mailer {
    /// Sends a message on a blocking thread. `owner` is the user to send as, if that is not the daemon's.
    pub(crate) fn send(
        &self,
        owner: Option<Owner>,
        from: &str,
        to: &str,
        text: &str,
    ) -> io::Result<()> {
        match self {
            Mailer::Sendmail(program) => {
                let mut command = Command::new(program);
                command.args(["-i", "--", to]).env_clear().env("PATH", "/usr/sbin:/usr/bin:/bin");
                command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
                if let Some(owner) = owner {
                    command.uid(owner.uid).gid(owner.gid);
                }
                run(command, text)
            }
            Mailer::Smtp(server) => smtp(server, from, to, text),
        }
    }
}

fn run(mut command: Command, text: &str) -> io::Result<()> {
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.replace("\r\n", "\n").as_bytes())?;
    }
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match child.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(io::Error::other(format!("the mail program: {status}"))),
            None if Instant::now() > deadline => {
                child.kill()?;
                child.wait()?;
                return Err(io::Error::other("the mail program took too long"));
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

fn smtp(server: &str, from: &str, to: &str, text: &str) -> io::Result<()> {
    let address = server.to_socket_addrs()?.next();
    let address = address.ok_or_else(|| io::Error::other("the mail server has no address"))?;
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    let mut expect = |code: &str| -> io::Result<()> {
        loop {
            let mut line = String::new();
            if io::Read::take(&mut lines, 4096).read_line(&mut line)? == 0
                || !line.starts_with(code)
            {
                return Err(io::Error::other(format!("the mail server said: {}", line.trim())));
            }
            // The last line of an answer has no hyphen after its code.
            if line.as_bytes().get(3) != Some(&b'-') {
                return Ok(());
            }
        }
    };
    expect("220")?;
    // A dot at the start of a line would end the message.
    let body = text.replace("\r\n.", "\r\n..");
    let says = [
        (format!("HELO {}\r\n", crate::tls::host_name()), "250"),
        (format!("MAIL FROM:<{from}>\r\n"), "250"),
        (format!("RCPT TO:<{to}>\r\n"), "250"),
        ("DATA\r\n".to_owned(), "354"),
        (format!("{body}\r\n.\r\n"), "250"),
    ];
    for (say, code) in says {
        stream.write_all(say.as_bytes())?;
        expect(code)?;
    }
    stream.write_all(b"QUIT\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_hold_nothing_that_leaves_them() {
        for good in ["ann", "ann@example.org", "a.b+c@x-y.example"] {
            assert!(is_address(good), "{good}");
        }
        for bad in ["", "-t", "a b", "a@b\r\nBcc: c", "a@", "@b", "a@b@c", "ann@exa mple", "a,b"] {
            assert!(!is_address(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_message_is_one_message() {
        let job = StoredJob { id: 7, user: "ann".to_owned(), ..StoredJob::default() };
        let mut change: JobChange = serde_json::from_value(serde_json::json!({
            "seq": 1, "time": "now", "id": 7, "state": "failed", "devices": [], "exit_code": 3,
        }))
        .unwrap();
        change.reason = Some("bad\r\n.\r\nMAIL FROM".to_owned());
        let text = message(&job, &change, "ann");
        assert!(text.contains("exit code 3") && text.contains("bad??.??MAIL"), "{text}");
        assert_eq!(text.matches("\r\n\r\n").count(), 1, "{text}");
    }
}
