"""A training loop that reports its steps and does as the daemon says."""

import os
import time

from tandem._line import Line

#: No more than one report in this time.
REPORT_EVERY_S = 0.01
#: How long to sleep between two looks at the socket.
LOOK_S = 0.005
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

    Without ``$TANDEM_SOCK``, that is outside of Tandem, all of this does nothing but hand the
    batches on. The daemon never makes the job fail or wait: what cannot be sent at once is dropped,
    and a daemon that is gone is looked for again every two seconds.

    ``batch_size`` is what the daemon is told, and the most parts a batch is computed in.
    ``accum=False`` means that the job reports and stops but always computes whole batches; so does a
    job that never calls `split`, and it should say so.

    **Where splitting is exact.** The mean loss of a batch is the sum over its parts of
    mean loss × ``w``, so the gradients are the same up to rounding. That does *not* hold for

    - batch normalisation: mean and variance are those of a part, not of the batch;
    - dropout and other layers that draw random numbers: other numbers are drawn;
    - losses across the batch, contrastive ones for example: samples of different parts do not meet;
    - losses that sum instead of taking the mean: leave ``w`` away there.

    Use ``accum=False`` for models of the first and the third kind.
    """

    def __init__(self, batch_size=64, accum=True, steps_done=0):
        """``steps_done`` are the steps before the checkpoint from which the job continues."""
        self._batch_size = max(1, int(batch_size))
        self._may_split = bool(accum)
        self._accum = self._clip(_number(os.environ.get("TANDEM_ACCUM")) or 1)
        self._in_step = self._accum
        self._used = 0
        self._gate_s = 0.0
        self._stopping = False
        self._said_bye = False
        self._steps = max(0, int(steps_done))
        self._reported = (time.monotonic(), self._steps)
        path = os.environ.get("TANDEM_SOCK")
        self._line = Line(path, self._hello) if path else None
        self._listen()

    @property
    def accum(self):
        """The parts in which the current batch is computed; 1 with ``accum=False``."""
        return self._in_step

    @property
    def steps(self):
        """Steps done so far."""
        return self._steps

    @property
    def stopping(self):
        """Whether the daemon wants the job to save a checkpoint and leave."""
        return self._stopping

    def batches(self, loader):
        """Hands on the batches of ``loader``; each is a step. Ends early if the job is to stop.

        Settings change between batches only. A step counts as done when the next batch is asked
        for: leaving the loop with ``break`` leaves the last one out; call `step` then.
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

    def step(self):
        """One optimiser step is done: for loops that do not use `batches`.

        Call it after ``optimizer.step()``. It waits at the gate, if there is one, and changes the
        settings of the next step. Returns False if the job is to stop.
        """
        self._end()
        self._begin()
        return not self._stopping

    def split(self, *tensors):
        """The parts of a batch, each with its weight: ``for xs, ys, w in job.split(x, y)``.

        Takes anything that has a length and can be sliced along its first dimension (torch tensors,
        numpy arrays, lists) and tuples and dicts of such things, which are split inside. (A list is
        one thing to be sliced, a tuple is several things.) All must be of one length. ``w`` is
        ``len(xs) / len(x)``. See the class for where this is not exact.
        """
        if not tensors:
            raise TypeError("split() needs the tensors of a batch")
        size = _length(tensors)
        parts = max(1, min(self._in_step, size))
        self._used = max(self._used, parts)
        if parts == 1:
            yield (*tensors, 1.0)
            return
        for index in range(parts):
            start, end = index * size // parts, (index + 1) * size // parts
            sliced = (_slice(tensor, start, end) for tensor in tensors)
            yield (*sliced, (end - start) / size)

    def bye(self, done=True):
        """The job is at its end; ``done=False`` means that it is to be queued again.

        Waits half a second at most for the last lines to leave.
        """
        if self._said_bye:
            return
        self._said_bye = True
        if self._line is not None:
            self._report()
            self._line.farewell({"op": "bye", "done": bool(done)})

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """Says goodbye if nobody has; after an exception the exit code says enough."""
        if kind is None:
            self.bye(done=not self._stopping)
        elif self._line is not None:
            self._line.close()
        return False

    def _hello(self):
        return {
            "op": "hello",
            "v": 1,
            "job": os.environ.get("TANDEM_JOB_ID", ""),
            "pid": os.getpid(),
            "batch": self._batch_size,
            "caps": ["accum", "stop", "gate"] if self._may_split else ["stop", "gate"],
        }

    def _clip(self, accum):
        return max(1, min(accum, self._batch_size)) if self._may_split else 1

    def _begin(self):
        """Before a step: the gate, then the settings that hold until its end."""
        start = time.monotonic()
        while True:
            self._listen()
            left = self._gate_s - (time.monotonic() - start)
            if self._stopping or left <= 0:
                break
            time.sleep(min(left, LOOK_S))
        self._in_step = self._accum
        self._used = 0

    def _end(self):
        self._steps += 1
        if self._line is None:
            return
        if time.monotonic() - self._reported[0] >= REPORT_EVERY_S:
            self._report()
        self._listen()

    def _report(self):
        """Says how far the job is; what cannot be said now, the next report covers."""
        since, before = self._reported
        now = time.monotonic()
        if self._steps <= before:
            return
        seconds = (now - since) / (self._steps - before)
        # A step in which `split` was not called was computed whole.
        used = max(1, self._used)
        message = {"op": "step", "n": self._steps, "dt": seconds, "accum": used}
        if self._line.send(message):
            self._reported = (now, self._steps)

    def _listen(self):
        if self._line is None:
            return
        for said in self._line.receive():
            self._obey(said)
        if not self._line.is_open:
            # A daemon that is gone holds nobody back.
            self._gate_s = 0.0

    def _obey(self, said):
        op = said.get("op")
        if op == "stop":
            self._stopping = True
        elif op == "set":
            accum = said.get("accum")
            if isinstance(accum, int) and not isinstance(accum, bool):
                self._accum = self._clip(accum)
            gate = said.get("gate_ms")
            if isinstance(gate, (int, float)) and not isinstance(gate, bool) and gate == gate:
                self._gate_s = min(max(gate, 0), GATE_MAX_S * 1000) / 1000


def _number(text):
    """A whole number above 0, or None."""
    try:
        number = int(text)
    except (TypeError, ValueError):
        return None
    return number if number > 0 else None


def _leaves(value):
    """The things to be sliced inside of tuples and dicts."""
    if isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    else:
        yield value


def _length(tensors):
    lengths = {len(leaf) for leaf in _leaves(tensors)}
    if len(lengths) != 1:
        raise ValueError(f"the tensors of a batch have different lengths: {sorted(lengths)}")
    return lengths.pop()


def _slice(value, start, end):
    if isinstance(value, tuple):
        items = [_slice(item, start, end) for item in value]
        # A named tuple is made of its fields, a plain one of one sequence.
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: _slice(item, start, end) for key, item in value.items()}
    return value[start:end]
