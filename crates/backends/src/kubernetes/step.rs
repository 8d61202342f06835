//! One step of the control loop: holds the Lease, lists pods and claims, reconciles, and sends requests.

use super::client::{KubeClient, KubeError};
use super::lease::Lease;
use super::reconcile::{KubeReconciled, KubeReconciler};
use crate::Sink;
use crate::cluster::control_loop::{Cluster, Shared, unix_s};
use std::sync::Arc;
use std::time::Duration;

/// The cluster, as the control loop sees it.
pub(super) struct Kubernetes {
    client: Arc<KubeClient>,
    poll_every: Duration,
    lease: Lease,
    /// Another daemon held the lease at the last step; logged once.
    is_standby: bool,
}

impl Kubernetes {
    pub(super) fn new(client: Arc<KubeClient>, namespace: &str, poll_every: Duration) -> Self {
        Self { client, poll_every, lease: Lease::new(namespace), is_standby: false }
    }
}

impl Cluster for Kubernetes {
    type Reconciler = KubeReconciler;
    type Error = KubeError;

    const NAME: &'static str = "Kubernetes";
    const JOBS: &'static str = "pods";
    const BACK_OFF_MAX: Duration = Duration::from_secs(30);
    const AFTER_REQUESTS: Duration = Duration::from_millis(50);

    fn poll_after(&self, _: Duration) -> Duration {
        self.poll_every
    }

    fn step(&mut self, state: &Shared<KubeReconciler>, sink: &Sink) -> Result<bool, KubeError> {
        let is_holder = self.lease.hold(&self.client)?;
        if !is_holder && !self.is_standby {
            tracing::warn!("another daemon holds the lease of Tandem; waiting, nothing is changed");
        }
        self.is_standby = !is_holder;
        if !is_holder {
            return Ok(false);
        }
        let list = self.client.list()?;
        let KubeReconciled { requests, events } =
            state.with(|reconciler| reconciler.reconcile(&list, unix_s()));
        for event in events {
            sink(event);
        }
        self.client.send(&requests)?;
        Ok(!requests.is_empty())
    }
}
