//! Waits for the end of processes, and for changes in the directories of runs that are starting.

use super::process::ProcessIdentity;
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

/// Epoll key of the descriptor that wakes the watcher.
const WAKE: u64 = 0;
/// Epoll key of the inotify descriptor.
const DIRECTORIES: u64 = 1;
/// The first epoll key of a process.
const FIRST_PROCESS: u64 = 2;

/// Watches processes and directories. Any thread may add to it; one thread waits.
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
    processes: BTreeMap<u64, (Arc<LocalRun>, ProcessIdentity, OwnedFd)>,
    directories: BTreeMap<i32, Arc<LocalRun>>,
    retries: Vec<Arc<LocalRun>>,
    polled: Option<Instant>,
}

impl WatchList {
    /// The polling interval: inotify is quick but may be unavailable.
    fn poll_interval(&self) -> Option<Duration> {
        match self.directories.first_key_value() {
            Some((&lowest, _)) if lowest < 0 => Some(Duration::from_millis(5)),
            None if self.retries.is_empty() => None,
            _ => Some(Duration::from_millis(100)),
        }
    }
}

/// A run to probe.
#[derive(Debug)]
pub(super) enum WatchEvent {
    /// A process of the run has ended.
    Ended(Arc<LocalRun>, ProcessIdentity),
    /// The directory of a run may have changed.
    Directory(Arc<LocalRun>),
}

impl Watcher {
    /// Watches nothing yet.
    pub(super) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        // Their number is limited per user; without one, directories are polled.
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let inotify = inotify::init(flags).ok();
        if let Some(inotify) = &inotify {
            epoll::add(
                &epoll,
                inotify,
                epoll::EventData::new_u64(DIRECTORIES),
                epoll::EventFlags::IN,
            )?;
        }
        Ok(Watcher { epoll, wake, inotify, watched: Mutex::default() })
    }

    /// Watches a process for its end.
    pub(super) fn watch_process(
        &self,
        run: &Arc<LocalRun>,
        process: &ProcessIdentity,
        fd: OwnedFd,
    ) -> io::Result<()> {
        let mut watched = lock(&self.watched);
        let key = FIRST_PROCESS + watched.next;
        watched.next += 1;
        epoll::add(&self.epoll, &fd, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        watched.processes.insert(key, (run.clone(), process.clone(), fd));
        Ok(())
    }

    /// Watches the directory of a run for the start of its program.
    pub(super) fn watch_directory(&self, run: &Arc<LocalRun>, dir: &Path) {
        let mut watched = lock(&self.watched);
        if watched.directories.values().any(|known| known.id == run.id) {
            return;
        }
        let flags = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        let name = self.inotify.as_ref().and_then(|fd| inotify::add_watch(fd, dir, flags).ok());
        // A directory that cannot be watched gets a key that inotify does not use.
        let name = name.unwrap_or_else(|| {
            watched.directories.first_key_value().map_or(-1, |(&lowest, _)| lowest.min(0) - 1)
        });
        watched.directories.insert(name, run.clone());
        drop(watched);
        self.wake();
    }

    /// Has a run probed again later, because it cannot be watched at present.
    pub(super) fn retry_later(&self, run: &Arc<LocalRun>) {
        let mut watched = lock(&self.watched);
        if !watched.retries.iter().any(|known| known.id == run.id) {
            watched.retries.push(run.clone());
        }
        drop(watched);
        self.wake();
    }

    /// The program of a run has started, or never will.
    pub(super) fn unwatch_directory(&self, run: &LocalRun) {
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

    /// Waits until there are runs to probe.
    pub(super) fn wait(&self) -> Vec<WatchEvent> {
        let timeout = lock(&self.watched).poll_interval();
        let timeout = timeout.and_then(|period| Timespec::try_from(period).ok());
        let mut events: Vec<epoll::Event> = Vec::with_capacity(64);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.epoll, buffer, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let mut changes = Vec::new();
        for event in &events {
            match event.data.u64() {
                WAKE => {
                    let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
                }
                DIRECTORIES => self.read_directories(&mut changes),
                key => {
                    let ended = lock(&self.watched).processes.remove(&key);
                    if let Some((run, process, fd)) = ended {
                        // Reaps it if it is a child of this process.
                        let _ = waitid(
                            WaitId::PidFd(fd.as_fd()),
                            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
                        );
                        changes.push(WatchEvent::Ended(run, process));
                    }
                }
            }
        }
        let mut watched = lock(&self.watched);
        let interval = watched.poll_interval();
        if interval
            .is_some_and(|interval| watched.polled.is_none_or(|last| last.elapsed() >= interval))
        {
            watched.polled = Some(Instant::now());
            changes.extend(watched.directories.values().cloned().map(WatchEvent::Directory));
            changes.extend(watched.retries.drain(..).map(WatchEvent::Directory));
        }
        changes
    }

    /// Reads changes of directories.
    fn read_directories(&self, changes: &mut Vec<WatchEvent>) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        while let Ok(event) = reader.next() {
            let has_started =
                event.file_name().is_some_and(|name| name.to_bytes() == RUNNING.as_bytes());
            if has_started && let Some(run) = lock(&self.watched).directories.get(&event.wd()) {
                changes.push(WatchEvent::Directory(run.clone()));
            }
        }
    }
}
