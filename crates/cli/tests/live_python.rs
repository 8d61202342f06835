//! The Python module against a real daemon: a script that reports its steps, submitted and waited for by
//! the client. Skipped with one line where there is no Python.

mod common;

use common::daemon::{Daemon, Options};
use std::path::Path;
use std::process::Command;

const TRAIN: &str = "
import time, tandem
job = tandem.Job(batch_size=8)
for batch in job.batches(range(60)):
    time.sleep(0.01)
job.bye(done=not job.stopping)
";

const CLIENT: &str = "
import sys, tandem
socket, python, script = sys.argv[1:]
client = tandem.Client(socket=socket)
job = client.submit([python, script], name='from python', gpus=1)
state = client.wait(job, timeout=60)
info = client.info(job)
assert state == 'completed', (state, info)
assert info['name'] == 'from python' and info['exit_code'] == 0, info
try:
    client.info(job + 1000)
    raise SystemExit('a job that is not there was found')
except tandem.TandemError as error:
    assert error.code == 'not_found', error
held = client.submit(['true'], hold=True)
client.cancel(held)
assert client.wait(held, timeout=60) == 'cancelled'

import asyncio
async def several():
    client = tandem.AsyncClient(socket=socket)
    jobs = await asyncio.gather(*(client.submit(['/bin/echo', word]) for word in 'abc'))
    states = await client.wait(jobs, timeout=60)
    assert states == {job: 'completed' for job in jobs}, states
    assert [(await client.logs(job)).strip() for job in jobs] == ['a', 'b', 'c']
    tasks = await client.submit(['true'], array='0-1', class_='tiny')
    assert await client.wait(tasks, timeout=60) == {task: 'completed' for task in tasks}
    assert (await client.info(tasks[0]))['class'] == 'tiny'
    devices = await client.devices()
    assert [device['index'] for device in devices] == [0], devices
    assert (await client.daemon())['devices'] == 1
asyncio.run(several())
print('done')
";

const SIMULATIONS: &str = "
import sys, tandem
trace, cluster = sys.argv[1:]
runs = tandem.compare(trace, ['fifo', 'tandem'], cluster=cluster, frame='list')
assert [run['policy'] for run in runs] == ['fifo', 'tandem'], runs
jobs = tandem.simulate(trace, policies=['fifo', 'tandem'], cluster=cluster, frame='list')
for run in runs:
    times = [job['end_s'] - job['submit_s'] for job in jobs if job['policy'] == run['policy']]
    assert len(times) == 40, len(times)
    assert abs(sum(times) / len(times) - run['avg_jct_s']) < 0.01, run
import csv
with open(trace, newline='') as file:
    rows = list(csv.DictReader(file))
again = tandem.compare(rows, ['fifo', 'tandem'], cluster=cluster, frame='list')
assert [run['avg_jct_s'] for run in again] == [run['avg_jct_s'] for run in runs], again
try:
    tandem.compare(trace, 'fifo', cluster='1x1')
    raise SystemExit('a trace that does not fit was simulated')
except tandem.TandemError as error:
    assert 'GPUs' in str(error), error
print('done')
";

#[test]
fn simulations_from_python() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return;
    }
    let workspace = common::workspace().canonicalize().expect("the workspace is there");
    let output = Command::new("python3")
        .args(["-c", SIMULATIONS])
        .arg(workspace.join("examples/trace.csv"))
        .arg(workspace.join("examples/cluster.toml"))
        .env("PYTHONPATH", workspace.join("python/src"))
        .env("TANDEM_BINARY", env!("CARGO_BIN_EXE_tandem"))
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "done", "{said}");
}

#[test]
fn the_module_submits_reports_and_waits() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return;
    }
    let daemon = Daemon::start(Options::fake(1));
    let script = daemon.dir.path().join("train.py");
    std::fs::write(&script, TRAIN).expect("the folder can be written");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/src");
    let module = module.canonicalize().expect("the module is there");
    let output = Command::new("python3")
        .args(["-c", CLIENT])
        .arg(&daemon.socket)
        .arg("python3")
        .arg(&script)
        .env("PYTHONPATH", module)
        .current_dir(daemon.dir.path())
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "done", "{said}");
}

#[test]
fn the_notebook_runs_from_its_first_to_its_last_cell() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3");
        return;
    }
    let workspace = common::workspace().canonicalize().expect("the workspace is there");
    let output = Command::new("python3")
        .arg(workspace.join("python/tests/run_notebook.py"))
        .arg(workspace.join("examples/python/compare.ipynb"))
        .env("PYTHONPATH", workspace.join("python/src"))
        .env("TANDEM_BINARY", env!("CARGO_BIN_EXE_tandem"))
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("5 cells ran\n"), "{said}");
}
