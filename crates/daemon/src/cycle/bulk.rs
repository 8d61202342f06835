//! Changes of many jobs. Each turn applies a portion, so that everybody else is served in between.

use super::message::Reply;
use super::{AcceptedCommand, Cycle};
use crate::command::{Accepted, AdmissionControl, Admitted, CommandOutcome, Refusal, UserCommand};
use crate::request::Selector;
use crate::scheduler::{Input, JobAction, Phase};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

/// Changes of at most this many jobs are applied at once.
const AT_ONCE_MAX: usize = 256;
/// Jobs that one turn changes for all bulk changes together.
const PORTION_MAX: usize = 2048;

/// A change of many jobs that is under way.
pub(super) struct BulkChange {
    uid: u32,
    action: JobAction,
    by: String,
    left: VecDeque<u64>,
    /// What was done so far.
    outcome: CommandOutcome,
    reply: Reply,
}

impl Cycle {
    /// Whether a command has to wait for a bulk change of the same user, or until all jobs that it means are there.
    pub(super) fn must_wait(&self, uid: u32, command: &UserCommand) -> Option<Refusal> {
        let is_change = matches!(command, UserCommand::ChangeMany(..));
        let means_new = |one: &Selector| matches!(one, Selector::All | Selector::Last);
        let more = self.scheduler.still_to_be_added(uid);
        if let UserCommand::ChangeMany(_, selectors) = command
            && more > 0
            && selectors.iter().any(means_new)
        {
            return Some(Refusal::Limit(format!(
                "a submission of yours with {more} more jobs is under way; wait until it is done"
            )));
        }
        let present = self.bulk.iter().find(|bulk| is_change && bulk.uid == uid)?;
        Some(Refusal::Limit(format!(
            "a change of yours with {} more jobs is under way; wait until it is done",
            present.left.len()
        )))
    }

    /// Puts a change of many jobs aside; gives a smaller one back.
    pub(super) fn put_aside(
        &mut self,
        uid: u32,
        accepted: Accepted,
        reply: Reply,
    ) -> Option<AcceptedCommand> {
        match accepted {
            Accepted { input: Input::Change { action, mut jobs, by }, mut outcome, .. }
                if jobs.len() > AT_ONCE_MAX =>
            {
                outcome.done.clear();
                if matches!(action, JobAction::Cancel | JobAction::Hold) {
                    // From the end of the queue: no job moves up, or starts, only to be changed in a later turn.
                    let runs =
                        |job| self.scheduler.job(job).map(|active| active.phase != Phase::Absent);
                    jobs.sort_by_key(|&job| (runs(job), Reverse(job)));
                }
                let left = jobs.into();
                self.bulk.push_back(BulkChange { uid, action, by, left, outcome, reply });
                None
            }
            accepted => Some((accepted, Some(reply))),
        }
    }

    /// The next portions of the changes that are under way, in turn. The reply goes with the last one.
    pub(super) fn next_portions(&mut self) -> Vec<AcceptedCommand> {
        let mut room = PORTION_MAX;
        let mut portions = Vec::new();
        for _ in 0..self.bulk.len() {
            if room == 0 {
                break;
            }
            let Some(mut bulk) = self.bulk.pop_front() else { break };
            let portion: Vec<u64> = bulk.left.drain(..bulk.left.len().min(room)).collect();
            room -= portion.len();
            let jobs = self.still_possible(&mut bulk, portion);
            let input = Input::Change { action: bulk.action, jobs, by: bulk.by.clone() };
            let (outcome, reply) = if bulk.left.is_empty() {
                bulk.outcome.done.sort_unstable();
                (bulk.outcome, Some(bulk.reply))
            } else {
                self.bulk.push_back(bulk);
                (CommandOutcome::default(), None)
            };
            portions.push((Accepted { input, env: BTreeMap::new(), outcome }, reply));
        }
        portions
    }

    /// The jobs of a portion to which the change still applies: some may have ended or started in earlier turns.
    fn still_possible(&self, bulk: &mut BulkChange, portion: Vec<u64>) -> Vec<u64> {
        let admitted = Admitted::new();
        let admission = AdmissionControl {
            scheduler: &self.scheduler,
            next_job: self.scheduler.next_job(),
            daemon_uid: self.uid,
            limits: &self.limits,
            admitted: &admitted,
        };
        let is_possible = |job: &u64| admission.still_applies(bulk.action, *job);
        let jobs: Vec<u64> = portion.into_iter().filter(is_possible).collect();
        bulk.outcome.done.extend(&jobs);
        jobs
    }

    /// Refuses what is left of all bulk changes.
    pub(super) fn refuse_bulk_changes(&mut self) {
        for bulk in std::mem::take(&mut self.bulk) {
            let _ = bulk.reply.send(Err(self.refusal()));
        }
    }
}
