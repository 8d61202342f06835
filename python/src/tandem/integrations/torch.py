"""A training loop with torch, in one process or in several (DDP).

from tandem.integrations.torch import Job

job = Job(batch_size=64, model=ddp_model)       # after init_process_group
for x, y in job.batches(loader):
    optimizer.zero_grad()
    for xs, ys, w in job.split(x, y):           # gradients are synchronised with the last part
        (loss_fn(ddp_model(xs), ys) * w).backward()
    optimizer.step()
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
from typing import Any

import torch

import tandem
from tandem._line import Line

LOG = logging.getLogger("tandem")
#: Processes that are paused together must not time out when they continue.
AGREE_WITHIN = datetime.timedelta(days=365)


class Job(tandem.Job):
    """`tandem.Job` for torch: the same in a single process; in several, rank 0 talks to the daemon.

    At the beginning of every step rank 0 broadcasts the settings over gloo, so that all ranks compute
    in the same number of sub-batches and stop after the same step. Create it in all ranks, after
    ``init_process_group``. With ``model`` (the DDP-wrapped one) gradients are synchronised once per
    batch, in the backward pass of its last sub-batch.

    The memory that torch takes is limited to ``$TANDEM_GPU_MEMORY_LIMIT``: see `limit_memory`.
    """

    def __init__(
        self,
        batch_size: int = 64,
        accum: bool = True,
        steps_done: int = 0,
        model: Any = None,
    ) -> None:
        self._model = model
        self._group = _settings_group()
        self._stops_at_once = self._group is None
        super().__init__(batch_size=batch_size, accum=accum, steps_done=steps_done)
        limit_memory()

    def _open_line(self) -> Line | None:
        if self._group is not None and torch.distributed.get_rank() != 0:
            return None
        return super()._open_line()

    def _agree(self) -> None:
        if self._group is None:
            return
        settings = torch.tensor([self._accum, int(self._stop_received)], dtype=torch.int64)
        torch.distributed.broadcast(settings, src=0, group=self._group)
        self._accum = self._clip(int(settings[0]))
        self._stopping = bool(settings[1])

    def _part(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        no_sync = getattr(self._model, "no_sync", None)
        return contextlib.nullcontext() if is_last or no_sync is None else no_sync()


def limit_memory() -> float | None:
    """Limits torch's allocator on the current GPU to ``$TANDEM_GPU_MEMORY_LIMIT`` bytes.

    A job that needs more than it declared then gets ``torch.cuda.OutOfMemoryError`` itself, instead of
    taking the memory of the jobs beside it. The CUDA context (some 100 MB) is not counted. Returns
    the fraction of the device's memory; None without a limit or without a GPU.
    """
    try:
        limit = int(os.environ.get("TANDEM_GPU_MEMORY_LIMIT", ""))
    except ValueError:
        return None
    if limit <= 0 or not torch.cuda.is_available():
        return None
    device = torch.cuda.current_device()
    total: int = torch.cuda.get_device_properties(device).total_memory
    fraction = min(1.0, limit / total)
    try:
        torch.cuda.set_per_process_memory_fraction(fraction, device)
    except RuntimeError as cause:
        LOG.warning("tandem: the memory of GPU %s is not limited: %s", device, cause)
        return None
    return fraction


def _settings_group() -> Any:
    """The processes that have to agree; None if there is one."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise RuntimeError("create the job after torch.distributed.init_process_group")
        return None
    if distributed.get_world_size() == 1:
        return None
    # Settings are numbers in host memory, whatever the gradients are sent with.
    return distributed.new_group(backend="gloo", timeout=AGREE_WITHIN)
