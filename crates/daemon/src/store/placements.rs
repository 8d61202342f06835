//! Placements over time in the store.

use super::{Store, StoreError, StoreReader, StoreTransaction, int};
use crate::history::PlacementRecord;
use rusqlite::{Connection, Row, params};

/// Placements that are kept; the oldest are deleted.
const PLACEMENTS_MAX: u64 = 200_000;
/// The oldest are deleted after this many new ones.
const PRUNE_EVERY: u64 = 1024;
/// The end of an open placement.
const OPEN: i64 = i64::MAX;

/// Which placements to read, the latest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementFilter {
    /// That had not ended by then, in microseconds since 1970.
    pub since_us: u64,
    /// That had begun by then.
    pub until_us: Option<u64>,
    /// Before this number.
    pub before: Option<u64>,
    /// At most this many.
    pub limit: u32,
}

impl StoreTransaction<'_> {
    /// A placement that began or ended.
    pub fn placement(&self, record: &PlacementRecord) -> Result<(), StoreError> {
        let mut insert = self
            .transaction
            .prepare_cached("INSERT OR REPLACE INTO placements VALUES (?1, ?2, ?3, ?4, ?5)")?;
        insert.execute(params![
            int(record.seq),
            int(record.placed.job),
            int(record.from_us),
            record.to_us.map_or(OPEN, int),
            serde_json::to_string(record)?,
        ])?;
        if record.seq.is_multiple_of(PRUNE_EVERY) {
            let last = record.seq.saturating_sub(PLACEMENTS_MAX);
            let mut delete = self
                .transaction
                .prepare_cached("DELETE FROM placements WHERE seq <= ?1 AND to_us < ?2")?;
            delete.execute(params![int(last), OPEN])?;
        }
        Ok(())
    }

    /// Deletes placements that ended before an instant.
    pub fn prune_placements(&self, before_unix_us: u64) -> Result<usize, StoreError> {
        let mut delete =
            self.transaction.prepare_cached("DELETE FROM placements WHERE to_us < ?1")?;
        Ok(delete.execute([int(before_unix_us)])?)
    }
}

impl Store {
    /// The number of the next placement, and the open placements.
    pub fn open_placements(&self) -> Result<(u64, Vec<PlacementRecord>), StoreError> {
        let last: Option<i64> =
            self.connection.query_row("SELECT max(seq) FROM placements", [], |row| row.get(0))?;
        let sql = "SELECT seq, body FROM placements WHERE to_us = ?1 ORDER BY seq";
        let lasting = records(&self.connection, sql, params![OPEN])?;
        Ok((last.map_or(1, |last| last as u64 + 1), lasting))
    }
}

impl StoreReader {
    /// A page of placements, the latest first.
    pub fn placements(&self, filter: &PlacementFilter) -> Result<Vec<PlacementRecord>, StoreError> {
        // The index leaves out what ended long ago, which is nearly everything.
        let sql = "SELECT seq, body FROM placements INDEXED BY placements_by_end
                   WHERE to_us >= ?1 AND from_us <= ?2 AND seq < ?3 ORDER BY seq DESC LIMIT ?4";
        let before = filter.before.map_or(OPEN, int);
        let until = filter.until_us.map_or(OPEN, int);
        let values = params![int(filter.since_us), until, before, filter.limit];
        records(&self.connection, sql, values)
    }

    /// The placements of a job, the latest first.
    pub fn placements_of(&self, job: u64, limit: u32) -> Result<Vec<PlacementRecord>, StoreError> {
        let sql = "SELECT seq, body FROM placements WHERE job = ?1 ORDER BY seq DESC LIMIT ?2";
        records(&self.connection, sql, params![int(job), limit])
    }
}

fn records(
    connection: &Connection,
    sql: &str,
    values: &[&dyn rusqlite::ToSql],
) -> Result<Vec<PlacementRecord>, StoreError> {
    let mut select = connection.prepare_cached(sql)?;
    let read = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?));
    let rows = select.query_map(values, read)?;
    rows.map(|row| {
        let (seq, body) = row?;
        Ok(PlacementRecord { seq: seq as u64, ..serde_json::from_str(&body)? })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::PlacedJob;

    fn record(seq: u64, job: u64, from_us: u64, to_us: Option<u64>) -> PlacementRecord {
        PlacementRecord {
            seq,
            placed: PlacedJob { job, ..PlacedJob::default() },
            from_us,
            to_us,
            why: "alone".to_owned(),
            ..PlacementRecord::default()
        }
    }

    fn store(records: &[PlacementRecord]) -> (tempfile::TempDir, Store, StoreReader) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("state.db");
        let mut store = Store::open(&file).expect("a store");
        let write = |transaction: &StoreTransaction<'_>| {
            records.iter().try_for_each(|one| transaction.placement(one))
        };
        store.write(write).expect("written");
        let reader = StoreReader::open(&file).expect("a reader");
        (folder, store, reader)
    }

    fn seqs(records: &[PlacementRecord]) -> Vec<u64> {
        records.iter().map(|record| record.seq).collect()
    }

    #[test]
    fn placements_are_read_in_pages_the_latest_first() {
        let all: Vec<PlacementRecord> = (1..=9)
            .map(|seq| record(seq, seq % 3, seq * 10, (seq != 4).then_some(seq * 10 + 5)))
            .collect();
        let (_folder, store, reader) = store(&all);
        let page = |filter: PlacementFilter| seqs(&reader.placements(&filter).expect("a page"));
        let all = PlacementFilter { limit: 100, ..PlacementFilter::default() };
        assert_eq!(page(all), [9, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(page(PlacementFilter { limit: 3, ..all }), [9, 8, 7]);
        assert_eq!(page(PlacementFilter { before: Some(7), limit: 2, ..all }), [6, 5]);
        assert_eq!(page(PlacementFilter { since_us: 75, ..all }), [9, 8, 7, 4], "4 lasts");
        assert_eq!(page(PlacementFilter { until_us: Some(29), ..all }), [2, 1]);
        assert_eq!(seqs(&reader.placements_of(1, 2).expect("of a job")), [7, 4]);
        let (next, lasting) = store.open_placements().expect("lasting");
        assert_eq!((next, seqs(&lasting)), (10, vec![4]));
    }

    #[test]
    fn a_placement_that_ends_replaces_itself_and_old_ones_go() {
        let begun = record(1, 7, 10, None);
        let (_folder, mut store, reader) = store(std::slice::from_ref(&begun));
        let ended = PlacementRecord { to_us: Some(20), rate: Some(0.5), ..begun };
        store.write(|transaction| transaction.placement(&ended)).expect("written");
        let all = PlacementFilter { limit: 9, ..PlacementFilter::default() };
        assert_eq!(reader.placements(&all).expect("a page"), [ended]);
        let later = record(PLACEMENTS_MAX + PRUNE_EVERY * 2, 8, 30, None);
        let seq = later.seq / PRUNE_EVERY * PRUNE_EVERY;
        store
            .write(|transaction| transaction.placement(&PlacementRecord { seq, ..later }))
            .expect("written");
        assert_eq!(seqs(&reader.placements(&all).expect("a page")), [seq], "the oldest went");
        store.write(|transaction| transaction.prune_placements(99).map(|_| ())).expect("pruned");
        assert_eq!(reader.placements(&all).expect("a page").len(), 1, "what lasts stays");
    }
}
