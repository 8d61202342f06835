//! From single bars to the steps of a run: bars start again with each epoch, and are nested.

use super::Printed;
use super::line::{LineProgress, parse};
use super::text::lines;
use std::collections::BTreeMap;

/// Bars that are followed at a time.
const BARS_MAX: usize = 16;
/// Labels of bars that do not count as training.
const ASIDE: [&str; 8] = ["val", "eval", "test", "sanity", "predict", "map", "load", "token"];

/// Follows the output of one run.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgressTracker {
    bars: BTreeMap<BarKey, StepCount>,
    /// The bar that counts as the steps of the job.
    chosen: Option<BarKey>,
    /// The last epoch that was named, and how many there are.
    epoch: Option<(u64, Option<u64>)>,
    /// Epochs that were named, the steps of a script that prints nothing else.
    epochs: StepCount,
    lines: u64,
}

/// Bars with the same label and total continue each other.
type BarKey = (String, Option<u64>);

#[derive(Clone, Copy, Debug, Default)]
struct StepCount {
    /// As last shown.
    done: u64,
    /// Over all rounds.
    steps: u64,
    /// Times that it started again.
    rounds: u64,
    /// Epochs that were named before it was last shown.
    epochs: u64,
    /// It went faster than the rounds of the chosen bar, so it does not count them.
    is_no_epoch: bool,
    last_line: u64,
}

impl StepCount {
    fn advance(&mut self, done: u64) {
        if done < self.done {
            self.rounds += 1;
            self.steps = self.steps.saturating_add(done);
        } else {
            self.steps = self.steps.saturating_add(done - self.done);
        }
        self.done = done;
    }
}

fn is_aside(bar: &BarKey) -> bool {
    bar.0.split(' ').any(|word| ASIDE.iter().any(|aside| word.starts_with(aside)))
}

impl ProgressTracker {
    /// Takes in more output, which ends at the end of a line or of a bar. The progress if it is news; steps
    /// begin again at zero where another bar turns out to be the one that counts.
    pub(crate) fn read(&mut self, text: &str) -> Option<Printed> {
        let mut is_news = false;
        for line in lines(text) {
            if let Some(progress) = parse(&line) {
                is_news |= self.add(progress);
            }
        }
        is_news.then(|| self.progress()).flatten()
    }

    fn add(&mut self, line: LineProgress) -> bool {
        self.lines += 1;
        let is_next = line.epoch.is_some() && line.epoch != self.epoch;
        if let Some((at, _)) = line.epoch {
            self.epoch = line.epoch;
            self.epochs.advance(at);
        }
        let Some((done, total)) = line.steps else { return is_next && self.chosen.is_none() };
        if total.is_some_and(|total| done > total || total == 0) {
            return false;
        }
        let bar = (line.label, total);
        self.make_room(&bar);
        let count = self.bars.entry(bar.clone()).or_default();
        let epochs = self.epochs.steps;
        if total == Some(done) && count.done == done && count.epochs < epochs {
            // Shown only at its end, once in each epoch.
            count.done = 0;
            count.rounds += 1;
        }
        count.epochs = epochs;
        count.advance(done);
        count.last_line = self.lines;
        self.choose(&bar);
        self.note_epochs(&bar);
        true
    }

    /// Forgets the bar that was not seen for longest.
    fn make_room(&mut self, bar: &BarKey) {
        if self.bars.len() >= BARS_MAX && !self.bars.contains_key(bar) {
            let oldest = self.bars.iter().min_by_key(|(_, count)| count.last_line);
            if let Some(oldest) = oldest.map(|(bar, _)| bar.clone()) {
                self.bars.remove(&oldest);
            }
        }
    }

    /// The bar with the most steps counts; another one takes over once it has clearly more.
    fn choose(&mut self, seen: &BarKey) {
        let Some(now) = self.chosen.as_ref().and_then(|chosen| self.bars.get(chosen)) else {
            self.chosen = Some(seen.clone());
            return;
        };
        let aside = (self.chosen.as_ref().is_some_and(is_aside), is_aside(seen));
        let seen_steps = self.bars.get(seen).map_or(0, |count| count.steps);
        let takes_over = match aside {
            (true, false) => true,
            (false, true) => false,
            _ => seen_steps > now.steps.saturating_mul(2).saturating_add(2),
        };
        if takes_over {
            self.chosen = Some(seen.clone());
        }
    }

    /// A bar that is ahead of the rounds of the chosen one does not count epochs.
    fn note_epochs(&mut self, seen: &BarKey) {
        let rounds = self.chosen_count().map_or(0, |count| count.rounds);
        if self.chosen.as_ref() != Some(seen)
            && let Some(count) = self.bars.get_mut(seen)
        {
            count.is_no_epoch |= count.done > rounds + 1;
        }
    }

    fn chosen_count(&self) -> Option<&StepCount> {
        self.bars.get(self.chosen.as_ref()?)
    }

    fn progress(&self) -> Option<Printed> {
        let Some(chosen) = self.chosen.as_ref() else {
            let (_, total) = self.epoch?;
            let total = total.filter(|&total| total >= self.epochs.steps);
            return Some(Printed { steps: self.epochs.steps, total });
        };
        let count = self.bars.get(chosen)?;
        let total = chosen.1.and_then(|each| {
            let rounds_left = self.rounds_left(chosen, count)?;
            let left = (each - count.done).saturating_add(rounds_left.saturating_mul(each));
            Some(count.steps.saturating_add(left))
        });
        Some(Printed { steps: count.steps, total })
    }

    /// Rounds of the chosen bar after the present one; `None` if the output does not tell.
    fn rounds_left(&self, chosen: &BarKey, count: &StepCount) -> Option<u64> {
        let outer = self.bars.iter().find_map(|(bar, outer)| {
            let total = bar.1.filter(|&total| total > 1)?;
            let counts_epochs = bar != chosen && !outer.is_no_epoch && !is_aside(bar);
            counts_epochs.then_some(total)
        });
        match (outer, self.epoch) {
            (Some(all), _) => Some(all.saturating_sub(count.rounds + 1)),
            (None, Some((at, Some(of)))) => Some(of.saturating_sub(at)),
            (None, Some((_, None))) => None,
            (None, None) => (count.rounds == 0).then_some(0),
        }
    }
}
