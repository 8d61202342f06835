//! Crash points for tests: the daemon may be killed between any two writes without losing a job.

/// Kills this process, as `kill -9` would, if `TANDEM_CRASH_AT` is the number of this crash point. Does
/// nothing in a release build.
pub fn point() {
    #[cfg(debug_assertions)]
    {
        use std::sync::LazyLock;
        use std::sync::atomic::{AtomicU64, Ordering};
        static AT: LazyLock<Option<u64>> =
            LazyLock::new(|| std::env::var("TANDEM_CRASH_AT").ok()?.parse().ok());
        static PASSED: AtomicU64 = AtomicU64::new(0);
        if *AT == Some(PASSED.fetch_add(1, Ordering::Relaxed)) {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
            std::thread::park();
        }
    }
}
