//! Other people's programs, asked with a limit on the time they take.

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What a program printed.
pub(crate) struct Answer {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Runs a program with this input; `None` if it took too long and was killed.
///
/// Input and output are files in memory: a daemon that the program leaves behind and that keeps its
/// descriptors cannot make anybody wait for the end of a pipe.
pub(crate) fn call(
    command: &mut Command,
    input: &str,
    within: Duration,
) -> io::Result<Option<Answer>> {
    let mut stdin = memory_file()?;
    stdin.write_all(input.as_bytes())?;
    stdin.rewind()?;
    let (stdout, stderr) = (memory_file()?, memory_file()?);
    let mut child = command
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout.try_clone()?))
        .stderr(Stdio::from(stderr.try_clone()?))
        .spawn()?;
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begin.elapsed() >= within {
            // It was not waited for yet, so that its number is still its own.
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    Ok(Some(Answer { status, stdout: all_of(stdout)?, stderr: all_of(stderr)? }))
}

fn memory_file() -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create("tandem-call", MemfdFlags::CLOEXEC)?))
}

fn all_of(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
