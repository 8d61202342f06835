//! Progress in the output of a job that was not written for Tandem: progress bars and lines such as
//! `step 120/300` are recognised without a pattern. Pure: text in, steps out.

mod line;
mod text;
mod tracker;

pub(crate) use tracker::ProgressTracker;

/// How far a job is by its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Printed {
    /// Steps so far.
    pub(crate) steps: u64,
    /// Steps in all, if the output tells.
    pub(crate) total: Option<u64>,
}

#[cfg(test)]
mod tests;
