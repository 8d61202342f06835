//! Which of the waiting jobs Tandem may place now. Slurm's priority comes first: a job may start before others only
//! if their priority is not much higher. While GPUs are idle because jobs with a higher priority cannot use them,
//! the others may.

use super::Reconciler;
use super::admission::plain_request;
use super::constraints::{Room, blocked};
use super::{ListedJob, Reconciled};
use crate::event::BackendEvent;
use crate::slurm::commands::SlurmRequest;
use crate::slurm::licence;
use std::collections::BTreeMap;

/// GPUs that are idle for this long are open to all jobs.
const IDLE_S: u64 = 3;

/// A job that finds no node for this long is left to Slurm, which can keep one free for it.
const LACKS_NODE_S: u64 = 300;

const OUTRANKED: &str = "jobs with a higher priority in Slurm wait before it";

impl Reconciler {
    /// Reports pending jobs that may be placed now, and those that may not any more.
    pub(super) fn report_waits(
        &mut self,
        listed: &BTreeMap<String, ListedJob<'_>>,
        room: &Room,
        now_s: u64,
        result: &mut Reconciled,
    ) {
        let keys = self.jobs.jobs.iter();
        let pending = keys.filter(|(_, job)| job.run.is_none() && !job.is_done);
        let pending = pending.filter_map(|(key, _)| Some((key.clone(), listed.get(key)?)));
        let pending = pending.filter(|(_, listed)| licence::is_gated(&listed.record.licenses));
        let mut reasons: Vec<(String, u64, Option<String>)> = pending
            .map(|(key, listed)| {
                let reason = self.reason(&key, listed, room, now_s);
                (key, listed.record.priority, reason)
            })
            .collect();
        let least = self.least_priority(&reasons, room, now_s);
        for (_, priority, reason) in &mut reasons {
            if reason.is_none() && *priority < least {
                *reason = Some(OUTRANKED.to_owned());
            }
        }
        for (key, _, reason) in reasons {
            let lacks_node = self.lacks_node(&listed[&key], room).is_some();
            let attempts = self.attempts.entry(key.clone()).or_default();
            let since_s = *attempts.lacks_node_s.get_or_insert(now_s);
            attempts.lacks_node_s = lacks_node.then_some(since_s);
            if lacks_node && now_s >= since_s + LACKS_NODE_S {
                self.hand_over(&listed[&key], result);
                continue;
            }
            if attempts.told != reason {
                attempts.told.clone_from(&reason);
                result.events.push(BackendEvent::Waits { external: key, reason });
            }
        }
    }

    /// Leaves a job to Slurm, which can keep a node free for it.
    fn hand_over(&mut self, listed: &ListedJob<'_>, result: &mut Reconciled) {
        let Some(job) = self.jobs.jobs.get_mut(&listed.key) else { return };
        (job.is_done, job.is_refused) = (true, true);
        result.requests.push(SlurmRequest::Control(plain_request(listed)));
        let reason = "no node of its own became free; it goes on as a plain Slurm job".to_owned();
        let external = listed.key.clone();
        result.events.push(BackendEvent::Withdrawn { external, reason });
    }

    /// Why a job cannot be placed now, apart from its priority.
    fn reason(&self, key: &str, listed: &ListedJob<'_>, room: &Room, now_s: u64) -> Option<String> {
        let attempts = self.attempts.get(key);
        let delayed = attempts.filter(|attempts| now_s < attempts.retry_s);
        blocked(listed.record)
            .or_else(|| delayed?.told.clone())
            .or_else(|| self.lacks_node(listed, room))
    }

    /// The least priority of jobs that may be placed.
    fn least_priority(
        &mut self,
        jobs: &[(String, u64, Option<String>)],
        room: &Room,
        now_s: u64,
    ) -> u64 {
        let ready = jobs.iter().filter(|(_, _, reason)| reason.is_none());
        let Some(highest) = ready.map(|(_, priority, _)| *priority).max() else {
            self.idle_since_s = None;
            return 0;
        };
        let devices = (0..).take(self.gpus.len());
        let up = devices
            .filter(|&device: &u32| self.unavailable[self.gpus[device as usize].node].is_none());
        self.idle_since_s = match room.idle(up).is_empty() {
            true => None,
            false => self.idle_since_s.or(Some(now_s)),
        };
        if self.idle_since_s.is_some_and(|since_s| now_s >= since_s + IDLE_S) {
            return 0;
        }
        (highest as f64 * (1.0 - self.priority_window)) as u64
    }
}
