//! Reads Slurm's list of jobs, `squeue --json`. The format differs between versions: a number may be an
//! object, a state may be a list. An absent field counts as not set.

use super::admin_comment::{AdminComment, held_request};
use super::syntax;
use serde_json::Value;

/// The state of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SlurmState {
    Pending,
    Running,
    Suspended,
    Ended(SlurmEnd),
    /// In transition, or unknown: such a job is left alone.
    Other,
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlurmEnd {
    Completed,
    Failed,
    Cancelled,
    TimedOut,
    OutOfMemory,
    /// Its node failed or did not boot.
    NodeFailed,
}

impl SlurmState {
    /// Whether a job in this state may hold devices.
    pub(super) fn has_devices(&self) -> bool {
        matches!(self, SlurmState::Running | SlurmState::Suspended | SlurmState::Other)
    }
}

/// One record of the list. The record of an array may stand for many pending tasks.
#[derive(Clone, Debug)]
pub(super) struct JobRecord {
    pub(super) id: u64,
    pub(super) array: Option<u64>,
    pub(super) task: Option<u32>,
    /// Pending tasks that this record stands for.
    pub(super) pending_tasks: Vec<u32>,
    /// How many tasks of the array may run at a time.
    pub(super) array_limit: Option<u32>,
    pub(super) state: SlurmState,
    pub(super) reason: String,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) user: String,
    pub(super) name: String,
    pub(super) comment: String,
    pub(super) partition: String,
    pub(super) admin_comment: Option<AdminComment>,
    /// Its request, if an earlier version of Tandem holds it.
    pub(super) held_request: Option<String>,
    /// Licences that it asks for.
    pub(super) licenses: String,
    pub(super) priority: u64,
    /// Held by its user or an operator.
    pub(super) is_held: bool,
    /// Submitted with `sbatch`; otherwise interactive (`srun`, `salloc`).
    pub(super) is_batch: bool,
    pub(super) requested_gres: String,
    pub(super) required_nodes: String,
    pub(super) excluded_nodes: String,
    pub(super) features: String,
    /// CPUs and memory in MiB that it needs in all, as far as they are known.
    pub(super) cpus: u64,
    pub(super) memory_mib: u64,
    pub(super) cpus_per_gpu: u64,
    pub(super) memory_mib_per_gpu: u64,
    pub(super) nodes: Vec<String>,
    /// Generic resources of each node.
    pub(super) allocated_gres: Vec<String>,
    pub(super) dependency: String,
    pub(super) eligible_s: u64,
    /// When Slurm last tried to start it.
    pub(super) evaluated_s: u64,
    pub(super) submit_s: u64,
    pub(super) start_s: u64,
    pub(super) end_s: u64,
    pub(super) limit_min: Option<u64>,
    pub(super) restarts: u64,
    /// Exit code and signal.
    pub(super) exit: (i32, i32),
}

/// The list of jobs, and the version of Slurm that printed it.
#[derive(Clone, Debug, Default)]
pub(super) struct JobList {
    pub(super) version: Option<(u32, u32, u32)>,
    pub(super) records: Vec<JobRecord>,
}

/// Reads the output of `squeue --json`.
pub(super) fn read(json: &[u8]) -> Result<JobList, String> {
    let document: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let jobs = document.get("jobs").and_then(Value::as_array).ok_or("there is no list of jobs")?;
    Ok(JobList { version: version(&document), records: jobs.iter().filter_map(record).collect() })
}

/// The Slurm version in a JSON document.
pub(super) fn version(document: &Value) -> Option<(u32, u32, u32)> {
    let meta = document.get("meta")?;
    let slurm = meta.get("Slurm").or_else(|| meta.get("slurm"))?;
    let part = |name: &str| -> Option<u32> {
        let part = slurm.get("version")?.get(name)?;
        part.as_str().map_or_else(|| part.as_u64()?.try_into().ok(), |text| text.parse().ok())
    };
    // `micro` and `minor` of 22.05.8 are 8 and 5.
    Some((part("major")?, part("minor")?, part("micro")?))
}

/// A number, plain or as an object that says whether it is set.
pub(super) fn number(value: Option<&Value>) -> Option<u64> {
    match value? {
        Value::Number(number) => number.as_u64(),
        Value::Object(object) => {
            let is_set = object.get("set").and_then(Value::as_bool).unwrap_or(true);
            let is_infinite = object.get("infinite").and_then(Value::as_bool).unwrap_or(false);
            (is_set && !is_infinite).then(|| object.get("number")?.as_u64()).flatten()
        }
        _ => None,
    }
}

fn record(job: &Value) -> Option<JobRecord> {
    let text_of = |name: &str| job.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let number_of = |name: &str| number(job.get(name));
    let id = number_of("job_id")?;
    let array = number_of("array_job_id").filter(|&array| array > 0);
    let pending_tasks = text_of("array_task_string");
    let priority = number_of("priority");
    let cpus = number_of("cpus").unwrap_or(0);
    let uid = |name: &str| number_of(name).and_then(|uid| u32::try_from(uid).ok());
    Some(JobRecord {
        id,
        array,
        task: array.and_then(|_| number_of("array_task_id")).and_then(|task| task.try_into().ok()),
        pending_tasks: syntax::tasks(&pending_tasks).unwrap_or_default(),
        array_limit: number_of("array_max_tasks")
            .filter(|&most| most > 0)
            .and_then(|most| most.try_into().ok()),
        state: state(job),
        reason: text_of("state_reason"),
        uid: uid("user_id")?,
        gid: uid("group_id")?,
        user: text_of("user_name"),
        name: text_of("name"),
        comment: comment(job),
        partition: text_of("partition"),
        admin_comment: AdminComment::parse(&admin_comment(job)),
        held_request: held_request(&admin_comment(job)),
        licenses: text_of("licenses"),
        priority: priority.unwrap_or(0),
        is_held: priority == Some(0),
        is_batch: job.get("batch_flag").and_then(Value::as_bool).unwrap_or(true),
        requested_gres: text_of("tres_per_node"),
        required_nodes: text_of("required_nodes"),
        excluded_nodes: text_of("excluded_nodes"),
        features: text_of("features"),
        cpus,
        memory_mib: number_of("memory_per_node")
            .or_else(|| number_of("memory_per_cpu").map(|each| each.saturating_mul(cpus)))
            .unwrap_or(0),
        cpus_per_gpu: per_gpu(&text_of("cpus_per_tres")),
        memory_mib_per_gpu: per_gpu(&text_of("memory_per_tres")),
        nodes: syntax::nodes(&text_of("nodes")).unwrap_or_default(),
        allocated_gres: texts(job.get("gres_detail")),
        dependency: text_of("dependency"),
        eligible_s: number_of("eligible_time").unwrap_or(0),
        evaluated_s: number_of("last_sched_evaluation").unwrap_or(0),
        submit_s: number_of("submit_time").unwrap_or(0),
        start_s: number_of("start_time").unwrap_or(0),
        end_s: number_of("end_time").unwrap_or(0),
        limit_min: number_of("time_limit"),
        restarts: number_of("restart_cnt").unwrap_or(0),
        exit: exit(job.get("exit_code")),
    })
}

/// The number of `gres:gpu:4`.
fn per_gpu(text: &str) -> u64 {
    syntax::gres(text).iter().find(|one| one.name == "gpu").map_or(0, |one| one.count)
}

/// Newer versions have one object with all comments.
fn comment(job: &Value) -> String {
    commented(job, "comment", "job")
}

fn admin_comment(job: &Value) -> String {
    commented(job, "admin_comment", "administrator")
}

fn commented(job: &Value, name: &str, within: &str) -> String {
    let alone = job.get(name).and_then(Value::as_str);
    let in_object = || job.get("comment")?.get(within)?.as_str();
    alone.or_else(in_object).unwrap_or_default().to_owned()
}

fn texts(value: Option<&Value>) -> Vec<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    match value {
        Some(Value::Array(texts)) => texts.iter().filter_map(text).collect(),
        Some(value) => text(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn state(job: &Value) -> SlurmState {
    let names = texts(job.get("job_state"));
    let is = |name: &str| names.iter().any(|have| have == name);
    if is("COMPLETING") || is("CONFIGURING") || is("STAGE_OUT") || is("SIGNALING") || is("STOPPED")
    {
        return SlurmState::Other;
    }
    let of = |name: &String| {
        Some(match name.as_str() {
            "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" => SlurmState::Pending,
            "RUNNING" => SlurmState::Running,
            "SUSPENDED" => SlurmState::Suspended,
            "COMPLETED" => SlurmState::Ended(SlurmEnd::Completed),
            "FAILED" => SlurmState::Ended(SlurmEnd::Failed),
            "CANCELLED" | "PREEMPTED" | "REVOKED" => SlurmState::Ended(SlurmEnd::Cancelled),
            "TIMEOUT" | "DEADLINE" => SlurmState::Ended(SlurmEnd::TimedOut),
            "OUT_OF_MEMORY" => SlurmState::Ended(SlurmEnd::OutOfMemory),
            "NODE_FAIL" | "BOOT_FAIL" | "LAUNCH_FAILED" => SlurmState::Ended(SlurmEnd::NodeFailed),
            _ => return None,
        })
    };
    names.iter().find_map(of).unwrap_or(SlurmState::Other)
}

/// A wait status, or an object of code and signal.
fn exit(value: Option<&Value>) -> (i32, i32) {
    let small = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
    match value {
        Some(Value::Object(object)) if object.contains_key("return_code") => {
            let code = number(object.get("return_code")).map_or(0, small);
            let signal = object
                .get("signal")
                .and_then(|signal| number(signal.get("id").or_else(|| signal.get("signal_id"))));
            (code, signal.map_or(0, small))
        }
        value => {
            let status = number(value).map_or(0, small);
            (status >> 8 & 0xff, status & 0x7f)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const OLDER: &[u8] = include_bytes!("fixtures/squeue-22.05.json");
    const NEWER: &[u8] = include_bytes!("fixtures/squeue-24.05.json");

    fn of(listing: &JobList, id: u64) -> &JobRecord {
        listing.records.iter().find(|record| record.id == id).unwrap()
    }

    #[test]
    fn reads_the_list_of_22_05() {
        let list = read(OLDER).unwrap();
        assert_eq!((list.version, list.records.len()), (Some((22, 5, 8)), 11));
        let first = of(&list, 1);
        assert_eq!(
            (&first.state, first.is_held, first.is_batch),
            (&SlurmState::Pending, false, true)
        );
        assert_eq!((first.licenses.as_str(), first.priority), ("tandem_stripped:1", 4_294_901_700));
        assert_eq!(
            (first.comment.as_str(), first.limit_min, first.array),
            ("hint", Some(10), None)
        );
        assert_eq!((first.uid, first.gid, first.user.as_str()), (1003, 1003, "tandem-fix"));
        assert_eq!(first.admin_comment.as_ref().unwrap().tag, "002c53132e5af64f");
        let array = of(&list, 2);
        assert_eq!((array.array, array.task, array.array_limit), (Some(2), None, Some(2)));
        assert_eq!(array.pending_tasks, [0, 2, 3, 4, 5]);
        let task = of(&list, 11);
        assert_eq!((task.array, task.task, &task.state), (Some(2), Some(1), &SlurmState::Running));
        assert_eq!(task.admin_comment, array.admin_comment);
        let shard = of(&list, 3);
        assert_eq!(
            (shard.requested_gres.as_str(), shard.required_nodes.as_str()),
            ("gres:shard:g0:33", "n0")
        );
        assert_eq!(
            (&shard.nodes[..], &shard.allocated_gres[..]),
            (&["n0".to_owned()][..], &["shard:33(IDX:0)".to_owned()][..])
        );
        assert_eq!((shard.is_held, shard.limit_min), (false, None));
        let gang = of(&list, 4);
        assert_eq!(gang.allocated_gres, ["gpu:g0:1(IDX:0),gpu:g1:1(IDX:1)"]);
        assert_eq!(gang.admin_comment.as_ref().unwrap().gpus_per_node, 2);
        assert_eq!(
            (&of(&list, 5).state, of(&list, 5).exit),
            (&SlurmState::Ended(SlurmEnd::Failed), (42, 0))
        );
        assert_eq!(
            (&of(&list, 6).state, of(&list, 6).exit),
            (&SlurmState::Ended(SlurmEnd::Cancelled), (0, 15))
        );
        assert_eq!(of(&list, 7).state, SlurmState::Suspended);
        assert_eq!(of(&list, 8).dependency, "afterok:1(unfulfilled)");
        assert_eq!(of(&list, 10).admin_comment, None);
    }

    #[test]
    fn job_names_cannot_forge_records() {
        let list = read(OLDER).unwrap();
        let hostile = of(&list, 9);
        assert_eq!(hostile.name, "a\nJobId=999 x JobState=COMPLETED");
        assert_eq!(
            (&hostile.state, hostile.licenses.as_str()),
            (&SlurmState::Pending, "tandem_stripped:1")
        );
        assert!(list.records.iter().all(|record| record.id != 999));
    }

    #[test]
    fn reads_the_format_of_newer_versions() {
        let list = read(NEWER).unwrap();
        assert_eq!((list.version, list.records.len()), (Some((24, 5, 4)), 9));
        let first = of(&list, 1);
        assert_eq!(
            (&first.state, first.licenses.as_str(), first.limit_min),
            (&SlurmState::Pending, "tandem_gate:1", Some(10))
        );
        assert_eq!((first.comment.as_str(), first.array, first.array_limit), ("hint", None, None));
        assert_eq!(first.admin_comment.as_ref().unwrap().tag, "0000000000000001");
        let array = of(&list, 2);
        assert_eq!((array.array, array.task, array.array_limit), (Some(2), None, Some(2)));
        assert_eq!(array.limit_min, None);
        // Task 0 is set to 0, unlike an id that is not set.
        let task = of(&list, 11);
        assert_eq!((task.array, task.task, &task.state), (Some(2), Some(0), &SlurmState::Running));
        assert_eq!(task.requested_gres, "gres/shard:g1:33");
        assert_eq!(of(&list, 5).exit, (42, 0));
        assert_eq!(
            (&of(&list, 6).state, of(&list, 6).exit),
            (&SlurmState::Ended(SlurmEnd::Cancelled), (0, 15))
        );
        // In transition from running to ended.
        assert_eq!(of(&list, 7).state, SlurmState::Other);
        let requeued = of(&list, 8);
        assert_eq!((&requeued.state, requeued.restarts), (&SlurmState::Pending, 1));
        assert_eq!(of(&list, 9).state, SlurmState::Suspended);
    }

    #[test]
    fn unknown_states_and_transitions_are_other() {
        let of = |value: Value| state(&json!({ "job_state": value }));
        assert_eq!(of(json!("COMPLETING")), SlurmState::Other);
        assert_eq!(of(json!(["FAILED", "COMPLETING"])), SlurmState::Other);
        assert_eq!(of(json!(["RUNNING", "CONFIGURING"])), SlurmState::Other);
        assert_eq!(of(json!("RESIZING")), SlurmState::Other);
        assert_eq!(of(json!("NEVER_HEARD_OF")), SlurmState::Other);
        assert_eq!(of(json!([])), SlurmState::Other);
        assert_eq!(of(json!(7)), SlurmState::Other);
        assert_eq!(state(&json!({})), SlurmState::Other);
        assert_eq!(of(json!("REQUEUE_HOLD")), SlurmState::Pending);
        assert_eq!(of(json!("DEADLINE")), SlurmState::Ended(SlurmEnd::TimedOut));
        assert_eq!(of(json!("NODE_FAIL")), SlurmState::Ended(SlurmEnd::NodeFailed));
        assert_eq!(of(json!("OUT_OF_MEMORY")), SlurmState::Ended(SlurmEnd::OutOfMemory));
    }

    #[test]
    fn rejects_output_without_a_list() {
        for text in ["", "{}", "[]", "{\"jobs\": {}}", "slurm_load_jobs error"] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        let odd = br#"{"jobs": [{}, 3, null, {"job_id": 5}, {"job_id": -1, "user_id": 1, "group_id": 1}]}"#;
        assert!(read(odd).unwrap().records.is_empty());
        assert_eq!(read(odd).unwrap().version, None);
    }

    #[test]
    fn an_absent_priority_is_not_a_hold() {
        let job = json!({ "job_id": 1, "user_id": 1, "group_id": 1, "job_state": "PENDING" });
        assert!(!record(&job).unwrap().is_held);
    }

    /// Any JSON value, often with words that Slurm uses.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            "(n\\[[0-9,-]{0,9}\\]|[0-9,:%-]{0,9}|tandem2:[0-9a-f]{16}:[0-9]:[0-9]:share|RUNNING)"
                .prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 6, |inner| {
            let key = "(set|infinite|number|return_code|signal|id|job|administrator|x)";
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(key, inner, 0..5)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    const FIELDS: &str = "(array_job_id|array_task_id|array_task_string|array_max_tasks|job_state|\
        state_reason|priority|tres_per_node|required_nodes|nodes|gres_detail|exit_code|dependency|name|\
        admin_comment|comment|licenses|cpus|restart_cnt|eligible_time|start_time|end_time|time_limit|batch_flag)";

    proptest! {
        #[test]
        fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }

        #[test]
        fn any_job_is_read_or_skipped(
            fields in prop::collection::btree_map(FIELDS, value(), 0..12),
            meta in value(),
        ) {
            let mut job = serde_json::Map::from_iter(fields);
            for name in ["job_id", "user_id", "group_id"] {
                job.insert(name.to_owned(), json!(7));
            }
            let document = json!({ "meta": { "Slurm": { "version": meta } }, "jobs": [job] });
            let list = read(document.to_string().as_bytes()).unwrap();
            prop_assert_eq!(list.records.len(), 1);
        }

        #[test]
        fn any_json_is_read_or_refused(value in value()) {
            let _ = read(value.to_string().as_bytes());
            let _ = read(json!({ "jobs": [value.clone()], "meta": value }).to_string().as_bytes());
        }
    }
}
