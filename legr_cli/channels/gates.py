"""Run a network with a gate before every layer, which may change what the layer reads.

A channel that no layer reads has no effect, so closing a unit's gates removes the unit.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from legr_cli.channels.flow import Flow, Layer
from legr_cli.channels.layers import layer_at
from legr_cli.channels.slicing import Axes

Gate = Callable[[Layer, Tensor], Tensor]  # (layer, its input) → the input to use instead


class GatedInterpreter(fx.Interpreter):
    """Runs a traced network with gates."""

    def __init__(self, traced: fx.GraphModule, flow: Flow, gate: Gate) -> None:
        super().__init__(traced)
        self.flow, self.gate = flow, gate

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; the input of a layer passes through the gate first."""
        layer = layer_at(self.flow, n) or _recurrent_layer(self.flow, n)
        if layer is None:
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if args:
            return getattr(self, n.op)(n.target, (self.gate(layer, args[0]), *args[1:]), kwargs)
        gated = self.gate(layer, kwargs["input"])
        return getattr(self, n.op)(n.target, args, {**kwargs, "input": gated})


def _recurrent_layer(flow: Flow, node: fx.Node) -> Layer | None:
    """A recurrent layer as one that reads its input like a linear layer, and writes nothing."""
    name = str(node.target)
    if node.op != "call_module" or name not in flow.readers:
        return None
    into = flow.readers[name]
    return Layer(name, "linear", torch.empty(0), into[:0], into, Axes(into=1))


def broadcastable(layer: Layer, x: Tensor, values: Tensor) -> Tensor:
    """Reshape values per channel, or per image and channel, to broadcast over a layer's input."""
    dim = x.ndim - 1 if layer.kind == "linear" else 1
    shape = [-1 if d == dim else 1 for d in range(x.ndim)]
    if values.ndim == 2:
        shape[0] = len(values)
    return values.reshape(shape)


def mask_channels(layer: Layer, x: Tensor, kept: Tensor) -> Tensor:
    """Zero the channels of a layer's input that are not kept, even if they are NaN."""
    return torch.where(broadcastable(layer, x, kept), x, x.new_zeros(()))
