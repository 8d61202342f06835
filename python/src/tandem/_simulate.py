"""Simulations by the `tandem` binary, as data frames."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from tandem._api import TandemError

#: Columns of a job that are text; the others are numbers.
_TEXT = frozenset({"job_id", "partition", "nodes", "policy"})

#: A file, rows, or a data frame of pandas or polars.
Trace = Union[str, "os.PathLike[str]", Sequence[Mapping[str, object]], Any]


def compare(
    trace: Trace,
    policies: str | Iterable[str] | None = None,
    *,
    cluster: str | os.PathLike[str],
    frame: str | None = None,
    **options: object,
) -> Any:
    """Simulates a trace under several policies; one row per policy: ``avg_jct_s``, ``makespan_s``...

        tandem.compare("trace.csv", ["fifo", "tandem"], cluster="4x8")

    ``trace`` is a file in any format that ``tandem compare`` reads, or its rows: a data frame or a
    list of dicts with the columns of ``docs/traces.md``. ``policies`` are names with parameters
    (``"tandem:share=false"``), all policies if absent. ``cluster`` is ``"NODESxGPUS"`` or a file.
    ``options`` are those of the command line: ``interference="pairs.csv"``, ``load=2``,
    ``skip_bad=True``.

    The result is a data frame of ``frame``: ``"pandas"``, ``"polars"`` or ``"list"`` for a list of
    dicts; the first of them that is installed if absent.
    """
    names = _names(policies)
    chosen = ["--policies", ",".join(names)] if names else []
    with _as_file(trace) as path:
        answer = _run("compare", path, cluster, chosen, options)
    rows = []
    for run in answer["runs"]:
        timing = run.pop("timing", None) or {}
        rows.append({**run, **{f"timing_{name}": value for name, value in timing.items()}})
    return _frame(rows, frame)


def simulate(
    trace: Trace,
    policies: str | Iterable[str] = "tandem",
    *,
    cluster: str | os.PathLike[str],
    frame: str | None = None,
    **options: object,
) -> Any:
    """Simulates a trace; one row per policy and job: ``policy``, ``job_id``, ``start_s``, ``end_s``...

        jobs = tandem.simulate("trace.csv", policies=["fifo", "tandem"], cluster="4x8")
        (jobs.end_s - jobs.submit_s).groupby(jobs.policy).mean()

    The arguments are those of `compare`.
    """
    rows: list[dict[str, object]] = []
    with _as_file(trace) as path, tempfile.TemporaryDirectory() as folder:
        for policy in _names(policies) or ["tandem"]:
            file = os.path.join(folder, "jobs.csv")
            _run("sim", path, cluster, ["--policy", policy, "--jobs-csv", file], options)
            with open(file, newline="") as opened:
                for row in csv.DictReader(opened):
                    rows.append({"policy": policy, **{k: _value(k, v) for k, v in row.items()}})
    return _frame(rows, frame)


def binary() -> str:
    """The `tandem` program: ``$TANDEM_BINARY``, the one beside this Python, else that of the PATH."""
    named = os.environ.get("TANDEM_BINARY")
    beside = Path(os.path.abspath(sys.executable)).with_name("tandem")
    found = named or (str(beside) if beside.is_file() else shutil.which("tandem"))
    if found is None:
        message = "the program tandem is not on the PATH; install it, or set TANDEM_BINARY"
        raise TandemError(None, "no_binary", message)
    return found


def _names(policies: str | Iterable[str] | None) -> list[str]:
    if policies is None:
        return []
    return [policies] if isinstance(policies, str) else list(policies)


def _run(
    verb: str,
    trace: str,
    cluster: str | os.PathLike[str],
    chosen: list[str],
    options: Mapping[str, object],
) -> dict[str, Any]:
    command = [binary(), verb, "--json", "--quiet", "--trace", trace]
    command += ["--cluster", os.fspath(cluster), *chosen, *_flags(options)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as cause:
        raise TandemError(None, "no_binary", f"{command[0]} cannot be run: {cause}") from cause
    if done.returncode != 0:
        raise TandemError(None, "simulation", _complaint(done.stderr, done.returncode))
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _flags(options: Mapping[str, object]) -> list[str]:
    flags = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            flags.append(flag)
        elif value is not None and value is not False:
            flags += [flag, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return flags


def _complaint(text: str, code: int) -> str:
    last = text.strip().splitlines()[-1:] or [f"tandem ended with {code}"]
    try:
        said = json.loads(last[0])
    except ValueError:
        return last[0]
    return str(said["error"]) if isinstance(said, dict) and "error" in said else last[0]


def _value(name: str, text: str) -> object:
    if name in _TEXT:
        return text
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        return float(text)


class _as_file:
    """A trace as a file: itself, or one that is there only as long as it is needed."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> str:
        trace = self._trace
        if isinstance(trace, (str, os.PathLike)):
            return os.fspath(trace)
        self._folder = tempfile.TemporaryDirectory()
        path = os.path.join(self._folder.name, "trace.csv")
        if hasattr(trace, "write_csv"):  # polars
            trace.write_csv(path)
        elif hasattr(trace, "to_csv"):  # pandas
            trace.to_csv(path, index=False)
        else:
            rows = list(trace)
            columns = list(dict.fromkeys(name for row in rows for name in row))
            with open(path, "w", newline="") as file:
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(rows)
        return path

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def _frame(rows: list[dict[str, object]], kind: str | None) -> Any:
    if kind is None:
        kinds = ("pandas", "polars")
        kind = next((name for name in kinds if importlib.util.find_spec(name)), "list")
    if kind == "pandas":
        import pandas

        return pandas.DataFrame(rows)
    if kind == "polars":
        import polars

        return polars.DataFrame(rows, infer_schema_length=None)
    if kind != "list":
        raise ValueError(f"frame is 'pandas', 'polars' or 'list', not {kind!r}")
    return rows
