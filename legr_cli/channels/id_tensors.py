"""Twins: tensors of a network's shapes, filled with the ids of channels in the place of numbers.

A twin is kept as an expanded view (stride 0) along every dimension in which no id varies.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import fx

from legr_cli.channels.trace import TensorShape

Ids = torch.Tensor


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a nest of tuples, lists and dicts."""
    found: list[torch.Tensor] = []
    fx.node.map_aggregate(value, lambda v: found.append(v) if isinstance(v, torch.Tensor) else None)
    return found


def first(args: Any, kwargs: Any) -> Ids:
    """The tensor that an op works on, given by place or by name."""
    return tensors((args, kwargs))[0]


def narrowed(twin: Ids, but: int | None = None) -> Ids:
    """The twin with expanded dimensions (stride 0) cut to size 1, for speed."""
    for dim in range(twin.ndim):
        if twin.stride(dim) == 0 and twin.shape[dim] > 1 and dim != but:
            twin = twin.narrow(dim, 0, 1)
    return twin


def compact(twin: Ids) -> Ids:
    """The same twin with every dimension along which nothing varies as an expanded one."""
    small = narrowed(twin)
    for dim in range(small.ndim):
        one = small.narrow(dim, 0, 1)
        if small.shape[dim] > 1 and bool((small == one).all()):
            small = one
    return small.expand(twin.shape)


def spread(ids: Ids, dim: int, shape: TensorShape) -> Ids:
    """A twin of this shape whose ids follow one dimension."""
    view = [1] * len(shape)
    if len(shape) > dim:
        view[dim] = -1
    return ids.reshape(view).expand(shape)


def varies(twin: Ids, dim: int) -> bool:
    """Whether the ids differ along a dimension."""
    return compact(twin).stride(dim) != 0 and twin.shape[dim] > 1


def components(count: int, ties: Iterable[tuple[Ids, Ids]]) -> np.ndarray:
    """The smallest id tied to each id, by hooking roots onto smaller ones until none moves."""
    pairs = [np.stack([a.numpy(), b.numpy()]) for a, b in ties]
    label = np.arange(count)
    if not pairs:
        return label
    a, b = np.unique(np.concatenate(pairs, 1), axis=1)
    while True:
        low, high = np.minimum(label[a], label[b]), np.maximum(label[a], label[b])
        if np.array_equal(low, high):
            return label
        np.minimum.at(label, high, low)
        while not np.array_equal(label, label[label]):
            label = label[label]
