//! Messages on one line, whatever the quoted files contain.

use std::fmt::{self, Display, Write};

/// Shows `0` with its control characters escaped.
pub(crate) struct OneLine<T>(pub(crate) T);

impl<T: Display> Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if character.is_control() {
                write!(self.0, "{}", character.escape_default())?;
            } else {
                self.0.write_char(character)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::OneLine;

    #[test]
    fn control_characters_are_escaped_and_nothing_else_is() {
        assert_eq!(OneLine("1\r\n0 'é' \u{1b}[31m").to_string(), "1\\r\\n0 'é' \\u{1b}[31m");
    }
}
