//! The Kubernetes back end. Users keep their pods and Jobs, kube-scheduler binds pods to nodes; Tandem decides
//! which GPU a pod gets and when.
//!
//! An admission policy (`setup`) adds a scheduling gate to the GPU pods of managed namespaces and turns their
//! request for GPUs into a resource claim. One thread (`control_loop`) lists pods, claims, nodes and devices (`list`),
//! compares them with the desired state (`reconcile`, which is pure), writes allocations into claims and removes gates
//! (`client`). Only what the API server lists counts; nothing is assumed to have happened because it was requested.

mod authority;
mod client;
mod control_loop;
mod doctor;
mod lease;
mod list;
pub mod node;
mod protocol;
mod reconcile;
mod release;
mod setup;

pub use client::KubeError;
pub use doctor::{KubeCheck, doctor};
pub use release::{KubeRelease, release_all};
pub use setup::{InstallOptions, Manifest, install, manifests, uninstall};

use crate::cluster::desired::DesiredRun;
use crate::op::{Op, OpId, RunId};
use crate::providers::Device;
use crate::recovery::{KnownJob, RecoveredRun};
use crate::{Backend, Capabilities, Sink};
use client::KubeClient;
use control_loop::{KubeControlLoop, KubeShared};
use reconcile::KubeReconciler;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The name of Tandem's DRA driver, in claims and resource slices.
pub const DRIVER: &str = "gpu.tandem.dev";
/// The scheduling gate of pods that wait to be placed.
const GATE: &str = "tandem.dev/place";
/// The label that the admission policy adds to pods.
const MANAGED: &str = "tandem.dev/managed";

/// Options of a [`KubernetesBackend`].
#[derive(Clone, Debug)]
pub struct KubernetesOptions {
    /// The most pods on a GPU.
    pub tenants_max: u64,
    /// Time between two lists.
    pub poll_every: Duration,
    /// The namespace of Tandem's Lease.
    pub namespace: String,
}

/// Places the pods of a Kubernetes cluster.
pub struct KubernetesBackend {
    shared: Arc<KubeShared>,
    devices: Vec<Device>,
    sink: Option<Sink>,
    thread: Option<JoinHandle<()>>,
}

impl KubernetesBackend {
    /// Connects to the cluster; an error if it does not answer. The sink is called from another thread and must
    /// not call the back end. The cluster is not changed before [`Backend::recover`].
    pub fn new(options: KubernetesOptions, sink: Sink) -> Result<Self, KubeError> {
        let client = KubeClient::connect()?;
        let list = client.list()?;
        if list.gpus.is_empty() {
            return Err(KubeError::NoGpus);
        }
        let reconciler = KubeReconciler::new(&list, options.tenants_max);
        let device = |(index, gpu): (u32, &list::PublishedGpu)| Device {
            index,
            name: format!("{}:{}", gpu.node, gpu.device),
            kind: "gpu".to_owned(),
            memory_bytes: gpu.memory_bytes,
            node: gpu.node.clone(),
        };
        let devices = (0..).zip(reconciler.gpus()).map(device).collect();
        let shared = Arc::new(KubeShared::new(options, client, reconciler));
        Ok(Self { shared, devices, sink: Some(sink), thread: None })
    }

    fn start_loop(&mut self) {
        let Some(sink) = self.sink.take() else { return };
        let control_loop = KubeControlLoop::new(self.shared.clone(), sink);
        let thread = std::thread::Builder::new().name("kubernetes".to_owned());
        match thread.spawn(move || control_loop.run()) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                tracing::error!("cannot start a thread: {error}; no pod will be placed");
            }
        }
    }
}

impl Backend for KubernetesBackend {
    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn capabilities(&self) -> Capabilities {
        let reason = "a stopped pod keeps its GPU and the GPU's memory";
        Capabilities {
            pause_forbidden: Some(reason.to_owned()),
            gangs_share: true,
            ..Capabilities::CLUSTER
        }
    }

    fn unavailable_devices(&mut self) -> Vec<(u32, String)> {
        self.shared.state().reconciler.unavailable()
    }

    fn recover(&mut self, jobs: &[KnownJob]) -> Vec<(RunId, RecoveredRun)> {
        let list = control_loop::retry(|| self.shared.client.list());
        let recovered = self.shared.state().reconciler.recover(jobs, &list);
        self.start_loop();
        recovered
    }

    fn apply(&mut self, id: OpId, op: Op) {
        let run = op.run();
        let is_known = self.shared.change(|jobs| match op {
            Op::Place { run, external, devices, exclusive } => {
                let desired =
                    DesiredRun { is_exclusive: exclusive, ..DesiredRun::new(run, id, devices) };
                jobs.start(&external, desired);
                true
            }
            Op::End { run, .. } => jobs.end(id, run),
            Op::Withdraw { external, .. } => jobs.withdraw(&external),
            // Pods are not processes of this machine, are never paused, and get requests by the job protocol.
            Op::Start(_) | Op::Pause { .. } | Op::Resume { .. } | Op::Signal { .. } => false,
        });
        if !is_known {
            // Its end was reported already, or will be.
            tracing::warn!("run {run} is not managed in Kubernetes");
        }
    }

    fn forget(&mut self, run: RunId) {
        self.shared.state().reconciler.jobs().forget(run);
    }
}

impl Drop for KubernetesBackend {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
