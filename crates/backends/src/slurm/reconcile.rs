//! What we know of Slurm's jobs and want of them, and how the one is brought in line with the other. Pure:
//! a list goes in, requests and events come out. Every request follows from the list alone, so that what
//! was lost on the way, or undone by a crash of Slurm, is asked for again, and nothing is asked for twice.

mod import;
mod placement;
mod shard_leaks;

use super::commands::SlurmRequest;
use super::jobs::{JobList, JobRecord, SlurmEnd, SlurmState};
use super::nodes::SlurmNode;
use crate::cluster::short_id;
use crate::event::{BackendEvent, Exit, ExitCause, ExitStatus};
use crate::op::{OpId, RunId};
use crate::providers::Enforcement;
use crate::recovery::{KnownJob, RecoveredRun};
use std::collections::BTreeMap;

/// A job is believed to be gone when so many lists in a row do not have it.
const MISSED_MAX: u32 = 2;
/// A request to end a job is repeated after so long.
const CANCEL_AGAIN_S: u64 = 5;

const NODE_FAILED: &str = "its node failed";

/// One GPU.
#[derive(Clone, Debug)]
pub(super) struct ClusterGpu {
    pub(super) node: usize,
    pub(super) kind: String,
}

/// What is to become of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DesiredState {
    Run,
    Pause,
    End { asked_s: u64 },
}

/// What was last reported of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportedState {
    Nothing,
    Running,
    Paused,
}

/// A run that we asked for.
#[derive(Clone, Debug)]
struct DesiredRun {
    run: RunId,
    op: OpId,
    devices: Vec<u32>,
    is_exclusive: bool,
    want: DesiredState,
    told: ReportedState,
    restarts: u64,
    /// Since when it is released and does not begin.
    idle_since_s: Option<u64>,
    /// Slurm was asked to count again for its sake.
    is_counted: bool,
}

impl DesiredRun {
    fn new(run: RunId, op: OpId, devices: Vec<u32>) -> Self {
        Self {
            run,
            op,
            devices,
            is_exclusive: false,
            want: DesiredState::Run,
            told: ReportedState::Nothing,
            // Not known before it is seen.
            restarts: u64::MAX,
            idle_since_s: None,
            is_counted: false,
        }
    }
}

/// A job of ours.
#[derive(Clone, Debug, Default)]
struct ManagedJob {
    wanted: Option<DesiredRun>,
    /// It is to end without a run; when Slurm was last asked for that.
    withdrawn_s: Option<u64>,
    missed: u32,
    /// The Slurm id when it was last seen, and when it was handed in: its record is looked up by them.
    seen: Option<(u64, u64)>,
    /// Nothing more is to be done about it.
    is_dropped: bool,
    /// It cannot be given the place that was chosen. It stays held in Slurm and is not offered again.
    is_refused: bool,
}

/// A job of ours as a list has it: what Slurm calls it in requests, and its record.
struct ListedJob<'a> {
    key: String,
    address: String,
    task: Option<u32>,
    record: &'a JobRecord,
}

/// Why a job cannot have the place that was chosen, and whether another may do.
struct PlacementError {
    reason: String,
    transient: bool,
}

/// What a turn comes to.
#[derive(Debug, Default)]
pub(super) struct Reconciled {
    pub(super) requests: Vec<SlurmRequest>,
    pub(super) events: Vec<BackendEvent>,
    /// Runs that Slurm has forgotten: how they ended may be on record elsewhere.
    pub(super) forgotten: Vec<MissingRun>,
}

/// A run that Slurm has forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MissingRun {
    pub(super) run: RunId,
    pub(super) id: u64,
    pub(super) submit_s: u64,
}

/// Jobs of ours, and the GPUs.
pub(super) struct Reconciler {
    partition: String,
    nodes: Vec<SlurmNode>,
    pub(super) places: Vec<ClusterGpu>,
    /// The first device of each node.
    first: Vec<u32>,
    /// Shards that one job takes of a GPU.
    share: u64,
    /// A second choice of GPUs replaces the first; before 23.02.7 they are merged.
    pub(super) replaces: bool,
    jobs: BTreeMap<String, ManagedJob>,
    keys: BTreeMap<RunId, String>,
    closed: Vec<Option<String>>,
    /// When Slurm was last asked to count its resources again.
    counted_s: u64,
}

impl Reconciler {
    pub(super) fn new(
        partition: String,
        nodes: Vec<SlurmNode>,
        tenants: u64,
        replaces: bool,
    ) -> Self {
        let mut places = Vec::new();
        let mut first = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            first.push(u32::try_from(places.len()).expect("devices are counted in u32"));
            places.extend(
                node.types.iter().map(|kind| ClusterGpu { node: index, kind: kind.clone() }),
            );
        }
        let has_shards = |&&shards: &&u64| shards > 0;
        let shards = nodes.iter().flat_map(|node| &node.shards).filter(has_shards).min();
        let shards = shards.copied().unwrap_or(1);
        Self {
            partition,
            places,
            first,
            share: (shards / tenants.max(1)).max(1),
            replaces,
            jobs: BTreeMap::new(),
            keys: BTreeMap::new(),
            // Nothing was told about them yet.
            closed: vec![None; nodes.len()],
            counted_s: 0,
            nodes,
        }
    }

    pub(super) fn nodes(&self) -> &[SlurmNode] {
        &self.nodes
    }

    /// A run is to begin.
    pub(super) fn start(
        &mut self,
        op: OpId,
        key: &str,
        run: RunId,
        devices: Vec<u32>,
        is_exclusive: bool,
    ) {
        let ours = self.jobs.entry(key.to_owned()).or_default();
        if let Some(wanted) = &mut ours.wanted {
            if wanted.run == run {
                wanted.op = op;
                return;
            }
            self.keys.remove(&wanted.run);
        }
        ours.wanted = Some(DesiredRun { is_exclusive, ..DesiredRun::new(run, op, devices) });
        (ours.is_dropped, ours.is_refused) = (false, false);
        self.keys.insert(run, key.to_owned());
    }

    /// A run is to stand still or to go on; `false` if there is none.
    pub(super) fn pause(&mut self, op: OpId, run: RunId, paused: bool) -> bool {
        let Some(wanted) = self.wanted(run) else { return false };
        wanted.op = op;
        wanted.want = if paused { DesiredState::Pause } else { DesiredState::Run };
        true
    }

    /// A run is to end; `false` if there is none.
    pub(super) fn end(&mut self, op: OpId, run: RunId) -> bool {
        let Some(wanted) = self.wanted(run) else { return false };
        wanted.op = op;
        if !matches!(wanted.want, DesiredState::End { .. }) {
            wanted.want = DesiredState::End { asked_s: 0 };
        }
        true
    }

    /// A job that waits is to end; `false` if there is none.
    pub(super) fn withdraw(&mut self, key: &str) -> bool {
        let waiting = self.jobs.get_mut(key).filter(|ours| ours.wanted.is_none());
        let is_there = waiting.is_some();
        if let Some(ours) = waiting {
            ours.withdrawn_s.get_or_insert(0);
        }
        is_there
    }

    pub(super) fn forget(&mut self, run: RunId) {
        let Some(key) = self.keys.remove(&run) else { return };
        let Some(ours) = self.jobs.get_mut(&key) else { return };
        if ours.wanted.as_ref().is_some_and(|wanted| wanted.run == run) {
            ours.wanted = None;
            if !ours.is_refused {
                self.jobs.remove(&key);
            }
        }
    }

    fn wanted(&mut self, run: RunId) -> Option<&mut DesiredRun> {
        let key = self.keys.get(&run)?;
        self.jobs.get_mut(key)?.wanted.as_mut().filter(|wanted| wanted.run == run)
    }

    /// What became of jobs that an earlier daemon knew. Runs that Slurm has forgotten are left out.
    pub(super) fn recover(
        &mut self,
        known: &[KnownJob],
        listing: &JobList,
    ) -> (Vec<(RunId, RecoveredRun)>, Vec<MissingRun>) {
        let entries = self.entries(listing);
        let (mut found, mut forgotten) = (Vec::new(), Vec::new());
        for job in known {
            let Some(key) = &job.external else { continue };
            let record = entries.get(key.as_str()).map(|entry| entry.record);
            let seen = record.map(|record| (record.id, record.submit_s));
            if !job.has_run {
                self.jobs.insert(key.clone(), ManagedJob { seen, ..ManagedJob::default() });
                continue;
            }
            let Some(record) = record else {
                forgotten.push(forgotten_run(job.run, key, None, listing));
                continue;
            };
            let told = match record.state {
                SlurmState::Ended(SlurmEnd::NodeFailed) => {
                    found.push((job.run, RecoveredRun::Lost { reason: NODE_FAILED.to_owned() }));
                    continue;
                }
                SlurmState::Ended(over) => {
                    found.push((job.run, RecoveredRun::Exited(exit(over, record))));
                    continue;
                }
                SlurmState::Running => ReportedState::Running,
                SlurmState::Suspended => ReportedState::Paused,
                SlurmState::Pending | SlurmState::Other => ReportedState::Nothing,
            };
            let wanted = DesiredRun {
                want: if told == ReportedState::Paused {
                    DesiredState::Pause
                } else {
                    DesiredState::Run
                },
                told,
                restarts: record.restarts,
                ..DesiredRun::new(job.run, OpId(0), job.devices.clone())
            };
            self.jobs.insert(
                key.clone(),
                ManagedJob { wanted: Some(wanted), seen, ..ManagedJob::default() },
            );
            self.keys.insert(job.run, key.clone());
            let (pid, paused) = (number(record), told == ReportedState::Paused);
            let is_there = RecoveredRun::Running { pid, paused, enforcement: Enforcement::None };
            found.push((
                job.run,
                if told == ReportedState::Nothing { RecoveredRun::Starting } else { is_there },
            ));
        }
        (found, forgotten)
    }

    /// Jobs of ours in a list, by what they are called for all time.
    fn entries<'a>(&self, listing: &'a JobList) -> BTreeMap<String, ListedJob<'a>> {
        let mut entries = BTreeMap::new();
        for record in &listing.records {
            let Some(note) = &record.note else { continue };
            if self.partition != record.partition {
                continue;
            }
            let mut add = |address: String, task: Option<u32>| {
                let key = format!("{address}#{}", note.tag);
                entries.insert(key.clone(), ListedJob { key, address, task, record });
            };
            match (record.array, record.task) {
                // The last task of an array has the number of the array, which stands for all of it.
                (Some(array), Some(task)) => add(format!("{array}_{task}"), Some(task)),
                (Some(array), None) => {
                    for &task in &record.waiting {
                        add(format!("{array}_{task}"), Some(task));
                    }
                }
                (None, _) => add(record.id.to_string(), None),
            }
        }
        entries
    }

    /// Takes in a list.
    pub(super) fn turn(&mut self, listing: &JobList, now_s: u64) -> Reconciled {
        let mut turn = Reconciled::default();
        let entries = self.entries(listing);
        let known: Vec<String> = self.jobs.keys().cloned().collect();
        for key in known {
            let mut ours = self.jobs.remove(&key).expect("its key was just read");
            let is_there =
                |entry: &ListedJob<'_>| !matches!(entry.record.state, SlurmState::Ended(_));
            if ours.is_refused && ours.wanted.is_none() && !entries.get(&key).is_some_and(is_there)
            {
                continue;
            }
            match entries.get(&key) {
                Some(entry) => self.bring_in_line(&mut ours, entry, now_s, &mut turn),
                None => miss(&mut ours, &key, listing, &mut turn),
            }
            self.jobs.insert(key, ours);
        }
        self.mend(&entries, listing, now_s, &mut turn);
        self.offer(&entries, listing, now_s, &mut turn);
        turn.events.push(BackendEvent::Sampled(self.strangers(listing, &entries)));
        turn
    }

    fn bring_in_line(
        &self,
        ours: &mut ManagedJob,
        entry: &ListedJob<'_>,
        now_s: u64,
        turn: &mut Reconciled,
    ) {
        let record = entry.record;
        ours.missed = 0;
        ours.seen = Some((record.id, record.submit_s));
        if ours.is_dropped {
            return;
        }
        let Some(wanted) = &mut ours.wanted else {
            let reason = match (&record.state, &mut ours.withdrawn_s) {
                (SlurmState::Ended(SlurmEnd::Cancelled), _) => "cancelled in Slurm",
                (SlurmState::Ended(_), _) => "it is over in Slurm",
                (_, Some(asked_s)) => {
                    if now_s >= *asked_s + CANCEL_AGAIN_S {
                        *asked_s = now_s;
                        turn.requests.push(SlurmRequest::Cancel(entry.address.clone()));
                    }
                    return;
                }
                (SlurmState::Pending, None) if record.is_held => return,
                _ => "released by somebody else",
            };
            ours.is_dropped = true;
            let (external, reason) = (entry.key.clone(), reason.to_owned());
            turn.events.push(BackendEvent::Withdrawn { external, reason });
            return;
        };
        if wanted.restarts == u64::MAX {
            wanted.restarts = record.restarts;
        }
        let (op, run) = (wanted.op, wanted.run);
        if record.restarts > wanted.restarts {
            wanted.restarts = record.restarts;
            if wanted.told != ReportedState::Nothing {
                wanted.told = ReportedState::Nothing;
                turn.events.push(BackendEvent::Requeued { run });
            }
        }
        if let SlurmState::Ended(over) = record.state {
            ours.is_dropped = true;
            turn.events.push(match over {
                SlurmEnd::NodeFailed => BackendEvent::Lost { run, reason: NODE_FAILED.to_owned() },
                over => BackendEvent::Exited { run, exit: exit(over, record) },
            });
            return;
        }
        if let DesiredState::End { asked_s } = &mut wanted.want {
            if now_s >= *asked_s + CANCEL_AGAIN_S {
                *asked_s = now_s;
                turn.requests.push(SlurmRequest::Cancel(entry.address.clone()));
            }
            return;
        }
        match record.state {
            SlurmState::Pending => match self.release(wanted, entry, now_s) {
                Ok(line) => turn.requests.extend(line.map(SlurmRequest::Control)),
                Err(PlacementError { reason, transient }) => {
                    (ours.is_dropped, ours.is_refused) = (true, true);
                    turn.events.push(BackendEvent::NotStarted { op, run, reason, transient });
                }
            },
            SlurmState::Running => {
                match wanted.told {
                    ReportedState::Nothing => turn.events.push(self.started(wanted, record)),
                    ReportedState::Paused => turn.events.push(BackendEvent::Resumed { op, run }),
                    ReportedState::Running => {}
                }
                wanted.told = ReportedState::Running;
                if wanted.want == DesiredState::Pause {
                    turn.requests.push(SlurmRequest::Control(format!("suspend {}", entry.address)));
                }
            }
            SlurmState::Suspended => {
                // It may have begun and been paused between two lists.
                if wanted.told == ReportedState::Nothing {
                    turn.events.push(self.started(wanted, record));
                }
                if wanted.told != ReportedState::Paused {
                    wanted.told = ReportedState::Paused;
                    turn.events.push(BackendEvent::Paused { op, run, took_us: 0 });
                }
                if wanted.want == DesiredState::Run {
                    turn.requests.push(SlurmRequest::Control(format!("resume {}", entry.address)));
                }
            }
            SlurmState::Ended(_) | SlurmState::Other => {}
        }
    }

    fn started(&self, wanted: &DesiredRun, record: &JobRecord) -> BackendEvent {
        self.check_place(wanted, record);
        let (op, run, enforcement) = (wanted.op, wanted.run, Enforcement::None);
        BackendEvent::Started { op, run, pid: number(record), enforcement }
    }
}

/// What stands for its process: the number by which the job knows itself.
fn number(record: &JobRecord) -> u32 {
    u32::try_from(record.id).unwrap_or(0)
}

fn miss(ours: &mut ManagedJob, key: &str, listing: &JobList, turn: &mut Reconciled) {
    ours.missed += 1;
    if ours.missed < MISSED_MAX || ours.is_dropped {
        return;
    }
    ours.is_dropped = true;
    match (&ours.wanted, ours.seen) {
        (Some(wanted), seen) => {
            turn.forgotten.push(forgotten_run(wanted.run, key, seen, listing));
        }
        (None, _) => {
            let reason = "Slurm does not know it any more".to_owned();
            turn.events.push(BackendEvent::Withdrawn { external: key.to_owned(), reason });
        }
    }
}

/// A run that is not in the list. Its id is 0, which no job has, where what is on record under the id
/// would be another job's: a task of an array that was never seen, or an id that was given again.
fn forgotten_run(run: RunId, key: &str, seen: Option<(u64, u64)>, listing: &JobList) -> MissingRun {
    let (id, submit_s) = seen.unwrap_or_else(|| (short_id(key).parse().unwrap_or(0), 0));
    let is_given_again = listing.records.iter().any(|record| record.id == id);
    MissingRun { run, id: if is_given_again { 0 } else { id }, submit_s }
}

fn exit(over: SlurmEnd, record: &JobRecord) -> Exit {
    let (code, signal) = record.exit;
    let status = match (code, signal) {
        // What failed before its program could, as in a prolog, must not look as if it went well.
        (0, 0) if over == SlurmEnd::Failed => ExitStatus::Code(1),
        (code, 0) => ExitStatus::Code(code),
        (_, signal) => ExitStatus::Signal(signal),
    };
    let cause = match over {
        SlurmEnd::Cancelled => Some(ExitCause::Cancelled),
        SlurmEnd::TimedOut => Some(ExitCause::TimedOut),
        SlurmEnd::OutOfMemory => Some(ExitCause::OutOfMemory),
        SlurmEnd::Completed | SlurmEnd::Failed | SlurmEnd::NodeFailed => None,
    };
    Exit {
        status,
        cpu_s: 0.0,
        rss_max_bytes: 0,
        oom: over == SlurmEnd::OutOfMemory,
        at_unix_us: record.end_s.saturating_mul(1_000_000),
        cause,
    }
}

#[cfg(test)]
mod tests;
