"""Hugging Face's Trainer.

    from tandem.integrations.transformers import attach

    attach(trainer)
    trainer.train()

The trainer reports its steps. When the daemon asks it to stop, it saves a checkpoint and the script
exits; the next run of the job continues from there. Batches are computed in as many sub-batches as the
daemon says.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from tandem.integrations._run import Note, job_id
from tandem.integrations.torch import Job

#: Labels that count for no loss.
IGNORED_LABEL = -100
NOTE = "tandem-job.json"


class TandemCallback(TrainerCallback):
    """Reports steps; on a stop lets the trainer save a checkpoint and end its training.

    `attach` adds it. By itself it neither splits batches, nor continues from the checkpoint, nor ends
    the script: ask `interrupted` after ``trainer.train()``.
    """

    def __init__(self, may_split: Callable[[Any, Any], bool] | None = None) -> None:
        """``may_split`` says, by arguments and model, whether `job` offers sub-batches."""
        self._may_split = may_split or (lambda args, model: False)
        self.job: Job | None = None
        #: Whether the training ended because of a stop.
        self.interrupted = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.interrupted = False
        self.job = Job(
            batch_size=args.per_device_train_batch_size,
            accum=self._may_split(args, kwargs.get("model")),
            steps_done=state.global_step,
        )
        self.job.total = state.max_steps if state.max_steps > 0 else None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Training that is complete is not interrupted.
        if self.job is None or self.job.step() or state.global_step >= state.max_steps:
            return
        self.interrupted = True
        # Without the state of the optimiser the next run could not continue.
        args.save_only_model = False
        control.should_save = True
        control.should_evaluate = False
        control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.job is not None:
            self.job.report(logs or {})

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.interrupted:
            control.should_save = False
            control.should_evaluate = False

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.job is not None:
            self.job.bye(done=not self.interrupted)


def attach(trainer: Any, split: bool | None = None) -> Any:
    """Connects a Trainer to the daemon, before ``trainer.train()``; returns it.

    - **Reports** every optimiser step.
    - **Stops**: saves a checkpoint in ``output_dir`` and ends the script with exit code 0.
    - **Continues**: later runs of the same job resume from the newest checkpoint that the job wrote,
      unless ``resume_from_checkpoint`` says otherwise.
    - **Splits** every batch as the daemon says, exactly: gradients are those of the whole batch up to
      rounding, and DDP synchronises them once. ``split`` turns it on or off; without it models with
      batch normalisation are not split, nor is training with DeepSpeed, FSDP or DataParallel. Turn
      it off for losses across the batch (contrastive ones).
    """
    splitter = _Splitter(trainer, split)
    trainer.add_callback(splitter.callback)
    trainer.training_step = splitter.training_step
    trainer.compute_loss = splitter.compute_loss
    train = trainer.train

    def continued(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        output_dir = trainer.args.output_dir
        if not resume_from_checkpoint:
            resume_from_checkpoint = _checkpoint_of_this_job(output_dir)
        if resume_from_checkpoint is None and job_id() and trainer.is_world_process_zero():
            Note(os.path.join(output_dir, NOTE)).write()
        result = train(resume_from_checkpoint, *args, **kwargs)
        if splitter.callback.interrupted:
            sys.exit(0)
        return result

    trainer.train = continued
    return trainer


class _Splitter:
    """Computes each batch of a Trainer in sub-batches."""

    def __init__(self, trainer: Any, split: bool | None) -> None:
        self._trainer = trainer
        self._split = split
        self._training_step = trainer.training_step
        self._compute_loss = trainer.compute_loss
        #: Share of the batch's loss that the sub-batch at hand contributes.
        self._weight = 1.0
        #: What `_is_sum` found out.
        self._sums: bool | None = None
        self.callback = TandemCallback(self._may_split)

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        parts = self._parts(inputs)
        if parts is None:
            return self._training_step(model, inputs, *args, **kwargs)
        items = args[0] if args else kwargs.get("num_items_in_batch")
        # A sum that is divided by the items of the whole batch needs no weight.
        is_sum = items is not None and self._is_sum(model, parts[0][0], items)
        total: Any = 0.0
        for index, (part, weight) in enumerate(parts):
            is_last = index == len(parts) - 1
            no_sync = self._trainer.accelerator.no_sync
            with contextlib.nullcontext() if is_last else no_sync(model=model):
                self._weight = 1.0 if is_sum else weight
                try:
                    total = total + self._training_step(model, part, *args, **kwargs)
                finally:
                    self._weight = 1.0
        return total

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any
    ) -> Any:
        result = self._compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        if self._weight == 1.0:
            return result
        if return_outputs:
            loss, outputs = result
            return loss * self._weight, outputs
        return result * self._weight

    def _is_sum(self, model: Any, part: Any, items: Any) -> bool:
        """Whether the loss is the sum over the items of a part, divided by those of the batch.

        Whether a model does what it is asked to with ``num_items_in_batch``, only its loss shows.
        """
        if self._sums is None:
            trainer = self._trainer
            # A copy of the state of random numbers: dropout is not to notice.
            with torch.random.fork_rng(), torch.no_grad(), trainer.compute_loss_context_manager():
                inputs = trainer._prepare_inputs(dict(part))
                losses = []
                for count in (items, items * 2):
                    loss = self._compute_loss(model, dict(inputs), num_items_in_batch=count)
                    losses.append(float(loss.mean()))
            if losses[0] == 0.0:
                return False
            self._sums = losses[1] / losses[0] < 0.75
        return self._sums

    def _parts(self, inputs: Any) -> list[tuple[dict[str, Any], float]] | None:
        """The sub-batches and their weights; None if the batch is computed whole."""
        job = self.callback.job
        if job is None or job.accum == 1 or not isinstance(inputs, Mapping):
            return None
        tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
        sizes = {len(tensor) if tensor.dim() else 0 for tensor in tensors}
        # Packed sequences and the like have no common first dimension.
        if len(sizes) != 1 or 0 in sizes:
            return None
        size = sizes.pop()
        ranges = job._ranges(size)
        if len(ranges) == 1:
            return None
        parts = []
        for start, end in ranges:
            part = {
                name: value[start:end] if isinstance(value, torch.Tensor) else value
                for name, value in inputs.items()
            }
            parts.append((part, (end - start) / size))
        return _weighted_by_labels(parts, inputs.get("labels"))

    def _may_split(self, args: Any, model: Any) -> bool:
        if self._split is not None:
            return self._split
        kinds = torch.nn.modules.batchnorm._BatchNorm
        if model is None or any(isinstance(module, kinds) for module in model.modules()):
            return False
        kind = self._trainer.accelerator.distributed_type
        name = str(getattr(kind, "value", kind))
        # One process, or DDP on whatever device.
        return args.n_gpu <= 1 and (name == "NO" or name.startswith("MULTI_"))


def _weighted_by_labels(
    parts: list[tuple[dict[str, Any], float]], labels: Any
) -> list[tuple[dict[str, Any], float]]:
    """Weights for losses that are the mean over tokens and not over samples."""
    if not isinstance(labels, torch.Tensor) or labels.dim() < 2 or labels.is_floating_point():
        return parts
    counts = [int((part["labels"] != IGNORED_LABEL).sum()) for part, _ in parts]
    # A part without labels has no mean: it would add NaN, and nothing else.
    if not all(counts):
        return parts if not any(counts) else _without_empty(parts, counts)
    return [(part, count / sum(counts)) for (part, _), count in zip(parts, counts)]


def _without_empty(
    parts: list[tuple[dict[str, Any], float]], counts: list[int]
) -> list[tuple[dict[str, Any], float]]:
    kept = [(part, count) for (part, _), count in zip(parts, counts) if count]
    return [(part, count / sum(counts)) for part, count in kept]


def _checkpoint_of_this_job(output_dir: str) -> str | None:
    """The newest checkpoint that an earlier run of this job wrote."""
    note = Note(os.path.join(output_dir, NOTE))
    if note.read() is None:
        return None
    since = note.written_at()
    newest: tuple[int, str] | None = None
    for folder in Path(output_dir).glob("checkpoint-*"):
        step = folder.name.rpartition("-")[2]
        # Written last, so that a checkpoint with it is whole.
        state = folder / "trainer_state.json"
        if not step.isdecimal() or not state.exists() or state.stat().st_mtime < since:
            continue
        if newest is None or int(step) > newest[0]:
            newest = (int(step), str(folder))
    return None if newest is None else newest[1]
