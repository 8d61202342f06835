//! Job selectors of the command line.

use super::own_name;
use crate::failure::Failure;
use crate::output::clean;
use tandem_daemon::client::{Client, JobQuery};
use tandem_daemon::job::JobState;
use tandem_daemon::request::Selector;

const PAGE: u32 = 1000;

fn parse(text: &str) -> Result<Selector, Failure> {
    Selector::parse(text).map_err(|error| Failure::bad_input(Selector::problem(text, error)))
}

/// Checks selectors that the daemon will resolve.
pub(super) fn check(names: &[String]) -> Result<(), Failure> {
    names.iter().try_for_each(|name| parse(name).map(drop))
}

/// The numbers of the selected jobs, each once, in the given order. With `arrays` the first job of an array
/// stands for all of its tasks.
pub(super) fn jobs(
    client: &mut Client,
    names: &[String],
    arrays: bool,
) -> Result<Vec<u64>, Failure> {
    let selectors: Vec<Selector> =
        names.iter().map(|name| parse(name)).collect::<Result<_, _>>()?;
    let mut ids = Vec::new();
    for selector in selectors {
        match selector {
            Selector::Last => ids.push(last(client)?),
            Selector::All => ids.extend(unfinished(client)?),
            Selector::Jobs(numbers) => match numbers.as_slice() {
                &[id] if arrays => ids.extend(with_its_array(client, id)?),
                _ => ids.extend(numbers),
            },
            Selector::Tasks(first, numbers) => {
                ids.extend(tasks(client, first, numbers.as_deref())?);
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    ids.retain(|&id| seen.insert(id));
    Ok(ids)
}

/// A job, or all tasks of the array that begins with it.
fn with_its_array(client: &mut Client, id: u64) -> Result<Vec<u64>, Failure> {
    let task = client.job(id)?.value.job.line.task;
    if task.is_some_and(|task| task.first == id) {
        return tasks(client, id, None);
    }
    Ok(vec![id])
}

/// The only selected job.
pub(super) fn job(client: &mut Client, name: &str) -> Result<u64, Failure> {
    match jobs(client, &[name.to_owned()], false)?.as_slice() {
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

fn tasks(client: &mut Client, first: u64, numbers: Option<&[u64]>) -> Result<Vec<u64>, Failure> {
    let mut found = Vec::new();
    let mut after = first.checked_sub(1);
    // The jobs of a submission have numbers one after the other.
    'pages: loop {
        let page = client.jobs(&JobQuery { after, limit: Some(PAGE), ..JobQuery::default() })?;
        for job in &page.jobs {
            match job.task {
                Some(task) if task.first == first => {
                    if numbers.is_none_or(|list| list.contains(&u64::from(task.number))) {
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
