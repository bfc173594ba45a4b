"""Nested tuples, lists, dicts and dataclasses that hold tensors, as networks take and return."""

import dataclasses
import operator
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch


def parts(value: Any) -> list[tuple[Any, Callable[..., Any], Any]]:
    """The parts of a structure, with the function and the key that get them."""
    if isinstance(value, tuple | list):
        return [(part, operator.getitem, index) for index, part in enumerate(value)]
    if isinstance(value, dict):
        return [(part, operator.getitem, key) for key, part in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(getattr(value, f.name), getattr, f.name) for f in dataclasses.fields(value)]
    return []


def holds(value: Any, test: Any) -> bool:
    """Whether a structure holds a value of a type, or one that passes a test."""
    if isinstance(value, test) if isinstance(test, type) else test(value):
        return True
    if isinstance(value, slice):
        return any(holds(v, test) for v in (value.start, value.stop, value.step))
    return any(holds(part, test) for part, _, _ in parts(value))


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Replace every tensor in a structure; what holds none stays as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if not tensors(value):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(part, change) for part in value))
    if isinstance(value, tuple | list):
        return type(value)([map_tensors(part, change) for part in value])
    if isinstance(value, dict):
        return {key: map_tensors(part, change) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(*(map_tensors(v, change) for v in (value.start, value.stop, value.step)))
    new = {field.name: map_tensors(getattr(value, field.name), change) for field in fields(value)}
    return type(value)(**new)


def tensors(value: Any) -> list[torch.Tensor]:
    """List the tensors in a structure."""
    if isinstance(value, torch.Tensor):
        return [value]
    pieces = [value.start, value.stop, value.step] if isinstance(value, slice) else []
    pieces += [part for part, _, _ in parts(value)]
    return [tensor for piece in pieces for tensor in tensors(piece)]


def batch_size(value: Any) -> int:
    """The number of images that a structure holds outputs or targets of.

    Tensors without dimensions, such as an auxiliary loss, are skipped.
    """
    return next((len(tensor) for tensor in tensors(value) if tensor.ndim), 1)
