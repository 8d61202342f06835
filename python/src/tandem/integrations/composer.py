"""Composer's Trainer.

    from tandem.integrations.composer import TandemCallback, load_path

    Trainer(..., callbacks=[TandemCallback("checkpoints")], load_path=load_path("checkpoints"))

The trainer reports its steps. When the daemon asks it to stop, it saves a checkpoint and the script
exits; the next run of the job continues from there. Batches are computed as Composer does.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from composer.core import Callback
from composer.utils.checkpoint import save_checkpoint

from tandem.integrations._run import is_rerun, job_id
from tandem.integrations.torch import Job


class TandemCallback(Callback):
    """Reports steps; on a stop saves a checkpoint in ``folder`` and ends the script."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._path = _path(folder)
        self._job: Job | None = None

    def fit_start(self, state: Any, logger: Any) -> None:
        self._job = Job(accum=False, steps_done=int(state.timestamp.batch))

    def batch_checkpoint(self, state: Any, logger: Any) -> None:
        # Training that is complete is not interrupted.
        if self._job is None or self._job.step() or state.timestamp >= state.max_duration:
            return
        save_checkpoint(state, self._path)
        self._job.bye(done=False)
        sys.exit(0)

    def fit_end(self, state: Any, logger: Any) -> None:
        if self._job is not None:
            self._job.bye(done=True)


def load_path(folder: str | os.PathLike[str]) -> str | None:
    """The checkpoint of an earlier run of this job; None if there is none."""
    path = _path(folder)
    return path if is_rerun() and os.path.exists(path) else None


def _path(folder: str | os.PathLike[str]) -> str:
    return os.path.join(os.fspath(folder), f"tandem-job-{job_id()}.pt")
