"""Lightning's Trainer.

    from tandem.integrations.lightning import attach

    attach(trainer)
    trainer.fit(model)

The trainer reports its steps. When the daemon asks it to stop, it saves a checkpoint and the script
exits; the next run of the job continues from there, with the next batch. Batches are always computed
whole: in Lightning the training step belongs to the model.
"""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

from tandem.integrations import _random
from tandem.integrations._run import is_rerun, job_id
from tandem.integrations.torch import Job

LOG = logging.getLogger("tandem")


def attach(trainer: Any) -> Any:
    """Connects a Trainer to the daemon, before ``trainer.fit(...)``; returns it.

    - **Reports** every optimiser step.
    - **Stops**: saves ``tandem-job-ID.ckpt`` in ``default_root_dir`` and ends the script with exit
      code 0.
    - **Continues**: the next run of the same job resumes from that file, unless ``ckpt_path`` says
      otherwise. It skips the batches of the epoch that are done; with one process, shuffling and
      dropout continue with the random numbers of the interrupted run.
    """
    # Lightning has two packages with a class of this name each.
    package = type(trainer).__module__.partition(".")[0]
    base = importlib.import_module(
        "lightning.pytorch" if package == "lightning" else "pytorch_lightning"
    ).Callback
    path = Path(trainer.default_root_dir) / f"tandem-job-{job_id()}.ckpt"
    callback = type("TandemCallback", (_Hooks, base), {})(path)
    trainer.callbacks.append(callback)
    fit = trainer.fit

    def continued(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("ckpt_path") is None and len(args) < 5 and is_rerun() and path.exists():
            kwargs["ckpt_path"] = str(path)
        return fit(*args, **kwargs)

    trainer.fit = continued
    return trainer


class _Hooks:
    """The hooks of the callback."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._job: Job | None = None
        self._steps = 0
        #: Random numbers when the iteration over the batches of this epoch began, and at the stop.
        self._at_epoch: dict[str, Any] = {}
        self._at_stop: dict[str, Any] = {}
        self._is_first_epoch = True

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        # A checkpoint has been loaded by now, if there is one.
        self._is_first_epoch = not self._at_stop
        if self._is_first_epoch:
            # The loader of the first epoch is iterated before any hook of the epoch.
            self._at_epoch = _random.state()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps = trainer.global_step
        self._job = Job(accum=False, steps_done=self._steps)
        # Without a number of steps it is -1, and the epochs are not counted in steps here.
        self._job.total = trainer.max_steps if trainer.max_steps > 0 else None
        if self._at_stop:
            self._skip_done_batches(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if not self._is_first_epoch:
            self._at_epoch = _random.state()
        self._is_first_epoch = False

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        # Several batches may make one step; between them gradients would be lost.
        if self._job is None or trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        if self._job.step() or _is_complete(trainer):
            return
        self._at_stop = _random.state()
        trainer.save_checkpoint(self._path)
        self._at_stop = {}
        if _is_last_batch(trainer):
            # Validation and the end of the epoch belong to this run; it stops after the next step.
            return
        self._job.bye(done=False)
        # The rest of Lightning's own way to stop would validate and take the epoch for complete.
        sys.exit(0)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._job is not None:
            self._job.bye(done=True)
        if job_id() and trainer.is_global_zero:
            self._path.unlink(missing_ok=True)

    def state_dict(self) -> dict[str, Any]:
        return {"at_epoch": self._at_epoch, "at_stop": self._at_stop}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._at_epoch = state.get("at_epoch", {})
        self._at_stop = state.get("at_stop", {})

    def _skip_done_batches(self, trainer: Any) -> None:
        """Begins the epoch where it was left: Lightning counts the batches but does not skip them."""
        at_stop, self._at_stop = self._at_stop, {}
        loop = trainer.fit_loop
        done = loop.epoch_loop.batch_progress.current.processed
        try:
            fetcher, loaders = loop._data_fetcher, loop._combined_loader.flattened
        except AttributeError:
            LOG.warning("tandem: this version of Lightning repeats the first batches of the epoch")
            return
        # Every rank draws random numbers of its own, and the checkpoint is rank 0's.
        is_single = trainer.world_size == 1
        # Lightning itself restores loaders that can be restored.
        if not any(hasattr(loader, "load_state_dict") for loader in loaders):
            if is_single:
                # The order of the epoch was drawn when it began.
                _random.restore(self._at_epoch)
            for loader in loaders:
                for sampler in _samplers(loader):
                    if hasattr(sampler, "set_epoch"):
                        sampler.set_epoch(loop.epoch_progress.current.processed)
            iter(fetcher)
            for _ in range(done if done < trainer.num_training_batches else 0):
                next(fetcher)
            # The epoch loop adds the batches that are done.
            fetcher.fetched = 0
        if is_single:
            _random.restore(at_stop)


def _is_last_batch(trainer: Any) -> bool:
    return bool(trainer.fit_loop.epoch_loop.batch_progress.is_last_batch)


def _is_complete(trainer: Any) -> bool:
    if 0 <= trainer.max_steps <= trainer.global_step:
        return True
    if trainer.max_epochs is None or trainer.max_epochs < 0:
        return False
    return trainer.current_epoch + 1 >= trainer.max_epochs and _is_last_batch(trainer)


def _samplers(loader: Any) -> list[Any]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    return [
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    ]
