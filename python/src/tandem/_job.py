"""A training loop that reports its steps and obeys the daemon."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from tandem import _parts
from tandem._line import POLL_S, Line

if TYPE_CHECKING:
    from typing_extensions import Self

Batch = TypeVar("Batch")

#: At most one report in this time.
REPORT_EVERY_S = 0.01
#: Values of one report.
SCALARS_MAX = 8
#: The longest gate that is obeyed.
GATE_MAX_S = 60.0


class Job:
    """The job that this process is.

        job = tandem.Job(batch_size=64)
        for x, y in job.batches(loader):
            optimizer.zero_grad()
            for xs, ys, w in job.split(x, y):
                (loss_fn(model(xs), ys) * w).backward()
            optimizer.step()
        if job.stopping:
            save()
        job.bye(done=not job.stopping)

    Without ``$TANDEM_SOCK``, that is outside of Tandem, all of this only passes the batches on. The
    daemon never makes the job fail or wait: what cannot be sent at once is dropped, and a daemon
    that is gone is tried again every two seconds.

    ``batch_size`` is reported to the daemon and is the most sub-batches a batch is computed in.
    ``accum=False`` means that the job reports and stops but always computes whole batches; a job
    that never calls `split` should say so. ``steps_done`` are the steps before the checkpoint from
    which the job continues.

    **Where splitting is exact.** The mean loss of a batch is the sum over its sub-batches of
    mean loss × ``w``, so the gradients are the same up to rounding. That does *not* hold for

    - batch normalisation: mean and variance are those of a sub-batch, not of the batch;
    - dropout and other layers that draw random numbers: other numbers are drawn;
    - losses across the batch (contrastive ones): samples of different sub-batches do not meet;
    - losses that sum instead of taking the mean: omit ``w`` there.

    Use ``accum=False`` for models of the first and the third kind.

    With several processes per job (DDP) use `tandem.integrations.torch.Job`.
    """

    def __init__(self, batch_size: int = 64, accum: bool = True, steps_done: int = 0) -> None:
        self._batch_size = max(1, int(batch_size))
        self._may_split = bool(accum)
        self._accum = self._clip(_positive(os.environ.get("TANDEM_ACCUM")) or 1)
        self._in_step = self._accum
        self._used = 0
        self._gate_s = 0.0
        self._stop_received = False
        self._stopping = False
        self._said_bye = False
        self._scalars: dict[str, float] = {}
        #: The step at which the job is done, if that is known: set it, and the daemon knows how
        #: long the job takes.
        self.total: int | None = None
        self._steps = max(0, int(steps_done))
        self._reported = (time.monotonic(), self._steps)
        self._line = self._open_line()
        self._listen()

    @property
    def accum(self) -> int:
        """In how many sub-batches the current batch is computed; 1 with ``accum=False``."""
        return self._in_step

    @property
    def steps(self) -> int:
        """Steps done so far."""
        return self._steps

    @property
    def stopping(self) -> bool:
        """Whether the daemon asked the job to save a checkpoint and exit."""
        return self._stopping

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Passes on the batches of ``loader``; each is a step. Ends early if the job is to stop.

        Settings change between batches only. A step counts as done when the next batch is asked
        for: leaving the loop with ``break`` omits the last one; call `step` then.
        """
        self._listen()
        if self._stopping:
            return
        for batch in loader:
            self._begin()
            if self._stopping:
                return
            yield batch
            self._end()
            if self._stopping:
                return

    def step(self) -> bool:
        """One optimiser step is done: for loops that do not use `batches`.

        Call it after ``optimizer.step()``. It waits at the gate, if there is one, and changes the
        settings of the next step. Returns False if the job is to stop.
        """
        self._end()
        self._begin()
        return not self._stopping

    def report(self, values: Mapping[str, Any] | None = None, **named: Any) -> None:
        """Values of the present step, shown by the dashboard: ``job.report(loss=loss.item())``.

        They go out with the next step report and cost nothing without a daemon. Give names that
        are no Python names as a mapping: ``job.report({"val/loss": 0.3})``. The daemon keeps the
        first eight names of up to 32 letters, digits and ``_-./``; what is no finite number is
        left out.
        """
        for name, value in {**(values or {}), **named}.items():
            try:
                number = float(value)
            except (TypeError, ValueError):
                continue
            has_room = name in self._scalars or len(self._scalars) < SCALARS_MAX
            if math.isfinite(number) and has_room:
                self._scalars[name] = number

    def split(self, *tensors: Any) -> Iterator[tuple[Any, ...]]:
        """The sub-batches of a batch, each with its weight: ``for xs, ys, w in job.split(x, y)``.

        Takes anything that has a length and can be sliced along its first dimension (torch tensors,
        numpy arrays, lists) and tuples and dicts of such things, which are split inside. (A list is
        one thing to be sliced, a tuple is several things.) All must be of one length. ``w`` is
        ``len(xs) / len(x)``. See the class for where this is not exact.
        """
        if not tensors:
            raise TypeError("split() needs the tensors of a batch")
        size = _parts.length(tensors)
        ranges = self._ranges(size)
        if len(ranges) == 1:
            yield (*tensors, 1.0)
            return
        for start, end in ranges:
            sliced = (_parts.slice_of(tensor, start, end) for tensor in tensors)
            with self._part(is_last=end == size):
                yield (*sliced, (end - start) / size)

    def bye(self, done: bool = True) -> None:
        """The job is about to exit; ``done=False`` means that it is to be queued again.

        Waits half a second at most until the last lines are sent.
        """
        if self._said_bye:
            return
        self._said_bye = True
        if self._line is not None:
            self._report(self._line)
            self._line.farewell({"op": "bye", "done": bool(done)})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Says ``bye`` if the block did not; after an exception the exit code says enough."""
        if kind is None:
            self.bye(done=not self._stopping)
        elif self._line is not None:
            self._line.close()

    # Overridden by jobs of several processes.

    #: Whether a stop takes effect at once; else `_agree` decides.
    _stops_at_once = True

    def _open_line(self) -> Line | None:
        path = os.environ.get("TANDEM_SOCK")
        return Line(path, self._hello) if path else None

    def _part(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """Surrounds the computation of a sub-batch."""
        return contextlib.nullcontext()

    def _agree(self) -> None:
        """At the beginning of a step: makes the settings of all processes the same."""

    def _hello(self) -> dict[str, Any]:
        return {
            "op": "hello",
            "v": 1,
            "job": os.environ.get("TANDEM_JOB_ID", ""),
            "pid": os.getpid(),
            "batch": self._batch_size,
            "caps": ["accum", "stop", "gate"] if self._may_split else ["stop", "gate"],
        }

    def _clip(self, accum: int) -> int:
        return max(1, min(accum, self._batch_size)) if self._may_split else 1

    def _ranges(self, size: int) -> list[tuple[int, int]]:
        """Begin and end of each sub-batch of a batch of this size."""
        count = max(1, min(self._in_step, size))
        self._used = max(self._used, count)
        return [(i * size // count, (i + 1) * size // count) for i in range(count)]

    def _begin(self) -> None:
        """Before a step: the gate, then the settings that hold until its end."""
        start = time.monotonic()
        while True:
            self._listen()
            remaining = self._gate_s - (time.monotonic() - start)
            if self._stop_received or remaining <= 0:
                break
            time.sleep(min(remaining, POLL_S))
        self._agree()
        if self._in_step != self._accum:
            _return_cached_memory()
        self._in_step = self._accum
        self._used = 0

    def _end(self) -> None:
        self._steps += 1
        if self._line is None:
            return
        if time.monotonic() - self._reported[0] >= REPORT_EVERY_S:
            self._report(self._line)
        self._listen()

    def _report(self, line: Line) -> None:
        """Reports the steps so far; what cannot be sent now, the next report covers."""
        since, before = self._reported
        now = time.monotonic()
        if self._steps <= before:
            return
        seconds = (now - since) / (self._steps - before)
        # A step in which `split` was not called was computed whole.
        used = max(1, self._used)
        message: dict[str, Any] = {"op": "step", "n": self._steps, "dt": seconds, "accum": used}
        if self.total is not None and self.total > 0:
            message["total"] = int(self.total)
        if self._scalars:
            message["scalars"] = self._scalars
        if line.send(message):
            self._scalars = {}
            self._reported = (now, self._steps)

    def _listen(self) -> None:
        if self._line is None:
            return
        for message in self._line.receive():
            self._obey(message)
        if not self._line.is_open:
            # A daemon that is gone delays no job.
            self._gate_s = 0.0

    def _obey(self, message: dict[str, Any]) -> None:
        op = message.get("op")
        if op == "stop":
            self._stop_received = True
            self._stopping |= self._stops_at_once
        elif op == "set":
            accum = message.get("accum")
            if isinstance(accum, int) and not isinstance(accum, bool):
                self._accum = self._clip(accum)
            gate = message.get("gate_ms")
            if isinstance(gate, (int, float)) and not isinstance(gate, bool) and gate == gate:
                self._gate_s = min(max(gate, 0), GATE_MAX_S * 1000) / 1000


def _return_cached_memory() -> None:
    """Other sub-batches need other memory: torch would keep what the largest ones took on the GPU."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _positive(text: str | None) -> int | None:
    try:
        number = int(text or "")
    except ValueError:
        return None
    return number if number > 0 else None
