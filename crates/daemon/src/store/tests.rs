use super::*;
use crate::job::{ArrayTask, JobState};
use crate::request::JobRequest;

fn job(id: u64) -> StoredJob {
    let state = JobState::ALL[(id * 7 % 11) as usize];
    let user = ["ann", "bob"][usize::from(id.is_multiple_of(3))].to_owned();
    StoredJob { id, user, state, ..StoredJob::default() }
}

#[test]
fn a_page_holds_the_first_jobs_that_match_the_filter() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.db");
    let mut store = Store::open(&file).unwrap();
    let jobs: Vec<StoredJob> = (1..=200).map(job).collect();
    let written = store.write(|transaction| {
        for job in &jobs {
            transaction.request(job.id, job.uid, &job.request, &BTreeMap::new())?;
            transaction.insert(job)?;
        }
        Ok(())
    });
    written.unwrap();
    let reader = StoreReader::open(&file).unwrap();
    let active: Vec<JobState> =
        JobState::ALL.into_iter().filter(|state| !state.is_over()).collect();
    let some = vec![JobState::Completed, JobState::Pending, JobState::Pending];
    for states in [vec![], vec![JobState::Held], some, active] {
        for user in [None, Some("ann".to_owned()), Some("nobody".to_owned())] {
            for (after, descending) in
                [(None, false), (Some(90), false), (None, true), (Some(90), true)]
            {
                let is_beyond = |id: u64| match after {
                    Some(after) if descending => id < after,
                    Some(after) => id > after,
                    None => true,
                };
                let mut expected: Vec<u64> = jobs
                    .iter()
                    .filter(|job| states.is_empty() || states.contains(&job.state))
                    .filter(|job| user.as_ref().is_none_or(|user| job.user == *user))
                    .map(|job| job.id)
                    .filter(|&id| is_beyond(id))
                    .collect();
                if descending {
                    expected.reverse();
                }
                expected.truncate(20);
                let filter = JobFilter {
                    states: states.clone(),
                    user: user.clone(),
                    after,
                    descending,
                    limit: 20,
                };
                let page = reader.page(&filter).unwrap();
                let found: Vec<u64> = page.jobs.iter().map(|job| job.id).collect();
                assert_eq!(found, expected, "{filter:?}");
            }
        }
    }
}

#[test]
fn unsynced_writes_are_visible_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.db");
    let mut store = Store::open(&file).unwrap();
    let level = |store: &Store| -> i64 {
        store.connection.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap()
    };
    store.write_unsynced(|transaction| transaction.meta("one", "1")).unwrap();
    assert_eq!(level(&store), 1, "NORMAL");
    assert_eq!(Store::open(&file).unwrap().meta("one").unwrap().as_deref(), Some("1"));
    store.write(|transaction| transaction.meta("two", "2")).unwrap();
    assert_eq!(level(&store), 2, "FULL");
    // A failed transaction is rolled back.
    let fails = store.write_unsynced(|transaction| {
        transaction.meta("three", "3")?;
        Err(StoreError::Newer { version: 9 })
    });
    assert!(fails.is_err() && store.meta("three").unwrap().is_none());
}

#[test]
fn what_is_no_store_is_never_taken_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let (file, copy) = (folder.path().join("state.db"), folder.path().join("copy.db"));
    drop(Store::open(&file).unwrap());
    let good = std::fs::read(&file).unwrap();
    let other = folder.path().join("other.db");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE t (a)").unwrap();
    let others = std::fs::read(&other).unwrap();
    for bad in [&b""[..], b"these are words and no database", &others] {
        std::fs::write(&copy, bad).unwrap();
        let error = tools::restore(&file, &copy, 7_000_000).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("not a store") && text.ends_with("nothing was changed"), "{text}");
        assert!(tools::check(&copy).unwrap_err().is_damaged());
        assert!(Store::open(&copy).is_err_and(|error| error.is_damaged()));
        assert_eq!(std::fs::read(&copy).unwrap(), bad);
    }
    assert_eq!(std::fs::read(&file).unwrap(), good);
    // A log whose store is gone would be taken for that of the new one.
    let gone = folder.path().join("gone.db");
    std::fs::write(folder.path().join("gone.db-wal"), "log").unwrap();
    assert!(Store::open(&gone).is_err_and(|error| error.is_damaged()) && !gone.exists());
}

#[test]
fn restores_in_one_second_keep_every_store() {
    let folder = tempfile::tempdir().unwrap();
    let (file, copy) = (folder.path().join("state.db"), folder.path().join("copy.db"));
    drop(Store::open(&file).unwrap());
    tools::backup(&file, &copy).unwrap();
    let again = tools::backup(&file, &copy).unwrap_err().to_string();
    assert!(again.contains("exists already"), "{again}");
    let mark = |text: &str| {
        Store::open(&file).unwrap().write(|writing| writing.meta("mark", text)).unwrap();
    };
    mark("first");
    let first = tools::restore(&file, &copy, 7_000_000).unwrap().unwrap();
    mark("second");
    let second = tools::restore(&file, &copy, 7_999_999).unwrap().unwrap();
    let marked = |file: &Path| Store::open(file).unwrap().meta("mark").unwrap();
    assert_eq!(marked(&first).as_deref(), Some("first"));
    assert_eq!(marked(&second).as_deref(), Some("second"));
    assert_eq!(marked(&file), None);
}

#[test]
fn usage_is_added_up_by_user_account_and_month() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("state.db");
    let mut store = Store::open(&file).unwrap();
    let ended = |id: u64, first: u64, user: &str| StoredJob {
        id,
        user: user.to_owned(),
        state: JobState::Completed,
        task: Some(ArrayTask { first, number: 0, at_a_time: None }),
        // January and February of 1970.
        end_us: Some(if id.is_multiple_of(2) { 1_000_000 } else { 3_000_000_000_000 }),
        ran_us: 10,
        devices: vec![0],
        ..StoredJob::default()
    };
    let account = |name: &str| JobRequest {
        command: vec!["true".to_owned(), "x".repeat(1 << 20)],
        account: Some(name.to_owned()),
        ..JobRequest::default()
    };
    let written = store.write(|transaction| {
        for (first, user, request) in [
            (1, "ann", account("vision")),
            (101, "ann", JobRequest::default()),
            (201, "bob", account("vision")),
        ] {
            transaction.request(first, 1, &request, &BTreeMap::new())?;
            for id in first..first + 100 {
                let job = ended(id, first, user);
                transaction.insert(&job)?;
                transaction.update(&job)?;
            }
        }
        Ok(())
    });
    written.unwrap();
    let reader = StoreReader::open(&file).unwrap();
    let of = |user, account, month| {
        let by = UsageBy { user, account, month };
        let totals = reader.usage_by(0, by).unwrap();
        let row = |total: GroupTotal| {
            let of = total.of.map(|name| name.unwrap_or_else(|| "-".to_owned())).join(" ");
            format!("{of}: {} {}", total.jobs, total.gpu_us)
        };
        totals.into_iter().map(row).collect::<Vec<String>>()
    };
    assert_eq!(of(false, false, false), ["- - -: 300 3000"]);
    assert_eq!(of(false, true, false), ["- vision -: 200 2000", "- - -: 100 1000"]);
    assert_eq!(
        of(true, true, true),
        [
            "ann - 1970-01: 50 500",
            "ann vision 1970-01: 50 500",
            "bob vision 1970-01: 50 500",
            "ann - 1970-02: 50 500",
            "ann vision 1970-02: 50 500",
            "bob vision 1970-02: 50 500"
        ]
    );
}
