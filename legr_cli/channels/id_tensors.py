"""Id tensors: tensors of the shapes of a network's activations that hold channel ids.

An id tensor is an expanded view (stride 0) along every dimension in which its ids do not vary.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from legr_cli.channels.record import TensorShape
from legr_cli.channels.structures import tensors

Ids = torch.Tensor


def first_tensor(args: Any, kwargs: Any) -> Ids:
    """Return the first tensor among an op's arguments, positional or by keyword."""
    return tensors((args, kwargs))[0]


def collapse(id_tensor: Ids, keep: int | None = None) -> Ids:
    """Narrow expanded dimensions (stride 0) other than `keep` to size 1."""
    for dim in range(id_tensor.ndim):
        if id_tensor.stride(dim) == 0 and id_tensor.shape[dim] > 1 and dim != keep:
            id_tensor = id_tensor.narrow(dim, 0, 1)
    return id_tensor


def compact(id_tensor: Ids) -> Ids:
    """Return an equal id tensor that is expanded along every dimension without variation."""
    small = collapse(id_tensor)
    for dim in range(small.ndim):
        one = small.narrow(dim, 0, 1)
        if small.shape[dim] > 1 and bool((small == one).all()):
            small = one
    return small.expand(id_tensor.shape)


def expand_along(ids: Ids, dim: int, shape: TensorShape) -> Ids:
    """Make an id tensor of this shape whose ids vary along `dim` only."""
    view = [1] * len(shape)
    if len(shape) > dim:
        view[dim] = -1
    return ids.reshape(view).expand(shape)


def varies(id_tensor: Ids, dim: int) -> bool:
    """Whether the ids differ along a dimension."""
    return compact(id_tensor).stride(dim) != 0 and id_tensor.shape[dim] > 1


def connected_components(count: int, ties: Iterable[tuple[Ids, Ids]]) -> np.ndarray:
    """Label each of `count` ids with the smallest id that it is tied to, directly or not."""
    pairs = [np.stack([a.numpy(), b.numpy()]) for a, b in ties]
    label = np.arange(count)
    if not pairs:
        return label
    a, b = np.unique(np.concatenate(pairs, 1), axis=1)
    while True:
        low, high = np.minimum(label[a], label[b]), np.maximum(label[a], label[b])
        if np.array_equal(low, high):
            return label
        # hook each larger label onto the smaller one, then follow chains of labels to their root
        np.minimum.at(label, high, low)
        while not np.array_equal(label, label[label]):
            label = label[label]
