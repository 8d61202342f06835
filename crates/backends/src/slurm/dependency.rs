//! Whether the jobs that a held job depends on are far enough. Slurm looks at the dependencies of held
//! jobs rarely; a second is better than a minute. Slurm looks again when the job is released.

use super::jobs::{Over, Record, State};

/// What a dependency comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Met,
    Waits,
    /// It can never be met.
    Never,
}

/// Judges `afterok:5(unfulfilled),afterany:6_*(unfulfilled)?...` by the jobs of the list. Words that are
/// not known wait: Slurm itself takes them off when they are met.
pub(super) fn judge(text: &str, task: Option<u32>, records: &[Record], now_s: u64) -> Verdict {
    let (parts, any) = match text.contains('?') {
        true => (text.split('?').collect::<Vec<_>>(), true),
        false => (text.split(',').collect(), false),
    };
    let mut verdicts = parts
        .iter()
        .filter(|part| !part.is_empty())
        .map(|part| judge_one(part, task, records, now_s));
    if any {
        let verdicts: Vec<Verdict> = verdicts.collect();
        return match () {
            () if verdicts.contains(&Verdict::Met) => Verdict::Met,
            () if verdicts.iter().all(|verdict| *verdict == Verdict::Never) => Verdict::Never,
            () => Verdict::Waits,
        };
    }
    let worst = |worst: Verdict, verdict: Verdict| match (worst, verdict) {
        (Verdict::Never, _) | (_, Verdict::Never) => Verdict::Never,
        (Verdict::Waits, _) | (_, Verdict::Waits) => Verdict::Waits,
        _ => Verdict::Met,
    };
    let first = verdicts.next().unwrap_or(Verdict::Met);
    verdicts.fold(first, worst)
}

fn judge_one(part: &str, task: Option<u32>, records: &[Record], now_s: u64) -> Verdict {
    let (what, state) = part.split_once('(').unwrap_or((part, ""));
    if state.starts_with("failed") {
        return Verdict::Never;
    }
    let Some((kind, on)) = what.split_once(':') else { return Verdict::Waits };
    let (on, minutes) = on.split_once('+').unwrap_or((on, "0"));
    let (job, of_task) = on.split_once('_').unwrap_or((on, "*"));
    let Ok(job) = job.parse::<u64>() else { return Verdict::Waits };
    let of_task = match (kind, of_task) {
        ("aftercorr", _) => task,
        (_, of_task) => of_task.parse().ok(),
    };
    let concerns = |record: &&Record| {
        let is_job = record.id == job || record.array == Some(job);
        is_job && of_task.is_none_or(|task| record.task.is_none_or(|of| of == task))
    };
    let of: Vec<&Record> = records.iter().filter(concerns).collect();
    if of.is_empty() {
        // Slurm has forgotten it and takes the dependency off by itself.
        return Verdict::Waits;
    }
    let over = |record: &&Record| match record.state {
        State::Over(over) => Some(over),
        _ => None,
    };
    match kind {
        "after" => {
            let wait_s = minutes.parse::<u64>().unwrap_or(0) * 60;
            let has_begun = |record: &&Record| {
                !matches!(record.state, State::Pending) && record.start_s + wait_s <= now_s
            };
            if of.iter().all(has_begun) { Verdict::Met } else { Verdict::Waits }
        }
        "afterany" if of.iter().all(|record| over(record).is_some()) => Verdict::Met,
        "afterok" | "aftercorr" => {
            let ends: Vec<Option<Over>> = of.iter().map(over).collect();
            match () {
                () if ends.iter().any(|end| end.is_some_and(|end| end != Over::Completed)) => {
                    Verdict::Never
                }
                () if ends.iter().all(Option::is_some) => Verdict::Met,
                () => Verdict::Waits,
            }
        }
        "afternotok" if of.iter().all(|record| over(record).is_some()) => {
            let is_fine = |record: &&Record| over(record) == Some(Over::Completed);
            if of.iter().all(is_fine) { Verdict::Never } else { Verdict::Met }
        }
        _ => Verdict::Waits,
    }
}
