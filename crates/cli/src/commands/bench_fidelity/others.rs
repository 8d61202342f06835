//! The CPU time that other programs use, before the run and while its jobs train.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks at all processes.
const LOOK: Duration = Duration::from_secs(1);
/// Ticks of a second in `/proc`; the same on every Linux that users meet.
const TICKS_PER_S: f64 = 100.0;

/// CPU times of all cores since boot, in ticks.
pub(super) struct CoreTimes {
    total: f64,
    idle: f64,
    stolen: f64,
}

impl CoreTimes {
    pub(super) fn now() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line: `cpu user nice system idle iowait irq softirq steal ...`.
    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let times: Vec<f64> =
            line.split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
        let at = |index: usize| times.get(index).copied().unwrap_or(0.0);
        Self { total: times.iter().sum(), idle: at(3) + at(4), stolen: at(7) }
    }

    /// The used fraction of CPU time over the next `time`.
    pub(super) fn used_after(&self, time: Duration) -> f64 {
        std::thread::sleep(time);
        let later = Self::now();
        1.0 - ratio(later.idle - self.idle, later.total - self.total)
    }

    pub(super) fn stolen_since(&self) -> f64 {
        let later = Self::now();
        ratio(later.stolen - self.stolen, later.total - self.total)
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy)]
struct SeenProcess {
    parent: u32,
    ticks: u64,
    /// When it started, in ticks since boot: a later process may have the same id.
    started: u64,
}

impl SeenProcess {
    /// `pid (name) state ppid ...`; the name may contain anything.
    fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            parent: number(1)?.try_into().ok()?,
            ticks: number(11)? + number(12)?,
            started: number(19)?,
        })
    }
}

/// Adds up what others use while the jobs of a folder run. A process that is started and ends between two
/// looks is missed, so it may be more.
struct Tally {
    /// Stands in the commands of the daemon and of its supervisors.
    folder: String,
    last: BTreeMap<u32, SeenProcess>,
    ticks: u64,
}

impl Tally {
    fn new(folder: &Path) -> Self {
        Self { folder: folder.display().to_string(), last: processes(), ticks: 0 }
    }

    fn look(&mut self) {
        let now = processes();
        let names_folder = |pid: u32| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(&self.folder)
        };
        let ours = ours(&now, names_folder);
        for (pid, process) in now.iter().filter(|(pid, _)| !ours.contains(pid)) {
            let before = self.last.get(pid).filter(|last| last.started == process.started);
            self.ticks += process.ticks - before.map_or(0, |last| last.ticks.min(process.ticks));
        }
        self.last = now;
    }
}

fn processes() -> BTreeMap<u32, SeenProcess> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return BTreeMap::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let read = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, SeenProcess::parse(&stat)?))
    };
    pids.filter_map(read).collect()
}

/// This program, those that name the folder, and all that these have started.
fn ours(
    processes: &BTreeMap<u32, SeenProcess>,
    names_folder: impl Fn(u32) -> bool,
) -> BTreeSet<u32> {
    let is_first = |pid: &u32| *pid == std::process::id() || names_folder(*pid);
    let mut ours: BTreeSet<u32> = processes.keys().copied().filter(is_first).collect();
    loop {
        let child =
            |(pid, one): &(&u32, &SeenProcess)| !ours.contains(pid) && ours.contains(&one.parent);
        let children: Vec<u32> = processes.iter().filter(child).map(|(pid, _)| *pid).collect();
        if children.is_empty() {
            return ours;
        }
        ours.extend(children);
    }
}

/// Watches in a thread of its own.
pub(super) struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<f64>,
}

impl Watch {
    pub(super) fn start(folder: &Path) -> Self {
        let mut tally = Tally::new(folder);
        let (stop, stopped) = mpsc::channel();
        let began = Instant::now();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                tally.look();
            }
            tally.look();
            tally.ticks as f64 / TICKS_PER_S / began.elapsed().as_secs_f64()
        });
        Self { stop, thread }
    }

    /// The fraction of all cores that others used since the start.
    pub(super) fn stop(self) -> f64 {
        let _ = self.stop.send(());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.thread.join().unwrap_or(0.0) / cores as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn cpu_times_are_read_by_their_places() {
        let times = CoreTimes::parse("cpu  10 0 5 70 5 0 0 10 3 0\ncpu0 1 1 1 1\n");
        assert_eq!((times.total, times.idle, times.stolen), (100.0, 75.0, 10.0));
    }

    #[test]
    fn a_process_is_read_after_its_name() {
        let stat = "7 (a) (b) S 3 7 7 0 -1 4194304 1 2 3 4 50 6 700 800 20 0 1 0 9000 1 1 1";
        let found = SeenProcess::parse(stat).expect("a process");
        assert_eq!((found.parent, found.ticks, found.started), (3, 56, 9000));
        assert!(SeenProcess::parse("7 (a").is_none());
    }

    #[test]
    fn what_the_folder_s_processes_start_is_ours_and_the_rest_is_not() {
        let process = |parent| SeenProcess { parent, ticks: 1, started: 1 };
        let tree = BTreeMap::from([
            (100, process(1)),
            (101, process(100)),
            (90, process(101)),
            (200, process(1)),
        ]);
        assert_eq!(ours(&tree, |pid| pid == 100), BTreeSet::from([90, 100, 101]));
    }

    #[test]
    fn a_program_that_computes_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut tally = Tally::new(folder.path());
        // The shell that starts it ends, so that it is no child of this test; it computes for 3 s at most.
        let script = "sh -c 'ulimit -t 3; while :; do :; done' >&- 2>&- & echo $!";
        let shell = Command::new("sh").args(["-c", script]).output().expect("a shell");
        let pid: u32 = String::from_utf8_lossy(&shell.stdout).trim().parse().expect("a number");
        let patience = Instant::now() + Duration::from_secs(60);
        let used = |tally: &Tally| tally.last.get(&pid).map_or(0, |process| process.ticks);
        while used(&tally) < 20 && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(20));
            tally.look();
        }
        let found = used(&tally);
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        assert!(found >= 20 && tally.ticks >= found, "{found} of {}", tally.ticks);
    }
}
