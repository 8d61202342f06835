//! Shares and limits between people in the simulator, under every policy.

#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

mod common;

use common::{simulate, times};
use std::fmt::Write;
use std::sync::Arc;
use tandem_policies::{PolicySpec, REGISTRY};
use tandem_sim::shares::SharesFile;
use tandem_sim::trace::{ReadOptions, parse};
use tandem_sim::{RunOptions, SimRun, Workload, WorkloadOptions, WorldOptions, clusters};

const HEADER: &str = "job_id,user,submit_s,gpus,duration_s,account,tier,reservation\n";

fn run(rows: &str, cluster: &str, shares: &str, policy: &str) -> (Workload, SimRun) {
    let cluster = Arc::new(clusters::cluster(cluster).unwrap());
    let trace = parse(format!("{HEADER}{rows}").as_bytes(), "t.csv", &ReadOptions::default());
    let mut workload =
        Workload::new(trace.unwrap(), cluster, "t.csv", &WorkloadOptions::default()).unwrap();
    let file: SharesFile = toml::from_str(shares).unwrap();
    assert_eq!(file.problem(), None);
    let shares = Arc::new(workload.share(&file));
    let no_cost = (tandem_core::Span::ZERO, tandem_core::Span::ZERO);
    let world = WorldOptions { restore: no_cost, ..WorldOptions::default() };
    let options = RunOptions { record: true, world, shares, ..RunOptions::default() };
    let run = simulate(&workload, &PolicySpec::parse(policy).unwrap(), &options);
    (workload, run)
}

/// GPU-seconds of a user from one time to another.
fn gpu_time(workload: &Workload, run: &SimRun, user: &str, from: f64, to: f64) -> f64 {
    let history = run.record.as_ref().unwrap();
    let stays = history.stays.iter().filter(|stay| {
        let spec = workload.spec(stay.job);
        workload.trace.users.get(spec.user.0) == user
    });
    stays
        .map(|stay| {
            let seconds = |time: tandem_core::Time| time.0 as f64 / 1e6;
            let inside = seconds(stay.to).min(to) - seconds(stay.from).max(from);
            inside.max(0.0) * stay.gpus.len() as f64
        })
        .sum()
}

#[test]
fn a_late_user_gets_as_much_gpu_time_as_one_with_a_backlog() {
    let mut rows = String::new();
    for job in 0..1000 {
        writeln!(rows, "a{job},ann,0,1,{},,,", 100 + job % 7).unwrap();
    }
    for job in 0..10 {
        writeln!(rows, "b{job},bob,1000,1,600,,,").unwrap();
    }
    let slice = 60.0;
    let shares = "[fair_share]\nslice_s = 60\n";
    for entry in REGISTRY {
        let (workload, run) = run(&rows, "1x4", shares, entry.name);
        let ends = times(&run);
        let last = (1000..1010).map(|job| ends[job].1).fold(0.0, f64::max);
        // While both want more than half: until Bob has fewer jobs than half of the places.
        let half = 2 * entry.tenants_max;
        let mut bobs: Vec<f64> = (1000..1010).map(|job| ends[job].1).collect();
        bobs.sort_by(f64::total_cmp);
        let until = bobs[10 - half].min(last);
        let (ann, bob) = (
            gpu_time(&workload, &run, "ann", 1000.0, until),
            gpu_time(&workload, &run, "bob", 1000.0, until),
        );
        let difference = (ann - bob).abs();
        // Where several share a GPU, some finish sooner than others.
        let most = if entry.tenants_max > 1 { 0.1 * (ann + bob) } else { 4.0 * slice };
        println!("{}: ann {ann:.0}, bob {bob:.0} GPU-seconds", entry.name);
        assert!(difference <= most, "{}: ann {ann}, bob {bob}", entry.name);
        assert!(bob > 1000.0, "{}: {bob}", entry.name);
    }
}

#[test]
fn accounts_share_by_weight_and_their_users_equally() {
    let mut rows = String::new();
    for user in ["ann", "amy", "bob"] {
        for job in 0..200 {
            writeln!(rows, "{user}{job},{user},0,1,100,,,").unwrap();
        }
    }
    let shares = "[fair_share]\nslice_s = 50\n[[account]]\nname = \"lab\"\nweight = 3\n\
                  users = [\"ann\", \"amy\"]\n[[account]]\nname = \"guest\"\nusers = [\"bob\"]\n";
    let (workload, run) = run(&rows, "1x8", shares, "srtf");
    let until = 4000.0;
    let time = |user| gpu_time(&workload, &run, user, 0.0, until);
    let (ann, amy, bob) = (time("ann"), time("amy"), time("bob"));
    let all = ann + amy + bob;
    assert!((all - 8.0 * until).abs() < 1.0, "no GPU idles: {all}");
    for (got, due) in [(ann, 3.0 / 8.0), (amy, 3.0 / 8.0), (bob, 2.0 / 8.0)] {
        assert!((got / all - due).abs() < 0.02, "{ann} {amy} {bob}");
    }
}

#[test]
fn a_higher_tier_takes_gpus_and_limits_hold() {
    // Bob's urgent job stops one of Ann's; the others of Bob wait for his limit of one GPU.
    let rows = "a0,ann,0,2,1000,,,\na1,ann,0,2,1000,,,\nb0,bob,10,2,100,,5,\nb1,bob,10,1,50,,,\n";
    let shares = "[fair_share]\nslice_s = 20\n[[user]]\nname = \"bob\"\nlimits = { jobs = 1 }\n";
    for policy in ["fifo", "srtf", "tandem"] {
        let (_, run) = run(rows, "1x4", shares, policy);
        let times = times(&run);
        assert_eq!(times[2].0, 10.0, "{policy}: {times:?}");
        assert!(times[3].0 >= times[2].1, "{policy}: one job at a time: {times:?}");
    }
}

#[test]
fn gpu_hours_are_for_a_period() {
    let rows: String = (0..4).map(|job| format!("a{job},ann,0,1,3600,,,\n")).collect();
    let shares = "[limits]\ngpu_hours = 2\nperiod_h = 10\n";
    let (_, run) = run(&rows, "1x1", shares, "fifo");
    let starts: Vec<f64> = times(&run).iter().map(|(start, _)| *start / 3600.0).collect();
    assert_eq!(starts, [0.0, 1.0, 10.0, 11.0]);
}

#[test]
fn memory_and_accounts_have_limits() {
    let rows = "a,ann,0,1,100,lab,,\nb,bob,0,1,100,lab,,\nc,carl,0,1,100,,,\n";
    let shares = "[[account]]\nname = \"lab\"\nlimits = { gpus = 1 }\n";
    let (_, run) = run(rows, "1x4", shares, "fifo");
    assert_eq!(times(&run).iter().map(|(start, _)| *start).collect::<Vec<_>>(), [0.0, 100.0, 0.0]);
}

#[test]
fn reservations_are_kept_for_their_jobs() {
    // GPUs 2 and 3 from 100 to 200 s: Ann's jobs there are stopped, Bob's runs, and then Ann's go on.
    let rows = "a0,ann,0,1,500,,,\na1,ann,0,1,500,,,\na2,ann,0,1,500,,,\na3,ann,0,1,500,,,\n\
                b0,bob,0,2,50,,,7\n";
    let shares = "[[reservation]]\nid = 7\ngpus = [2, 3]\nstart_s = 100\nend_s = 200\n";
    for policy in ["fifo", "srtf", "tandem", "gshare", "sjf-bsbf"] {
        let (_, run) = run(rows, "1x4", shares, policy);
        let times = times(&run);
        assert_eq!(times[4], (100.0, 150.0), "{policy}: {times:?}");
        let mut ends: Vec<f64> = times[..4].iter().map(|(_, end)| *end).collect();
        ends.sort_by(f64::total_cmp);
        if ["fifo", "srtf"].contains(&policy) {
            assert_eq!(ends, [500.0, 500.0, 600.0, 600.0], "{policy}: {times:?}");
        }
    }
    // Nothing new starts there in the lead, and nobody's is a maintenance window.
    let rows = "a0,ann,50,4,10,,,\n";
    let shares = "[[reservation]]\nid = 1\ngpus = [0]\nstart_s = 100\nend_s = 200\nlead_s = 60\n";
    let (_, run) = run(rows, "1x4", shares, "fifo");
    assert_eq!(times(&run), [(200.0, 210.0)]);
}
