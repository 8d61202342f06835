//! The admin comment that our job_submit plugin writes: it marks a job as managed by Tandem, keeps the GPU
//! request of its user, and has a unique tag, because Slurm reuses job ids after an untimely crash.

use std::fmt;

/// Its first word; the number is the version of the format.
const MARK: &str = "tandem1";

/// How many GPUs were requested, and in which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GpusPer {
    Node(u32),
    Job(u32),
    Task(u32),
}

/// The admin comment of a managed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminComment {
    pub(super) tag: String,
    pub(super) nodes: u32,
    pub(super) gpus_per_node: u32,
    pub(super) requested: GpusPer,
}

impl AdminComment {
    /// `tandem1:TAG:NODES:GPUS:KIND:COUNT`; `None` for any other text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        if parts.next()? != MARK {
            return None;
        }
        let tag = parts.next()?;
        if tag.len() != 16 || !tag.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut number = || parts.next()?.parse().ok().filter(|&number: &u32| number > 0);
        let (nodes, gpus_per_node) = (number()?, number()?);
        let (kind, count) = (parts.next()?, parts.next()?.parse().ok()?);
        let requested = match kind {
            "node" => GpusPer::Node(count),
            "job" => GpusPer::Job(count),
            "task" => GpusPer::Task(count),
            _ => return None,
        };
        let is_all = parts.next().is_none();
        is_all.then(|| Self { tag: tag.to_owned(), nodes, gpus_per_node, requested })
    }
}

impl fmt::Display for GpusPer {
    /// As an argument of `scontrol update`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpusPer::Node(count) => write!(f, "TresPerNode=gres:gpu:{count}"),
            GpusPer::Job(count) => write!(f, "TresPerJob=gres:gpu:{count}"),
            GpusPer::Task(count) => write!(f, "TresPerTask=gres:gpu:{count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_comments_are_ignored() {
        let comment = AdminComment::parse("tandem1:8a6f865bc487f58b:2:4:job:8").unwrap();
        assert_eq!(
            (comment.nodes, comment.gpus_per_node, comment.requested),
            (2, 4, GpusPer::Job(8))
        );
        let others = [
            "",
            "tandem",
            "tandem2:8a6f865bc487f58b:2:4:job:8",
            "tandem1:8a6f865bc487f58:2:4:job:8",
            "tandem1:8a6f865bc487f58b:0:4:job:8",
            "tandem1:8a6f865bc487f58b:2:4:job:8:more",
            "tandem1:8a6f865bc487f58b:2:4:socket:8",
            "tandem1:ü6f865bc487f58b:2:4:job:8",
        ];
        for other in others {
            assert_eq!(AdminComment::parse(other), None, "{other}");
        }
    }
}
