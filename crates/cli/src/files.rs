//! Output files: written whole or not at all.

use crate::failure::Failure;
use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// A file that gets its name when it is complete. It is opened and dropped once before a long simulation, so
/// that an unwritable path is reported first, and an interrupted run leaves nothing behind.
pub(crate) struct OutputFile {
    path: PathBuf,
    target: OutputTarget,
}

enum OutputTarget {
    /// Renamed when complete.
    Temporary(NamedTempFile),
    /// A pipe or a device cannot be replaced. Opened only for writing the content: a reader of a pipe takes
    /// the first close for its end.
    Special,
    /// Opening it again would overwrite a redirected file from its beginning.
    StandardOutput,
}

impl OutputFile {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let cannot = |cause: io::Error| {
            Failure::bad_input(format!("{}: cannot be written: {cause}", path.display()))
        };
        // A symbolic link is followed, not replaced.
        let path = &match std::fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() && !is_device(path) => {
                std::fs::canonicalize(path).map_err(cannot)?
            }
            _ => path.to_owned(),
        };
        let target = match std::fs::metadata(path) {
            _ if path.as_os_str() == "/dev/stdout" => OutputTarget::StandardOutput,
            Ok(_) if is_device(path) => OutputTarget::Special,
            Ok(found) if found.is_dir() => {
                let problem = "is a folder; name a file";
                return Err(Failure::bad_input(format!("{}: {problem}", path.display())));
            }
            Ok(found) if !found.is_file() => OutputTarget::Special,
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cannot(cause)),
            _ => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                // Permissions of any new file: a temporary file is private by default.
                let temporary = tempfile::Builder::new()
                    .prefix(".tandem-")
                    .permissions(Permissions::from_mode(0o666))
                    .tempfile_in(parent.unwrap_or(Path::new(".")))
                    .map_err(cannot)?;
                OutputTarget::Temporary(temporary)
            }
        };
        Ok(Self { path: path.to_owned(), target })
    }

    pub(crate) fn write(
        self,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let Self { path, target } = self;
        let cannot = |cause: io::Error| match cause.kind() {
            io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
            _ => Failure::from(io::Error::other(format!("{}: {cause}", path.display()))),
        };
        let fill = |file: &mut dyn Write| {
            let mut buffered = BufWriter::with_capacity(1 << 16, file);
            content(&mut buffered)?;
            buffered.flush()
        };
        match target {
            OutputTarget::Special => {
                let file = std::fs::File::options().write(true).open(&path);
                file.and_then(|mut file| fill(&mut file)).map_err(cannot)
            }
            OutputTarget::StandardOutput => fill(&mut io::stdout().lock()).map_err(cannot),
            OutputTarget::Temporary(mut temporary) => {
                fill(temporary.as_file_mut()).map_err(cannot)?;
                temporary.persist(&path).map_err(|error| cannot(error.error))?;
                Ok(())
            }
        }
    }
}

/// Special files of the system, such as standard output, cannot be replaced.
fn is_device(path: &Path) -> bool {
    path.starts_with("/dev") || path.starts_with("/proc")
}

/// A folder that is created if missing, and removed again unless it is kept.
pub(crate) struct Folder {
    /// Created folders, outermost first.
    made: Vec<PathBuf>,
}

impl Folder {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let missing = path.ancestors().take_while(|folder| {
            !folder.as_os_str().is_empty() && std::fs::symlink_metadata(folder).is_err()
        });
        let missing: Vec<&Path> = missing.collect();
        let mut folder = Self { made: Vec::new() };
        for part in missing.into_iter().rev() {
            if let Err(cause) = std::fs::create_dir(part) {
                let problem = format!("{}: cannot be made a folder: {cause}", path.display());
                return Err(Failure::bad_input(problem));
            }
            folder.made.push(part.to_owned());
        }
        if !path.is_dir() {
            let problem = format!("{}: is not a folder; name another one", path.display());
            return Err(Failure::bad_input(problem));
        }
        Ok(folder)
    }

    pub(crate) fn keep(mut self) {
        self.made.clear();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            // A folder that is not empty stays.
            let _ = std::fs::remove_dir(folder);
        }
    }
}
