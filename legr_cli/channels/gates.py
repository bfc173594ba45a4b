"""A network with a gate before every layer, through which all that the layer reads must pass.

What no layer reads does not matter, so a gate that shuts a unit's channels there silences the unit.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from legr_cli.channels.flow import Flow, Layer
from legr_cli.channels.layers import layer_at

Gate = Callable[[Layer, Tensor], Tensor]  # of a layer and what it is about to read


class Gated(fx.Interpreter):
    """Runs a traced network, gates and all."""

    def __init__(self, traced: fx.GraphModule, flow: Flow, gate: Gate) -> None:
        super().__init__(traced)
        self.flow, self.gate = flow, gate

    def run_node(self, n: fx.Node) -> Any:
        """One op; a layer gets what its gate lets through."""
        layer = layer_at(self.flow, n)
        if layer is None:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if args:
            return getattr(self, n.op)(n.target, (self.gate(layer, args[0]), *args[1:]), kwargs)
        passed = self.gate(layer, kwargs["input"])
        return getattr(self, n.op)(n.target, args, {**kwargs, "input": passed})


def beside(layer: Layer, x: Tensor, numbers: Tensor) -> Tensor:
    """Numbers (channels, or images × channels) in the shape of what a layer reads."""
    dim = x.ndim - 1 if layer.kind == "linear" else 1
    shape = [-1 if d == dim else 1 for d in range(x.ndim)]
    if numbers.ndim == 2:
        shape[0] = len(numbers)
    return numbers.reshape(shape)


def shut(layer: Layer, x: Tensor, stays: Tensor) -> Tensor:
    """Zero in the place of channels that do not stay, whatever they were."""
    return torch.where(beside(layer, x, stays), x, x.new_zeros(()))
