//! Secrets that nobody can guess, and that are compared without telling how much of a guess is right.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};

/// 256 random bits in hexadecimal.
#[derive(Clone)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new() -> io::Result<Self> {
        let mut random = [0_u8; 32];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        Ok(Self(random.iter().fold(String::new(), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })))
    }

    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on where the first difference is.
    pub(crate) fn is(&self, other: &str) -> bool {
        let (own, other) = (self.0.as_bytes(), other.as_bytes());
        own.len() == other.len() && own.iter().zip(other).fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_match_only_themselves() {
        let (one, other) = (Secret::new().expect("random"), Secret::new().expect("random"));
        assert_eq!(one.text().len(), 64);
        assert!(one.is(one.text()) && !one.is(other.text()));
        assert!(!one.is("") && !one.is(&one.text()[1..]) && !one.is(&format!("{}0", one.text())));
    }
}
