//! Installs and removes Tandem's objects in a cluster. The manifests are YAML that an operator can read first.

use super::client::{KubeClient, KubeError};
use super::{GATE, release};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Options of an installation.
#[derive(Clone, Debug)]
pub struct InstallOptions {
    /// The namespace of Tandem itself.
    pub namespace: String,
    /// Namespaces whose GPU pods Tandem places.
    pub managed: Vec<String>,
    /// The image of the daemon, the watchdog and the node agents; without it they do not run in the cluster.
    pub image: Option<String>,
}

/// One object of the cluster.
#[derive(Clone, Debug)]
pub struct Manifest {
    /// Its path on the API server.
    path: String,
    /// Its manifest.
    pub yaml: String,
}

/// The most GPUs of one pod; there is a claim template for every number up to this.
const GPUS_MAX: u32 = 16;

/// Time to wait until the admission policy is in effect.
const POLICY_WITHIN: Duration = Duration::from_secs(60);

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Paths of the objects in files/install.yaml, in the same order.
const BASE: [&str; 12] = [
    "/api/v1/namespaces/@NAMESPACE@",
    "/api/v1/namespaces/@NAMESPACE@/serviceaccounts/tandem",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/tandem",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/tandem",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/@NAMESPACE@/roles/tandem",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/@NAMESPACE@/rolebindings/tandem",
    "/api/v1/namespaces/@NAMESPACE@/serviceaccounts/tandem-node",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/tandem-node",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/tandem-node",
    "/apis/resource.k8s.io/v1/deviceclasses/tandem-gpu",
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/tandem",
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings/tandem",
];
const WORKLOADS: [&str; 3] = [
    "/apis/apps/v1/namespaces/@NAMESPACE@/deployments/tandem",
    "/apis/apps/v1/namespaces/@NAMESPACE@/daemonsets/tandem-node",
    "/apis/batch/v1/namespaces/@NAMESPACE@/cronjobs/tandem-watchdog",
];

/// All objects of an installation, in the order in which they are made.
pub fn manifests(options: &InstallOptions) -> Vec<Manifest> {
    let mut all = objects(include_str!("files/install.yaml"), &BASE, options);
    for namespace in &options.managed {
        all.extend(managed(namespace));
    }
    if options.image.is_some() {
        all.extend(objects(include_str!("files/workloads.yaml"), &WORKLOADS, options));
    }
    all
}

fn objects(file: &str, paths: &[&str], options: &InstallOptions) -> Vec<Manifest> {
    let image = options.image.as_deref().unwrap_or_default();
    let fill =
        |text: &str| text.replace("@NAMESPACE@", &options.namespace).replace("@IMAGE@", image);
    let manifest = |(path, yaml): (&&str, &str)| Manifest { path: fill(path), yaml: fill(yaml) };
    paths.iter().zip(file.split("---\n")).map(manifest).collect()
}

/// The label of a managed namespace, and its claim templates.
fn managed(namespace: &str) -> Vec<Manifest> {
    let label = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{tandem.dev/managed: \"true\"}}}}\n"
    );
    let mut all = vec![Manifest { path: format!("/api/v1/namespaces/{namespace}"), yaml: label }];
    all.extend((1..=GPUS_MAX).map(|gpus| Manifest {
        path: template(namespace, gpus),
        yaml: format!(
            "apiVersion: resource.k8s.io/v1\nkind: ResourceClaimTemplate\n\
             metadata: {{name: tandem-gpu-{gpus}, namespace: {namespace}}}\n\
             spec: {{spec: {{devices: {{requests: [{{name: gpu, exactly: {{deviceClassName: tandem-gpu, count: {gpus}}}}}]}}}}}}\n"
        ),
    }));
    all
}

fn template(namespace: &str, gpus: u32) -> String {
    let base = "/apis/resource.k8s.io/v1/namespaces";
    format!("{base}/{namespace}/resourceclaimtemplates/tandem-gpu-{gpus}")
}

/// Creates or updates all objects and waits until pods of managed namespaces are gated. Returns the number of objects.
pub fn install(options: &InstallOptions) -> Result<usize, KubeError> {
    let client = KubeClient::connect()?;
    let all = manifests(options);
    client.block_on(async {
        for manifest in &all {
            client.apply(&manifest.path, &manifest.yaml).await?;
        }
        for namespace in &options.managed {
            await_policy(&client, namespace).await?;
        }
        Ok(all.len())
    })
}

/// Waits until a policy gates pods. The API server enforces a new policy only after a delay; pods created before
/// would not be gated.
async fn await_policy(client: &KubeClient, namespace: &str) -> Result<(), KubeError> {
    let container = json!({ "name": "probe", "image": "probe",
        "resources": { "limits": { "nvidia.com/gpu": "1" } } });
    let probe = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "tandem-probe" },
        "spec": { "containers": [container] } });
    let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
    let begin = Instant::now();
    loop {
        // A new namespace refuses pods until it has its service account.
        let answer = client.post(&path, &probe).await;
        let is_gated = |pod: &Value| {
            pod.pointer("/spec/schedulingGates/0/name").and_then(Value::as_str) == Some(GATE)
        };
        match answer {
            Ok(pod) if is_gated(&pod) => return Ok(()),
            Err(error) if begin.elapsed() > POLICY_WITHIN => return Err(error),
            Ok(_) if begin.elapsed() > POLICY_WITHIN => {
                let message = format!(
                    "pods of {namespace} are not gated after 60 s; see kubectl get mutatingadmissionpolicy tandem"
                );
                return Err(KubeError::Unreadable(message));
            }
            _ => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

/// Removes an installation: first the policy, so that no more pods are gated, then the gates, then the rest. Running
/// pods and users' namespaces stay. Returns a line for everything that was done, or with `dry_run` would be.
pub fn uninstall(namespace: &str, dry_run: bool) -> Result<Vec<String>, KubeError> {
    let client = KubeClient::connect()?;
    let fill = |path: &&str| path.replace("@NAMESPACE@", namespace);
    let (rest, policy) = BASE.split_at(BASE.len() - 2);
    let mut done = Vec::new();
    // The daemon goes first, because it would place released pods again.
    let first: Vec<String> = WORKLOADS.iter().chain(policy.iter().rev()).map(fill).collect();
    delete_all(&client, &first, dry_run, &mut done)?;
    let released = release::release_all(namespace, None, dry_run)?.released;
    done.extend(released.iter().map(|pod| format!("released {pod}")));
    let selector = "labelSelector=tandem.dev/managed%3Dtrue";
    let managed = client.block_on(client.get(&format!("/api/v1/namespaces?{selector}")))?;
    for name in names(&managed) {
        let templates: Vec<String> = (1..=GPUS_MAX).map(|gpus| template(&name, gpus)).collect();
        delete_all(&client, &templates, dry_run, &mut done)?;
        if !dry_run {
            let body = json!({ "metadata": { "labels": { "tandem.dev/managed": null } } });
            let path = format!("/api/v1/namespaces/{name}");
            client.block_on(client.merge_patch(&path, &body))?;
        }
        done.push(format!("namespace {name} is no longer managed"));
    }
    // Released pods that wait for a GPU need the device class and the node agents.
    let rest: Vec<String> =
        rest.iter().rev().filter(|path| !path.ends_with("/tandem-gpu")).map(fill).collect();
    delete_all(&client, &rest, dry_run, &mut done)?;
    done.push(
        "device class tandem-gpu stays for pods that wait: kubectl delete deviceclass tandem-gpu"
            .to_owned(),
    );
    Ok(done)
}

fn delete_all(
    client: &KubeClient,
    paths: &[String],
    dry_run: bool,
    done: &mut Vec<String>,
) -> Result<(), KubeError> {
    for path in paths {
        let call = if dry_run {
            client.block_on(client.get(path))
        } else {
            client.block_on(client.delete(path))
        };
        match call {
            Err(error) if error.code() == Some(404) => {}
            answer => {
                answer?;
                let name = path.trim_start_matches(RBAC).trim_start_matches(ADMISSION);
                done.push(format!("{} {name}", if dry_run { "would remove" } else { "removed" }));
            }
        }
    }
    Ok(())
}

fn names(list: &Value) -> Vec<String> {
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    let name =
        |item: &Value| item.pointer("/metadata/name").and_then(Value::as_str).map(str::to_owned);
    items.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_has_the_path_of_its_kind_and_name() {
        let options = InstallOptions {
            namespace: "own".to_owned(),
            managed: vec!["ann".to_owned()],
            image: Some("registry/tandem:1".to_owned()),
        };
        let all = manifests(&options);
        assert_eq!(all.len(), BASE.len() + WORKLOADS.len() + 1 + GPUS_MAX as usize);
        for Manifest { path, yaml } in &all {
            let kind = yaml.lines().find_map(|line| line.strip_prefix("kind: ")).expect("a kind");
            let kind = kind.to_lowercase();
            let (rest, name) = path.rsplit_once('/').expect("a path");
            let plural = rest.rsplit('/').next().expect("a plural");
            let is_plural = plural == format!("{kind}s")
                || plural == format!("{kind}es")
                || *plural == kind.replace("policy", "policies");
            assert!(is_plural, "{path} is not of kind {kind}");
            assert!(yaml.contains(&format!("metadata: {{name: {name}")), "{path}: {yaml}");
            assert!(!yaml.contains('@') && !path.contains('@'), "{path}: {yaml}");
        }
    }
}
