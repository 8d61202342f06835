//! Sub-batches are tried by themselves where two jobs fit on a device only so. Real processes under a real daemon.

#![allow(clippy::unwrap_used)]

mod common;

use common::daemon::{Daemon, Options};
use std::time::{Duration, Instant};
use tandem_daemon::request::JobRequest;

/// Computes batches in as many sub-batches as it is told: 12 MiB for the interpreter, and 160 MiB for a batch.
const TRAINER: &str = r#"
import json, os, socket, time
accum = int(os.environ.get("TANDEM_ACCUM", "1"))
sock = socket.socket(socket.AF_UNIX)
sock.connect(os.environ["TANDEM_SOCK"])
sock.setblocking(False)
def say(**line):
    try:
        sock.send((json.dumps(line) + "\n").encode())
    except OSError:
        pass
say(op="hello", v=1, pid=os.getpid(), batch=64, caps=["accum", "stop"])
held, step, text = b"x" * ((160 << 20) // accum), 0, b""
while True:
    step += 1
    time.sleep(0.01 + 0.001 * accum)
    say(op="step", n=step, accum=accum)
    try:
        text += sock.recv(4096)
    except OSError:
        continue
    *lines, text = text.split(b"\n")
    for line in lines:
        wanted = json.loads(line).get("accum", accum)
        if wanted != accum:
            accum, held = wanted, b""
            held = b"x" * ((160 << 20) // accum)
"#;

#[test]
fn a_pair_that_fits_only_in_sub_batches_finds_out() {
    // One job takes about 170 MiB, two do not fit, and one beside another in four sub-batches does.
    let options = Options::fake(1).and(&["--set", "daemon.fake_memory_mib=330"]);
    let daemon = Daemon::start(options.and(&["--set", "learning.sample_s=0.2"]));
    std::fs::write(daemon.dir.path().join("train.py"), TRAINER).unwrap();
    let request =
        JobRequest { class: Some("big".to_owned()), ..daemon.shell("exec python3 train.py") };
    let [first, second] = [0, 1].map(|_| daemon.submit(&request));
    let began = Instant::now();
    let mut tried = 1;
    loop {
        let jobs = [first, second].map(|id| daemon.job(id));
        tried = tried.max(jobs[0].sub_batches);
        if jobs.iter().all(|job| job.line.state.name() == "running") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(150), "{jobs:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(tried > 1, "the first one showed what sub-batches take");
    assert!(daemon.job(second).sub_batches > 1, "the second one computes in them");
    common::daemon::until("the first one computes whole batches again", || {
        daemon.job(first).sub_batches == 1
    });
    let classes = daemon.client().classes().unwrap().classes.clone();
    let class = classes.iter().find(|class| class.name == "big").unwrap();
    assert!(class.steps_per_s.len() > 1, "{class:?}");
    println!("the pair shares after {:.1} s", began.elapsed().as_secs_f64());
}
