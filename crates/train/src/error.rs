//! What can go wrong with the sample job.

use crate::BAD_INPUT;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why training ended before its last step.
#[derive(Debug, Error)]
pub(crate) enum TrainError {
    /// A file could not be read or written.
    #[error("{}: {verb}: {cause}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What could not be done with it.
        verb: &'static str,
        /// Why.
        cause: io::Error,
    },
    /// The checkpoint is damaged or belongs to another job.
    #[error("{}: {why}; name another file with --checkpoint", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The memory of `--allocate` is not available.
    #[error("out of memory: {mib} MiB cannot be allocated; lower --allocate")]
    Memory {
        /// How much was asked for.
        mib: usize,
    },
    /// `--fail-at` was given.
    #[error("failed after step {step}, as --fail-at asks")]
    Asked {
        /// The last step.
        step: u64,
        /// The exit code to leave with.
        code: u8,
    },
    /// A line could not be printed.
    #[error("cannot write: {0}")]
    Output(io::Error),
    /// Arithmetic could not be done.
    #[error("training failed: {0}")]
    Tensor(#[from] candle_core::Error),
    /// The one thread of the job could not be started.
    #[error("the training thread cannot be started: {0}")]
    Thread(#[from] rayon::ThreadPoolBuildError),
}

impl TrainError {
    /// The exit code to leave with: 2 for bad input, 1 for other failures.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::File { .. } | Self::Checkpoint { .. } => BAD_INPUT,
            Self::Asked { code, .. } => *code,
            Self::Memory { .. } | Self::Output(_) | Self::Tensor(_) | Self::Thread(_) => 1,
        }
    }

    pub(crate) fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::File { path: path.to_owned(), verb: "cannot be read", cause }
    }

    pub(crate) fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::File { path: path.to_owned(), verb: "cannot be written", cause }
    }
}
