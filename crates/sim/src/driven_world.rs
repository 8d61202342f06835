//! The simulated world for another loop: it carries out actions and reports the results, as real GPUs do for
//! a daemon. A test compares the daemon with the simulator action by action with it.

use crate::workload::Workload;
use crate::world::{World, WorldOptions};
use tandem_core::{Action, Event, Interference, Time};

/// A world that its caller drives.
pub struct DrivenWorld<'a> {
    world: World<'a>,
}

impl<'a> DrivenWorld<'a> {
    /// A world before the first event.
    pub fn new(workload: &'a Workload, truth: &'a dyn Interference, options: WorldOptions) -> Self {
        let begin = workload.first_submit();
        Self { world: World::new(&workload.cluster, &workload.jobs, truth, options, begin) }
    }

    /// When the next job ends if nothing changes.
    pub fn next_completion(&mut self) -> Option<Time> {
        self.world.next_completion()
    }

    /// The events up to `now` since the last call: progress reports, then completions.
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
