//! Persistent state: jobs, the journal and learned classes, in SQLite. There is one writer; readers have
//! connections of their own. After a restart the state of the machine takes precedence over the store.

mod load;
mod log;
mod placements;
mod prune;
mod reader;
mod schema;
#[cfg(test)]
mod tests;
pub mod tools;
mod transaction;

pub use load::Damage;
pub use placements::PlacementFilter;
pub use reader::{GroupTotal, JobFilter, JobRows, StoreReader, UsageBy, UserTotal};
pub use transaction::StoreTransaction;
pub(crate) use transaction::stored_bytes;

use crate::command::{PastJob, PastJobs};
use crate::job::{JobState, StoredJob};
use crate::scheduler::{LearnedClass, Now};
use crate::tokens::{Token, TokenHash};
use rusqlite::{Connection, ErrorCode, OptionalExtension};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use transaction::Effects;

/// Daemon starts whose journal is kept.
const STARTS_KEPT: u32 = 3;
/// How long another process is waited for that has the store.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// What to do about a file that cannot be used.
const MEND: &str = "put a copy back with tandem store restore FILE, or move it away to begin anew";
/// What is left of the write-ahead log after its content was moved to the store.
const LOG_KEPT_BYTES: i64 = 4 << 20;

/// An error of the store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// An error of SQLite.
    #[error("store: {0}")]
    Sqlite(rusqlite::Error),
    /// What is in the file cannot be read.
    #[error("the store is damaged ({0}); {MEND}")]
    Damaged(rusqlite::Error),
    /// The file is something else.
    #[error("is not a store of Tandem: {0}; {MEND}")]
    NotAStore(&'static str),
    /// A copy that must not take the place of a store.
    #[error("{0}; nothing was changed")]
    BadCopy(String),
    /// A record that cannot be decoded.
    #[error("store: {0}")]
    Json(#[from] serde_json::Error),
    /// The schema is newer than this program.
    #[error(
        "store: schema version {version} is newer than {}, the latest that this program supports; upgrade tandem",
        schema::VERSION
    )]
    Newer {
        /// The version of the schema.
        version: i64,
    },
    /// An fsync has failed before.
    #[error("store: an fsync failed, and what is on disk is not known; start again")]
    Lost,
    /// The file cannot be read or written.
    #[error("store {file}: {cause}")]
    Io {
        /// The file.
        file: String,
        /// Why.
        cause: std::io::Error,
    },
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error),
            _ => Self::Sqlite(error),
        }
    }
}

/// How a store is used.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The most bytes that are journalled after a start; later inputs are not journalled.
    pub journal_max_bytes: u64,
    /// The most bytes that the ended jobs of a user may take; beyond them the oldest are deleted.
    pub history_max_bytes: u64,
    /// Other files than those of the operating system.
    pub file_layer: Option<FileLayer>,
}

/// A file layer of SQLite, which nobody else uses meanwhile.
#[derive(Clone, Debug)]
pub struct FileLayer {
    /// Its name.
    pub name: String,
    /// Writes a file again as it is read, with fsync; nothing if there is none.
    pub rewrite: fn(&Path) -> std::io::Result<()>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { journal_max_bytes: 256 << 20, history_max_bytes: 256 << 20, file_layer: None }
    }
}

impl StoreError {
    /// Whether the file is damaged or is no store.
    pub fn is_damaged(&self) -> bool {
        matches!(self, Self::Damaged(_) | Self::NotAStore(_))
    }

    /// Whether the disk failed to keep what it was given. What it has of earlier writes is not known then, and
    /// another fsync that succeeds proves nothing.
    pub fn lost_writes(&self) -> bool {
        match self {
            Self::Sqlite(error) => log::is_failed_fsync(error),
            Self::Lost => true,
            _ => false,
        }
    }
}

/// The only writer of the store.
pub struct Store {
    connection: Connection,
    file: PathBuf,
    options: StoreOptions,
    /// The write-ahead log of SQLite.
    log: PathBuf,
    /// Whether the next commit is followed by fsync.
    synced: bool,
    /// Inputs and actions are journalled.
    journals: bool,
    /// Bytes that were journalled since the start.
    journalled: u64,
    /// Bytes that the ended requests of each user take.
    history: BTreeMap<u32, u64>,
    /// An fsync has failed.
    is_lost: bool,
}

impl Store {
    /// Opens the store, or creates it.
    pub fn open(file: &Path) -> Result<Self, StoreError> {
        Self::open_with(file, StoreOptions::default())
    }

    /// Opens the store, or creates it, to be used so.
    pub fn open_with(file: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        if options.file_layer.is_none() {
            create_if_missing(file)?;
        }
        let log = log::path(file);
        let rewrite: fn(&Path) -> std::io::Result<()> = match &options.file_layer {
            None => log::rewrite,
            Some(layer) => layer.rewrite,
        };
        rewrite(&log).map_err(|cause| StoreError::Io { file: log.display().to_string(), cause })?;
        let mut connection = match &options.file_layer {
            None => connect(file)?,
            Some(FileLayer { name, .. }) => {
                let flags = rusqlite::OpenFlags::default();
                let connection = Connection::open_with_flags_and_vfs(file, flags, name.as_str())?;
                // Without shared memory the log can only be used by one connection.
                connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
                connection
            }
        };
        log::keep_when_closed(&connection, true)?;
        // Before anything is written: a newer store stays as it is.
        let version = schema::version(&connection)?;
        if version == 0 {
            if options.file_layer.is_none() {
                return Err(StoreError::NotAStore("it has no schema version"));
            }
            give_back_pages(&connection)?;
        }
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "journal_size_limit", LOG_KEPT_BYTES)?;
        log::move_when_long(&mut connection)?;
        connection.set_prepared_statement_cache_capacity(48);
        schema::migrate(&mut connection)?;
        let mut store = Self {
            connection,
            file: file.to_owned(),
            options,
            log,
            synced: true,
            journals: true,
            journalled: 0,
            history: BTreeMap::new(),
            is_lost: false,
        };
        store.history = store.history_bytes()?;
        Ok(store)
    }

    /// Commits one transaction with fsync: it and all earlier ones survive a power failure.
    pub fn write(
        &mut self,
        write: impl FnOnce(&StoreTransaction<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.commit(true, write)
    }

    /// Commits one transaction without fsync: it survives a crash of the daemon at once, and a power failure
    /// after the next `write` or `sync`.
    pub fn write_unsynced(
        &mut self,
        write: impl FnOnce(&StoreTransaction<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.commit(false, write)
    }

    fn commit(
        &mut self,
        synced: bool,
        write: impl FnOnce(&StoreTransaction<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.is_lost {
            return Err(StoreError::Lost);
        }
        let committed = self.try_commit(synced, write);
        self.stop_if_lost(committed)
    }

    fn try_commit(
        &mut self,
        synced: bool,
        write: impl FnOnce(&StoreTransaction<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        if self.synced != synced {
            let level = if synced { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.synced = synced;
        }
        let transaction = self.connection.transaction()?;
        let writing = StoreTransaction {
            transaction: &transaction,
            journals: self.journals,
            effects: RefCell::default(),
        };
        write(&writing)?;
        let Effects { journalled, unjournalled, history } = writing.effects.into_inner();
        transaction.commit()?;
        self.journalled += journalled;
        let is_full = self.journalled > self.options.journal_max_bytes;
        if self.journals && (unjournalled || is_full) {
            let why =
                if unjournalled { "too many different jobs are active" } else { "it is full" };
            tracing::warn!("the journal ends here, because {why}; the next start begins another");
            self.journals = false;
        }
        for (uid, bytes) in history {
            let own = self.history.entry(uid).or_default();
            *own = own.saturating_add_signed(bytes);
        }
        Ok(())
    }

    /// Its file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// A value by its key.
    pub fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        let mut select = self.connection.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
        Ok(select.query_row([key], |row| row.get(0)).optional()?)
    }

    /// The time of the last turn that was written.
    pub fn last_time(&self) -> Result<Option<Now>, StoreError> {
        let journalled = self.last_journalled()?;
        let beside: Option<Now> =
            self.meta("now")?.and_then(|text| serde_json::from_str(&text).ok());
        Ok(journalled.into_iter().chain(beside).max_by_key(|now| now.at_us))
    }

    fn last_journalled(&self) -> Result<Option<Now>, StoreError> {
        let select = "SELECT at_us, unix_us FROM journal ORDER BY seq DESC LIMIT 1";
        let now = |row: &rusqlite::Row<'_>| {
            Ok(Now { at_us: row.get::<_, i64>(0)? as u64, unix_us: row.get::<_, i64>(1)? as u64 })
        };
        Ok(self.connection.query_row(select, [], now).optional()?)
    }

    /// The id of the next job: beyond all that were ever given.
    pub fn next_job(&self) -> Result<u64, StoreError> {
        let last: Option<i64> =
            self.connection.query_row("SELECT max(id) FROM jobs", [], |row| row.get(0))?;
        let pruned = self.meta("next_job")?.and_then(|text| text.parse().ok()).unwrap_or(1);
        Ok(last.map_or(1, |last| last as u64 + 1).max(pruned))
    }

    /// What admission needs to know of a job, active or ended, without reading its request.
    pub(crate) fn past(&self, id: u64) -> Result<Option<PastJob>, StoreError> {
        let mut select = self.connection.prepare_cached(
            "SELECT uid, state, json_extract(record, '$.task.first') FROM jobs WHERE id = ?1",
        )?;
        let row = |row: &rusqlite::Row<'_>| {
            let (state, array): (String, Option<i64>) = (row.get(1)?, row.get(2)?);
            let state = JobState::parse(&state).unwrap_or(JobState::Unknown);
            Ok(PastJob { uid: row.get(0)?, state, array: array.map(i64::cast_unsigned) })
        };
        Ok(select.query_row([int(id)], row).optional()?)
    }

    /// A job, active or ended.
    pub fn job(&self, id: u64) -> Result<Option<StoredJob>, StoreError> {
        reader::job(&self.connection, id)
    }

    /// The latest job of a user.
    pub fn last(&self, user: &str) -> Result<Option<u64>, StoreError> {
        let mut select =
            self.connection.prepare_cached("SELECT max(id) FROM jobs WHERE user = ?1")?;
        let last: Option<i64> = select.query_row([user], |row| row.get(0))?;
        Ok(last.map(|last| last as u64))
    }

    /// Whether a task of an array has ended and did not complete.
    pub fn has_failed_task(&self, first: u64) -> Result<bool, StoreError> {
        let mut select = self.connection.prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM jobs WHERE id >= ?1 AND id < ?1 + ?2 AND request = ?1
             AND is_over = 1 AND state != 'completed')",
        )?;
        let most = i64::try_from(crate::request::TASKS_MAX).unwrap_or(i64::MAX);
        Ok(select.query_row([int(first), most], |row| row.get(0))?)
    }

    /// Ended jobs whose webhooks are pending.
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

    /// GPU time of users by uid, in jobs that ended since a time.
    pub fn gpu_time_since(&self, since_unix_us: u64) -> Result<Vec<(u32, u64)>, StoreError> {
        let mut select = self
            .connection
            .prepare("SELECT uid, sum(gpu_us) FROM jobs WHERE end_us >= ?1 GROUP BY uid")?;
        let total = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)? as u64));
        let totals = select.query_map([int(since_unix_us)], total)?;
        Ok(totals.collect::<Result<_, _>>()?)
    }

    /// The tokens of users with their hashes.
    pub fn tokens(&self) -> Result<Vec<(TokenHash, Token)>, StoreError> {
        let mut select = self.connection.prepare("SELECT hash, record FROM tokens ORDER BY id")?;
        let mut rows = select.query([])?;
        let mut tokens = Vec::new();
        while let Some(row) = rows.next()? {
            let record: String = row.get(1)?;
            tokens.push((row.get(0)?, serde_json::from_str(&record)?));
        }
        Ok(tokens)
    }

    /// The learned job classes.
    pub fn classes(&self) -> Result<BTreeMap<String, LearnedClass>, StoreError> {
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

/// SQLite integers are signed.
fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Creates a store that is not there. It appears complete: a file without content is one that was emptied, and
/// is never taken for a new store.
fn create_if_missing(file: &Path) -> Result<(), StoreError> {
    let io = |cause| StoreError::Io { file: file.display().to_string(), cause };
    match file.metadata() {
        Ok(metadata) if metadata.len() == 0 => return Err(StoreError::NotAStore("it is empty")),
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    if log::path(file).metadata().is_ok_and(|log| log.len() > 0) {
        return Err(StoreError::NotAStore("it is missing, but its log (-wal) is there"));
    }
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // SQLite creates the files beside the store with the same mode.
    let made = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new);
    made.map_err(io)?;
    let mut connection = connect(&new)?;
    give_back_pages(&connection)?;
    schema::migrate(&mut connection)?;
    connection.close().map_err(|(_, error)| error)?;
    std::fs::rename(&new, file).and_then(|()| sync_folder(file)).map_err(io)
}

/// Makes sure that the name of a file is on disk.
fn sync_folder(file: &Path) -> std::io::Result<()> {
    let folder = file.parent().filter(|folder| *folder != Path::new(""));
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Pages that are free at the end of the file can be given back; to be set before the first table.
fn give_back_pages(connection: &Connection) -> Result<(), StoreError> {
    Ok(connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?)
}

fn connect(file: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

impl PastJobs for Store {
    fn past(&self, id: u64) -> Option<PastJob> {
        Store::past(self, id).ok().flatten()
    }

    fn job(&self, id: u64) -> Option<StoredJob> {
        Store::job(self, id).ok().flatten()
    }

    fn last(&self, user: &str) -> Option<u64> {
        Store::last(self, user).ok().flatten()
    }

    fn has_failed_task(&self, first: u64) -> bool {
        Store::has_failed_task(self, first).unwrap_or(false)
    }
}
