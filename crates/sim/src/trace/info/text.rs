//! The terminal form of a trace's summary: at most 80 columns, no colour.

use super::{Bar, ClassShare, GangShare, SacctCounts, TraceInfo, ValueRange};
use std::fmt;

const HOUR_S: f64 = 3_600.0;
const DAY_S: f64 = 86_400.0;
/// Gang sizes listed one by one; JSON has all.
const GANG_ROWS: usize = 12;

/// Widths of the terminal form, in columns.
const LABEL: usize = 16;
const BAR: usize = 40;
const TEXT: usize = 80 - LABEL;

impl fmt::Display for TraceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_counts(f)?;
        self.write_durations(f)?;
        self.write_gangs(f)?;
        self.write_classes(f)?;
        self.write_arrivals(f)
    }
}

impl TraceInfo {
    fn write_counts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, "trace", &self.name)?;
        let [users, partitions, classes] = [
            count(self.users, "user", "users"),
            count(self.partitions, "partition", "partitions"),
            count(self.classes, "class", "classes"),
        ];
        let jobs = thousands(self.jobs as u64);
        line(f, "jobs", &format!("{jobs} ({users}, {partitions}, {classes})"))?;
        let [first, last] =
            [self.first_submit_s, self.last_submit_s].map(|at| thousands(at.round() as u64));
        let days = self.span_days;
        line(f, "submitted", &format!("from {first} s to {last} s, a span of {days:.2} days"))?;
        line(f, "work", &format!("{} GPU-hours", thousands(self.gpu_hours.round() as u64)))?;
        write_range(f, "memory", "MiB", self.memory_mib.as_ref())?;
        write_range(f, "GPU use", "%", self.gpu_util_percent.as_ref())?;
        write_range(f, "bandwidth use", "%", self.bandwidth_util_percent.as_ref())?;
        line(f, "estimates", &self.estimates_text())?;
        if self.durations_raised > 0 {
            line(f, "raised to 1 s", &count(self.durations_raised, "duration", "durations"))?;
        }
        if self.rows_skipped > 0 {
            line(f, "skipped", &count(self.rows_skipped, "bad row", "bad rows"))?;
        }
        for remark in self.sacct.iter().flat_map(SacctCounts::remarks) {
            line(f, "sacct", &remark)?;
        }
        Ok(())
    }

    fn estimates_text(&self) -> String {
        let jobs = count(self.estimates, "job", "jobs");
        match self.estimate_spearman {
            Some(rho) => format!("{jobs}, rank correlation with the true durations {rho:.2}"),
            None if self.estimates == 0 => "none".to_owned(),
            None => jobs,
        }
    }

    fn write_durations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\ndurations")?;
        let columns = [
            ("min", self.duration_min_s),
            ("median", self.duration_median_s),
            ("mean", self.duration_mean_s),
            ("p90", self.duration_p90_s),
            ("p99", self.duration_p99_s),
            ("max", self.duration_max_s),
        ];
        let row = |cell: &dyn Fn(&(&str, f64)) -> String| -> String {
            columns.iter().map(|column| format!("{:>11}", cell(column))).collect()
        };
        writeln!(f, "{}\n{}\n", row(&|(name, _)| (*name).to_owned()), row(&|(_, s)| human(*s)))?;
        let longest = self.duration_histogram.iter().map(|bar| bar.jobs).max().unwrap_or(0);
        for bar in &self.duration_histogram {
            let label = bar_label(bar);
            let jobs = thousands(bar.jobs as u64);
            writeln!(f, "{label:>LABEL$}  {:<BAR$} {jobs:>11}", blocks(bar.jobs, longest))?;
        }
        Ok(())
    }

    fn write_gangs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut frequent: Vec<_> = self.gangs.iter().collect();
        frequent.sort_by_key(|gang| std::cmp::Reverse(gang.jobs));
        let rest = frequent.split_off(frequent.len().min(GANG_ROWS));
        frequent.sort_by_key(|gang| gang.gpus);
        writeln!(f, "\n{:>LABEL$} {:>12} {:>10} {:>12}", "GPUs", "jobs", "of jobs", "of GPU time")?;
        for gang in frequent {
            write_gang(f, &gang.gpus.to_string(), &[gang])?;
        }
        if !rest.is_empty() {
            write_gang(f, "other", &rest)?;
        }
        Ok(())
    }

    fn write_classes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.top_classes.is_empty() {
            return Ok(());
        }
        writeln!(f, "\n{:<46} {:>12} {:>10}", "most frequent classes", "jobs", "of jobs")?;
        for ClassShare { class, jobs, job_share } in &self.top_classes {
            let (class, jobs) = (shortened(class, 44), thousands(*jobs as u64));
            writeln!(f, "  {class:<44} {jobs:>12} {:>8.1} %", job_share * 100.0)?;
        }
        Ok(())
    }

    fn write_arrivals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let most = self.arrivals_by_hour.iter().max().copied().unwrap_or(0).max(1);
        let level = |&jobs: &usize| LEVELS[(jobs * LEVELS.len()).div_ceil(most).saturating_sub(1)];
        let line: String = self.arrivals_by_hour.iter().map(level).collect();
        writeln!(f, "\n{:<LABEL$}{line}", "arrivals")?;
        writeln!(f, "{:<LABEL$}0     6     12    18   24 h", "by hour of day")
    }
}

fn line(f: &mut fmt::Formatter<'_>, label: &str, text: &str) -> fmt::Result {
    writeln!(f, "{label:<LABEL$}{}", shortened(text, TEXT))
}

fn write_range(
    f: &mut fmt::Formatter<'_>,
    label: &str,
    unit: &str,
    range: Option<&ValueRange>,
) -> fmt::Result {
    let text = range.map_or("not stated".to_owned(), |ValueRange { jobs, min, median, max }| {
        let jobs = count(*jobs, "job", "jobs");
        let [min, median, max] = [min, median, max].map(|at| thousands(at.round() as u64));
        format!("{min} to {max} {unit}, median {median} {unit} ({jobs})")
    });
    line(f, label, &text)
}

fn write_gang(f: &mut fmt::Formatter<'_>, label: &str, gangs: &[&GangShare]) -> fmt::Result {
    let jobs = thousands(gangs.iter().map(|gang| gang.jobs as u64).sum());
    let job_percent = gangs.iter().map(|gang| gang.job_share).sum::<f64>() * 100.0;
    let time_percent = gangs.iter().map(|gang| gang.gpu_time_share).sum::<f64>() * 100.0;
    writeln!(f, "{label:>LABEL$} {jobs:>12} {job_percent:>8.1} % {time_percent:>10.1} %")
}

fn bar_label(bar: &Bar) -> String {
    match (bar.from_s, bar.below_s) {
        (0, Some(below)) => format!("under {}", human(below as f64)),
        (from, None) => format!("{} or more", human(from as f64)),
        (from, Some(below)) => format!("{} - {}", human(from as f64), human(below as f64)),
    }
}

/// A bar in eighths of a column, so that even a small share is visible.
fn blocks(jobs: usize, longest: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (jobs * BAR * 8).div_ceil(longest.max(1));
    format!("{}{}", "█".repeat(eighths / 8), PARTS[eighths % 8])
}

/// A duration in a familiar unit, with at most one decimal.
fn human(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 120.0 => (s, "s"),
        s if s < HOUR_S => (s / 60.0, "min"),
        s if s < 2.0 * DAY_S => (s / HOUR_S, "h"),
        s => (s / DAY_S, "d"),
    };
    let rounded = (value * 10.0).round() / 10.0;
    format!("{rounded} {unit}")
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{} {}", thousands(number as u64), if number == 1 { one } else { many })
}

/// With separators: 12,345.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_in_familiar_units() {
        let said = [1.0, 119.5, 120.0, 3_599.0, 3_600.0, 100_000.0, 200_000.0].map(human);
        assert_eq!(said, ["1 s", "119.5 s", "2 min", "60 min", "1 h", "27.8 h", "2.3 d"]);
    }
}
