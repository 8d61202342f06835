//! The schema and its migrations.

use rusqlite::Connection;

/// One migration per schema version; `user_version` counts those that were applied.
const MIGRATIONS: &[&str] = &[
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
];

/// The schema version of this program.
pub(super) const VERSION: i64 = MIGRATIONS.len().cast_signed() as i64;

/// The schema version of the store; an error if it is newer than this program.
pub(super) fn version(connection: &Connection) -> Result<i64, super::StoreError> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > VERSION { Err(super::StoreError::Newer { version }) } else { Ok(version) }
}

/// Applies the missing migrations.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), super::StoreError> {
    let version = version(connection)?;
    for (migration, number) in
        MIGRATIONS.iter().zip(1..).skip(usize::try_from(version).unwrap_or(0))
    {
        let transaction = connection.transaction()?;
        transaction.execute_batch(migration)?;
        transaction.pragma_update(None, "user_version", number)?;
        transaction.commit()?;
    }
    Ok(())
}
