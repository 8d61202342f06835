use crate::*;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Places pending jobs in order of id.
#[derive(Default)]
struct InOrderOfId(BTreeSet<JobId>);

impl Policy for InOrderOfId {
    fn enqueue(&mut self, job: &Job) {
        assert!(self.0.insert(job.id()), "offered once");
    }
    fn dequeue(&mut self, job: &Job) {
        assert!(self.0.remove(&job.id()), "withdrawn once");
    }
    fn plan(&mut self, draft: &mut Draft<'_>) {
        for job in self.0.clone() {
            draft.place_exclusive(job);
        }
        draft.explain_others(Reason::NoRoom { free: draft.free_count() });
    }
}

struct GateBench {
    engine: Engine,
    next: u32,
}

fn second(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

impl GateBench {
    /// Four GPUs of 1,000 MiB.
    fn new(shares: Shares) -> Self {
        let cluster = Arc::new(Cluster::uniform(1, 4, Memory::from_mib(1000)));
        let shares = Arc::new(shares);
        let gate = || shares.gate(Box::new(InOrderOfId::default()));
        let rules = Rules::default();
        let engine = Engine::new(cluster, rules, Box::new(ClosedForm), OnIllegal::Panic, gate);
        Self { engine, next: 0 }
    }

    fn spec(&mut self, user: u32, gpus: u32) -> JobSpec {
        let id = JobId(self.next);
        self.next += 1;
        JobSpec {
            id,
            user: UserId(user),
            gpus,
            estimate: Span::from_secs(100),
            profile: Profile { memory: Memory::from_mib(400), ..Profile::default() },
            ..JobSpec::plain(0)
        }
    }

    fn submit(&mut self, seconds: u64, user: u32, count: u32) -> Vec<u32> {
        let events: Vec<Event> = (0..count).map(|_| Event::Submitted(self.spec(user, 1))).collect();
        self.step(seconds, &events)
    }

    /// The jobs that run afterwards.
    fn step(&mut self, seconds: u64, events: &[Event]) -> Vec<u32> {
        self.engine.step(second(seconds), events);
        self.engine.state().assert_consistent();
        self.running()
    }

    fn running(&self) -> Vec<u32> {
        self.engine.state().placed(PartitionId(0)).map(|job| job.id().0).collect()
    }

    fn end(&mut self, seconds: u64, job: u32) -> Vec<u32> {
        self.step(seconds, &[Event::Finished { job: JobId(job) }])
    }

    fn reason(&self, job: u32) -> Option<Reason> {
        self.engine.reason(JobId(job))
    }
}

fn fair() -> Shares {
    let fair = FairShare { slice: Span::from_secs(60), half_life: Span::from_secs(86_400) };
    Shares { fair: Some(fair), ..Shares::default() }
}

#[test]
fn one_user_has_everything_and_a_second_gets_half_at_once() {
    let mut bench = GateBench::new(fair());
    assert_eq!(bench.submit(0, 1, 8), [0, 1, 2, 3]);
    assert_eq!(bench.reason(5), Some(Reason::NoRoom { free: 0 }));
    let running = bench.submit(100, 2, 5);
    assert_eq!(running.iter().filter(|&&job| job >= 8).count(), 2, "{running:?}");
    assert_eq!(bench.reason(4), Some(Reason::FairShare));
    // A job that ends is followed by one of the same user.
    let last = running.iter().copied().find(|&job| job >= 8).unwrap();
    let after = bench.end(110, last);
    assert_eq!(after.iter().filter(|&&job| job >= 8).count(), 2, "{after:?}");
    // The second user leaves, and the first has everything again.
    for job in 8..13 {
        bench.step(120, &[Event::Cancelled { job: JobId(job) }]);
    }
    assert!(bench.running().iter().all(|&job| job < 8));
    assert_eq!(bench.running().len(), 4);
}

#[test]
fn jobs_are_stopped_at_most_once_a_slice_and_never_if_they_cannot_be() {
    let mut bench = GateBench::new(fair());
    let specs: Vec<Event> = (0..4)
        .map(|_| Event::Submitted(JobSpec { stoppable: false, ..bench.spec(1, 1) }))
        .collect();
    assert_eq!(bench.step(0, &specs), [0, 1, 2, 3]);
    assert_eq!(bench.submit(10, 2, 3), [0, 1, 2, 3], "they cannot be stopped");
    // The next free GPUs are the second user's.
    bench.submit(20, 1, 3);
    assert_eq!(bench.end(30, 0), [1, 2, 3, 4]);
    assert_eq!(bench.end(40, 1), [2, 3, 4, 5]);
}

#[test]
fn one_gpu_goes_round_by_slices() {
    let mut bench = GateBench::new(fair());
    let events: Vec<Event> = [1, 2].map(|user| Event::Submitted(bench.spec(user, 4))).into();
    let mut running = bench.step(0, &events);
    let mut changes = 0;
    for slice in 1..=10 {
        let next = bench.step(slice * 60, &[]);
        assert_eq!(next.len(), 1);
        changes += u32::from(next != running);
        running = next;
    }
    assert!((8..=10).contains(&changes), "{changes}");
}

#[test]
fn limits_keep_jobs_back_and_say_so() {
    let limits = |limits| Shares { user_limits: limits, ..Shares::default() };
    let mut bench = GateBench::new(limits(Limits { gpus: Some(3), ..Limits::default() }));
    assert_eq!(bench.submit(0, 1, 5), [0, 1, 2]);
    assert_eq!(bench.reason(3), Some(Reason::Limit(LimitOf::User, Limit::Gpus)));
    assert_eq!(bench.submit(1, 2, 1), [0, 1, 2, 5], "others are not concerned");
    assert_eq!(bench.end(2, 0), [1, 2, 3, 5]);
    let mut bench = GateBench::new(limits(Limits { jobs: Some(1), ..Limits::default() }));
    assert_eq!(bench.submit(0, 1, 5), [0]);
    let most = Some(Memory::from_mib(900));
    let mut bench = GateBench::new(limits(Limits { memory: most, ..Limits::default() }));
    assert_eq!(bench.submit(0, 1, 5), [0, 1]);
    assert_eq!(bench.reason(2), Some(Reason::Limit(LimitOf::User, Limit::Memory)));
}

#[test]
fn gpu_time_is_limited_in_each_period() {
    let gpu_time = Some(Span::from_secs(100));
    let user_limits = Limits { gpu_time, ..Limits::default() };
    let period = Span::from_secs(1000);
    let mut bench = GateBench::new(Shares { user_limits, period, ..Shares::default() });
    assert_eq!(bench.submit(0, 1, 8).len(), 4);
    assert_eq!(bench.end(30, 0), [1, 2, 3], "120 s are used; what runs goes on");
    assert_eq!(bench.reason(4), Some(Reason::Limit(LimitOf::User, Limit::GpuTime)));
    let wake = bench.engine.step(second(40), &[]).wake;
    assert_eq!(wake, Some(second(1000)), "the next period begins");
    assert_eq!(bench.step(1000, &[]), [1, 2, 3, 4]);
}

#[test]
fn a_reservation_that_is_cancelled_frees_gpus_and_jobs() {
    let reservation = Reservation {
        id: 7,
        gpus: vec![GpuId(0), GpuId(1)],
        closes: second(10),
        start: second(10),
        end: second(100),
    };
    let shares = Shares { reservations: vec![reservation], ..Shares::default() };
    let mut bench = GateBench::new(shares);
    let mut reserved = bench.spec(2, 2);
    reserved.share.reservation = Some(7);
    assert_eq!(bench.step(0, &[Event::Submitted(reserved)]), []);
    assert_eq!(bench.reason(0), Some(Reason::Reserved));
    assert_eq!(bench.submit(1, 1, 4), [1, 2, 3, 4]);
    let running = bench.step(10, &[]);
    assert_eq!(running, [0, 3, 4], "two of the others are stopped");
    assert_eq!(bench.end(20, 0), [3, 4], "nobody else starts there");
    let none = Arc::new(Shares::default());
    assert_eq!(bench.step(30, &[Event::SharesChanged(none)]), [1, 2, 3, 4]);
}
