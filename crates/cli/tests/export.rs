//! `tandem export` and `tandem bench optimal`: from a live daemon to the simulator, and policies against exact
//! optima.
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::daemon::{Daemon, Options};
use common::{folder, read, succeed_in};
use tandem_daemon::request::JobRequest;

/// Names of users and commands stay where they are unless they are asked for, and `compare` reads the rest.
#[test]
fn the_history_of_a_daemon_becomes_a_trace_without_names() {
    let daemon = Daemon::start(Options::fake(2));
    let secret = JobRequest { class: Some("secret-class".to_owned()), ..daemon.shell("sleep 0.2") };
    let jobs: Vec<u64> = (0..3).map(|_| daemon.submit(&secret)).collect();
    for &job in &jobs {
        daemon.await_state(job, "completed");
    }
    let held = JobRequest { hold: true, ..daemon.shell("true") };
    daemon.submit(&held);
    let dir = folder();
    let out = dir.path().join("month").display().to_string();
    let ran = daemon.ok(&["export", "--out", &out]);
    assert!(ran.stdout.starts_with("3 jobs in "), "{ran:?}");
    assert!(ran.stderr.contains("1 job left out"), "{ran:?}");
    let trace = read(&dir.path().join("month/trace.csv"));
    assert_eq!(trace.lines().count(), 4, "{trace}");
    let user = daemon.job(jobs[0]).line.user;
    assert!(!trace.contains("secret") && !trace.contains("sleep"), "{trace}");
    assert!(trace.lines().skip(1).all(|line| line.split(',').nth(1) == Some("u1")), "{trace}");
    assert!(!dir.path().join("month/classes.csv").exists());

    let trace_file = format!("{out}/trace.csv");
    let compared = succeed_in(
        dir.path(),
        &[
            "compare",
            "--trace",
            &trace_file,
            "--cluster",
            "1x2",
            "--policies",
            "fifo,tandem",
            "--json",
        ],
    );
    assert_eq!(compared.json()["jobs"], 3);

    let again = format!("{out}-again");
    let args = ["export", "--out", &again, "--compare", "fifo,tandem", "--json"];
    let one_command = daemon.ok(&args).json();
    assert_eq!(
        (&one_command["jobs"], one_command["runs"].as_array().unwrap().len()),
        (&3.into(), 2)
    );
    assert_eq!(one_command["runs"][0]["avg_jct_s"], compared.json()["runs"][0]["avg_jct_s"]);
    let wrong = daemon.tandem(&["export", "--out", &again, "--compare", "fifo,nonsense"]);
    assert_eq!(wrong.code, Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("unknown policy 'nonsense'"), "{wrong:?}");

    daemon.ok(&["export", "--out", &out, "--names", "--commands"]);
    let named = read(&dir.path().join("month/trace.csv"));
    assert!(named.contains("secret-class") && named.contains(&format!(",{user},")), "{named}");
    assert!(read(&dir.path().join("month/classes.csv")).contains("secret-class"));
}

#[test]
fn nothing_to_export_is_one_line() {
    let daemon = Daemon::start(Options::fake(1));
    let dir = folder();
    let out = dir.path().join("empty");
    let ran = daemon.tandem(&["export", "--out", &out.display().to_string()]);
    assert_eq!(ran.code, Some(4), "{ran:?}");
    assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    assert!(!out.exists());
}

#[test]
fn no_policy_is_better_than_the_optimum_and_the_answer_repeats() {
    let dir = folder();
    let args =
        ["bench", "optimal", "--instances", "12", "--policies", "fifo,srtf,tandem", "--json"];
    let ran = succeed_in(dir.path(), &args);
    let found = ran.json();
    assert_eq!(found["schema"], 1);
    let solved = found["instances"].as_u64().unwrap() + found["unproven"].as_u64().unwrap();
    assert_eq!(solved, 12);
    let policies = found["policies"].as_array().unwrap();
    assert_eq!(policies.len(), 3);
    for policy in policies {
        let of = |field: &str| policy[field].as_f64().unwrap();
        assert!(of("median") > -1e-9 && of("median") <= of("p95"), "{policy}");
        assert!(of("p95") <= of("worst"), "{policy}");
    }
    let median = |name: &str| {
        let policy = policies.iter().find(|policy| policy["policy"] == name).unwrap();
        policy["median"].as_f64().unwrap()
    };
    assert!(median("tandem") < median("fifo"), "{found}");
    assert_eq!(succeed_in(dir.path(), &args).stdout, ran.stdout);
}
