//! Writes within one transaction.

use super::{STARTS_KEPT, StoreError, int};
use crate::job::StoredJob;
use crate::request::JobRequest;
use crate::scheduler::{Input, KeptRow, LearnedClass, Now, Start, Submission};
use crate::tokens::{Token, TokenHash};
use rusqlite::{Transaction, params};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use tandem_core::Action;

/// The most records of a start in the journal; a larger start is not journalled.
const START_ROWS_MAX: usize = 100_000;
/// Bytes of a job in the store beside its request.
const JOB_BYTES: u64 = 300;

/// One transaction of the writer.
pub struct StoreTransaction<'a> {
    pub(super) transaction: &'a Transaction<'a>,
    /// Inputs and actions are journalled.
    pub(super) journals: bool,
    /// Side effects that count once the transaction is committed.
    pub(super) effects: RefCell<Effects>,
}

/// Side effects of a transaction.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// Bytes journalled.
    pub(super) journalled: u64,
    /// The start was too large to be journalled.
    pub(super) unjournalled: bool,
    /// Growth of users' ended requests, in bytes.
    pub(super) history: Vec<(u32, i64)>,
}

impl StoreTransaction<'_> {
    /// Sets a value by its key.
    pub fn meta(&self, key: &str, value: &str) -> Result<(), StoreError> {
        let mut insert =
            self.transaction.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?;
        insert.execute([key, value])?;
        Ok(())
    }

    /// Journals a start of the daemon and deletes the journal of all but the last starts. Each request and each
    /// job has a record of its own; tasks of an array that are alike share one.
    pub fn start(&self, start: &Start) -> Result<(), StoreError> {
        let is_large = start.jobs.len() > START_ROWS_MAX;
        self.effects.borrow_mut().unjournalled = is_large;
        if is_large {
            // Nothing before it could be continued.
            self.transaction.execute("DELETE FROM journal", [])?;
            return self.record(start.now, "cut", &start.now);
        }
        self.record(start.now, "start", &start.without_jobs())?;
        let mut last: Option<&Arc<JobRequest>> = None;
        for kept in &start.jobs {
            if !last.is_some_and(|last| Arc::ptr_eq(last, &kept.request)) {
                self.record(start.now, "request", kept.request.as_ref())?;
                last = Some(&kept.request);
            }
            let (job, found) = (kept.job.clone(), kept.found.clone());
            self.record(start.now, "job", &KeptRow { job, found, alike: kept.alike })?;
        }
        self.transaction.execute(
            "DELETE FROM journal WHERE seq < (SELECT seq FROM journal WHERE kind = 'start'
             ORDER BY seq DESC LIMIT 1 OFFSET ?1)",
            [STARTS_KEPT - 1],
        )?;
        Ok(())
    }

    /// Journals the inputs of a cycle.
    pub fn inputs(&self, now: Now, inputs: &[Input]) -> Result<(), StoreError> {
        if !self.journals {
            return Ok(());
        }
        inputs.iter().try_for_each(|input| self.record(now, "input", input))
    }

    /// Journals the actions of a cycle.
    pub fn actions(&self, now: Now, actions: &[Action]) -> Result<(), StoreError> {
        if !self.journals {
            // The next daemon continues this clock.
            return self.meta("now", &serde_json::to_string(&now)?);
        }
        self.record(now, "actions", &crate::journal::action_texts(actions))
    }

    fn record(&self, now: Now, kind: &str, body: &impl Serialize) -> Result<(), StoreError> {
        let mut insert = self.transaction.prepare_cached(
            "INSERT INTO journal (at_us, unix_us, kind, body) VALUES (?1, ?2, ?3, ?4)",
        )?;
        let body = serde_json::to_string(body)?;
        self.effects.borrow_mut().journalled += body.len() as u64;
        insert.execute(params![int(now.at_us), int(now.unix_us), kind, body])?;
        Ok(())
    }

    /// Adds a request and its environment; its id is the id of its first job.
    pub fn request(
        &self,
        first: u64,
        uid: u32,
        request: &JobRequest,
        env: &BTreeMap<String, String>,
    ) -> Result<(), StoreError> {
        // One of a submission that was refused because the store could not be written may be there.
        let mut insert = self.transaction.prepare_cached(
            "INSERT OR REPLACE INTO requests (id, body, env, uid, bytes, is_over)
             VALUES (?1, ?2, ?3, ?4, ?5, 0)",
        )?;
        let (body, env) = (serde_json::to_string(request)?, serde_json::to_string(env)?);
        let bytes = stored_bytes(request, body.len() + env.len());
        insert.execute(params![int(first), body, env, uid, int(bytes)])?;
        Ok(())
    }

    /// Keeps a submission until all of its jobs have been added; its request is kept already.
    pub fn unfinished(&self, submission: &Submission, now: Now) -> Result<(), StoreError> {
        let row = Submission {
            request: JobRequest::default(),
            submit_unix_us: submission.submit_unix_us.or(Some(now.unix_us)),
            ..submission.clone()
        };
        let mut insert =
            self.transaction.prepare_cached("INSERT OR REPLACE INTO unfinished VALUES (?1, ?2)")?;
        insert.execute(params![int(row.first), serde_json::to_string(&row)?])?;
        Ok(())
    }

    /// All jobs of a submission have been added.
    pub fn finished(&self, first: u64) -> Result<(), StoreError> {
        let mut delete =
            self.transaction.prepare_cached("DELETE FROM unfinished WHERE first = ?1")?;
        delete.execute([int(first)])?;
        Ok(())
    }

    /// All jobs of a request have ended: none of them runs again, so nobody needs its environment.
    pub fn end_request(&self, id: u64) -> Result<(), StoreError> {
        let mut update = self.transaction.prepare_cached(
            "UPDATE requests SET env = '{}', is_over = 1, bytes = bytes - octet_length(env)
             WHERE id = ?1 AND is_over = 0 RETURNING uid, bytes",
        )?;
        let mut rows = update.query([int(id)])?;
        while let Some(row) = rows.next()? {
            self.effects.borrow_mut().history.push((row.get(0)?, row.get(1)?));
        }
        Ok(())
    }

    /// Adds a job.
    pub fn insert(&self, job: &StoredJob) -> Result<(), StoreError> {
        let mut insert = self
            .transaction
            .prepare_cached("INSERT INTO jobs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")?;
        insert.execute(params![
            int(job.id),
            int(job.request_id()),
            job.uid,
            job.user,
            job.state.name(),
            job.state.is_over(),
            job.end_us.map(int),
            0,
            0,
            serde_json::to_string(job)?,
        ])?;
        Ok(())
    }

    /// Updates a job.
    pub fn update(&self, job: &StoredJob) -> Result<(), StoreError> {
        let mut update = self.transaction.prepare_cached(
            "UPDATE jobs SET state = ?2, is_over = ?3, end_us = ?4, gpu_us = ?5,
             shared_gpu_us = ?6, record = ?7 WHERE id = ?1",
        )?;
        let gang = i64::from(job.request.gang());
        update.execute(params![
            int(job.id),
            job.state.name(),
            job.state.is_over(),
            job.end_us.map(int),
            int(job.ran_us).saturating_mul(gang),
            int(job.shared_us).saturating_mul(gang),
            serde_json::to_string(job)?,
        ])?;
        Ok(())
    }

    /// Adds a pending webhook.
    pub fn add_webhook(&self, job: u64) -> Result<(), StoreError> {
        self.transaction
            .prepare_cached("INSERT OR IGNORE INTO hooks VALUES (?1)")?
            .execute([int(job)])?;
        Ok(())
    }

    /// Removes a webhook that was called or given up.
    pub fn remove_webhook(&self, job: u64) -> Result<(), StoreError> {
        self.transaction.prepare_cached("DELETE FROM hooks WHERE job = ?1")?.execute([int(job)])?;
        Ok(())
    }

    /// Adds a token.
    pub fn add_token(&self, hash: &TokenHash, token: &Token) -> Result<(), StoreError> {
        let mut insert =
            self.transaction.prepare_cached("INSERT INTO tokens VALUES (?1, ?2, ?3)")?;
        insert.execute(params![int(token.id), hash, serde_json::to_string(token)?])?;
        Ok(())
    }

    /// Removes a token.
    pub fn remove_token(&self, id: u64) -> Result<(), StoreError> {
        self.transaction.prepare_cached("DELETE FROM tokens WHERE id = ?1")?.execute([int(id)])?;
        Ok(())
    }

    /// Saves a learned job class.
    pub fn class(&self, name: &str, class: &LearnedClass) -> Result<(), StoreError> {
        let mut insert =
            self.transaction.prepare_cached("INSERT OR REPLACE INTO classes VALUES (?1, ?2)")?;
        insert.execute([name, &serde_json::to_string(class)?])?;
        Ok(())
    }
}

/// What a request takes in the store or in memory with its jobs, given its own bytes.
pub(crate) fn stored_bytes(request: &JobRequest, bytes: usize) -> u64 {
    let tasks = request.tasks().map_or(1, |tasks| tasks.count());
    (bytes + request.list_bytes()) as u64 + JOB_BYTES * tasks as u64
}
