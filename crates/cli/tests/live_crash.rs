//! A daemon that is killed between any two writes: nothing that was accepted is lost, nothing runs twice,
//! what runs is found again, and how it ended is known.
//!
//! `TANDEM_CRASH_SEED=17 cargo test --test live_crash` repeats one trial, `TANDEM_CRASH_TRIALS=1000` makes
//! as many.

mod common;

use common::Dice;
use common::daemon::{Daemon, Options, PATIENCE, until, zombies_of};
use common::processes::lives;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tandem_daemon::client::ClientError;
use tandem_daemon::job::JobState;
use tandem_daemon::request::JobRequest;

const TRIALS: u64 = 110;
/// Deaths that all trials together must have seen.
const DEATHS: usize = 200;
const THREADS: u64 = 3;
const DEATHS_PER_TRIAL: u64 = 3;
const KILLED: i32 = 9;

/// What is to become of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Ends with this code.
    Exit(i32),
    /// Fails the first time, and does well after that.
    SecondTime,
    /// Fails as often as it may.
    Never { retries: u32 },
    /// Would run for long: somebody ends it.
    Long,
}

/// Every begin of a program adds a line `job run pid`.
const BEGIN: &str = "echo $TANDEM_JOB_ID $TANDEM_RUN $$ >> begun;";

impl Fate {
    fn request(self, daemon: &Daemon) -> JobRequest {
        let again = r#"[ $(grep -c "^$TANDEM_JOB_ID " begun) -ge 2 ]"#;
        let (line, retries) = match self {
            Fate::Exit(code) => {
                (format!("{BEGIN} sleep 0.0$((TANDEM_JOB_ID % 7)); exit {code}"), 0)
            }
            Fate::SecondTime => (format!("{BEGIN} {again}"), 3),
            Fate::Never { retries } => (format!("{BEGIN} exit 5"), retries),
            Fate::Long => (format!("{BEGIN} exec sleep 1000"), 0),
        };
        // Where its own output goes is no matter here.
        JobRequest { retries, stdout: Some("/dev/null".into()), ..daemon.shell(&line) }
    }

    fn check(
        self,
        id: u64,
        state: JobState,
        code: Option<i32>,
        begun: usize,
    ) -> Result<(), String> {
        let expected = match self {
            Fate::Exit(0) => (JobState::Completed, Some(0), 1),
            Fate::Exit(code) => (JobState::Failed, Some(code), 1),
            Fate::SecondTime => (JobState::Completed, Some(0), 2),
            Fate::Never { retries } => (JobState::Failed, Some(5), 1 + retries as usize),
            Fate::Long if state == JobState::Cancelled && begun <= 1 => return Ok(()),
            Fate::Long => (JobState::Cancelled, None, 1),
        };
        if (state, code, begun) == expected {
            return Ok(());
        }
        Err(format!("job {id}, {self:?}: expected {expected:?}, is {:?}", (state, code, begun)))
    }
}

/// One trial: what was asked for and acknowledged.
struct Trial {
    daemon: Daemon,
    dice: Dice,
    deaths: Vec<u64>,
    crash_at: Option<u64>,
    /// Acknowledged jobs.
    jobs: BTreeMap<u64, Fate>,
    /// A job that runs for long may be there without having been acknowledged.
    is_unsure: bool,
    cancelled: BTreeSet<u64>,
    /// Processes of long jobs, as seen.
    pids: BTreeMap<u64, u32>,
}

/// Fake GPUs, or a core, on which runs have control groups where the system allows it.
fn options(crash_at: Option<u64>, devices: u64, policy: &str, on_core: bool) -> Options {
    let options = if on_core {
        Options::with(&["--provider", "cpu", "--devices", "1"])
    } else {
        Options::fake(u32::try_from(devices).expect("few"))
    };
    let options = options.and(&["--policy", policy, "--set", "daemon.kill_grace_s=0.5"]);
    match crash_at {
        Some(at) => options.env("TANDEM_CRASH_AT", &at.to_string()),
        None => options,
    }
}

impl Trial {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let crash_at = Some(dice.between(0, 160));
        let policy = dice.pick(&["tandem", "fifo", "srtf"]);
        let on_core = seed % 3 == 2;
        let daemon = Daemon::launch(options(crash_at, dice.between(1, 3), policy, on_core));
        Self {
            daemon,
            dice,
            deaths: Vec::new(),
            crash_at,
            jobs: BTreeMap::new(),
            is_unsure: false,
            cancelled: BTreeSet::new(),
            pids: BTreeMap::new(),
        }
    }

    /// Makes sure that a daemon is there; another one if it died.
    fn revive(&mut self) -> Result<(), String> {
        while !self.daemon.is_ready() {
            let status = self.daemon.wait();
            if status.signal() != Some(KILLED) {
                return Err(format!("the daemon ended with {status:?}: {}", self.daemon.log()));
            }
            self.deaths.extend(self.crash_at);
            let is_last = self.deaths.len() as u64 >= DEATHS_PER_TRIAL || self.dice.once_in(8);
            // Many points lie in what a daemon does first.
            let most = self.dice.pick(&[12, 40, 120]);
            self.crash_at = (!is_last).then(|| self.dice.between(0, most));
            self.daemon.options.env.clear();
            if let Some(at) = self.crash_at {
                self.daemon.options.env.push(("TANDEM_CRASH_AT".to_owned(), at.to_string()));
            }
            self.daemon.relaunch();
        }
        self.compare_pids()
    }

    /// A process that runs is the one that ran.
    fn compare_pids(&mut self) -> Result<(), String> {
        for (&id, &before) in &self.pids {
            let Ok(answer) = self.daemon.client().job(id) else { return Ok(()) };
            let now = answer.value.job.pid;
            if now.is_some_and(|now| now != before) {
                return Err(format!("job {id} was process {before} and is {now:?}"));
            }
        }
        Ok(())
    }

    fn submit(&mut self, fate: Fate, request: &JobRequest) -> Result<Option<u64>, String> {
        self.revive()?;
        match self.daemon.client().submit(request) {
            Ok(answer) => {
                let ids = &answer.value.ids;
                self.jobs.extend(ids.iter().map(|&id| (id, fate)));
                Ok(ids.first().copied())
            }
            // Not acknowledged: it may be there or not.
            Err(ClientError::Unreachable { .. }) => {
                self.is_unsure |= fate == Fate::Long;
                Ok(None)
            }
            Err(error) => Err(format!("refused: {error}")),
        }
    }

    fn cancel(&mut self, id: u64) -> Result<(), String> {
        self.revive()?;
        match self.daemon.client().cancel(id) {
            Ok(_) => drop(self.cancelled.insert(id)),
            Err(ClientError::Unreachable { .. }) => {}
            Err(error) if error.code() == Some("conflict") => {}
            Err(error) => return Err(format!("cannot cancel {id}: {error}")),
        }
        Ok(())
    }

    fn pause(&mut self) {
        let millis = self.dice.pick(&[0, 0, 0, 5, 30]);
        std::thread::sleep(Duration::from_millis(millis));
    }

    fn ask(&mut self) -> Result<(), String> {
        let mut last = None;
        for _ in 0..self.dice.between(4, 8) {
            let choice = self.dice.between(0, 9);
            let fate = match choice {
                0..=2 => Fate::Exit(0),
                3 => Fate::Exit(7),
                4 => Fate::SecondTime,
                5 => Fate::Never { retries: 1 },
                6 => Fate::Long,
                _ => Fate::Exit(i32::try_from(choice).expect("few")),
            };
            let mut request = fate.request(&self.daemon);
            match choice {
                1 => request.array = Some("0-2%2".to_owned()),
                2 => request.dependency = last.map(|id: u64| format!("afterany:{id}")),
                7 => request.hold = true,
                _ => {}
            }
            let id = self.submit(fate, &request)?;
            self.pause();
            match (id, choice) {
                (Some(id), 6) => {
                    // Sometimes only after it has begun.
                    if self.dice.once_in(2) {
                        self.note_pid(id)?;
                    }
                    self.cancel(id)?;
                }
                (Some(id), 7 | 8) => {
                    if choice == 8 {
                        let _ = self.daemon.client().hold(id);
                    }
                    self.pause();
                    let _ = self.daemon.client().release(id);
                }
                _ => {}
            }
            last = id.filter(|_| fate != Fate::Long);
        }
        Ok(())
    }

    /// Waits for the process of a job, through deaths.
    fn note_pid(&mut self, id: u64) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            self.revive()?;
            let Ok(answer) = self.daemon.client().job(id) else { continue };
            let job = answer.value.job;
            if let Some(pid) = job.pid {
                self.pids.insert(id, pid);
                return Ok(());
            }
            if job.line.state.is_over() {
                return Err(format!("job {id} is over before it was cancelled: {job:?}"));
            }
            // Others that run for long may sit on all devices.
            let is_other = |(&other, &fate): (&u64, &Fate)| other != id && fate == Fate::Long;
            if self.is_unsure || self.jobs.iter().any(is_other) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(format!("job {id} does not begin"))
    }

    /// Waits until everything is over, through deaths.
    fn finish(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.revive()?;
            let query = tandem_daemon::client::JobQuery { limit: Some(1000), ..Default::default() };
            let Ok(page) = self.daemon.client().jobs(&query) else { continue };
            let jobs = page.value.jobs;
            let mut waits = Vec::new();
            for job in jobs.iter().filter(|job| !job.state.is_over()) {
                if job.state == JobState::Held {
                    let _ = self.daemon.client().release(job.id);
                }
                let is_long = self.jobs.get(&job.id).is_none_or(|fate| *fate == Fate::Long);
                if is_long && !self.cancelled.contains(&job.id) {
                    let _ = self.daemon.client().cancel(job.id);
                }
                waits.push(job);
            }
            if waits.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("not over: {waits:#?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Control groups of its runs that are there. The daemon says where it makes them: `... in FOLDER, ...`.
    fn groups(&self) -> Vec<std::path::PathBuf> {
        use std::os::unix::fs::MetadataExt;
        let state = std::fs::metadata(&self.daemon.state).expect("it is there");
        let prefix = format!("tandem-{:x}-{:x}-", state.dev(), state.ino());
        let info = self.daemon.client().info().expect("it answers").value;
        let folders = info.cgroups.split(" in ").skip(1).filter_map(|text| text.split(',').next());
        let entries = folders.flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten());
        let ours =
            |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.starts_with(&prefix));
        entries
            .flatten()
            .filter(|entry| ours(&entry.file_name()))
            .map(|entry| entry.path())
            .collect()
    }

    fn check(&mut self) -> Result<(), String> {
        let begun =
            std::fs::read_to_string(self.daemon.dir.path().join("begun")).unwrap_or_default();
        let mut runs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for line in begun.lines() {
            let words: Vec<u64> =
                line.split(' ').map(|word| word.parse().expect("a number")).collect();
            runs.entry(words[0]).or_default().push(words[1]);
        }
        for (id, runs) in &runs {
            let distinct: BTreeSet<&u64> = runs.iter().collect();
            if distinct.len() != runs.len() {
                return Err(format!("job {id} ran twice: runs {runs:?}"));
            }
        }
        self.revive()?;
        for (&id, &fate) in &self.jobs {
            let job =
                self.daemon.client().job(id).map_err(|error| {
                    format!("job {id} was accepted and cannot be shown: {error}")
                })?;
            let line = job.value.job.line;
            let (state, code) = (line.state, line.exit_code);
            let begun = runs.get(&id).map_or(0, Vec::len);
            if self.cancelled.contains(&id) && state != JobState::Cancelled {
                return Err(format!("job {id} was cancelled and is {state:?}: {:?}", line.reason));
            }
            fate.check(id, state, code, begun).map_err(|error| {
                format!("{error}; reason {:?}; runs {:?}", line.reason, runs.get(&id))
            })?;
        }
        // The supervisor of the last one may be about to leave.
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (left, zombies) = (self.daemon.processes(), zombies_of(self.daemon.child.id()));
            if left.is_empty() && zombies.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                return Err(format!("processes are left: {left:?}, zombies {zombies:?}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.daemon.options.env.clear();
        // The next daemon clears away what deaths left behind.
        self.daemon.restart();
        let groups = self.groups();
        self.daemon.stop();
        if !groups.is_empty() {
            return Err(format!("control groups are left: {groups:?}"));
        }
        for folder in ["state/runs", "t.jobs"] {
            let left: Vec<_> = std::fs::read_dir(self.daemon.dir.path().join(folder))
                .expect("it is there")
                .map(|entry| entry.expect("it can be read").file_name())
                .collect();
            if !left.is_empty() {
                return Err(format!("left in {folder}: {left:?}"));
            }
        }
        let store = self.daemon.state.join("state.db");
        let ran = self.daemon.tandem(&["replay", store.to_str().expect("a plain path")]);
        if ran.code != Some(0) || !ran.stdout.contains("identical") {
            return Err(format!("the replay differs: {ran:?}"));
        }
        Ok(())
    }
}

/// One trial; the points at which daemons died.
fn trial(seed: u64) -> Result<Vec<u64>, String> {
    let mut trial = Trial::new(seed);
    let done = trial.ask().and_then(|()| trial.finish()).and_then(|()| trial.check());
    done.map_err(|error| {
        let (deaths, log) = (&trial.deaths, trial.daemon.log());
        format!("seed {seed}: {error}\ndied at {deaths:?}\n{log}")
    })?;
    Ok(trial.deaths)
}

#[test]
fn a_daemon_that_dies_anywhere_loses_nothing_and_runs_nothing_twice() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    if let Some(seed) = number("TANDEM_CRASH_SEED") {
        println!("died at {:?}", trial(seed).unwrap_or_else(|error| panic!("{error}")));
        return;
    }
    let trials = number("TANDEM_CRASH_TRIALS").unwrap_or(TRIALS);
    let next = AtomicU64::new(0);
    let (deaths, failures) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= trials || failures.lock().expect("no panic").len() >= 5 {
                        return;
                    }
                    let done = std::panic::catch_unwind(|| trial(seed));
                    match done.unwrap_or_else(|_| Err(format!("seed {seed}: panicked"))) {
                        Ok(points) => deaths.lock().expect("no panic").extend(points),
                        Err(failure) => {
                            eprintln!("{failure}");
                            failures.lock().expect("no panic").push(failure);
                        }
                    }
                }
            });
        }
    });
    let (deaths, failures) = (deaths.into_inner().unwrap(), failures.into_inner().unwrap());
    let points: BTreeSet<u64> = deaths.iter().copied().collect();
    println!(
        "{trials} trials, {} deaths at {} points, the last of them {:?}, {:.0} s",
        deaths.len(),
        points.len(),
        points.last(),
        began.elapsed().as_secs_f64()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    if trials >= TRIALS {
        assert!(deaths.len() >= DEATHS, "only {} deaths", deaths.len());
    }
}

#[test]
fn a_run_that_was_going_on_is_the_same_one_after_a_kill() {
    let mut daemon = Daemon::start(Options::fake(2));
    let request = daemon.shell("echo $$ >> begun; while [ ! -e go ]; do sleep 0.02; done; exit 3");
    let id = daemon.submit(&request);
    let pid = daemon.await_pid(id);
    for _ in 0..3 {
        daemon.restart();
        assert_eq!(daemon.await_pid(id), pid);
        assert!(lives(pid));
    }
    std::fs::write(daemon.dir.path().join("go"), "").expect("a file can be written");
    let job = daemon.await_state(id, "failed");
    assert_eq!((job.line.exit_code, job.runs), (Some(3), 1));
    let begun = std::fs::read_to_string(daemon.dir.path().join("begun")).expect("it was written");
    assert_eq!(begun.trim(), pid.to_string());
    until("everything is gone", || daemon.processes().is_empty());
}
