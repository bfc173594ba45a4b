"""Convolutions and linear layers: the ids they read and make, and what they cost."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from legr_cli.channels.flow import Flow, Layer, Term
from legr_cli.channels.id_tensors import first, spread
from legr_cli.channels.ops import is_functional_layer
from legr_cli.channels.slicing import groups_of, obeys, weight_axes
from legr_cli.channels.trace import fetch


@dataclass(frozen=True)
class _Call:
    """What one use of a layer works with."""

    name: str
    weight: torch.Tensor
    bias: torch.Tensor | None
    bias_name: str | None
    groups: int
    transposed: bool
    linear: bool


def layer(flow: Flow, node: fx.Node, module: nn.Module | None, args: Any, kwargs: Any) -> Any:
    """A convolution or linear reads the ids of its input and makes new ones."""
    call = _module_call(node, module, args, kwargs) if module else _functional_call(flow, node)
    if call is None:
        return None
    shape, twin = flow.shapes[node], first(args, kwargs)
    dim = len(shape) - 1 if call.linear else 1
    into = flow.along(twin, dim)
    known = flow.layers.get(call.name)
    out = known.out if known else flow.fresh(shape[dim])
    if known:  # the same weights once more
        flow.tie(known.into, into)
    if call.groups > 1:
        lines = torch.cat([into.reshape(call.groups, -1), out.reshape(call.groups, -1)], 1)
        flow.tie(lines, lines[:, :1])
    kind = "linear" if call.linear else "depthwise" if call.groups == len(into) > 1 else "conv"
    axes = weight_axes(call.transposed, call.groups)
    flow.layers[call.name] = Layer(call.name, kind, call.weight, out, into, axes, call.bias_name)
    if not known:
        flow.own(call.name, call.weight, out, into)
        flow.own(call.name, call.bias, out, into)
    _layer_cost(flow, call, flow.layers[call.name], twin.shape, shape, dim)
    return spread(out, dim, shape)


def _layer_cost(flow: Flow, call: _Call, layer: Layer, before: Any, after: Any, dim: int) -> None:
    """weights × output positions (× input positions if transposed); a multiply-add is one."""
    cols = layer.into if call.groups == 1 else None
    pairs = layer.weight.numel() // (len(layer.out) * (1 if cols is None else len(cols)))
    space = before if call.transposed else after
    positions = math.prod(space) // (2 * space[dim])
    params = pairs if flow.counts(call.weight) else 0
    flow.terms.append(Term(call.name, pairs * positions, params, layer.out, cols))
    if flow.counts(call.bias):
        flow.terms.append(Term(call.name, 0, 1, layer.out))


def _module_call(node: fx.Node, module: nn.Module, args: Any, kwargs: Any) -> _Call | None:
    """What a layer that is a module works with; None when its `forward` breaks the rules."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    transposed, groups = getattr(module, "transposed", False), groups_of(module)
    if not isinstance(weight, torch.Tensor) or (transposed and groups > 1):
        return None
    if len(args) + len(kwargs) != 1 or not obeys(module, first(args, kwargs).shape):
        return None
    linear = isinstance(module, nn.Linear)
    return _Call(str(node.target), weight, bias, None, groups, transposed, linear)


def _functional_call(flow: Flow, node: fx.Node) -> _Call | None:
    """What `F.conv2d` or `F.linear` works with, if its weight is a parameter as it is."""
    given = named_arguments(node)
    nodes = [n for n in (given.get("weight"), given.get("bias")) if n is not None]
    targets = []
    for n in nodes:
        if not isinstance(n, fx.Node) or n.op != "get_attr":
            return None
        if not all(is_functional_layer(user) for user in n.users):
            return None
        targets.append(str(n.target))
    weight, *bias = [fetch(flow.traced, target) for target in targets]
    return _Call(
        name=targets[0],
        weight=weight,
        bias=bias[0] if bias else None,
        bias_name=targets[1] if bias else None,
        groups=int(fx.node.map_arg(given.get("groups", 1), lambda n: flow.twins[n])),  # type: ignore[arg-type]
        transposed=False,
        linear=node.target is F.linear,
    )


def named_arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of `F.conv2d` or `F.linear` by name, whichever way they were given."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def layer_at(flow: Flow, node: fx.Node) -> Layer | None:
    """The layer that a node calls: a module's by its name, a functional one by its weight's."""
    if node.op == "call_module":
        return flow.layers.get(str(node.target))
    if not is_functional_layer(node):
        return None
    weight = named_arguments(node).get("weight")
    return flow.layers.get(str(weight.target)) if isinstance(weight, fx.Node) else None
