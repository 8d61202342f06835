//! Reads any bytes as what Slurm prints and as what a relay sends: an error or a result, never a panic.

use super::admin_comment::AdminComment;
use super::dependency::dependency_state;
use super::reconcile::MissingRun;
use super::{completions, jobs, nodes, syntax};
use crate::op::RunId;
use crate::relay::{Challenge, RelayProof};

/// What `squeue --json` prints; then the texts within it.
pub fn squeue(bytes: &[u8]) {
    let Ok(list) = jobs::read(bytes) else { return };
    for job in &list.records {
        let _ = dependency_state(&job.dependency, job.task, &list.records, u64::MAX);
    }
}

/// What `scontrol show nodes --json` prints.
pub fn nodes(bytes: &[u8]) {
    let _ = nodes::read(bytes);
}

/// Lists of nodes and tasks, resources, comments, dependencies, and the log of completions.
pub fn texts(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ = syntax::nodes(&text);
    let _ = syntax::tasks(&text);
    for gres in syntax::gres(&text) {
        let _ = gres.used_indices();
    }
    let _ = AdminComment::parse(&text);
    let _ = dependency_state(&text, Some(3), &[], 0);
    let _ = completions::find(&text, &MissingRun { run: RunId { job: 1, run: 1 }, id: 17 });
}

/// Lines of the handshake of a relay.
pub fn relay(bytes: &[u8]) {
    let _ = serde_json::from_slice::<Challenge>(bytes);
    if let Ok(proof) = serde_json::from_slice::<RelayProof>(bytes) {
        let _ = proof.verify(b"secret", "nonce");
    }
}
