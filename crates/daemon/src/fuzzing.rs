//! Reads any bytes as what users and their jobs send: an error or a result, never a panic, and never much work.

use crate::progress::ProgressTracker;
use crate::request::{CheckedRequest, JobRequest, Selector, parse_numbers};

/// The body of a submission.
pub fn request(bytes: &[u8]) {
    let Ok(request) = serde_json::from_slice::<JobRequest>(bytes) else { return };
    let Ok(checked) = CheckedRequest::new(request) else { return };
    let request = checked.request();
    let tasks = request.tasks().expect("was checked");
    for index in [0, tasks.count() / 2, tasks.count().saturating_sub(1)] {
        let _ = (tasks.number(index), request.chosen(index));
    }
    let _ = (request.gang(), request.share_ppm(), request.display_name(), request.tolerance());
}

/// Names of jobs in paths and queries, lists of tasks, signals and dependencies.
pub fn selector(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = Selector::parse(text);
    let _ = parse_numbers(text);
    let named = JobRequest {
        dependency: Some(text.to_owned()),
        array: Some(text.to_owned()),
        ..JobRequest::default()
    };
    let _ = (named.dependencies(), named.tasks());
}

/// Lines of the job protocol.
pub fn job_line(bytes: &[u8]) {
    for line in bytes.split(|&byte| byte == b'\n') {
        let _ = crate::job_sockets::parse(line);
    }
}

/// The output of a job, in which progress bars are looked for.
pub fn output(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut tracker = ProgressTracker::default();
    for part in text.split_inclusive('\n') {
        let _ = tracker.read(part);
    }
}
