//! Leader election: of several daemons only the holder of Tandem's Lease writes to the cluster.

use super::client::{KubeClient, KubeError};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A lease that was not renewed for this long can be taken over.
pub(super) const EXPIRES_S: i64 = 15;
/// Time between two renewals.
const RENEW: Duration = Duration::from_secs(5);

/// This daemon's claim to the lease.
pub(super) struct Lease {
    path: String,
    namespace: String,
    holder: String,
    renewed: Option<Instant>,
}

/// Path of the leases of a namespace.
pub(super) fn path(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

/// Seconds since the lease was last renewed.
pub(super) fn age_s(lease: &Value) -> i64 {
    let renewed = lease.pointer("/spec/renewTime").and_then(Value::as_str).unwrap_or_default();
    let renewed: Option<jiff::Timestamp> = renewed.parse().ok();
    renewed.map_or(i64::MAX, |at| jiff::Timestamp::now().as_second() - at.as_second())
}

impl Lease {
    pub(super) fn new(namespace: &str) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let holder =
            format!("{host}-{}-{}", std::process::id(), jiff::Timestamp::now().as_microsecond());
        Self { path: path(namespace), namespace: namespace.to_owned(), holder, renewed: None }
    }

    /// Takes or renews the lease. Returns `false` if another daemon holds it.
    pub(super) fn hold(&mut self, client: &KubeClient) -> Result<bool, KubeError> {
        if self.renewed.is_some_and(|at| at.elapsed() < RENEW) {
            return Ok(true);
        }
        let own = format!("{}/tandem", self.path);
        let present = match client.block_on(client.get(&own)) {
            Err(error) if error.code() == Some(404) => None,
            answer => Some(answer?),
        };
        let holder = |lease: &Value| {
            lease.pointer("/spec/holderIdentity").and_then(Value::as_str).map(str::to_owned)
        };
        if let Some(lease) = &present
            && holder(lease).is_some_and(|holder| holder != self.holder)
            && age_s(lease) < EXPIRES_S
        {
            self.renewed = None;
            return Ok(false);
        }
        let version = present.as_ref().and_then(|lease| lease.pointer("/metadata/resourceVersion"));
        let now = format!("{:.6}", jiff::Timestamp::now());
        let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "tandem", "namespace": self.namespace, "resourceVersion": version },
            "spec": { "holderIdentity": self.holder, "leaseDurationSeconds": EXPIRES_S, "renewTime": now } });
        let written = match present {
            Some(_) => client.block_on(client.put(&own, &lease)),
            None => client.block_on(client.post(&self.path, &lease)),
        };
        match written {
            Err(error) if error.code() == Some(409) => Ok(false),
            answer => {
                answer?;
                self.renewed = Some(Instant::now());
                Ok(true)
            }
        }
    }
}
