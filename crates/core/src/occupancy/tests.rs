use super::*;
use crate::cluster::ClusterBuilder;
use crate::units::Ratio;
use proptest::prelude::*;

fn cluster(sizes: &[u32]) -> Arc<Cluster> {
    let mut builder = ClusterBuilder::default();
    let kind = builder.gpu_type("gpu", Ratio::ONE);
    builder.partition("all");
    for &size in sizes {
        builder.node(size, kind, Memory::from_mib(24_576));
    }
    Arc::new(builder.build())
}

fn gpus_of(ids: impl IntoIterator<Item = u32>) -> Gpus {
    ids.into_iter().map(GpuId).collect()
}

/// The strict rule as documented, written as plainly as possible.
fn strict_plainly(occupancy: &Occupancy, sizes: &[u32], gpus: u32) -> Option<Vec<u32>> {
    let mut first = 0;
    let nodes: Vec<(usize, Vec<u32>)> = sizes
        .iter()
        .map(|&size| {
            let range = first..first + size;
            first += size;
            let free = |&gpu: &u32| {
                occupancy.tenants(GpuId(gpu)).is_empty() && !occupancy.is_closed(GpuId(gpu))
            };
            range.filter(free).collect()
        })
        .enumerate()
        .collect();
    let size = *sizes.iter().max().unwrap();
    if gpus <= size {
        let fitting = nodes.iter().filter(|(_, free)| free.len() >= gpus as usize);
        let (_, free) = fitting.min_by_key(|(index, free)| (free.len(), *index))?;
        return Some(free[..gpus as usize].to_vec());
    }
    let mut order = nodes.clone();
    order.sort_by_key(|(index, free)| (std::cmp::Reverse(free.len()), *index));
    let (whole, rest) = ((gpus / size) as usize, (gpus % size) as usize);
    let mut chosen = Vec::new();
    for position in 0..whole {
        let (_, free) = order.get(position)?;
        if free.len() != size as usize {
            return None;
        }
        chosen.extend(free);
    }
    if rest > 0 {
        let (_, free) = order.get(whole)?;
        if free.len() < rest {
            return None;
        }
        chosen.extend(&free[..rest]);
    }
    Some(chosen)
}

proptest! {
    #[test]
    fn strict_placement_equals_its_plain_statement(
        sizes in proptest::collection::vec(1u32..9, 1..7),
        taken in proptest::collection::vec(any::<bool>(), 64),
        down in proptest::collection::vec(0u32..48, 0..4),
        gpus in 1u32..30,
    ) {
        let cluster = cluster(&sizes);
        let total = u32::try_from(cluster.gpus().len()).unwrap();
        let mut occupancy = Occupancy::for_tenants(cluster, 2);
        for gpu in (0..total).filter(|&gpu| taken[gpu as usize]) {
            occupancy.occupy(JobId(gpu), &gpus_of([gpu]), Memory(1));
        }
        let everywhere = gpus_of(0..total);
        occupancy.occupy(JobId(total), &everywhere, Memory(1));
        occupancy.assert_consistent();
        occupancy.release(JobId(total), &everywhere, Memory(1));
        for gpu in down.into_iter().filter(|&gpu| gpu < total) {
            occupancy.set_condition(GpuId(gpu), GpuCondition::Drained);
        }
        occupancy.assert_consistent();
        let found = occupancy.find(PartitionId(0), gpus, Memory(1), PlacementRule::Strict);
        prop_assert_eq!(
            occupancy.has_room(PartitionId(0), gpus, Memory(1), PlacementRule::Strict),
            found.is_some()
        );
        let found = found.map(|gpus| gpus.iter().map(|gpu| gpu.0).collect::<Vec<_>>());
        prop_assert_eq!(found, strict_plainly(&occupancy, &sizes, gpus));
    }
}

#[test]
fn scatter_takes_the_first_free_gpus_across_nodes() {
    let mut occupancy = Occupancy::new(cluster(&[2, 2, 2]));
    occupancy.occupy(JobId(0), &gpus_of([1]), Memory(0));
    let found = occupancy.find(PartitionId(0), 3, Memory(0), PlacementRule::Scatter).unwrap();
    assert_eq!(*found, [GpuId(0), GpuId(2), GpuId(3)]);
    assert_eq!(occupancy.find(PartitionId(0), 6, Memory(0), PlacementRule::Scatter), None);
}

#[test]
fn a_drained_gpu_serves_its_tenants_and_is_not_freed_by_the_last() {
    let all = PartitionId(0);
    let mut occupancy = Occupancy::for_tenants(cluster(&[2]), 2);
    occupancy.occupy(JobId(0), &gpus_of([0]), Memory(5));
    assert_eq!((occupancy.single_tenant_count(all), occupancy.up_count(all)), (1, 2));
    occupancy.set_condition(GpuId(0), GpuCondition::Drained);
    assert_eq!((occupancy.single_tenant_count(all), occupancy.up_count(all)), (0, 2));
    occupancy.release(JobId(0), &gpus_of([0]), Memory(5));
    occupancy.assert_consistent();
    assert_eq!((occupancy.free_count(all), occupancy.up_count(all)), (1, 1));
    occupancy.occupy(JobId(0), &gpus_of([0]), Memory(5));
    occupancy.assert_consistent();
    occupancy.set_condition(GpuId(0), GpuCondition::Up);
    assert_eq!((occupancy.single_tenant_count(all), occupancy.up_count(all)), (1, 2));
    occupancy.release(JobId(0), &gpus_of([0]), Memory(5));
    assert_eq!(occupancy.free_count(all), 2);
    occupancy.assert_consistent();
}

#[test]
fn gangs_skip_gpus_whose_memory_is_reserved() {
    let mut occupancy = Occupancy::new(cluster(&[2, 2]));
    let mib = Memory::from_mib;
    occupancy.reserve(GpuId(0), mib(20_000));
    occupancy.reserve(GpuId(0), mib(10_000));
    assert_eq!(occupancy.memory_used(GpuId(0)), mib(10_000));
    for rule in [PlacementRule::Strict, PlacementRule::Scatter] {
        let find = |gpus, memory| {
            let found = occupancy.find(PartitionId(0), gpus, mib(memory), rule);
            let room = occupancy.has_room(PartitionId(0), gpus, mib(memory), rule);
            assert_eq!(room, found.is_some());
            found.map(|gpus| gpus.iter().map(|gpu| gpu.0).collect::<Vec<_>>())
        };
        assert_eq!(find(1, 14_576), Some(vec![0]));
        assert_eq!(find(1, 14_577), Some(vec![1]));
        assert_eq!(find(4, 14_577), None);
        assert_eq!(find(1, 24_577), None);
        let two = if rule == PlacementRule::Strict { [2, 3] } else { [1, 2] };
        assert_eq!(find(2, 24_576), Some(two.to_vec()));
    }
    occupancy.reserve(GpuId(0), mib(99_000));
    assert_eq!(occupancy.unreserved_memory_min(PartitionId(0)), Memory(0));
    occupancy.reserve(GpuId(0), Memory(0));
    assert_eq!(occupancy.unreserved_memory_min(PartitionId(0)), mib(24_576));
    occupancy.assert_consistent();
}
