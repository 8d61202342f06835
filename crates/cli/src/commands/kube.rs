//! `tandem kube` and `tandem node`: Tandem in a Kubernetes cluster. Without the feature `kubernetes` they say how to
//! get a build that has it.

#[cfg(not(feature = "kubernetes"))]
pub(super) use absent::{node, run};
#[cfg(feature = "kubernetes")]
pub(super) use built::{node, run};

#[cfg(not(feature = "kubernetes"))]
pub(super) fn not_built() -> crate::failure::Failure {
    let how = "cargo build --release --features kubernetes";
    crate::failure::Failure::bad_input(format!(
        "this build has no support for Kubernetes; build with {how}"
    ))
}

#[cfg(not(feature = "kubernetes"))]
mod absent {
    use crate::failure::Failure;
    use crate::kube_args::{KubeCommand, NodeArgs};

    pub(in super::super) fn run(_: &KubeCommand) -> Result<(), Failure> {
        Err(super::not_built())
    }

    pub(in super::super) fn node(_: &NodeArgs) -> Result<(), Failure> {
        Err(super::not_built())
    }
}

#[cfg(feature = "kubernetes")]
mod built {
    use super::super::print;
    use crate::failure::Failure;
    use crate::kube_args::{KubeCommand, KubeInstallArgs, NodeArgs};
    use serde_json::json;
    use tandem_backends::kubernetes::node::{NodeOptions, serve};
    use tandem_backends::kubernetes::{self, InstallOptions, KubeCheck, KubeRelease};

    pub(in super::super) fn run(command: &KubeCommand) -> Result<(), Failure> {
        match command {
            KubeCommand::Install(args) => install(args),
            KubeCommand::Uninstall(args) => uninstall(args),
            KubeCommand::Release { dry_run, json, if_away, namespace } => {
                release(namespace, *if_away, *dry_run, *json)
            }
            KubeCommand::Doctor { json } => doctor(*json),
        }
    }

    pub(in super::super) fn node(args: &NodeArgs) -> Result<(), Failure> {
        let options = NodeOptions {
            name: args.name.clone(),
            kubelet: args.kubelet.clone(),
            cdi: args.cdi.clone(),
            fake_gpus: args.fake_gpus,
            fake_memory_bytes: args.fake_memory_mib << 20,
        };
        serve(options).map_err(Failure::failed)
    }

    /// Checks a name that goes into manifests and paths (RFC 1123 label).
    fn check_name(option: &str, name: &str) -> Result<(), Failure> {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let is_edge = |c: Option<char>| c.is_some_and(|c| c != '-');
        let is_name = name.len() <= 63 && name.chars().all(is_part);
        if is_name && is_edge(name.chars().next()) && is_edge(name.chars().last()) {
            return Ok(());
        }
        let rule = "at most 63 lower-case letters, digits and '-'";
        Err(Failure::bad_input(format!("{option} '{name}' is not a namespace: {rule}")))
    }

    fn options(args: &KubeInstallArgs) -> Result<InstallOptions, Failure> {
        check_name("--namespace", &args.namespace)?;
        for name in &args.manage {
            check_name("--manage", name)?;
        }
        let is_bad = |c: char| c.is_control() || c.is_whitespace() || "\"'{}\\".contains(c);
        if let Some(image) = args.image.as_ref().filter(|image| image.contains(is_bad)) {
            let image = image.escape_debug();
            return Err(Failure::bad_input(format!("--image '{image}' is not an image name")));
        }
        let (namespace, managed) = (args.namespace.clone(), args.manage.clone());
        Ok(InstallOptions { namespace, managed, image: args.image.clone() })
    }

    fn install(args: &KubeInstallArgs) -> Result<(), Failure> {
        let options = options(args)?;
        if args.print {
            let yaml: Vec<String> =
                kubernetes::manifests(&options).into_iter().map(|one| one.yaml).collect();
            return print(yaml.join("---\n").trim_end());
        }
        let count = kubernetes::install(&options).map_err(Failure::failed)?;
        print(&format!("{count} objects created or up to date"))?;
        if args.manage.is_empty() {
            print("no namespace is managed yet; run `tandem kube install --manage NAME`")?;
        }
        Ok(())
    }

    fn uninstall(args: &KubeInstallArgs) -> Result<(), Failure> {
        let options = options(args)?;
        let done =
            kubernetes::uninstall(&options.namespace, args.print).map_err(Failure::failed)?;
        done.iter().try_for_each(|line| print(line))
    }

    fn release(
        namespace: &str,
        if_away: Option<u32>,
        dry_run: bool,
        json: bool,
    ) -> Result<(), Failure> {
        check_name("--namespace", namespace)?;
        let KubeRelease { released, holder_age_s } =
            kubernetes::release_all(namespace, if_away.map(i64::from), dry_run)
                .map_err(Failure::failed)?;
        if json {
            let answer = json!({ "schema": 1, "released": released, "holder_age_s": holder_age_s });
            return print(&answer.to_string());
        }
        if let Some(age_s) = holder_age_s {
            let answer = "nothing was released";
            return print(&format!("a daemon renewed its lease {age_s} s ago; {answer}"));
        }
        let verb = if dry_run { "would be" } else { "were" };
        print(&format!("{} pods {verb} released to kube-scheduler", released.len()))
    }

    fn doctor(json: bool) -> Result<(), Failure> {
        let checks = kubernetes::doctor().map_err(Failure::failed)?;
        let is_fine = checks.iter().all(|check| check.is_fine);
        if json {
            let of = |check: &KubeCheck| json!({ "check": check.name, "ok": check.is_fine, "detail": check.detail });
            let checks: Vec<_> = checks.iter().map(of).collect();
            print(&json!({ "schema": 1, "ok": is_fine, "checks": checks }).to_string())?;
        } else {
            for KubeCheck { name, is_fine, detail } in &checks {
                print(&format!("{} {name}: {detail}", if *is_fine { "ok  " } else { "fail" }))?;
            }
        }
        if is_fine { Ok(()) } else { Err(Failure::Exit(1)) }
    }
}
