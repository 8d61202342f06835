//! What outlives the daemon: jobs, the journal, what was learned. SQLite, one writer; readers have
//! connections of their own. What the machine shows is the truth, this is a memory of it.

mod placements;
mod reader;
mod schema;
#[cfg(test)]
mod tests;

pub use placements::PlacementFilter;
pub use reader::{JobFilter, StoreReader, UserTotal};

use crate::job::Job;
use crate::request::JobRequest;
use crate::scheduler::{Class, Input, Now, Start};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tandem_core::Action;
use thiserror::Error;

/// Starts of the daemon whose journal is kept.
const STARTS_KEPT: u32 = 3;

/// What the store cannot do.
#[derive(Debug, Error)]
pub enum StoreError {
    /// SQLite refused.
    #[error("store: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// Something in it is not what it was when it was written.
    #[error("store: {0}")]
    Json(#[from] serde_json::Error),
    /// Written by a later program.
    #[error(
        "store: has version {version}, this program knows up to {}; use the later program",
        schema::VERSION
    )]
    Newer {
        /// Its version.
        version: i64,
    },
    /// The file.
    #[error("store {file}: {cause}")]
    Io {
        /// The file.
        file: String,
        /// Why.
        cause: std::io::Error,
    },
}

/// The writer.
pub struct Store {
    connection: Connection,
    /// The log that SQLite writes ahead.
    log: PathBuf,
    /// Whether the next commit waits for the disk.
    waits: bool,
}

impl Store {
    /// Opens or makes the store.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        let mut connection = connect(file)?;
        // Before anything is written: what a later program wrote is left as it is.
        schema::version(&connection)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.set_prepared_statement_cache_capacity(32);
        schema::migrate(&mut connection)?;
        let mut log = file.as_os_str().to_owned();
        log.push("-wal");
        Ok(Self { connection, log: log.into(), waits: true })
    }

    /// Writes all of `write` or nothing; it outlives a loss of power, as does all that was written before.
    pub fn write(
        &mut self,
        write: impl FnOnce(&StoreTransaction<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.commit(true, write)
    }

    /// Writes all of `write` or nothing. It outlives this process at once, and a loss of power after the
    /// next `write` or `sync`.
    pub fn write_unsynced(
        &mut self,
        write: impl FnOnce(&StoreTransaction<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.commit(false, write)
    }

    /// Makes all that was written outlive a loss of power.
    pub fn sync(&self) -> Result<(), StoreError> {
        let io = |cause| StoreError::Io { file: self.log.display().to_string(), cause };
        File::open(&self.log).and_then(|log| log.sync_data()).map_err(io)
    }

    fn commit(
        &mut self,
        waits: bool,
        write: impl FnOnce(&StoreTransaction<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.waits != waits {
            let level = if waits { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.waits = waits;
        }
        let transaction = self.connection.transaction()?;
        write(&StoreTransaction(&transaction))?;
        transaction.commit()?;
        Ok(())
    }

    /// A value by its key.
    pub fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        let mut select = self.connection.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
        Ok(select.query_row([key], |row| row.get(0)).optional()?)
    }

    /// The instant of the last record.
    pub fn last_time(&self) -> Result<Option<Now>, StoreError> {
        let select = "SELECT at_us, unix_us FROM journal ORDER BY seq DESC LIMIT 1";
        let now = |row: &rusqlite::Row<'_>| {
            Ok(Now { at_us: row.get::<_, i64>(0)? as u64, unix_us: row.get::<_, i64>(1)? as u64 })
        };
        Ok(self.connection.query_row(select, [], now).optional()?)
    }

    /// The number after that of the last job.
    pub fn next_job(&self) -> Result<u64, StoreError> {
        let last: Option<i64> =
            self.connection.query_row("SELECT max(id) FROM jobs", [], |row| row.get(0))?;
        Ok(last.map_or(1, |last| last as u64 + 1))
    }

    /// Jobs that are not over, in order, without their environments.
    pub fn active(&self) -> Result<Vec<Job>, StoreError> {
        let mut requests: BTreeMap<i64, Arc<JobRequest>> = BTreeMap::new();
        let mut select = self
            .connection
            .prepare("SELECT record, request FROM jobs WHERE is_over = 0 ORDER BY id")?;
        let mut body = self.connection.prepare("SELECT body FROM requests WHERE id = ?1")?;
        let mut rows = select.query([])?;
        let mut jobs = Vec::new();
        while let Some(row) = rows.next()? {
            let mut job: Job = serde_json::from_str(row.get_ref(0)?.as_str().map_err(sqlite)?)?;
            let request: i64 = row.get(1)?;
            job.request = match requests.get(&request) {
                Some(known) => known.clone(),
                None => {
                    let text: String = body.query_row([request], |row| row.get(0))?;
                    let known = Arc::new(serde_json::from_str::<JobRequest>(&text)?);
                    requests.insert(request, known.clone());
                    known
                }
            };
            jobs.push(job);
        }
        Ok(jobs)
    }

    /// A job, over or not.
    pub fn job(&self, id: u64) -> Result<Option<Job>, StoreError> {
        reader::job(&self.connection, id)
    }

    /// Jobs that are over and whose webhooks have not been called to the end.
    pub fn pending_webhooks(&self) -> Result<Vec<u64>, StoreError> {
        let mut select = self.connection.prepare("SELECT job FROM hooks ORDER BY job")?;
        let jobs = select.query_map([], |row| row.get::<_, i64>(0))?;
        Ok(jobs.map(|job| job.map(|job| job as u64)).collect::<Result<_, _>>()?)
    }

    /// The environment of a job.
    pub fn env(&self, job: u64) -> Result<BTreeMap<String, String>, StoreError> {
        let mut select = self.connection.prepare_cached(
            "SELECT env FROM requests JOIN jobs ON jobs.request = requests.id WHERE jobs.id = ?1",
        )?;
        let text: String = select.query_row([int(job)], |row| row.get(0))?;
        Ok(serde_json::from_str(&text)?)
    }

    /// What was learned about classes.
    pub fn classes(&self) -> Result<BTreeMap<String, Class>, StoreError> {
        let mut select = self.connection.prepare("SELECT name, body FROM classes")?;
        let mut rows = select.query([])?;
        let mut classes = BTreeMap::new();
        while let Some(row) = rows.next()? {
            let body: String = row.get(1)?;
            classes.insert(row.get(0)?, serde_json::from_str(&body)?);
        }
        Ok(classes)
    }
}

/// SQLite counts with a sign.
fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn sqlite(error: rusqlite::types::FromSqlError) -> rusqlite::Error {
    rusqlite::Error::from(error)
}

fn connect(file: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    Ok(connection)
}

/// One transaction.
pub struct StoreTransaction<'a>(&'a Transaction<'a>);

impl StoreTransaction<'_> {
    /// A value by its key.
    pub fn meta(&self, key: &str, value: &str) -> Result<(), StoreError> {
        let mut insert = self.0.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?;
        insert.execute([key, value])?;
        Ok(())
    }

    /// The first record of a life of the daemon; those of lives long past go.
    pub fn start(&self, start: &Start) -> Result<(), StoreError> {
        self.record(start.now, "start", start)?;
        self.0.execute(
            "DELETE FROM journal WHERE seq < (SELECT seq FROM journal WHERE kind = 'start'
             ORDER BY seq DESC LIMIT 1 OFFSET ?1)",
            [STARTS_KEPT - 1],
        )?;
        Ok(())
    }

    /// Inputs of a cycle.
    pub fn inputs(&self, now: Now, inputs: &[Input]) -> Result<(), StoreError> {
        inputs.iter().try_for_each(|input| self.record(now, "input", input))
    }

    /// A cycle is over: what was decided.
    pub fn actions(&self, now: Now, actions: &[Action]) -> Result<(), StoreError> {
        self.record(now, "actions", &crate::journal::action_texts(actions))
    }

    fn record(&self, now: Now, kind: &str, body: &impl Serialize) -> Result<(), StoreError> {
        let mut insert = self.0.prepare_cached(
            "INSERT INTO journal (at_us, unix_us, kind, body) VALUES (?1, ?2, ?3, ?4)",
        )?;
        let body = serde_json::to_string(body)?;
        insert.execute(params![int(now.at_us), int(now.unix_us), kind, body])?;
        Ok(())
    }

    /// A request, with the environment; the number of its first job is its own.
    pub fn request(
        &self,
        first: u64,
        request: &JobRequest,
        env: &BTreeMap<String, String>,
    ) -> Result<(), StoreError> {
        let mut insert = self.0.prepare_cached("INSERT INTO requests VALUES (?1, ?2, ?3)")?;
        let (body, env) = (serde_json::to_string(request)?, serde_json::to_string(env)?);
        insert.execute(params![int(first), body, env])?;
        Ok(())
    }

    /// A new job.
    pub fn insert(&self, job: &Job, request: u64) -> Result<(), StoreError> {
        let mut insert = self
            .0
            .prepare_cached("INSERT INTO jobs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")?;
        insert.execute(params![
            int(job.id),
            int(request),
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

    /// A job that changed.
    pub fn update(&self, job: &Job) -> Result<(), StoreError> {
        let mut update = self.0.prepare_cached(
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

    /// The webhook of a job is to be called.
    pub fn add_webhook(&self, job: u64) -> Result<(), StoreError> {
        self.0.prepare_cached("INSERT OR IGNORE INTO hooks VALUES (?1)")?.execute([int(job)])?;
        Ok(())
    }

    /// The webhook of a job was called, or that was given up.
    pub fn remove_webhook(&self, job: u64) -> Result<(), StoreError> {
        self.0.prepare_cached("DELETE FROM hooks WHERE job = ?1")?.execute([int(job)])?;
        Ok(())
    }

    /// What was learned about a class.
    pub fn class(&self, name: &str, class: &Class) -> Result<(), StoreError> {
        let mut insert = self.0.prepare_cached("INSERT OR REPLACE INTO classes VALUES (?1, ?2)")?;
        insert.execute([name, &serde_json::to_string(class)?])?;
        Ok(())
    }

    /// Forgets jobs that were over before an instant.
    pub fn prune(&self, before_unix_us: u64) -> Result<usize, StoreError> {
        let pruned = self.0.execute(
            // The last number stays, so that it is not given again.
            "DELETE FROM jobs WHERE is_over = 1 AND end_us < ?1
             AND id < (SELECT max(id) FROM jobs)",
            [int(before_unix_us)],
        )?;
        if pruned > 0 {
            self.0.execute("DELETE FROM hooks WHERE job NOT IN (SELECT id FROM jobs)", [])?;
            self.0
                .execute("DELETE FROM requests WHERE id NOT IN (SELECT request FROM jobs)", [])?;
        }
        Ok(pruned)
    }
}
