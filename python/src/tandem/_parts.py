"""Slices of batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def leaves(value: Any) -> Iterator[Any]:
    """The things to be sliced inside of tuples and dicts."""
    if isinstance(value, tuple):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    else:
        yield value


def length(tensors: tuple[Any, ...]) -> int:
    """The one length of all of them."""
    lengths = {len(leaf) for leaf in leaves(tensors)}
    if len(lengths) != 1:
        raise ValueError(f"the tensors of a batch have different lengths: {sorted(lengths)}")
    return lengths.pop()


def slice_of(value: Any, start: int, end: int) -> Any:
    if isinstance(value, tuple):
        items = [slice_of(item, start, end) for item in value]
        # A named tuple is made of its fields, a plain one of one sequence.
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, dict):
        return {key: slice_of(item, start, end) for key, item in value.items()}
    return value[start:end]
