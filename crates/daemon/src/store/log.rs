//! The write-ahead log of the store: made durable at each start, moved to the store when it is long, bounded.
//!
//! After an fsync that failed, Linux shows the lost pages to every reader and calls the next fsync a success.
//! SQLite does not know that, and ignores failures while it moves the log by itself. So the store stops at the
//! first failed fsync wherever it happens, and the next process writes the whole log again before it uses it.

use super::{BUSY_TIMEOUT, Store, StoreError};
use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, ffi};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Pages of the log after which a commit moves them to the store.
const LONG_PAGES: i32 = 1000;
/// A log larger than this is emptied, although readers have to be waited for.
const MAX_BYTES: u64 = 32 << 20;
/// How long they are waited for.
const READERS_WAIT: Duration = Duration::from_millis(50);

/// The log of a store.
pub(super) fn path(store: &Path) -> PathBuf {
    let mut log = store.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// Writes the log again as it is read, so that what an earlier fsync lost is on disk. Without this, commits
/// would follow frames that are lost at the next power failure, and be lost with them. Nobody else may write.
pub(super) fn rewrite(log: &Path) -> std::io::Result<()> {
    let file = match OpenOptions::new().read(true).write(true).open(log) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    let mut chunk = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let length = file.read_at(&mut chunk, at)?;
        if length == 0 {
            break;
        }
        file.write_all_at(&chunk[..length], at)?;
        at += length as u64;
    }
    file.sync_all()
}

/// Lets each commit that finds the log long move it to the store, and fail if that was not kept.
pub(super) fn move_when_long(connection: &mut Connection) -> rusqlite::Result<()> {
    let hook = |log: &mut Wal, pages: i32| {
        if pages < LONG_PAGES {
            return Ok(());
        }
        // Anything but a failed fsync, a busy reader or a full disk, is tried again at the next commit.
        log.checkpoint().or_else(|error| if is_failed_fsync(&error) { Err(error) } else { Ok(()) })
    };
    connection.wal_hook(Some(hook))
}

/// Whether the log stays when the store is closed. Otherwise it is moved to the store then, which must not
/// happen after a failed fsync: the store would get ahead of what the disk has of the log.
pub(super) fn keep_when_closed(connection: &Connection, keeps: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keeps).map(drop)
}

/// Whether fsync failed.
pub(super) fn is_failed_fsync(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}

impl Store {
    /// Whether an fsync has failed: nothing is written any more.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Empties the log if it has grown: while there is always a reader, it only grows by itself.
    pub fn bound_log(&mut self) -> Result<(), StoreError> {
        if std::fs::metadata(&self.log).map_or(0, |log| log.len()) <= MAX_BYTES {
            return Ok(());
        }
        let emptied = self.empty_log().map_err(StoreError::from);
        self.connection.busy_timeout(BUSY_TIMEOUT)?;
        self.stop_if_lost(emptied)
    }

    fn empty_log(&self) -> rusqlite::Result<()> {
        self.connection.busy_timeout(READERS_WAIT)?;
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    }

    /// Nothing is written after a failed fsync: what the disk has is not known.
    pub(super) fn stop_if_lost<T>(
        &mut self,
        result: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.is_lost |= result.as_ref().is_err_and(StoreError::lost_writes);
        result
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // If that fails the log stays, and nothing is lost.
        if !self.is_lost && self.empty_log().is_ok() {
            let _ = keep_when_closed(&self.connection, false);
        }
    }
}
