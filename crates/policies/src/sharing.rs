//! What `sjf-ffs` and `sjf-bsbf` (Luo et al., IWQoS 2024) have in common: shortest remaining time
//! first without preemption, at most two tenants on a GPU, and gangs that may use free GPUs together
//! with those of several residents. How the residents are chosen is left to the two.

use crate::hosts::Hosts;
use crate::queue::{Next, Queue};
use crate::spec::{Param, Value};
use tandem_core::{Draft, GpuId, Job, Placement, Policy, Reason, Time, Work};

pub(crate) const CONSOLIDATE: Param = Param {
    name: "consolidate",
    default: Value::Flag(false),
    help: "share only on the fewest nodes that can hold the gang",
};

/// Which residents take a guest.
pub(crate) trait Choose: Send {
    /// Adds the GPUs of `hosts` that `guest` may use to `gpus`, in the order of preference.
    fn choose(&mut self, draft: &Draft<'_>, guest: &Job, hosts: &Hosts, gpus: &mut Vec<GpuId>);
}

/// Shortest job first, with guests.
pub(crate) struct Sharing<C> {
    choose: C,
    consolidate: bool,
    queue: Queue<Work>,
    /// Kept from pass to pass for their allocations, like the next one.
    hosts: Hosts,
    gpus: Vec<GpuId>,
}

impl<C: Choose> Sharing<C> {
    pub(crate) fn new(choose: C, consolidate: bool) -> Self {
        let (queue, hosts, gpus) = (Queue::default(), Hosts::default(), Vec::new());
        Self { choose, consolidate, queue, hosts, gpus }
    }
}

impl<C: Choose> Policy for Sharing<C> {
    fn enqueue(&mut self, job: &Job) {
        // What remains stands still while a job waits, so any instant will do.
        self.queue.insert(job.remaining(Time(0)), job.id(), job.spec.gpus);
    }

    fn dequeue(&mut self, job: &Job) {
        self.queue.remove(job.remaining(Time(0)), job.id(), job.spec.gpus);
    }

    /// One pass is enough: a job that starts leaves no GPU to others that was not theirs to use before.
    fn plan(&mut self, draft: &mut Draft<'_>) {
        let Self { choose, consolidate, queue, hosts, gpus } = self;
        hosts.forget();
        queue.walk(|job, size| {
            let (free, wanted) = (draft.free_count(), size as usize);
            if size > free + draft.lone_count() {
                return Next::Size;
            }
            if draft.place_alone(job) {
                hosts.forget();
                return Next::Job;
            }
            gpus.clear();
            gpus.extend(draft.occupancy().free_gpus(draft.partition()));
            if gpus.len() < wanted || *consolidate {
                hosts.read(draft);
                choose.choose(draft, draft.job(job), hosts, gpus);
            }
            if *consolidate {
                keep_fewest_nodes(draft, wanted, gpus);
            }
            if gpus.len() >= wanted {
                draft.place(job, Placement::on(gpus.drain(..wanted)));
                hosts.forget();
            }
            Next::Job
        });
        draft.explain_others(Reason::NoRoom { free: draft.free_count() });
    }
}

/// Reduces `gpus`, in order of preference, to the first that hold a gang of `wanted` on the fewest
/// nodes: whole nodes of the largest size and a part of one more, as exclusive placement has it.
/// Nothing is left if there are none.
fn keep_fewest_nodes(draft: &Draft<'_>, wanted: usize, gpus: &mut Vec<GpuId>) {
    let cluster = draft.cluster();
    let partition = cluster.partition(draft.partition());
    let size = partition.node_size_max() as usize;
    let (whole, rest) = (wanted / size, wanted % size);
    let node = |gpu: GpuId| (cluster.gpu(gpu).node.0 - partition.nodes.start) as usize;
    let mut counts = vec![0; partition.nodes.len()];
    // Nodes in the order in which they are complete, and in which they can hold the rest.
    let (mut complete, mut partial) = (Vec::new(), Vec::new());
    let mut left = None;
    for &gpu in gpus.iter() {
        let node = node(gpu);
        counts[node] += 1;
        if counts[node] == size {
            complete.push(node);
        }
        if counts[node] == rest {
            partial.push(node);
        }
        if complete.len() >= whole {
            let part = partial.iter().find(|node| !complete[..whole].contains(node));
            if rest == 0 || part.is_some() {
                let mut taken = vec![0; counts.len()];
                complete[..whole].iter().for_each(|&node| taken[node] = size);
                part.into_iter().for_each(|&node| taken[node] = rest);
                left = Some(taken);
                break;
            }
        }
    }
    let Some(mut left) = left else { return gpus.clear() };
    gpus.retain(|&gpu| {
        let left = &mut left[node(gpu)];
        let taken = *left > 0;
        *left -= usize::from(taken);
        taken
    });
}
