//! Files and JSON of finished runs.

use crate::decimal::Seconds;
use crate::metrics::{Metrics, Timing};
use crate::run::Run;
use crate::workload::Workload;
use serde::Serialize;
use std::io::{self, Write};
use tandem_core::JobId;

/// Version of every JSON object that is written.
const SCHEMA: u32 = 1;

/// What `--json` prints and `results.json` holds.
#[derive(Debug, Serialize)]
pub struct Results<'a> {
    schema: u32,
    trace: &'a str,
    jobs: usize,
    gpus: usize,
    runs: Vec<RunResult<'a>>,
}

#[derive(Debug, Serialize)]
struct RunResult<'a> {
    policy: &'a str,
    #[serde(flatten)]
    metrics: &'a Metrics,
    #[serde(skip_serializing_if = "Option::is_none")]
    timing: Option<Timing>,
}

impl<'a> Results<'a> {
    /// The results of `runs`; what was measured with a clock only if `timing` is set, because
    /// files must be the same in every run.
    pub fn new(workload: &'a Workload, runs: &'a [Run], timing: bool) -> Self {
        let result = |run: &'a Run| RunResult {
            policy: &run.policy,
            metrics: &run.metrics,
            timing: timing.then_some(run.timing),
        };
        Self {
            schema: SCHEMA,
            trace: &workload.trace.name,
            jobs: workload.len(),
            gpus: workload.cluster.gpus().len(),
            runs: runs.iter().map(result).collect(),
        }
    }
}

/// Writes one row per job, in order of submission.
pub fn write_jobs_csv(workload: &Workload, run: &Run, out: &mut impl Write) -> io::Result<()> {
    let quoted: Vec<String> =
        workload.trace.partitions.iter().map(|name| csv_field(name)).collect();
    writeln!(out, "job_id,partition,submit_s,start_s,end_s,gpus,nodes,shared_s,preemptions")?;
    for (spec, outcome) in workload.specs.iter().zip(&run.outcomes) {
        let (Some(start), Some(end)) = (outcome.start, outcome.end) else { continue };
        let partition = match workload.trace_job(spec.id).partition {
            Some(partition) => quoted[partition as usize].as_str(),
            None => "",
        };
        write_id(out, workload, spec.id)?;
        write!(
            out,
            ",{partition},{},{},{},{},",
            Seconds(spec.submit.0),
            Seconds(start.0),
            Seconds(end.0),
            spec.gpus
        )?;
        for (position, (node, count)) in outcome.nodes.iter().enumerate() {
            let separator = if position == 0 { "" } else { ";" };
            write!(out, "{separator}{node}:{count}")?;
        }
        writeln!(out, ",{},{}", Seconds(outcome.shared.0), outcome.preemptions)?;
    }
    Ok(())
}

fn write_id(out: &mut impl Write, workload: &Workload, job: JobId) -> io::Result<()> {
    let id = workload.id(job);
    if needs_quotes(id) {
        out.write_all(csv_field(id).as_bytes())
    } else {
        out.write_all(id.as_bytes())
    }
}

fn needs_quotes(text: &str) -> bool {
    text.bytes().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r'))
}

fn csv_field(text: &str) -> String {
    if needs_quotes(text) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
