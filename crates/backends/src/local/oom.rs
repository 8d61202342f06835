//! Whether the error output of a run says that it ran out of memory.

use super::run_as::as_user;
use crate::op::{Launch, Owner};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// What programs print when an allocation fails. Both parts must occur on one line, in this order.
const MESSAGES: &[(&str, &str)] = &[
    ("CUDA out of memory", ""),
    ("CUDA_ERROR_OUT_OF_MEMORY", ""),
    ("CUBLAS_STATUS_ALLOC_FAILED", ""),
    ("RESOURCE_EXHAUSTED: Out of memory", ""),
    ("torch.cuda.OutOfMemoryError", ""),
    ("torch.OutOfMemoryError", ""),
    ("std::bad_alloc", ""),
    ("MemoryError", ""),
    ("memory allocation of ", " bytes failed"),
];

/// How much of the end of a file is read.
const TAIL: u64 = 64 << 10;

/// The file of the error output of a run, and its length before the run.
pub(super) struct ErrorOutput {
    path: PathBuf,
    from: u64,
    owner: Option<Owner>,
}

impl ErrorOutput {
    /// To be called before the run starts.
    pub(super) fn of(launch: &Launch) -> Self {
        let path = launch.dir.join(launch.stderr.as_ref().unwrap_or(&launch.stdout));
        let owner = launch.owner;
        let from =
            if launch.append { open(&path, owner).map_or(0, |(_, length)| length) } else { 0 };
        ErrorOutput { path, from, owner }
    }

    /// Whether the end of the output says that the run ran out of memory.
    pub(super) fn shows_oom(&self) -> bool {
        let Some((mut file, length)) = open(&self.path, self.owner) else {
            return false;
        };
        // A file that is shorter than before was replaced.
        let from = if self.from > length { 0 } else { self.from };
        let from = from.max(length.saturating_sub(TAIL));
        let mut bytes = Vec::new();
        if file.seek(SeekFrom::Start(from)).is_err()
            || file.take(TAIL).read_to_end(&mut bytes).is_err()
        {
            return false;
        }
        has_oom_message(&String::from_utf8_lossy(&bytes))
    }
}

/// Whether a text has one of the messages.
fn has_oom_message(text: &str) -> bool {
    text.lines().any(|line| {
        MESSAGES.iter().any(|(first, second)| {
            line.split_once(first).is_some_and(|(_, rest)| rest.contains(second))
        })
    })
}

/// Opens a regular file as its user. Other kinds of files could block the reader.
fn open(path: &Path, owner: Option<Owner>) -> Option<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = as_user(owner, || rustix::fs::open(path, flags, Mode::empty()).ok());
    let file = File::from(opened.ok()??);
    let data = file.metadata().ok()?;
    data.is_file().then_some((file, data.len()))
}

#[cfg(test)]
mod tests {
    use super::has_oom_message;

    #[test]
    fn messages_are_recognised() {
        assert!(has_oom_message("x\nRuntimeError: CUDA out of memory. Tried to allocate 2 GiB\ny"));
        assert!(has_oom_message("memory allocation of 17 bytes failed"));
        assert!(!has_oom_message("memory allocation of 17 bytes succeeded\n 3 bytes failed"));
        assert!(!has_oom_message("all is well"));
    }
}
