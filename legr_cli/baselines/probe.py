"""Gradients of gates: how the loss depends on each channel.

A gate multiplies a channel that a layer reads by one. For a channel z, the gradient of its gate is
Σ over positions of z · ∂loss/∂z. One backward pass gives it for every layer and every image. Taylor
and FisherPruning are both based on it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from legr_cli.channels.flow import Layer
from legr_cli.channels.gates import GatedInterpreter, broadcastable, mask_channels
from legr_cli.channels.units import Units

GateUnits = list[np.ndarray]  # for each gate, the units of its channels; -1: no unit


@dataclass(frozen=True)
class Criterion:
    """A way to score units: what each batch adds to a sum, and the scores from its mean."""

    # gradients (images × channels) and units of each gate, number of units → sum over images
    accumulate: Callable[[list[Tensor], GateUnits, int], Tensor]
    # mean over images, units of each gate, FLOPs that removing each unit saves → scores
    score: Callable[[np.ndarray, GateUnits, np.ndarray], np.ndarray]


class GatedNetwork(nn.Module):
    """A network that masks its removed units and, in training mode, adds gates."""

    def __init__(self, units: Units) -> None:
        super().__init__()
        self.traced, self.units = units.flow.traced, units
        self.kept = np.ones(units.count, bool)
        self._gates: list[tuple[Layer, Tensor]] = []
        self.images = 0  # in the last step

    def forward(self, images: Tensor) -> Any:
        """Run the network, with new gates in training mode."""
        self._gates, self.images = [], len(images)
        return GatedInterpreter(self.traced, self.units.flow, self._gate).run(images)

    def _gate(self, layer: Layer, x: Tensor) -> Tensor:
        mask = torch.from_numpy(self.units.keeps(self.kept, layer.into)).to(x.device)
        x = mask_channels(layer, x, mask)
        if not self.training:
            return x
        ones = x.new_ones(len(x), len(layer.into), requires_grad=True)
        self._gates.append((layer, ones))
        return x * broadcastable(layer, x, ones)

    @property
    def gate_units(self) -> GateUnits:
        """The units of each gate's channels, in the last step."""
        return [self.units.unit_of(layer.into) for layer, _ in self._gates]

    def gradients(self) -> list[Tensor]:
        """For each gate, images × channels: gradients of each image's own loss.

        Call it after backpropagating the mean loss over the images of a step.
        """
        gradients, images = [], self.images
        for layer, gate in self._gates:
            gradient = torch.zeros_like(gate) if gate.grad is None else gate.grad
            # a layer may see several rows per image; the mean loss divides by the images
            gradients.append(gradient.reshape(images, -1, len(layer.into)).sum(1) * images)
        return gradients


def sum_by_unit(values: Tensor, units: np.ndarray, count: int) -> Tensor:
    """Sum the last dimension by unit; channels without a unit (-1) are left out."""
    index = torch.from_numpy(units).to(values.device)
    sums = values.new_zeros(*values.shape[:-1], count + 1)  # the extra column collects unit -1
    return sums.index_add_(-1, index % (count + 1), values)[..., :-1]
