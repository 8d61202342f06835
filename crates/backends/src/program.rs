//! Runs other programs with a time limit.

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The result of a program.
pub(crate) struct ProgramOutput {
    pub(crate) succeeded: bool,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl ProgramOutput {
    /// The non-empty lines of standard error.
    pub(crate) fn error_lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.stderr);
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    }
}

/// Runs a program with this input; `None` if it exceeded the time limit and was killed.
///
/// Input and output are files in memory. A pipe would stay open as long as a daemon that the program starts
/// in the background keeps its descriptors.
pub(crate) fn run_program(
    command: &mut Command,
    input: &str,
    timeout: Duration,
) -> io::Result<Option<ProgramOutput>> {
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
        if begin.elapsed() >= timeout {
            // The child was not reaped yet, so its pid cannot belong to another process.
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let (stdout, stderr) = (read_all(stdout)?, read_all(stderr)?);
    Ok(Some(ProgramOutput { succeeded: status.success(), stdout, stderr }))
}

fn memory_file() -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create("tandem-call", MemfdFlags::CLOEXEC)?))
}

fn read_all(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}
