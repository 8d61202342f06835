//! A Kubernetes cluster for one test, with node agents, and a Tandem daemon for it.

use crate::common::cluster_daemon::ClusterDaemon;
pub(crate) use crate::common::cluster_daemon::until;
use crate::common::{skipped, workspace};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of any wait, generous for a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(150);

pub(crate) const NODES: [&str; 2] = ["n0", "n1"];

/// A cluster, which stops when it is dropped.
pub(crate) struct Cluster {
    dir: TempDir,
    bin: PathBuf,
    agents: Vec<Child>,
    daemon: ClusterDaemon,
}

impl Cluster {
    /// Starts it with a fake GPU on each node; `None` if it cannot be had, with a line that says why.
    pub(crate) fn up() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped("the kubelet needs root");
            return None;
        }
        let script = workspace().join("scripts/kube-cluster");
        let bin = Command::new(&script).arg("bin").output().expect("the script runs");
        let bin = PathBuf::from(String::from_utf8_lossy(&bin.stdout).trim());
        if !bin.join("kubectl").exists() {
            skipped("Kubernetes is not built; scripts/kube-cluster packages does it");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("tandem-kube-").tempdir_in("/tmp").expect("one");
        let daemon = ClusterDaemon::new(dir.path());
        let mut cluster = Self { dir, bin, agents: Vec::new(), daemon };
        let port = 20_000 + std::process::id() % 1000 * 10;
        let mut up = Command::new(script);
        up.arg("up").arg("--dir").arg(cluster.path("kube")).args(["--port", &port.to_string()]);
        let up = up.output().expect("the script runs");
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        cluster.tandem(&["kube", "install", "--manage", "ann", "--manage", "ben"]);
        for node in NODES {
            let own = cluster.path("kube").join(node);
            let mut agent = cluster.program(env!("CARGO_BIN_EXE_tandem"));
            agent.args(["node", "--name", node, "--fake-gpus", "1", "--kubelet"]);
            agent.arg(own.join("kubelet")).arg("--cdi").arg(own.join("cdi"));
            cluster.agents.push(agent.spawn().expect("an agent"));
        }
        let is_fine = || {
            let mut doctor = cluster.program(env!("CARGO_BIN_EXE_tandem"));
            doctor.args(["kube", "doctor"]).output().is_ok_and(|output| output.status.success())
        };
        assert!(until(PATIENCE, is_fine), "doctor finds faults");
        Some(cluster)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("KUBECONFIG", self.path("kube/admin.conf"))
            .env("HOME", self.dir.path())
            .stdin(Stdio::null());
        command
    }

    fn ok(&self, command: &mut Command) -> String {
        let output = command.output().expect("it runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn tandem(&self, arguments: &[&str]) -> String {
        self.ok(self.program(env!("CARGO_BIN_EXE_tandem")).args(arguments))
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        self.ok(self.program(self.bin.join("kubectl")).args(arguments))
    }

    fn list(&self, kind: &str) -> Vec<Value> {
        let answer = self.kubectl(&["get", kind, "-A", "-o", "json"]);
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        answer["items"].as_array().cloned().unwrap_or_default()
    }

    /// What the daemon answers to a path.
    pub(crate) fn get(&self, path: &str) -> Value {
        self.daemon.get(path)
    }

    /// Submits a Job as a user would without Tandem.
    pub(crate) fn submit(&self, namespace: &str, name: &str, script: &str, code: i32) {
        let container = json!({ "name": "c", "image": "localhost/busybox:1",
            "command": ["sh", "-c", format!("{script}; exit {code}")],
            "resources": { "limits": { "nvidia.com/gpu": 1 } } });
        let job = json!({ "apiVersion": "batch/v1", "kind": "Job",
            "metadata": { "name": name, "namespace": namespace },
            "spec": { "backoffLimit": 0, "template": { "spec": {
                "restartPolicy": "Never", "containers": [container] } } } });
        let mut command = self.program(self.bin.join("kubectl"));
        command.args(["create", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("kubectl");
        let mut input = child.stdin.take().expect("a pipe");
        input.write_all(job.to_string().as_bytes()).expect("it reads");
        drop(input);
        assert!(child.wait().expect("it ends").success(), "{namespace}/{name}");
    }

    /// Exit codes of the pods of each Job of this prefix, once the pods have ended, as NAMESPACE/NAME.
    pub(crate) fn ended(&self, prefix: &str) -> BTreeMap<String, Vec<i64>> {
        let mut ended: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for pod in self.list("pods") {
            let job = pod["metadata"]["labels"]["job-name"].as_str().unwrap_or_default();
            let code = &pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"];
            if let (true, Some(code)) = (job.starts_with(prefix), code.as_i64()) {
                let namespace = pod["metadata"]["namespace"].as_str().unwrap_or_default();
                ended.entry(format!("{namespace}/{job}")).or_default().push(code);
            }
        }
        ended
    }

    /// Running pods on each GPU according to their claims, as namespace and name.
    pub(crate) fn tenants(&self) -> BTreeMap<(String, String), Vec<(String, String)>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (claims, pods) = (self.list("resourceclaims"), self.list("pods"));
        let mut tenants: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| pod["status"]["phase"] == "Running") {
            let name = &pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
            let namespace = &pod["metadata"]["namespace"];
            let is_its = |claim: &&Value| {
                claim["metadata"]["name"] == *name && claim["metadata"]["namespace"] == *namespace
            };
            let Some(claim) = claims.iter().find(is_its) else { continue };
            let results = &claim["status"]["allocation"]["devices"]["results"];
            for result in results.as_array().into_iter().flatten() {
                let gpu = (text(&result["pool"]), text(&result["device"]));
                let pod = (text(namespace), text(&pod["metadata"]["name"]));
                tenants.entry(gpu).or_default().push(pod);
            }
        }
        tenants
    }

    /// What there is, for a message.
    pub(crate) fn state(&self) -> String {
        let log = self.daemon.log();
        let pods = self.kubectl(&["get", "pods", "-A"]);
        let events = self.kubectl(&["get", "events", "-A", "--field-selector", "type=Warning"]);
        format!("{pods}\n{events}\n{log}")
    }

    pub(crate) fn start_daemon(&mut self) {
        let settings = ["kubernetes.poll_s=0.3", "kubernetes.job_memory_mib=4000"];
        let tandem = self.program(env!("CARGO_BIN_EXE_tandem"));
        let settings = settings.map(str::to_owned);
        let listens = self.daemon.start(tandem, "kubernetes", &settings, PATIENCE);
        assert!(listens, "{}", self.state());
    }

    /// Kills the daemon with SIGKILL.
    pub(crate) fn kill_daemon(&mut self) {
        self.daemon.kill();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.daemon.kill();
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        let mut down = Command::new(workspace().join("scripts/kube-cluster"));
        let _ = down.arg("down").arg("--dir").arg(self.path("kube")).output();
    }
}
