//! The Kubernetes back end. Users keep their pods and Jobs, kube-scheduler binds pods to nodes; Tandem decides
//! which GPU a pod gets and when.
//!
//! An admission policy (`setup`) adds a scheduling gate to the GPU pods of managed namespaces and turns their
//! request for GPUs into a resource claim. Each step of the control loop (`step`) lists pods, claims, nodes and
//! devices (`list`), compares them with the desired state (`reconcile`, which is pure), writes allocations into claims
//! and removes gates (`client`). Only what the API server lists counts; nothing is assumed to have happened because it
//! was requested.

mod authority;
mod client;
mod doctor;
mod lease;
mod list;
pub mod node;
mod protocol;
mod reconcile;
mod release;
mod setup;
mod step;

pub use client::KubeError;
pub use doctor::{KubeCheck, doctor};
pub use release::{KubeRelease, release_all};
pub use setup::{InstallOptions, Manifest, install, manifests, uninstall};

use crate::cluster::control_loop::{ControlLoop, HoldsJobs, retry};
use crate::op::{Op, OpId, RunId};
use crate::providers::Device;
use crate::recovery::{KnownJob, RecoveredRun};
use crate::{Backend, Capabilities, Sink};
use client::KubeClient;
use reconcile::KubeReconciler;
use std::sync::Arc;
use std::time::Duration;
use step::Kubernetes;

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
    options: KubernetesOptions,
    client: Arc<KubeClient>,
    control_loop: ControlLoop<KubeReconciler>,
    devices: Vec<Device>,
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
        let control_loop = ControlLoop::new(reconciler, sink);
        Ok(Self { options, client: Arc::new(client), control_loop, devices })
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
        self.control_loop.with(|reconciler| reconciler.unavailable())
    }

    fn recover(&mut self, jobs: &[KnownJob]) -> Vec<(RunId, RecoveredRun)> {
        let list = retry::<Kubernetes, _>(|| self.client.list());
        let recovered = self.control_loop.with(|reconciler| reconciler.recover(jobs, &list));
        let KubernetesOptions { namespace, poll_every, .. } = &self.options;
        self.control_loop.start(Kubernetes::new(self.client.clone(), namespace, *poll_every));
        recovered
    }

    fn apply(&mut self, id: OpId, op: Op) {
        let run = op.run();
        let is_known = self.control_loop.change(|jobs| jobs.apply(id, op));
        if !is_known {
            // Its end was reported already, or will be.
            tracing::warn!("run {run} is not managed in Kubernetes");
        }
    }

    fn forget(&mut self, run: RunId) {
        self.control_loop.with(|reconciler| reconciler.jobs().forget(run));
    }
}
