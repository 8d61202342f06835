//! Output as a terminal would show it, line by line.

/// Splits output into what was on a line at some time: bars overwrite their line with carriage returns,
/// backspaces or movements of the cursor. Colours and other control sequences are left out.
pub(super) fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let breaks = match character {
            '\r' | '\n' | '\u{8}' => true,
            '\u{1b}' => match characters.next() {
                Some('[') => {
                    let last = characters.find(|next| ('\u{40}'..='\u{7e}').contains(next));
                    // Everything but colours and erasing moves the cursor.
                    last.is_some_and(|last| !matches!(last, 'm' | 'K' | 'J' | 'h' | 'l'))
                }
                Some(']') => {
                    // A title, until a bell or the end of the sequence.
                    while let Some(next) = characters.next_if(|next| *next != '\n') {
                        if next == '\u{7}' || next == '\u{1b}' {
                            break;
                        }
                    }
                    false
                }
                _ => false,
            },
            _ => false,
        };
        match lines.last_mut() {
            _ if breaks => lines.push(String::new()),
            Some(line) if !character.is_control() => line.push(character),
            Some(line) if character == '\t' => line.push(' '),
            _ => {}
        }
    }
    lines.retain(|line| !line.trim().is_empty());
    lines
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LinePart {
    /// Letters, digits and underscores that begin with a letter; in lower case.
    Text(String),
    /// A whole number.
    Number(u64),
    /// A number with a fraction.
    Fraction,
    /// Anything else but a space.
    Sign(char),
}

/// The parts of a line, at most `most`.
pub(super) fn tokens(line: &str, most: usize) -> Vec<LinePart> {
    let mut tokens = Vec::new();
    let mut rest = line.char_indices().peekable();
    while let Some((start, character)) = rest.next() {
        if tokens.len() == most {
            break;
        }
        if character.is_whitespace() {
            continue;
        }
        let mut end = start + character.len_utf8();
        let mut take = |accepts: &dyn Fn(char) -> bool| {
            while let Some((at, next)) = rest.next_if(|&(_, next)| accepts(next)) {
                end = at + next.len_utf8();
            }
        };
        let token = if character.is_alphabetic() || character == '_' {
            take(&|next| next.is_alphanumeric() || next == '_');
            LinePart::Text(line[start..end].to_lowercase())
        } else if character.is_ascii_digit() {
            take(&|next| next.is_ascii_digit() || matches!(next, '.' | ',' | 'e'));
            number(&line[start..end])
        } else {
            LinePart::Sign(character)
        };
        tokens.push(token);
    }
    tokens
}

/// `1200`, `1,200` or `1200,` as a number; anything else with a point is a fraction.
fn number(text: &str) -> LinePart {
    let text = text.trim_end_matches([',', '.']);
    let digits: String = text.chars().filter(|&digit| digit != ',').collect();
    digits.parse().map_or(LinePart::Fraction, LinePart::Number)
}
