//! The control loop of a promised latency: it sets the budget of the jobs beside a service, window by window.
//!
//! A latency near the promise cuts the budget at once. The budget grows again only after several windows with room,
//! and a budget that was too large is not tried again for a while, longer each time. If even the smallest budget
//! breaks the promise, the jobs are separated.

use tandem_core::{BUDGET_MIN, PPM_ONE, Ppm};

/// The budget is cut above this fraction of the promised latency.
const NEAR: f64 = 0.8;
/// The budget may grow below this fraction; between the two it stays.
const ROOM: f64 = 0.5;
/// It grows faster below this fraction.
const PLENTY: f64 = 0.25;
/// Windows in a row below [`ROOM`], and below [`PLENTY`], before the budget grows.
const WINDOWS_WITH_ROOM: u32 = 3;
const WINDOWS_WITH_PLENTY: u32 = 2;
/// Growth of a budget.
const STEP: u32 = PPM_ONE / 20;
/// Windows for which a budget that was too large is not tried again: the first time, and at most.
const HOLD: u32 = 10;
const HOLD_MAX: u32 = 320;
/// Windows in a row that break the promise at the smallest budget before the jobs are separated.
const WINDOWS_BEFORE_SEPARATION: u32 = 5;

/// The next step for the jobs beside a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adjustment {
    /// Keep their budget.
    Keep,
    /// Set their budget.
    Cap(Ppm),
    /// Separate them from the service: no budget keeps the promise.
    Separate,
}

/// The state of the loop for one service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PromiseLoop {
    /// Windows below [`ROOM`] in a row.
    calm: u32,
    /// Windows in a row that broke the promise at the smallest budget.
    broken: u32,
    /// The last budget that was too large.
    ceiling: Option<Ppm>,
    /// Windows for which it is not tried again.
    hold: u32,
    /// Windows left of these.
    left: u32,
}

impl PromiseLoop {
    /// The step after a window. `latency` is relative to the promise, `cap` the present budget of the jobs beside the
    /// service, `most` the largest that they may have.
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
        if self.calm < if has_plenty { WINDOWS_WITH_PLENTY } else { WINDOWS_WITH_ROOM } {
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
            if self.broken < WINDOWS_BEFORE_SEPARATION {
                return Adjustment::Keep;
            }
            *self = Self::default();
            return Adjustment::Separate;
        }
        // The same budget was too large before: wait longer.
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
        for _ in 0..WINDOWS_WITH_ROOM - 1 {
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
    fn separation_is_the_last_resort() {
        let (mut control, mut cap) = (PromiseLoop::default(), Ppm::ONE);
        run(&mut control, &mut cap, 5, |_| 3.0);
        assert_eq!(cap, BUDGET_MIN);
        let mut windows = 0;
        while control.window(3.0, cap, Ppm::ONE) != Adjustment::Separate {
            windows += 1;
            assert!(windows < 10, "never separated");
        }
        // A window that keeps the promise starts the count again.
        let mut control = PromiseLoop::default();
        for latency in [3.0, 3.0, 3.0, 3.0, 0.7, 3.0, 3.0, 3.0, 3.0] {
            assert_eq!(control.window(latency, BUDGET_MIN, Ppm::ONE), Adjustment::Keep);
        }
    }
}
