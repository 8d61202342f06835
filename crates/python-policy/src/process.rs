//! The Python process of a policy.

use crate::{PythonPolicyError, Source};
use serde_json::Value;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The longest line that the process may send.
const LINE_MAX_BYTES: u64 = 1 << 20;

/// A process with the class of a [`Source`].
pub(crate) struct PythonProcess {
    child: Child,
    input: BufWriter<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl PythonProcess {
    /// Starts it and waits until it has made an instance.
    pub(crate) fn start(source: &Source, python: &Path) -> Result<Self, PythonPolicyError> {
        let unable = |cause: std::io::Error| PythonPolicyError::NoPython {
            python: python.display().to_string(),
            cause: cause.to_string(),
        };
        let mut child = Command::new(python)
            .args(["-m", "tandem.policy"])
            .arg(&source.file)
            .args([&source.class, &source.params])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(unable)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(PythonPolicyError::Failed("the process has no pipes".to_owned()));
        };
        let (input, output) = (BufWriter::new(input), BufReader::new(output));
        let mut process = Self { child, input, output };
        match process.receive()?.as_array().map(Vec::as_slice) {
            Some([Value::String(verb)]) if verb == "ready" => Ok(process),
            Some([Value::String(verb), Value::String(problem)]) if verb == "error" => {
                Err(PythonPolicyError::Failed(problem.clone()))
            }
            _ => Err(PythonPolicyError::Failed(
                "the process did not say that it is ready; does its module tandem have another version?".to_owned(),
            )),
        }
    }

    pub(crate) fn send(&mut self, message: &Value) -> Result<(), PythonPolicyError> {
        let written = serde_json::to_writer(&mut self.input, message)
            .map_err(std::io::Error::from)
            .and_then(|()| self.input.write_all(b"\n"))
            .and_then(|()| self.input.flush());
        written.map_err(|_| self.gone())
    }

    pub(crate) fn receive(&mut self) -> Result<Value, PythonPolicyError> {
        let mut line = Vec::new();
        let mut limited = std::io::Read::take(&mut self.output, LINE_MAX_BYTES);
        let read = limited.read_until(b'\n', &mut line);
        if read.is_err() || line.last() != Some(&b'\n') {
            return Err(self.gone());
        }
        serde_json::from_slice(&line).map_err(|_| {
            PythonPolicyError::Failed("the process sent a line that is no JSON".to_owned())
        })
    }

    /// The error of a process that ended or sent no complete line.
    fn gone(&mut self) -> PythonPolicyError {
        let _ = self.child.kill();
        let how = self.child.wait().map(|status| status.to_string()).unwrap_or_default();
        PythonPolicyError::Failed(format!(
            "the Python process of the policy ended ({how}); it needs the module tandem: pip install tandem-gpu, \
             or PYTHONPATH=python/src in a checkout"
        ))
    }
}

impl Drop for PythonProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
