//! Job selectors of the command line.

use super::own_name;
use crate::failure::Failure;
use crate::output::clean;
use tandem_daemon::client::{Client, JobQuery};
use tandem_daemon::job::JobState;
use tandem_daemon::request::parse_numbers;

const PAGE: u32 = 1000;

/// A selector.
#[derive(Debug, PartialEq, Eq)]
enum Selector {
    Last,
    All,
    Numbers(Vec<u64>),
    /// Tasks of a submission that begins with this job.
    Tasks(u64, Vec<u64>),
}

fn parse(text: &str) -> Result<Selector, Failure> {
    let wrong = || {
        let text = clean(text);
        Failure::bad_input(format!(
            "'{text}' names no job; give a number, 1-10:2,14, 17_3, last or all"
        ))
    };
    match text {
        "last" => Ok(Selector::Last),
        "all" => Ok(Selector::All),
        _ => match text.split_once('_') {
            Some((first, tasks)) => {
                let first = first.parse().map_err(|_| wrong())?;
                Ok(Selector::Tasks(first, parse_numbers(tasks).ok_or_else(wrong)?))
            }
            None => parse_numbers(text).map(Selector::Numbers).ok_or_else(wrong),
        },
    }
}

/// The numbers of the selected jobs, each once, in the given order.
pub(super) fn jobs(client: &mut Client, names: &[String]) -> Result<Vec<u64>, Failure> {
    let selectors: Vec<Selector> =
        names.iter().map(|name| parse(name)).collect::<Result<_, _>>()?;
    let mut ids = Vec::new();
    for selector in selectors {
        match selector {
            Selector::Last => ids.push(last(client)?),
            Selector::All => ids.extend(unfinished(client)?),
            Selector::Numbers(numbers) => ids.extend(numbers),
            Selector::Tasks(first, numbers) => ids.extend(tasks(client, first, &numbers)?),
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    ids.retain(|&id| seen.insert(id));
    Ok(ids)
}

/// The only selected job.
pub(super) fn job(client: &mut Client, name: &str) -> Result<u64, Failure> {
    match jobs(client, &[name.to_owned()])?.as_slice() {
        &[id] => Ok(id),
        [] => {
            Err(Failure::not_found("you have no jobs that have not ended; see tandem queue --all"))
        }
        _ => Err(Failure::bad_input(format!("'{}' names several jobs; give one", clean(name)))),
    }
}

fn last(client: &mut Client) -> Result<u64, Failure> {
    let query = JobQuery {
        user: Some(own_name()),
        limit: Some(1),
        latest_first: true,
        ..JobQuery::default()
    };
    let page = client.jobs(&query)?;
    let id = page.jobs.first().map(|job| job.id);
    id.ok_or_else(|| Failure::not_found("you have submitted no job yet; see tandem submit --help"))
}

fn unfinished(client: &mut Client) -> Result<Vec<u64>, Failure> {
    let states = JobState::ALL.into_iter().filter(|state| !state.is_over()).collect();
    let query =
        JobQuery { states, user: Some(own_name()), limit: Some(PAGE), ..JobQuery::default() };
    let mut ids = Vec::new();
    let mut after = None;
    loop {
        let page = client.jobs(&JobQuery { after, ..query.clone() })?;
        ids.extend(page.jobs.iter().map(|job| job.id));
        after = page.next_after;
        if after.is_none() {
            return Ok(ids);
        }
    }
}

fn tasks(client: &mut Client, first: u64, numbers: &[u64]) -> Result<Vec<u64>, Failure> {
    let mut found = Vec::new();
    let mut after = first.checked_sub(1);
    // The jobs of a submission have numbers one after the other.
    'pages: loop {
        let page = client.jobs(&JobQuery { after, limit: Some(PAGE), ..JobQuery::default() })?;
        for job in &page.jobs {
            match job.task {
                Some(task) if task.first == first => {
                    if numbers.contains(&u64::from(task.number)) {
                        found.push(job.id);
                    }
                }
                _ => break 'pages,
            }
        }
        after = page.next_after;
        if after.is_none() {
            break;
        }
    }
    if found.is_empty() {
        return Err(Failure::not_found(format!(
            "job {first} has no such task; see tandem queue --all"
        )));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors() {
        let parse = |text| parse(text).ok();
        assert_eq!(parse("last"), Some(Selector::Last));
        assert_eq!(parse("all"), Some(Selector::All));
        assert_eq!(parse("1-5:2,14"), Some(Selector::Numbers(vec![1, 3, 5, 14])));
        assert_eq!(parse("17_3"), Some(Selector::Tasks(17, vec![3])));
        assert_eq!(parse("17_0-2"), Some(Selector::Tasks(17, vec![0, 1, 2])));
        for wrong in ["", "x", "-1", "1_", "_1", "5-1", "1-99999999999", "\u{1b}[2J", "17_x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
