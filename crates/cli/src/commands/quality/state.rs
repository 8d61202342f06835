//! The file with finished simulations, one JSON line each, from which an interrupted run continues. A line
//! counts only for the same program and inputs.

use super::case::{CaseResults, Figures, QualityCase};
use crate::failure::Failure;
use crate::files::Folder;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A hash of the content of files. Compared only with hashes computed by the same program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Fingerprint(u64);

impl Fingerprint {
    pub(super) fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = DefaultHasher::new();
        for part in parts {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
        Self(hasher.finish())
    }

    pub(super) fn of_file(path: &Path) -> Result<Self, Failure> {
        let cannot = |cause: io::Error| {
            Failure::bad_input(format!("{}: cannot be read: {cause}", path.display()))
        };
        Ok(Self::of([std::fs::read(path).map_err(cannot)?.as_slice()]))
    }

    /// Hash of the running program, because another one may give other results.
    pub(super) fn of_program() -> Result<Self, Failure> {
        Self::of_file(&std::env::current_exe()?)
    }

    pub(super) fn with(self, other: Fingerprint) -> Self {
        Self::of([self.0.to_le_bytes().as_slice(), &other.0.to_le_bytes()])
    }
}

#[derive(Serialize, Deserialize)]
struct ResultLine {
    of: Fingerprint,
    case: QualityCase,
    policy: String,
    figures: Figures,
}

pub(super) struct ResultLog {
    path: PathBuf,
    file: Mutex<File>,
}

impl ResultLog {
    /// Opens or creates the file and reads the results that `is_valid` accepts. A line that was cut off by an
    /// interruption is ignored.
    pub(super) fn open(
        path: &Path,
        is_valid: impl Fn(&QualityCase, Fingerprint) -> bool,
    ) -> Result<(Self, CaseResults), Failure> {
        let cannot = |cause: io::Error| {
            Failure::bad_input(format!("{}: cannot be used: {cause}", path.display()))
        };
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            Folder::open(folder)?.keep();
        }
        let known = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(cause) => return Err(cannot(cause)),
        };
        let mut found = CaseResults::default();
        for line in known.split(|&byte| byte == b'\n') {
            if let Ok(ResultLine { of, case, policy, figures }) = serde_json::from_slice(line)
                && is_valid(&case, of)
            {
                found.insert(&case, &policy, figures);
            }
        }
        let mut file = File::options().append(true).create(true).open(path).map_err(cannot)?;
        if known.last().is_some_and(|&byte| byte != b'\n') {
            file.write_all(b"\n").map_err(cannot)?;
        }
        Ok((Self { path: path.to_owned(), file: Mutex::new(file) }, found))
    }

    /// Appends a result in one write.
    pub(super) fn add(
        &self,
        of: Fingerprint,
        case: &QualityCase,
        policy: &str,
        figures: Figures,
    ) -> Result<(), Failure> {
        let line = ResultLine { of, case: case.clone(), policy: policy.to_owned(), figures };
        let mut text = serde_json::to_string(&line).expect("plain data always serialises");
        text.push('\n');
        let mut file = self.file.lock().expect("no thread panics while it writes");
        file.write_all(text.as_bytes()).map_err(|cause| {
            Failure::from(io::Error::other(format!("{}: {cause}", self.path.display())))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_tell_contents_and_their_borders_apart() {
        let of = |parts: &[&str]| Fingerprint::of(parts.iter().map(|part| part.as_bytes()));
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["a"]).with(of(&["b"])), of(&["b"]).with(of(&["a"])));
    }
}
