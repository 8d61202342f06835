//! Deletes ended jobs in small portions, and returns the space to the file system.

use super::{Store, StoreError, StoreTransaction, int};
use rusqlite::params;
use std::collections::BTreeMap;

/// Jobs deleted by one call, which takes a few milliseconds.
const BATCH: u32 = 1000;
/// Pages returned by one call.
const PAGES: u32 = 2000;

impl Store {
    /// Bytes of the ended requests of each user.
    pub(super) fn history_bytes(&self) -> Result<BTreeMap<u32, u64>, StoreError> {
        let mut select = self
            .connection
            .prepare("SELECT uid, sum(bytes) FROM requests WHERE is_over = 1 GROUP BY uid")?;
        let total = |row: &rusqlite::Row<'_>| {
            Ok((row.get(0)?, u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0)))
        };
        Ok(select.query_map([], total)?.collect::<Result<_, _>>()?)
    }

    /// Deletes jobs that ended before a time. Returns whether there may be more.
    pub fn prune(&mut self, before_unix_us: u64) -> Result<bool, StoreError> {
        let next_job = self.next_job()?;
        let mut pruned = 0;
        self.write_unsynced(|writing| {
            writing.prune_placements(before_unix_us)?;
            let mut select = writing.transaction.prepare_cached(
                "SELECT id, request FROM jobs WHERE is_over = 1 AND end_us < ?1
                 ORDER BY end_us LIMIT ?2",
            )?;
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let jobs: Vec<(i64, i64)> = select
                .query_map(params![int(before_unix_us), BATCH], row)?
                .collect::<Result<_, _>>()?;
            pruned = jobs.len();
            delete(writing, &jobs, next_job)
        })?;
        self.give_back()?;
        Ok(pruned >= BATCH as usize)
    }

    /// Deletes the oldest ended jobs of users beyond their limit. Returns whether there may be more.
    pub fn trim_history(&mut self) -> Result<bool, StoreError> {
        let most = self.options.history_max_bytes;
        let Some(uid) = self.history.iter().find(|&(_, &bytes)| bytes > most).map(|(&uid, _)| uid)
        else {
            return Ok(false);
        };
        let next_job = self.next_job()?;
        let mut pruned = 0;
        self.write_unsynced(|writing| {
            let mut select = writing.transaction.prepare_cached(
                "SELECT jobs.id, request FROM jobs JOIN
                 (SELECT id FROM requests WHERE uid = ?1 AND is_over = 1 ORDER BY id LIMIT 64) AS old
                 ON jobs.request = old.id ORDER BY jobs.id LIMIT ?2",
            )?;
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let jobs: Vec<(i64, i64)> =
                select.query_map(params![uid, BATCH], row)?.collect::<Result<_, _>>()?;
            pruned = jobs.len();
            delete(writing, &jobs, next_job)
        })?;
        if pruned == 0 {
            // Nothing was deleted: count from the store again.
            self.history = self.history_bytes()?;
        }
        self.give_back()?;
        Ok(pruned > 0)
    }

    /// Returns free pages to the file system.
    fn give_back(&mut self) -> Result<(), StoreError> {
        let vacuum = || {
            let vacuum = format!("PRAGMA incremental_vacuum({PAGES})");
            let mut vacuum = self.connection.prepare(&vacuum)?;
            let mut rows = vacuum.query([])?;
            while rows.next()?.is_some() {}
            Ok(())
        };
        let given = vacuum();
        self.stop_if_lost(given)
    }
}

/// Deletes jobs, and requests without jobs.
pub(super) fn delete(
    writing: &StoreTransaction<'_>,
    jobs: &[(i64, i64)],
    next_job: u64,
) -> Result<(), StoreError> {
    if jobs.is_empty() {
        return Ok(());
    }
    // Keep the highest id, so that ids are not given twice.
    writing.meta("next_job", &next_job.to_string())?;
    let transaction = writing.transaction;
    for (id, _) in jobs {
        transaction.prepare_cached("DELETE FROM hooks WHERE job = ?1")?.execute([id])?;
        transaction.prepare_cached("DELETE FROM jobs WHERE id = ?1")?.execute([id])?;
    }
    let mut requests: Vec<i64> = jobs.iter().map(|&(_, request)| request).collect();
    requests.sort_unstable();
    requests.dedup();
    for request in requests {
        let mut delete = transaction.prepare_cached(
            "DELETE FROM requests WHERE id = ?1
             AND NOT EXISTS (SELECT 1 FROM jobs WHERE request = ?1)
             AND NOT EXISTS (SELECT 1 FROM unfinished WHERE first = ?1) RETURNING uid, bytes, is_over",
        )?;
        let mut rows = delete.query([request])?;
        while let Some(row) = rows.next()? {
            let bytes: i64 = row.get(1)?;
            if row.get::<_, bool>(2)? {
                writing.effects.borrow_mut().history.push((row.get(0)?, -bytes));
            }
        }
    }
    Ok(())
}
