"""What a channel is worth by the loss: the gradient of a gate of ones that stands before it.

For a channel z that a layer reads, the gradient of its gate is Σ over positions of z · ∂loss/∂z: of
each image by itself, and all at once for every layer. Taylor and FisherPruning both begin here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from legr_cli.channels.flow import Layer
from legr_cli.channels.gates import GatedInterpreter, broadcastable, mask_channels
from legr_cli.channels.units import Units

Reads = list[np.ndarray]  # for each gate, the units of the channels that its layer reads; or -1


@dataclass(frozen=True)
class Criterion:
    """A way to score units: what a batch adds to a sum, and what the sum's mean is worth."""

    take: Callable[[list[Tensor], Reads, int], Tensor]  # of gradients (images × channels) by gate
    score: Callable[[np.ndarray, Reads, np.ndarray], np.ndarray]  # beside it: FLOPs that go with u


class Probed(nn.Module):
    """A network whose removed units are silenced and whose gates keep their gradients."""

    def __init__(self, units: Units) -> None:
        super().__init__()
        self.traced, self.units = units.flow.traced, units
        self.kept = np.ones(units.count, bool)
        self._gates: list[tuple[Layer, Tensor]] = []

    def forward(self, images: Tensor) -> Tensor:
        """What the network says; while it trains, with new gates."""
        self._gates = []
        answer: Tensor = GatedInterpreter(self.traced, self.units.flow, self._gate).run(images)
        return answer

    def _gate(self, layer: Layer, x: Tensor) -> Tensor:
        stays = torch.from_numpy(self.units.keeps(self.kept, layer.into)).to(x.device)
        x = mask_channels(layer, x, stays)
        if not self.training:
            return x
        ones = x.new_ones(len(x), len(layer.into), requires_grad=True)
        self._gates.append((layer, ones))
        return x * broadcastable(layer, x, ones)

    @property
    def reads(self) -> Reads:
        """The units before each gate of the last step."""
        return [self.units.unit_of(layer.into) for layer, _ in self._gates]

    def gradients(self, images: int) -> list[Tensor]:
        """Of each image's own loss, after a step on the mean loss of so many images."""
        found = []
        for layer, gate in self._gates:
            own = torch.zeros_like(gate) if gate.grad is None else gate.grad
            found.append(own.reshape(images, -1, len(layer.into)).sum(1) * images)
        return found


def by_unit(values: Tensor, units: np.ndarray, count: int) -> Tensor:
    """Sums of the last dimension by unit; channels of no unit are left out."""
    index = torch.from_numpy(units).to(values.device)
    sums = values.new_zeros(*values.shape[:-1], count + 1)  # the last is for those of no unit
    return sums.index_add_(-1, index % (count + 1), values)[..., :-1]
