//! Scattered sharing, the common part of `sjf-ffs` and `sjf-bsbf` (Luo et al., IWQoS 2024): shortest
//! remaining time first without preemption, at most two tenants on a GPU, and gangs that may use free
//! GPUs together with GPUs of several tenants. The policy chooses the tenants.

use super::hosts::Hosts;
use super::keyed::KeyedPolicy;
use super::queue::{Next, Queue};
use crate::spec::{PolicyParam, Settings, Value};
use tandem_core::{Draft, GpuId, Job, JobId, Placement, Reason, Time, Work};

/// The parameter that allows gradient accumulation.
pub const ACCUMULATE: PolicyParam = PolicyParam {
    name: "accumulate",
    default: Value::Flag(true),
    help: "let a job run in sub-batches where it would not fit beside another otherwise",
};
/// The parameter that binds shared gangs to the fewest nodes.
pub const CONSOLIDATE: PolicyParam = PolicyParam {
    name: "consolidate",
    default: Value::Flag(false),
    help: "share only on the fewest nodes that can hold the gang",
};

/// A GPU for a job that shares, and the number of sub-batches that it needs to fit there.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    /// The GPU.
    pub gpu: GpuId,
    /// The number of sub-batches.
    pub sub_batches: u32,
}

/// Which hosts a job shares with.
pub trait ChooseHosts: Send {
    /// Adds the GPUs of `hosts` that `job` may use to `slots`, in order of preference.
    fn choose(&mut self, draft: &Draft<'_>, job: &Job, hosts: &Hosts, slots: &mut Vec<Slot>);
}

/// Shortest remaining time first, sharing with the hosts that `C` chooses.
pub struct ScatterSharing<C> {
    choose: C,
    accumulate: bool,
    consolidate: bool,
    /// Kept between plans for its allocations, like the next one.
    hosts: Hosts,
    slots: Vec<Slot>,
}

impl<C: ChooseHosts> ScatterSharing<C> {
    /// With [`ACCUMULATE`] and [`CONSOLIDATE`] as set.
    pub fn new(choose: C, settings: &Settings) -> Self {
        Self {
            choose,
            accumulate: settings.flag(ACCUMULATE.name),
            consolidate: settings.flag(CONSOLIDATE.name),
            hosts: Hosts::default(),
            slots: Vec::new(),
        }
    }
}

impl<C: ChooseHosts> KeyedPolicy for ScatterSharing<C> {
    type Key = Work;

    fn key(&self, job: &Job, now: Time) -> Work {
        job.remaining(now)
    }

    /// One pass is enough: a job that starts leaves no GPU to others that they could not use before.
    fn plan(&mut self, queue: &mut Queue<Work>, draft: &mut Draft<'_>) {
        let Self { choose, accumulate, consolidate, hosts, slots } = self;
        hosts.forget();
        queue.walk(|job, size| {
            if size > draft.free_count() + draft.single_tenant_count() {
                return Next::Size;
            }
            if draft.place_exclusive(job) {
                hosts.forget();
                return Next::Job;
            }
            let wanted = size as usize;
            slots.clear();
            let free = draft.occupancy().free_gpus(draft.partition());
            slots.extend(free.filter_map(|gpu| slot_on_free(draft, job, *accumulate, gpu)));
            if slots.len() < wanted || *consolidate {
                hosts.read(draft);
                choose.choose(draft, draft.job(job), hosts, slots);
            }
            if *consolidate {
                keep_fewest_nodes(draft, wanted, slots);
            }
            if let Some(slots) = slots.get(..wanted) {
                let sub_batches = slots.iter().map(|slot| slot.sub_batches).max();
                let sub_batches = sub_batches.expect("a gang has at least one GPU");
                let on = Placement::on(slots.iter().map(|slot| slot.gpu));
                draft.place(job, Placement { sub_batches, ..on });
                hosts.forget();
            }
            Next::Job
        });
        draft.explain_others(Reason::NoRoom { free: draft.free_count() });
    }
}

/// A slot on a free GPU: in whole batches, or in sub-batches where reserved memory leaves too little.
fn slot_on_free(draft: &Draft<'_>, job: JobId, accumulate: bool, gpu: GpuId) -> Option<Slot> {
    let context = draft.rules().context;
    let mut options =
        draft.job(job).spec.sub_batch_options().take(if accumulate { usize::MAX } else { 1 });
    let option =
        options.find(|option| draft.occupancy().has_memory(gpu, option.memory + context))?;
    Some(Slot { gpu, sub_batches: option.count })
}

/// Reduces `slots`, in order of preference, to the first that hold a gang of `wanted` on the fewest
/// nodes: whole nodes of the largest size and a part of one more, like exclusive placement. Empties
/// `slots` if no such nodes exist.
fn keep_fewest_nodes(draft: &Draft<'_>, wanted: usize, slots: &mut Vec<Slot>) {
    let cluster = draft.cluster();
    let partition = cluster.partition(draft.partition());
    let size = partition.node_size_max() as usize;
    let (whole, rest) = (wanted / size, wanted % size);
    let node_of = |slot: &Slot| (cluster.gpu(slot.gpu).node.0 - partition.nodes.start) as usize;
    let mut counts = vec![0; partition.nodes.len()];
    // Nodes in the order in which they are complete, and in which they can hold the rest.
    let (mut complete, mut partial) = (Vec::new(), Vec::new());
    for slot in slots.iter() {
        let node = node_of(slot);
        counts[node] += 1;
        if counts[node] == size {
            complete.push(node);
        }
        if counts[node] == rest {
            partial.push(node);
        }
        let Some(complete) = complete.get(..whole) else { continue };
        let part = partial.iter().find(|node| !complete.contains(node));
        if rest == 0 || part.is_some() {
            counts.fill(0);
            complete.iter().for_each(|&node| counts[node] = size);
            part.into_iter().for_each(|&node| counts[node] = rest);
            return slots.retain(|slot| {
                let left = &mut counts[node_of(slot)];
                let taken = *left > 0;
                *left -= usize::from(taken);
                taken
            });
        }
    }
    slots.clear();
}
