"""A real daemon for the tests of this folder, and jobs whose losses are compared."""

import csv
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import tandem

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(HERE, "scripts")
SOURCE = os.path.join(HERE, "../../src")
#: The binary under test.
TANDEM = os.environ.get("TANDEM_TEST_BINARY")
#: How long anything may take on a busy machine.
PATIENCE_S = 300


def needs(*modules):
    """Skips a class of tests unless there are a binary and these modules."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not TANDEM:
        return unittest.skip("TANDEM_TEST_BINARY is not set")
    return unittest.skipIf(missing, f"{', '.join(missing)} cannot be imported: scripts/python-env")


def until(condition, what, log=lambda: ""):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not in time: {what}\n{log()}")
        time.sleep(0.01)


def environment():
    """What a job inherits: nothing of a Tandem around the tests."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    path = os.pathsep.join(filter(None, [SOURCE, kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def rows(folder):
    """The lines that a script wrote: step, loss, and parts if it says so."""
    try:
        with open(os.path.join(folder, "losses.csv")) as file:
            return [line for line in csv.reader(file) if len(line) >= 2]
    except FileNotFoundError:
        return []


def losses(folder):
    """The loss of each step; of a step that was computed twice the later one."""
    return {int(row[0]): float(row[1]) for row in rows(folder)}


class Daemon:
    """A daemon with one core, whose jobs it can stop and start again."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="tandem-")
        self.socket = os.path.join(self.folder, "daemon.sock")
        kind = ["--provider", "cpu", "--devices", "1"]
        command = [TANDEM, "daemon", "--state", os.path.join(self.folder, "state")]
        self._log = open(os.path.join(self.folder, "daemon.log"), "w")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*command, "--socket", self.socket, *kind],
            env={**environment(), "HOME": self.folder, "XDG_CONFIG_HOME": self.folder},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        self.client = tandem.Client(socket=self.socket)
        until(self._answers, "the daemon answers", self.log)

    def _answers(self):
        try:
            return self.client.daemon()
        except tandem.TandemError:
            assert self._process.poll() is None, self.log()
            return False

    def submit(self, folder, command, **options):
        log = os.path.join(folder, "out.log")
        options = {"estimate_s": 3600, "exclusive": True, "stdout": log, "stderr": log, **options}
        return self.client.submit(command, dir=folder, env=environment(), **options)

    def stop_and_start_again(self, job):
        """Asks a job to save a checkpoint, and lets it continue in another run."""
        runs = self.client.info(job)["runs"]
        run([TANDEM, "requeue", str(job), "--socket", self.socket])
        until(lambda: self.client.info(job)["runs"] > runs, "the job runs again", self.log)

    def pause_and_resume(self, job, folder):
        """Stops the processes of a job for a while; returns the steps that it made meanwhile."""
        self.client.pause(job)
        until(lambda: self.client.info(job)["state"] == "paused", "the job is paused", self.log)
        before = len(losses(folder))
        time.sleep(0.5)
        made = len(losses(folder)) - before
        self.client.resume(job)
        until(lambda: self.client.info(job)["state"] == "running", "the job resumes", self.log)
        return made

    def log(self):
        self._log.flush()
        with open(self._log.name) as file:
            return file.read()[-4000:]

    def close(self):
        for job in self.client.queue():
            try:
                self.client.cancel(job["id"])
                self.client.wait(job["id"], timeout=PATIENCE_S)
            except tandem.TandemError:
                pass
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)
        self._log.close()
        shutil.rmtree(self.folder)


def run(command, folder=None):
    """Runs a command to its end and returns what it printed."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


class Live(unittest.TestCase):
    """Each test has a daemon, a folder for the job and one for the same job without interruption."""

    def setUp(self):
        self.daemon = Daemon()
        self.addCleanup(self.daemon.close)
        self.folder, self.alone = (tempfile.mkdtemp(prefix="tandem-") for _ in range(2))
        self.addCleanup(shutil.rmtree, self.folder)
        self.addCleanup(shutil.rmtree, self.alone)

    def command(self, script, *arguments):
        return [sys.executable, os.path.join(SCRIPTS, script), *map(str, arguments)]

    def log(self):
        text = ""
        try:
            with open(os.path.join(self.folder, "out.log")) as file:
                text = file.read()[-4000:]
        except FileNotFoundError:
            pass
        return text + self.daemon.log()

    def reached(self, step):
        until(lambda: len(losses(self.folder)) >= step, f"step {step}", self.log)

    def completed(self, job):
        state = self.daemon.client.wait(job, timeout=PATIENCE_S)
        self.assertEqual(state, "completed", self.log())

    def assert_same(self, steps, within=0.0, repeated=0):
        """The losses of all steps are those of the job that was left alone.

        Steps that were computed again are lost work: no more than ``repeated``.
        """
        expected, found = losses(self.alone), losses(self.folder)
        self.assertLessEqual(len(rows(self.folder)) - len(found), repeated)
        self.assertEqual(sorted(expected), list(range(1, steps + 1)))
        self.assertEqual(sorted(found), sorted(expected), self.log())
        largest = max(abs(found[step] - expected[step]) for step in expected)
        print(f"measured: {self.id()}: largest difference of losses {largest:.2g}", file=sys.stderr)
        self.assertLessEqual(largest, within)
        self.assertLess(expected[steps], expected[1], "it learns something")
