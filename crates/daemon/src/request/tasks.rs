//! The tasks that a request becomes: one for a plain job, several for an array or a parameter sweep.

use super::{BadRequest, JobRequest, Param, bad};

/// The most tasks that one submission may have.
pub const TASKS_MAX: usize = 100_000;
/// The most bytes that the parameters of all tasks of a submission may take together.
const PARAMS_MAX_BYTES: usize = 64 << 20;

/// The tasks of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tasks {
    /// Each becomes a job.
    pub tasks: Vec<Task>,
    /// How many of them may run at a time.
    pub at_a_time: Option<u32>,
}

/// One task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its number; none for a plain job.
    pub number: Option<u32>,
    /// What was chosen for each parameter.
    pub params: Vec<(String, String)>,
}

impl JobRequest {
    /// Bytes that the parameters of `tasks` tasks take, each task with a copy of its own.
    fn params_bytes(&self, tasks: usize) -> usize {
        let of_param = |param: &Param| {
            let values: usize = param.values.iter().map(String::len).sum();
            let each = param.name.len() + values / param.values.len().max(1) + 1;
            each.saturating_mul(tasks)
        };
        self.params.iter().map(of_param).fold(0, usize::saturating_add)
    }

    /// The tasks that it becomes: one without a number for a plain job.
    pub fn tasks(&self) -> Result<Tasks, BadRequest> {
        let numbers = self.array.as_deref().map(parse_array).transpose()?;
        let mut count = numbers.as_ref().map_or(1, |(numbers, _)| numbers.len());
        for param in &self.params {
            count = count.saturating_mul(param.values.len());
        }
        if count > TASKS_MAX {
            let field = if self.params.is_empty() { "array" } else { "params" };
            return Err(bad(field, format!("makes more than {TASKS_MAX} tasks")));
        }
        if self.params_bytes(count) > PARAMS_MAX_BYTES {
            return Err(bad("params", "take more than 64 MiB in all tasks; put them into a file"));
        }
        let mut combinations: Vec<Vec<(String, String)>> = vec![Vec::new()];
        for param in &self.params {
            let plain = |character: char| character.is_ascii_alphanumeric() || character == '_';
            if param.name.is_empty() || !param.name.chars().all(plain) {
                return Err(bad("params", "a name is letters, digits and underscores"));
            }
            if param.values.is_empty() {
                return Err(bad("params", format!("{} has no values", param.name)));
            }
            let more = |chosen: Vec<(String, String)>| {
                param.values.iter().map(move |value| {
                    let mut chosen = chosen.clone();
                    chosen.push((param.name.clone(), value.clone()));
                    chosen
                })
            };
            combinations = combinations.into_iter().flat_map(more).collect();
        }
        let Some((numbers, at_a_time)) = numbers else {
            let is_plain = self.params.is_empty();
            let tasks = combinations.into_iter().enumerate();
            let tasks = tasks.map(|(number, params)| Task {
                number: (!is_plain).then(|| u32::try_from(number).unwrap_or(u32::MAX)),
                params,
            });
            return Ok(Tasks { tasks: tasks.collect(), at_a_time: None });
        };
        let tasks = numbers.iter().flat_map(|&number| {
            combinations
                .iter()
                .map(move |params| Task { number: Some(number), params: params.clone() })
        });
        Ok(Tasks { tasks: tasks.collect(), at_a_time })
    }
}

/// `0-9:2,14%3` as numbers and how many may run at a time.
fn parse_array(text: &str) -> Result<(Vec<u32>, Option<u32>), BadRequest> {
    let shown: String = text.escape_debug().take(100).collect();
    let wrong = || bad("array", format!("'{shown}' is not of the form 0-9:2,14%3"));
    let (list, at_a_time) = match text.split_once('%') {
        Some((list, limit)) => {
            let limit: u32 = limit.parse().ok().filter(|&limit| limit > 0).ok_or_else(wrong)?;
            (list, Some(limit))
        }
        None => (text, None),
    };
    let numbers = parse_numbers(list).ok_or_else(wrong)?;
    Ok((
        numbers.into_iter().map(|number| u32::try_from(number).unwrap_or(u32::MAX)).collect(),
        at_a_time,
    ))
}

/// Numbers such as `1-10:2,14`, in order, each once; `None` if it is no such list or far too long.
pub fn parse_numbers(list: &str) -> Option<Vec<u64>> {
    let mut numbers = std::collections::BTreeSet::new();
    // Counted as written: the same numbers a thousand times are as much work.
    let mut left = TASKS_MAX as u64;
    for part in list.split(',') {
        let (range, step) = match part.split_once(':') {
            Some((range, step)) => (range, step.parse::<u64>().ok().filter(|&step| step > 0)?),
            None => (part, 1),
        };
        let (first, last) = match range.split_once('-') {
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None => {
                let number: u64 = range.parse().ok()?;
                (number, number)
            }
        };
        if first > last || last > u64::from(u32::MAX) {
            return None;
        }
        left = left.checked_sub((last - first) / step + 1)?;
        numbers.extend((first..=last).step_by(usize::try_from(step).ok()?));
    }
    Some(numbers.into_iter().collect())
}
