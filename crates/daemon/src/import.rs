//! Imports the jobs of a cluster with its own queue. Users put options that the cluster does not know into
//! the comment of a job: `tandem:mem=8G,class=resnet50,estimate=2h,slowdown=1.3,exclusive`.

use crate::request::{JobRequest, NAME_MAX};
use crate::scheduler::Submission;
use tandem_backends::ClusterJob;

/// The prefix of hints in a comment.
const HINT_PREFIX: &str = "tandem:";

/// Converts a cluster job to a submission; also returns the hints that are unknown or invalid.
pub(crate) fn submission(
    first: u64,
    job: &ClusterJob,
    memory_bytes: Option<u64>,
) -> (Submission, Vec<String>) {
    let name: String = job.name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let name = truncate_name(if name.is_empty() { "unnamed".to_owned() } else { name });
    let mut request = JobRequest {
        class: Some(truncate_name(format!("{}/{name}", job.user))),
        name: Some(name),
        gpus: f64::from(job.gpus.max(1)),
        time_limit_s: job.limit_s,
        gpu_memory_bytes: memory_bytes,
        exclusive: job.exclusive,
        ..JobRequest::default()
    };
    let unknown = take_hints(&mut request, &job.hints);
    let submission = Submission {
        first,
        uid: job.owner.uid,
        gid: job.owner.gid,
        user: job.user.clone(),
        request,
        over: Vec::new(),
        depends: Vec::new(),
        external: Some(job.external.clone()),
        submit_unix_us: Some(job.submit_unix_us),
        waits: job.waits.clone(),
    };
    (submission, unknown)
}

fn take_hints(request: &mut JobRequest, comment: &str) -> Vec<String> {
    let hints = comment.split_whitespace().find_map(|word| word.strip_prefix(HINT_PREFIX));
    let mut unknown = Vec::new();
    for hint in hints.unwrap_or_default().split(',').filter(|hint| !hint.is_empty()) {
        let (name, value) = hint.split_once('=').unwrap_or((hint, ""));
        let valid = match name {
            "exclusive" if value.is_empty() => {
                request.exclusive = true;
                true
            }
            "class" if is_name(value) => {
                request.class = Some(value.to_owned());
                true
            }
            "mem" => set_if_some(&mut request.gpu_memory_bytes, bytes(value)),
            "estimate" => set_if_some(&mut request.estimate_s, seconds(value)),
            "slowdown" => set_if_some(
                &mut request.max_slowdown,
                value.parse().ok().filter(|slowdown: &f64| (1.0..=100.0).contains(slowdown)),
            ),
            _ => false,
        };
        if !valid {
            // Escaped for the log.
            unknown.push(hint.escape_debug().to_string());
        }
    }
    unknown
}

/// Whether a text is a valid name; control characters could disturb a terminal.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_MAX && !text.chars().any(char::is_control)
}

/// Truncates a text to the length of a name.
fn truncate_name(mut text: String) -> String {
    while text.len() > NAME_MAX {
        text.pop();
    }
    text
}

fn set_if_some<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    let is_some = value.is_some();
    if is_some {
        *place = value;
    }
    is_some
}

/// `8G`, `512M`.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return None,
    };
    digits
        .parse::<u64>()
        .ok()
        .filter(|number| (1..1 << 30).contains(number))
        .map(|number| number << shift)
}

/// `90`, `30m`, `2h`, `1d`.
fn seconds(text: &str) -> Option<f64> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    digits.parse::<f64>().ok().map(|number| number * unit).filter(|s| (1e-3..=3e9).contains(s))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_backends::Owner;

    fn job(hints: &str) -> ClusterJob {
        ClusterJob {
            external: "5_1#8a6f865bc487f58b".to_owned(),
            owner: Owner { uid: 1, gid: 2 },
            user: "ann".to_owned(),
            name: "a\nb".to_owned(),
            gpus: 1,
            limit_s: Some(60.0),
            exclusive: false,
            hints: hints.to_owned(),
            submit_unix_us: 7,
            waits: None,
        }
    }

    #[test]
    fn hints_in_comments_set_options() {
        let hints =
            "my run tandem:mem=8G,class=resnet,estimate=2h,slowdown=1.5,exclusive,colour=red";
        let (submission, unknown) = submission(3, &job(hints), None);
        let request = &submission.request;
        assert_eq!(request.gpu_memory_bytes, Some(8 << 30));
        assert_eq!((request.class.as_deref(), request.estimate_s), (Some("resnet"), Some(7200.0)));
        assert_eq!((request.max_slowdown, request.exclusive), (Some(1.5), true));
        assert_eq!(unknown, ["colour=red"]);
        assert!(request.check_options().is_ok(), "{:?}", request.check_options());
    }

    #[test]
    fn any_cluster_name_gives_a_valid_request() {
        let long = "ü".repeat(300);
        let hints = format!("tandem:class={long},class=a\u{1b}[2J");
        for name in ["", "a\u{1b}[2J\0", &long] {
            let job = ClusterJob { name: name.to_owned(), gpus: 0, ..job(&hints) };
            let (submission, unknown) = submission(3, &job, None);
            assert_eq!(submission.request.check_options(), Ok(()), "{name:?}");
            assert_eq!(unknown.len(), 2, "{unknown:?}");
            assert!(submission.request.class.is_some_and(|class| class.starts_with("ann/")));
        }
    }

    #[test]
    fn invalid_hints_change_nothing() {
        for hints in
            ["", "tandem", "tandem:", "tandem:mem=,estimate=ü,slowdown=NaN,mem=99999999999G"]
        {
            let (submission, _) = submission(3, &job(hints), Some(1 << 30));
            assert_eq!(submission.request.gpu_memory_bytes, Some(1 << 30), "{hints}");
            assert_eq!(submission.request.estimate_s, None);
            assert_eq!(submission.request.class.as_deref(), Some("ann/a b"));
        }
    }
}
