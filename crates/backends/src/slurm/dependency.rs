//! Whether the dependency of a job that waits for Tandem is satisfied. Slurm may evaluate it late; this does it with
//! every list. Slurm checks again when the job is admitted.

use super::jobs::{JobRecord, SlurmEnd, SlurmState};

/// The state of a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DependencyState {
    Satisfied,
    Pending,
    NeverSatisfied,
}

use DependencyState::{NeverSatisfied, Pending, Satisfied};

/// Evaluates `afterok:5(unfulfilled),afterany:6_*(unfulfilled)` with the jobs of the list. With `?` instead of
/// `,` one satisfied part is enough. Unknown kinds are pending: Slurm removes them when they are satisfied.
pub(super) fn dependency_state(
    text: &str,
    task: Option<u32>,
    records: &[JobRecord],
    now_s: u64,
) -> DependencyState {
    let any = text.contains('?');
    let parts = text.split(if any { '?' } else { ',' }).filter(|part| !part.is_empty());
    let states = parts.map(|part| part_state(part, task, records, now_s));
    let state = if any { states.min() } else { states.max() };
    state.unwrap_or(Satisfied)
}

fn part_state(part: &str, task: Option<u32>, records: &[JobRecord], now_s: u64) -> DependencyState {
    let (what, evaluated) = part.split_once('(').unwrap_or((part, ""));
    if evaluated.starts_with("failed") {
        return NeverSatisfied;
    }
    if evaluated.starts_with("fulfilled") {
        return Satisfied;
    }
    let Some((kind, target)) = what.split_once(':') else { return Pending };
    let (target, minutes) = target.split_once('+').unwrap_or((target, "0"));
    let (job, target_task) = target.split_once('_').unwrap_or((target, "*"));
    let Ok(job) = job.parse::<u64>() else { return Pending };
    let target_task = if kind == "aftercorr" { task } else { target_task.parse().ok() };
    let is_target = |record: &&JobRecord| {
        let is_job = record.id == job || record.array == Some(job);
        is_job && target_task.is_none_or(|task| has_task(record, task))
    };
    let targets: Vec<&JobRecord> = records.iter().filter(is_target).collect();
    if targets.is_empty() {
        // Slurm no longer lists the job and will remove the dependency itself.
        return Pending;
    }
    let delay_s = minutes.parse::<u64>().unwrap_or(0).saturating_mul(60);
    kind_state(kind, &targets, delay_s, now_s)
}

/// Whether a record is or includes a task. A record without a task stands for the pending tasks it lists, or
/// for all if it lists none.
fn has_task(record: &JobRecord, task: u32) -> bool {
    match record.task {
        Some(of) => of == task,
        None => record.pending_tasks.is_empty() || record.pending_tasks.contains(&task),
    }
}

fn kind_state(kind: &str, targets: &[&JobRecord], delay_s: u64, now_s: u64) -> DependencyState {
    let ends: Vec<Option<SlurmEnd>> = targets
        .iter()
        .map(|record| match record.state {
            SlurmState::Ended(end) => Some(end),
            _ => None,
        })
        .collect();
    let have_all_ended = ends.iter().all(Option::is_some);
    let has_started = |record: &&JobRecord| {
        record.state != SlurmState::Pending && record.start_s.saturating_add(delay_s) <= now_s
    };
    let when = |is_satisfied: bool| if is_satisfied { Satisfied } else { Pending };
    match kind {
        "after" => when(targets.iter().all(has_started)),
        "afterany" => when(have_all_ended),
        "afterok" | "aftercorr" => {
            let has_failed = ends.iter().flatten().any(|&end| end != SlurmEnd::Completed);
            if has_failed { NeverSatisfied } else { when(have_all_ended) }
        }
        "afternotok" => {
            let have_all_completed = ends.iter().all(|&end| end == Some(SlurmEnd::Completed));
            if have_all_completed { NeverSatisfied } else { when(have_all_ended) }
        }
        _ => Pending,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::JobBuilder;
    use super::*;

    const NOW_S: u64 = 1_000_000;

    /// Evaluated with job 5 running, 6 completed, 7 failed and 8 pending.
    fn of(text: &str) -> DependencyState {
        dependency_state(text, None, &records(), NOW_S)
    }

    fn records() -> Vec<JobRecord> {
        vec![
            JobBuilder::new(5).state(SlurmState::Running).start(NOW_S - 90).build(),
            JobBuilder::new(6)
                .state(SlurmState::Ended(SlurmEnd::Completed))
                .start(NOW_S - 500)
                .build(),
            JobBuilder::new(7)
                .state(SlurmState::Ended(SlurmEnd::Failed))
                .start(NOW_S - 500)
                .build(),
            JobBuilder::new(8).build(),
        ]
    }

    #[test]
    fn a_dependency_follows_the_states_of_its_jobs() {
        let cases = [
            ("", Satisfied),
            ("afterok:5(unfulfilled)", Pending),
            ("afterok:6(unfulfilled)", Satisfied),
            ("afterok:7(unfulfilled)", NeverSatisfied),
            ("afterok:8(unfulfilled)", Pending),
            ("afterany:5(unfulfilled)", Pending),
            ("afterany:6(unfulfilled)", Satisfied),
            ("afterany:7(unfulfilled)", Satisfied),
            ("afternotok:5(unfulfilled)", Pending),
            ("afternotok:6(unfulfilled)", NeverSatisfied),
            ("afternotok:7(unfulfilled)", Satisfied),
            ("after:5(unfulfilled)", Satisfied),
            ("after:7(unfulfilled)", Satisfied),
            ("after:8(unfulfilled)", Pending),
            ("after:5+1(unfulfilled)", Satisfied),
            ("after:5+2(unfulfilled)", Pending),
            ("after:5+18446744073709551615(unfulfilled)", Pending),
            // Slurm's own evaluation counts.
            ("afterok:6(failed)", NeverSatisfied),
            ("afterok:999(fulfilled)", Satisfied),
            // Not listed, unknown or unreadable: Slurm removes it when it is satisfied.
            ("afterok:999(unfulfilled)", Pending),
            ("afterburstbuffer:6(unfulfilled)", Pending),
            ("singleton(unfulfilled)", Pending),
            ("afterok:x(unfulfilled)", Pending),
            ("afterok:", Pending),
            (":", Pending),
        ];
        for (text, state) in cases {
            assert_eq!(of(text), state, "{text}");
        }
    }

    #[test]
    fn all_or_any_of_them() {
        let cases = [
            ("afterok:6(unfulfilled),afterany:7(unfulfilled)", Satisfied),
            ("afterok:6(unfulfilled),afterany:5(unfulfilled)", Pending),
            ("afterany:5(unfulfilled),afterok:7(unfulfilled)", NeverSatisfied),
            ("after:5(unfulfilled),singleton(unfulfilled)", Pending),
            ("afterok:7(failed)?afterok:6(unfulfilled)", Satisfied),
            ("afterok:7(failed)?afterok:5(unfulfilled)", Pending),
            ("afterok:7(failed)?afternotok:6(unfulfilled)", NeverSatisfied),
        ];
        for (text, state) in cases {
            assert_eq!(of(text), state, "{text}");
        }
    }

    /// Array 20: task 0 completed, 1 failed, 2 running, 3 and 4 pending under one record.
    fn array() -> Vec<JobRecord> {
        vec![
            JobBuilder::new(21).task(20, 0).state(SlurmState::Ended(SlurmEnd::Completed)).build(),
            JobBuilder::new(22).task(20, 1).state(SlurmState::Ended(SlurmEnd::Failed)).build(),
            JobBuilder::new(23).task(20, 2).state(SlurmState::Running).build(),
            JobBuilder::new(20).array(&[3, 4]).build(),
        ]
    }

    #[test]
    fn a_dependency_on_one_task_of_an_array() {
        let of = |text: &str| dependency_state(text, None, &array(), NOW_S);
        assert_eq!(of("afterok:20_0(unfulfilled)"), Satisfied);
        assert_eq!(of("afterok:20_1(unfulfilled)"), NeverSatisfied);
        assert_eq!(of("afterany:20_1(unfulfilled)"), Satisfied);
        assert_eq!(of("afterok:20_2(unfulfilled)"), Pending);
        assert_eq!(of("after:20_2(unfulfilled)"), Satisfied);
        assert_eq!(of("after:20_3(unfulfilled)"), Pending);
        assert_eq!(of("afterok:20_3(unfulfilled)"), Pending);
    }

    #[test]
    fn a_dependency_on_all_tasks_of_an_array() {
        let of = |text: &str, records: &[JobRecord]| dependency_state(text, None, records, NOW_S);
        let all = array();
        assert_eq!(of("afterany:20_*(unfulfilled)", &all), Pending);
        assert_eq!(of("afterany:20_*(unfulfilled)", &all[..2]), Satisfied);
        assert_eq!(of("afterok:20_*(unfulfilled)", &all[..2]), NeverSatisfied);
        assert_eq!(of("afternotok:20_*(unfulfilled)", &all[..2]), Satisfied);
        assert_eq!(of("afternotok:20_*(unfulfilled)", &all[..1]), NeverSatisfied);
        assert_eq!(of("after:20_*(unfulfilled)", &all[..3]), Satisfied);
        assert_eq!(of("after:20_*(unfulfilled)", &all), Pending);
    }

    #[test]
    fn aftercorr_pairs_the_tasks_of_two_arrays() {
        let of =
            |task| dependency_state("aftercorr:20_*(unfulfilled)", Some(task), &array(), NOW_S);
        assert_eq!(of(0), Satisfied);
        assert_eq!(of(1), NeverSatisfied);
        assert_eq!(of(2), Pending);
        assert_eq!(of(3), Pending);
    }

    #[test]
    fn a_truncated_task_list_is_pending() {
        // Slurm truncated the list of tasks.
        let records = [JobBuilder::new(20).array(&[]).build()];
        assert_eq!(dependency_state("afterok:20_3(unfulfilled)", None, &records, NOW_S), Pending);
    }
}
