//! The dashboard of Grafana and the alert rules of Prometheus ask for metrics that a daemon has, and
//! Prometheus' own checker accepts them. Skipped with one line where that checker is not installed.

#![allow(clippy::unwrap_used)]

mod common;

use common::daemon::{Daemon, Options};
use common::{read, skipped, workspace};
use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

/// Names of metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    words.filter(|word| word.starts_with("tandem_")).map(str::to_owned).collect()
}

fn scrape() -> String {
    let daemon = Daemon::start(Options::with(&["--provider", "cpu", "--devices", "1"]));
    let job = daemon.submit(&daemon.shell("sleep 600"));
    daemon.await_state(job, "running");
    let mut text = String::new();
    common::daemon::until("the job shows in the metrics", || {
        text = daemon.client().text("/metrics").unwrap();
        // Devices are sampled once a second.
        text.contains("tandem_job_slowdown_ratio{")
            && text.contains("tandem_gpu_memory_used_bytes{")
    });
    text
}

#[test]
fn dashboard_and_alerts_ask_for_metrics_that_exist() {
    let offered = metrics_in(&scrape());
    for file in ["contrib/grafana/tandem.json", "contrib/prometheus/tandem-alerts.yml"] {
        let asked = metrics_in(&read(&workspace().join(file)));
        assert!(!asked.is_empty(), "{file}");
        let unknown: Vec<&String> = asked.difference(&offered).collect();
        assert!(unknown.is_empty(), "{file} asks for {unknown:?}; there are {offered:?}");
    }
}

#[test]
fn the_dashboard_has_a_query_in_every_panel() {
    let text = read(&workspace().join("contrib/grafana/tandem.json"));
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 6);
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(targets.iter().all(|target| target["expr"].is_string()), "{panel}");
    }
}

/// Whether Prometheus' checker is here; says that a test is skipped if not.
fn has_promtool() -> bool {
    let has = Command::new("promtool").arg("--version").output().is_ok();
    if !has {
        skipped("promtool is not installed (Debian's package prometheus)");
    }
    has
}

/// Whether Prometheus' checker accepts a query, and what it says. JSON is YAML.
fn check_query(query: &str) -> (bool, String) {
    let folder = common::folder();
    let rules = serde_json::json!({
        "groups": [{ "name": "panel", "rules": [{ "record": "panel", "expr": query }] }]
    });
    common::write(folder.path(), "rules.yml", rules.to_string());
    let mut check = Command::new("promtool");
    let ran = check.args(["check", "rules", "rules.yml"]).current_dir(folder.path());
    let ran = ran.output().unwrap();
    (ran.status.success(), String::from_utf8_lossy(&ran.stderr).into_owned())
}

#[test]
fn promtool_accepts_the_queries_of_the_dashboard() {
    if !has_promtool() {
        return;
    }
    let text = read(&workspace().join("contrib/grafana/tandem.json"));
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(queries.len() >= 6, "{queries:?}");
    for query in queries {
        let (is_accepted, said) = check_query(query);
        assert!(is_accepted, "{query}: {said}");
    }
    assert!(!check_query("sum by (state (tandem_jobs)").0, "the checker checks");
}

#[test]
fn promtool_accepts_metrics_rules_and_their_tests() {
    if !has_promtool() {
        return;
    }
    let folder = workspace().join("contrib/prometheus");
    for args in [
        ["check", "rules", "tandem-alerts.yml"].as_slice(),
        &["test", "rules", "tandem-alerts-test.yml"],
        &["check", "config", "--syntax-only", "prometheus.yml"],
    ] {
        let ran = Command::new("promtool").args(args).current_dir(&folder).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "promtool {args:?}: {said}");
    }
    let mut check = Command::new("promtool");
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = check.spawn().unwrap();
    // The checker reads the older text format, which has no end mark.
    let text = scrape().replace("# EOF\n", "");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let ran = child.wait_with_output().unwrap();
    // 3 is for style, such as a counter's help without its suffix; 1 for what cannot be parsed.
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(matches!(ran.status.code(), Some(0 | 3)), "{said}");
}
