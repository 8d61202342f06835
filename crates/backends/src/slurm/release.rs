//! Turns managed jobs into plain Slurm jobs again. Needs no daemon.

use super::commands::{self, SlurmRequest};
use super::jobs::SlurmState;
use super::{SlurmError, list_jobs};

/// The result of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleaseReport {
    /// Jobs that were held and are Slurm's to start now.
    pub released: Vec<String>,
    /// Jobs that were suspended and continue.
    pub resumed: Vec<String>,
    /// Slurm's error messages.
    pub refused: Vec<String>,
}

/// Releases every managed job: restores its GPU request, lifts the hold, resumes it if it is suspended.
/// Running jobs are left alone. With `dry_run` nothing is changed.
pub fn release_all(dry_run: bool) -> Result<ReleaseReport, SlurmError> {
    let list = list_jobs()?;
    let mut report = ReleaseReport::default();
    let mut requests = Vec::new();
    for record in &list.records {
        let Some(comment) = &record.admin_comment else { continue };
        // The record of an array stands for all its pending tasks.
        let job_id = record.id.to_string();
        match record.state {
            SlurmState::Pending if record.is_held => {
                // A job that has its GPUs already keeps them: Slurm would merge a second request.
                let restore = if record.requested_gres.trim_end_matches("gres:").is_empty() {
                    format!(" {}", comment.requested)
                } else {
                    " StartTime=now".to_owned()
                };
                requests.push(format!("update jobid={job_id}{restore} AdminComment="));
                requests.push(format!("release {job_id}"));
                report.released.push(job_id);
            }
            SlurmState::Suspended => {
                requests.push(format!("resume {job_id}"));
                report.resumed.push(job_id);
            }
            _ => {}
        }
    }
    if !dry_run && !requests.is_empty() {
        let requests: Vec<SlurmRequest> = requests.into_iter().map(SlurmRequest::Control).collect();
        report.refused = commands::send(&requests)?;
    }
    Ok(report)
}
