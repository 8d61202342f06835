//! What is asked of the processes of jobs: operations for the back end and messages for the jobs.

use super::{StepOutcome, ToJob};
use std::collections::BTreeSet;
use tandem_backends::{Op, OpId, RunId};

/// Requests of this step, and the jobs whose processes are still to be reconciled.
pub(super) struct Processes {
    next_op: u64,
    ops: Vec<(OpId, Op)>,
    messages: Vec<(u64, ToJob)>,
    forgotten: Vec<RunId>,
    /// Jobs to reconcile.
    unreconciled: BTreeSet<u64>,
    /// Jobs that stopped using their devices in this step.
    left: Vec<u64>,
}

impl Processes {
    pub(super) fn new(next_op: u64) -> Self {
        Self {
            next_op,
            ops: Vec::new(),
            messages: Vec::new(),
            forgotten: Vec::new(),
            unreconciled: BTreeSet::new(),
            left: Vec::new(),
        }
    }

    /// Requests an operation.
    pub(super) fn request(&mut self, op: Op) {
        self.ops.push((OpId(self.next_op), op));
        self.next_op += 1;
    }

    pub(super) fn send(&mut self, job: u64, message: ToJob) {
        self.messages.push((job, message));
    }

    /// The records of a run are not needed any more.
    pub(super) fn forget(&mut self, run: RunId) {
        self.forgotten.push(run);
    }

    /// The process of a job may not be as the engine wants it.
    pub(super) fn mark(&mut self, job: u64) {
        self.unreconciled.insert(job);
    }

    pub(super) fn unmark(&mut self, job: u64) {
        self.unreconciled.remove(&job);
    }

    pub(super) fn next_marked(&mut self) -> Option<u64> {
        self.unreconciled.pop_first()
    }

    /// The process of a job does not use its devices any more.
    pub(super) fn mark_left(&mut self, job: u64) {
        self.left.push(job);
    }

    pub(super) fn take_left(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.left)
    }

    /// Moves the requests of this step to its outcome.
    pub(super) fn drain_into(&mut self, outcome: &mut StepOutcome) {
        outcome.ops = std::mem::take(&mut self.ops);
        outcome.messages = std::mem::take(&mut self.messages);
        outcome.forget = std::mem::take(&mut self.forgotten);
    }
}
