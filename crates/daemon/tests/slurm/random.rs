//! Random events.

use super::*;

/// Pseudo-random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// The jobs as a restarted daemon recovers them.
fn found(cluster: &TestCluster) -> Vec<Kept> {
    let of = |active: &Active| {
        let job = cluster.job(active.job.id);
        let found = match active.phase {
            Phase::Absent => None,
            Phase::Running => Some(RecoveredRun::Running {
                handle: RunHandle::ClusterJob(1),
                paused: false,
                enforcement: Default::default(),
            }),
            _ => Some(RecoveredRun::Starting),
        };
        kept(job, found)
    };
    cluster.scheduler.jobs().map(of).collect()
}

/// A cluster, its size, and the nodes that are lost.
struct World {
    random: Random,
    cluster: TestCluster,
    nodes: u32,
    per_node: u32,
    lost: Vec<u32>,
    /// Jobs that the cluster would not start.
    waiting: Vec<u64>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed * 7919);
        let policy = ["fifo", "sjf-ffs", "tandem"][random.below(3) as usize];
        let (nodes, per_node) = (2 + random.below(3) as u32, 1 + random.below(3) as u32);
        let cluster = TestCluster::new(nodes, per_node, policy);
        Self { random, cluster, nodes, per_node, lost: Vec::new(), waiting: Vec::new() }
    }

    fn random_event(&mut self) {
        let active: Vec<(u64, Phase)> =
            self.cluster.scheduler.jobs().map(|active| (active.job.id, active.phase)).collect();
        let some =
            (!active.is_empty()).then(|| active[self.random.below(active.len() as u64) as usize]);
        match (self.random.below(12), some) {
            (0..=2, _) => self.submit(),
            (3..=5, Some((job, Phase::Starting))) => {
                // No job starts on a lost node.
                let is_lost = |device: &u32| self.lost.contains(&(device / self.per_node));
                if !self.cluster.devices(job).iter().any(is_lost) {
                    self.cluster.started(job);
                }
            }
            (3..=4, Some((job, Phase::Running))) => self.cluster.finish(job),
            (4, Some((job, Phase::Absent))) if self.waiting.contains(&job) => self.let_start(job),
            (8, Some((job, Phase::Starting))) => self.give_back(job),
            (6, Some((job, Phase::Running))) => self.cluster.requeue(job),
            (6, Some((job, Phase::Absent))) => self.cluster.withdraw(job),
            (7, Some((job, _))) => self.cluster.cancel(job),
            (5 | 8, Some((job, Phase::Ending))) => self.cluster.finish(job),
            (9, _) if !self.lost.is_empty() => {
                let index = self.random.below(self.lost.len() as u64) as usize;
                let node = self.lost.swap_remove(index);
                self.cluster.open(node);
            }
            (10, _) if self.lost.len() + 1 < self.nodes as usize => self.lose_node(&active),
            (11, _) if self.random.below(4) == 0 => self.restart(),
            _ => self.cluster.again(),
        }
    }

    fn submit(&mut self) {
        // A job on several nodes occupies whole nodes.
        let gpus = match self.random.below(6) {
            0 => self.per_node * 2,
            1 => self.per_node,
            _ => 1,
        };
        let memory = self.random.below(2) == 0;
        self.cluster.submit(|submission| {
            submission.request.gpus = f64::from(gpus);
            submission.request.gpu_memory_bytes = memory.then_some(1 << 30);
        });
    }

    /// The cluster would not start a job where it was placed.
    fn give_back(&mut self, job: u64) {
        let given_back =
            [waits::waits(job, Some("a limit")), waits::not_started(&self.cluster, job)];
        self.cluster.step(&given_back);
        assert!(self.cluster.phase(job) == Phase::Absent);
        self.waiting.push(job);
    }

    fn let_start(&mut self, job: u64) {
        self.waiting.retain(|&other| other != job);
        self.cluster.step(&[waits::waits(job, None)]);
    }

    fn lose_node(&mut self, active: &[(u64, Phase)]) {
        let node = self.random.below(u64::from(self.nodes)) as u32;
        if self.lost.contains(&node) {
            return;
        }
        self.lost.push(node);
        let is_on_node = |device: &u32| device / self.per_node == node;
        let requeued = active.iter().filter(|&&(job, phase)| {
            phase == Phase::Running && self.cluster.devices(job).iter().any(is_on_node)
        });
        let mut inputs: Vec<Input> = requeued.map(|&(job, _)| self.cluster.requeued(job)).collect();
        inputs.extend(self.cluster.closing(node, true));
        self.cluster.step(&inputs);
    }

    fn restart(&mut self) {
        let kept = found(&self.cluster);
        let devices = 0..self.nodes * self.per_node;
        let unavailable: Vec<u32> =
            devices.filter(|device| self.lost.contains(&(device / self.per_node))).collect();
        let next = TestCluster::new(1, 1, "fifo");
        let last = std::mem::replace(&mut self.cluster, next);
        self.cluster = last.restart_without(kept, &unavailable);
        self.waiting.clear();
    }

    /// Brings every job to its end.
    fn drain(&mut self, seed: u64) {
        for job in self.waiting.clone() {
            self.let_start(job);
        }
        let cluster = &mut self.cluster;
        for node in std::mem::take(&mut self.lost) {
            cluster.open(node);
        }
        while cluster.scheduler.jobs().count() > 0 {
            cluster.again();
            let next = cluster.scheduler.jobs().find_map(|active| {
                let is_withdrawn = active.job.ending.is_some() && active.phase == Phase::Absent;
                (is_withdrawn || active.phase != Phase::Absent).then_some(active.job.id)
            });
            let job = next.unwrap_or_else(|| panic!("seed {seed}: no job makes progress"));
            match cluster.phase(job) {
                Phase::Absent => cluster.withdraw(job),
                Phase::Starting => cluster.started(job),
                _ => cluster.finish(job),
            }
        }
        cluster.assert_idle();
    }
}

#[test]
fn random_events_lose_no_job_and_leave_no_reservation() {
    for seed in 1..=30 {
        let mut world = World::new(seed);
        for _ in 0..150 {
            world.random_event();
        }
        world.drain(seed);
    }
}
