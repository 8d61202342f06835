//! Releases all gated pods to kube-scheduler. Needs no daemon.

use super::client::{KubeClient, KubeError, KubeRequest};
use super::lease;
use super::list::PodState;

/// The result of a release.
#[derive(Clone, Debug, Default)]
pub struct KubeRelease {
    /// Pods whose gate was removed, as NAMESPACE/NAME.
    pub released: Vec<String>,
    /// A daemon renewed its lease this many seconds ago, so nothing was released.
    pub holder_age_s: Option<i64>,
}

/// Removes allocations that no pod has reserved, then the gates of all pods. With `if_away_s` only if no daemon has
/// renewed the lease of `namespace` for that many seconds.
pub fn release_all(
    namespace: &str,
    if_away_s: Option<i64>,
    dry_run: bool,
) -> Result<KubeRelease, KubeError> {
    let client = KubeClient::connect()?;
    let mut report = KubeRelease::default();
    if let Some(limit_s) = if_away_s {
        let path = format!("{}/tandem", lease::path(namespace));
        match client.block_on(client.get(&path)) {
            Ok(lease) if lease::age_s(&lease) < limit_s => {
                report.holder_age_s = Some(lease::age_s(&lease));
                return Ok(report);
            }
            Err(error) if error.code() != Some(404) => return Err(error),
            _ => {}
        }
    }
    let list = client.list()?;
    let (mut allocations, mut gates) = (Vec::new(), Vec::new());
    for pod in list.pods.values() {
        let PodState::Gated(gate) = pod.state else { continue };
        let (namespace, reason) = (pod.namespace.clone(), "released as a plain pod".to_owned());
        report.released.push(format!("{namespace}/{}", pod.name));
        gates.push(KubeRequest::Ungate { namespace, pod: pod.name.clone(), gate, reason });
        let key = pod.claim.clone().map(|claim| (pod.namespace.clone(), claim));
        if let Some((key, claim)) = key.and_then(|key| list.claims.get_key_value(&key))
            && claim.allocated.is_some()
            && claim.reserved_for.is_empty()
        {
            let ((namespace, name), version) = (key.clone(), claim.version.clone());
            allocations.push(KubeRequest::Allocate {
                namespace,
                claim: name,
                version,
                allocation: None,
            });
        }
    }
    if !dry_run {
        client.send(&allocations)?;
        client.send(&gates)?;
    }
    Ok(report)
}
