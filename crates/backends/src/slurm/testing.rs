//! Records of jobs for tests, as a list would have them.

use super::admin_comment::{AdminComment, RequestedGpus};
use super::jobs::{JobList, JobRecord, SlurmState};

/// A job that waits, held and with our note, until something else is said.
pub(super) struct JobBuilder(JobRecord);

impl JobBuilder {
    pub(super) fn new(id: u64) -> Self {
        Self(JobRecord {
            id,
            array: None,
            task: None,
            waiting: Vec::new(),
            at_a_time: None,
            state: SlurmState::Pending,
            reason: "JobHeldUser".to_owned(),
            uid: 1000,
            gid: 1000,
            user: "ann".to_owned(),
            name: "job".to_owned(),
            comment: String::new(),
            partition: "tandem".to_owned(),
            note: None,
            is_held: true,
            is_batch: true,
            asked: String::new(),
            required_nodes: String::new(),
            nodes: Vec::new(),
            allocated: Vec::new(),
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

    /// Another tag is another job.
    pub(super) fn tag(mut self, tag: &str) -> Self {
        let (nodes, gpus_per_node) =
            self.0.note.map_or((1, 1), |note| (note.nodes, note.gpus_per_node));
        let (tag, asked) = (tag.to_owned(), RequestedGpus::PerNode(gpus_per_node));
        self.0.note = Some(AdminComment { tag, nodes, gpus_per_node, asked });
        self
    }

    /// A job that is none of ours.
    pub(super) fn plain(mut self) -> Self {
        self.0.note = None;
        self
    }

    pub(super) fn gpus(mut self, nodes: u32, gpus_per_node: u32) -> Self {
        let (tag, asked) = ("a".to_owned(), RequestedGpus::PerNode(gpus_per_node));
        self.0.note = Some(AdminComment { tag, nodes, gpus_per_node, asked });
        self
    }

    /// The record that stands for these tasks of the array with its id.
    pub(super) fn array(mut self, waiting: &[u32]) -> Self {
        self.0.array = Some(self.0.id);
        self.0.waiting = waiting.to_vec();
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

    /// Released, and waits for this reason.
    pub(super) fn free(self, reason: &str) -> Self {
        let mut job = self.state(SlurmState::Pending);
        job.0.reason = reason.to_owned();
        job
    }

    /// ReportedState to run there, with that.
    pub(super) fn aimed(mut self, nodes: &str, gres: &str) -> Self {
        self.0.required_nodes = nodes.to_owned();
        self.0.asked = gres.to_owned();
        self
    }

    /// Has these resources of a node.
    pub(super) fn on(mut self, node: &str, gres: &str) -> Self {
        self.0.nodes.push(node.to_owned());
        self.0.allocated.push(gres.to_owned());
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

    /// Anything else.
    pub(super) fn with(mut self, change: impl FnOnce(&mut JobRecord)) -> Self {
        change(&mut self.0);
        self
    }

    pub(super) fn made(self) -> JobRecord {
        self.0
    }
}

pub(super) fn list<const N: usize>(jobs: [JobBuilder; N]) -> JobList {
    JobList { version: Some((22, 5, 8)), records: jobs.into_iter().map(JobBuilder::made).collect() }
}
