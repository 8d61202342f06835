//! Reconciles the cluster with the desired state of its pods. Pure: a list goes in, requests and events come
//! out. Requests follow from the latest list alone: a lost request is made again, because its effect is missing
//! from the next list.

use super::client::KubeRequest;
use super::list::{KubeList, Pod, PodState, PublishedGpu, ResourceClaim};
use super::{DRIVER, protocol};
use crate::cluster::ClusterJob;
use crate::cluster::control_loop::HoldsJobs;
use crate::cluster::desired::{DesiredRun, DesiredState, ManagedJob, ManagedJobs, ReportedState};
use crate::event::{BackendEvent, Exit, ExitCause, ExitStatus, RunHandle, UsageSample};
use crate::op::{OpId, Owner, RunId};
use crate::providers::{DeviceSample, Enforcement};
use crate::recovery::{KnownJob, RecoveredRun};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Time between two eviction requests for a pod.
const EVICT_AGAIN_S: u64 = 5;
/// An ungated pod that kube-scheduler cannot bind for this long loses its GPU.
const REFUSED_S: u64 = 30;

const GONE: &str = "its pod no longer exists";
const PLACED: &str = "placed by Tandem";

/// The result of a reconciliation.
#[derive(Debug, Default)]
pub(super) struct KubeReconciled {
    pub(super) requests: Vec<KubeRequest>,
    pub(super) events: Vec<BackendEvent>,
}

/// The managed pods, and the GPUs of the cluster.
pub(super) struct KubeReconciler {
    gpus: Vec<PublishedGpu>,
    tenants_max: u64,
    jobs: ManagedJobs,
    /// Why each node accepts no pods, as last reported.
    unavailable: BTreeMap<String, Option<String>>,
    /// When kube-scheduler first reported that it cannot bind an ungated pod.
    refused_since_s: BTreeMap<String, u64>,
}

impl HoldsJobs for KubeReconciler {
    fn jobs(&mut self) -> &mut ManagedJobs {
        &mut self.jobs
    }
}

impl KubeReconciler {
    pub(super) fn new(list: &KubeList, tenants_max: u64) -> Self {
        Self {
            gpus: list.gpus.clone(),
            tenants_max: tenants_max.max(1),
            jobs: ManagedJobs::default(),
            unavailable: list.nodes.clone(),
            refused_since_s: BTreeMap::new(),
        }
    }

    pub(super) fn gpus(&self) -> &[PublishedGpu] {
        &self.gpus
    }

    /// Devices that accept no pods, with the reason.
    pub(super) fn unavailable(&self) -> Vec<(u32, String)> {
        let reason = |gpu: &PublishedGpu| self.unavailable.get(&gpu.node).cloned().flatten();
        (0..).zip(&self.gpus).filter_map(|(index, gpu)| Some((index, reason(gpu)?))).collect()
    }

    /// The state of pods that an earlier daemon knew.
    pub(super) fn recover(
        &mut self,
        known: &[KnownJob],
        list: &KubeList,
    ) -> Vec<(RunId, RecoveredRun)> {
        let mut recovered = Vec::new();
        for job in known {
            let Some(key) = &job.external else { continue };
            if !job.has_run {
                self.jobs.insert(key.clone(), ManagedJob::pending(None));
                continue;
            }
            let found = match list.pods.get(key) {
                None => RecoveredRun::Exited(cancelled()),
                Some(Pod { state: PodState::Ended { code, oom, at_unix_us }, .. }) => {
                    RecoveredRun::Exited(exit(*code, *oom, *at_unix_us))
                }
                Some(pod) => self.recover_run(job, key, pod),
            };
            recovered.push((job.run, found));
        }
        recovered
    }

    fn recover_run(&mut self, job: &KnownJob, key: &str, pod: &Pod) -> RecoveredRun {
        let is_running = pod.state == PodState::Running;
        let reported = if is_running { ReportedState::Running } else { ReportedState::NotStarted };
        let desired =
            DesiredRun { reported, ..DesiredRun::new(job.run, OpId(0), job.devices.clone()) };
        let managed = ManagedJob { run: Some(desired), ..ManagedJob::pending(None) };
        self.jobs.insert(key.to_owned(), managed);
        if !is_running {
            return RecoveredRun::Starting;
        }
        let handle = RunHandle::ClusterJob(protocol::pod_number(&pod.uid));
        RecoveredRun::Running { handle, paused: false, enforcement: Enforcement::None }
    }

    /// Compares a list with the desired state.
    pub(super) fn reconcile(&mut self, list: &KubeList, now_s: u64) -> KubeReconciled {
        let mut result = KubeReconciled::default();
        self.update_nodes(list, &mut result);
        for (key, mut job) in std::mem::take(&mut self.jobs.jobs) {
            match list.pods.get(&key) {
                Some(pod) => self.reconcile_pod(&key, &mut job, pod, list, now_s, &mut result),
                // The API server lists every pod: one that is missing was deleted.
                None if job.is_refused && job.run.is_none() => continue,
                None => gone(&key, &mut job, &mut result),
            }
            self.jobs.jobs.insert(key, job);
        }
        self.refused_since_s.retain(|key, _| list.pods.contains_key(key));
        self.import(list, &mut result);
        result.events.push(BackendEvent::Sampled(self.foreign(list)));
        result
    }

    fn reconcile_pod(
        &mut self,
        key: &str,
        job: &mut ManagedJob,
        pod: &Pod,
        list: &KubeList,
        now_s: u64,
        result: &mut KubeReconciled,
    ) {
        if job.is_done {
            return;
        }
        let Some(desired) = &mut job.run else {
            match (&pod.state, &mut job.withdraw_requested_s) {
                (PodState::Gated(_), None) => {}
                (PodState::Gated(_), Some(requested_s)) => evict(requested_s, pod, now_s, result),
                _ => {
                    job.is_done = true;
                    let (external, reason) = (key.to_owned(), "its gate was removed".to_owned());
                    result.events.push(BackendEvent::Withdrawn { external, reason });
                }
            }
            return;
        };
        let (op, run) = (desired.op, desired.run);
        if let PodState::Ended { code, oom, at_unix_us } = pod.state {
            job.is_done = true;
            result.events.push(BackendEvent::Exited { run, exit: exit(code, oom, at_unix_us) });
            return;
        }
        if let DesiredState::Ended { requested_s } = &mut desired.state {
            evict(requested_s, pod, now_s, result);
            return;
        }
        match &pod.state {
            PodState::Running if desired.reported == ReportedState::NotStarted => {
                desired.reported = ReportedState::Running;
                let handle = RunHandle::ClusterJob(protocol::pod_number(&pod.uid));
                let enforcement = Enforcement::None;
                result.events.push(BackendEvent::Started { op, run, handle, enforcement });
            }
            PodState::Gated(gate) => {
                if let Err((reason, transient)) = self.place(desired, pod, *gate, list, result) {
                    (job.is_done, job.is_refused) = (true, true);
                    explain(pod, &reason, result);
                    result.events.push(BackendEvent::NotStarted { op, run, reason, transient });
                }
            }
            PodState::Waiting(Some(refusal)) => {
                if let Some(reason) = self.give_back(key, pod, refusal, list, now_s, result) {
                    (job.is_done, job.is_refused) = (true, true);
                    result.events.push(BackendEvent::NotStarted {
                        op,
                        run,
                        reason,
                        transient: false,
                    });
                }
            }
            _ => {}
        }
    }

    /// The next step from gated to scheduled: write the allocation; when a list shows it, remove the gate. An
    /// error is a reason, and whether it may succeed on other GPUs.
    fn place(
        &self,
        desired: &DesiredRun,
        pod: &Pod,
        gate: usize,
        list: &KubeList,
        result: &mut KubeReconciled,
    ) -> Result<(), (String, bool)> {
        let gpus: Option<Vec<&PublishedGpu>> =
            desired.devices.iter().map(|&device| self.gpus.get(device as usize)).collect();
        let gpus = gpus.filter(|gpus| !gpus.is_empty());
        let gpus = gpus.ok_or_else(|| ("the cluster no longer has its GPUs".to_owned(), true))?;
        if gpus.iter().any(|gpu| gpu.node != gpus[0].node) {
            return Err(("its GPUs are on several nodes; a pod runs on one".to_owned(), true));
        }
        // Kubernetes creates the claim from its template soon after the pod.
        let Some(name) = &pod.claim else { return Ok(()) };
        let Some(claim) = list.claims.get(&(pod.namespace.clone(), name.clone())) else {
            return Ok(());
        };
        let wanted: BTreeSet<(String, String)> =
            gpus.iter().map(|gpu| (gpu.pool.clone(), gpu.device.clone())).collect();
        let request = match &claim.allocated {
            Some(present) if *present == wanted => KubeRequest::Ungate {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                gate,
                reason: format!("{PLACED} on {}", names(&gpus)),
            },
            // An allocation cannot be changed in place: remove it, then write the new one.
            present => {
                let allocation =
                    present.is_none().then(|| self.allocation(desired, &gpus, claim, &pod.uid));
                let (namespace, claim_name) = (pod.namespace.clone(), name.clone());
                let version = claim.version.clone();
                KubeRequest::Allocate { namespace, claim: claim_name, version, allocation }
            }
        };
        result.requests.push(request);
        Ok(())
    }

    fn allocation(
        &self,
        desired: &DesiredRun,
        gpus: &[&PublishedGpu],
        claim: &ResourceClaim,
        uid: &str,
    ) -> Value {
        let tenants = if desired.is_exclusive { 1 } else { self.tenants_max };
        let device = |(index, gpu): (usize, &&PublishedGpu)| {
            json!({ "request": claim.request, "driver": DRIVER, "pool": gpu.pool, "device": gpu.device,
                "shareID": protocol::share_id(uid, index),
                "consumedCapacity": { "memory": (gpu.memory_bytes / tenants).to_string() } })
        };
        let results: Vec<Value> = gpus.iter().enumerate().map(device).collect();
        let terms = json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [gpus[0].node] }] }]);
        // Without a timestamp kube-scheduler never manages to reserve the claim.
        json!({ "devices": { "results": results }, "nodeSelector": { "nodeSelectorTerms": terms },
            "allocationTimestamp": format!("{:.0}", jiff::Timestamp::now()) })
    }

    /// Takes the GPU from a pod that kube-scheduler has not bound for [`REFUSED_S`]. Returns the reason when it is
    /// done.
    fn give_back(
        &mut self,
        key: &str,
        pod: &Pod,
        refusal: &str,
        list: &KubeList,
        now_s: u64,
        result: &mut KubeReconciled,
    ) -> Option<String> {
        let since_s = *self.refused_since_s.entry(key.to_owned()).or_insert(now_s);
        if now_s < since_s + REFUSED_S {
            return None;
        }
        let name = pod.claim.as_ref()?;
        let claim = list.claims.get(&(pod.namespace.clone(), name.clone()))?;
        if !claim.reserved_for.is_empty() {
            return None;
        }
        if claim.allocated.is_some() {
            let (namespace, version) = (pod.namespace.clone(), claim.version.clone());
            let claim = name.clone();
            result.requests.push(KubeRequest::Allocate {
                namespace,
                claim,
                version,
                allocation: None,
            });
            return None;
        }
        let reason =
            format!("kube-scheduler cannot bind it: {refusal}; Tandem no longer manages it");
        explain(pod, &reason, result);
        Some(reason)
    }

    /// Imports gated pods that are not managed yet.
    fn import(&mut self, list: &KubeList, result: &mut KubeReconciled) {
        let is_new = |(key, pod): &(&String, &Pod)| {
            matches!(pod.state, PodState::Gated(_)) && !self.jobs.jobs.contains_key(*key)
        };
        let mut pending: Vec<(&String, &Pod)> = list.pods.iter().filter(is_new).collect();
        pending.sort_by_key(|(key, pod)| (pod.created_unix_us, *key));
        for (key, pod) in pending {
            self.jobs.insert(key.clone(), ManagedJob::pending(None));
            let owner = protocol::namespace_number(&pod.namespace);
            explain(pod, "waits until Tandem places it", result);
            result.events.push(BackendEvent::Imported(Box::new(ClusterJob {
                external: key.clone(),
                owner: Owner { uid: owner, gid: owner },
                user: pod.namespace.clone(),
                name: pod.title.clone(),
                gpus: pod.gpus,
                limit_s: None,
                exclusive: false,
                hints: pod.hints.clone(),
                submit_unix_us: pod.created_unix_us,
                waits: None,
            })));
        }
    }

    /// Reports claims that Tandem does not manage as foreign processes on their devices.
    fn foreign(&self, list: &KubeList) -> UsageSample {
        let is_ours = |(key, pod): &(&String, &Pod)| {
            let job = self.jobs.jobs.get(*key);
            matches!(pod.state, PodState::Gated(_))
                || job.is_some_and(|job| job.run.is_some() && !job.is_refused)
        };
        let claim_of =
            |(_, pod): (&String, &Pod)| Some((pod.namespace.clone(), pod.claim.clone()?));
        let ours: BTreeSet<(String, String)> =
            list.pods.iter().filter(is_ours).filter_map(claim_of).collect();
        let mut devices = vec![DeviceSample::default(); self.gpus.len()];
        for (key, claim) in list.claims.iter().filter(|(key, _)| !ours.contains(*key)) {
            for (pool, device) in claim.allocated.iter().flatten() {
                let found =
                    self.gpus.iter().position(|gpu| gpu.pool == *pool && gpu.device == *device);
                let number = protocol::namespace_number(&key.1);
                if let Some(sample) = found.and_then(|index| devices.get_mut(index)) {
                    sample.processes.push((number, 0));
                }
            }
        }
        UsageSample { devices, runs: Vec::new() }
    }

    /// Reports devices that became available or unavailable.
    fn update_nodes(&mut self, list: &KubeList, result: &mut KubeReconciled) {
        for (device, gpu) in (0..).zip(&self.gpus) {
            let gone = || Some("the cluster no longer lists it".to_owned());
            let present = list.nodes.get(&gpu.node).cloned().unwrap_or_else(gone);
            let present = present.or_else(|| if list.gpus.contains(gpu) { None } else { gone() });
            let before = self.unavailable.get(&gpu.node).cloned().flatten();
            if before.is_some() != present.is_some() {
                let unavailable = present.clone();
                result.events.push(BackendEvent::Device { device, unavailable });
            }
        }
        let nodes: BTreeSet<&String> = self.gpus.iter().map(|gpu| &gpu.node).collect();
        for node in nodes {
            let of_node = self.gpus.iter().find(|gpu| gpu.node == *node);
            let published = of_node.is_some_and(|gpu| list.gpus.contains(gpu));
            let gone = || Some("the cluster no longer lists it".to_owned());
            let present = list.nodes.get(node).cloned().unwrap_or_else(gone);
            let present = present.or_else(|| if published { None } else { gone() });
            self.unavailable.insert(node.clone(), present);
        }
    }
}

/// A managed pod that no longer exists.
fn gone(key: &str, job: &mut ManagedJob, result: &mut KubeReconciled) {
    if job.is_done {
        return;
    }
    job.is_done = true;
    result.events.push(match &job.run {
        Some(desired) => BackendEvent::Exited { run: desired.run, exit: cancelled() },
        None => BackendEvent::Withdrawn { external: key.to_owned(), reason: GONE.to_owned() },
    });
}

/// Annotates a pod with a reason, unless it has it already.
fn explain(pod: &Pod, reason: &str, result: &mut KubeReconciled) {
    if pod.reason != reason {
        let (namespace, pod) = (pod.namespace.clone(), pod.name.clone());
        result.requests.push(KubeRequest::Explain { namespace, pod, reason: reason.to_owned() });
    }
}

/// Requests the eviction of a pod, at most every [`EVICT_AGAIN_S`].
fn evict(requested_s: &mut u64, pod: &Pod, now_s: u64, result: &mut KubeReconciled) {
    if now_s >= *requested_s + EVICT_AGAIN_S {
        *requested_s = now_s;
        let (namespace, pod) = (pod.namespace.clone(), pod.name.clone());
        result.requests.push(KubeRequest::Evict { namespace, pod });
    }
}

fn names(gpus: &[&PublishedGpu]) -> String {
    gpus.iter().map(|gpu| format!("{}/{}", gpu.node, gpu.device)).collect::<Vec<_>>().join(", ")
}

fn exit(code: i32, oom: bool, at_unix_us: u64) -> Exit {
    let cause = oom.then_some(ExitCause::OutOfMemory);
    Exit { status: ExitStatus::Code(code), cpu_s: 0.0, rss_max_bytes: 0, oom, at_unix_us, cause }
}

/// The exit of a pod that was deleted.
fn cancelled() -> Exit {
    let now = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(0);
    let status = ExitStatus::Signal(15);
    Exit { status, cause: Some(ExitCause::Cancelled), ..exit(0, false, now) }
}

#[cfg(test)]
mod tests;
