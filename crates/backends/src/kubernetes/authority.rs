//! Repairs the `:authority` header of the kubelet's gRPC requests. The kubelet sends the percent-encoded path of the
//! socket, which is not a valid authority, and h2 refuses the request with PROTOCOL_ERROR. The agent does not need the
//! authority, so its bytes are overwritten by letters.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

/// Length of the connection preface, which precedes the first frame (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// Length of a frame's header.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// Index of `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;

/// A connection from the kubelet, with the header repaired.
pub(super) struct KubeletStream {
    stream: UnixStream,
    rewriter: Rewriter,
    ready: Vec<u8>,
}

impl KubeletStream {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, rewriter: Rewriter::default(), ready: Vec::new() }
    }
}

/// Collects bytes into frames and repairs those with headers.
#[derive(Default)]
struct Rewriter {
    pending: Vec<u8>,
    has_preface: bool,
}

impl Rewriter {
    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.pending.extend_from_slice(bytes);
        if !self.has_preface {
            if self.pending.len() < PREFACE {
                return;
            }
            out.extend(self.pending.drain(..PREFACE));
            self.has_preface = true;
        }
        while let [high, middle, low, kind, flags, ..] = self.pending[..] {
            let end = HEAD + u32::from_be_bytes([0, high, middle, low]) as usize;
            if self.pending.len() < end {
                return;
            }
            let mut frame: Vec<u8> = self.pending.drain(..end).collect();
            if kind == HEADERS {
                let skipped =
                    usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
                if let Some(block) = frame.get_mut(HEAD + skipped..) {
                    replace_authority(block);
                }
            }
            out.append(&mut frame);
        }
    }
}

/// Overwrites every literal authority in a header block. A malformed block is left as it is; h2 refuses it.
fn replace_authority(block: &mut [u8]) -> Option<()> {
    let mut at = 0;
    while let Some(&first) = block.get(at) {
        // Indexed field, literal with indexing, new table size, literal without indexing (RFC 7541, 6).
        let (prefix, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let name = integer(block, &mut at, prefix)?;
        if !is_literal {
            continue;
        }
        if name == 0 {
            string(block, &mut at)?;
        }
        let length_at = at;
        let value = string(block, &mut at)?;
        if name == AUTHORITY {
            // The top bit of the length marks a Huffman-coded string; the letters are not.
            block[length_at] &= 0x7f;
            block[value].fill(b'a');
        }
    }
    Some(())
}

fn integer(block: &[u8], at: &mut usize, prefix: u32) -> Option<usize> {
    let mask = (1 << prefix) - 1;
    let mut value = usize::from(*block.get(*at)?) & mask;
    *at += 1;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let byte = *block.get(*at)?;
        *at += 1;
        value += usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn string(block: &[u8], at: &mut usize) -> Option<Range<usize>> {
    let length = integer(block, at, 7)?;
    let range = *at..at.checked_add(length)?;
    *at = range.end;
    (range.end <= block.len()).then_some(range)
}

impl Connected for KubeletStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for KubeletStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            let mut bytes = [0; 4096];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewriter.push(buffer.filled(), &mut this.ready);
        }
        let count = this.ready.len().min(out.remaining());
        out.put_slice(&this.ready[..count]);
        this.ready.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for KubeletStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_authority_is_replaced_however_the_bytes_arrive() {
        // :method POST by index, :path literal, :authority literal, a literal name.
        let block = |authority: &[u8]| {
            [&[0x83, 0x44, 2, b'/', b'x', 0x41][..], authority, &[0x40, 1, b'k', 1, b'v']].concat()
        };
        let frame = |block: &[u8]| {
            [&[0, 0, u8::try_from(block.len()).unwrap(), HEADERS, 4, 0, 0, 0, 1][..], block]
                .concat()
        };
        let data = [0, 0, 2, 0, 0, 0, 0, 0, 1, 0x41, 0x83];
        let stream =
            |authority: &[u8]| [&[b'P'; PREFACE][..], &frame(&block(authority)), &data].concat();
        let (sent, expected) = (stream(&[0x83, 1, 2, 3]), stream(&[3, b'a', b'a', b'a']));
        for size in [1, 7, sent.len()] {
            let (mut rewriter, mut out) = (Rewriter::default(), Vec::new());
            sent.chunks(size).for_each(|bytes| rewriter.push(bytes, &mut out));
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn a_block_that_is_cut_off_stays_as_it_is() {
        let mut block = [0x41, 9, 1];
        assert_eq!(replace_authority(&mut block), None);
        assert_eq!(block, [0x41, 9, 1]);
    }
}
