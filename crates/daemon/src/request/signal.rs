//! Names of signals.

/// Signals that a program can catch and that mean nothing else to the scheduler.
const NAMES: [(&str, i32); 9] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("USR1", 10),
    ("USR2", 12),
    ("ALRM", 14),
    ("TERM", 15),
    ("XCPU", 24),
    ("WINCH", 28),
];

/// The number of a signal: `USR1`, `SIGUSR1` or `10`.
pub(super) fn number(text: &str) -> Option<i32> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let is_it = |(one, number): &&(&str, i32)| *one == name || number.to_string() == name;
    NAMES.iter().find(is_it).map(|&(_, number)| number)
}

/// The names, for a message.
pub(super) fn names() -> String {
    NAMES.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(
            (number("USR1"), number("SIGTERM"), number("sigint")),
            (Some(10), Some(15), Some(2))
        );
        assert_eq!(number("10"), Some(10));
        for wrong in ["", "SIG", "KILL", "9", "STOP", "19", "-1", "TERM ", "999999999999"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
