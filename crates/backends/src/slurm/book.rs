//! What we know of Slurm's jobs and want of them, and how the one is brought in line with the other. Pure:
//! a list goes in, requests and events come out. Every request follows from the list alone, so that what
//! was lost on the way, or undone by a crash of Slurm, is asked for again, and nothing is asked for twice.

use super::commands::Request;
use super::dependency::{Verdict as Dependency, judge};
use super::jobs::{Listing, Over, Record, State};
use super::nodes::Node;
use super::text;
use crate::event::{BackendEvent, Exit, Found, Sample, Status, Verdict};
use crate::offer::{Known, Offer, shown};
use crate::op::{OpId, Owner, RunId};
use crate::providers::{DeviceSample, Enforcement};
use std::collections::{BTreeMap, BTreeSet};

/// A job is believed to be gone when so many lists in a row do not have it.
const MISSED_MAX: u32 = 2;
/// A job that Slurm does not start although there is room makes us look into Slurm's books after this.
const IDLE_S: u64 = 10;
/// Slurm is asked to count its resources again at most this often.
const COUNT_EVERY_S: u64 = 60;
/// A request to end a job is repeated after so long.
const CANCEL_AGAIN_S: u64 = 5;

/// One GPU.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) node: usize,
    pub(super) kind: String,
}

/// What is to become of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Run,
    Pause,
    End { asked_s: u64 },
}

/// What was last reported of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Nothing,
    Running,
    Paused,
}

/// A run that we asked for.
#[derive(Clone, Debug)]
struct Wanted {
    run: RunId,
    op: OpId,
    devices: Vec<u32>,
    is_exclusive: bool,
    want: Want,
    told: Told,
    restarts: u64,
    /// Since when it is released and does not begin.
    idle_since_s: Option<u64>,
    /// Slurm was asked to count again for its sake.
    is_counted: bool,
}

impl Wanted {
    fn new(run: RunId, op: OpId, devices: Vec<u32>) -> Self {
        Self {
            run,
            op,
            devices,
            is_exclusive: false,
            want: Want::Run,
            told: Told::Nothing,
            // Not known before it is seen.
            restarts: u64::MAX,
            idle_since_s: None,
            is_counted: false,
        }
    }
}

/// A job of ours.
#[derive(Clone, Debug, Default)]
struct Ours {
    wanted: Option<Wanted>,
    /// It is to end without a run; when Slurm was last asked for that.
    withdrawn_s: Option<u64>,
    missed: u32,
    /// The Slurm id when it was last seen, and when it was handed in: its record is looked up by them.
    seen: Option<(u64, u64)>,
    /// Nothing more is to be done about it.
    is_dropped: bool,
}

/// A job of ours as a list has it: what Slurm calls it in requests, and its record.
struct Entry<'a> {
    key: String,
    address: String,
    task: Option<u32>,
    record: &'a Record,
}

/// What a turn comes to.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) requests: Vec<Request>,
    pub(super) events: Vec<BackendEvent>,
    /// Runs that Slurm has forgotten: how they ended may be on record elsewhere.
    pub(super) forgotten: Vec<Forgotten>,
}

/// A run that Slurm has forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forgotten {
    pub(super) run: RunId,
    pub(super) id: u64,
    pub(super) submit_s: u64,
}

/// Jobs of ours, and the GPUs.
pub(super) struct Book {
    partition: String,
    nodes: Vec<Node>,
    pub(super) places: Vec<Place>,
    /// The first device of each node.
    first: Vec<u32>,
    /// Shards that one job takes of a GPU.
    share: u64,
    /// A second choice of GPUs replaces the first; before 23.02.7 they are merged.
    pub(super) replaces: bool,
    jobs: BTreeMap<String, Ours>,
    keys: BTreeMap<RunId, String>,
    closed: Vec<Option<String>>,
    /// When Slurm was last asked to count its resources again.
    counted_s: u64,
}

impl Book {
    pub(super) fn new(partition: String, nodes: Vec<Node>, tenants: u64, replaces: bool) -> Self {
        let mut places = Vec::new();
        let mut first = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            first.push(u32::try_from(places.len()).expect("devices are counted in u32"));
            places.extend(node.types.iter().map(|kind| Place { node: index, kind: kind.clone() }));
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

    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn size_max(&self) -> u32 {
        let sizes = self.nodes.iter().map(|node| node.types.len());
        u32::try_from(sizes.max().unwrap_or(0)).expect("GPUs of a node are counted in u32")
    }

    /// GPUs that a job needs, those that it shuts others out of counted: a job on several nodes has them
    /// to itself, since Slurm takes the same GPUs of each.
    fn gang(&self, record: &Record) -> Option<u32> {
        let note = record.note.as_ref()?;
        let each = if note.nodes > 1 { self.size_max() } else { note.gpus_per_node };
        note.nodes.checked_mul(each)
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
        ours.wanted = Some(Wanted { is_exclusive, ..Wanted::new(run, op, devices) });
        ours.is_dropped = false;
        self.keys.insert(run, key.to_owned());
    }

    /// A run is to stand still or to go on; `false` if there is none.
    pub(super) fn pause(&mut self, op: OpId, run: RunId, paused: bool) -> bool {
        let Some(wanted) = self.wanted(run) else { return false };
        wanted.op = op;
        wanted.want = if paused { Want::Pause } else { Want::Run };
        true
    }

    /// A run is to end; `false` if there is none.
    pub(super) fn end(&mut self, op: OpId, run: RunId) -> bool {
        let Some(wanted) = self.wanted(run) else { return false };
        wanted.op = op;
        if !matches!(wanted.want, Want::End { .. }) {
            wanted.want = Want::End { asked_s: 0 };
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
        if let Some(key) = self.keys.remove(&run)
            && self
                .jobs
                .get(&key)
                .and_then(|ours| ours.wanted.as_ref())
                .is_some_and(|wanted| wanted.run == run)
        {
            self.jobs.remove(&key);
        }
    }

    fn wanted(&mut self, run: RunId) -> Option<&mut Wanted> {
        let key = self.keys.get(&run)?;
        self.jobs.get_mut(key)?.wanted.as_mut().filter(|wanted| wanted.run == run)
    }

    /// What became of jobs that an earlier daemon knew. Runs that Slurm has forgotten are left out.
    pub(super) fn recover(
        &mut self,
        known: &[Known],
        listing: &Listing,
    ) -> (Vec<(RunId, Found)>, Vec<Forgotten>) {
        let entries = self.entries(listing);
        let (mut found, mut forgotten) = (Vec::new(), Vec::new());
        for job in known {
            let Some(key) = &job.external else { continue };
            let entry = entries.get(key.as_str());
            let ours = self.jobs.entry(key.clone()).or_default();
            ours.seen = entry.map(|entry| (entry.record.id, entry.record.submit_s));
            if !job.has_run {
                continue;
            }
            let told = match entry.map(|entry| &entry.record.state) {
                None => {
                    let id = shown(key).split('_').next().and_then(|id| id.parse().ok());
                    forgotten.push(Forgotten { run: job.run, id: id.unwrap_or(0), submit_s: 0 });
                    continue;
                }
                Some(State::Over(over)) => {
                    let record = entry.expect("it is there").record;
                    found.push((job.run, Found::Exited(exit(*over, record))));
                    continue;
                }
                Some(State::Running) => Told::Running,
                Some(State::Suspended) => Told::Paused,
                Some(State::Pending | State::Other) => Told::Nothing,
            };
            let wanted = Wanted {
                want: if told == Told::Paused { Want::Pause } else { Want::Run },
                told,
                restarts: entry.map_or(0, |entry| entry.record.restarts),
                ..Wanted::new(job.run, OpId(0), job.devices.clone())
            };
            ours.wanted = Some(wanted);
            self.keys.insert(job.run, key.clone());
            found.push((
                job.run,
                match told {
                    Told::Nothing => Found::Starting,
                    told => {
                        let pid = entry.map_or(0, |entry| number(entry.record));
                        let (paused, enforcement) = (told == Told::Paused, Enforcement::None);
                        Found::Running { pid, paused, enforcement }
                    }
                },
            ));
        }
        (found, forgotten)
    }

    /// Jobs of ours in a list, by what they are called for all time.
    fn entries<'a>(&self, listing: &'a Listing) -> BTreeMap<String, Entry<'a>> {
        let mut entries = BTreeMap::new();
        for record in &listing.records {
            let Some(note) = &record.note else { continue };
            if self.partition != record.partition {
                continue;
            }
            let mut add = |address: String, task: Option<u32>| {
                let key = format!("{address}#{}", note.tag);
                entries.insert(key.clone(), Entry { key, address, task, record });
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
    pub(super) fn turn(&mut self, listing: &Listing, now_s: u64) -> Turn {
        let mut turn = Turn::default();
        let entries = self.entries(listing);
        let known: Vec<String> = self.jobs.keys().cloned().collect();
        for key in known {
            let mut ours = self.jobs.remove(&key).expect("its key was just read");
            match entries.get(&key) {
                Some(entry) => self.bring_in_line(&mut ours, entry, now_s, &mut turn),
                None => miss(&mut ours, &key, &mut turn),
            }
            self.jobs.insert(key, ours);
        }
        self.mend(&entries, listing, now_s, &mut turn);
        self.offer(&entries, listing, now_s, &mut turn);
        turn.events.push(BackendEvent::Sampled(self.strangers(listing, &entries)));
        turn
    }

    fn bring_in_line(&self, ours: &mut Ours, entry: &Entry<'_>, now_s: u64, turn: &mut Turn) {
        let record = entry.record;
        ours.missed = 0;
        ours.seen = Some((record.id, record.submit_s));
        if ours.is_dropped {
            return;
        }
        let Some(wanted) = &mut ours.wanted else {
            let reason = match (&record.state, &mut ours.withdrawn_s) {
                (State::Over(Over::Cancelled), _) => "cancelled in Slurm",
                (State::Over(_), _) => "it is over in Slurm",
                (_, Some(asked_s)) => {
                    if now_s >= *asked_s + CANCEL_AGAIN_S {
                        *asked_s = now_s;
                        turn.requests.push(Request::Cancel(entry.address.clone()));
                    }
                    return;
                }
                (State::Pending, None) if record.is_held => return,
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
            if wanted.told != Told::Nothing {
                wanted.told = Told::Nothing;
                turn.events.push(BackendEvent::Requeued { run });
            }
        }
        if let State::Over(over) = record.state {
            ours.is_dropped = true;
            turn.events.push(match over {
                Over::NodeFailed => {
                    BackendEvent::Lost { run, reason: "its node failed".to_owned() }
                }
                over => BackendEvent::Exited { run, exit: exit(over, record) },
            });
            return;
        }
        if let Want::End { asked_s } = &mut wanted.want {
            if now_s >= *asked_s + CANCEL_AGAIN_S {
                *asked_s = now_s;
                turn.requests.push(Request::Cancel(entry.address.clone()));
            }
            return;
        }
        match record.state {
            State::Pending => match self.release(wanted, entry) {
                Ok(line) => turn.requests.extend(line.map(Request::Control)),
                Err(reason) => {
                    ours.is_dropped = true;
                    turn.events.push(BackendEvent::NotStarted { op, run, reason, passing: false });
                }
            },
            State::Running => {
                match wanted.told {
                    Told::Nothing => {
                        self.check_place(wanted, record);
                        let enforcement = Enforcement::None;
                        turn.events.push(BackendEvent::Started {
                            op,
                            run,
                            pid: number(record),
                            enforcement,
                        });
                    }
                    Told::Paused => turn.events.push(BackendEvent::Resumed { op, run }),
                    Told::Running => {}
                }
                wanted.told = Told::Running;
                if wanted.want == Want::Pause {
                    turn.requests.push(Request::Control(format!("suspend {}", entry.address)));
                }
            }
            State::Suspended => {
                if wanted.told != Told::Paused {
                    wanted.told = Told::Paused;
                    turn.events.push(BackendEvent::Paused { op, run, took_us: 0 });
                }
                if wanted.want == Want::Run {
                    turn.requests.push(Request::Control(format!("resume {}", entry.address)));
                }
            }
            State::Over(_) | State::Other => {}
        }
    }

    /// The line that brings a job that waits closer to its place.
    fn release(&self, wanted: &Wanted, entry: &Entry<'_>) -> Result<Option<String>, String> {
        let (address, record) = (&entry.address, entry.record);
        let (nodes, gres) = self.seat(wanted, record);
        let mut fields = Vec::new();
        let (chosen, wished) = (kinds(&record.asked), kinds(&gres));
        if chosen.is_empty() || (chosen != wished && self.replaces) {
            fields.push(format!("Gres={gres}"));
        } else if chosen != wished {
            return Err(format!(
                "this Slurm cannot give it {gres} after {}; cancel it and submit it anew",
                record.asked
            ));
        }
        let mut sorted = text::nodes(&record.required_nodes).unwrap_or_default();
        sorted.sort();
        let mut wants = nodes.clone();
        wants.sort();
        if sorted != wants {
            fields.push(format!("ReqNodeList={}", nodes.join(",")));
        }
        // After a requeue it would wait for two minutes.
        if record.restarts > 0 && record.reason == "BeginTime" {
            fields.push("StartTime=now".to_owned());
        }
        // Released only when the list shows it placed: without its GPUs it must not begin.
        Ok(match () {
            () if !fields.is_empty() => {
                Some(format!("update jobid={address} {}", fields.join(" ")))
            }
            () if record.is_held => Some(format!("release {address}")),
            () => None,
        })
    }

    /// Nodes and resources of a run, as Slurm is to be told.
    fn seat(&self, wanted: &Wanted, record: &Record) -> (Vec<String>, String) {
        let mut by_node: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for &device in &wanted.devices {
            let place = &self.places[device as usize];
            by_node.entry(place.node).or_default().push(&place.kind);
        }
        let nodes = by_node.keys().map(|&node| self.nodes[node].name.clone()).collect();
        let mut kinds = by_node.into_values().next().unwrap_or_default();
        kinds.sort_unstable();
        let each = record.note.as_ref().map_or(1, |note| note.gpus_per_node) as usize;
        kinds.truncate(each);
        // A gang has its GPUs to itself: a job cannot have shards of several.
        let can_share = wanted.devices.iter().all(|&device| self.shares(device));
        let gres = match kinds[..] {
            [kind] if wanted.devices.len() == 1 && can_share && !wanted.is_exclusive => {
                format!("shard:{kind}:{}", self.share)
            }
            _ => kinds.iter().map(|kind| format!("gpu:{kind}:1")).collect::<Vec<_>>().join(","),
        };
        (nodes, gres)
    }

    /// Whether Slurm can share the GPUs of a device's node. Where it has lost shares of one, it gives those
    /// of the others out without a GPU.
    fn shares(&self, device: u32) -> bool {
        let node = &self.nodes[self.places[device as usize].node];
        node.shards.iter().all(|&shards| shards >= self.share)
    }

    /// Slurm should have put it where it was told to.
    fn check_place(&self, wanted: &Wanted, record: &Record) {
        let sits: BTreeSet<u32> = self.devices(record).into_iter().collect();
        let is_planned = sits.iter().all(|device| wanted.devices.contains(device));
        if !is_planned || sits.is_empty() {
            let (id, planned) = (record.id, &wanted.devices);
            tracing::error!("Slurm job {id} is on devices {sits:?} and was to be on {planned:?}");
        }
    }

    /// The devices that a job has.
    fn devices(&self, record: &Record) -> Vec<u32> {
        let mut devices = Vec::new();
        for (name, detail) in record.nodes.iter().zip(&record.allocated) {
            let Some(node) = self.nodes.iter().position(|node| node.name == *name) else {
                continue;
            };
            let count = self.nodes[node].types.len();
            let used = text::gres(detail).into_iter().filter(|gres| gres.count > 0);
            for gres in used.filter(|gres| gres.name == "gpu" || gres.name == "shard") {
                let typed = gres.kind.as_ref();
                let typed =
                    typed.and_then(|kind| self.nodes[node].types.iter().position(|of| of == kind));
                let told = gres.indices.iter().map(|&index| index as usize);
                let of_each = gres.of_each.iter().enumerate().filter(|(_, part)| **part > 0);
                let indices: Vec<usize> = match typed {
                    Some(index) => vec![index],
                    None => told.chain(of_each.map(|(index, _)| index)).collect(),
                };
                let here = indices.into_iter().filter(|&index| index < count);
                devices.extend(here.map(|index| self.first[node] + index as u32));
            }
        }
        devices
    }

    /// Devices that jobs of others use.
    fn strangers(&self, listing: &Listing, entries: &BTreeMap<String, Entry<'_>>) -> Sample {
        let ours: BTreeSet<u64> = entries
            .values()
            .filter(|entry| {
                let ours = self.jobs.get(&entry.key);
                ours.is_some_and(|ours| ours.wanted.is_some())
            })
            .map(|entry| entry.record.id)
            .collect();
        let mut devices = vec![DeviceSample::default(); self.places.len()];
        let present =
            |state: &State| matches!(state, State::Running | State::Suspended | State::Other);
        for record in listing.records.iter().filter(|record| present(&record.state)) {
            if !ours.contains(&record.id) {
                for device in self.devices(record) {
                    let id = u32::try_from(record.id).unwrap_or(u32::MAX);
                    devices[device as usize].processes.push((id, 0));
                }
            }
        }
        Sample { devices, runs: Vec::new() }
    }

    /// Jobs that may be given a place and are not known yet.
    fn offer(
        &mut self,
        entries: &BTreeMap<String, Entry<'_>>,
        listing: &Listing,
        now_s: u64,
        turn: &mut Turn,
    ) {
        let mut going: BTreeMap<u64, u32> = BTreeMap::new();
        for entry in entries.values() {
            let is_over = matches!(entry.record.state, State::Over(_));
            if let Some(array) = entry.record.array
                && self.jobs.contains_key(&entry.key)
                && !is_over
            {
                *going.entry(array).or_default() += 1;
            }
        }
        let mut waiting: Vec<&Entry<'_>> = entries
            .values()
            .filter(|entry| {
                let record = entry.record;
                record.state == State::Pending
                    && record.is_held
                    && record.eligible_s <= now_s
                    && !self.jobs.contains_key(&entry.key)
            })
            .collect();
        waiting.sort_by_key(|entry| (entry.record.array.unwrap_or(entry.record.id), entry.task));
        for entry in waiting {
            let record = entry.record;
            match judge(&record.dependency, entry.task, &listing.records, now_s) {
                Dependency::Met => {}
                Dependency::Waits => continue,
                Dependency::Never => {
                    turn.requests.extend(hand_back(entry));
                    continue;
                }
            }
            if let (Some(array), Some(most)) = (record.array, record.at_a_time) {
                let going = going.entry(array).or_default();
                if *going >= most {
                    continue;
                }
                *going += 1;
            }
            let Some(gpus) = self.gang(record) else { continue };
            let ours = Ours { seen: Some((record.id, record.submit_s)), ..Ours::default() };
            self.jobs.insert(entry.key.clone(), ours);
            turn.events.push(BackendEvent::Offered(Box::new(Offer {
                external: entry.key.clone(),
                owner: Owner { uid: record.uid, gid: record.gid },
                user: record.user.clone(),
                name: record.name.clone(),
                gpus,
                limit_s: record.limit_min.map(|minutes| minutes as f64 * 60.0),
                hints: record.comment.clone(),
                // What srun asks for again within its own job is a GPU, not a share of one.
                exclusive: !record.is_batch,
                submit_unix_us: record.submit_s * 1_000_000,
            })));
        }
    }

    /// Has Slurm count its resources again if a job does not begin although by the list there is room:
    /// versions before 23.02.7 lose shards when the GPUs of a job are chosen twice.
    fn mend(
        &mut self,
        entries: &BTreeMap<String, Entry<'_>>,
        listing: &Listing,
        now_s: u64,
        turn: &mut Turn,
    ) {
        let mut idle = Vec::new();
        for (key, ours) in &mut self.jobs {
            let Some(wanted) = &mut ours.wanted else { continue };
            let waits = entries.get(key).is_some_and(|entry| {
                entry.record.state == State::Pending
                    && !entry.record.is_held
                    && !ours.is_dropped
                    && matches!(
                        entry.record.reason.as_str(),
                        "Resources" | "ReqNodeNotAvail" | "Priority"
                    )
            });
            if !waits {
                wanted.idle_since_s = None;
                continue;
            }
            let since = *wanted.idle_since_s.get_or_insert(now_s);
            if now_s >= since + IDLE_S && !wanted.is_counted {
                idle.push(key.clone());
            }
        }
        if idle.is_empty() || now_s < self.counted_s + COUNT_EVERY_S {
            return;
        }
        let mut used: BTreeMap<u32, u32> = BTreeMap::new();
        for record in &listing.records {
            if matches!(record.state, State::Running | State::Suspended | State::Other) {
                for device in self.devices(record) {
                    *used.entry(device).or_default() += 1;
                }
            }
        }
        for key in idle {
            let ours = self.jobs.get_mut(&key).expect("it was just there");
            let Some(wanted) = &mut ours.wanted else { continue };
            let is_open = wanted.devices.iter().all(|&device| {
                let node = self.places[device as usize].node;
                self.closed[node].is_none() && !used.contains_key(&device)
            });
            if is_open {
                wanted.is_counted = true;
                self.counted_s = now_s;
                let job = shown(&key);
                tracing::warn!(
                    "Slurm does not start job {job} although its GPUs are idle: it has lost count of \
                     shares, or CPUs and memory are short; asking it to count again (scontrol reconfigure)"
                );
                turn.requests.push(Request::Control("reconfigure".to_owned()));
                return;
            }
        }
    }

    /// Takes in the present state of the nodes.
    pub(super) fn look_at(&mut self, nodes: &[Node]) -> Vec<BackendEvent> {
        let mut events = Vec::new();
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let now = nodes.iter().find(|now| now.name == node.name);
            if let Some(now) =
                now.filter(|now| now.types == node.types && now.shards != node.shards)
            {
                // A restart of slurmctld does this to versions before 23.02 while shares are in use.
                if now.shards.iter().zip(&node.shards).any(|(now, before)| now < before) {
                    tracing::error!(
                        "node {}: Slurm has lost shares of its GPUs ({:?} of {:?}); jobs run \
                         there one at a time until slurmctld is started anew while the node is idle",
                        node.name,
                        now.shards,
                        node.shards
                    );
                }
                node.shards.clone_from(&now.shards);
            }
            let closed = now.map_or(Some("Slurm does not know it any more".to_owned()), |now| {
                now.closed.clone()
            });
            if self.closed[index].is_some() != closed.is_some() {
                let first = self.first[index];
                for device in (first..).take(node.types.len()) {
                    events.push(BackendEvent::Device { device, closed: closed.clone() });
                }
            }
            self.closed[index] = closed;
        }
        events
    }
}

/// What stands for its process: the number by which the job knows itself.
fn number(record: &Record) -> u32 {
    u32::try_from(record.id).unwrap_or(0)
}

/// Which GPUs of a node a request names.
fn kinds(request: &str) -> BTreeSet<String> {
    text::gres(request).into_iter().filter_map(|gres| gres.kind).collect()
}

fn miss(ours: &mut Ours, key: &str, turn: &mut Turn) {
    ours.missed += 1;
    if ours.missed < MISSED_MAX || ours.is_dropped {
        return;
    }
    ours.is_dropped = true;
    match (&ours.wanted, ours.seen) {
        (Some(wanted), seen) => {
            let (id, submit_s) = seen.unwrap_or_default();
            turn.forgotten.push(Forgotten { run: wanted.run, id, submit_s });
        }
        (None, _) => {
            let reason = "Slurm does not know it any more".to_owned();
            turn.events.push(BackendEvent::Withdrawn { external: key.to_owned(), reason });
        }
    }
}

/// Makes a job Slurm's own again, with what it asked for.
fn hand_back(entry: &Entry<'_>) -> Vec<Request> {
    let Some(note) = &entry.record.note else { return Vec::new() };
    let address = &entry.address;
    [format!("update jobid={address} {}", note.asked), format!("release {address}")]
        .map(Request::Control)
        .into()
}

fn exit(over: Over, record: &Record) -> Exit {
    let (code, signal) = record.exit;
    let status = if signal > 0 { Status::Signal(signal) } else { Status::Code(code) };
    let verdict = match over {
        Over::Cancelled => Some(Verdict::Cancelled),
        Over::TimedOut => Some(Verdict::TimedOut),
        Over::OutOfMemory => Some(Verdict::OutOfMemory),
        Over::Completed | Over::Failed | Over::NodeFailed => None,
    };
    Exit {
        status,
        cpu_s: 0.0,
        rss_max_bytes: 0,
        oom: over == Over::OutOfMemory,
        at_unix_us: record.end_s * 1_000_000,
        verdict,
    }
}
