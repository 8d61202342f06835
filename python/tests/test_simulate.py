"""Simulations through a program that stands for the binary; the real one is run by live_python.rs."""

import json
import os
import stat
import sys
import tempfile
import types
import unittest
from unittest import mock

import tandem
from tandem import _simulate

#: Notes how it was called and writes what the binary would write.
PROGRAM = f"""#!{sys.executable}
import json, os, sys
arguments = sys.argv[1:]
value = lambda flag: arguments[arguments.index(flag) + 1]
with open(value("--trace")) as file:
    trace = file.read()
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps([arguments, trace]) + "\\n")
if "bad" in trace:
    sys.exit(print('warning: x\\n{{"error": "trace.csv:2: bad"}}', file=sys.stderr) or 2)
if arguments[0] == "sim":
    with open(value("--jobs-csv"), "w") as file:
        file.write("job_id,partition,submit_s,start_s,end_s,gpus,nodes,shared_s,preemptions\\n")
        file.write("007,all,0,1.5,,2,0:1;1:1,0,0\\n")
runs = [{{"policy": "fifo", "avg_jct_s": 2.5, "timing": {{"cpu_s": 0.1}}}}, {{"policy": "tandem"}}]
print(json.dumps({{"schema": 1, "runs": runs}}))
"""


class Simulations(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        program = self.write("program", PROGRAM)
        os.chmod(program, stat.S_IRWXU)
        self.calls = os.path.join(folder.name, "calls")
        patched = mock.patch.dict(os.environ, {"TANDEM_BINARY": program, "CALLS": self.calls})
        patched.start()
        self.addCleanup(patched.stop)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def called(self):
        with open(self.calls) as file:
            return [json.loads(line) for line in file]

    def test_compare(self):
        trace = self.write("trace.csv", "a trace")
        rows = tandem.compare(
            trace,
            ["fifo", "tandem:share=false"],
            cluster="2x4",
            frame="list",
            load=2,
            skip_bad=True,
            solo=None,
            quiet=False,
        )
        first = {"policy": "fifo", "avg_jct_s": 2.5, "timing_cpu_s": 0.1}
        self.assertEqual(rows, [first, {"policy": "tandem"}])
        [[arguments, content]] = self.called()
        self.assertEqual(content, "a trace")
        expected = ["compare", "--json", "--quiet", "--trace", trace, "--cluster", "2x4"]
        expected += ["--policies", "fifo,tandem:share=false", "--load", "2", "--skip-bad"]
        self.assertEqual(arguments, expected)
        tandem.compare(trace, cluster="2x4", frame="list")
        self.assertNotIn("--policies", self.called()[1][0])

    def test_simulate(self):
        rows = tandem.simulate(
            self.write("t", "a trace"), policies=["fifo", "srtf"], cluster="1x1", frame="list"
        )
        job = {"job_id": "007", "partition": "all", "submit_s": 0, "start_s": 1.5, "end_s": None}
        job.update(gpus=2, nodes="0:1;1:1", shared_s=0, preemptions=0)
        self.assertEqual(rows, [{"policy": "fifo", **job}, {"policy": "srtf", **job}])
        self.assertEqual(len(self.called()), 2)

    def test_rows_are_written_as_a_file(self):
        tandem.compare([{"a": 1, "b": "x,y"}, {"b": 2, "c": 3}], cluster="1x1", frame="list")
        [[arguments, content]] = self.called()
        self.assertEqual(content.splitlines(), ["a,b,c", '1,"x,y",', ",2,3"])
        self.assertFalse(os.path.exists(arguments[arguments.index("--trace") + 1]))

    def test_data_frames(self):
        class Frame:
            def __init__(self, rows, **options):
                self.rows = rows

            def to_csv(self, path, index):
                with open(path, "w") as file:
                    file.write(f"pandas {index}")

        class Other(Frame):
            def write_csv(self, path):
                with open(path, "w") as file:
                    file.write("polars")

        kinds = {"pandas": Frame, "polars": Other}
        modules = {name: types.SimpleNamespace(DataFrame=kind) for name, kind in kinds.items()}
        with mock.patch.dict(sys.modules, modules):
            for name, kind in kinds.items():
                found = tandem.compare(kind([]), cluster="1x1", frame=name)
                self.assertIs(type(found), kind)
                self.assertEqual(len(found.rows), 2)
        self.assertEqual([content for _, content in self.called()], ["pandas False", "polars"])
        for installed, expected in [(("polars",), Other), ((), list)]:
            spec = mock.patch("importlib.util.find_spec", lambda name: name in installed)  # noqa: B023
            with spec, mock.patch.dict(sys.modules, modules):
                found = tandem.compare([{"a": 1}], cluster="1x1")
            self.assertIs(type(found), expected)
        with self.assertRaisesRegex(ValueError, "'pandas', 'polars' or 'list', not 'arrow'"):
            tandem.compare([{"a": 1}], cluster="1x1", frame="arrow")

    def test_refusals(self):
        with self.assertRaises(tandem.TandemError) as caught:
            tandem.compare([{"bad": 1}], cluster="1x1")
        self.assertEqual(
            (caught.exception.code, str(caught.exception)), ("simulation", "trace.csv:2: bad")
        )
        os.environ["TANDEM_BINARY"] = os.path.join(self.folder, "absent")
        with self.assertRaisesRegex(tandem.TandemError, "absent cannot be run"):
            tandem.compare([{"a": 1}], cluster="1x1")

    def test_where_the_program_is(self):
        self.assertEqual(_simulate.binary(), os.environ.pop("TANDEM_BINARY"))
        beside = self.write("tandem", "")
        with mock.patch.object(sys, "executable", os.path.join(self.folder, "python")):
            self.assertEqual(_simulate.binary(), beside)
            os.unlink(beside)
            with mock.patch("shutil.which", lambda name: f"/bin/{name}"):
                self.assertEqual(_simulate.binary(), "/bin/tandem")
            with mock.patch("shutil.which", lambda name: None):
                with self.assertRaisesRegex(tandem.TandemError, "set TANDEM_BINARY"):
                    _simulate.binary()


if __name__ == "__main__":
    unittest.main()
