//! Jobs of an engine that keeps the queue, as Slurm does: made-up events go in, a clock is set by hand.

#![allow(clippy::unwrap_used)]

mod lost_nodes;
mod site;

use site::cycle::{Loop, offer, offered};
use site::{Site, exit, kept, submission};
use tandem_backends::{
    BackendEvent, ClusterJob, Exit, ExitCause, ExitStatus, Op, OpId, RecoveredRun, RunId,
};
use tandem_daemon::job::JobState;
use tandem_daemon::journal::replay;
use tandem_daemon::scheduler::{Active, Fact, Input, Kept, Phase};

#[test]
fn a_job_that_waits_and_is_withdrawn_is_cancelled() {
    let mut site = Site::new(1, 1, "fifo");
    let first = site.offer(1);
    let second = site.offer(1);
    assert_eq!((site.phase(first), site.phase(second)), (Phase::Starting, Phase::Absent));
    site.withdraw(second);
    assert_eq!(site.state(second), JobState::Cancelled);
    assert_eq!(site.job(second).reason.as_deref(), Some("scancel"));
    // Told twice, or of one that nobody knows, it changes nothing.
    site.withdraw(second);
    site.step(&[withdrawn("77#gone")]);
    // One that has a run ends with it.
    site.withdraw(first);
    assert_eq!(site.phase(first), Phase::Starting);
    site.started(first);
    site.withdraw(first);
    assert_eq!(site.phase(first), Phase::Running);
    site.finish(first);
    assert_eq!(site.state(first), JobState::Completed);
    site.is_idle();
}

fn withdrawn(external: &str) -> Input {
    let (external, reason) = (external.to_owned(), "scancel".to_owned());
    Input::Backend(BackendEvent::Withdrawn { external, reason })
}

#[test]
fn a_held_job_can_be_withdrawn_and_released() {
    let mut site = Site::new(1, 1, "fifo");
    let first = site.offer(1);
    let (second, third) = (site.offer(1), site.offer(1));
    site.step(&[Input::Hold { job: second }, Input::Hold { job: third }]);
    assert_eq!(site.state(second), JobState::Held);
    site.withdraw(third);
    assert_eq!(site.state(third), JobState::Cancelled);
    site.started(first);
    site.finish(first);
    assert_eq!(site.phase(second), Phase::Absent, "it is held");
    site.step(&[Input::Release { job: second }]);
    assert_eq!(site.phase(second), Phase::Starting);
}

#[test]
fn what_the_engine_says_about_an_end_is_final() {
    for (cause, state, code) in [
        (ExitCause::Cancelled, JobState::Cancelled, 1),
        (ExitCause::TimedOut, JobState::Timeout, 1),
        (ExitCause::OutOfMemory, JobState::Oom, 253),
    ] {
        let mut site = Site::new(1, 1, "fifo");
        // Whatever was asked for.
        let job = site.submit(|submission| {
            submission.request.retries = 3;
            submission.request.requeue = true;
        });
        site.started(job);
        let oom = cause == ExitCause::OutOfMemory;
        let exit = Exit { cause: Some(cause), oom, ..exit(ExitStatus::Code(1)) };
        site.ended(job, exit);
        assert_eq!((site.state(job), site.job(job).exit_code), (state, Some(code)));
        assert!(site.outcome.ops.is_empty(), "{:?}", site.outcome);
        assert_eq!(site.outcome.forget.len(), 1);
        site.is_idle();
    }
}

#[test]
fn a_run_that_was_queued_again_loses_its_work_and_begins_again() {
    let mut site = Site::new(1, 1, "fifo");
    let job = site.offer(1);
    site.started(job);
    site.pass(100);
    site.step(&[]);
    assert!(site.active(job).done_us(site.now.time()) >= 100_000_000);
    site.requeue(job);
    assert!(site.outcome.ops.is_empty(), "the engine begins it by itself");
    assert_eq!(site.phase(job), Phase::Starting);
    assert_eq!((site.active(job).job.runs, site.active(job).done_us(site.now.time())), (1, 0));
    site.pass(1000);
    site.step(&[]);
    assert_eq!(site.active(job).done_us(site.now.time()), 0, "it does nothing while it waits");
    site.started(job);
    assert_eq!((site.phase(job), site.active(job).job.runs), (Phase::Running, 1));
    site.pass(7);
    site.finish(job);
    assert_eq!((site.state(job), site.job(job).done_us / 1_000_000), (JobState::Completed, 8));
    site.is_idle();
}

#[test]
fn a_closed_device_takes_no_new_jobs_until_it_is_opened() {
    let mut site = Site::new(2, 1, "fifo");
    site.close(0);
    let first = site.offer(1);
    let second = site.offer(1);
    assert_eq!(site.devices(first), [1]);
    assert_eq!(site.phase(second), Phase::Absent);
    assert_eq!(site.scheduler.closed(0), Some("down"));
    site.open(0);
    assert_eq!((site.phase(second), site.devices(second)), (Phase::Starting, vec![0]));
    // Who sits there stays.
    site.started(second);
    site.close(0);
    assert_eq!(site.phase(second), Phase::Running);
    site.finish(second);
    let third = site.offer(1);
    assert_eq!(site.phase(third), Phase::Absent);
    site.open(0);
    assert_eq!(site.devices(third), [0]);
    // A device that is not there is none of ours.
    let event = BackendEvent::Device { device: 99, unavailable: Some("down".to_owned()) };
    site.step(&[Input::Backend(event)]);
}

#[test]
fn a_job_that_the_engine_keeps_waiting_is_cancelled_at_once() {
    let mut site = Site::new(1, 1, "fifo");
    let job = site.offer(1);
    assert_eq!(site.phase(job), Phase::Starting);
    site.cancel(job);
    assert_eq!((site.phase(job), site.state(job)), (Phase::Ending, JobState::Completing));
    assert_eq!(site.ops.last(), Some(&Op::End { run: site.run(job), grace_ms: 1000 }));
    let asked = site.ops.len();
    // Twice is once; what crosses the request on its way does not matter.
    site.cancel(job);
    let (op, run, pid) = (OpId(0), site.run(job), 1);
    let enforcement = Default::default();
    site.step(&[Input::Backend(BackendEvent::Started { op, run, pid, enforcement })]);
    site.requeue(job);
    assert_eq!((site.phase(job), site.ops.len()), (Phase::Ending, asked));
    // Its device is its own until the engine says that it is gone.
    let next = site.offer(1);
    assert_eq!(site.phase(next), Phase::Absent);
    site.ended(job, Exit { cause: Some(ExitCause::Cancelled), ..exit(ExitStatus::Code(0)) });
    assert_eq!(site.state(job), JobState::Cancelled);
    assert_eq!(site.job(job).reason.as_deref(), Some("cancelled by ann"));
    assert_eq!(site.phase(next), Phase::Starting);
}

#[test]
fn a_job_that_waits_is_cancelled_in_the_engine_too() {
    let mut site = Site::new(1, 1, "fifo");
    let first = site.offer(1);
    let (second, third) = (site.offer(1), site.offer(1));
    site.step(&[Input::Hold { job: third }]);
    let withdraw =
        |job| Op::Withdraw { run: RunId { job, run: 0 }, external: format!("{job}#tag") };
    for job in [second, third] {
        site.cancel(job);
        assert_eq!(site.ops.last(), Some(&withdraw(job)));
        assert!(!site.state(job).is_over(), "the engine has it still");
    }
    // It gets no place any more, whatever is asked for.
    site.step(&[Input::Release { job: third }, Input::Hold { job: second }]);
    site.cancel(second);
    site.started(first);
    site.finish(first);
    assert_eq!((site.phase(second), site.phase(third)), (Phase::Absent, Phase::Absent));
    // A daemon that died meanwhile asks again.
    let asked = site.ops.len();
    let waiting = [second, third].map(|job| kept(site.job(job), None)).to_vec();
    let mut site = site.restart(waiting);
    assert_eq!(site.ops, [withdraw(second), withdraw(third)]);
    assert_eq!(asked, 3);
    for job in [second, third] {
        site.withdraw(job);
        assert_eq!(site.state(job), JobState::Cancelled);
        assert_eq!(site.job(job).reason.as_deref(), Some("cancelled by ann"));
    }
    site.is_idle();
}

#[test]
fn a_cancel_goes_on_after_a_restart() {
    let mut site = Site::new(1, 1, "fifo");
    let job = site.offer(1);
    site.cancel(job);
    assert_eq!(site.phase(job), Phase::Ending);
    let found = vec![kept(site.job(job), Some(RecoveredRun::Starting))];
    let mut site = site.restart(found);
    assert_eq!(site.ops, [Op::End { run: site.run(job), grace_ms: 1000 }]);
    site.ended(job, Exit { cause: Some(ExitCause::Cancelled), ..exit(ExitStatus::Code(0)) });
    assert_eq!(site.job(job).reason.as_deref(), Some("cancelled by ann"));
    site.is_idle();
}

#[test]
fn jobs_on_several_devices_never_share() {
    let mut site = Site::new(2, 2, "sjf-ffs");
    let small = site.submit(|submission| submission.request.gpu_memory_bytes = Some(1 << 30));
    let beside = site.submit(|submission| submission.request.gpu_memory_bytes = Some(1 << 30));
    assert_eq!(site.phase(small), Phase::Starting);
    assert_eq!(site.phase(beside), Phase::Starting);
    let gang = |submission: &mut tandem_daemon::scheduler::Submission| {
        submission.request.gpus = 2.0;
        submission.request.gpu_memory_bytes = Some(1 << 30);
    };
    let (one, two) = (site.submit(gang), site.submit(gang));
    for job in [small, beside] {
        site.started(job);
    }
    let more: Vec<u64> = (0..8)
        .map(|_| site.submit(|submission| submission.request.gpu_memory_bytes = Some(1 << 30)))
        .collect();
    // The site itself sees to it that nobody is beside a gang; here, that somebody is beside somebody.
    let shares = |site: &Site| (0..4).any(|device| site.scheduler.present(device).count() > 1);
    assert!(shares(&site), "singles share");
    let mut left: Vec<u64> = [small, beside, one, two].into_iter().chain(more).collect();
    while !left.is_empty() {
        let before = left.len();
        left.retain(|&job| {
            if site.phase(job) == Phase::Starting {
                site.started(job);
                site.finish(job);
                return false;
            }
            if site.phase(job) == Phase::Running {
                site.finish(job);
                return false;
            }
            true
        });
        assert!(left.len() < before, "{left:?} wait for ever");
    }
    site.is_idle();
}

#[test]
fn a_restart_finds_every_job_where_it_is() {
    let mut site = Site::new(2, 2, "fifo");
    let jobs: Vec<u64> = (0..6).map(|_| site.offer(1)).collect();
    for &job in &jobs[1..4] {
        site.started(job);
    }
    site.step(&[Input::Hold { job: jobs[5] }]);
    let pid = u32::try_from(jobs[1]).unwrap();
    let running = RecoveredRun::Running { pid, paused: false, enforcement: Default::default() };
    let done = RecoveredRun::Exited(exit(ExitStatus::Code(3)));
    let cancelled = RecoveredRun::Exited(Exit {
        cause: Some(ExitCause::Cancelled),
        ..exit(ExitStatus::Code(0))
    });
    let found =
        [Some(RecoveredRun::Starting), Some(running), Some(done), Some(cancelled), None, None];
    let kept = jobs.iter().zip(found).map(|(&job, found)| kept(site.job(job), found)).collect();
    let mut site = site.restart(kept);
    assert_eq!((site.phase(jobs[0]), site.devices(jobs[0])), (Phase::Starting, vec![0]));
    assert_eq!((site.phase(jobs[1]), site.devices(jobs[1])), (Phase::Running, vec![1]));
    assert_eq!(site.state(jobs[2]), JobState::Failed);
    assert_eq!(site.state(jobs[3]), JobState::Cancelled);
    // What waited waits for the devices that are free now, or is held.
    assert_eq!((site.phase(jobs[4]), site.devices(jobs[4])), (Phase::Starting, vec![2]));
    assert_eq!(site.state(jobs[5]), JobState::Held);
    // Each is found by what the engine calls it.
    site.withdraw(jobs[5]);
    assert_eq!(site.state(jobs[5]), JobState::Cancelled);
    for job in [jobs[0], jobs[4]] {
        site.started(job);
    }
    for job in [jobs[0], jobs[1], jobs[4]] {
        site.finish(job);
        assert_eq!(site.state(job), JobState::Completed);
    }
    site.is_idle();
}

#[test]
fn a_run_that_was_queued_again_while_nobody_watched_has_lost_its_work() {
    let mut site = Site::new(1, 1, "fifo");
    let job = site.offer(1);
    site.started(job);
    site.pass(100);
    site.step(&[Input::Fact(Fact::Hello { job, accum: true, stop: true, batch: None })]);
    assert!(site.job(job).done_us >= 100_000_000);
    let found = vec![kept(site.job(job), Some(RecoveredRun::Starting))];
    let mut site = site.restart(found);
    assert_eq!((site.phase(job), site.active(job).done_us(site.now.time())), (Phase::Starting, 0));
    assert!(!site.active(job).caps.stop, "it has not spoken yet");
    site.started(job);
    site.finish(job);
    assert_eq!(site.job(job).done_us / 1_000_000, 1);
}

#[test]
fn a_run_that_cannot_move_is_never_asked_to_leave() {
    let mut site = Site::new(2, 1, "fifo");
    let job = site.offer(1);
    site.started(job);
    site.step(&[Input::Fact(Fact::Hello { job, accum: false, stop: true, batch: None })]);
    // Its device is not there any more, as far as the engine of this life says.
    let mut gone = kept(site.job(job), None);
    gone.job.devices = vec![9];
    gone.found =
        Some(RecoveredRun::Running { pid: 1, paused: false, enforcement: Default::default() });
    let mut site = site.restart(vec![gone]);
    site.again();
    assert_eq!(site.phase(job), Phase::Running);
    assert!(site.outcome.messages.is_empty() && site.ops.is_empty(), "{:?}", site.outcome);
    site.finish(job);
    assert_eq!(site.state(job), JobState::Completed, "and not queued again");
}

/// Numbers that look random; any stream does.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What a life of the daemon finds of the jobs of the one before.
fn found(site: &Site) -> Vec<Kept> {
    let of = |active: &Active| {
        let job = site.job(active.job.id);
        let found = match active.phase {
            Phase::Absent => None,
            Phase::Running => Some(RecoveredRun::Running {
                pid: 1,
                paused: false,
                enforcement: Default::default(),
            }),
            _ => Some(RecoveredRun::Starting),
        };
        kept(job, found)
    };
    site.scheduler.jobs().map(of).collect()
}

#[test]
fn whatever_happens_nobody_is_forgotten_and_nothing_is_kept() {
    for seed in 1..=30 {
        let mut random = Random(seed * 7919);
        let policy = ["fifo", "sjf-ffs", "tandem"][random.below(3) as usize];
        let (nodes, each) = (2 + random.below(3) as u32, 1 + random.below(3) as u32);
        let mut site = Site::new(nodes, each, policy);
        let mut down: Vec<u32> = Vec::new();
        for _ in 0..150 {
            let active: Vec<(u64, Phase)> =
                site.scheduler.jobs().map(|active| (active.job.id, active.phase)).collect();
            let some =
                (!active.is_empty()).then(|| active[random.below(active.len() as u64) as usize]);
            match (random.below(12), some) {
                (0..=2, _) => {
                    // A job on several nodes has all of each.
                    let gpus = match random.below(6) {
                        0 => each * 2,
                        1 => each,
                        _ => 1,
                    };
                    let memory = random.below(2) == 0;
                    site.submit(|submission| {
                        submission.request.gpus = f64::from(gpus);
                        submission.request.gpu_memory_bytes = memory.then_some(1 << 30);
                    });
                }
                (3..=5, Some((job, Phase::Starting))) => {
                    // Nothing begins on a node that is lost.
                    let on = |device: &u32| down.contains(&(device / each));
                    if !site.devices(job).iter().any(on) {
                        site.started(job);
                    }
                }
                (3..=4, Some((job, Phase::Running))) => site.finish(job),
                (6, Some((job, Phase::Running))) => site.requeue(job),
                (6, Some((job, Phase::Absent))) => site.withdraw(job),
                (7, Some((job, _))) => site.cancel(job),
                (5 | 8, Some((job, Phase::Ending))) => site.finish(job),
                (9, _) if !down.is_empty() => {
                    let node = down.swap_remove(random.below(down.len() as u64) as usize);
                    site.open(node);
                }
                (10, _) if down.len() + 1 < nodes as usize => {
                    let node = random.below(u64::from(nodes)) as u32;
                    if !down.contains(&node) {
                        down.push(node);
                        let on = |device: &u32| device / each == node;
                        let lost = active.iter().filter(|&&(job, phase)| {
                            phase == Phase::Running && site.devices(job).iter().any(on)
                        });
                        let mut inputs: Vec<Input> =
                            lost.map(|&(job, _)| site.requeued(job)).collect();
                        inputs.extend(site.closing(node, true));
                        site.step(&inputs);
                    }
                }
                (11, _) if random.below(4) == 0 => {
                    let kept = found(&site);
                    let closed: Vec<u32> = (0..nodes * each)
                        .filter(|device| down.contains(&(device / each)))
                        .collect();
                    site = site.restart_without(kept, &closed);
                }
                _ => site.again(),
            }
        }
        for node in std::mem::take(&mut down) {
            site.open(node);
        }
        while site.scheduler.jobs().count() > 0 {
            site.again();
            let next = site.scheduler.jobs().find_map(|active| {
                let is_withdrawn = active.job.ending.is_some() && active.phase == Phase::Absent;
                (is_withdrawn || active.phase != Phase::Absent).then_some(active.job.id)
            });
            let job = next.unwrap_or_else(|| panic!("seed {seed}: nobody gets on"));
            match site.phase(job) {
                Phase::Absent => site.withdraw(job),
                Phase::Starting => site.started(job),
                _ => site.finish(job),
            }
        }
        site.is_idle();
    }
}

#[test]
fn a_restart_puts_nobody_on_a_closed_device() {
    let mut site = Site::new(3, 1, "fifo");
    let jobs: Vec<u64> = (0..4).map(|_| site.offer(1)).collect();
    site.started(jobs[1]);
    site.started(jobs[2]);
    let found = [
        // Queued again by the engine, as its node was lost.
        Some(RecoveredRun::Starting),
        Some(RecoveredRun::Running { pid: 2, paused: false, enforcement: Default::default() }),
        Some(RecoveredRun::Exited(exit(ExitStatus::Code(0)))),
        None,
    ];
    let kept = jobs.iter().zip(found).map(|(&job, found)| kept(site.job(job), found)).collect();
    let mut site = site.restart_without(kept, &[0, 1]);
    assert_eq!(site.phase(jobs[1]), Phase::Running, "as far as is known");
    site.again();
    assert_eq!((site.phase(jobs[0]), site.devices(jobs[0])), (Phase::Starting, vec![2]));
    assert_eq!(site.phase(jobs[3]), Phase::Absent);
    assert_eq!(site.scheduler.closed(0), Some("down"));
    site.open(0);
    assert_eq!(site.devices(jobs[3]), [0]);
}

#[test]
fn a_job_that_can_never_run_stands_in_nobodys_way() {
    let mut site = Site::new(2, 2, "fifo");
    let large = site.offer(5);
    let hungry = site.submit(|submission| submission.request.gpu_memory_bytes = Some(17 << 30));
    let job = site.offer(1);
    assert_eq!(site.phase(job), Phase::Starting);
    assert_eq!((site.state(large), site.state(hungry)), (JobState::Pending, JobState::Pending));
    assert_eq!(site.job(large).reason.as_deref(), Some("needs 5 GPUs, there are 4"));
    let reason = "needs 17408 MiB of a GPU, they have 16384 MiB";
    assert_eq!(site.job(hungry).reason.as_deref(), Some(reason));
    for job in [large, hungry] {
        site.step(&[Input::Hold { job }]);
        site.step(&[Input::Release { job }]);
        assert_eq!(site.state(job), JobState::Pending);
        site.withdraw(job);
        assert_eq!(site.state(job), JobState::Cancelled);
    }
}

#[test]
fn jobs_of_several_users_are_kept_apart() {
    let mut site = Site::new(1, 1, "fifo");
    let ann = site.offer(1);
    let bob = site.submit(|submission| {
        submission.uid = 1002;
        submission.user = "bob".to_owned();
    });
    assert_eq!(site.active(ann).job.uid, 1001);
    assert_eq!((site.active(bob).job.uid, site.active(bob).job.user.as_str()), (1002, "bob"));
    assert_eq!(submission(3).external.as_deref(), Some("3#tag"));
}

#[test]
fn an_offer_becomes_one_job_with_its_hints() {
    let mut site = Loop::new(1, 1, "fifo");
    let hints = "tandem:mem=2G,class=resnet,estimate=2h,slowdown=1.5,colour=red".to_owned();
    site.turn(vec![BackendEvent::Imported(Box::new(ClusterJob { hints, ..offer(17) }))]);
    site.turn(Vec::new());
    let jobs = site.cycle.store.active().unwrap();
    let [job] = &jobs[..] else { panic!("{jobs:?}") };
    assert_eq!((job.id, job.external.as_deref()), (1, Some("17#tag")));
    assert_eq!((job.uid, job.gid, job.user.as_str()), (1001, 1002, "ann"));
    assert_eq!((job.class.as_str(), job.submit_us), ("resnet", 7));
    let request = &job.request;
    assert_eq!(request.gpu_memory_bytes, Some(2 << 30));
    assert_eq!((request.estimate_s, request.max_slowdown), (Some(7200.0), Some(1.5)));
    assert_eq!((request.time_limit_s, request.name.as_deref()), (Some(3600.0), Some("train17")));
    let ops = site.ops.lock().unwrap();
    let [Op::Start(launch)] = &ops[..] else { panic!("{ops:?}") };
    assert_eq!(launch.external.as_deref(), Some("17#tag"));
    assert_eq!(launch.allocation.devices, [0]);
}

#[test]
fn offers_wait_for_the_store_and_come_once() {
    // The inputs cannot be written, or what was decided.
    for kind in ["input", "actions"] {
        let mut site = Loop::new(1, 1, "fifo");
        site.refuse(kind);
        site.turn(vec![offered(1), offered(2)]);
        site.turn(vec![offered(3)]);
        site.turn(Vec::new());
        assert!(site.ops.lock().unwrap().is_empty(), "{kind}: nothing is done before it is kept");
        let before = if kind == "input" { 0 } else { 2 };
        assert_eq!(site.kept().len(), before, "{kind}");
        site.accept();
        site.turn(Vec::new());
        site.turn(Vec::new());
        assert_eq!(site.kept(), ["1#tag", "2#tag", "3#tag"], "{kind}");
        assert_eq!(site.ops.lock().unwrap().len(), 1, "{kind}");
        assert_eq!(site.cycle.scheduler.jobs().count(), 3);
        assert_eq!(replay(&site.database()).unwrap().differences, [], "{kind}");
    }
}

#[test]
fn an_offer_that_is_withdrawn_before_it_is_kept_never_was() {
    let mut site = Loop::new(1, 1, "fifo");
    let withdrawn = |number: u32| BackendEvent::Withdrawn {
        external: format!("{number}#tag"),
        reason: "scancel".to_owned(),
    };
    site.turn(vec![offered(1), offered(2), withdrawn(1)]);
    site.refuse("input");
    site.turn(vec![offered(3), offered(4)]);
    site.turn(vec![withdrawn(3)]);
    site.accept();
    site.turn(Vec::new());
    assert_eq!(site.kept(), ["2#tag", "4#tag"]);
    site.turn(vec![withdrawn(4)]);
    assert_eq!(site.kept(), ["2#tag"]);
    assert_eq!(replay(&site.database()).unwrap().differences, []);
}

#[test]
fn the_journal_of_such_a_run_replays() {
    let mut site = Loop::new(3, 2, "sjf-ffs");
    let hints = |number, hints: &str| {
        BackendEvent::Imported(Box::new(ClusterJob { hints: hints.to_owned(), ..offer(number) }))
    };
    let run = |job, run| RunId { job, run };
    let started = |job, number| BackendEvent::Started {
        op: OpId(0),
        run: run(job, number),
        pid: 1,
        enforcement: Default::default(),
    };
    let closed = |node: u32, closed: bool| {
        let closed = closed.then(|| "down".to_owned());
        (node * 2..node * 2 + 2)
            .map(move |device| BackendEvent::Device { device, unavailable: closed.clone() })
    };
    let ended = |job, number, cause| BackendEvent::Exited {
        run: run(job, number),
        exit: Exit { cause, ..exit(ExitStatus::Code(0)) },
    };
    let gang = BackendEvent::Imported(Box::new(ClusterJob { gpus: 2, ..offer(9) }));
    site.turn(vec![offered(1), hints(2, "tandem:mem=1G"), hints(3, "tandem:mem=1G"), gang]);
    site.turn((4..9).map(offered).collect());
    let sits =
        |site: &Loop, job| site.cycle.scheduler.job(job).unwrap().seat.clone().unwrap().devices;
    let starting: Vec<u64> = site
        .cycle
        .scheduler
        .jobs()
        .filter(|active| active.phase == Phase::Starting)
        .map(|active| active.job.id)
        .collect();
    assert!(starting.len() >= 4, "{starting:?}");
    site.turn(starting.iter().map(|&job| started(job, 1)).collect());
    // The node of the first job is lost; its jobs are queued again.
    let node = sits(&site, 1)[0] / 2;
    let lost: Vec<u64> =
        starting.iter().copied().filter(|&job| sits(&site, job)[0] / 2 == node).collect();
    let mut events: Vec<BackendEvent> =
        lost.iter().map(|&job| BackendEvent::Requeued { run: run(job, 1) }).collect();
    events.extend(closed(node, true));
    site.turn(events);
    for &job in starting.iter().filter(|job| !lost.contains(job)) {
        site.turn(vec![ended(job, 1, Some(ExitCause::TimedOut))]);
        site.turn(Vec::new());
    }
    site.turn(Vec::new());
    let moved = sits(&site, 1)[0];
    assert_ne!(moved / 2, node, "the first job begins elsewhere");
    let withdrawn = "8#tag".to_owned();
    site.turn(vec![
        started(1, 2),
        BackendEvent::Withdrawn { external: withdrawn, reason: "scancel".to_owned() },
    ]);
    site.turn(closed(node, false).collect());
    site.turn(vec![ended(1, 2, None)]);
    let replay = replay(&site.database()).unwrap();
    assert!(replay.cycles > 8 && replay.inputs > 15 && replay.actions > 6, "{replay:?}");
    assert_eq!(replay.differences, []);
}
