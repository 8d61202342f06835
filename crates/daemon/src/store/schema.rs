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
    "
    CREATE TABLE tokens (id INTEGER PRIMARY KEY, hash BLOB NOT NULL, record TEXT NOT NULL);
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
    // What requests take, and of whom; the ended ones keep no environment. Jobs that cannot be read are set aside.
    "
    ALTER TABLE requests ADD COLUMN uid INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE requests ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE requests ADD COLUMN is_over INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX jobs_by_request ON jobs (request);
    CREATE INDEX jobs_by_end ON jobs (end_us) WHERE is_over = 1;
    UPDATE requests SET
        uid = coalesce((SELECT uid FROM jobs WHERE jobs.request = requests.id LIMIT 1), 0),
        is_over = NOT EXISTS (SELECT 1 FROM jobs WHERE request = requests.id AND jobs.is_over = 0);
    UPDATE requests SET env = '{}' WHERE is_over;
    UPDATE requests SET bytes = octet_length(body) + octet_length(env)
        + 300 * (SELECT count(*) FROM jobs WHERE request = requests.id);
    CREATE INDEX requests_by_user ON requests (uid, is_over, id, bytes);
    CREATE TABLE quarantine (id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, user TEXT NOT NULL,
        state TEXT NOT NULL, record TEXT NOT NULL, cause TEXT NOT NULL, unix_us INTEGER NOT NULL);
    CREATE TABLE quarantined_requests (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
",
    // Submissions whose tasks are added in portions, until all are there.
    "
    CREATE TABLE unfinished (first INTEGER PRIMARY KEY, body TEXT NOT NULL);
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
