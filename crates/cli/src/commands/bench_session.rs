//! What benchmarks with a daemon of their own share: submitting one job, and waiting for what it shall show.

use crate::failure::Failure;
use std::path::Path;
use std::time::{Duration, Instant};
use tandem_daemon::client::Client;
use tandem_daemon::request::JobRequest;

/// Time between two polls of the daemon or of an output file.
pub(super) const POLL: Duration = Duration::from_millis(50);
/// A wait that takes longer than this fails the run.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Submits a request that makes one job, and returns its id.
pub(super) fn submit(client: &mut Client, request: &JobRequest) -> Result<u64, Failure> {
    let ids = client.submit(request)?;
    ids.ids.first().copied().ok_or_else(|| Failure::failed("the daemon returned no job id"))
}

/// Polls until `is_so`; a failure that names `what` after [`TIMEOUT`].
pub(super) fn wait_until(
    what: &str,
    mut is_so: impl FnMut() -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let began = Instant::now();
    while !is_so()? {
        if began.elapsed() > TIMEOUT {
            let limit = TIMEOUT.as_secs();
            return Err(Failure::failed(format!("{what}: not done within {limit} s")));
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// The last step that a job has printed.
pub(super) fn last_step(output: &Path) -> f64 {
    let text = std::fs::read_to_string(output).unwrap_or_default();
    let step = |line: &str| line.strip_prefix("step ")?.split(' ').next()?.parse().ok();
    text.lines().rev().find_map(step).unwrap_or(0.0)
}
