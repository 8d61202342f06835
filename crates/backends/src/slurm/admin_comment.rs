//! The note that our part of Slurm's plugin leaves in `admin_comment`: that a job is ours, what it asked
//! for, and a tag that no other job has, since Slurm gives ids again when it dies at the wrong moment.

use std::fmt;

/// The word that begins it; the number is that of its form.
pub(super) const MARK: &str = "tandem1";

/// How the GPUs were asked for, and how many in that way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedGpus {
    PerNode(u32),
    PerJob(u32),
    PerTask(u32),
}

/// What a job of ours asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminComment {
    pub(super) tag: String,
    pub(super) nodes: u32,
    pub(super) gpus_per_node: u32,
    pub(super) asked: RequestedGpus,
}

impl AdminComment {
    /// `tandem1:TAG:NODES:GPUS:KIND:COUNT`; `None` if the text is none of ours.
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
        let asked = match kind {
            "node" => RequestedGpus::PerNode(count),
            "job" => RequestedGpus::PerJob(count),
            "task" => RequestedGpus::PerTask(count),
            _ => return None,
        };
        let is_all = parts.next().is_none();
        is_all.then(|| Self { tag: tag.to_owned(), nodes, gpus_per_node, asked })
    }
}

impl fmt::Display for RequestedGpus {
    /// As `scontrol update` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequestedGpus::PerNode(count) => write!(f, "TresPerNode=gres:gpu:{count}"),
            RequestedGpus::PerJob(count) => write!(f, "TresPerJob=gres:gpu:{count}"),
            RequestedGpus::PerTask(count) => write!(f, "TresPerTask=gres:gpu:{count}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_notes_are_notes() {
        let note = AdminComment::parse("tandem1:8a6f865bc487f58b:2:4:job:8").unwrap();
        assert_eq!((note.nodes, note.gpus_per_node, note.asked), (2, 4, RequestedGpus::PerJob(8)));
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
