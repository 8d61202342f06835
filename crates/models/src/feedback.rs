//! Feedback on a promised latency: how much of a GPU the jobs beside a service may use, window by window.
//!
//! Down fast, up slowly: a latency near the promise cuts the budget of the others at once, room has to last
//! before they get some of it back, and a budget at which the promise was in danger is not tried again for a
//! while, each time for longer. Where even the smallest budget breaks the promise, the jobs are parted.

use tandem_core::{BUDGET_MIN, PPM_ONE, Ppm};

/// The promise is in danger above this part of it.
const NEAR: f64 = 0.8;
/// There is room below this part; between the two nothing changes.
const ROOM: f64 = 0.5;
/// There is plenty of room below this one.
const PLENTY: f64 = 0.25;
/// Windows with room before a budget grows, and with plenty.
const PATIENCE: u32 = 3;
const PATIENCE_IN_PLENTY: u32 = 2;
/// What a budget grows by.
const STEP: u32 = PPM_ONE / 20;
/// Windows for which a budget that was too large is not tried again: at first, and at most.
const HOLD: u32 = 10;
const HOLD_MAX: u32 = 320;
/// Windows in a row that break the promise at the smallest budget before the jobs are parted.
const PATIENCE_BEFORE_PARTING: u32 = 5;

/// What to do about the jobs beside a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjustment {
    /// Nothing.
    Keep,
    /// Give them this budget.
    Cap(Ppm),
    /// Move them away: no budget keeps the promise.
    Part,
}

/// The memory of the loop, for one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromiseLoop {
    /// Windows with room in a row.
    calm: u32,
    /// Windows in a row that broke the promise at the smallest budget.
    broken: u32,
    /// The last budget that was too large,
    ceiling: Option<Ppm>,
    /// for so many windows,
    hold: u32,
    /// of which so many are left.
    left: u32,
}

impl PromiseLoop {
    /// After a window with this latency, relative to the promise; `cap` is the present budget of the others,
    /// `most` the largest that they may have.
    pub fn window(&mut self, latency: f64, cap: Ppm, most: Ppm) -> Adjustment {
        self.left = self.left.saturating_sub(1);
        if latency > NEAR {
            return self.cut(latency, cap);
        }
        self.broken = 0;
        if latency >= ROOM {
            self.calm = 0;
            return Adjustment::Keep;
        }
        self.calm += 1;
        let has_plenty = latency < PLENTY;
        if self.calm < if has_plenty { PATIENCE_IN_PLENTY } else { PATIENCE } {
            return Adjustment::Keep;
        }
        self.calm = 0;
        let step = if has_plenty { 2 * STEP } else { STEP };
        let bound = self
            .ceiling
            .filter(|_| self.left > 0)
            .map_or(most, |too_large| most.min(Ppm(too_large.0.saturating_sub(STEP))));
        let next = Ppm(cap.0.saturating_add(step)).min(bound);
        if next > cap { Adjustment::Cap(next) } else { Adjustment::Keep }
    }

    fn cut(&mut self, latency: f64, cap: Ppm) -> Adjustment {
        self.calm = 0;
        if cap <= BUDGET_MIN {
            self.broken = if latency > 1.0 { self.broken + 1 } else { 0 };
            if self.broken < PATIENCE_BEFORE_PARTING {
                return Adjustment::Keep;
            }
            *self = Self::default();
            return Adjustment::Part;
        }
        // Back at a budget that was too large before: wait longer.
        let is_again = self.ceiling.is_some_and(|too_large| cap.0 + STEP >= too_large.0);
        if self.left == 0 || is_again {
            self.hold = if is_again { (2 * self.hold).min(HOLD_MAX) } else { HOLD };
        }
        self.ceiling = Some(self.ceiling.filter(|_| self.left > 0).map_or(cap, |old| old.min(cap)));
        self.left = self.hold;
        let kept = if latency > 1.0 { 6 } else { 8 };
        Adjustment::Cap(Ppm((cap.0 / 10 * kept).max(BUDGET_MIN.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(control: &mut PromiseLoop, cap: &mut Ppm, windows: u32, latency: impl Fn(Ppm) -> f64) {
        for _ in 0..windows {
            if let Adjustment::Cap(next) = control.window(latency(*cap), *cap, Ppm::ONE) {
                *cap = next;
            }
        }
    }

    #[test]
    fn a_promise_in_danger_is_saved_at_once_and_room_is_given_back_slowly() {
        let mut control = PromiseLoop::default();
        assert_eq!(control.window(1.5, Ppm(800_000), Ppm::ONE), Adjustment::Cap(Ppm(480_000)));
        assert_eq!(control.window(0.9, Ppm(480_000), Ppm::ONE), Adjustment::Cap(Ppm(384_000)));
        assert_eq!(control.window(0.6, Ppm(384_000), Ppm::ONE), Adjustment::Keep);
        for _ in 0..PATIENCE - 1 {
            assert_eq!(control.window(0.4, Ppm(384_000), Ppm::ONE), Adjustment::Keep);
        }
        // Less than a step: a budget of 480,000 was too large a moment ago.
        let up = Adjustment::Cap(Ppm(480_000 - STEP));
        assert_eq!(control.window(0.4, Ppm(384_000), Ppm::ONE), up);
    }

    /// A service whose latency is fine up to a budget of 55 % and breaks beyond it.
    #[test]
    fn it_settles_below_the_budget_that_breaks_the_promise() {
        let (mut control, mut cap) = (PromiseLoop::default(), Ppm::ONE);
        let latency = |cap: Ppm| if cap.0 > 550_000 { 2.0 } else { 0.3 };
        run(&mut control, &mut cap, 200, latency);
        let mut broken = 0;
        for _ in 0..1000 {
            broken += u32::from(latency(cap) > 1.0);
            run(&mut control, &mut cap, 1, latency);
        }
        assert!(broken <= 10, "{broken} of 1000 windows");
        assert!((400_000..=550_000).contains(&cap.0), "{cap:?}");
    }

    #[test]
    fn an_idle_service_leaves_everything_to_the_others() {
        let (mut control, mut cap) = (PromiseLoop::default(), BUDGET_MIN);
        run(&mut control, &mut cap, 20, |_| 0.05);
        assert_eq!(cap, Ppm::ONE);
    }

    #[test]
    fn parting_is_the_last_resort() {
        let (mut control, mut cap) = (PromiseLoop::default(), Ppm::ONE);
        run(&mut control, &mut cap, 5, |_| 3.0);
        assert_eq!(cap, BUDGET_MIN);
        let mut windows = 0;
        while control.window(3.0, cap, Ppm::ONE) != Adjustment::Part {
            windows += 1;
            assert!(windows < 10, "never parted");
        }
        // A window that keeps the promise starts the count again.
        let mut control = PromiseLoop::default();
        for latency in [3.0, 3.0, 3.0, 3.0, 0.7, 3.0, 3.0, 3.0, 3.0] {
            assert_eq!(control.window(latency, BUDGET_MIN, Ppm::ONE), Adjustment::Keep);
        }
    }
}
