"""The torch example under a daemon that changes its mind: only where torch is installed."""

import csv
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

from daemon import Daemon

EXAMPLE = os.path.join(os.path.dirname(__file__), "../../../examples/python/train_torch.py")
STEPS = 300
#: How far losses may differ when a batch is computed in other parts.
SAME = 1e-5


def start(folder, *options, **environment):
    command = [sys.executable, EXAMPLE, "--steps", str(STEPS), *options]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    return subprocess.Popen(command, cwd=folder, env={**inherited, **environment})


def read(folder, name):
    with open(os.path.join(folder, name)) as file:
        return list(csv.DictReader(file))


@unittest.skipUnless(importlib.util.find_spec("torch"), "torch is not installed")
class Example(unittest.TestCase):
    def test_parts_that_change_leave_the_losses_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            alone = start(folder, "--losses", "alone.csv")
            self.assertEqual(alone.wait(), 0)
            expected = read(folder, "alone.csv")
            path = os.path.join(folder, "job.sock")
            daemon = Daemon(path)
            saving = ("--losses", "shared.csv", "--checkpoint", "state")
            shared = start(folder, *saving, TANDEM_SOCK=path)
            talk = daemon.accept()
            talk.hear()
            # The gate lets the test keep up with the job.
            talk.say({"op": "set", "gate_ms": 15})
            for parts, until in [(4, 100), (1, 200)]:
                while talk.hear()["n"] < until - 50:
                    pass
                talk.say({"op": "set", "accum": parts})
                while talk.hear()["n"] < until:
                    pass
            talk.say({"op": "stop"})
            self.assertEqual(talk.hear_all()[-1], {"op": "bye", "done": False})
            self.assertEqual(shared.wait(), 0)
            shared = start(folder, *saving)
            self.assertEqual(shared.wait(), 0)
            daemon.vanish()
            talk.close()
            found = read(folder, "shared.csv")
        self.assertEqual([row["step"] for row in found], [row["step"] for row in expected])
        self.assertEqual({row["accum"] for row in found}, {"1", "4"})
        self.assertEqual(found[-1]["accum"], "1")
        pairs = [(float(a["loss"]), float(b["loss"])) for a, b in zip(found, expected)]
        largest = max(abs(a - b) for a, b in pairs)
        print(
            f"torch 1→4→1 and a stop: largest difference of losses {largest:.2g}", file=sys.stderr
        )
        self.assertLessEqual(largest, SAME)


if __name__ == "__main__":
    unittest.main()
