//! How people name jobs: `17`, `1-10:2,14`, `17_3`, `17_*`, `17_[1-5,9]`, `last`, `all`.

use super::tasks::parse_numbers;

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
    /// Reads one; `None` if the text is none.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "last" => return Some(Selector::Last),
            "all" => return Some(Selector::All),
            _ => {}
        }
        let Some((first, tasks)) = text.split_once('_') else {
            return parse_numbers(text).map(Selector::Jobs);
        };
        let first = first.parse().ok()?;
        let listed = tasks.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        match listed.unwrap_or(tasks) {
            "*" => Some(Selector::Tasks(first, None)),
            numbers => Some(Selector::Tasks(first, Some(parse_numbers(numbers)?))),
        }
    }

    /// How many jobs it names; an array counts as one.
    pub(super) fn len(&self) -> usize {
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
        assert_eq!(parse("last"), Some(Selector::Last));
        assert_eq!(parse("all"), Some(Selector::All));
        assert_eq!(parse("1-5:2,14"), Some(Selector::Jobs(vec![1, 3, 5, 14])));
        assert_eq!(parse("17_3"), Some(Selector::Tasks(17, Some(vec![3]))));
        assert_eq!(parse("17_0-2"), Some(Selector::Tasks(17, Some(vec![0, 1, 2]))));
        assert_eq!(parse("17_[0,2]"), Some(Selector::Tasks(17, Some(vec![0, 2]))));
        assert_eq!(
            (parse("17_*"), parse("17_[*]")),
            (Some(Selector::Tasks(17, None)), parse("17_*"))
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
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }
}
