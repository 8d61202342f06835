//! Commands of users, and whether they are admitted.

use crate::job::Job;
use crate::request::JobRequest;
use crate::scheduler::{Input, Phase, Scheduler, Submission};
use std::collections::BTreeMap;
use thiserror::Error;

/// The user who sent a command.
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
    /// Whether the caller is an operator: root or the user of the daemon.
    pub fn is_operator(&self, daemon_uid: u32) -> bool {
        self.uid == 0 || self.uid == daemon_uid
    }

    /// Whether the caller may inspect and change a job of `job_uid`.
    pub fn may_change(&self, job_uid: u32, daemon_uid: u32) -> bool {
        self.uid == job_uid || self.is_operator(daemon_uid)
    }
}

/// A command of a user.
#[derive(Clone, Debug, PartialEq)]
pub enum UserCommand {
    /// Submit a job.
    Submit(Box<JobRequest>),
    /// Cancel a job.
    Cancel(u64),
    /// Hold a pending job.
    Hold(u64),
    /// Release a held job.
    Release(u64),
    /// Pause a running job.
    Pause(u64),
    /// Resume a paused job.
    Resume(u64),
    /// Set the number of sub-batches of a job.
    Accum(u64, Option<u32>),
    /// Drain a device.
    Drain(u32),
    /// Undrain a device.
    Undrain(u32),
}

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The command is malformed.
    #[error("{0}")]
    Bad(String),
    /// The caller lacks the permission.
    #[error("{0}")]
    Forbidden(String),
    /// The job or device does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The command does not fit the state of the job.
    #[error("{0}")]
    Conflict(String),
    /// The job can never run here.
    #[error("{0}")]
    Infeasible(String),
    /// The store cannot be written, or the daemon shuts down.
    #[error("{0}")]
    Unavailable(String),
}

/// An admitted command.
pub(crate) struct Accepted {
    /// The input for the scheduler.
    pub(crate) input: Input,
    /// The environment of new jobs, which is not journalled.
    pub(crate) env: BTreeMap<String, String>,
    /// Ids of new jobs.
    pub(crate) ids: Vec<u64>,
}

/// Admission control of commands.
pub(crate) struct Admission<'a> {
    pub(crate) scheduler: &'a Scheduler,
    /// The id of the next job, after those admitted in this cycle.
    pub(crate) next_job: u64,
    /// The user of the daemon.
    pub(crate) daemon_uid: u32,
}

impl Admission<'_> {
    /// Admits or refuses a command. `lookup` finds ended jobs in the store.
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
                    let reason = "pausing is disabled on these devices because it frees no memory; \
                                  cancel it, or set nvidia.pause";
                    return Err(Refusal::Conflict(format!("job {job}: {reason}")));
                }
                if self.phase(job) == Phase::Absent {
                    let message = format!("job {job} is not running; hold it instead");
                    return Err(Refusal::Conflict(message));
                }
                plain(Input::Pause { job })
            }
            UserCommand::Resume(job) => {
                self.check(caller, job, lookup)?;
                if !self.scheduler.job(job).is_some_and(|active| active.job.user_paused) {
                    return Err(Refusal::Conflict(format!("job {job} is not paused by a user")));
                }
                plain(Input::Resume { job })
            }
            UserCommand::Accum(job, accum) => {
                self.check(caller, job, lookup)?;
                if accum.is_some_and(|accum| !(1..=65_536).contains(&accum)) {
                    return Err(Refusal::Bad("accum: give a number from 1 to 65536".to_owned()));
                }
                if !self.scheduler.job(job).is_some_and(|active| active.job.caps.accum) {
                    let message =
                        format!("job {job} does not support sub-batches; see docs/python.md");
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

    /// Checks that a job exists, is active, and may be changed by the caller.
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
            let message = "this daemon schedules the jobs of Slurm; submit with sbatch";
            return Err(Refusal::Infeasible(message.to_owned()));
        }
        request.check().map_err(bad)?;
        self.feasible(&request)?;
        if self.daemon_uid != 0 && caller.uid != self.daemon_uid && caller.uid != 0 {
            let message =
                "this daemon runs only jobs of its own user; use a daemon that runs as root";
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

    /// Whether a job could run on an idle machine.
    pub(crate) fn feasible(&self, request: &JobRequest) -> Result<(), Refusal> {
        let devices = &self.scheduler.setup().devices;
        let (gang, count) = (request.gang() as usize, devices.len());
        if gang > count {
            return Err(Refusal::Infeasible(format!(
                "gpus: {gang} requested, the machine has {count}; request fewer"
            )));
        }
        let memory = devices.iter().map(|device| device.memory_bytes).min().unwrap_or(0);
        if let Some(wanted) = request.gpu_memory_bytes
            && wanted > memory
        {
            let mib = |bytes: u64| bytes >> 20;
            return Err(Refusal::Infeasible(format!(
                "gpu_memory: {} MiB requested, a device has {} MiB; request less",
                mib(wanted),
                mib(memory)
            )));
        }
        if let Some(partition) = &request.partition
            && partition != "local"
        {
            let partition = partition.escape_debug();
            return Err(Refusal::Infeasible(format!(
                "partition: there is no '{partition}'; the only one is 'local'"
            )));
        }
        Ok(())
    }
}
