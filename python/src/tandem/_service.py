"""A service that reports the latency of its requests."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from tandem._line import Line

#: Latencies are reported in windows of this length.
WINDOW_S = 1.0
#: Latencies of a window that are kept: enough for its percentiles.
LATENCIES_MAX = 100_000


class Service:
    """The service that this process is, submitted with ``tandem submit --service``.

        service = tandem.Service()

        def handle(request):
            with service.request():
                return model(request)

    Requests may be answered in several threads. Once a second the number of requests and their 50th
    and 99th percentile go to the daemon. A request counts from the entry of the ``with`` block: where
    requests wait in a queue before, report what they waited with ``service.add(seconds)`` instead.

    Without ``$TANDEM_SOCK``, that is outside of Tandem, nothing is reported. The daemon never makes
    the service fail or wait.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = max(0.1, float(window_s))
        self._lock = threading.Lock()
        self._latencies: list[float] = []
        self._requests = 0
        self._since = time.monotonic()
        path = os.environ.get("TANDEM_SOCK", "")
        self._line = Line(path, _hello) if path else None
        if self._line is not None:
            # A service without requests reports, too: that it has none.
            threading.Thread(target=self._report_for_ever, name="tandem", daemon=True).start()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """One request: its latency is the time in the ``with`` block, also if that raises."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.add(time.monotonic() - start)

    def add(self, seconds: float) -> None:
        """Adds a request that took so many seconds."""
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError(f"a latency of {seconds} seconds; give a number from 0 on")
        with self._lock:
            self._requests += 1
            if len(self._latencies) < LATENCIES_MAX:
                self._latencies.append(seconds)

    def report(self) -> dict[str, Any]:
        """Sends the requests since the last report, and returns what was sent."""
        now = time.monotonic()
        with self._lock:
            latencies, self._latencies = sorted(self._latencies), []
            count, self._requests = self._requests, 0
            length, self._since = now - self._since, now
        message: dict[str, Any] = {"op": "requests", "n": count, "dt": max(length, 1e-6)}
        if latencies:
            message["p50_ms"] = 1e3 * _percentile(latencies, 0.5)
            message["p99_ms"] = 1e3 * _percentile(latencies, 0.99)
        if self._line is not None:
            self._line.send(message)
        return message

    def _report_for_ever(self) -> None:
        while True:
            time.sleep(self._window_s)
            self.report()


def _percentile(values: list[float], part: float) -> float:
    return values[max(0, math.ceil(part * len(values)) - 1)]


def _hello() -> dict[str, Any]:
    job = os.environ.get("TANDEM_JOB_ID", "")
    return {"op": "hello", "v": 1, "job": job, "pid": os.getpid(), "caps": []}
