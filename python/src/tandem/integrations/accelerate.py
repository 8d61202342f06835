"""A training loop with Hugging Face's Accelerator.

    from tandem.integrations.accelerate import Job

    job = Job(accelerator, model, checkpoint="state")      # after accelerator.prepare
    for epoch in range(epochs):
        for batch in job.batches(loader):
            ...

When the daemon asks the job to stop, ``accelerator.save_state`` writes the checkpoint and the script
exits; the next run of the job loads it and skips the batches that are done.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from accelerate import skip_first_batches

from tandem._job import Batch
from tandem.integrations import _random, torch
from tandem.integrations._run import Note

NOTE = "tandem-job.json"


class Job(torch.Job):
    """`tandem.integrations.torch.Job` with an Accelerator.

    ``model`` is the prepared model. With ``accum=True`` compute each batch with `split`, and call
    ``accelerator.backward(loss * w)``. ``checkpoint`` is the folder of the checkpoint; without it
    the script saves and ends by itself when `stopping` is True.
    """

    def __init__(
        self,
        accelerator: Any,
        model: Any = None,
        batch_size: int = 64,
        accum: bool = False,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> None:
        self._accelerator = accelerator
        self._folder = None if checkpoint is None else os.fspath(checkpoint)
        done = self._load()
        #: Batches that an earlier run computed and that are still to be skipped.
        self._skip = done
        super().__init__(batch_size=batch_size, accum=accum, steps_done=done, model=model)
        atexit.register(self._at_exit)

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """`tandem.Job.batches` that skips what is done, and ends the script after a stop."""
        if self._skip:
            length = len(loader)  # type: ignore[arg-type]
            if self._skip >= length:
                self._skip -= length
                # Shuffling depends on how often the loader was iterated.
                loader.iteration = getattr(loader, "iteration", 0) + 1  # type: ignore[attr-defined]
                return
            loader = self._from_the_middle(loader)
        before, begun = _random.state(), self.steps
        yield from super().batches(loader)
        if self.stopping and self._folder is not None:
            if self.steps == begun:
                # Beginning an epoch draws random numbers; the next run begins this one again.
                _random.restore(before)
            self._save(self._folder)
            self.bye(done=False)
            sys.exit(0)

    def _from_the_middle(self, loader: Any) -> Iterator[Any]:
        """The batches of an epoch that an earlier run had begun."""
        epoch = getattr(loader, "iteration", 0)
        rest, self._skip = skip_first_batches(loader, self._skip), 0
        if hasattr(rest, "set_epoch"):
            rest.set_epoch(epoch)
        # Beginning an epoch draws random numbers, which the earlier run drew before it was stopped.
        before = _random.state()
        for index, batch in enumerate(rest):
            if index == 0:
                _random.restore(before)
            yield batch
        loader.iteration = epoch + 1

    def _part(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        if is_last or self._model is None:
            return contextlib.nullcontext()
        no_sync: contextlib.AbstractContextManager[Any] = self._accelerator.no_sync(self._model)
        return no_sync

    def _load(self) -> int:
        """Loads the checkpoint of an earlier run; returns its steps."""
        if self._folder is None:
            return 0
        note = Note(os.path.join(self._folder, NOTE)).read()
        if note is None:
            return 0
        self._accelerator.load_state(self._folder)
        return int(str(note["steps"]))

    def _save(self, folder: str) -> None:
        self._accelerator.save_state(folder)
        if self._accelerator.is_main_process:
            # Last, so that a checkpoint with it is whole.
            Note(os.path.join(folder, NOTE)).write(steps=self.steps)

    def _at_exit(self) -> None:
        # A script that ends by itself is done; if it failed, its exit code says so.
        self.bye(done=not self.stopping)
