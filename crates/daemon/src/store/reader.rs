//! Read connections, concurrent with the writer.

use super::{StoreError, connect, int};
use crate::job::{JobState, StoredJob};
use crate::request::JobRequest;
use rusqlite::{Connection, OptionalExtension, params};
use std::path::Path;
use std::sync::Arc;

/// A read-only connection.
pub struct StoreReader {
    pub(super) connection: Connection,
}

/// Which jobs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// In one of these states; in any state if empty.
    pub states: Vec<JobState>,
    /// Of this user.
    pub user: Option<String>,
    /// After this id, in the order of the page.
    pub after: Option<u64>,
    /// By descending id.
    pub descending: bool,
    /// The most jobs.
    pub limit: u32,
}

/// The most bytes of requests that are read for one page.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// A page of jobs.
#[derive(Clone, Debug, Default)]
pub struct JobRows {
    /// The jobs.
    pub jobs: Vec<StoredJob>,
    /// After which job the next page begins, if there may be one.
    pub next_after: Option<u64>,
}

/// The usage of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserTotal {
    /// The user.
    pub user: String,
    /// Jobs.
    pub jobs: u64,
    /// GPU time.
    pub gpu_us: u64,
    /// GPU time spent co-located.
    pub shared_gpu_us: u64,
}

impl StoreReader {
    /// Opens an existing store.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let connection = connect(file)?;
        super::log::keep_when_closed(&connection, true)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(Self { connection })
    }

    /// A page of jobs. It ends early if their requests are large.
    pub fn page(&self, filter: &JobFilter) -> Result<JobRows, StoreError> {
        let (beyond, order) = if filter.descending { ("<", "DESC") } else { (">", "ASC") };
        let mut clauses = Vec::new();
        if filter.user.is_some() {
            clauses.push("user = ?1".to_owned());
        }
        if filter.after.is_some() {
            clauses.push(format!("id {beyond} ?2"));
        }
        let subquery = |state: Option<JobState>| {
            // Names of states, never user input.
            let state = state.map(|state| format!("state = '{}'", state.name()));
            let clauses: Vec<&str> = state.iter().chain(&clauses).map(String::as_str).collect();
            let clause = if clauses.is_empty() { "1" } else { &clauses.join(" AND ") };
            let index = if state.is_some() { "INDEXED BY jobs_by_state" } else { "" };
            format!("SELECT id FROM jobs {index} WHERE {clause} ORDER BY id {order} LIMIT ?3")
        };
        // One subquery per state, each in index order: with all states in one
        // condition SQLite would sort every matching job.
        let mut states = filter.states.clone();
        states.sort_unstable();
        states.dedup();
        let subqueries: Vec<String> = match states.as_slice() {
            [] => vec![subquery(None)],
            states => states.iter().map(|&state| subquery(Some(state))).collect(),
        };
        let subqueries: Vec<String> =
            subqueries.iter().map(|one| format!("SELECT * FROM ({one})")).collect();
        let sql = format!(
            "SELECT record, request, id FROM jobs WHERE id IN ({}) ORDER BY id {order} LIMIT ?3",
            subqueries.join(" UNION ALL ")
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let after = filter.after.map(int);
        let mut body = self.connection.prepare_cached("SELECT body FROM requests WHERE id = ?1")?;
        let mut rows = select.query(params![filter.user, after, filter.limit])?;
        let mut jobs = Vec::new();
        let mut last: Option<(i64, Arc<JobRequest>)> = None;
        let mut bytes = 0;
        while let Some(row) = rows.next()? {
            let id: i64 = row.get(1)?;
            // Tasks of a submission are adjacent and share their request.
            let request = match &last {
                Some((known, request)) if *known == id => request.clone(),
                _ => {
                    let body: Option<String> = body.query_row([id], |row| row.get(0)).optional()?;
                    let Some(body) = body else { continue };
                    let request = Arc::new(decode_request(&body));
                    bytes += body.len() + request.list_bytes();
                    if bytes > PAGE_BYTES_MAX && !jobs.is_empty() {
                        break;
                    }
                    last = Some((id, Arc::clone(&request)));
                    request
                }
            };
            let record = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
            jobs.push(StoredJob { request, ..decode_job(record, row.get::<_, i64>(2)?) });
        }
        let is_last = jobs.len() < filter.limit as usize && rows.next()?.is_none();
        Ok(JobRows { next_after: jobs.last().filter(|_| !is_last).map(|job| job.id), jobs })
    }

    /// One job.
    pub fn job(&self, id: u64) -> Result<Option<StoredJob>, StoreError> {
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

    /// Usage by user, of jobs that ended since a time or have not ended.
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

/// What usage is added up by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageBy {
    /// The user.
    pub user: bool,
    /// The account.
    pub account: bool,
    /// The month, in UTC, in which a job ended, or the present one.
    pub month: bool,
}

/// GPU time of a group of jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTotal {
    /// User, account and month, where they were asked for and there are any.
    pub of: [Option<String>; 3],
    /// Jobs.
    pub jobs: u64,
    /// GPU time.
    pub gpu_us: u64,
    /// GPU time spent co-located.
    pub shared_gpu_us: u64,
}

impl StoreReader {
    /// Usage by user, account and month, of jobs that ended since a time or have not ended.
    pub fn usage_by(&self, since_unix_us: u64, by: UsageBy) -> Result<Vec<GroupTotal>, StoreError> {
        let column = |wanted: bool, column: &'static str| if wanted { column } else { "NULL" };
        let month = "strftime('%Y-%m', coalesce(end_us / 1000000, unixepoch()), 'unixepoch')";
        let account = "(SELECT json_extract(body, '$.account') FROM requests WHERE id = request)";
        // Per request first: its text may be long, is read once, and is never sorted.
        let sql = format!(
            "WITH per_request AS MATERIALIZED (
                 SELECT {} AS user, request, {} AS month, count(*) AS jobs, sum(gpu_us) AS gpu_us,
                     sum(shared_gpu_us) AS shared_gpu_us
                 FROM jobs WHERE end_us IS NULL OR end_us >= ?1 GROUP BY 1, 2, 3),
             with_account AS MATERIALIZED (
                 SELECT user, {} AS account, month, jobs, gpu_us, shared_gpu_us FROM per_request)
             SELECT user, account, month, sum(jobs), sum(gpu_us), sum(shared_gpu_us)
             FROM with_account GROUP BY 1, 2, 3 ORDER BY 3, 5 DESC, 1, 2",
            column(by.user, "user"),
            column(by.month, month),
            column(by.account, account),
        );
        let mut select = self.connection.prepare_cached(&sql)?;
        let total = |row: &rusqlite::Row<'_>| {
            let count = |index| row.get::<_, i64>(index).map(|count| count as u64);
            Ok(GroupTotal {
                of: [row.get(0)?, row.get(1)?, row.get(2)?],
                jobs: count(3)?,
                gpu_us: count(4)?,
                shared_gpu_us: count(5)?,
            })
        };
        let totals = select.query_map([int(since_unix_us)], total)?;
        Ok(totals.collect::<Result<_, _>>()?)
    }
}

/// A job from its record. One that cannot be read is shown as such.
fn decode_job(record: &str, id: i64) -> StoredJob {
    serde_json::from_str(record).unwrap_or_else(|error| StoredJob {
        id: id.cast_unsigned(),
        // Nobody's, so that only an operator may see or change it.
        uid: u32::MAX,
        state: JobState::Unknown,
        reason: Some(format!("its record is damaged: {error}; see tandem store check")),
        ..StoredJob::default()
    })
}

fn decode_request(body: &str) -> JobRequest {
    serde_json::from_str(body).unwrap_or_default()
}

/// A job as last written.
pub(super) fn job(connection: &Connection, id: u64) -> Result<Option<StoredJob>, StoreError> {
    let mut select = connection.prepare_cached(
        "SELECT record, body FROM jobs JOIN requests ON requests.id = jobs.request
         WHERE jobs.id = ?1",
    )?;
    let id = int(id);
    let texts: Option<(String, String)> =
        select.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let Some((record, body)) = texts else { return Ok(None) };
    let request = Arc::new(decode_request(&body));
    Ok(Some(StoredJob { request, ..decode_job(&record, id) }))
}
