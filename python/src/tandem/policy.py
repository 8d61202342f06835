"""Scheduling policies in Python, for research: ``tandem sim --policy python:FILE.py:Class``.

    from tandem.policy import Policy

    class ShortestFirst(Policy):
        def plan(self, draft):
            for job in sorted(draft.waiting, key=lambda job: job.estimate_s):
                if not draft.place(job):
                    break

`plan` is called when a job arrives or ends and when `Draft.wake_in` asked for it. A plan depends on
the draft and on what the class remembers, on nothing else, so that a run can be repeated. What the
class prints goes to standard error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

__all__ = ["Draft", "Job", "Policy", "RefusedOperation"]


class RefusedOperation(ValueError):
    """The operation makes no sense, such as placing a job that runs."""


@dataclass(eq=False)
class Job:
    """A job that waits or runs."""

    id: int
    #: It runs on exactly this many GPUs.
    gpus: int
    submit_s: float
    #: The estimated running time alone, and what is left of it.
    estimate_s: float
    remaining_s: float
    #: Time on GPUs so far × number of GPUs.
    attained_s: float
    #: On each of its GPUs.
    memory_mib: float
    #: Percent, if known.
    gpu_util: float | None
    priority: int
    user: int
    #: It shares its GPUs with nobody.
    exclusive: bool
    #: It can be dropped and continued later.
    stoppable: bool
    #: Co-located jobs.
    beside: list[Job] = field(default_factory=list, repr=False)


class Policy:
    """Base class. Parameters arrive as arguments: ``python:FILE.py:Class:interval_s=300``."""

    def plan(self, draft: Draft) -> None:
        """Places, drops and pairs jobs of one partition."""
        raise NotImplementedError


class Draft:
    """The plan of one instant. Lists and `Job.beside` show the plan so far."""

    def __init__(
        self, state: dict[str, Any], jobs: dict[int, Job], ask: Callable[..., Any]
    ) -> None:
        self._ask = ask
        self._wake: float | None = None
        #: Seconds since the beginning of the trace.
        self.now: float = state["now"]
        #: GPUs of the partition that are up.
        self.gpus: int = state["gpus"]
        #: GPUs without a job.
        self.free: int = state["free"]
        self._running: dict[int, Job] = {}
        for id, remaining, attained, beside in state["running"]:
            job = self._running[id] = jobs[id]
            job.remaining_s, job.attained_s = remaining, attained
            job.beside = [jobs[other] for other in beside]
        self._waiting = {id: job for id, job in jobs.items() if id not in self._running}

    @property
    def waiting(self) -> list[Job]:
        """Jobs that wait, in order of submission."""
        return sorted(self._waiting.values(), key=lambda job: job.id)

    @property
    def running(self) -> list[Job]:
        """Jobs that run, in order of submission."""
        return sorted(self._running.values(), key=lambda job: job.id)

    def place(self, job: Job) -> bool:
        """Gives a waiting job GPUs of its own; False if there are not enough in the right places."""
        if not self._ask("place", job.id):
            return False
        self.free -= job.gpus
        self._starts(job)
        return True

    def share(self, job: Job, host: Job) -> bool:
        """Places a waiting job beside a running one; False if it has another size, is not alone, or
        one of them does not fit or accept the other."""
        if not self._ask("share", job.id, host.id):
            return False
        job.beside, host.beside = [host], [job]
        self._starts(job)
        return True

    def rates(self, job: Job, host: Job) -> tuple[float, float] | None:
        """Speeds of both if `job` joined `host`, relative to alone; None if they cannot share."""
        rates = self._ask("rates", job.id, host.id)
        return None if rates is None else (rates[0], rates[1])

    def drop(self, job: Job) -> None:
        """Stops a running job; it waits again, with its progress, and pays a restore later."""
        self._ask("drop", job.id)
        self.free += 0 if job.beside else job.gpus
        for other in job.beside:
            other.beside = [one for one in other.beside if one is not job]
        job.beside = []
        self._waiting[job.id] = self._running.pop(job.id)

    def wake_in(self, seconds: float) -> None:
        """Asks for a plan after this time, even if nothing happens before."""
        self._wake = seconds if self._wake is None else min(self._wake, seconds)

    def _starts(self, job: Job) -> None:
        self._running[job.id] = self._waiting.pop(job.id)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _load(file: str, name: str, params: str) -> Policy:
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    spec = importlib.util.spec_from_file_location("tandem_user_policy", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise TypeError(f"{file} has no class {name} derived from tandem.policy.Policy")
    pairs = (pair.split("=", 1) for pair in params.split(",") if pair)
    return kind(**{key: _value(text) for key, text in pairs})


def _problem(error: BaseException, file: str) -> str:
    """One line: the last place in the user's file, and the error."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if os.path.abspath(frame.filename) == os.path.abspath(file)]
    if isinstance(error, SyntaxError) and error.lineno:
        place = f"{file}, line {error.lineno}"
    else:
        place = f"{file}, line {own[-1].lineno}" if own else file
    text = " ".join(str(error).split())
    return (
        f"{place}: {type(error).__name__}: {text}" if text else f"{place}: {type(error).__name__}"
    )


class _Host:
    """Answers the scheduler, line by line."""

    def __init__(self, policy: Policy, lines: TextIO, out: TextIO) -> None:
        self._policy, self._lines, self._out = policy, lines, out
        self._jobs: dict[int, Job] = {}
        self._ran: set[int] = set()

    def say(self, *words: object) -> None:
        self._out.write(json.dumps(words, separators=(",", ":")) + "\n")
        self._out.flush()

    def ask(self, *words: object) -> Any:
        self.say(*words)
        answer = json.loads(self._lines.readline() or "{}")
        if isinstance(answer, dict):
            raise RefusedOperation(answer.get("error", "the scheduler is gone"))
        return answer[0]

    def plan(self, state: dict[str, Any]) -> None:
        running = {entry[0] for entry in state["running"]}
        for id in state["gone"]:
            if id not in running:
                self._jobs.pop(id, None)
        for row in state["waiting"]:
            self._jobs[row["id"]] = Job(**row)
        # What neither waits nor runs has ended.
        for id in self._ran - running - {row["id"] for row in state["waiting"]}:
            self._jobs.pop(id, None)
        self._ran = running
        draft = Draft(state, self._jobs, self.ask)
        self._policy.plan(draft)
        self.say("done", draft._wake)

    def serve(self) -> None:
        for line in self._lines:
            self.plan(json.loads(line))


def _main(file: str, name: str, params: str) -> int:
    # What a policy prints must not mix with the protocol.
    out, sys.stdout = sys.stdout, sys.stderr
    host = _Host(Policy(), sys.stdin, out)
    try:
        host._policy = _load(file, name, params)
        host.say("ready")
        host.serve()
    except (BrokenPipeError, KeyboardInterrupt):
        return 1
    except BaseException as error:  # SystemExit too: the run must learn why it has no plan.
        host.say("error", _problem(error, file))
        return 1
    return 0


if __name__ == "__main__":
    # Under its importable name, so that a class derived from it is recognised.
    from tandem import policy

    sys.exit(policy._main(*sys.argv[1:4]))
