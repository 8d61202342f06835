"""The module is typed without gaps and formatted."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def check(*command):
    environment = {**os.environ, "PYTHONPATH": ""}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=PYTHON,
        env=environment,
        capture_output=True,
        text=True,
    )


class Lint(unittest.TestCase):
    def assert_clean(self, *command):
        done = check(*command)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(importlib.util.find_spec("ruff"), "ruff is not installed")
    def test_ruff(self):
        self.assert_clean("ruff", "check", "--no-cache", ".", "../examples/python")
        self.assert_clean("ruff", "format", "--no-cache", "--check", ".")

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_mypy(self):
        self.assert_clean("mypy", "--cache-dir", os.devnull)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_users_of_the_client_are_checked(self):
        text = """
import tandem
client = tandem.Client()
one: int = client.submit(["true"], gpus=1)
several: list[int] = client.submit(["true"], array="0-3")
state: str = client.wait(one)
states: dict[int, str] = client.wait(several)
memory: int = client.info(one)["memory_peak_bytes"]
client.submit(["true"], gpu=1)
client.info("one")
"""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "program.py")
            with open(path, "w") as file:
                file.write(text)
            command = ["mypy", "--strict", "--config-file", "", "--cache-dir", os.devnull]
            environment = {**os.environ, "MYPYPATH": os.path.join(PYTHON, "src")}
            done = subprocess.run(
                [sys.executable, "-m", *command, path],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
            )
        lines = [line for line in done.stdout.splitlines() if "program.py:" in line]
        found = sorted({int(line.split(":")[1]) for line in lines if ": error:" in line})
        self.assertEqual(found, [9, 10], done.stdout + done.stderr)

    def test_two_lines_of_a_script_are_tandems(self):
        """What is left of the scripts that the tests run, without them, knows nothing of Tandem."""
        for name in ["hugging_face.py", "lightning_module.py"]:
            with open(os.path.join(PYTHON, "tests/frameworks/scripts", name)) as file:
                module = ast.parse(file.read())
            ours = [line for line in module.body if re.search("tandem|attach", ast.unparse(line))]
            ours = [line for line in ours if line is not module.body[0]]
            self.assertEqual(len(ours), 2, name)
            self.assertTrue(all(line.lineno == line.end_lineno for line in ours), name)


if __name__ == "__main__":
    unittest.main()
