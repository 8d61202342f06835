//! The tables, and how older ones become the present ones.

use rusqlite::Connection;

/// One step per released version, in order; `user_version` counts those that were taken.
const STEPS: &[&str] = &[
    "
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE requests (id INTEGER PRIMARY KEY, body TEXT NOT NULL, env TEXT NOT NULL);
    CREATE TABLE jobs (
        id INTEGER PRIMARY KEY,
        request INTEGER NOT NULL REFERENCES requests (id),
        uid INTEGER NOT NULL,
        user TEXT NOT NULL,
        state TEXT NOT NULL,
        is_over INTEGER NOT NULL,
        end_us INTEGER,
        gpu_us INTEGER NOT NULL,
        shared_gpu_us INTEGER NOT NULL,
        record TEXT NOT NULL
    );
    CREATE INDEX jobs_by_state ON jobs (state, id);
    CREATE INDEX jobs_by_user ON jobs (user, id);
    CREATE INDEX jobs_not_over ON jobs (id) WHERE is_over = 0;
    CREATE TABLE journal (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        at_us INTEGER NOT NULL,
        unix_us INTEGER NOT NULL,
        kind TEXT NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX journal_starts ON journal (seq) WHERE kind = 'start';
    CREATE TABLE classes (name TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
",
    "
    CREATE TABLE hooks (job INTEGER PRIMARY KEY);
",
    "
    CREATE TABLE placements (
        seq INTEGER PRIMARY KEY,
        job INTEGER NOT NULL,
        from_us INTEGER NOT NULL,
        to_us INTEGER NOT NULL,
        body TEXT NOT NULL
    );
    CREATE INDEX placements_by_end ON placements (to_us);
    CREATE INDEX placements_by_job ON placements (job, seq);
",
];

/// The version that this program writes.
pub(super) const VERSION: i64 = STEPS.len().cast_signed() as i64;

/// The version of the tables, unless they are a later program's.
pub(super) fn version(connection: &Connection) -> Result<i64, super::StoreError> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > VERSION { Err(super::StoreError::Newer { version }) } else { Ok(version) }
}

/// Brings the tables up to date.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), super::StoreError> {
    let version = version(connection)?;
    for (step, number) in STEPS.iter().zip(1..).skip(usize::try_from(version).unwrap_or(0)) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "user_version", number)?;
        transaction.commit()?;
    }
    Ok(())
}
