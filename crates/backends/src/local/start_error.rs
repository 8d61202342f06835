//! Why something could not be done, and whether that may pass by itself.

use std::io;

/// What was in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StartError {
    /// In one line.
    pub(super) reason: String,
    /// The disk is full, or the user's part of it: somebody may make room.
    pub(super) transient: bool,
}

impl StartError {
    /// What was tried, and how the system refused.
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

/// Whether a disk had no room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_may_be_made_and_a_missing_file_stays_missing() {
        let full = StartError::new("cannot write x", &io::Error::from_raw_os_error(28));
        assert_eq!(full.reason, "cannot write x: No space left on device (os error 28)");
        assert!(full.transient);
        assert!(is_full(&io::Error::from_raw_os_error(122)));
        assert!(!is_full(&io::ErrorKind::NotFound.into()));
        assert!(!StartError::from("the command is empty").transient);
    }
}
