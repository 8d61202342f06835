//! Why a run could not be started, and whether the cause is transient.

use std::io;

/// Why a run could not be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StartError {
    /// In one line.
    pub(super) reason: String,
    /// The disk or the user's quota is full: there may be room later.
    pub(super) transient: bool,
}

impl StartError {
    /// What was tried, and the system's error.
    pub(super) fn new(what: impl std::fmt::Display, error: &io::Error) -> Self {
        StartError { reason: format!("{what}: {error}"), transient: is_full(error) }
    }
}

impl From<String> for StartError {
    fn from(reason: String) -> Self {
        StartError { reason, transient: false }
    }
}

impl From<&str> for StartError {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

/// Whether a disk or a quota is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_disk_is_transient() {
        let full = StartError::new("cannot write x", &io::Error::from_raw_os_error(28));
        assert_eq!(full.reason, "cannot write x: No space left on device (os error 28)");
        assert!(full.transient);
        assert!(is_full(&io::Error::from_raw_os_error(122)));
        assert!(!is_full(&io::ErrorKind::NotFound.into()));
        assert!(!StartError::from("the command is empty").transient);
    }
}
