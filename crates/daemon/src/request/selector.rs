//! How people name jobs: `17`, `1-10:2,14`, `17_3`, `17_*`, `17_[1-5,9]`, `last`, `all`.

use super::tasks::{ListError, read_numbers};

/// Characters of a text that a message repeats.
const SHOWN_MAX: usize = 40;

/// Names jobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Selector {
    /// The latest job of the user.
    Last,
    /// All jobs of the user that have not ended.
    All,
    /// These jobs. The first job of an array, given alone, stands for its array.
    Jobs(Vec<u64>),
    /// Tasks of the array that begins with a job; all of them without numbers.
    Tasks(u64, Option<Vec<u64>>),
}

impl Selector {
    /// Reads one.
    pub fn parse(text: &str) -> Result<Self, ListError> {
        match text {
            "last" => return Ok(Selector::Last),
            "all" => return Ok(Selector::All),
            _ => {}
        }
        let Some((first, tasks)) = text.split_once('_') else {
            return read_numbers(text).map(Selector::Jobs);
        };
        let first = first.parse().map_err(|_| ListError::Form)?;
        let listed = tasks.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        match listed.unwrap_or(tasks) {
            "*" => Ok(Selector::Tasks(first, None)),
            numbers => Ok(Selector::Tasks(first, Some(read_numbers(numbers)?))),
        }
    }

    /// What a text that names no job is told.
    pub fn problem(text: &str, error: ListError) -> String {
        let mut shown: String = text.escape_debug().take(SHOWN_MAX).collect();
        if text.chars().count() > SHOWN_MAX {
            shown.push('…');
        }
        match error {
            ListError::Form => format!("'{shown}' names no job; give {}", Self::FORMS),
            error => format!("'{shown}' {error}"),
        }
    }

    /// How many jobs it names; an array counts as one.
    pub(crate) fn len(&self) -> usize {
        match self {
            Selector::Jobs(jobs) | Selector::Tasks(_, Some(jobs)) => jobs.len(),
            Selector::Last | Selector::All | Selector::Tasks(_, None) => 1,
        }
    }

    /// The forms, for a message.
    pub const FORMS: &'static str = "a number, 1-10:2,14, 17_3, 17_*, last or all";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_read() {
        let parse = Selector::parse;
        assert_eq!(parse("last"), Ok(Selector::Last));
        assert_eq!(parse("all"), Ok(Selector::All));
        assert_eq!(parse("1-5:2,14"), Ok(Selector::Jobs(vec![1, 3, 5, 14])));
        assert_eq!(parse("17_3"), Ok(Selector::Tasks(17, Some(vec![3]))));
        assert_eq!(parse("17_0-2"), Ok(Selector::Tasks(17, Some(vec![0, 1, 2]))));
        assert_eq!(parse("17_[0,2]"), Ok(Selector::Tasks(17, Some(vec![0, 2]))));
        assert_eq!(
            (parse("17_*"), parse("17_[*]")),
            (Ok(Selector::Tasks(17, None)), parse("17_*"))
        );
        let wrong = [
            "",
            "x",
            "-1",
            "1_",
            "_1",
            "5-1",
            "1-99999999999",
            "\u{1b}[2J",
            "17_x",
            "17_[1",
            "17_**",
        ];
        for wrong in wrong {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_message_says_what_is_wrong_and_is_short() {
        let told = |text: &str| Selector::problem(text, Selector::parse(text).unwrap_err());
        assert_eq!(
            told("1-100001"),
            "'1-100001' has more than 100000 numbers; give fewer at a time"
        );
        assert_eq!(told("9-3"), "'9-3' has a range that ends before it begins");
        assert_eq!(told("17_1-9:0"), "'17_1-9:0' has a step of 0; give 1 or more after the colon");
        assert!(told("seventeen").starts_with("'seventeen' names no job; give "));
        let long = told(&"9".repeat(300));
        assert!(long.ends_with("…' has a number above 4294967295") && long.len() < 100, "{long}");
    }
}
