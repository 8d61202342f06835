//! Commands of users, and whether they are admitted.

mod select;

use crate::job::{JobState, StoredJob};
use crate::limits::RequestLimits;
use crate::request::{CheckedRequest, JobRequest, Selector};
use crate::scheduler::{Booking, Input, JobAction, Phase, Scheduler, Submission, UserLoad};
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
    /// What the connection of the caller permits.
    pub rights: Rights,
}

/// The rights of a caller, as far as the connection permits them: everything on the unix socket, the scopes of
/// a token on TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Submit jobs and change those of the user.
    pub submit: bool,
    /// Act as an operator, if the user is one.
    pub operate: bool,
    /// The caller came with a token. Tokens cannot make tokens.
    pub is_token: bool,
    /// `daemon.operators` names the user.
    pub is_listed: bool,
}

impl Rights {
    /// The rights of a caller on the unix socket.
    pub const ALL: Rights =
        Rights { submit: true, operate: true, is_token: false, is_listed: false };
}

impl Caller {
    /// A caller on the unix socket.
    pub fn local(uid: u32, gid: u32, user: String) -> Self {
        Self { uid, gid, user, rights: Rights::ALL }
    }

    /// Whether the caller acts as an operator: root, the user of the daemon, or a user in `daemon.operators`,
    /// with the scope for it.
    pub fn is_operator(&self, daemon_uid: u32) -> bool {
        let is_one = self.uid == 0 || self.uid == daemon_uid || self.rights.is_listed;
        self.rights.operate && is_one
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
    Submit(Box<CheckedRequest>),
    /// Change a job.
    Change(JobAction, u64),
    /// Change all selected jobs.
    ChangeMany(JobAction, Vec<Selector>),
    /// Set the number of sub-batches of a job.
    Accum(u64, Option<u32>),
    /// Drain a device, for a reason.
    Drain(u32, Option<String>),
    /// Undrain a device.
    Undrain(u32),
    /// Reserve devices.
    Reserve(Box<Booking>),
    /// Cancel a reservation.
    Unreserve(u32),
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
    /// A limit of the user, or of all users together, is reached.
    #[error("{0}")]
    Limit(String),
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
    /// The reply, sent when the command is durable.
    pub(crate) outcome: CommandOutcome,
}

/// The result of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandOutcome {
    /// Ids of new jobs.
    pub new: Vec<u64>,
    /// Jobs that were changed.
    pub done: Vec<u64>,
    /// Jobs that could not be changed, and why.
    pub failed: Vec<(u64, Refusal)>,
}

/// The facts about a stored job that admission needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PastJob {
    /// The user id of its owner.
    pub(crate) uid: u32,
    /// How it ended.
    pub(crate) state: JobState,
    /// The first job of its array, if it is a task.
    pub(crate) array: Option<u64>,
}

/// Access to jobs that have ended.
pub(crate) trait PastJobs {
    /// The facts about a job that are needed most, without its request.
    fn past(&self, id: u64) -> Option<PastJob>;
    /// A job with its request, which may be large.
    fn job(&self, id: u64) -> Option<StoredJob>;
    /// The latest job of a user.
    fn last(&self, user: &str) -> Option<u64>;
    /// Whether a task of an array has ended and did not complete.
    fn has_failed_task(&self, first: u64) -> bool;
}

/// Admission control: checks every command of a user before it becomes an input of the scheduler.
pub(crate) struct AdmissionControl<'a> {
    pub(crate) scheduler: &'a Scheduler,
    /// The id of the next job, after those admitted in this cycle.
    pub(crate) next_job: u64,
    /// The user of the daemon.
    pub(crate) daemon_uid: u32,
    /// Limits on requests.
    pub(crate) limits: &'a RequestLimits,
    /// Jobs that were admitted earlier in this cycle, by user.
    pub(crate) admitted: &'a Admitted,
}

/// Jobs that were admitted in a cycle and that the scheduler does not know yet, by user.
pub(crate) type Admitted = BTreeMap<u32, UserLoad>;

impl AdmissionControl<'_> {
    /// Admits or refuses a command. `history` knows ended jobs.
    pub(crate) fn admit(
        &self,
        caller: &Caller,
        command: UserCommand,
        history: &dyn PastJobs,
    ) -> Result<Accepted, Refusal> {
        let plain = |input| {
            Ok(Accepted { input, env: BTreeMap::new(), outcome: CommandOutcome::default() })
        };
        match command {
            UserCommand::Submit(request) => self.submit(caller, *request, history),
            UserCommand::Change(action, job) => {
                self.check(caller, job, history)?;
                self.applies(action, job)?;
                let by = caller.user.clone();
                plain(match action {
                    JobAction::Cancel => Input::Cancel { job, by },
                    JobAction::Hold => Input::Hold { job },
                    JobAction::Release => Input::Release { job },
                    JobAction::Pause => Input::Pause { job },
                    JobAction::Resume => Input::Resume { job },
                    JobAction::Requeue => Input::Requeue { job, by },
                })
            }
            UserCommand::ChangeMany(action, selectors) => {
                let outcome = self.select(caller, action, &selectors, history)?;
                let (jobs, by) = (outcome.done.clone(), caller.user.clone());
                let input = Input::Change { action, jobs, by };
                Ok(Accepted { input, env: BTreeMap::new(), outcome })
            }
            UserCommand::Accum(job, accum) => {
                self.check(caller, job, history)?;
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
            UserCommand::Reserve(_) | UserCommand::Unreserve(_) => {
                plain(self.reservation(caller, command)?)
            }
            UserCommand::Drain(device, _) | UserCommand::Undrain(device) => {
                let count = self.scheduler.setup().devices.len();
                if device as usize >= count {
                    let message = format!("there is no device {device}; see tandem gpus");
                    return Err(Refusal::NotFound(message));
                }
                if !caller.is_operator(self.daemon_uid) {
                    let message = "only operators drain devices: root, the user of the daemon and \
                                   those whom daemon.operators names";
                    return Err(Refusal::Forbidden(message.to_owned()));
                }
                plain(match command {
                    UserCommand::Drain(_, reason) => Input::Drain { device, reason },
                    _ => Input::Undrain { device },
                })
            }
        }
    }

    /// Whether a change of a job that was selected earlier is still possible.
    pub(crate) fn still_applies(&self, action: JobAction, job: u64) -> bool {
        self.scheduler.job(job).is_some() && self.applies(action, job).is_ok()
    }

    /// Whether a change is possible in the state of a job.
    fn applies(&self, action: JobAction, job: u64) -> Result<(), Refusal> {
        let conflict = |message: String| Err(Refusal::Conflict(message));
        let is_absent = self.phase(job) == Phase::Absent;
        match action {
            JobAction::Cancel | JobAction::Release => Ok(()),
            JobAction::Hold if is_absent => Ok(()),
            JobAction::Hold => conflict(format!("job {job} has started; pause it instead")),
            JobAction::Pause if !self.scheduler.setup().may_pause => conflict(format!(
                "job {job}: pausing is disabled on these devices because it frees no memory; \
                 requeue or cancel it, or set nvidia.pause"
            )),
            JobAction::Pause if is_absent => {
                conflict(format!("job {job} is not running; hold it instead"))
            }
            JobAction::Pause => Ok(()),
            JobAction::Resume => {
                if self.scheduler.job(job).is_some_and(|active| active.job.user_paused) {
                    return Ok(());
                }
                conflict(format!("job {job} is not paused by a user"))
            }
            JobAction::Requeue if self.scheduler.setup().keeps_queue => conflict(format!(
                "job {job} is one of the cluster's; requeue it there (scontrol requeue, kubectl)"
            )),
            JobAction::Requeue if is_absent => {
                conflict(format!("job {job} is not running; it is in the queue"))
            }
            JobAction::Requeue => {
                if self.scheduler.job(job).is_some_and(|active| active.job.ending.is_some()) {
                    return conflict(format!("job {job} is ending already"));
                }
                Ok(())
            }
        }
    }

    fn phase(&self, job: u64) -> Phase {
        self.scheduler.job(job).map_or(Phase::Absent, |active| active.phase)
    }

    /// Checks that a job exists, is active, and may be changed by the caller.
    fn check(&self, caller: &Caller, id: u64, history: &dyn PastJobs) -> Result<(), Refusal> {
        let (uid, state) = match self.scheduler.job(id) {
            Some(active) => (active.job.uid, None),
            None => {
                let missing = || Refusal::NotFound(format!("there is no job {id}"));
                let past = history.past(id).ok_or_else(missing)?;
                (past.uid, Some(past.state))
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
        mut checked: CheckedRequest,
        history: &dyn PastJobs,
    ) -> Result<Accepted, Refusal> {
        if self.scheduler.setup().keeps_queue {
            let message =
                "this daemon schedules the jobs of a cluster; submit there (sbatch, kubectl)";
            return Err(Refusal::Infeasible(message.to_owned()));
        }
        self.check_priority(caller, checked.request().priority)?;
        self.check_shares(caller, &mut checked)?;
        Self::feasible(self.scheduler, checked.request())?;
        if self.daemon_uid != 0 && caller.uid != self.daemon_uid && caller.uid != 0 {
            let message =
                "this daemon runs only jobs of its own user; use a daemon that runs as root";
            return Err(Refusal::Forbidden(message.to_owned()));
        }
        let (depends, over) = self.dependencies(caller, checked.dependencies(), history)?;
        self.within_limits(caller, &checked, depends.len() as u64)?;
        let count = checked.tasks();
        let mut request = checked.into_request();
        let first = self.next_job;
        let env = std::mem::take(&mut request.env);
        let submission = Submission {
            first,
            uid: caller.uid,
            gid: caller.gid,
            user: caller.user.clone(),
            request,
            over,
            depends,
            external: None,
            waits: None,
            submit_unix_us: None,
        };
        let input = Input::Submit(Box::new(submission));
        let new = (first..first + count).collect();
        let outcome = CommandOutcome { new, ..CommandOutcome::default() };
        Ok(Accepted { input, env, outcome })
    }

    /// A priority above 0 delays the jobs of others, so only operators may give it.
    fn check_priority(&self, caller: &Caller, priority: i8) -> Result<(), Refusal> {
        if priority > 0 && !caller.is_operator(self.daemon_uid) {
            let message = "priority: only operators give one above 0; leave it out or give less";
            return Err(Refusal::Forbidden(message.to_owned()));
        }
        Ok(())
    }

    /// Checks account, quality of service, reservation and the number of pending jobs. Returns the account.
    fn check_shares(&self, caller: &Caller, checked: &mut CheckedRequest) -> Result<(), Refusal> {
        let tasks = checked.tasks();
        let request = checked.request_mut();
        let people = &self.scheduler.setup().people;
        let is_operator = caller.is_operator(self.daemon_uid);
        match &request.account {
            Some(name) if people.file.account_id(name).is_none() => {
                let name = name.escape_debug();
                return Err(Refusal::Bad(format!("account: there is no '{name}'")));
            }
            Some(name) if !is_operator && !people.may_charge(&caller.user, caller.gid, name) => {
                let message = format!("account: you do not belong to '{}'", name.escape_debug());
                return Err(Refusal::Forbidden(message));
            }
            Some(_) => {}
            None => {
                let account = people.account_of(&caller.user, caller.gid);
                request.account = account.map(str::to_owned);
            }
        }
        if let Some(name) = &request.qos {
            let qos = people.qos(name).ok_or_else(|| {
                Refusal::Bad(format!("qos: there is no '{}'", name.escape_debug()))
            })?;
            let may = qos.users.is_empty() || qos.users.contains(&caller.user) || is_operator;
            if !may {
                let message = format!("qos: '{}' is not for you", name.escape_debug());
                return Err(Refusal::Forbidden(message));
            }
        }
        if let Some(id) = request.reservation {
            let booking = self.scheduler.bookings().find(|booking| booking.id == id);
            let booking = booking.ok_or_else(|| {
                Refusal::Bad(format!("reservation: there is no {id}; see tandem reserve list"))
            })?;
            if !is_operator && !booking.users.contains(&caller.user) {
                return Err(Refusal::Forbidden(format!("reservation: {id} is not for you")));
            }
            if request.gang() as usize > booking.devices.len() {
                let count = booking.devices.len();
                let message = format!("gpus: reservation {id} has {count}; request fewer");
                return Err(Refusal::Infeasible(message));
            }
        }
        let shared = &people.file.shared_classes;
        let class = crate::class::of_user(request, &caller.user, is_operator, shared);
        if class != crate::class::of_request(request) {
            request.class = Some(class);
        }
        self.check_pending(caller, tasks)
    }

    /// The most pending jobs of a user.
    fn check_pending(&self, caller: &Caller, more: u64) -> Result<(), Refusal> {
        let Some(most) = self.scheduler.setup().people.pending_max(&caller.user) else {
            return Ok(());
        };
        let new = self.admitted.get(&caller.uid).map_or(0, |load| load.jobs);
        let all = self.scheduler.load(caller.uid).jobs + new;
        let pending = all.saturating_sub(self.scheduler.jobs_with_process(caller.uid));
        if pending + more > most {
            let message = format!("you have {pending} pending jobs, {most} are allowed");
            return Err(Refusal::Conflict(message));
        }
        Ok(())
    }

    /// Whether the limits allow a request. Only the limits on all users together apply to operators.
    fn within_limits(
        &self,
        caller: &Caller,
        checked: &CheckedRequest,
        depends: u64,
    ) -> Result<(), Refusal> {
        let RequestLimits { jobs, jobs_per_user, dependencies_per_user, .. } = *self.limits;
        let new: u64 = self.admitted.values().map(|load| load.jobs).sum();
        let all = self.scheduler.active_jobs() as u64 + new;
        if all + checked.tasks() > jobs {
            return Err(Refusal::Limit(format!(
                "{all} jobs are pending or running and {} more would exceed limits.jobs = {jobs}; \
                 try again when some have ended",
                checked.tasks()
            )));
        }
        if caller.is_operator(self.daemon_uid) {
            return Ok(());
        }
        let mut own = self.scheduler.load(caller.uid);
        if let Some(load) = self.admitted.get(&caller.uid) {
            own.add(load);
        }
        let waits = checked.tasks() * depends;
        let bytes_max = self.limits.store_mib_per_user << 20;
        let calls = if checked.request().webhook.is_some() { checked.tasks() } else { 0 };
        let checks = [
            (
                "limits.webhooks_per_user",
                own.webhooks,
                calls,
                self.limits.webhooks_per_user,
                "webhooks",
            ),
            ("limits.jobs_per_user", own.jobs, checked.tasks(), jobs_per_user, "jobs"),
            (
                "limits.dependencies_per_user",
                own.dependencies,
                waits,
                dependencies_per_user,
                "dependencies",
            ),
            (
                "limits.store_mib_per_user",
                own.bytes,
                checked.request().stored_bytes,
                bytes_max,
                "bytes of requests",
            ),
        ];
        for (name, has, more, most, what) in checks {
            if has + more > most {
                return Err(Refusal::Limit(format!(
                    "you have {has} {what} pending or running and {more} more would exceed {most} \
                     ({name}); try again when some have ended"
                )));
            }
        }
        Ok(())
    }

    /// Reservations are made and cancelled by operators.
    fn reservation(&self, caller: &Caller, command: UserCommand) -> Result<Input, Refusal> {
        if !caller.is_operator(self.daemon_uid) {
            let message = "only operators make and cancel reservations";
            return Err(Refusal::Forbidden(message.to_owned()));
        }
        let exists = |id| self.scheduler.bookings().any(|booking| booking.id == id);
        match command {
            UserCommand::Reserve(booking) if exists(booking.id) => Err(Refusal::Conflict(
                "another reservation was made just now; try again".to_owned(),
            )),
            UserCommand::Reserve(booking) => Ok(Input::Reserve(booking)),
            UserCommand::Unreserve(id) if exists(id) => Ok(Input::Unreserve { id }),
            UserCommand::Unreserve(id) => {
                Err(Refusal::NotFound(format!("there is no reservation {id}")))
            }
            _ => Err(Refusal::Bad("no reservation".to_owned())),
        }
    }

    /// Whether a job could run on an idle machine.
    pub(crate) fn feasible(scheduler: &Scheduler, request: &JobRequest) -> Result<(), Refusal> {
        let devices = &scheduler.setup().devices;
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
