//! `tandem explain`, and the forecast of `submit --dry-run`.

use super::submit::numbers;
use super::{connect, select};
use crate::commands::print;
use crate::failure::Failure;
use crate::live_args::ExplainArgs;
use crate::output::clean;
use crate::units::words;
use tandem_daemon::api::types::Explanation;

/// Reasons to show, with one line each; further ones are only counted.
const REASONS_MAX: usize = 16;

pub(super) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let mut client = connect(&args.common)?;
    let id = select::job(&mut client, &args.job)?;
    let answer = client.explain(id, args.policy.as_deref())?;
    if args.common.json { print(answer.raw.trim_end()) } else { print(&text(&answer)) }
}

/// An explanation as text.
pub(super) fn text(explanation: &Explanation) -> String {
    let who = explanation.id.map_or_else(|| "the job".to_owned(), |id| format!("job {id}"));
    let mut lines = vec![match &explanation.waits {
        Some(reason) => format!("{who} waits: {}", clean(reason)),
        None if explanation.id.is_none() => "the job can run here".to_owned(),
        None if explanation.state.is_over() => {
            format!("{who} is over: {}", explanation.state.name())
        }
        None => format!("{who} is {}", explanation.state.name()),
    }];
    lines.extend(device_lines(explanation));
    if !explanation.after.is_empty() {
        lines.push(format!("  has to end first: {}", numbers(&explanation.after)));
    }
    if !explanation.ahead.is_empty() {
        lines.push(format!("  probably starts earlier: {}", numbers(&explanation.ahead)));
    }
    if explanation.waits.is_some() || explanation.id.is_none() {
        lines.push(match explanation.start_in_s {
            Some(start) => {
                let note = explanation.start_note.as_deref();
                let note = note.map(|note| format!(" ({})", clean(note))).unwrap_or_default();
                format!("  starts {}{}{note}", range(start), draws(explanation))
            }
            None => match &explanation.start_note {
                Some(note) => format!("  when it starts is not known: {}", clean(note)),
                // Nothing was simulated: it waits for something else than devices.
                None if explanation.draws == 0 => String::new(),
                None => "  does not start in what can be foreseen".to_owned(),
            },
        });
        lines.retain(|line| !line.is_empty());
    }
    if let Some(end) = explanation.end_in_s {
        lines.push(format!("  is over {}", range(end)));
    }
    let slowdown = explanation.slowdown.map(|slowdown| format!("slow-down {slowdown:.2}"));
    match (explanation.beside.is_empty(), slowdown) {
        (true, None) => {}
        (true, Some(slowdown)) => lines.push(format!("  beside nobody, {slowdown}")),
        (false, slowdown) => {
            let slowdown = slowdown.map(|text| format!(", {text}")).unwrap_or_default();
            lines.push(format!("  probably beside {}{slowdown}", numbers(&explanation.beside)));
        }
    }
    if let Some(effect) = explanation.effect_on_others_s {
        lines.push(match effect {
            effect if effect.abs() < 0.05 => "  the others are not delayed".to_owned(),
            effect if effect > 0.0 => {
                format!("  the others finish {} later on average", words(effect))
            }
            effect => format!("  the others finish {} earlier on average", words(-effect)),
        });
    }
    lines.push(format!("  policy {}", clean(&explanation.policy)));
    lines.join("\n")
}

/// One line per reason, with the devices it holds for.
fn device_lines(explanation: &Explanation) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<u64>)> = Vec::new();
    for device in &explanation.devices {
        match reasons.iter_mut().find(|(reason, _)| *reason == device.reason) {
            Some((_, devices)) => devices.push(device.device.into()),
            None => reasons.push((&device.reason, vec![device.device.into()])),
        }
    }
    let line = |(reason, devices): &(&str, Vec<u64>)| {
        let which = numbers(devices).replacen("job", "GPU", 1);
        format!("  {which}: {}", clean(reason))
    };
    let mut lines: Vec<String> = reasons.iter().take(REASONS_MAX).map(line).collect();
    if reasons.len() > REASONS_MAX {
        lines.push(format!(
            "  and {} more reasons (--json shows them)",
            reasons.len() - REASONS_MAX
        ));
    }
    lines
}

fn range([earliest, median, latest]: [f64; 3]) -> String {
    if latest < 0.5 {
        return "at once".to_owned();
    }
    let (from, middle, to) = (words(earliest), words(median), words(latest));
    if from == to {
        return format!("in {middle}");
    }
    format!("in {from} to {to}, probably {middle}")
}

/// Only printed if not all draws agree.
fn draws(explanation: &Explanation) -> String {
    let (started, all) = (explanation.draws_started, explanation.draws);
    if started == all { String::new() } else { format!(" (in {started} of {all} draws)") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_daemon::api::types::DeviceReason;
    use tandem_daemon::job::JobState;

    #[test]
    fn an_explanation_can_be_read() {
        let reason = |device, reason: &str| DeviceReason { device, reason: reason.to_owned() };
        let explanation = Explanation {
            schema: 1,
            id: Some(7),
            state: JobState::Pending,
            policy: "tandem".to_owned(),
            waits: Some("no GPU is free\u{1b}[2J".to_owned()),
            devices: vec![
                reason(0, "job 3 is exclusive"),
                reason(1, "job 3 is exclusive"),
                reason(2, "drained"),
            ],
            ahead: vec![5, 6],
            after: vec![3],
            start_in_s: Some([60.0, 300.0, 7200.0]),
            start_note: None,
            end_in_s: Some([100.0, 100.0, 100.0]),
            beside: vec![4],
            slowdown: Some(1.2),
            draws_started: 19,
            draws: 20,
            effect_on_others_s: Some(90.0),
        };
        let expected = "job 7 waits: no GPU is free\\u{1b}[2J
  GPUs 0-1: job 3 is exclusive
  GPU 2: drained
  has to end first: job 3
  probably starts earlier: jobs 5-6
  starts in 1 min to 2 h 0 min, probably 5 min (in 19 of 20 draws)
  is over in 1 min
  probably beside job 4, slow-down 1.20
  the others finish 1 min later on average
  policy tandem";
        assert_eq!(text(&explanation), expected);
    }
}
