//! The node agent: a DRA driver for the kubelet. It publishes the GPUs of its node as a resource slice and writes a
//! CDI specification for each claim, by which the container runtime gives containers their devices.

use super::DRIVER;
use super::authority::KubeletStream;
use super::client::{KubeClient, KubeError};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// Options of the node agent.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The node's name in the cluster.
    pub name: String,
    /// The kubelet's folder.
    pub kubelet: PathBuf,
    /// The folder of CDI specifications.
    pub cdi: PathBuf,
    /// Number of fake GPUs to publish.
    pub fake_gpus: u32,
    /// Memory of each fake GPU.
    pub fake_memory_bytes: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ClaimRef {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    name: String,
}

/// Request of NodePrepareResources and NodeUnprepareResources.
#[derive(Clone, PartialEq, prost::Message)]
struct ClaimsRequest {
    #[prost(message, repeated, tag = "1")]
    claims: Vec<ClaimRef>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PreparedDevice {
    #[prost(string, repeated, tag = "1")]
    request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pool_name: String,
    #[prost(string, tag = "3")]
    device_name: String,
    #[prost(string, repeated, tag = "4")]
    cdi_device_ids: Vec<String>,
    #[prost(string, optional, tag = "5")]
    share_id: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PreparedClaim {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<PreparedDevice>,
    #[prost(string, tag = "2")]
    error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PrepareAnswer {
    #[prost(map = "string, message", tag = "1")]
    claims: HashMap<String, PreparedClaim>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnpreparedClaim {
    #[prost(string, tag = "1")]
    error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UnprepareAnswer {
    #[prost(map = "string, message", tag = "1")]
    claims: HashMap<String, UnpreparedClaim>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PluginInfo {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    endpoint: String,
    #[prost(string, repeated, tag = "4")]
    supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Empty {}

struct Agent {
    options: NodeOptions,
    client: KubeClient,
    endpoint: PathBuf,
}

/// Publishes the GPUs of a node, then serves the kubelet until the process is killed.
pub fn serve(options: NodeOptions) -> Result<(), KubeError> {
    let client = KubeClient::connect()?;
    let plugin = options.kubelet.join("plugins").join(DRIVER);
    fs::create_dir_all(&plugin)?;
    fs::create_dir_all(&options.cdi)?;
    fs::create_dir_all(options.kubelet.join("plugins_registry"))?;
    let endpoint = plugin.join("dra.sock");
    let registry = options.kubelet.join("plugins_registry").join(format!("{DRIVER}-reg.sock"));
    let agent = Arc::new(Agent { options, client, endpoint: endpoint.clone() });
    let serving = agent.clone();
    agent.client.block_on(async move {
        serving.publish().await?;
        let driver = listen(&endpoint, KubeletService::<true>(serving.clone()))?;
        let registration = listen(&registry, KubeletService::<false>(serving.clone()))?;
        let ended = tokio::select! { end = driver => end, end = registration => end };
        ended.map_err(|error| KubeError::Unreadable(error.to_string()))
    })
}

type Serving = std::pin::Pin<Box<dyn Future<Output = Result<(), tonic::transport::Error>>>>;

fn listen<const DRIVER_PART: bool>(
    path: &Path,
    server: KubeletService<DRIVER_PART>,
) -> Result<Serving, KubeError>
where
    KubeletService<DRIVER_PART>: NamedService,
{
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    let incoming = futures_util::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| KubeletStream::new(stream));
        Some((accepted, listener))
    });
    let router = tonic::transport::Server::builder().add_service(server);
    Ok(Box::pin(router.serve_with_incoming(incoming)))
}

impl Agent {
    /// Publishes the fake GPUs. Several pods may be allocated a GPU, up to its memory.
    async fn publish(&self) -> Result<(), KubeError> {
        let NodeOptions { name, fake_gpus, fake_memory_bytes, .. } = &self.options;
        let memory = json!({ "value": fake_memory_bytes.to_string(),
            "requestPolicy": { "default": fake_memory_bytes.to_string() } });
        let device = |index| {
            json!({ "name": format!("gpu{index}"), "allowMultipleAllocations": true,
                "capacity": { "memory": memory } })
        };
        let devices: Vec<Value> = (0..*fake_gpus).map(device).collect();
        let path = "/apis/resource.k8s.io/v1/resourceslices";
        let slice_name = format!("{name}-{DRIVER}");
        let node = self.client.get(&format!("/api/v1/nodes/{name}")).await?;
        let owner = json!([{ "apiVersion": "v1", "kind": "Node", "name": name,
            "uid": node.pointer("/metadata/uid"), "controller": true }]);
        let mut slice = json!({ "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": { "name": slice_name, "ownerReferences": owner },
            "spec": { "driver": DRIVER, "nodeName": name, "devices": devices,
                "pool": { "name": name, "generation": 1, "resourceSliceCount": 1 } } });
        let own = format!("{path}/{slice_name}");
        let present = match self.client.get(&own).await {
            Err(error) if error.code() == Some(404) => {
                return self.client.post(path, &slice).await.map(drop);
            }
            answer => answer?,
        };
        // Change the slice in place: without it the node would look like one without GPUs.
        if present.pointer("/spec/devices") == slice.pointer("/spec/devices") {
            return Ok(());
        }
        let generation = present.pointer("/spec/pool/generation").and_then(Value::as_i64);
        slice["spec"]["pool"]["generation"] = json!(generation.unwrap_or(0) + 1);
        slice["metadata"]["resourceVersion"] = present["metadata"]["resourceVersion"].clone();
        self.client.put(&own, &slice).await.map(drop)
    }

    async fn prepare(&self, claim: &ClaimRef) -> PreparedClaim {
        match self.prepared(claim).await {
            Ok(devices) => PreparedClaim { devices, error: String::new() },
            Err(error) => PreparedClaim { devices: Vec::new(), error: error.to_string() },
        }
    }

    async fn prepared(&self, claim: &ClaimRef) -> Result<Vec<PreparedDevice>, KubeError> {
        let ClaimRef { namespace, uid, name } = claim;
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let found = self.client.get(&path).await?;
        if found.pointer("/metadata/uid").and_then(Value::as_str) != Some(uid) {
            return Err(KubeError::Unreadable(format!(
                "claim {namespace}/{name} was deleted and created again"
            )));
        }
        let results = found.pointer("/status/allocation/devices/results").and_then(Value::as_array);
        let of = |result: &Value, key: &str| {
            result.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let cdi = format!("tandem.dev/claim={uid}");
        let device = |result: &Value| PreparedDevice {
            request_names: vec![of(result, "request")],
            pool_name: of(result, "pool"),
            device_name: of(result, "device"),
            cdi_device_ids: vec![cdi.clone()],
            share_id: Some(of(result, "shareID")).filter(|id| !id.is_empty()),
        };
        let ours = results.into_iter().flatten().filter(|result| of(result, "driver") == DRIVER);
        let devices: Vec<PreparedDevice> = ours.map(device).collect();
        let names: Vec<&str> = devices.iter().map(|device| device.device_name.as_str()).collect();
        let edits = json!({ "env": [format!("TANDEM_GPUS={}", names.join(","))] });
        let specification = json!({ "cdiVersion": "0.5.0", "kind": "tandem.dev/claim",
            "devices": [{ "name": uid, "containerEdits": edits }] });
        fs::write(self.specification(uid), specification.to_string())?;
        Ok(devices)
    }

    fn specification(&self, uid: &str) -> PathBuf {
        self.options.cdi.join(format!("tandem.dev-claim-{uid}.json"))
    }

    fn unprepare(&self, claim: &ClaimRef) -> UnpreparedClaim {
        let error = match fs::remove_file(self.specification(&claim.uid)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => error.to_string(),
            _ => String::new(),
        };
        UnpreparedClaim { error }
    }
}

/// A gRPC service for the kubelet: the driver, or its registration.
#[derive(Clone)]
struct KubeletService<const DRIVER_PART: bool>(Arc<Agent>);

impl NamedService for KubeletService<true> {
    const NAME: &'static str = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin";
}

impl NamedService for KubeletService<false> {
    const NAME: &'static str = "pluginregistration.Registration";
}

struct PrepareMethod(Arc<Agent>);

impl UnaryService<ClaimsRequest> for PrepareMethod {
    type Response = PrepareAnswer;
    type Future = BoxFuture<Response<PrepareAnswer>, Status>;

    fn call(&mut self, request: Request<ClaimsRequest>) -> Self::Future {
        let agent = self.0.clone();
        Box::pin(async move {
            let mut answer = PrepareAnswer::default();
            for claim in &request.get_ref().claims {
                answer.claims.insert(claim.uid.clone(), agent.prepare(claim).await);
            }
            Ok(Response::new(answer))
        })
    }
}

struct UnprepareMethod(Arc<Agent>);

impl UnaryService<ClaimsRequest> for UnprepareMethod {
    type Response = UnprepareAnswer;
    type Future = BoxFuture<Response<UnprepareAnswer>, Status>;

    fn call(&mut self, request: Request<ClaimsRequest>) -> Self::Future {
        let undo = |claim: &ClaimRef| (claim.uid.clone(), self.0.unprepare(claim));
        let claims = request.get_ref().claims.iter().map(undo).collect();
        Box::pin(async move { Ok(Response::new(UnprepareAnswer { claims })) })
    }
}

struct InfoMethod(Arc<Agent>);

impl UnaryService<Empty> for InfoMethod {
    type Response = PluginInfo;
    type Future = BoxFuture<Response<PluginInfo>, Status>;

    fn call(&mut self, _: Request<Empty>) -> Self::Future {
        let info = PluginInfo {
            kind: "DRAPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.0.endpoint.display().to_string(),
            supported_versions: vec!["v1.DRAPlugin".to_owned()],
        };
        Box::pin(async move { Ok(Response::new(info)) })
    }
}

struct NotifyMethod;

impl UnaryService<Empty> for NotifyMethod {
    type Response = Empty;
    type Future = BoxFuture<Response<Empty>, Status>;

    fn call(&mut self, _: Request<Empty>) -> Self::Future {
        Box::pin(async move { Ok(Response::new(Empty {})) })
    }
}

impl<const DRIVER_PART: bool> Service<http::Request<Body>> for KubeletService<DRIVER_PART> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let agent = self.0.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            Ok(match (DRIVER_PART, method.as_str()) {
                (true, "NodePrepareResources") => {
                    Grpc::new(ProstCodec::default()).unary(PrepareMethod(agent), request).await
                }
                (true, "NodeUnprepareResources") => {
                    Grpc::new(ProstCodec::default()).unary(UnprepareMethod(agent), request).await
                }
                (false, "GetInfo") => {
                    Grpc::new(ProstCodec::default()).unary(InfoMethod(agent), request).await
                }
                (false, "NotifyRegistrationStatus") => {
                    Grpc::new(ProstCodec::default()).unary(NotifyMethod, request).await
                }
                _ => Status::unimplemented(method).into_http(),
            })
        })
    }
}
