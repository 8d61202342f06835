//! A progress bar for work of more than two seconds, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(2);
const REFRESH: Duration = Duration::from_millis(100);

/// Shows the progress of `done` until it is dropped.
pub(crate) struct ProgressDisplay {
    pub(crate) done: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    painter: Option<JoinHandle<()>>,
}

impl ProgressDisplay {
    pub(crate) fn start(total: u64, quiet: bool) -> Self {
        let done = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let visible = !quiet && std::io::stderr().is_terminal();
        let painter = visible.then(|| {
            let (done, stop) = (done.clone(), stop.clone());
            std::thread::spawn(move || paint(total, &done, &stop))
        });
        Self { done, stop, painter }
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(painter) = self.painter.take() {
            painter.thread().unpark();
            // A panicked thread leaves nothing to clean up.
            let _ = painter.join();
        }
    }
}

fn paint(total: u64, done: &AtomicU64, stop: &AtomicBool) {
    let begun = Instant::now();
    let mut bar: Option<ProgressBar> = None;
    while !stop.load(Ordering::Relaxed) {
        std::thread::park_timeout(REFRESH);
        if bar.is_none() && begun.elapsed() >= PATIENCE {
            let style = ProgressStyle::with_template(
                "{wide_bar} {percent:>3} %  {pos}/{len} jobs  {eta} left",
            )
            .expect("the template is well formed");
            bar = Some(ProgressBar::new(total).with_style(style).with_elapsed(begun.elapsed()));
        }
        if let Some(bar) = &bar {
            bar.set_position(done.load(Ordering::Relaxed));
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
}
