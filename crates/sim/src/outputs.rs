//! Files and JSON of finished runs.

use crate::bound::LowerBound;
use crate::decimal::{push_seconds, push_whole};
use crate::estimates::EstimateErrors;
use crate::metrics::{Metrics, Timing};
use crate::run::SimRun;
use crate::workload::Workload;
use serde::Serialize;
use std::io::{self, Write};

/// Version of every JSON object that is written.
const SCHEMA: u32 = 1;

/// Rows are written in blocks of this many bytes.
const BLOCK: usize = 1 << 16;

/// The content of `--json` and `results.json`.
#[derive(Debug, Serialize)]
pub struct SimResults<'a> {
    schema: u32,
    trace: &'a str,
    jobs: usize,
    gpus: usize,
    lower_bound: LowerBound,
    runs: Vec<RunJson<'a>>,
}

#[derive(Debug, Serialize)]
struct RunJson<'a> {
    policy: &'a str,
    #[serde(flatten)]
    metrics: &'a Metrics,
    #[serde(skip_serializing_if = "Option::is_none")]
    estimates: Option<EstimateErrors>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timing: Option<Timing>,
}

impl<'a> SimResults<'a> {
    /// The results of `runs` and the lower bound. Measured times only if `timing` is set, because files must
    /// be equal in every run.
    pub fn new(
        workload: &'a Workload,
        lower_bound: LowerBound,
        runs: &'a [SimRun],
        timing: bool,
    ) -> Self {
        let result = |run: &'a SimRun| RunJson {
            policy: &run.policy,
            metrics: &run.metrics,
            estimates: run.estimates,
            timing: timing.then_some(run.timing),
        };
        Self {
            schema: SCHEMA,
            trace: &workload.trace.name,
            jobs: workload.len(),
            gpus: workload.cluster.gpus().len(),
            lower_bound,
            runs: runs.iter().map(result).collect(),
        }
    }
}

/// Writes one row per job, in order of submission.
pub fn write_jobs_csv(workload: &Workload, run: &SimRun, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "job_id,partition,submit_s,start_s,end_s,gpus,nodes,shared_s,preemptions")?;
    let partitions: Vec<String> = workload.trace.partitions.iter().map(|n| csv_field(n)).collect();
    // Rows are assembled by hand: the formatting machinery would cost more than the simulation.
    let mut rows = Vec::with_capacity(BLOCK + BLOCK / 8);
    for (job, outcome) in workload.jobs.iter().zip(&run.outcomes) {
        let spec = &job.spec;
        let (Some(start), Some(end)) = (outcome.start, outcome.end) else { continue };
        let id = workload.id(spec.id);
        if needs_quotes(id) {
            rows.extend_from_slice(csv_field(id).as_bytes());
        } else {
            rows.extend_from_slice(id.as_bytes());
        }
        rows.push(b',');
        if let Some(partition) = job.named_partition() {
            rows.extend_from_slice(partitions[partition as usize].as_bytes());
        }
        for time in [spec.submit, start, end] {
            rows.push(b',');
            push_seconds(&mut rows, time.0);
        }
        rows.push(b',');
        push_whole(&mut rows, spec.gpus.into());
        rows.push(b',');
        let nodes = outcome.nodes.start as usize..outcome.nodes.end as usize;
        for (position, &(node, count)) in run.nodes[nodes].iter().enumerate() {
            if position > 0 {
                rows.push(b';');
            }
            push_whole(&mut rows, node.into());
            rows.push(b':');
            push_whole(&mut rows, count.into());
        }
        rows.push(b',');
        push_seconds(&mut rows, outcome.shared.0);
        rows.push(b',');
        push_whole(&mut rows, outcome.preemptions.into());
        rows.push(b'\n');
        if rows.len() >= BLOCK {
            out.write_all(&rows)?;
            rows.clear();
        }
    }
    out.write_all(&rows)
}

fn needs_quotes(text: &str) -> bool {
    text.bytes().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r'))
}

fn csv_field(text: &str) -> String {
    if needs_quotes(text) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}
