//! The tasks that a request becomes: one for a plain job, several for an array or a parameter sweep. They are
//! counted and numbered here; what one of them has for each parameter is looked up when it is needed.

use super::{BadRequest, JobRequest, bad};
use thiserror::Error;

/// The most tasks that one submission may have.
pub const TASKS_MAX: usize = 100_000;
/// The most parameters of a sweep.
pub(super) const PARAMS_MAX: usize = 64;

/// The tasks of a submission, in order: every combination of parameters for each number of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// The numbers of an array; none for a plain job or a sweep without an array.
    numbers: Option<Vec<u32>>,
    combinations: usize,
    is_plain: bool,
    /// How many of them may run at a time.
    pub at_a_time: Option<u32>,
}

impl Tasks {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.numbers.as_ref().map_or(1, Vec::len) * self.combinations
    }

    /// The number of a task; none for a plain job.
    pub fn number(&self, index: usize) -> Option<u32> {
        match &self.numbers {
            Some(numbers) => numbers.get(index / self.combinations).copied(),
            None => (!self.is_plain).then(|| u32::try_from(index).unwrap_or(u32::MAX)),
        }
    }
}

impl JobRequest {
    /// The tasks that it becomes: one without a number for a plain job.
    pub fn tasks(&self) -> Result<Tasks, BadRequest> {
        if self.params.len() > PARAMS_MAX {
            return Err(bad("params", format!("are more than {PARAMS_MAX}; put them into a file")));
        }
        for param in &self.params {
            let plain = |character: char| character.is_ascii_alphanumeric() || character == '_';
            if param.name.is_empty() || param.name.len() > 64 || !param.name.chars().all(plain) {
                return Err(bad("params", "a name is 1 to 64 letters, digits and underscores"));
            }
            if param.values.is_empty() {
                return Err(bad("params", format!("{} has no values", param.name)));
            }
        }
        let array = self.array.as_deref().map(parse_array).transpose()?;
        let (numbers, at_a_time) =
            array.map_or((None, None), |(numbers, at_a_time)| (Some(numbers), at_a_time));
        let combinations = self.combinations();
        let count = numbers.as_ref().map_or(1, Vec::len).saturating_mul(combinations);
        if count > TASKS_MAX {
            let field = if self.params.is_empty() { "array" } else { "params" };
            return Err(bad(field, format!("makes more than {TASKS_MAX} tasks")));
        }
        Ok(Tasks { numbers, combinations, is_plain: self.params.is_empty(), at_a_time })
    }

    /// In how many ways its parameters combine.
    fn combinations(&self) -> usize {
        self.params.iter().map(|param| param.values.len()).fold(1, usize::saturating_mul)
    }

    /// What a task of this index has for each parameter; the last parameter changes fastest.
    pub fn chosen(&self, index: usize) -> Vec<(&str, &str)> {
        let mut rest = index % self.combinations().max(1);
        let mut chosen = Vec::with_capacity(self.params.len());
        for param in self.params.iter().rev() {
            let count = param.values.len().max(1);
            let value = param.values.get(rest % count).map_or("", String::as_str);
            chosen.push((param.name.as_str(), value));
            rest /= count;
        }
        chosen.reverse();
        chosen
    }
}

/// `0-9:2,14%3` as numbers and how many may run at a time.
fn parse_array(text: &str) -> Result<(Vec<u32>, Option<u32>), BadRequest> {
    let shown: String = text.escape_debug().take(100).collect();
    let wrong = |error: &ListError| match error {
        ListError::Form => bad("array", format!("'{shown}' is not of the form 0-9:2,14%3")),
        error => bad("array", format!("'{shown}' {error}")),
    };
    let (list, at_a_time) = match text.split_once('%') {
        Some((list, limit)) => {
            let limit: u32 = limit.parse().map_err(|_| wrong(&ListError::Form))?;
            if limit == 0 {
                let problem = format!("'{shown}' lets no task run; give 1 or more after %");
                return Err(bad("array", problem));
            }
            (list, Some(limit))
        }
        None => (text, None),
    };
    let numbers = read_numbers(list).map_err(|error| wrong(&error))?;
    Ok((
        numbers.into_iter().map(|number| u32::try_from(number).unwrap_or(u32::MAX)).collect(),
        at_a_time,
    ))
}

/// What is wrong with a list of numbers; follows the list in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ListError {
    /// It is no list.
    #[error("is not a list of numbers such as 1-10:2,14")]
    Form,
    /// Its last number is below its first one.
    #[error("has a range that ends before it begins")]
    Backwards,
    /// The step of a range is zero.
    #[error("has a step of 0; give 1 or more after the colon")]
    NoStep,
    /// No job, task or device has such a number.
    #[error("has a number above {}", u32::MAX)]
    TooLarge,
    /// More work than one request may cause.
    #[error("has more than {TASKS_MAX} numbers; give fewer at a time")]
    TooMany,
}

/// Numbers such as `1-10:2,14`, in order, each once; `None` if it is no such list or far too long.
pub fn parse_numbers(list: &str) -> Option<Vec<u64>> {
    read_numbers(list).ok()
}

/// Numbers such as `1-10:2,14`, in order, each once.
pub(super) fn read_numbers(list: &str) -> Result<Vec<u64>, ListError> {
    let mut numbers = Vec::new();
    // Counted as written: the same numbers a thousand times are as much work.
    let mut left = TASKS_MAX as u64;
    for part in list.split(',') {
        let (range, step) = match part.split_once(':') {
            Some((range, step)) => (range, number(step)?),
            None => (part, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(range)?, number(range)?),
        };
        if step == 0 {
            return Err(ListError::NoStep);
        }
        if first > last {
            return Err(ListError::Backwards);
        }
        left = left.checked_sub((last - first) / step + 1).ok_or(ListError::TooMany)?;
        numbers.extend((first..=last).step_by(usize::try_from(step).unwrap_or(usize::MAX)));
    }
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers)
}

fn number(text: &str) -> Result<u64, ListError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(ListError::Form);
    }
    text.parse::<u32>().map(u64::from).map_err(|_| ListError::TooLarge)
}
