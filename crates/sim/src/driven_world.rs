//! The simulated world for somebody else's loop: it carries out actions and tells what came of them, as
//! real GPUs do for a daemon. With it a daemon can be compared with the simulator action by action.

use crate::workload::Workload;
use crate::world::{World, WorldOptions};
use tandem_core::{Action, Event, Interference, Time};

/// A world that is driven from outside.
pub struct DrivenWorld<'a> {
    world: World<'a>,
}

impl<'a> DrivenWorld<'a> {
    /// A world in which nothing has happened yet.
    pub fn new(workload: &'a Workload, truth: &'a dyn Interference, options: WorldOptions) -> Self {
        let begin = workload.first_submit();
        Self { world: World::new(&workload.cluster, &workload.jobs, truth, options, begin) }
    }

    /// When the next job ends if nothing changes.
    pub fn next_completion(&mut self) -> Option<Time> {
        self.world.next_completion()
    }

    /// What has happened by `now` since it was last asked: reports of progress, then jobs that ended.
    pub fn collect(&mut self, now: Time) -> Vec<Event> {
        let mut events = Vec::new();
        self.world.advance(now);
        self.world.report(now, &mut events);
        self.world.finish(now, &mut events);
        events
    }

    /// Carries out actions at `now`.
    pub fn act(&mut self, now: Time, actions: &[Action]) {
        self.world.act(now, actions);
    }
}
