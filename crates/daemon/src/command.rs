//! What people ask of the daemon, and whether they may.

use crate::job::Job;
use crate::request::JobRequest;
use crate::scheduler::{Input, Phase, Scheduler, Submission};
use std::collections::BTreeMap;
use thiserror::Error;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// The user's name.
    pub user: String,
}

impl Caller {
    /// Whether everything is allowed: root, and the user whose daemon it is.
    pub fn is_operator(&self, daemon_uid: u32) -> bool {
        self.uid == 0 || self.uid == daemon_uid
    }

    /// Whether a job is theirs to look into and to change.
    pub fn may_change(&self, job_uid: u32, daemon_uid: u32) -> bool {
        self.uid == job_uid || self.is_operator(daemon_uid)
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum UserCommand {
    /// Hand in a job.
    Submit(Box<JobRequest>),
    /// Withdraw one.
    Cancel(u64),
    /// Keep one waiting.
    Hold(u64),
    /// Let it go on.
    Release(u64),
    /// Let one stand still.
    Pause(u64),
    /// Let it go on.
    Resume(u64),
    /// Say in how many parts one computes its batches.
    Accum(u64, Option<u32>),
    /// Let a device run dry.
    Drain(u32),
    /// Use it again.
    Undrain(u32),
}

/// Why something is not done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// It is not well-formed.
    #[error("{0}")]
    Bad(String),
    /// It is somebody else's.
    #[error("{0}")]
    Forbidden(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// Not in its present state.
    #[error("{0}")]
    Conflict(String),
    /// It can never run here.
    #[error("{0}")]
    Infeasible(String),
    /// The store cannot be written, or the daemon is about to stop.
    #[error("{0}")]
    Unavailable(String),
}

/// A command that may be carried out.
pub(crate) struct Accepted {
    /// For the scheduler.
    pub(crate) input: Input,
    /// The environment of a new job, kept apart.
    pub(crate) env: BTreeMap<String, String>,
    /// Numbers of new jobs.
    pub(crate) ids: Vec<u64>,
}

/// What deciding needs to know.
pub(crate) struct Admission<'a> {
    pub(crate) scheduler: &'a Scheduler,
    /// The number of the next job, those accepted in this cycle counted.
    pub(crate) next_job: u64,
    /// Whose daemon it is.
    pub(crate) daemon_uid: u32,
}

impl Admission<'_> {
    /// Decides whether a command may be carried out. `over` tells how jobs ended that are over, `exists`
    /// whose they were.
    pub(crate) fn admit(
        &self,
        caller: &Caller,
        command: UserCommand,
        lookup: &dyn Fn(u64) -> Option<Job>,
    ) -> Result<Accepted, Refusal> {
        let plain = |input| Ok(Accepted { input, env: BTreeMap::new(), ids: Vec::new() });
        match command {
            UserCommand::Submit(request) => self.submit(caller, *request, lookup),
            UserCommand::Cancel(job) => {
                self.check(caller, job, lookup)?;
                plain(Input::Cancel { job, by: caller.user.clone() })
            }
            UserCommand::Hold(job) => {
                self.check(caller, job, lookup)?;
                if self.phase(job) != Phase::Absent {
                    return Err(Refusal::Conflict(format!(
                        "job {job} has started; pause it instead"
                    )));
                }
                plain(Input::Hold { job })
            }
            UserCommand::Release(job) => {
                self.check(caller, job, lookup)?;
                plain(Input::Release { job })
            }
            UserCommand::Pause(job) => {
                self.check(caller, job, lookup)?;
                if !self.scheduler.setup().may_pause {
                    let reason = "pausing on these devices frees nothing and may do harm; \
                                  cancel or hold it, or allow it with nvidia.pause";
                    return Err(Refusal::Conflict(format!("job {job}: {reason}")));
                }
                if self.phase(job) == Phase::Absent {
                    let message = format!("job {job} does not run; hold it instead");
                    return Err(Refusal::Conflict(message));
                }
                plain(Input::Pause { job })
            }
            UserCommand::Resume(job) => {
                self.check(caller, job, lookup)?;
                if !self.scheduler.job(job).is_some_and(|active| active.job.user_paused) {
                    return Err(Refusal::Conflict(format!("job {job} was not paused by anyone")));
                }
                plain(Input::Resume { job })
            }
            UserCommand::Accum(job, accum) => {
                self.check(caller, job, lookup)?;
                if accum.is_some_and(|accum| !(1..=65_536).contains(&accum)) {
                    return Err(Refusal::Bad("accum: give a number from 1 to 65536".to_owned()));
                }
                if !self.scheduler.job(job).is_some_and(|active| active.caps.accum) {
                    let message = format!("job {job} does not take sub-batches from us");
                    return Err(Refusal::Conflict(message));
                }
                plain(Input::Accum { job, accum })
            }
            UserCommand::Drain(device) | UserCommand::Undrain(device) => {
                let count = self.scheduler.setup().devices.len();
                if device as usize >= count {
                    let message = format!("there is no device {device}; see tandem gpus");
                    return Err(Refusal::NotFound(message));
                }
                if !caller.is_operator(self.daemon_uid) {
                    let message = "only root and the user of the daemon may drain devices";
                    return Err(Refusal::Forbidden(message.to_owned()));
                }
                plain(match command {
                    UserCommand::Drain(_) => Input::Drain { device },
                    _ => Input::Undrain { device },
                })
            }
        }
    }

    fn phase(&self, job: u64) -> Phase {
        self.scheduler.job(job).map_or(Phase::Absent, |active| active.phase)
    }

    /// Whether a job is there, not over, and the caller's.
    fn check(
        &self,
        caller: &Caller,
        id: u64,
        lookup: &dyn Fn(u64) -> Option<Job>,
    ) -> Result<(), Refusal> {
        let stored;
        let (uid, state) = match self.scheduler.job(id) {
            Some(active) => (active.job.uid, None),
            None => {
                stored =
                    lookup(id).ok_or_else(|| Refusal::NotFound(format!("there is no job {id}")))?;
                (stored.uid, Some(stored.state))
            }
        };
        if !caller.may_change(uid, self.daemon_uid) {
            return Err(Refusal::Forbidden(format!("job {id} is not yours")));
        }
        match state {
            Some(state) => Err(Refusal::Conflict(format!("job {id} is over: {}", state.name()))),
            None => Ok(()),
        }
    }

    fn submit(
        &self,
        caller: &Caller,
        mut request: JobRequest,
        lookup: &dyn Fn(u64) -> Option<Job>,
    ) -> Result<Accepted, Refusal> {
        let bad = |error: crate::request::BadRequest| Refusal::Bad(error.to_string());
        if self.scheduler.setup().keeps_queue {
            let message = "this daemon places the jobs of Slurm; submit with sbatch";
            return Err(Refusal::Infeasible(message.to_owned()));
        }
        request.check().map_err(bad)?;
        self.feasible(&request)?;
        if self.daemon_uid != 0 && caller.uid != self.daemon_uid && caller.uid != 0 {
            let message = "this daemon runs jobs of its own user only; ask for one run by root";
            return Err(Refusal::Forbidden(message.to_owned()));
        }
        let mut over = Vec::new();
        for dependency in request.dependencies().map_err(bad)? {
            let job = dependency.job;
            if self.scheduler.job(job).is_some()
                || (job < self.next_job && job >= self.scheduler.next_job())
            {
                continue;
            }
            let known = lookup(job)
                .ok_or_else(|| Refusal::Bad(format!("dependency: there is no job {job}")))?;
            over.push((job, known.state));
        }
        let count = request.tasks().map_err(bad)?.tasks.len() as u64;
        let first = self.next_job;
        let env = std::mem::take(&mut request.env);
        let submission = Submission {
            first,
            uid: caller.uid,
            gid: caller.gid,
            user: caller.user.clone(),
            request,
            over,
            external: None,
            submit_unix_us: None,
        };
        let input = Input::Submit(Box::new(submission));
        Ok(Accepted { input, env, ids: (first..first + count).collect() })
    }

    /// Whether a job could run if it had everything to itself.
    pub(crate) fn feasible(&self, request: &JobRequest) -> Result<(), Refusal> {
        let devices = &self.scheduler.setup().devices;
        let (gang, count) = (request.gang() as usize, devices.len());
        if gang > count {
            return Err(Refusal::Infeasible(format!(
                "gpus: {gang} are more than the {count} of this machine; ask for fewer"
            )));
        }
        let memory = devices.iter().map(|device| device.memory_bytes).min().unwrap_or(0);
        if let Some(wanted) = request.gpu_memory_bytes
            && wanted > memory
        {
            let mib = |bytes: u64| bytes >> 20;
            return Err(Refusal::Infeasible(format!(
                "gpu_memory: {} MiB are more than the {} MiB of a device",
                mib(wanted),
                mib(memory)
            )));
        }
        if let Some(partition) = &request.partition
            && partition != "local"
        {
            let partition = partition.escape_debug();
            return Err(Refusal::Infeasible(format!(
                "partition: there is no '{partition}'; this machine has one, 'local'"
            )));
        }
        Ok(())
    }
}
