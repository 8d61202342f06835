//! Whether the jobs that a held job depends on are far enough. Slurm looks at the dependencies of held
//! jobs rarely; a second is better than a minute. Slurm looks again when the job is released.

use super::jobs::{JobRecord, SlurmEnd, SlurmState};

/// What a dependency comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DependencyState {
    Met,
    Waits,
    /// It can never be met.
    Never,
}

/// Judges `afterok:5(unfulfilled),afterany:6_*(unfulfilled)?...` by the jobs of the list. Words that are
/// not known wait: Slurm itself takes them off when they are met.
pub(super) fn judge(
    text: &str,
    task: Option<u32>,
    records: &[JobRecord],
    now_s: u64,
) -> DependencyState {
    let (parts, any) = match text.contains('?') {
        true => (text.split('?').collect::<Vec<_>>(), true),
        false => (text.split(',').collect(), false),
    };
    let mut states = parts
        .iter()
        .filter(|part| !part.is_empty())
        .map(|part| judge_one(part, task, records, now_s));
    if any {
        let states: Vec<DependencyState> = states.collect();
        return match () {
            () if states.contains(&DependencyState::Met) => DependencyState::Met,
            () if states.iter().all(|state| *state == DependencyState::Never) => {
                DependencyState::Never
            }
            () => DependencyState::Waits,
        };
    }
    let worst = |worst: DependencyState, state: DependencyState| match (worst, state) {
        (DependencyState::Never, _) | (_, DependencyState::Never) => DependencyState::Never,
        (DependencyState::Waits, _) | (_, DependencyState::Waits) => DependencyState::Waits,
        _ => DependencyState::Met,
    };
    let first = states.next().unwrap_or(DependencyState::Met);
    states.fold(first, worst)
}

fn judge_one(part: &str, task: Option<u32>, records: &[JobRecord], now_s: u64) -> DependencyState {
    let (what, state) = part.split_once('(').unwrap_or((part, ""));
    if state.starts_with("failed") {
        return DependencyState::Never;
    }
    if state.starts_with("fulfilled") {
        return DependencyState::Met;
    }
    let Some((kind, on)) = what.split_once(':') else { return DependencyState::Waits };
    let (on, minutes) = on.split_once('+').unwrap_or((on, "0"));
    let (job, of_task) = on.split_once('_').unwrap_or((on, "*"));
    let Ok(job) = job.parse::<u64>() else { return DependencyState::Waits };
    let of_task = match (kind, of_task) {
        ("aftercorr", _) => task,
        (_, of_task) => of_task.parse().ok(),
    };
    let concerns = |record: &&JobRecord| {
        let is_job = record.id == job || record.array == Some(job);
        // A record without a task stands for those that wait under it; all if they are not told.
        let has = |task: u32| match record.task {
            Some(of) => of == task,
            None => record.waiting.is_empty() || record.waiting.contains(&task),
        };
        is_job && of_task.is_none_or(has)
    };
    let of: Vec<&JobRecord> = records.iter().filter(concerns).collect();
    if of.is_empty() {
        // Slurm has forgotten it and takes the dependency off by itself.
        return DependencyState::Waits;
    }
    let over = |record: &&JobRecord| match record.state {
        SlurmState::Ended(over) => Some(over),
        _ => None,
    };
    match kind {
        "after" => {
            let wait_s = minutes.parse::<u64>().unwrap_or(0).saturating_mul(60);
            let has_begun = |record: &&JobRecord| {
                !matches!(record.state, SlurmState::Pending)
                    && record.start_s.saturating_add(wait_s) <= now_s
            };
            if of.iter().all(has_begun) { DependencyState::Met } else { DependencyState::Waits }
        }
        "afterany" if of.iter().all(|record| over(record).is_some()) => DependencyState::Met,
        "afterok" | "aftercorr" => {
            let ends: Vec<Option<SlurmEnd>> = of.iter().map(over).collect();
            match () {
                () if ends.iter().any(|end| end.is_some_and(|end| end != SlurmEnd::Completed)) => {
                    DependencyState::Never
                }
                () if ends.iter().all(Option::is_some) => DependencyState::Met,
                () => DependencyState::Waits,
            }
        }
        "afternotok" if of.iter().all(|record| over(record).is_some()) => {
            let is_fine = |record: &&JobRecord| over(record) == Some(SlurmEnd::Completed);
            if of.iter().all(is_fine) { DependencyState::Never } else { DependencyState::Met }
        }
        _ => DependencyState::Waits,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::JobBuilder;
    use super::*;

    const NOW_S: u64 = 1_000_000;

    /// A state, with jobs 5 that runs, 6 that completed, 7 that failed, 8 that waits.
    fn of(text: &str) -> DependencyState {
        judge(text, None, &records(), NOW_S)
    }

    fn records() -> Vec<JobRecord> {
        vec![
            JobBuilder::new(5).state(SlurmState::Running).start(NOW_S - 90).made(),
            JobBuilder::new(6)
                .state(SlurmState::Ended(SlurmEnd::Completed))
                .start(NOW_S - 500)
                .made(),
            JobBuilder::new(7).state(SlurmState::Ended(SlurmEnd::Failed)).start(NOW_S - 500).made(),
            JobBuilder::new(8).made(),
        ]
    }

    #[test]
    fn ends_decide() {
        use DependencyState::{Met, Never, Waits};
        let told = [
            ("", Met),
            ("afterok:5(unfulfilled)", Waits),
            ("afterok:6(unfulfilled)", Met),
            ("afterok:7(unfulfilled)", Never),
            ("afterok:8(unfulfilled)", Waits),
            ("afterany:5(unfulfilled)", Waits),
            ("afterany:6(unfulfilled)", Met),
            ("afterany:7(unfulfilled)", Met),
            ("afternotok:5(unfulfilled)", Waits),
            ("afternotok:6(unfulfilled)", Never),
            ("afternotok:7(unfulfilled)", Met),
            ("after:5(unfulfilled)", Met),
            ("after:7(unfulfilled)", Met),
            ("after:8(unfulfilled)", Waits),
            ("after:5+1(unfulfilled)", Met),
            ("after:5+2(unfulfilled)", Waits),
            ("after:5+18446744073709551615(unfulfilled)", Waits),
            // What Slurm says itself is so.
            ("afterok:6(failed)", Never),
            ("afterok:999(fulfilled)", Met),
            // Not in the list, not known, not to be understood: Slurm takes it off when it is met.
            ("afterok:999(unfulfilled)", Waits),
            ("afterburstbuffer:6(unfulfilled)", Waits),
            ("singleton(unfulfilled)", Waits),
            ("afterok:x(unfulfilled)", Waits),
            ("afterok:", Waits),
            (":", Waits),
        ];
        for (text, state) in told {
            assert_eq!(of(text), state, "{text}");
        }
    }

    #[test]
    fn all_or_any_of_them() {
        use DependencyState::{Met, Never, Waits};
        let told = [
            ("afterok:6(unfulfilled),afterany:7(unfulfilled)", Met),
            ("afterok:6(unfulfilled),afterany:5(unfulfilled)", Waits),
            ("afterany:5(unfulfilled),afterok:7(unfulfilled)", Never),
            ("after:5(unfulfilled),singleton(unfulfilled)", Waits),
            ("afterok:7(failed)?afterok:6(unfulfilled)", Met),
            ("afterok:7(failed)?afterok:5(unfulfilled)", Waits),
            ("afterok:7(failed)?afternotok:6(unfulfilled)", Never),
        ];
        for (text, state) in told {
            assert_eq!(of(text), state, "{text}");
        }
    }

    /// Array 20: task 0 completed, 1 failed, 2 runs, 3 and 4 wait under one record.
    fn array() -> Vec<JobRecord> {
        vec![
            JobBuilder::new(21).task(20, 0).state(SlurmState::Ended(SlurmEnd::Completed)).made(),
            JobBuilder::new(22).task(20, 1).state(SlurmState::Ended(SlurmEnd::Failed)).made(),
            JobBuilder::new(23).task(20, 2).state(SlurmState::Running).made(),
            JobBuilder::new(20).array(&[3, 4]).made(),
        ]
    }

    #[test]
    fn one_task_of_an_array_is_told_from_the_others() {
        let of = |text: &str| judge(text, None, &array(), NOW_S);
        assert_eq!(of("afterok:20_0(unfulfilled)"), DependencyState::Met);
        assert_eq!(of("afterok:20_1(unfulfilled)"), DependencyState::Never);
        assert_eq!(of("afterany:20_1(unfulfilled)"), DependencyState::Met);
        assert_eq!(of("afterok:20_2(unfulfilled)"), DependencyState::Waits);
        assert_eq!(of("after:20_2(unfulfilled)"), DependencyState::Met);
        assert_eq!(of("after:20_3(unfulfilled)"), DependencyState::Waits);
        assert_eq!(of("afterok:20_3(unfulfilled)"), DependencyState::Waits);
    }

    #[test]
    fn a_star_is_all_of_an_array() {
        let of = |text: &str, records: &[JobRecord]| judge(text, None, records, NOW_S);
        let all = array();
        assert_eq!(of("afterany:20_*(unfulfilled)", &all), DependencyState::Waits);
        assert_eq!(of("afterany:20_*(unfulfilled)", &all[..2]), DependencyState::Met);
        assert_eq!(of("afterok:20_*(unfulfilled)", &all[..2]), DependencyState::Never);
        assert_eq!(of("afternotok:20_*(unfulfilled)", &all[..2]), DependencyState::Met);
        assert_eq!(of("afternotok:20_*(unfulfilled)", &all[..1]), DependencyState::Never);
        assert_eq!(of("after:20_*(unfulfilled)", &all[..3]), DependencyState::Met);
        assert_eq!(of("after:20_*(unfulfilled)", &all), DependencyState::Waits);
    }

    #[test]
    fn tasks_follow_those_of_their_number() {
        let of = |task| judge("aftercorr:20_*(unfulfilled)", Some(task), &array(), NOW_S);
        assert_eq!(of(0), DependencyState::Met);
        assert_eq!(of(1), DependencyState::Never);
        assert_eq!(of(2), DependencyState::Waits);
        assert_eq!(of(3), DependencyState::Waits);
    }

    #[test]
    fn tasks_that_are_not_told_wait() {
        // Slurm has cut the list of tasks short.
        let records = [JobBuilder::new(20).array(&[]).made()];
        assert_eq!(
            judge("afterok:20_3(unfulfilled)", None, &records, NOW_S),
            DependencyState::Waits
        );
    }
}
