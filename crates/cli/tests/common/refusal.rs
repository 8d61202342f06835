//! How the binary has to refuse: exit code 2, one line, nothing on standard output, no file or folder
//! made or changed.

use super::{folder, listing, run_in, write};
use std::path::Path;

pub(crate) const TRACE: &str = "\
job_id,user,partition,submit_s,gpus,duration_s,model,batch,amp,memory_mib,gpu_util
1,ann,left,0,1,10,A,32,0,1000,50
2,bob,right,5,8,20,B,64,1,2000,60
";
pub(crate) const PARTITIONS: &str = "partition,nodes\nleft,1\nright,2\n";
pub(crate) const PAIRS: &str = "\
,model1,dataset1,gpu_num1,batchsize1,amp1,speed1,model2,dataset2,gpu_num2,batchsize2,amp2,speed2
0,A,,1,32,0,0.9,B,,1,64,1,0.8
";

/// A folder with good files, for a case to spoil one of them.
pub(crate) fn good_files() -> tempfile::TempDir {
    let dir = folder();
    write(dir.path(), "trace.csv", TRACE);
    write(dir.path(), "partitions.csv", PARTITIONS);
    write(dir.path(), "pairs.csv", PAIRS);
    std::fs::create_dir(dir.path().join("folder")).expect("a folder can be made");
    dir
}

/// What is wrong with the way a command fails, over all cases of a test.
#[derive(Default)]
pub(crate) struct Complaints(pub(crate) Vec<String>);

impl Complaints {
    /// Runs `args` with and without `--json` and checks everything that an error has to be.
    pub(crate) fn refused(&mut self, dir: &Path, case: &str, args: &[&str], says: &[&str]) {
        for json in [&[][..], &["--json"]] {
            let args = [args, json].concat();
            if let Err(complaint) = check_refused(dir, &args, says, !json.is_empty()) {
                self.0.push(format!("{case}: tandem {}: {complaint}", args.join(" ")));
            }
        }
    }
}

impl Drop for Complaints {
    fn drop(&mut self) {
        // A test that has failed already must not panic again.
        if !std::thread::panicking() {
            assert!(self.0.is_empty(), "{} complaints:\n{}", self.0.len(), self.0.join("\n"));
        }
    }
}

pub(crate) fn check_refused(
    dir: &Path,
    args: &[&str],
    says: &[&str],
    json: bool,
) -> Result<(), String> {
    let before = listing(dir);
    let ran = run_in(dir, args);
    let after = listing(dir);
    for (name, content) in &after {
        match before.get(name) {
            None => return Err(format!("made {}", name.display())),
            Some(old) if old != content => return Err(format!("changed {}", name.display())),
            Some(_) => {}
        }
    }
    if let Some(name) = before.keys().find(|name| !after.contains_key(*name)) {
        return Err(format!("removed {}", name.display()));
    }
    if ran.code != Some(2) || !ran.stdout.is_empty() || ran.stderr.contains("panicked") {
        return Err(format!("{ran:?}"));
    }
    if ran.stderr.lines().count() != 1 || !ran.stderr.ends_with('\n') {
        return Err(format!("not one line: {:?}", ran.stderr));
    }
    let message = if json {
        let line: serde_json::Value = serde_json::from_str(&ran.stderr)
            .map_err(|error| format!("{error}: {}", ran.stderr))?;
        match line.as_object().map(|object| (object.len(), object.get("error"))) {
            Some((1, Some(serde_json::Value::String(message)))) => message.clone(),
            _ => return Err(format!("not an object with an error: {line}")),
        }
    } else {
        ran.stderr
    };
    match says.iter().find(|part| !message.contains(**part)) {
        Some(part) => Err(format!("'{part}' is not in: {}", message.trim_end())),
        None => Ok(()),
    }
}

/// `sim` on `bad.csv` with outputs asked for, so that a half-written one would be seen.
pub(crate) fn sim_args<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["--policy", "fifo", "--out", "results", "--jobs-csv", "jobs.csv"];
    [&["sim"], extra, &fixed].concat()
}
