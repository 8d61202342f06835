//! A connection that costs as little as possible, since it shares the machine with what is measured.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Timeout of an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// One connection, kept for all requests.
pub(super) struct HttpConnection {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl HttpConnection {
    pub(super) fn open(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Sends a request and reads the whole answer; any status but success is an error.
    pub(super) fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> io::Result<&[u8]> {
        let length = body.len();
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nhost: tandem\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        )
        .into_bytes();
        request.extend_from_slice(body);
        self.stream.write_all(&request)?;
        self.read()
    }

    fn read(&mut self) -> io::Result<&[u8]> {
        self.buffer.clear();
        let head = loop {
            if let Some(at) = find(&self.buffer, b"\r\n\r\n") {
                break at + 4;
            }
            self.fill()?;
        };
        let text = String::from_utf8_lossy(&self.buffer[..head]).to_ascii_lowercase();
        let is_fine = text.starts_with("http/1.1 2");
        let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
        while self.buffer.len() < head + length {
            self.fill()?;
        }
        let body = &self.buffer[head..head + length];
        if is_fine { Ok(body) } else { Err(io::Error::other(String::from_utf8_lossy(body))) }
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut piece = [0_u8; 65_536];
        match self.stream.read(&mut piece)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.buffer.extend_from_slice(&piece[..read]);
                Ok(())
            }
        }
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}
