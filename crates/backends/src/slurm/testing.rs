//! Records of jobs for tests, as a list would have them.

use super::admin_comment::{AdminComment, JobForm};
use super::jobs::{JobList, JobRecord, SlurmState};

/// A pending job of one GPU that waits for its licence, without its GPU request as on 22.05, unless changed.
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
            reason: "Licenses".to_owned(),
            uid: 1000,
            gid: 1000,
            user: "ann".to_owned(),
            name: "job".to_owned(),
            comment: String::new(),
            partition: "tandem".to_owned(),
            admin_comment: Some(AdminComment {
                tag: "a".to_owned(),
                nodes: 1,
                gpus_per_node: 1,
                form: JobForm::Stripped,
                has_nodes: false,
                is_alone: false,
            }),
            held_request: None,
            licenses: "tandem_stripped:1".to_owned(),
            priority: 1000,
            is_held: false,
            is_batch: true,
            requested_gres: String::new(),
            required_nodes: String::new(),
            excluded_nodes: String::new(),
            features: String::new(),
            cpus: 1,
            memory_mib: 16,
            cpus_per_gpu: 0,
            memory_mib_per_gpu: 0,
            nodes: Vec::new(),
            allocated_gres: Vec::new(),
            dependency: String::new(),
            eligible_s: 0,
            evaluated_s: 0,
            submit_s: 500,
            start_s: 0,
            end_s: 0,
            limit_min: None,
            restarts: 0,
            exit: (0, 0),
        })
    }

    /// With another tag it is another job.
    pub(super) fn tag(self, tag: &str) -> Self {
        let tag = tag.to_owned();
        self.comment(|comment| comment.tag = tag)
    }

    /// Changes its admin comment.
    pub(super) fn comment(mut self, change: impl FnOnce(&mut AdminComment)) -> Self {
        change(self.0.admin_comment.as_mut().expect("it has one"));
        self
    }

    /// With its request of one GPU, as on newer versions.
    pub(super) fn share(self) -> Self {
        self.requesting("gres/gpu:1").comment(|comment| comment.form = JobForm::Share)
    }

    /// With a request that Slurm interprets alone.
    pub(super) fn odd(self, gpus: u32) -> Self {
        self.requesting("").comment(|comment| {
            (comment.form, comment.gpus_per_node) = (JobForm::Slurm, gpus);
        })
    }

    fn requesting(mut self, gres: &str) -> Self {
        self.0.requested_gres = gres.to_owned();
        self.0.licenses = "tandem_gate:1".to_owned();
        self
    }

    /// A job that Tandem does not manage.
    pub(super) fn unmanaged(mut self) -> Self {
        self.0.admin_comment = None;
        self.0.licenses = String::new();
        self
    }

    /// A job of whole GPUs.
    pub(super) fn gpus(self, nodes: u32, gpus_per_node: u32) -> Self {
        self.requesting(&format!("gres:gpu:{gpus_per_node}")).comment(|comment| {
            (comment.nodes, comment.gpus_per_node) = (nodes, gpus_per_node);
            comment.form = JobForm::Whole;
        })
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
        self.0.licenses = String::new();
        self.0.reason = "None".to_owned();
        self.0.state = state;
        self
    }

    /// Admitted, and pending for this reason.
    pub(super) fn admitted(self, reason: &str) -> Self {
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
