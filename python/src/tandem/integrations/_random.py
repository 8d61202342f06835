"""The state of all random numbers that a training may use."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def state() -> dict[str, Any]:
    now: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        kind, numbers, *rest = sys.modules["numpy"].random.get_state()
        # Checkpoints may be loaded without the permission to make other objects than tensors.
        now["numpy"] = (kind, torch.tensor(numbers.tolist()), *rest)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        now["cuda"] = torch.cuda.get_rng_state_all()
    return now


def restore(state: dict[str, Any]) -> None:
    if "torch" in state:
        torch.set_rng_state(state["torch"])
    if "python" in state:
        version, numbers, gauss = state["python"]
        random.setstate((version, tuple(numbers), gauss))
    if "numpy" in state and "numpy" in sys.modules:
        kind, numbers, *rest = state["numpy"]
        sys.modules["numpy"].random.set_state((kind, numbers.numpy().astype("uint32"), *rest))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
