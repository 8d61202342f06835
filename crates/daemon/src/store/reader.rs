//! Reading while the writer writes.

use super::{StoreError, connect, int};
use crate::job::{Job, JobState};
use crate::request::JobRequest;
use rusqlite::{Connection, OptionalExtension, params};
use std::path::Path;
use std::sync::Arc;

/// A connection that only reads.
pub struct StoreReader {
    pub(super) connection: Connection,
}

/// Which jobs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// In one of these states; in any if empty.
    pub states: Vec<JobState>,
    /// Of this user.
    pub user: Option<String>,
    /// Beyond this number.
    pub after: Option<u64>,
    /// The latest first.
    pub descending: bool,
    /// So many.
    pub limit: u32,
}

/// What a user has used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserTotal {
    /// The user.
    pub user: String,
    /// Jobs.
    pub jobs: u64,
    /// Time on GPUs × GPUs.
    pub gpu_us: u64,
    /// The part of it in which a GPU was shared.
    pub shared_gpu_us: u64,
}

impl StoreReader {
    /// Opens a store that exists.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let connection = connect(file)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(Self { connection })
    }

    /// A page of jobs.
    pub fn page(&self, filter: &JobFilter) -> Result<Vec<Job>, StoreError> {
        let (beyond, order) = if filter.descending { ("<", "DESC") } else { (">", "ASC") };
        let mut clauses = Vec::new();
        if filter.user.is_some() {
            clauses.push("user = ?1".to_owned());
        }
        if filter.after.is_some() {
            clauses.push(format!("id {beyond} ?2"));
        }
        let first = |state: Option<JobState>| {
            // Names of states, never what a user wrote.
            let state = state.map(|state| format!("state = '{}'", state.name()));
            let clauses: Vec<&str> = state.iter().chain(&clauses).map(String::as_str).collect();
            let clause = if clauses.is_empty() { "1" } else { &clauses.join(" AND ") };
            let index = if state.is_some() { "INDEXED BY jobs_by_state" } else { "" };
            format!("SELECT id FROM jobs {index} WHERE {clause} ORDER BY id {order} LIMIT ?3")
        };
        // The first of every state, each from an index that has them in order: asked for all states at
        // once, SQLite would sort every job in one of them.
        let mut states = filter.states.clone();
        states.sort_unstable();
        states.dedup();
        let firsts: Vec<String> = match states.as_slice() {
            [] => vec![first(None)],
            states => states.iter().map(|&state| first(Some(state))).collect(),
        };
        let firsts: Vec<String> =
            firsts.iter().map(|one| format!("SELECT * FROM ({one})")).collect();
        let sql = format!(
            "SELECT record, body FROM jobs JOIN requests ON requests.id = jobs.request
             WHERE jobs.id IN ({}) ORDER BY jobs.id {order} LIMIT ?3",
            firsts.join(" UNION ALL ")
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let after = filter.after.map(int);
        let mut rows = select.query(params![filter.user, after, filter.limit])?;
        let mut jobs = Vec::new();
        let mut last: Option<(String, Arc<JobRequest>)> = None;
        while let Some(row) = rows.next()? {
            let body = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
            // Tasks of a submission follow each other and share their request.
            let request = match &last {
                Some((text, request)) if text == body => request.clone(),
                _ => {
                    let request = Arc::new(serde_json::from_str(body)?);
                    last = Some((body.to_owned(), Arc::clone(&request)));
                    request
                }
            };
            let record = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
            let job = Job { request, ..serde_json::from_str(record)? };
            jobs.push(job);
        }
        Ok(jobs)
    }

    /// One job.
    pub fn job(&self, id: u64) -> Result<Option<Job>, StoreError> {
        job(&self.connection, id)
    }

    /// The environment of a job.
    pub fn env(&self, job: u64) -> Result<std::collections::BTreeMap<String, String>, StoreError> {
        let mut select = self.connection.prepare_cached(
            "SELECT env FROM requests JOIN jobs ON jobs.request = requests.id WHERE jobs.id = ?1",
        )?;
        let id = int(job);
        let text: Option<String> = select.query_row([id], |row| row.get(0)).optional()?;
        Ok(text.map(|text| serde_json::from_str(&text)).transpose()?.unwrap_or_default())
    }

    /// What users have used with jobs that ended since an instant, or have not.
    pub fn usage(&self, since_unix_us: u64) -> Result<Vec<UserTotal>, StoreError> {
        let mut select = self.connection.prepare_cached(
            "SELECT user, count(*), sum(gpu_us), sum(shared_gpu_us) FROM jobs
             WHERE end_us IS NULL OR end_us >= ?1 GROUP BY user ORDER BY 3 DESC, 1",
        )?;
        let total = |row: &rusqlite::Row<'_>| {
            let count = |index| row.get::<_, i64>(index).map(|count| count as u64);
            Ok(UserTotal {
                user: row.get(0)?,
                jobs: count(1)?,
                gpu_us: count(2)?,
                shared_gpu_us: count(3)?,
            })
        };
        let since = int(since_unix_us);
        let totals = select.query_map([since], total)?;
        Ok(totals.collect::<Result<_, _>>()?)
    }
}

/// A job as it was last written.
pub(super) fn job(connection: &Connection, id: u64) -> Result<Option<Job>, StoreError> {
    let mut select = connection.prepare_cached(
        "SELECT record, body FROM jobs JOIN requests ON requests.id = jobs.request
         WHERE jobs.id = ?1",
    )?;
    let id = int(id);
    let texts: Option<(String, String)> =
        select.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((record, body)) = texts else { return Ok(None) };
    let request = Arc::new(serde_json::from_str(&body)?);
    Ok(Some(Job { request, ..serde_json::from_str(&record)? }))
}
