//! Records of jobs for tests, as a list would have them.

use super::admin_comment::{AdminComment, GpusPer};
use super::jobs::{JobList, JobRecord, SlurmState};

/// A pending, held job with our admin comment, unless changed.
pub(super) struct JobBuilder(JobRecord);

impl JobBuilder {
    pub(super) fn new(id: u64) -> Self {
        Self(JobRecord {
            id,
            array: None,
            task: None,
            pending_tasks: Vec::new(),
            array_limit: None,
            state: SlurmState::Pending,
            reason: "JobHeldUser".to_owned(),
            uid: 1000,
            gid: 1000,
            user: "ann".to_owned(),
            name: "job".to_owned(),
            comment: String::new(),
            partition: "tandem".to_owned(),
            admin_comment: None,
            is_held: true,
            is_batch: true,
            requested_gres: String::new(),
            required_nodes: String::new(),
            nodes: Vec::new(),
            allocated_gres: Vec::new(),
            dependency: String::new(),
            eligible_s: 0,
            submit_s: 500,
            start_s: 0,
            end_s: 0,
            limit_min: None,
            restarts: 0,
            exit: (0, 0),
        })
        .tag("a")
    }

    /// With another tag it is another job.
    pub(super) fn tag(mut self, tag: &str) -> Self {
        let comment = self.0.admin_comment;
        let (nodes, gpus_per_node) =
            comment.map_or((1, 1), |comment| (comment.nodes, comment.gpus_per_node));
        let (tag, requested) = (tag.to_owned(), GpusPer::Node(gpus_per_node));
        self.0.admin_comment = Some(AdminComment { tag, nodes, gpus_per_node, requested });
        self
    }

    /// A job that Tandem does not manage.
    pub(super) fn unmanaged(mut self) -> Self {
        self.0.admin_comment = None;
        self
    }

    pub(super) fn gpus(mut self, nodes: u32, gpus_per_node: u32) -> Self {
        let (tag, requested) = ("a".to_owned(), GpusPer::Node(gpus_per_node));
        self.0.admin_comment = Some(AdminComment { tag, nodes, gpus_per_node, requested });
        self
    }

    /// The record of these pending tasks of the array with its id.
    pub(super) fn array(mut self, tasks: &[u32]) -> Self {
        self.0.array = Some(self.0.id);
        self.0.pending_tasks = tasks.to_vec();
        self
    }

    pub(super) fn task(mut self, array: u64, task: u32) -> Self {
        (self.0.array, self.0.task) = (Some(array), Some(task));
        self
    }

    pub(super) fn state(mut self, state: SlurmState) -> Self {
        self.0.is_held = false;
        self.0.reason = "None".to_owned();
        self.0.state = state;
        self
    }

    /// Released, and pending for this reason.
    pub(super) fn released(self, reason: &str) -> Self {
        let mut job = self.state(SlurmState::Pending);
        job.0.reason = reason.to_owned();
        job
    }

    /// With these required nodes and this Gres.
    pub(super) fn placed(mut self, nodes: &str, gres: &str) -> Self {
        self.0.required_nodes = nodes.to_owned();
        self.0.requested_gres = gres.to_owned();
        self
    }

    /// Has this Gres of a node.
    pub(super) fn on(mut self, node: &str, gres: &str) -> Self {
        self.0.nodes.push(node.to_owned());
        self.0.allocated_gres.push(gres.to_owned());
        self
    }

    pub(super) fn start(mut self, start_s: u64) -> Self {
        self.0.start_s = start_s;
        self
    }

    pub(super) fn submitted(mut self, submit_s: u64) -> Self {
        self.0.submit_s = submit_s;
        self
    }

    pub(super) fn restarts(mut self, restarts: u64) -> Self {
        self.0.restarts = restarts;
        self
    }

    pub(super) fn exit(mut self, code: i32, signal: i32) -> Self {
        self.0.exit = (code, signal);
        self
    }

    /// Any other change.
    pub(super) fn with(mut self, change: impl FnOnce(&mut JobRecord)) -> Self {
        change(&mut self.0);
        self
    }

    pub(super) fn build(self) -> JobRecord {
        self.0
    }
}

pub(super) fn list<const N: usize>(jobs: [JobBuilder; N]) -> JobList {
    JobList {
        version: Some((22, 5, 8)),
        records: jobs.into_iter().map(JobBuilder::build).collect(),
    }
}
