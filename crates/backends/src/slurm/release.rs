//! Turns managed jobs into plain Slurm jobs again. Needs no daemon.

use super::commands::{self, SlurmRequest};
use super::jobs::{JobRecord, SlurmState};
use super::reconcile::{listed_jobs, plain_request};
use super::{SlurmError, gate, licence, list_jobs, syntax};

/// The result of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleaseReport {
    /// Jobs that waited for Tandem and are Slurm's to start now.
    pub released: Vec<String>,
    /// Jobs that were suspended and continue.
    pub resumed: Vec<String>,
    /// Slurm's error messages.
    pub refused: Vec<String>,
}

/// Releases every managed job: restores its GPU request, lets it start, resumes it if it is suspended. Running jobs
/// are left alone. With `dry_run` nothing is changed.
pub fn release_all(dry_run: bool) -> Result<ReleaseReport, SlurmError> {
    let list = list_jobs(None)?;
    let mut report = ReleaseReport::default();
    let mut requests = Vec::new();
    for record in &list.records {
        let is_managed = record.admin_comment.is_some() || record.held_request.is_some();
        match record.state {
            SlurmState::Pending if is_managed => {
                let lines = release(record);
                if !lines.is_empty() {
                    report.released.push(record.id.to_string());
                }
                requests.extend(lines);
            }
            SlurmState::Suspended if is_managed => {
                requests.push(format!("resume {}", record.id));
                report.resumed.push(record.id.to_string());
            }
            _ => {}
        }
    }
    if dry_run {
        return Ok(report);
    }
    if !requests.is_empty() {
        let requests: Vec<SlurmRequest> = requests.into_iter().map(SlurmRequest::Control).collect();
        report.refused = commands::send(&requests)?;
    }
    report.refused.extend(gate::open());
    Ok(report)
}

/// The requests that make a pending job a plain one.
fn release(record: &JobRecord) -> Vec<String> {
    if let (Some(request), true) = (&record.held_request, record.is_held) {
        // A job that has its GPUs already keeps them: Slurm would merge a second request.
        let has_gpus = !syntax::gres(&record.requested_gres).is_empty();
        let restored = if has_gpus { "StartTime=now" } else { request };
        let update = format!("update jobid={} {restored} AdminComment=", record.id);
        return vec![update, format!("release {}", record.id)];
    }
    let Some(comment) = &record.admin_comment else { return Vec::new() };
    let is_waiting = licence::is_gated(&record.licenses);
    // It was given a place and has not begun.
    let is_placed = !comment.has_nodes && !record.required_nodes.is_empty();
    if !is_waiting && !is_placed {
        return Vec::new();
    }
    // The record of an array stands for all its pending tasks, so that one request will do.
    let jobs = listed_jobs(record);
    match jobs.as_slice() {
        [] => Vec::new(),
        [job] => vec![plain_request(job)],
        [first, ..] => {
            let task = format!("jobid={} ", first.job_id);
            vec![plain_request(first).replacen(&task, &format!("jobid={} ", record.id), 1)]
        }
    }
}
