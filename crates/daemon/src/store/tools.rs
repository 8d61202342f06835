//! Tools for a store without a daemon: check, copy, restore, remove a job.

use super::{Store, StoreError, connect, int, schema};
use crate::job::StoredJob;
use crate::request::JobRequest;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use std::fs::{File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The most problems that a check lists.
const SHOWN: usize = 100;

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StoreReport {
    /// The version of the schema.
    pub version: i64,
    /// Jobs that have not ended.
    pub active: u64,
    /// Jobs that have ended.
    pub ended: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Free bytes in the file.
    pub free_bytes: u64,
    /// The machine that it belongs to.
    pub machine: Option<String>,
    /// Problems, the first ones.
    pub problems: Vec<String>,
}

/// Checks a store without changing it; a daemon may run meanwhile.
pub fn check(file: &Path) -> Result<StoreReport, StoreError> {
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let number = |sql: &str| {
        connection.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned)
    };
    let version = schema::version(&connection)?;
    if version == 0 {
        let is_empty = file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        let what = if is_empty { "it is empty" } else { "it has no schema version" };
        return Err(StoreError::NotAStore(what));
    }
    let page = number("PRAGMA page_size")?;
    let mut report = StoreReport {
        version,
        bytes: page * number("PRAGMA page_count")?,
        free_bytes: page * number("PRAGMA freelist_count")?,
        ..StoreReport::default()
    };
    let mut select = connection.prepare(&format!("PRAGMA integrity_check({SHOWN})"))?;
    let lines = select.query_map([], |row| row.get::<_, String>(0))?;
    for line in lines {
        report.problems.extend(Some(line?).filter(|line| line != "ok"));
    }
    if !report.problems.is_empty() {
        return Ok(report);
    }
    report.machine = connection
        .query_row("SELECT value FROM meta WHERE key = 'machine'", [], |row| row.get(0))
        .optional()?;
    report.active = number("SELECT count(*) FROM jobs WHERE is_over = 0")?;
    report.ended = number("SELECT count(*) FROM jobs WHERE is_over = 1")?;
    check_rows::<StoredJob>(
        &connection,
        "SELECT id, record FROM jobs",
        "job",
        &mut report.problems,
    )?;
    let requests = "SELECT id, body FROM requests";
    check_rows::<JobRequest>(&connection, requests, "request", &mut report.problems)?;
    let orphans = "SELECT id FROM jobs WHERE request NOT IN (SELECT id FROM requests) LIMIT 100";
    let mut select = connection.prepare(orphans)?;
    for id in select.query_map([], |row| row.get::<_, i64>(0))? {
        report.problems.push(format!("job {}: its request is missing", id?));
    }
    if version >= schema::VERSION {
        let mut select = connection.prepare("SELECT id, cause FROM quarantine ORDER BY id")?;
        let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        for row in rows {
            let (id, cause): (i64, String) = row?;
            report.problems.push(format!("job {id} was set aside: {cause}"));
        }
    }
    report.problems.truncate(SHOWN);
    Ok(report)
}

fn check_rows<T: serde::de::DeserializeOwned>(
    connection: &Connection,
    select: &str,
    what: &str,
    problems: &mut Vec<String>,
) -> Result<(), StoreError> {
    let mut select = connection.prepare(select)?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let id: i64 = row.get(0)?;
        let problem = match row.get_ref(1)?.as_str() {
            Ok(text) => serde_json::from_str::<T>(text).err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        problems.extend(problem.map(|problem| format!("{what} {id}: {problem}")));
    }
    Ok(())
}

/// Copies a store to a new file, complete and compact; a daemon may run meanwhile.
pub fn backup(file: &Path, to: &Path) -> Result<(), StoreError> {
    let io = |cause| StoreError::Io { file: to.display().to_string(), cause };
    // Only the owner may read the copy, also while it is written.
    let made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(to);
    made.map_err(|cause| match cause.kind() {
        ErrorKind::AlreadyExists => {
            StoreError::BadCopy("exists already; give the name of a new file".to_owned())
        }
        _ => io(cause),
    })?;
    let connection = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let path = to.to_string_lossy();
    let copied = connection.execute("VACUUM INTO ?1", [path.as_ref()]);
    if let Err(error) = copied {
        let _ = std::fs::remove_file(to);
        return Err(error.into());
    }
    File::open(to).and_then(|copy| copy.sync_all()).map_err(io)
}

/// Replaces a store by a copy. The old store is kept beside it; returns its name. No daemon may run.
pub fn restore(file: &Path, from: &Path, unix_us: u64) -> Result<Option<PathBuf>, StoreError> {
    let bad = |problem: String| StoreError::BadCopy(problem);
    from.metadata().map_err(|error| bad(error.to_string()))?;
    let report = check(from).map_err(|error| match error {
        StoreError::NotAStore(what) => bad(format!("is not a store of Tandem: {what}")),
        StoreError::Damaged(error) => bad(format!("is not a store of Tandem, or damaged: {error}")),
        error => error,
    })?;
    if let Some(problem) = report.problems.first() {
        return Err(bad(problem.clone()));
    }
    let io = |cause| StoreError::Io { file: file.display().to_string(), cause };
    let beside = |ending: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    };
    let new = beside(".restored");
    std::fs::copy(from, &new).map_err(io)?;
    std::fs::set_permissions(&new, Permissions::from_mode(0o600)).map_err(io)?;
    File::open(&new).and_then(|copy| copy.sync_all()).map_err(io)?;
    let mut kept = None;
    if file.exists() {
        // The log belongs to the old store, so move it into that file first.
        connect(file)?
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(StoreError::from)
            .or_else(|error| if error.is_damaged() { Ok(()) } else { Err(error) })?;
        kept = Some(keep(file, unix_us / 1_000_000).map_err(io)?);
    }
    for ending in ["-wal", "-shm"] {
        if beside(ending).exists() {
            let mut name = kept.clone().unwrap_or_else(|| beside(".before")).into_os_string();
            name.push(ending);
            std::fs::rename(beside(ending), PathBuf::from(name)).map_err(io)?;
        }
    }
    std::fs::rename(&new, file).map_err(io)?;
    super::sync_folder(file).map_err(io)?;
    Ok(kept)
}

/// Gives a file a second name with the time in it. An existing file is never replaced.
fn keep(file: &Path, unix_s: u64) -> std::io::Result<PathBuf> {
    let mut second = unix_s;
    loop {
        let mut name = file.as_os_str().to_owned();
        name.push(format!(".before-{second}"));
        match std::fs::hard_link(file, &name) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => second += 1,
            made => return made.map(|()| PathBuf::from(name)),
        }
    }
}

impl Store {
    /// Removes a job in any state. Returns whether it existed. No daemon may run.
    pub fn drop_job(&mut self, id: u64) -> Result<bool, StoreError> {
        let next_job = self.next_job()?;
        let mut removed = false;
        self.write(|writing| {
            let id = int(id);
            let request: Option<i64> = writing
                .transaction
                .query_row("SELECT request FROM jobs WHERE id = ?1", [id], |row| row.get(0))
                .optional()?;
            let aside =
                writing.transaction.execute("DELETE FROM quarantine WHERE id = ?1", [id])?;
            // Also what is still to be added of a submission, if this is its first job.
            let rest =
                writing.transaction.execute("DELETE FROM unfinished WHERE first = ?1", [id])?;
            removed = aside > 0 || rest > 0 || request.is_some();
            request
                .map_or(Ok(()), |request| super::prune::delete(writing, &[(id, request)], next_job))
        })?;
        Ok(removed)
    }
}
