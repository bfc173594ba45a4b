"""First-order change of the outputs when a filter's output is replaced by its mean; no labels.

For a random projection p of the outputs, (Σ over positions of (a − ā) · ∂p/∂a)² of a filter's
output a is the squared change of p, to first order. It is averaged over images and projections.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from legr_cli.channels.layers import layer_at
from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import evaluating, fixed_seed
from legr_cli.channels.units import Units
from legr_cli.cost import Cost
from legr_cli.metrics.sharing import shared_out, summed

PROJECTIONS = 4  # of the outputs, for each batch


class _OutputRecorder(fx.Interpreter):
    """Runs the dense network, and keeps the first output of every layer."""

    def __init__(self, units: Units) -> None:
        super().__init__(units.flow.traced)
        self.units = units
        self.found: dict[str, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run a node; ops that work in place get a copy of a layer's output."""
        result = super().run_node(n)
        layer = layer_at(self.units.flow, n)
        if layer is None or layer.name in self.found:
            return result
        self.found[layer.name] = result if result.requires_grad else result.requires_grad_()
        return result.clone()


def taylor(units: Units, cost: Cost, batches: Sequence[Tensor]) -> dict[str, Tensor]:
    """For each filter, the logarithm of the change without its unit."""
    sums: dict[str, Tensor] = {}
    generator = torch.Generator().manual_seed(0)
    with evaluating(units.source.model), fixed_seed(), torch.enable_grad():
        for batch in batches:
            _add_changes(sums, units, batch, generator)
    return shared_out(units, cost, summed(units, sums))


def _add_changes(
    sums: dict[str, Tensor], units: Units, batch: Tensor, generator: torch.Generator
) -> None:
    """Add the squared change for each filter of each layer, summed over a batch."""
    run = _OutputRecorder(units)
    results = [t for t in tensors(run.run(batch)) if t.requires_grad]
    for number in range(PROJECTIONS if results else 0):
        noise = [torch.randn(t.shape, generator=generator).to(t) for t in results]
        gradients = torch.autograd.grad(
            results,
            list(run.found.values()),
            noise,
            retain_graph=number + 1 < PROJECTIONS,
            allow_unused=True,
        )
        for (name, value), gradient in zip(run.found.items(), gradients, strict=True):
            if gradient is not None:
                part = _squared(value.detach(), gradient, len(units.flow.layers[name].out))
                sums[name] = sums[name] + part if name in sums else part


def _squared(value: Tensor, gradient: Tensor, channels: int) -> Tensor:
    """(Σ over positions of (a − ā) · gradient)², summed over images, for each channel."""
    dim = 1 if value.ndim > 2 and value.shape[1] == channels else value.ndim - 1
    value, gradient = (t.movedim(dim, 1).double() for t in (value, gradient))
    spatial = [0, *range(2, value.ndim)]
    change = (value - value.mean(spatial, keepdim=True)) * gradient
    return change.flatten(2).sum(2).square().sum(0) if value.ndim > 2 else change.square().sum(0)
