//! Reads the jobs that have not ended. A record that cannot be read is set aside: one bad record does not stop
//! the daemon.

use super::{Store, StoreError, int};
use crate::job::StoredJob;
use crate::request::JobRequest;
use crate::scheduler::{Kept, Submission, Unfinished};
use rusqlite::{OptionalExtension, params};
use std::sync::Arc;

/// How the cause begins if the request cannot be read.
const BAD_REQUEST: &str = "its request";

/// A job that was set aside because its record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The job.
    pub job: u64,
    /// What is wrong with its record.
    pub cause: String,
}

impl Store {
    /// Jobs that have not ended, by id, without their environments; and those that cannot be read. `correct` may
    /// change what is stored of a job.
    pub fn active(
        &self,
        correct: impl Fn(&mut StoredJob),
    ) -> Result<(Vec<Kept>, Vec<Damage>), StoreError> {
        let mut select = self
            .connection
            .prepare("SELECT id, record, request FROM jobs WHERE is_over = 0 ORDER BY id")?;
        let mut rows = select.query([])?;
        let (mut jobs, mut damaged): (Vec<Kept>, Vec<Damage>) = (Vec::new(), Vec::new());
        // Tasks of a submission are adjacent and share their request.
        let mut last: Option<(i64, Result<Arc<JobRequest>, String>)> = None;
        while let Some(row) = rows.next()? {
            let (id, request): (i64, i64) = (row.get(0)?, row.get(2)?);
            if last.as_ref().is_none_or(|(known, _)| *known != request) {
                last = Some((request, self.request_of(request)?));
            }
            let parsed = match (&last, row.get_ref(1)?.as_str()) {
                (Some((_, Ok(request))), Ok(record)) => parse(record, id, request),
                (Some((_, Err(cause))), _) => Err(cause.clone()),
                (_, Err(error)) => Err(format!("its record: {error}")),
                (None, _) => Err("its request is missing".to_owned()),
            };
            let corrected = parsed.map(|mut job| {
                correct(&mut job);
                job
            });
            match corrected {
                Ok(job) if jobs.last_mut().is_some_and(|kept| kept.take_in(&job)) => {}
                Ok(job) => jobs.push(Kept::new(job)),
                Err(cause) => damaged.push(Damage { job: id.cast_unsigned(), cause }),
            }
        }
        Ok((jobs, damaged))
    }

    /// A request, or what is wrong with it.
    fn request_of(&self, id: i64) -> Result<Result<Arc<JobRequest>, String>, StoreError> {
        let mut select =
            self.connection.prepare_cached("SELECT body, bytes FROM requests WHERE id = ?1")?;
        let row = select
            .query_row([id], |row| Ok((row.get_ref(0)?.as_str().map(str::to_owned), row.get(1)?)))
            .optional()?;
        let Some((body, bytes)) = row else {
            return Ok(Err("its request is missing".to_owned()));
        };
        let bytes: i64 = bytes;
        let request = body.map_err(|error| format!("{BAD_REQUEST}: {error}")).and_then(|body| {
            let parsed: Result<JobRequest, _> = serde_json::from_str(&body);
            parsed.map_err(|error| format!("{BAD_REQUEST}: {error}"))
        });
        let stored_bytes = u64::try_from(bytes).unwrap_or(0);
        Ok(request.map(|request| Arc::new(JobRequest { stored_bytes, ..request })))
    }

    /// Submissions of which jobs are still to be added.
    pub(crate) fn unfinished(&self) -> Result<Vec<Unfinished>, StoreError> {
        let mut select = self.connection.prepare(
            "SELECT first, body, (SELECT max(id) FROM jobs WHERE request = first)
             FROM unfinished ORDER BY first",
        )?;
        let mut rows = select.query([])?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            let (first, last): (i64, Option<i64>) = (row.get(0)?, row.get(2)?);
            let parsed = row.get_ref(1)?.as_str().map_err(|error| error.to_string());
            let parsed = parsed.and_then(|text| {
                serde_json::from_str::<Submission>(text).map_err(|error| error.to_string())
            });
            let submission = match (parsed, self.request_of(first)?) {
                (Ok(submission), Ok(request)) => {
                    Submission { request: Arc::unwrap_or_clone(request), ..submission }
                }
                (Err(cause), _) | (_, Err(cause)) => {
                    tracing::error!("the other jobs of submission {first} are not added: {cause}");
                    continue;
                }
            };
            let added = last.map_or(0, |last| usize::try_from(last - first + 1).unwrap_or(0));
            all.push(Unfinished { submission, added });
        }
        Ok(all)
    }

    /// Sets jobs aside whose records cannot be read. They are over as far as the daemon is concerned;
    /// `tandem store check` shows them.
    pub fn quarantine(&mut self, damaged: &[Damage], unix_us: u64) -> Result<(), StoreError> {
        if damaged.is_empty() {
            return Ok(());
        }
        self.write(|writing| {
            for Damage { job, cause } in damaged {
                let id = int(*job);
                writing.transaction.execute(
                    "INSERT OR REPLACE INTO quarantine
                     SELECT id, uid, user, state, record, ?2, ?3 FROM jobs WHERE id = ?1",
                    params![id, cause, int(unix_us)],
                )?;
                let placeholder = serde_json::json!({
                    "id": job,
                    "state": "unknown",
                    "reason": "its record is damaged; see tandem store check",
                    "end_us": unix_us,
                });
                writing.transaction.execute(
                    "UPDATE jobs SET state = 'unknown', is_over = 1, end_us = ?2,
                     record = json_set(?3, '$.uid', uid, '$.user', user) WHERE id = ?1",
                    params![id, int(unix_us), placeholder.to_string()],
                )?;
                if cause.starts_with(BAD_REQUEST) {
                    // Replaced; the jobs that share it are set aside with it.
                    writing.transaction.execute(
                        "INSERT OR IGNORE INTO quarantined_requests
                         SELECT id, body FROM requests
                         WHERE id = (SELECT request FROM jobs WHERE id = ?1)",
                        [id],
                    )?;
                    writing.transaction.execute(
                        "UPDATE requests SET body = '{}'
                         WHERE id = (SELECT request FROM jobs WHERE id = ?1)",
                        [id],
                    )?;
                }
            }
            Ok(())
        })
    }

    /// Jobs that were set aside.
    pub fn quarantined(&self) -> Result<Vec<Damage>, StoreError> {
        let mut select = self.connection.prepare("SELECT id, cause FROM quarantine ORDER BY id")?;
        let damage = |row: &rusqlite::Row<'_>| {
            let id: i64 = row.get(0)?;
            Ok(Damage { job: id.cast_unsigned(), cause: row.get(1)? })
        };
        Ok(select.query_map([], damage)?.collect::<Result<_, _>>()?)
    }
}

fn parse(record: &str, id: i64, request: &Arc<JobRequest>) -> Result<StoredJob, String> {
    let job: StoredJob =
        serde_json::from_str(record).map_err(|error| format!("its record: {error}"))?;
    if int(job.id) != id {
        return Err(format!("its record: is that of job {}", job.id));
    }
    if job.state.is_over() {
        return Err(format!("its record: says that it is {}", job.state.name()));
    }
    Ok(StoredJob { request: request.clone(), ..job })
}
