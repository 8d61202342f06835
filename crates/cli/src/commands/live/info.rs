//! `tandem info`.

use super::queue::{list, number};
use super::{connect, select};
use crate::commands::print;
use crate::failure::Failure;
use crate::live_args::JobsArgs;
use crate::output::clean;
use crate::units;
use serde_json::Value;
use std::fmt::Write;
use tandem_daemon::api::types::{JobInfo, JobPrivate, LatencyInfo};
use tandem_daemon::job::JobState;
use tandem_daemon::scheduler::RateSource;

pub(super) fn run(args: &JobsArgs) -> Result<(), Failure> {
    let mut client = connect(&args.common)?;
    let ids = select::jobs(&mut client, &args.jobs, false)?;
    let mut answers = Vec::new();
    for &id in &ids {
        answers.push(client.job(id)?);
    }
    match (args.common.json, answers.as_slice()) {
        (true, [one]) => print(one.raw.trim_end()),
        (true, several) => {
            let job = |raw: &str| {
                serde_json::from_str::<Value>(raw).map(|mut answer| answer["job"].take())
            };
            let jobs: Vec<Value> =
                several.iter().filter_map(|answer| job(&answer.raw).ok()).collect();
            print(&serde_json::json!({ "schema": 1, "jobs": jobs }).to_string())
        }
        (false, several) => {
            let texts: Vec<String> = several.iter().map(|answer| text(&answer.job)).collect();
            print(&texts.join("\n\n"))
        }
    }
}

/// Lines of a name and a value.
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: impl AsRef<str>) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "\n  {name:<12} {}", value.as_ref());
    }

    fn maybe(&mut self, name: &str, value: Option<impl AsRef<str>>) {
        if let Some(value) = value {
            self.add(name, value);
        }
    }
}

fn text(job: &JobInfo) -> String {
    let line = &job.line;
    let mut lines = Lines(format!("job {}: {}", number(line), clean(&line.name)));
    let reason = line.reason.as_deref().map(clean);
    let state = format!("{} ({})", line.state.name(), line.state.letters());
    lines.add("state", reason.map_or_else(|| state.clone(), |reason| format!("{state}: {reason}")));
    lines.add("user", format!("{} ({})", clean(&line.user), job.uid));
    lines.add("class", clean(&line.class));
    sharing(job, &mut lines);
    if let Some(latency) = &line.latency {
        service(latency, &mut lines);
    }
    // A damaged record tells no time.
    if !line.submit_time.starts_with("1970-01-01T00:00:00") {
        lines.add("submitted", units::local(&line.submit_time));
    }
    lines.maybe("begins", job.begin_time.as_deref().map(units::local));
    lines.maybe("started", line.start_time.as_deref().map(units::local));
    lines.maybe("ended", line.end_time.as_deref().map(units::local));
    let mut time = format!("{} on its GPUs", units::clock(line.run_s));
    if line.shared_s > 0.0 {
        time += &format!(", {} of it shared", units::clock(line.shared_s));
    }
    if let Some(limit) = job.time_limit_s {
        time += &format!(", at most {}", units::clock(limit));
    }
    lines.add("time", time);
    let estimate =
        job.estimate_s.map_or_else(String::new, |whole| format!(" of {}", units::clock(whole)));
    lines.add("work done", format!("{}{estimate}, as if alone", units::clock(job.done_s)));
    lines.maybe("estimate", job.estimate_from.as_deref().map(clean));
    let declared = job.gpu_memory_bytes.map(|bytes| format!(", {} declared", units::bytes(bytes)));
    let peak = units::bytes(job.memory_peak_bytes);
    lines.add("memory", format!("{peak} at most so far{}", declared.unwrap_or_default()));
    if job.priority != 0 {
        lines.add("priority", job.priority.to_string());
    }
    lines.maybe("waits for", job.dependency.as_deref().map(clean));
    let left = match job.retries_left {
        0 => String::new(),
        1 => ", 1 retry left".to_owned(),
        left => format!(", {left} retries left"),
    };
    lines.add("runs", format!("{}, {} after failures{left}", job.runs, job.retried));
    lines.maybe("stop signal", job.stop_signal.as_deref().map(clean));
    lines.maybe("process", job.pid.map(|pid| pid.to_string()));
    if !job.caps.is_empty() {
        lines.add("can", clean(&job.caps.join(", ")));
    }
    if job.cpu_s > 0.0 {
        lines.add("CPU time", units::clock(job.cpu_s));
    }
    if let Some(code) = line.exit_code {
        let signal = job.signal.map(|signal| format!(" (signal {signal})")).unwrap_or_default();
        lines.add("exit code", format!("{code}{signal}"));
    }
    if let Some(private) = &job.private {
        files(private, &mut lines);
    }
    lines.0
}

/// The latency of a service against its promise.
fn service(latency: &LatencyInfo, lines: &mut Lines) {
    let promise = latency.slo.as_deref().map_or_else(|| "none".to_owned(), clean);
    let kept = latency.kept.map(|kept| format!(", kept {:.1} % of the time", kept * 100.0));
    lines.add("promise", format!("{promise}{}", kept.unwrap_or_default()));
    let last = match (latency.p50_ms, latency.p99_ms, latency.rate_per_s) {
        (Some(p50), Some(p99), Some(rate)) => {
            format!("p50 {p50:.1} ms, p99 {p99:.1} ms at {rate:.1} requests/s")
        }
        _ => "not reported".to_owned(),
    };
    lines.add("latency", last);
    lines.add("requests", latency.requests.to_string());
}

/// GPUs, co-located jobs, slow-down and enforcement.
fn sharing(job: &JobInfo, lines: &mut Lines) {
    let line = &job.line;
    let place = if line.devices.is_empty() {
        String::new()
    } else {
        format!(" on {}", list(&line.devices))
    };
    let share = if job.share < 1.0 {
        format!(", {:.0} % of each", job.share * 100.0)
    } else {
        String::new()
    };
    lines.add("GPUs", format!("{}{place}{share}", line.gpus));
    // It is known of a present run only.
    let has_run = matches!(line.state, JobState::Running | JobState::Paused | JobState::Completing);
    lines.maybe("enforcement", has_run.then(|| clean(&job.enforcement)));
    let wish = match (job.exclusive, job.max_slowdown) {
        (true, _) => Some("nobody beside it".to_owned()),
        (false, Some(most)) => Some(format!("at most {most} times slower")),
        (false, None) => None,
    };
    lines.maybe("sharing", wish);
    lines.add(
        "beside",
        if line.beside.is_empty() {
            "nobody".to_owned()
        } else {
            format!("job {}", list(&line.beside))
        },
    );
    let rate = line.rate.map(|rate| {
        let how = match line.rate_from {
            Some(RateSource::Usage) => "measured by its use of the GPU",
            _ if line.rate_measured => "measured",
            _ => "predicted",
        };
        format!("{rate:.2} of its speed alone, {how}")
    });
    let is_unknown = rate.is_none() && !line.beside.is_empty();
    let rate = rate.or_else(|| is_unknown.then(|| "not known".to_owned()));
    lines.maybe("rate", rate);
    let slowdown = |value: Option<f64>| {
        value.map_or_else(|| "not known".to_owned(), |value| format!("{value:.2}"))
    };
    if job.slowdown_predicted.is_some() || job.slowdown_measured.is_some() {
        let (predicted, measured) =
            (slowdown(job.slowdown_predicted), slowdown(job.slowdown_measured));
        lines.add("slow-down", format!("predicted {predicted}, measured {measured}"));
        if let Some(together) = job.normalised_throughput {
            lines.add(
                "throughput",
                format!("{together:.2} times one job alone, all on its GPU together"),
            );
        }
    }
    if job.sub_batches > 1 {
        lines.add("sub-batches", job.sub_batches.to_string());
    }
}

fn files(private: &JobPrivate, lines: &mut Lines) {
    let command: Vec<String> = private.command.iter().map(|word| quoted(word)).collect();
    lines.add("command", command.join(" "));
    if !private.params.is_empty() {
        let param =
            |(name, value): (&String, &String)| format!("{}={}", clean(name), quoted(value));
        let params: Vec<String> = private.params.iter().map(param).collect();
        lines.add("parameters", params.join(" "));
    }
    lines.add("directory", clean(&private.dir));
    lines.add("stdout", clean(&private.stdout));
    if private.stderr != private.stdout {
        lines.add("stderr", clean(&private.stderr));
    }
    // That of a job that has ended is no longer kept.
    match private.env.len() {
        0 => {}
        1 => lines.add("environment", "1 variable (--json shows it)"),
        count => lines.add("environment", format!("{count} variables (--json shows them)")),
    }
}

/// A word quoted for a shell.
fn quoted(word: &str) -> String {
    let plain = |character: char| character.is_alphanumeric() || "-_./=:,@%+{}".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", clean(word).replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_pasted() {
        assert_eq!(quoted("--lr=0.1"), "--lr=0.1");
        assert_eq!(quoted("a b'c"), r"'a b'\''c'");
        assert_eq!(quoted(""), "''");
    }
}
