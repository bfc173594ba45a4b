"""What an activation hides: rows of a layer in front of one that is flat somewhere, such as ReLU.

The layer is first fitted to the dense value S of what reaches the activation g. What it then gives,
v, is known, and of the error S − v only a part matters: where the smaller step g(S) − g(v) already
leads to g(S), the layer is asked for that step. Two values below zero, for instance, are the same
to ReLU, and from above zero it is enough to reach zero.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_SMALLEST = 1e-6  # of the slope, relative to the largest one: below, a row is left alone

Activation = Callable[[Tensor], Tensor]


@dataclass
class ActivationRows:
    """Some rows, with what reaches the activation as the layer's weights stand."""

    inputs: Tensor  # rows × groups × unknowns
    value: Tensor  # rows × groups × channels, like the next two
    slope: Tensor  # derivative of the value by the layer's output
    wanted: Tensor  # the dense value

    def residual(self, activation: Activation | None = None) -> Tensor:
        """What the layer's output lacks: all of it or, with the activation, what is not hidden."""
        error = self.wanted - self.value
        if activation is not None:
            error = visible(error, self.value, activation)
        solvable = self.slope.abs() > _SMALLEST * self.slope.abs().max()
        return torch.where(solvable, error / self.slope, 0.0)

    def move(self, delta: Tensor, shift: Tensor) -> None:
        """Update the value after Δ, groups × unknowns × channels, and a shift were added."""
        change = (self.inputs.transpose(0, 1) @ delta.to(self.inputs.dtype)).transpose(0, 1)
        self.value = self.value + self.slope * (change + shift.to(self.value.dtype))


def visible(error: Tensor, value: Tensor, activation: Activation) -> Tensor:
    """The error, or the smaller step g(S) − g(v) where it leads to the same activation."""
    wanted = activation(value + error)
    step = wanted - activation(value)
    return torch.where(activation(value + step) == wanted, step, error)
