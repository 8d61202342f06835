//! The admin comment that our job_submit plugin writes: it marks a job as managed by Tandem, says what it asked
//! for, and has a unique tag, because Slurm reuses job ids after an untimely crash.

/// Its first word; the number is the version of the format.
const MARK: &str = "tandem2";
/// That of earlier versions, whose jobs are held instead of waiting for a licence.
const HELD_MARK: &str = "tandem1";

/// What Tandem may do with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobForm {
    /// One GPU, which it may share.
    Share,
    /// One GPU, which it may share; its request was removed, because this Slurm cannot replace it.
    Stripped,
    /// Whole GPUs, the same number on each node.
    Whole,
    /// Whole GPUs, which Slurm chooses: its request has parts that Tandem does not interpret.
    Slurm,
}

/// The admin comment of a managed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminComment {
    pub(super) tag: String,
    pub(super) nodes: u32,
    pub(super) gpus_per_node: u32,
    pub(super) form: JobForm,
    /// Its user required its nodes.
    pub(super) has_nodes: bool,
    /// It has its nodes to itself.
    pub(super) is_alone: bool,
}

impl AdminComment {
    /// `tandem2:TAG:NODES:GPUS:FORM[:fixed][:alone]`; `None` for any other text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        if parts.next()? != MARK {
            return None;
        }
        let tag = parts.next().filter(|tag| is_tag(tag))?;
        let mut number = || parts.next()?.parse().ok().filter(|&number: &u32| number > 0);
        let (nodes, gpus_per_node) = (number()?, number()?);
        let form = match parts.next()? {
            "share" => JobForm::Share,
            "stripped" => JobForm::Stripped,
            "whole" => JobForm::Whole,
            "slurm" => JobForm::Slurm,
            _ => return None,
        };
        let rest: Vec<&str> = parts.collect();
        let (has_nodes, is_alone) = match rest[..] {
            [] => (false, false),
            ["fixed"] => (true, false),
            ["alone"] => (false, true),
            ["fixed", "alone"] => (true, true),
            _ => return None,
        };
        Some(Self { tag: tag.to_owned(), nodes, gpus_per_node, form, has_nodes, is_alone })
    }
}

fn is_tag(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The request of a job that an earlier version holds, as an argument of `scontrol update`.
pub(super) fn held_request(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.split(':').collect();
    let [HELD_MARK, tag, _, _, kind, count] = parts[..] else { return None };
    let count = count.parse::<u32>().ok().filter(|&count| count > 0 && is_tag(tag))?;
    let field = match kind {
        "node" => "TresPerNode",
        "job" => "TresPerJob",
        "task" => "TresPerTask",
        _ => return None,
    };
    Some(format!("{field}=gres:gpu:{count}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_comments_are_ignored() {
        let comment = AdminComment::parse("tandem2:8a6f865bc487f58b:2:4:whole").unwrap();
        let of = (comment.nodes, comment.gpus_per_node, comment.form, comment.has_nodes);
        assert_eq!(of, (2, 4, JobForm::Whole, false));
        let fixed = AdminComment::parse("tandem2:8a6f865bc487f58b:1:1:share:fixed").unwrap();
        assert_eq!((fixed.form, fixed.has_nodes, fixed.is_alone), (JobForm::Share, true, false));
        let alone = AdminComment::parse("tandem2:8a6f865bc487f58b:1:1:slurm:alone").unwrap();
        assert_eq!((alone.form, alone.has_nodes, alone.is_alone), (JobForm::Slurm, false, true));
        let others = [
            "",
            "tandem",
            "tandem1:8a6f865bc487f58b:2:4:job:8",
            "tandem2:8a6f865bc487f58:2:4:whole",
            "tandem2:8a6f865bc487f58b:0:4:whole",
            "tandem2:8a6f865bc487f58b:2:4:whole:more",
            "tandem2:8a6f865bc487f58b:2:4:whole:fixed:more",
            "tandem2:8a6f865bc487f58b:2:4:socket",
            "tandem2:ü6f865bc487f58b:2:4:whole",
        ];
        for other in others {
            assert_eq!(AdminComment::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_request_of_a_held_job_is_known() {
        let request = held_request("tandem1:8a6f865bc487f58b:2:4:job:8");
        assert_eq!(request.as_deref(), Some("TresPerJob=gres:gpu:8"));
        assert_eq!(held_request("tandem1:8a6f865bc487f58b:2:4:socket:8"), None);
        assert_eq!(held_request("tandem2:8a6f865bc487f58b:1:1:share"), None);
    }
}
