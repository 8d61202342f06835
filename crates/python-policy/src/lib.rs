//! Scheduling policies in Python, for research: `tandem sim --policy python:FILE.py:Class`.
//!
//! A class of the user's file runs in a Python process, one per partition. Whenever the engine wants a plan, the process
//! gets the state of the partition as a line of JSON and answers with operations, each of which is answered
//! at once: `["place", 3]` gives job 3 GPUs of its own if there are any. An operation that would make an
//! illegal plan is refused here, before the engine sees it, so that a mistake in the file is an exception
//! with a line number there and one line of error here.

mod operations;
mod process;
mod state;

use process::PythonProcess;
use state::Changes;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tandem_core::{Draft, Job, Policy};
use tandem_policies::{Entry, PolicySpec};
use thiserror::Error;

/// What a specification begins with.
pub const PREFIX: &str = "python:";

/// How a Python policy appears in the lists of policies: at most two jobs on a GPU.
const ENTRY: Entry = Entry {
    name: "python",
    summary: "a class in a file: python:FILE.py:Class[:key=value,...]",
    params: &[],
    tuning: &[],
    tenants_max: 2,
    build: |_| Box::new(Idle),
};

/// Why a Python policy cannot be used, or what it did wrong.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PythonPolicyError {
    /// The specification cannot be read.
    #[error(
        "'{0}' is no Python policy; give python:FILE.py:Class or python:FILE.py:Class:key=value,..."
    )]
    Malformed(String),
    /// The file is not there.
    #[error("{0}: there is no such file")]
    NoFile(String),
    /// The process cannot be started.
    #[error("{python} cannot be started: {cause}; set TANDEM_PYTHON to an interpreter")]
    NoPython {
        /// The interpreter.
        python: String,
        /// The cause.
        cause: String,
    },
    /// The class failed, or asked for something that is not possible.
    #[error("{0}")]
    Failed(String),
}

/// The first error of the processes of one policy.
#[derive(Clone, Debug, Default)]
pub struct FirstError(Arc<Mutex<Option<PythonPolicyError>>>);

impl FirstError {
    /// The error, if there was one.
    pub fn get(&self) -> Option<PythonPolicyError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, error: PythonPolicyError) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// A class in a file, with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    file: PathBuf,
    class: String,
    /// `key=value,...`
    params: String,
}

impl Source {
    fn parse(text: &str) -> Result<Self, PythonPolicyError> {
        let malformed = || PythonPolicyError::Malformed(text.to_owned());
        let rest = text.strip_prefix(PREFIX).ok_or_else(malformed)?;
        let (file, rest) = rest.split_once(".py:").ok_or_else(malformed)?;
        let (class, params) = rest.split_once(':').unwrap_or((rest, ""));
        let is_name = |name: &str| {
            name.chars().all(|c| c.is_alphanumeric() || c == '_')
                && name.chars().next().is_some_and(|c| !c.is_numeric())
        };
        let is_pair = |pair: &str| pair.split_once('=').is_some_and(|(key, _)| is_name(key));
        if file.is_empty()
            || !is_name(class)
            || !(params.is_empty() || params.split(',').all(is_pair))
        {
            return Err(malformed());
        }
        let file = PathBuf::from(format!("{file}.py"));
        if !file.is_file() {
            return Err(PythonPolicyError::NoFile(file.display().to_string()));
        }
        Ok(Self { file, class: class.to_owned(), params: params.to_owned() })
    }
}

/// Reads `python:FILE.py:Class[:key=value,...]` and makes an instance once, so that a mistake shows before
/// the run. Errors during the run are in the second value; the run itself then ends without a plan.
pub fn spec(text: &str, python: &Path) -> Result<(PolicySpec, FirstError), PythonPolicyError> {
    let source = Source::parse(text)?;
    PythonProcess::start(&source, python)?;
    let errors = FirstError::default();
    let (slot, python) = (errors.clone(), python.to_owned());
    let build = move || -> Box<dyn Policy> {
        let process = PythonProcess::start(&source, &python).map_err(|error| slot.set(error)).ok();
        Box::new(PythonPolicy { process, changes: Changes::default(), errors: slot.clone() })
    };
    Ok((PolicySpec::made_by(text, &ENTRY, build), errors))
}

/// Plans nothing.
struct Idle;

impl Policy for Idle {
    fn enqueue(&mut self, _: &Job) {}
    fn dequeue(&mut self, _: &Job) {}
    fn plan(&mut self, _: &mut Draft<'_>) {}
}

/// One instance of the class, for one partition.
struct PythonPolicy {
    /// Absent after an error: then nothing is planned any more.
    process: Option<PythonProcess>,
    changes: Changes,
    errors: FirstError,
}

impl Policy for PythonPolicy {
    fn enqueue(&mut self, job: &Job) {
        self.changes.enqueue(job.id());
    }

    fn dequeue(&mut self, job: &Job) {
        self.changes.dequeue(job.id());
    }

    fn plan(&mut self, draft: &mut Draft<'_>) {
        let Some(process) = &mut self.process else { return };
        let state = self.changes.take(draft);
        if let Err(error) = operations::exchange(process, &state, draft) {
            self.errors.set(error);
            self.process = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifications_name_a_file_a_class_and_parameters() {
        let here = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/policies/mistakes.py");
        let source = Source::parse(&format!("python:{here}:Fails:a=1,b=x")).expect("it is one");
        assert_eq!((source.class.as_str(), source.params.as_str()), ("Fails", "a=1,b=x"));
        for bad in
            ["python:", "python:a.py", "python:a.py:", "python:a.py:1a", "python:a.py:A:b", "sjf"]
        {
            let error = Source::parse(bad).expect_err(bad);
            assert!(matches!(error, PythonPolicyError::Malformed(_)), "{bad}: {error}");
        }
        let absent = Source::parse("python:/nowhere/a.py:A").expect_err("it is not there");
        assert_eq!(absent.to_string(), "/nowhere/a.py: there is no such file");
    }
}
