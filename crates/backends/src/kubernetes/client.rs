//! Requests to the API server, by path and JSON. Typed objects would drop fields that this version does not know.

use super::list::{self, KubeList};
use super::{GATE, MANAGED};
use serde_json::{Value, json};
use std::future::Future;
use thiserror::Error;
use tokio::runtime::Runtime;

/// Why the cluster cannot be used.
#[derive(Debug, Error)]
pub enum KubeError {
    /// The configuration is missing or unusable.
    #[error("Kubernetes: {0}; set KUBECONFIG or run in a pod with a service account")]
    Config(String),
    /// A request failed.
    #[error("Kubernetes: {path}: {cause}")]
    Request {
        /// The path of the request.
        path: String,
        /// What the API server said.
        cause: Box<kube::Error>,
    },
    /// An answer is malformed, or the cluster is not as expected.
    #[error("Kubernetes: {0}")]
    Unreadable(String),
    /// No node publishes GPUs of Tandem's driver.
    #[error("Kubernetes has no GPUs of driver gpu.tandem.dev; start `tandem node` on the nodes")]
    NoGpus,
    /// A system call failed.
    #[error("Kubernetes: {0}")]
    Io(#[from] std::io::Error),
}

impl KubeError {
    /// The HTTP status of the answer, if there was one.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            KubeError::Request { cause, .. } => match &**cause {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The finalizer of allocated claims: Kubernetes takes the allocation out before it deletes the claim.
const PROTECTED: &str = "resource.kubernetes.io/delete-protection";

/// What the reconciler asks of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum KubeRequest {
    /// Write an allocation into a claim, or remove it.
    Allocate { namespace: String, claim: String, version: String, allocation: Option<Value> },
    /// Remove the gate of a pod and annotate the pod with the reason.
    Ungate { namespace: String, pod: String, gate: usize, reason: String },
    /// Annotate a pod with the reason why it waits.
    Explain { namespace: String, pod: String, reason: String },
    /// Evict a pod, if disruption budgets allow it.
    Evict { namespace: String, pod: String },
}

/// A client of the API server for code that is not async.
pub(super) struct KubeClient {
    client: kube::Client,
    runtime: Runtime,
}

impl KubeClient {
    /// Reads the configuration: KUBECONFIG, or the service account of the pod.
    pub(super) fn connect() -> Result<Self, KubeError> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(async {
            let config = kube::Config::infer().await.map_err(|error| error.to_string())?;
            kube::Client::try_from(config).map_err(|error| error.to_string())
        });
        Ok(Self { client: client.map_err(KubeError::Config)?, runtime })
    }

    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(super) async fn call(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: &Value,
    ) -> Result<Value, KubeError> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.call_raw(method, path, kind, body).await
    }

    async fn call_raw(
        &self,
        method: &str,
        path: &str,
        kind: &str,
        body: Vec<u8>,
    ) -> Result<Value, KubeError> {
        let request = http::Request::builder().method(method).uri(path);
        let request = request.header("content-type", kind).body(body);
        let request = request.map_err(|error| KubeError::Unreadable(error.to_string()))?;
        let fails = |cause| KubeError::Request { path: path.to_owned(), cause: Box::new(cause) };
        self.client.request::<Value>(request).await.map_err(fails)
    }

    pub(super) async fn get(&self, path: &str) -> Result<Value, KubeError> {
        self.call("GET", path, "application/json", &Value::Null).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, KubeError> {
        self.call("POST", path, "application/json", body).await
    }

    pub(super) async fn put(&self, path: &str, body: &Value) -> Result<Value, KubeError> {
        self.call("PUT", path, "application/json", body).await
    }

    pub(super) async fn delete(&self, path: &str) -> Result<Value, KubeError> {
        self.call("DELETE", path, "application/json", &Value::Null).await
    }

    /// Creates or changes an object to match its YAML (server-side apply).
    pub(super) async fn apply(&self, path: &str, yaml: &str) -> Result<Value, KubeError> {
        let path = format!("{path}?fieldManager=tandem&force=true");
        self.call_raw("PATCH", &path, "application/apply-patch+yaml", yaml.as_bytes().to_vec())
            .await
    }

    pub(super) async fn json_patch(&self, path: &str, body: &Value) -> Result<Value, KubeError> {
        self.call("PATCH", path, "application/json-patch+json", body).await
    }

    pub(super) async fn merge_patch(&self, path: &str, body: &Value) -> Result<Value, KubeError> {
        self.call("PATCH", path, "application/merge-patch+json", body).await
    }

    /// Lists everything that decisions need.
    pub(super) fn list(&self) -> Result<KubeList, KubeError> {
        let pods = format!("/api/v1/pods?labelSelector={MANAGED}%3Dtrue");
        let (pods, claims, nodes, slices) = self.block_on(async {
            tokio::join!(
                self.get(&pods),
                self.get("/apis/resource.k8s.io/v1/resourceclaims"),
                self.get("/api/v1/nodes"),
                self.get("/apis/resource.k8s.io/v1/resourceslices"),
            )
        });
        list::read(&pods?, &claims?, &nodes?, &slices?).map_err(KubeError::Unreadable)
    }

    /// Sends requests concurrently. A conflict with another writer is not an error: the next list shows what is
    /// left to do.
    pub(super) fn send(&self, requests: &[KubeRequest]) -> Result<(), KubeError> {
        let all = requests.iter().map(|request| self.send_one(request));
        let answers = self.block_on(futures_util::future::join_all(all));
        for answer in answers {
            match answer {
                Err(error) if matches!(error.code(), Some(404 | 409 | 422 | 429)) => {
                    tracing::debug!("{error}");
                }
                answer => drop(answer?),
            }
        }
        Ok(())
    }

    /// Adds the finalizer of allocated claims, as kube-scheduler does; gives the new version of the claim.
    /// Without it a claim of a pod that ended is deleted with its allocation, and kube-scheduler learns only after
    /// minutes that the GPU is free.
    async fn protect(&self, path: &str, version: &str) -> Result<String, KubeError> {
        let body = json!({ "metadata": { "resourceVersion": version, "finalizers": [PROTECTED] } });
        let kind = "application/strategic-merge-patch+json";
        let claim = self.call("PATCH", path, kind, &body).await?;
        let version = claim["metadata"]["resourceVersion"].as_str();
        version.map(str::to_owned).ok_or_else(|| {
            KubeError::Unreadable(format!("the answer to a change of {path} has no version"))
        })
    }

    async fn send_one(&self, request: &KubeRequest) -> Result<Value, KubeError> {
        match request {
            KubeRequest::Allocate { namespace, claim, version, allocation } => {
                let path = format!(
                    "/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{claim}"
                );
                let mut version = version.clone();
                if allocation.is_some() {
                    version = self.protect(&path, &version).await?;
                }
                let body = json!({ "metadata": { "resourceVersion": version }, "status": { "allocation": allocation } });
                self.merge_patch(&format!("{path}/status"), &body).await
            }
            KubeRequest::Ungate { namespace, pod, gate, reason } => {
                let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
                let at = format!("/spec/schedulingGates/{gate}");
                let body = json!([
                    { "op": "test", "path": format!("{at}/name"), "value": GATE },
                    { "op": "remove", "path": at },
                    { "op": "add", "path": "/metadata/annotations/tandem.dev~1reason", "value": reason },
                ]);
                self.json_patch(&path, &body).await
            }
            KubeRequest::Explain { namespace, pod, reason } => {
                let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
                let body =
                    json!({ "metadata": { "annotations": { "tandem.dev/reason": reason } } });
                self.merge_patch(&path, &body).await
            }
            KubeRequest::Evict { namespace, pod } => {
                let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
                let body = json!({ "apiVersion": "policy/v1", "kind": "Eviction",
                    "metadata": { "name": pod, "namespace": namespace } });
                self.post(&path, &body).await
            }
        }
    }
}
