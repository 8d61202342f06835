//! A disk that lies, driven by a seed: writes that fail or are cut short, a full disk, an fsync that fails and
//! loses what it should have kept, and a power failure that drops what was not synced.

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sqlite_vfs::{DatabaseHandle, LockKind, OpenOptions, Vfs, WalDisabled};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

/// The name of the file layer.
pub(crate) const LAYER: &str = "tandem-faults";

/// The disks of all runs, by the folder that stands for them.
static DISKS: LazyLock<Mutex<BTreeMap<String, Disk>>> = LazyLock::new(Mutex::default);
static REGISTERED: LazyLock<()> =
    LazyLock::new(|| sqlite_vfs::register(LAYER, Layer, false).unwrap());

/// How often something goes wrong, in parts per thousand of the operations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) write_fails: u32,
    pub(crate) sync_fails: u32,
    pub(crate) read_fails: u32,
    /// No file can grow.
    pub(crate) is_full: bool,
}

#[derive(Default)]
struct File {
    /// As the processes of the machine see it.
    seen: Vec<u8>,
    /// As it is after a power failure.
    kept: Vec<u8>,
    /// What was written and not synced.
    unsynced: Vec<Change>,
}

enum Change {
    Write(usize, Vec<u8>),
    Length(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(at, new) => {
                if bytes.len() < at + new.len() {
                    bytes.resize(at + new.len(), 0);
                }
                bytes[*at..at + new.len()].copy_from_slice(new);
            }
            Change::Length(length) => bytes.resize(*length, 0),
        }
    }
}

struct DiskState {
    files: BTreeMap<String, File>,
    faults: Faults,
    random: ChaCha8Rng,
    /// The process that uses it was killed: nothing that it still does counts.
    is_dead: bool,
}

/// The disk of one run.
#[derive(Clone)]
pub(crate) struct Disk(Arc<Mutex<DiskState>>);

impl Disk {
    /// A disk for the files below a folder of this name.
    pub(crate) fn new(folder: &str, seed: u64) -> Self {
        LazyLock::force(&REGISTERED);
        let disk = Self::empty(seed);
        DISKS.lock().unwrap().insert(folder.to_owned(), disk.clone());
        disk
    }

    fn empty(seed: u64) -> Self {
        let random = ChaCha8Rng::seed_from_u64(seed);
        let (files, faults) = (BTreeMap::new(), Faults::default());
        Self(Arc::new(Mutex::new(DiskState { files, faults, random, is_dead: false })))
    }

    pub(crate) fn set(&self, faults: Faults) {
        self.0.lock().unwrap().faults = faults;
    }

    /// The process is killed, and what it does from now on has no effect.
    pub(crate) fn kill_process(&self) {
        self.0.lock().unwrap().is_dead = true;
    }

    /// Another process uses the disk.
    pub(crate) fn revive(&self) {
        self.0.lock().unwrap().is_dead = false;
    }

    /// The power fails: of what was not synced, some is there and some is not.
    pub(crate) fn fail_power(&self) {
        let mut state = self.0.lock().unwrap();
        let DiskState { files, random, .. } = &mut *state;
        for file in files.values_mut() {
            for change in std::mem::take(&mut file.unsynced) {
                match change {
                    Change::Write(at, new) if random.random_bool(0.3) => {
                        // Torn in the middle.
                        let length = random.random_range(0..=new.len());
                        Change::Write(at, new[..length].to_vec()).apply(&mut file.kept);
                    }
                    change if random.random_bool(0.5) => change.apply(&mut file.kept),
                    _ => {}
                }
            }
            file.seen = file.kept.clone();
        }
    }

    /// Makes room: the run is over.
    pub(crate) fn remove(&self, folder: &str) {
        DISKS.lock().unwrap().remove(folder);
    }
}

/// Writes a file again as it is read, with fsync.
pub(crate) fn rewrite(path: &Path) -> Result<(), Error> {
    let path = path.to_str().unwrap();
    if !Layer.exists(path)? {
        return Ok(());
    }
    let mut file = Handle { disk: disk_of(path)?, path: path.to_owned(), lock: LockKind::None };
    let mut bytes = vec![0; usize::try_from(file.size()?).unwrap()];
    file.read_exact_at(&mut bytes, 0)?;
    file.write_all_at(&bytes, 0)?;
    file.sync(false)
}

/// The folder of temporary files, which have no faults and end with their handles.
const TEMPORARY: &str = "/temporary";

struct Layer;

fn disk_of(path: &str) -> Result<Disk, Error> {
    let folder = path.rsplit_once('/').map_or(path, |(folder, _)| folder);
    DISKS.lock().unwrap().get(folder).cloned().ok_or_else(|| ErrorKind::NotFound.into())
}

impl Vfs for Layer {
    type Handle = Handle;

    fn open(&self, path: &str, _: OpenOptions) -> Result<Handle, Error> {
        let disk = disk_of(path)?;
        disk.0.lock().unwrap().files.entry(path.to_owned()).or_default();
        Ok(Handle { disk, path: path.to_owned(), lock: LockKind::None })
    }

    fn delete(&self, path: &str) -> Result<(), Error> {
        let disk = disk_of(path)?;
        let mut state = disk.0.lock().unwrap();
        if !state.is_dead {
            state.files.remove(path);
        }
        Ok(())
    }

    fn exists(&self, path: &str) -> Result<bool, Error> {
        Ok(disk_of(path)?.0.lock().unwrap().files.contains_key(path))
    }

    fn temporary_name(&self) -> String {
        // Files of their own, which SQLite sorts large results in.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        DISKS.lock().unwrap().entry(TEMPORARY.to_owned()).or_insert_with(|| Disk::empty(0));
        format!("{TEMPORARY}/{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    fn random(&self, buffer: &mut [i8]) {
        buffer.fill(7);
    }

    fn sleep(&self, duration: Duration) -> Duration {
        duration
    }
}

struct Handle {
    disk: Disk,
    path: String,
    lock: LockKind,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.path.starts_with(TEMPORARY) {
            self.disk.0.lock().unwrap().files.remove(&self.path);
        }
    }
}

impl Handle {
    fn with<T>(
        &self,
        work: impl FnOnce(&mut File, &mut ChaCha8Rng, Faults) -> T,
    ) -> Result<T, Error> {
        let mut state = self.disk.0.lock().unwrap();
        if state.is_dead {
            return Err(Error::other("the process was killed"));
        }
        let DiskState { files, random, faults, .. } = &mut *state;
        Ok(work(files.entry(self.path.clone()).or_default(), random, *faults))
    }
}

fn happens(random: &mut impl Rng, per_thousand: u32) -> bool {
    per_thousand > 0 && random.random_range(0..1000) < per_thousand
}

impl DatabaseHandle for Handle {
    type WalIndex = WalDisabled;

    fn size(&self) -> Result<u64, Error> {
        self.with(|file, _, _| file.seen.len() as u64)
    }

    fn read_exact_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        self.with(|file, random, faults| {
            if happens(random, faults.read_fails) {
                return Err(Error::other("cannot be read"));
            }
            let at = usize::try_from(offset).unwrap();
            let bytes = file.seen.get(at..at + buffer.len()).ok_or(ErrorKind::UnexpectedEof)?;
            buffer.copy_from_slice(bytes);
            Ok(())
        })?
    }

    fn write_all_at(&mut self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        self.with(|file, random, faults| {
            let at = usize::try_from(offset).unwrap();
            let is_short = happens(random, faults.write_fails);
            if faults.is_full && at + bytes.len() > file.seen.len() {
                return Err(ErrorKind::WriteZero.into());
            }
            let length = if is_short { random.random_range(0..=bytes.len()) } else { bytes.len() };
            let change = Change::Write(at, bytes[..length].to_vec());
            change.apply(&mut file.seen);
            file.unsynced.push(change);
            if is_short { Err(Error::other("was cut short")) } else { Ok(()) }
        })?
    }

    fn sync(&mut self, _: bool) -> Result<(), Error> {
        self.with(|file, random, faults| {
            let unsynced = std::mem::take(&mut file.unsynced);
            if happens(random, faults.sync_fails) {
                // As Linux does: told once, and what was not kept is not tried again.
                for change in unsynced.iter().filter(|_| random.random_bool(0.5)) {
                    change.apply(&mut file.kept);
                }
                return Err(Error::other("was not kept"));
            }
            unsynced.iter().for_each(|change| change.apply(&mut file.kept));
            Ok(())
        })?
    }

    fn set_len(&mut self, size: u64) -> Result<(), Error> {
        self.with(|file, _, _| {
            let change = Change::Length(usize::try_from(size).unwrap());
            change.apply(&mut file.seen);
            file.unsynced.push(change);
        })
    }

    fn lock(&mut self, lock: LockKind) -> Result<bool, Error> {
        self.lock = lock;
        Ok(true)
    }

    fn reserved(&mut self) -> Result<bool, Error> {
        Ok(false)
    }

    fn current_lock(&self) -> Result<LockKind, Error> {
        Ok(self.lock)
    }

    fn wal_index(&self, _: bool) -> Result<WalDisabled, Error> {
        Ok(WalDisabled)
    }
}
