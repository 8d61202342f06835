//! Every form of a request, under plain Slurm and under Tandem, on three versions: the same outcome for the user.
//! One cluster has a partition for each, with nodes of its own.

use crate::cluster::{ANN, Cluster, Shape, VERSIONS, text};
use crate::common::tell;
use crate::forms::{FORMS, Form, On};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const PLAIN: &str = "left";
const TANDEM: &str = "right";
/// Nodes of a partition.
const NODES: usize = 4;
/// Forms that run at once.
const AT_ONCE: usize = 6;
/// Seconds for a job to end.
const PATIENCE_S: u32 = 60;

#[test]
fn forms_have_the_same_outcome_on_22_05() {
    compare(VERSIONS[0]);
}

#[test]
fn forms_have_the_same_outcome_on_24_11() {
    compare(VERSIONS[1]);
}

#[test]
fn forms_have_the_same_outcome_on_26_05() {
    compare(VERSIONS[2]);
}

fn compare(version: Option<&str>) {
    let lines = "PartitionName=left Nodes=n[0-3] MaxTime=600 State=UP\n\
                 PartitionName=right Nodes=n[4-7] MaxTime=600 State=UP\n";
    let shape = Shape {
        version,
        nodes: 2 * NODES,
        gpus: 4,
        partition: TANDEM,
        lines,
        licenses: "spare:2",
        reports: false,
    };
    let Some(mut cluster) = Cluster::shaped(&shape) else { return };
    for node in ["n2", "n6"] {
        cluster.scontrol(&["update", &format!("node={node}"), "features=big,new"]);
    }
    cluster.start_daemon();
    let began = Instant::now();
    let only = std::env::var("TANDEM_TEST_FORMS").unwrap_or_default();
    let chosen = |form: &&Form| form.name.contains(&only);
    let (alone, together): (Vec<&Form>, Vec<&Form>) =
        FORMS.iter().filter(chosen).partition(|form| form.alone);
    let mut rows = outcomes(&cluster, &together, AT_ONCE);
    rows.extend(outcomes(&cluster, &alone, 1));
    let is_old = version.is_none();
    // What Slurm does with a request may depend on the forms beside it: those that ran beside others and differ
    // are judged by a run of their own.
    let (again, kept): (Vec<Row<'_>>, Vec<Row<'_>>) =
        rows.into_iter().partition(|row| !row.form.alone && row.fault(is_old).is_some());
    for fault in again.iter().filter_map(|row| row.fault(is_old)) {
        tell(&format!("run again by itself: {fault}"));
    }
    let again: Vec<&Form> = again.iter().map(|row| row.form).collect();
    rows = kept;
    rows.extend(outcomes(&cluster, &again, 1));
    let mut wrong: Vec<String> = rows.iter().filter_map(|row| row.fault(is_old)).collect();
    wrong.sort();
    let differ = rows.iter().filter(|row| row.plain != row.tandem).count();
    tell(&format!(
        "Slurm {}: {} forms in {:.0} s, {differ} differ from plain Slurm",
        version.unwrap_or("of this machine"),
        rows.len(),
        began.elapsed().as_secs_f64()
    ));
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

/// The outcomes of a form.
struct Row<'a> {
    form: &'a Form,
    plain: String,
    tandem: String,
}

impl Row<'_> {
    /// What is wrong with it.
    fn fault(&self, is_old: bool) -> Option<String> {
        let Row { form, plain, tandem } = self;
        let expected = match form.differs {
            None => false,
            Some((On::Every, _)) => true,
            Some((On::Old, _)) => is_old,
            Some((On::New, _)) => !is_old,
        };
        let name = form.name;
        match (expected, plain == tandem) {
            (false, true) | (true, false) => None,
            (true, true) => Some(format!("## {name}: no longer differs from plain Slurm")),
            (false, false) => Some(format!("## {name}\n  plain:  {plain}\n  Tandem: {tandem}")),
        }
    }
}

/// Runs forms under both, this many at once.
fn outcomes<'a>(cluster: &Cluster, forms: &[&'a Form], at_once: usize) -> Vec<Row<'a>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut rows = Vec::new();
        while let Some(&form) = forms.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (plain, tandem) = std::thread::scope(|scope| {
                let plain = scope.spawn(|| outcome(cluster, form, PLAIN));
                let tandem = outcome(cluster, form, TANDEM);
                (plain.join().expect("no panic"), tandem)
            });
            rows.push(Row { form, plain, tandem });
        }
        rows
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    })
}

/// What a user sees of a form in a partition.
fn outcome(cluster: &Cluster, form: &Form, partition: &str) -> String {
    let is_free = |character: char| !character.is_ascii_alphanumeric();
    let here = cluster.out(&format!("{partition}-{}", form.name.replace(is_free, "-")));
    let _ = fs::remove_dir_all(&here);
    fs::create_dir(&here).expect("a folder of its own");
    fs::set_permissions(&here, fs::Permissions::from_mode(0o777)).expect("its mode");
    let (uid, gid) = cluster.ids(ANN);
    let first = if partition == PLAIN { 0 } else { NODES };
    let mut bash = cluster.program("bash");
    bash.arg("-c").arg(format!("{}\n{}", include_str!("forms.sh"), form.script));
    bash.env("P", partition).env("HERE", &here).env("PATIENCE", PATIENCE_S.to_string());
    bash.env("USER_NAME", ANN).env("USER_ID", uid.to_string()).env("GROUP_ID", gid.to_string());
    for node in 0..NODES {
        bash.env(format!("N{node}"), format!("n{}", first + node));
    }
    bash.current_dir(&here);
    let output = cluster.output(&mut bash);
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.retain(|line| !line.trim().is_empty());
    lines.join(" ; ")
}
