//! The way out, which needs no daemon: held jobs of ours become plain jobs of Slurm again.

use super::commands::{self, SlurmRequest};
use super::jobs::SlurmState;
use super::{SlurmError, list};

/// What was given back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleaseReport {
    /// Jobs that waited and are Slurm's to start now.
    pub released: Vec<String>,
    /// Jobs that stood still and go on.
    pub resumed: Vec<String>,
    /// What Slurm said no to.
    pub refused: Vec<String>,
}

/// Gives every job with our note back: what it asked for is restored, the hold is lifted, what stands
/// still goes on. Jobs that run are left alone. With `dry`, says what it would do.
pub fn release_all(dry: bool) -> Result<ReleaseReport, SlurmError> {
    let listing = list()?;
    let mut done = ReleaseReport::default();
    let mut requests = Vec::new();
    for record in &listing.records {
        let Some(note) = &record.note else { continue };
        // The record of an array stands for all tasks that wait under it.
        let address = record.id.to_string();
        match record.state {
            SlurmState::Pending if record.is_held => {
                // What was given a GPU already keeps it: Slurm merges a second choice with the first.
                let asks = if record.asked.trim_end_matches("gres:").is_empty() {
                    format!(" {}", note.asked)
                } else {
                    " StartTime=now".to_owned()
                };
                requests.push(format!("update jobid={address}{asks} AdminComment="));
                requests.push(format!("release {address}"));
                done.released.push(address);
            }
            SlurmState::Suspended => {
                requests.push(format!("resume {address}"));
                done.resumed.push(address);
            }
            _ => {}
        }
    }
    if !dry && !requests.is_empty() {
        let requests: Vec<SlurmRequest> = requests.into_iter().map(SlurmRequest::Control).collect();
        done.refused = commands::ask(&requests)?;
    }
    Ok(done)
}
