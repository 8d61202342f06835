//! Checks whether a cluster has what Tandem needs.

use super::DRIVER;
use super::client::{KubeClient, KubeError};
use serde_json::Value;

/// The result of one check.
#[derive(Clone, Debug)]
pub struct KubeCheck {
    /// What was checked.
    pub name: &'static str,
    /// Whether the check passed.
    pub is_fine: bool,
    /// What was found, and what to do.
    pub detail: String,
}

/// The first minor version of Kubernetes 1 in which several claims may share a device by default.
const MINOR: u32 = 36;

/// Checks the cluster; an error if it does not answer.
pub fn doctor() -> Result<Vec<KubeCheck>, KubeError> {
    let client = KubeClient::connect()?;
    let get = |path: &str| client.block_on(client.get(path));
    let mut checks = Vec::new();
    let mut add = |name, is_fine, detail: String| checks.push(KubeCheck { name, is_fine, detail });

    let version = get("/version")?;
    let text = version.get("gitVersion").and_then(Value::as_str).unwrap_or("unknown");
    let minor = version.get("minor").and_then(Value::as_str).unwrap_or_default();
    let minor: u32 = minor.trim_end_matches('+').parse().unwrap_or(0);
    let is_new = minor >= MINOR;
    let needs = if is_new { String::new() } else { format!("; 1.{MINOR} or later is needed") };
    add("version", is_new, format!("{text}{needs}"));

    let objects = [
        ("device class", "/apis/resource.k8s.io/v1/deviceclasses/tandem-gpu"),
        (
            "admission policy",
            "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/tandem",
        ),
        (
            "policy binding",
            "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings/tandem",
        ),
    ];
    for (name, path) in objects {
        match get(path) {
            Ok(_) => add(name, true, "present".to_owned()),
            Err(error) if error.code() == Some(404) => {
                add(name, false, "missing; run `tandem kube install`".to_owned());
            }
            Err(error) => return Err(error),
        }
    }

    let managed = get("/api/v1/namespaces?labelSelector=tandem.dev/managed%3Dtrue")?;
    let items =
        |value: &Value| value.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    let name = |item: &Value| {
        item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let names: Vec<String> = items(&managed).iter().map(name).collect();
    let found = if names.is_empty() {
        "none; run `tandem kube install --manage NAME`".to_owned()
    } else {
        names.join(", ")
    };
    add("managed namespaces", !names.is_empty(), found);

    let slices = items(&get("/apis/resource.k8s.io/v1/resourceslices")?);
    let ours =
        |slice: &&Value| slice.pointer("/spec/driver").and_then(Value::as_str) == Some(DRIVER);
    let devices = |slice: &Value| {
        slice.pointer("/spec/devices").and_then(Value::as_array).map_or(0, Vec::len)
    };
    let gpus: usize = slices.iter().filter(ours).map(devices).sum();
    let hint = if gpus == 0 { "; start `tandem node` on the nodes" } else { "" };
    add("GPUs", gpus > 0, format!("{gpus} of driver {DRIVER}{hint}"));
    Ok(checks)
}
