//! Services: submitted, measured against their promises, started again, and protected from the jobs beside
//! them.

mod common;

use common::daemon::{Daemon, Options, until};
use common::sample_job;
use std::path::{Path, PathBuf};
use tandem_backends::local::Cgroups;
use tandem_daemon::request::{JobRequest, ServiceRequest};

/// Prints a latency, read from a file, twenty times a second.
const SERVICE: &str = "while :; do echo took $(cat latency) ms; sleep 0.05; done";
const REGEX: &str = r"took (\S+) ms";

fn set_latency(daemon: &Daemon, ms: f64) {
    let (next, file) = (daemon.dir.path().join("next"), daemon.dir.path().join("latency"));
    std::fs::write(&next, ms.to_string()).expect("a file can be written");
    std::fs::rename(next, file).expect("a file can be renamed");
}

fn service(daemon: &Daemon) -> JobRequest {
    let promised = ServiceRequest {
        slo: Some("p99=100ms".to_owned()),
        rate_per_s: None,
        latency_regex: Some(REGEX.to_owned()),
    };
    JobRequest {
        service: Some(promised),
        class: Some("service".to_owned()),
        ..daemon.shell(SERVICE)
    }
}

#[test]
fn a_service_is_shown_against_its_promise_and_started_again() {
    let daemon = Daemon::start(Options::fake(1));
    set_latency(&daemon, 5.0);
    let submit = ["submit", "--parsable", "--service", "--slo", "p99=100ms", "--rate", "20"];
    let rest = ["--share", "0.3", "--latency-regex", REGEX, "--", "sh", "-c", SERVICE];
    let id = daemon.ok(&[&submit[..], &rest].concat()).stdout.trim().to_owned();
    let number: u64 = id.parse().expect("a number");
    let p99 = || daemon.job(number).line.latency.and_then(|latency| latency.p99_ms);
    until("latencies are known", || p99() == Some(5.0));
    let info = daemon.ok(&["info", &id]).stdout;
    assert!(info.contains("p99=100ms, kept 100.0 % of the time"), "{info}");
    assert!(info.contains("p99 5.0 ms at "), "{info}");
    for command in ["queue", "top"] {
        let shown = daemon.ok(&[command]).stdout;
        assert!(shown.contains("p99 5.0 ms, promised p99=100ms, kept 100.0 %"), "{shown}");
    }
    let metrics = daemon.client().text("/metrics").expect("metrics");
    for line in [
        r#"tandem_service_latency_seconds{job_id="1",quantile="0.99"} 0.005"#,
        r#"tandem_service_promised_seconds{job_id="1",quantile="0.99"} 0.1"#,
        r#"tandem_service_kept_ratio{job_id="1"} 1.0"#,
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    // Broken for a while.
    set_latency(&daemon, 150.0);
    let kept = || daemon.job(number).line.latency.and_then(|latency| latency.is_kept);
    until("the promise is broken", || kept() == Some(false));
    set_latency(&daemon, 5.0);
    until("the promise is kept again", || kept() == Some(true));
    let part = daemon.job(number).line.latency.and_then(|latency| latency.kept);
    assert!(part.is_some_and(|part| 0.0 < part && part < 1.0), "{part:?}");

    for runs in 2..4 {
        let pid = daemon.await_pid(number);
        let process = rustix::process::Pid::from_raw(i32::try_from(pid).expect("a pid"));
        rustix::process::kill_process(process.expect("a pid"), rustix::process::Signal::KILL)
            .expect("a process of ours");
        until("it runs again", || {
            let job = daemon.job(number);
            job.runs == runs && job.pid.is_some()
        });
    }
    daemon.ok(&["cancel", &id]);
    daemon.await_state(number, "cancelled");
    daemon.ok(&["replay", &daemon.state.join("state.db").to_string_lossy()]);
}

#[test]
fn bad_services_are_refused_in_one_line() {
    let daemon = Daemon::start(Options::fake(1));
    let service = ["submit", "--service"];
    for (arguments, expected) in [
        (&["--slo", "soon"][..], "'soon' is not a promise; give a latency as p99=100ms or p50=2s"),
        (&["--slo", "p99=-3ms"], "p99=-3ms"),
        (&["--slo", "p95=3ms"], "neither p50 nor p99"),
        (&["-a", "0-3"], "is one job; submit it again for another instance"),
        (&["--rate", "-1"], "give requests per second"),
        (&["--rate", "many"], "--rate"),
        (&["--share", "1.5"], "give 0.1 to 1 of a GPU"),
        (&["--share", "0.01"], "give 0.1 to 1 of a GPU"),
        (&["--latency-regex", "took"], "has no group"),
        (&["--latency-regex", "(("], "unclosed"),
    ] {
        let ran = daemon.tandem(&[&service[..], arguments, &["--", "true"]].concat());
        assert_eq!(ran.code, Some(2), "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{arguments:?}: {}", ran.stderr);
        if !ran.stderr.contains("Usage") && !ran.stderr.contains("--help") {
            assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{}", ran.stderr);
        }
    }
    let ran = daemon.tandem(&["submit", "--slo", "p99=3ms", "--", "true"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--slo is for a service; add --service"), "{}", ran.stderr);
    assert!(daemon.jobs().is_empty());
    for (arguments, expected) in [
        (["--slo", "soon"], "--slo: 'soon' is not a promise"),
        (["--rates", "5000"], "that need less than one core"),
    ] {
        let ran = daemon.tandem(&[&["bench", "colocate"][..], &arguments].concat());
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    }
}

/// Where the run of a job is limited, as it is recorded.
fn cpu_group(daemon: &Daemon, id: u64) -> PathBuf {
    let spec = std::fs::read(daemon.state.join(format!("runs/{id}.1/spec.json")));
    let spec: serde_json::Value =
        serde_json::from_slice(&spec.expect("it is recorded")).expect("a record");
    spec["group"]["cpu"]["dir"].as_str().expect("it has a group").into()
}

/// The part of a core that a group may use.
fn quota(group: &Path) -> Option<f64> {
    let read = |file: &str| std::fs::read_to_string(group.join(file)).ok();
    let (quota, period) = match read("cpu.max") {
        Some(both) => both.trim().split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()))?,
        None => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
    };
    let quota: f64 = quota.trim().parse().ok().filter(|quota| *quota > 0.0)?;
    Some(quota / period.trim().parse::<f64>().ok()?)
}

#[test]
fn a_promise_in_danger_caps_the_job_beside_it_while_it_runs() {
    let groups = Cgroups::find();
    if !groups.are_complete() || !groups.have_quotas() {
        println!("skipped: no quotas of CPU time: {groups}");
        return;
    }
    let settings = ["--provider", "cpu", "--devices", "1", "--set", "learning.settle_s=0.1"];
    let daemon = Daemon::start(Options::with(&settings));
    set_latency(&daemon, 30.0);
    // A class has to be known before it shares.
    let train = sample_job();
    let guest = |steps: u32| JobRequest {
        class: Some("guest".to_owned()),
        estimate_s: Some(1000.0),
        ..daemon.shell(&format!("exec {train} --model mlp --steps {steps}"))
    };
    let first = daemon.submit(&guest(1500));
    daemon.await_state(first, "completed");
    // Two floors that add up to more than the core.
    let floor = |share: f64| JobRequest { share: Some(share), ..guest(100_000_000) };
    let [holder, other] = [0.6, 0.5].map(|share| daemon.submit(&floor(share)));
    daemon.await_state(holder, "running");
    let explained = || daemon.ok(&["explain", &other.to_string()]).stdout;
    let expected = "and no budgets would keep the promise of ";
    until("it is explained", || explained().contains(expected));
    for id in [other, holder] {
        daemon.ok(&["cancel", &id.to_string()]);
        daemon.await_state(id, "cancelled");
    }
    let service = daemon.submit(&service(&daemon));
    daemon.await_state(service, "running");
    let job = daemon.submit(&guest(100_000_000));
    let pid = daemon.await_pid(job);
    let beside = || daemon.job(job).line.beside.contains(&service);
    until("they share", beside);
    let group = cpu_group(&daemon, job);
    let share = || quota(&group).unwrap_or(1.0);
    let before = share();
    set_latency(&daemon, 95.0);
    until("the guest is capped", || share() < 0.8 * before);
    assert_eq!(daemon.job(job).pid, Some(pid), "it goes on");
    let low = share();
    set_latency(&daemon, 3.0);
    until("the guest gets some of it back", || share() > low + 0.05);
    assert_eq!(daemon.job(job).pid, Some(pid), "it goes on");
    // No budget helps: they are parted.
    set_latency(&daemon, 500.0);
    until("they are parted", || !beside());
    let explained = daemon.ok(&["explain", &job.to_string()]).stdout;
    assert!(explained.contains("no budget of others kept its latency"), "{explained}");
    daemon.ok(&["replay", &daemon.state.join("state.db").to_string_lossy()]);
}
