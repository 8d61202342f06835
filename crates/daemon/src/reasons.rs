//! Reasons in plain words: why a job waits, and what became of it when it was submitted.

use crate::api::types::Outlook;
use crate::cycle::Present;
use crate::job::JobState;
use crate::scheduler::{DeviceSummary, Phase, ShutCause, WaitCause, Waiting};
use jiff::tz::TimeZone;
use tandem_core::{Limit, LimitOf, Time};

/// Devices that accept no jobs and are named one by one.
const NAMED_MAX: usize = 2;

impl Waiting {
    /// In plain words.
    pub fn text(&self) -> String {
        match self {
            Waiting::Begins { unix_us, now_us } => begins(*unix_us, *now_us),
            Waiting::OwnJobs(most) => format!("waits behind {most} jobs of its user"),
            Waiting::Handover { devices, leaving } if leaving.is_empty() => {
                format!("is about to start on {}", gpus(devices))
            }
            Waiting::Handover { devices, leaving } => {
                let verb = if leaving.len() == 1 { "has" } else { "have" };
                format!("starts on {} when {} {verb} left", gpus(devices), jobs(leaving))
            }
            Waiting::Devices { cause, needs, paused, devices, now } => {
                let busy = busy(devices, *needs, *now);
                let text = match cause {
                    WaitCause::Behind(job) => format!("behind job {job}; {busy}"),
                    // Some are free, but not for this job.
                    WaitCause::Outranked if devices.busy + devices.shut.len() < devices.total => {
                        format!("{busy}; jobs that rank higher go first")
                    }
                    WaitCause::FairShare => {
                        format!("its user has the share of GPUs that is due; {busy}")
                    }
                    WaitCause::Limit(of, limit) => limited(*of, *limit),
                    WaitCause::Reserved => "waits for its reservation".to_owned(),
                    WaitCause::NoRoom | WaitCause::Outranked | WaitCause::Undecided => busy,
                };
                if *paused { format!("paused for other jobs: {text}") } else { text }
            }
        }
    }
}

fn limited(of: LimitOf, limit: Limit) -> String {
    let of = match of {
        LimitOf::User => "user",
        LimitOf::Account => "account",
    };
    let what = match limit {
        Limit::Jobs => "running jobs",
        Limit::Gpus => "devices",
        Limit::Memory => "device memory",
        Limit::GpuTime => "device hours in this period",
    };
    format!("limit of its {of}: {what}")
}

/// `2 of 2 GPUs busy; GPU 1 is drained (fan); job 12 ends in about 4 min`
fn busy(devices: &DeviceSummary, needs: u32, now: Time) -> String {
    let up = devices.total - devices.shut.len();
    let mut parts = Vec::new();
    if needs > 1 {
        parts.push(format!("needs {needs} GPUs, {} of {up} free", up - devices.busy));
    } else if up > 0 {
        parts.push(format!("{} of {up} {} busy", devices.busy, plural(up)));
    }
    parts.extend(devices.shut.iter().take(NAMED_MAX).map(|(device, cause)| shut(*device, cause)));
    if let Some(more) = devices.shut.len().checked_sub(NAMED_MAX).filter(|&more| more > 0) {
        parts.push(format!("{more} more {} not available", plural(more)));
    }
    if let Some((job, end)) = devices.next_end {
        parts.push(format!("job {job} ends in {}", about(end.since(now).0)));
    }
    parts.join("; ")
}

/// Why a device accepts no jobs: `GPU 0 is drained (fan)`.
pub(crate) fn shut(device: u32, cause: &ShutCause) -> String {
    match cause {
        ShutCause::Drained(None) => format!("GPU {device} is drained"),
        ShutCause::Drained(Some(reason)) => format!("GPU {device} is drained ({reason})"),
        ShutCause::DrainedUntil(..) => {
            format!("GPU {device} is drained {}", shut_reason(cause).unwrap_or_default())
        }
        ShutCause::Closed(reason) => format!("GPU {device} is not available ({reason})"),
        ShutCause::Foreign => format!("GPU {device} is used by processes that are not Tandem's"),
        ShutCause::Reserved => format!("GPU {device} is kept free for a job that is moved"),
    }
}

/// The reason that was given, and until when: `until 2026-03-01 14:00 (fan)`.
pub(crate) fn shut_reason(cause: &ShutCause) -> Option<String> {
    match cause {
        ShutCause::Drained(reason) => reason.clone(),
        ShutCause::DrainedUntil(end_us, reason) => {
            let micros = i64::try_from(*end_us).unwrap_or(i64::MAX);
            let end = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
            let end = end.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M");
            let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            Some(format!("until {end}{reason}"))
        }
        ShutCause::Closed(reason) => Some(reason.clone()),
        ShutCause::Foreign | ShutCause::Reserved => None,
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "GPU" } else { "GPUs" }
}

fn gpus(devices: &[u32]) -> String {
    let list: Vec<String> = devices.iter().map(u32::to_string).collect();
    format!("{} {}", plural(devices.len()), list.join(","))
}

fn jobs(ids: &[u64]) -> String {
    let list: Vec<String> = ids.iter().map(u64::to_string).collect();
    format!("{} {}", if ids.len() == 1 { "job" } else { "jobs" }, list.join(","))
}

/// A span without false precision: `about 20 s`, `about 4 min`, `about 3 h`, `about 2 d`.
fn about(us: u64) -> String {
    let seconds = us / 1_000_000;
    match seconds {
        0..10 => "a few seconds".to_owned(),
        10..90 => format!("about {} s", seconds.div_ceil(10) * 10),
        90..5400 => format!("about {} min", (seconds + 30) / 60),
        5400..129_600 => format!("about {} h", (seconds + 1800) / 3600),
        _ => format!("about {} d", (seconds + 43_200) / 86_400),
    }
}

/// `begins at 14:00`, in the zone of this machine; another day is named.
fn begins(unix_us: u64, now_us: u64) -> String {
    let zoned = |unix_us: u64| {
        let micros = i64::try_from(unix_us).ok()?;
        Some(jiff::Timestamp::from_microsecond(micros).ok()?.to_zoned(TimeZone::system()))
    };
    let (Some(at), Some(now)) = (zoned(unix_us), zoned(now_us)) else {
        return "waits for its begin time".to_owned();
    };
    let format = if at.date() == now.date() { "%H:%M" } else { "%Y-%m-%d %H:%M" };
    format!("begins at {}", at.strftime(format))
}

/// What becomes of jobs that were just submitted; `None` if they have ended already.
pub(crate) fn outlook(present: &Present<'_>, ids: &[u64]) -> Option<Outlook> {
    let scheduler = present.scheduler;
    let starts = |id: &&u64| scheduler.job(**id).is_some_and(|active| active.phase.is_present());
    let starting = ids.iter().filter(starts).count();
    let waiting = ids.len() - starting;
    let first = *ids.iter().find(starts).or(ids.first())?;
    let active = scheduler.job(first)?;
    let view = scheduler.view(first, present.now.time())?;
    let beside = view.beside.clone();
    let slowdown = (!beside.is_empty() && view.predicted > 0.0).then(|| 1.0 / view.predicted);
    let mut outlook = Outlook {
        text: String::new(),
        starts_now: starting as u64,
        devices: Vec::new(),
        beside,
        slowdown,
    };
    if view.phase != Phase::Absent {
        outlook.devices = active.allocation.as_ref().map_or_else(Vec::new, |at| at.devices.clone());
    }
    let waits = || {
        let waits = ids.iter().find(|id| !starts(id)).copied().unwrap_or(first);
        let active = scheduler.job(waits)?;
        if active.job.state == JobState::Held {
            return Some("held until tandem release".to_owned());
        }
        let why = scheduler.view(waits, present.now.time())?.waiting;
        why.map(|why| why.text()).or_else(|| active.job.reason.clone())
    };
    outlook.text = match (starting, waiting) {
        (1, 0) => {
            let beside = match (outlook.beside.as_slice(), outlook.slowdown) {
                ([], _) => String::new(),
                (beside, Some(slowdown)) => {
                    format!(" beside {} (expected slow-down {slowdown:.2})", jobs(beside))
                }
                (beside, None) => format!(" beside {}", jobs(beside)),
            };
            format!("starts now on {}{beside}", gpus(&outlook.devices))
        }
        (_, 0) => "all start now".to_owned(),
        (0, 1) => waits()?,
        (0, _) => format!("all wait: {}", waits()?),
        _ => {
            let start = if starting == 1 { "starts" } else { "start" };
            let wait = if waiting == 1 { "waits" } else { "wait" };
            format!("{starting} {start} now, {waiting} {wait}: {}", waits()?)
        }
    };
    Some(outlook)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_US: u64 = 1_800_000_000_000_000;

    fn summary(busy: usize, total: usize) -> DeviceSummary {
        let next_end = Some((12, Time(240_000_000)));
        DeviceSummary { total, busy, shut: Vec::new(), next_end }
    }

    fn text(cause: WaitCause, needs: u32, paused: bool, devices: &DeviceSummary) -> String {
        let devices = std::sync::Arc::new(devices.clone());
        Waiting::Devices { cause, needs, paused, devices, now: Time(0) }.text()
    }

    #[test]
    fn reasons_name_what_is_in_the_way() {
        let no_room = WaitCause::NoRoom;
        let all = "2 of 2 GPUs busy; job 12 ends in about 4 min";
        assert_eq!(text(no_room, 1, false, &summary(2, 2)), all);
        assert_eq!(text(WaitCause::Outranked, 1, false, &summary(2, 2)), all);
        assert_eq!(
            text(WaitCause::Undecided, 1, true, &summary(2, 2)),
            format!("paused for other jobs: {all}")
        );
        assert_eq!(
            text(WaitCause::Behind(7), 1, false, &summary(2, 2)),
            format!("behind job 7; {all}")
        );
        let gang = "needs 4 GPUs, 1 of 8 free; job 12 ends in about 4 min";
        assert_eq!(text(no_room, 4, false, &summary(7, 8)), gang);
        let mut drained = summary(0, 1);
        drained.shut = vec![(0, ShutCause::Drained(Some("fan".to_owned())))];
        drained.next_end = None;
        assert_eq!(text(no_room, 1, false, &drained), "GPU 0 is drained (fan)");
        let mut many = summary(1, 5);
        many.shut = (1..5).map(|device| (device, ShutCause::Drained(None))).collect();
        many.next_end = None;
        let some = "1 of 1 GPU busy; GPU 1 is drained; GPU 2 is drained; 2 more GPUs not available";
        assert_eq!(text(no_room, 1, false, &many), some);
    }

    #[test]
    fn a_handover_names_who_leaves() {
        let handover = |leaving: &[u64]| {
            Waiting::Handover { devices: vec![0], leaving: leaving.to_vec() }.text()
        };
        assert_eq!(handover(&[3]), "starts on GPU 0 when job 3 has left");
        assert_eq!(handover(&[3, 4]), "starts on GPU 0 when jobs 3,4 have left");
        assert_eq!(handover(&[]), "is about to start on GPU 0");
    }

    #[test]
    fn begin_times_name_another_day() {
        let begins =
            |later: u64| Waiting::Begins { unix_us: NOW_US + later, now_us: NOW_US }.text();
        let (soon, later) = (begins(1_000_000), begins(3 * 86_400_000_000));
        assert!(
            soon.starts_with("begins at ") && later.starts_with("begins at 20"),
            "{soon}, {later}"
        );
    }

    #[test]
    fn spans_have_no_false_precision() {
        let of = |seconds: u64| about(seconds * 1_000_000);
        assert_eq!(
            [of(3), of(31), of(240), of(7200), of(200_000)].join(", "),
            "a few seconds, about 40 s, about 4 min, about 2 h, about 2 d"
        );
    }
}
