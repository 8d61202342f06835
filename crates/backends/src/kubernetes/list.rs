//! Parses the lists of pods, claims, nodes and resource slices.

use super::{DRIVER, GATE};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// One list of the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct KubeList {
    /// Managed pods, by the id that [`crate::ClusterJob`] calls `external`.
    pub(super) pods: BTreeMap<String, Pod>,
    /// Claims, by namespace and name.
    pub(super) claims: BTreeMap<(String, String), ResourceClaim>,
    /// Why each node accepts no pods; `None` if it does.
    pub(super) nodes: BTreeMap<String, Option<String>>,
    /// In order of node and device.
    pub(super) gpus: Vec<PublishedGpu>,
}

/// The state of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    /// It has our gate, at this index of its gates.
    Gated(usize),
    /// Ungated, but not running yet. With the message of kube-scheduler if it found no node.
    Waiting(Option<String>),
    Running,
    /// It ended: exit code, whether it ran out of memory, and when, in microseconds since 1970.
    Ended {
        code: i32,
        oom: bool,
        at_unix_us: u64,
    },
}

/// A managed pod.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) state: PodState,
    pub(super) gpus: u32,
    /// The claim for its GPUs; `None` until Kubernetes has created it from the template.
    pub(super) claim: Option<String>,
    /// The name of its owner, else its own: equal for all pods of a Job.
    pub(super) title: String,
    pub(super) hints: String,
    pub(super) reason: String,
    pub(super) created_unix_us: u64,
}

/// A claim.
#[derive(Clone, Debug, Default)]
pub(super) struct ResourceClaim {
    pub(super) version: String,
    /// The name of its first device request.
    pub(super) request: String,
    /// Pool and device of each allocated GPU; `None` if nothing is allocated.
    pub(super) allocated: Option<BTreeSet<(String, String)>>,
    /// Pods for which it is reserved.
    pub(super) reserved_for: Vec<String>,
}

/// A GPU of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PublishedGpu {
    pub(super) node: String,
    pub(super) pool: String,
    pub(super) device: String,
    pub(super) memory_bytes: u64,
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn items(value: &Value) -> Result<&Vec<Value>, String> {
    value.get("items").and_then(Value::as_array).ok_or_else(|| "a list has no items".to_owned())
}

fn array<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Reads the four lists.
pub(super) fn read(
    pods: &Value,
    claims: &Value,
    nodes: &Value,
    slices: &Value,
) -> Result<KubeList, String> {
    let mut list = KubeList::default();
    for pod in items(pods)?.iter().map(pod) {
        list.pods.insert(format!("{}/{}#{}", pod.namespace, pod.name, pod.uid), pod);
    }
    for one in items(claims)? {
        let key =
            (text(one, "/metadata/namespace").to_owned(), text(one, "/metadata/name").to_owned());
        list.claims.insert(key, claim(one));
    }
    for node in items(nodes)? {
        list.nodes.insert(text(node, "/metadata/name").to_owned(), unavailable(node));
    }
    let newest = newest_generations(items(slices)?);
    let current = |slice: &&Value| {
        newest.get(text(slice, "/spec/pool/name")).copied()
            == slice.pointer("/spec/pool/generation").and_then(Value::as_i64)
    };
    let ours = items(slices)?.iter().filter(|slice| text(slice, "/spec/driver") == DRIVER);
    for slice in ours.filter(current) {
        list.gpus.extend(array(slice, "/spec/devices").map(|device| gpu(slice, device)));
    }
    list.gpus.sort();
    Ok(list)
}

/// Slices of an earlier generation of a pool are outdated.
fn newest_generations(slices: &[Value]) -> BTreeMap<&str, i64> {
    let mut newest = BTreeMap::new();
    for slice in slices.iter().filter(|slice| text(slice, "/spec/driver") == DRIVER) {
        let generation =
            slice.pointer("/spec/pool/generation").and_then(Value::as_i64).unwrap_or(0);
        let present = newest.entry(text(slice, "/spec/pool/name")).or_insert(generation);
        *present = generation.max(*present);
    }
    newest
}

fn gpu(slice: &Value, device: &Value) -> PublishedGpu {
    PublishedGpu {
        node: text(slice, "/spec/nodeName").to_owned(),
        pool: text(slice, "/spec/pool/name").to_owned(),
        device: text(device, "/name").to_owned(),
        memory_bytes: quantity(text(device, "/capacity/memory/value")).unwrap_or(0),
    }
}

/// A quantity of bytes, such as `16Gi` or `1000M`.
pub(super) fn quantity(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn claim(claim: &Value) -> ResourceClaim {
    let of =
        |result: &Value| (text(result, "/pool").to_owned(), text(result, "/device").to_owned());
    let is_allocated = claim.pointer("/status/allocation").is_some_and(|value| !value.is_null());
    let devices = array(claim, "/status/allocation/devices/results")
        .filter(|result| text(result, "/driver") == DRIVER);
    ResourceClaim {
        version: text(claim, "/metadata/resourceVersion").to_owned(),
        request: text(claim, "/spec/devices/requests/0/name").to_owned(),
        allocated: is_allocated.then(|| devices.map(of).collect()),
        reserved_for: array(claim, "/status/reservedFor")
            .map(|of| text(of, "/uid").to_owned())
            .collect(),
    }
}

fn unavailable(node: &Value) -> Option<String> {
    if node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true) {
        return Some("cordoned".to_owned());
    }
    let ready = array(node, "/status/conditions").find(|one| text(one, "/type") == "Ready");
    match ready {
        Some(ready) if text(ready, "/status") == "True" => None,
        Some(ready) => Some(format!("not ready: {}", text(ready, "/reason"))),
        None => Some("not ready".to_owned()),
    }
}

fn pod(pod: &Value) -> Pod {
    let name = text(pod, "/metadata/name");
    let annotation = |of: &str| {
        let all = pod.pointer("/metadata/annotations");
        all.and_then(|all| all.get(format!("tandem.dev/{of}"))).and_then(Value::as_str)
    };
    let label = pod.pointer("/metadata/labels").and_then(|all| all.get("tandem.dev/class"));
    let owner = text(pod, "/metadata/ownerReferences/0/name");
    let claim = array(pod, "/status/resourceClaimStatuses")
        .find(|status| text(status, "/name") == "tandem-gpu")
        .map(|status| text(status, "/resourceClaimName").to_owned());
    Pod {
        namespace: text(pod, "/metadata/namespace").to_owned(),
        name: name.to_owned(),
        uid: text(pod, "/metadata/uid").to_owned(),
        state: state(pod),
        gpus: annotation("gpus").and_then(|gpus| gpus.parse().ok()).unwrap_or(1),
        claim: claim.filter(|name| !name.is_empty()),
        title: if owner.is_empty() { name } else { owner }.to_owned(),
        hints: hints(label.and_then(Value::as_str), annotation),
        reason: annotation("reason").unwrap_or_default().to_owned(),
        created_unix_us: time_us(text(pod, "/metadata/creationTimestamp")),
    }
}

/// The hints in labels and annotations, in the syntax of the comment of a Slurm job, which the daemon parses.
fn hints<'a>(class: Option<&str>, annotation: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut hints: Vec<String> = class.map(|class| format!("class={class}")).into_iter().collect();
    for (name, hint) in [("memory", "mem"), ("estimate", "estimate"), ("max-slowdown", "slowdown")]
    {
        hints.extend(annotation(name).map(|value| format!("{hint}={value}")));
    }
    hints.extend(
        annotation("exclusive").filter(|value| *value == "true").map(|_| "exclusive".to_owned()),
    );
    if hints.is_empty() { String::new() } else { format!("tandem:{}", hints.join(",")) }
}

fn state(pod: &Value) -> PodState {
    let gate = array(pod, "/spec/schedulingGates").position(|gate| text(gate, "/name") == GATE);
    if let Some(gate) = gate {
        return PodState::Gated(gate);
    }
    match text(pod, "/status/phase") {
        "Running" => PodState::Running,
        phase @ ("Succeeded" | "Failed") => ended(pod, phase == "Failed"),
        _ => {
            let scheduled =
                array(pod, "/status/conditions").find(|one| text(one, "/type") == "PodScheduled");
            let refused = scheduled.filter(|one| text(one, "/reason") == "Unschedulable");
            PodState::Waiting(refused.map(|one| text(one, "/message").to_owned()))
        }
    }
}

fn ended(pod: &Value, has_failed: bool) -> PodState {
    let (mut code, mut oom, mut at_unix_us) = (0, false, 0);
    for status in array(pod, "/status/containerStatuses") {
        let Some(end) = status.pointer("/state/terminated") else { continue };
        let of = end.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
        if code == 0 {
            code = i32::try_from(of).unwrap_or(1);
        }
        oom |= text(end, "/reason") == "OOMKilled";
        at_unix_us = at_unix_us.max(time_us(text(end, "/finishedAt")));
    }
    // A pod that failed before its program started has no exit code.
    PodState::Ended { code: if has_failed && code == 0 { 1 } else { code }, oom, at_unix_us }
}

/// A time such as `2026-01-02T03:04:05Z` in microseconds since 1970; 0 if it is none.
fn time_us(text: &str) -> u64 {
    let time: Option<jiff::Timestamp> = text.parse().ok();
    time.and_then(|time| u64::try_from(time.as_microsecond()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quantities_have_units() {
        assert_eq!(quantity("16Gi"), Some(16 << 30));
        assert_eq!((quantity("5"), quantity("2M")), (Some(5), Some(2_000_000)));
        assert_eq!((quantity("x"), quantity("1e3"), quantity("99999999999Ti")), (None, None, None));
    }

    #[test]
    fn a_failed_pod_never_looks_successful() {
        let of = |status: Value| state(&json!({ "status": status }));
        let ended = of(json!({ "phase": "Failed", "reason": "UnexpectedAdmissionError" }));
        assert_eq!(ended, PodState::Ended { code: 1, oom: false, at_unix_us: 0 });
        let terminated = json!({ "state": { "terminated": { "exitCode": 137, "reason": "OOMKilled",
            "finishedAt": "1970-01-01T00:00:02Z" } } });
        let ended = of(json!({ "phase": "Failed", "containerStatuses": [terminated] }));
        assert_eq!(ended, PodState::Ended { code: 137, oom: true, at_unix_us: 2_000_000 });
    }

    #[test]
    fn slices_of_an_earlier_generation_are_ignored() {
        let slice = |generation: i64, device: &str| {
            json!({ "spec": { "driver": DRIVER, "nodeName": "n0", "pool": { "name": "n0", "generation": generation },
                "devices": [{ "name": device, "capacity": { "memory": { "value": "1Gi" } } }] } })
        };
        let none = json!({ "items": [] });
        let slices = json!({ "items": [slice(1, "old"), slice(2, "gpu0")] });
        let list = read(&none, &none, &none, &slices).unwrap();
        assert_eq!(list.gpus.len(), 1);
        assert_eq!((list.gpus[0].device.as_str(), list.gpus[0].memory_bytes), ("gpu0", 1 << 30));
    }
}
