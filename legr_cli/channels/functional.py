"""Functions that stand for statements in a traced graph."""

from typing import Any

from torch import Tensor


def assigned(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """Return a copy of `tensor` after `tensor[index] = value`."""
    tensor = tensor.clone()
    tensor[index] = value
    return tensor
