//! Resolves selectors and dependencies to jobs.

use super::{AdmissionControl, Caller, CommandOutcome, PastJobs, Refusal};
use crate::job::{JobState, StoredJob};
use crate::request::{After, Dependency, DependencyName, Selector};
use crate::scheduler::{Active, JobAction};
use std::collections::{BTreeMap, BTreeSet};

/// The most dependencies of a job, counted by tasks.
const DEPENDENCIES_MAX: usize = 10_000;

/// The most arrays of which a dependency may name single tasks.
const ARRAYS_MAX: usize = 16;
/// The most jobs that a request may name by id.
const NAMED_MAX: usize = 10_000;

/// Tasks that have not ended by their numbers, of the arrays that were named. Parameters make several tasks of a
/// number.
type Arrays = BTreeMap<u64, BTreeMap<u64, Vec<u64>>>;
/// The dependencies of a submission, and the final states of those that have ended.
type Dependencies = (Vec<Dependency>, Vec<(u64, JobState)>);

impl AdmissionControl<'_> {
    /// The selected jobs, divided into those to which the change applies and the others. Jobs of a group, such
    /// as an array, to which it does not apply are left out, unless no job remains.
    pub(super) fn select(
        &self,
        caller: &Caller,
        action: JobAction,
        selectors: &[Selector],
        history: &dyn PastJobs,
    ) -> Result<CommandOutcome, Refusal> {
        let mut outcome = CommandOutcome::default();
        let (mut seen, mut resolved) = (BTreeSet::new(), BTreeSet::new());
        let mut arrays = BTreeMap::new();
        for selector in selectors {
            // Each is resolved once, so that the work does not grow with repetitions.
            if !resolved.insert(selector) {
                continue;
            }
            let (ids, is_group) = self.named(caller, selector, &mut arrays, history)?;
            if !is_group && seen.len() + ids.len() > NAMED_MAX {
                let message = format!("names more than {NAMED_MAX} jobs; name fewer at a time");
                return Err(Refusal::Bad(message));
            }
            let mut refused = Vec::new();
            let before = outcome.done.len();
            for id in ids {
                if !seen.insert(id) {
                    continue;
                }
                match self.check(caller, id, history).and_then(|()| self.applies(action, id)) {
                    Ok(()) => outcome.done.push(id),
                    Err(refusal) => refused.push((id, refusal)),
                }
            }
            if !is_group || outcome.done.len() == before {
                outcome.failed.extend(refused);
            }
        }
        Ok(outcome)
    }

    /// The jobs of a selector, and whether it names them as a group.
    fn named(
        &self,
        caller: &Caller,
        selector: &Selector,
        arrays: &mut Arrays,
        history: &dyn PastJobs,
    ) -> Result<(Vec<u64>, bool), Refusal> {
        Ok(match selector {
            Selector::All => {
                let own = self.scheduler.jobs().filter(|active| active.job.uid == caller.uid);
                (own.map(|active| active.job.id).collect(), true)
            }
            Selector::Last => self.with_its_array(self.last(caller, history)?, history),
            Selector::Jobs(ids) => match ids.as_slice() {
                &[id] => self.with_its_array(id, history),
                ids => (ids.to_vec(), false),
            },
            Selector::Tasks(first, numbers) => {
                let tasks = arrays.entry(*first).or_insert_with(|| self.tasks_of(*first));
                let ids: Vec<u64> = match numbers {
                    Some(list) => {
                        list.iter().filter_map(|n| tasks.get(n)).flatten().copied().collect()
                    }
                    None => tasks.values().flatten().copied().collect(),
                };
                if ids.is_empty() {
                    let message = format!(
                        "array {first} has no such task that has not ended; see tandem queue --all"
                    );
                    return Err(Refusal::NotFound(message));
                }
                (ids, true)
            }
        })
    }

    fn tasks_of(&self, first: u64) -> BTreeMap<u64, Vec<u64>> {
        let mut tasks: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for Active { job, .. } in self.scheduler.tasks(first) {
            let number = job.task.map_or(0, |task| u64::from(task.number));
            tasks.entry(number).or_default().push(job.id);
        }
        tasks
    }

    fn last(&self, caller: &Caller, history: &dyn PastJobs) -> Result<u64, Refusal> {
        let message = "you have submitted no job yet; see tandem submit --help";
        history.last(&caller.user).ok_or_else(|| Refusal::NotFound(message.to_owned()))
    }

    /// A job, or the tasks of the array that begins with it that have not ended.
    fn with_its_array(&self, id: u64, history: &dyn PastJobs) -> (Vec<u64>, bool) {
        if self.array_of(id, history).is_some_and(|first| first != id) {
            return (vec![id], false);
        }
        let tasks: Vec<u64> = self.scheduler.tasks(id).map(|active| active.job.id).collect();
        if tasks.is_empty() { (vec![id], false) } else { (tasks, true) }
    }

    /// The first job of the array of a job.
    fn array_of(&self, id: u64, history: &dyn PastJobs) -> Option<u64> {
        match self.scheduler.job(id) {
            Some(active) => active.job.task.map(|task| task.first),
            None => history.past(id)?.array,
        }
    }

    /// The jobs that a submission depends on.
    pub(super) fn dependencies(
        &self,
        caller: &Caller,
        names: &[DependencyName],
        history: &dyn PastJobs,
    ) -> Result<Dependencies, Refusal> {
        let (mut depends, mut over) = (Vec::new(), Vec::new());
        // Each name is resolved once, and tasks of few arrays only, so that the work does not grow with the
        // request.
        let mut seen = BTreeSet::new();
        let mut arrays = BTreeSet::new();
        for DependencyName { after, jobs } in names {
            if !seen.insert((*after as u8, jobs)) {
                continue;
            }
            if let Selector::Tasks(first, Some(_)) = jobs
                && arrays.insert(*first)
                && arrays.len() > ARRAYS_MAX
            {
                let message = format!("dependency: names tasks of more than {ARRAYS_MAX} arrays");
                return Err(Refusal::Bad(message));
            }
            let after = *after;
            match jobs {
                Selector::All => {}
                Selector::Last => {
                    let last = self.last(caller, history)?;
                    let first = self.array_of(last, history).unwrap_or(last);
                    self.depend(after, first, history, &mut depends, &mut over)?;
                }
                Selector::Jobs(ids) => {
                    for &id in ids {
                        self.depend(after, id, history, &mut depends, &mut over)?;
                    }
                }
                Selector::Tasks(first, None) => {
                    self.depend(after, *first, history, &mut depends, &mut over)?;
                }
                Selector::Tasks(first, Some(numbers)) => {
                    self.depend_on_tasks(after, *first, numbers, history, &mut depends, &mut over)?;
                }
            }
            if depends.len() > DEPENDENCIES_MAX {
                let message = format!("dependency: names more than {DEPENDENCIES_MAX} jobs");
                return Err(Refusal::Bad(message));
            }
        }
        Ok((depends, over))
    }

    /// Resolves a dependency on a job, or on the whole array that it begins.
    fn depend(
        &self,
        after: After,
        id: u64,
        history: &dyn PastJobs,
        depends: &mut Vec<Dependency>,
        over: &mut Vec<(u64, JobState)>,
    ) -> Result<(), Refusal> {
        // A job of this very cycle: the scheduler will find out whether it is an array.
        let is_new = (self.scheduler.next_job()..self.next_job).contains(&id);
        let stored = match self.scheduler.job(id) {
            None if !is_new => Some(
                history
                    .past(id)
                    .ok_or_else(|| Refusal::Bad(format!("dependency: there is no job {id}")))?,
            ),
            _ => None,
        };
        let array = is_new || self.array_of(id, history) == Some(id);
        let failed = array && !is_new && history.has_failed_task(id);
        if let Some(stored) = stored.filter(|_| !array) {
            over.push((id, stored.state));
        }
        depends.push(Dependency { array, failed, ..Dependency::on(after, id) });
        Ok(())
    }

    /// Resolves a dependency on tasks of an array.
    fn depend_on_tasks(
        &self,
        after: After,
        first: u64,
        numbers: &[u64],
        history: &dyn PastJobs,
        depends: &mut Vec<Dependency>,
        over: &mut Vec<(u64, JobState)>,
    ) -> Result<(), Refusal> {
        let unknown =
            |number: u64| Refusal::Bad(format!("dependency: there is no task {first}_{number}"));
        let active = self.scheduler.tasks(first).next().map(|active| active.job.clone());
        let one = active.or_else(|| history.job(first));
        let is_task = |job: &StoredJob| job.task.is_some_and(|task| task.first == first);
        let one = one.filter(is_task).ok_or_else(|| unknown(numbers[0]))?;
        let tasks = one.request.tasks().map_err(|error| Refusal::Bad(error.to_string()))?;
        let mut missing: BTreeSet<u64> = numbers.iter().copied().collect();
        // Jobs of a submission have consecutive ids.
        for (id, index) in (first..).zip(0..tasks.count()) {
            let number = tasks.number(index).map(u64::from);
            if number.is_none_or(|number| numbers.binary_search(&number).is_err()) {
                continue;
            }
            if self.scheduler.job(id).is_none() {
                let Some(stored) = history.past(id) else { continue };
                over.push((id, stored.state));
            }
            depends.push(Dependency::on(after, id));
            number.map(|number| missing.remove(&number));
        }
        missing.first().map_or(Ok(()), |&number| Err(unknown(number)))
    }
}
