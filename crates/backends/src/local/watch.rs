//! Waits for the ends of processes and for news in the directories of runs that are about to begin.

use super::process::ProcessId;
use super::record::RUNNING;
use super::run::{LocalRun, lock};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fs::inotify;
use rustix::process::{WaitId, WaitIdOptions, waitid};
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Names the descriptor that wakes the watcher.
const WAKE: u64 = 0;
/// Names that of the directories.
const NEWS: u64 = 1;
/// The first name of a process.
const FIRST: u64 = 2;

/// What is watched. Any thread may add to it; one waits.
#[derive(Debug)]
pub(super) struct Watcher {
    epoll: OwnedFd,
    wake: OwnedFd,
    inotify: Option<OwnedFd>,
    watched: Mutex<WatchList>,
}

#[derive(Debug, Default)]
struct WatchList {
    next: u64,
    processes: BTreeMap<u64, (Arc<LocalRun>, ProcessId, OwnedFd)>,
    directories: BTreeMap<i32, Arc<LocalRun>>,
    later: Vec<Arc<LocalRun>>,
    looked: Option<Instant>,
}

impl WatchList {
    /// How often to look without being told: events of directories are a quick way, not the only one.
    fn period(&self) -> Option<Duration> {
        match self.directories.first_key_value() {
            Some((&lowest, _)) if lowest < 0 => Some(Duration::from_millis(5)),
            None if self.later.is_empty() => None,
            _ => Some(Duration::from_millis(100)),
        }
    }
}

/// Something to look at.
#[derive(Debug)]
pub(super) enum WatchEvent {
    /// A process of the run has ended.
    Ended(Arc<LocalRun>, ProcessId),
    /// There may be something new in the directory of a run.
    Directory(Arc<LocalRun>),
}

impl Watcher {
    /// One that watches nothing.
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        // The number of these is limited per user; without one, directories are looked at in turn.
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags).ok();
        if let Some(inotify) = &inotify {
            epoll::add(&epoll, inotify, epoll::EventData::new_u64(NEWS), epoll::EventFlags::IN)?;
        }
        Ok(Watcher { epoll, wake, inotify, watched: Mutex::default() })
    }

    /// Waits for the end of a process.
    pub(super) fn process(
        &self,
        run: &Arc<LocalRun>,
        process: &ProcessId,
        fd: OwnedFd,
    ) -> io::Result<()> {
        let mut watched = lock(&self.watched);
        let key = FIRST + watched.next;
        watched.next += 1;
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        watched.processes.insert(key, (run.clone(), process.clone(), fd));
        Ok(())
    }

    /// Waits for the program of a run to begin.
    pub(super) fn directory(&self, run: &Arc<LocalRun>, dir: &Path) {
        let mut watched = lock(&self.watched);
        if watched.directories.values().any(|known| known.id == run.id) {
            return;
        }
        let flags = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        let name = self.inotify.as_ref().and_then(|fd| inotify::add_watch(fd, dir, flags).ok());
        // One that cannot be watched gets a name that the system does not use.
        let name = name.unwrap_or_else(|| {
            watched.directories.first_key_value().map_or(-1, |(&lowest, _)| lowest.min(0) - 1)
        });
        watched.directories.insert(name, run.clone());
        drop(watched);
        self.wake();
    }

    /// Looks at a run again in a while, since it cannot be watched at present.
    pub(super) fn later(&self, run: &Arc<LocalRun>) {
        let mut watched = lock(&self.watched);
        if !watched.later.iter().any(|known| known.id == run.id) {
            watched.later.push(run.clone());
        }
        drop(watched);
        self.wake();
    }

    /// The program of a run has begun, or never will.
    pub(super) fn leave_directory(&self, run: &LocalRun) {
        let mut watched = lock(&self.watched);
        let name =
            watched.directories.iter().find(|(_, known)| known.id == run.id).map(|(&name, _)| name);
        if let Some(name) = name {
            watched.directories.remove(&name);
            if let Some(inotify) = self.inotify.as_ref().filter(|_| name >= 0) {
                let _ = inotify::remove_watch(inotify, name);
            }
        }
    }

    /// Makes `wait` return.
    pub(super) fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Waits until there is something to look at.
    pub(super) fn wait(&self) -> Vec<WatchEvent> {
        let timeout = lock(&self.watched).period();
        let timeout = timeout.and_then(|period| Timespec::try_from(period).ok());
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.epoll, buffer, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let mut news = Vec::new();
        for event in &events {
            match event.data.u64() {
                WAKE => {
                    let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
                }
                NEWS => self.read_directories(&mut news),
                key => {
                    let ended = lock(&self.watched).processes.remove(&key);
                    if let Some((run, process, fd)) = ended {
                        // Fails for those that are not children of this process.
                        let _ = waitid(
                            WaitId::PidFd(fd.as_fd()),
                            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
                        );
                        news.push(WatchEvent::Ended(run, process));
                    }
                }
            }
        }
        let mut watched = lock(&self.watched);
        let period = watched.period();
        if period.is_some_and(|period| watched.looked.is_none_or(|last| last.elapsed() >= period)) {
            watched.looked = Some(Instant::now());
            news.extend(watched.directories.values().cloned().map(WatchEvent::Directory));
            news.extend(watched.later.drain(..).map(WatchEvent::Directory));
        }
        news
    }

    /// Reads what is new in directories.
    fn read_directories(&self, news: &mut Vec<WatchEvent>) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        while let Ok(event) = reader.next() {
            let begun = event.file_name().is_some_and(|name| name.to_bytes() == RUNNING.as_bytes());
            if begun && let Some(run) = lock(&self.watched).directories.get(&event.wd()) {
                news.push(WatchEvent::Directory(run.clone()));
            }
        }
    }
}
