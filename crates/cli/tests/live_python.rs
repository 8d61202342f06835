//! The Python module against a real daemon: a script that reports its steps, submitted and waited for by
//! the client. Skipped with one line where there is no Python.

mod common;

use common::daemon::{Daemon, Options};
use std::path::PathBuf;
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

/// A Python with the module and the program; `None`, said in a line, without Python.
fn python() -> Option<Command> {
    if Command::new("python3").arg("--version").output().is_err() {
        common::skipped("there is no python3");
        return None;
    }
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", workspace().join("python/src"));
    python.env("TANDEM_BINARY", env!("CARGO_BIN_EXE_tandem"));
    Some(python)
}

fn workspace() -> PathBuf {
    common::workspace().canonicalize().expect("the workspace is there")
}

/// Runs a program to its end and checks its last line.
fn check_last_line(command: &mut Command, line: &str) {
    let output = command.output().expect("python3 runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().last(), Some(line), "{said}");
}

#[test]
fn simulations_from_python() {
    let Some(mut python) = python() else { return };
    python.args(["-c", SIMULATIONS]);
    python.args(["trace.csv", "cluster.toml"].map(|name| workspace().join("examples").join(name)));
    check_last_line(&mut python, "done");
}

#[test]
fn the_module_submits_reports_and_waits() {
    let Some(mut python) = python() else { return };
    let daemon = Daemon::start(Options::fake(1));
    let script = daemon.dir.path().join("train.py");
    std::fs::write(&script, TRAIN).expect("the folder can be written");
    python.args(["-c", CLIENT]).arg(&daemon.socket).arg("python3").arg(&script);
    check_last_line(python.current_dir(daemon.dir.path()), "done");
}

#[test]
fn the_notebook_runs_from_its_first_to_its_last_cell() {
    let Some(mut python) = python() else { return };
    python.arg(workspace().join("python/tests/run_notebook.py"));
    python.arg(workspace().join("examples/python/compare.ipynb"));
    check_last_line(&mut python, "5 cells ran");
}
