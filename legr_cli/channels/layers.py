"""Convolutions and linear layers: the ids they read and create, and their cost."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.flow import Flow, Grouped, Layer, Term
from legr_cli.channels.id_tensors import expand_along, first_tensor
from legr_cli.channels.ops import is_functional_layer, module_facts, node_facts
from legr_cli.channels.slicing import groups_of, slices_like_base, weight_axes
from legr_cli.channels.structures import tensors
from legr_cli.channels.trace import fetch_attr

# The parameters of `F.conv2d`, in order; `F.linear` has the first three.
ARGUMENTS = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


@dataclass(frozen=True)
class _LayerCall:
    """The weights and options of one call of a layer."""

    name: str
    weight: torch.Tensor
    bias: torch.Tensor | None
    bias_name: str | None
    groups: int
    transposed: bool
    linear: bool


def layer_rule(flow: Flow, node: fx.Node, module: nn.Module | None, args: Any, kwargs: Any) -> Any:
    """A layer reads the ids of its input and creates new ones."""
    call = _module_call(node, module, args, kwargs) if module else _functional_call(flow, node)
    if call is None:
        return None
    shape, id_tensor = flow.shapes[node], first_tensor(args, kwargs)
    dim = len(shape) - 1 if call.linear else 1
    into = flow.ids_along(id_tensor, dim)
    earlier = flow.layers.get(call.name)
    out = earlier.out if earlier else flow.new_ids(shape[dim])
    if earlier:  # the same weights are applied again
        flow.tie(earlier.into, into)
    if call.groups > 1:
        rows = (ids.reshape(call.groups, -1) for ids in (into, out))
        flow.grouped.append(Grouped(call.name, *rows))
    kind = "linear" if call.linear else "depthwise" if call.groups == len(into) > 1 else "conv"
    axes = weight_axes(call.transposed, call.groups)
    flow.layers[call.name] = Layer(call.name, kind, call.weight, out, into, axes, call.bias_name)
    if not earlier:
        flow.record_owner(call.name, call.weight, out, into)
        flow.record_owner(call.name, call.bias, out, into)
    _add_cost(flow, call, flow.layers[call.name], id_tensor.shape, shape, dim)
    return expand_along(out, dim, shape)


def _add_cost(
    flow: Flow, call: _LayerCall, layer: Layer, in_shape: Any, out_shape: Any, dim: int
) -> None:
    """Add the layer's FLOPs per image (a multiply-add is one FLOP) and its parameters.

    FLOPs = weights × output positions, or × input positions if the convolution is transposed.
    """
    cols = layer.into if call.groups == 1 else None
    # weights per pair of channels; in a grouped layer, per output channel
    weights = layer.weight.numel() // (len(layer.out) * (1 if cols is None else len(cols)))
    sizes = in_shape if call.transposed else out_shape
    positions = math.prod(sizes) // (2 * sizes[dim])  # shapes are those of two images
    params = weights if flow.count_once(call.weight) else 0
    flow.terms.append(Term(call.name, weights * positions, params, layer.out, cols))
    if flow.count_once(call.bias):
        flow.terms.append(Term(call.name, 0, 1, layer.out))


def _module_call(node: fx.Node, module: nn.Module, args: Any, kwargs: Any) -> _LayerCall | None:
    """Describe the call of a module; None if its `forward` treats channels in an unknown way."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    transposed, groups = getattr(module, "transposed", False), groups_of(module)
    if not isinstance(weight, torch.Tensor):
        return None
    transposed_size = transposed and len(tensors((args, kwargs))) == 1  # `output_size`
    if len(args) + len(kwargs) != 1 and not transposed_size:
        return None
    if not slices_like_base(module, first_tensor(args, kwargs).shape):
        return None
    linear = module_facts(module).channels_last
    return _LayerCall(str(node.target), weight, bias, None, groups, transposed, linear)


def _functional_call(flow: Flow, node: fx.Node) -> _LayerCall | None:
    """Describe a call of `F.conv2d` or `F.linear`; None if its weight is not a plain parameter."""
    given = named_arguments(node)
    nodes = [n for n in (given.get("weight"), given.get("bias")) if n is not None]
    targets = []
    for n in nodes:
        if not isinstance(n, fx.Node) or n.op != "get_attr":
            return None
        if not all(is_functional_layer(user) for user in n.users):
            return None
        targets.append(str(n.target))
    weight, *bias = [fetch_attr(flow.traced, target) for target in targets]
    return _LayerCall(
        name=targets[0],
        weight=weight,
        bias=bias[0] if bias else None,
        bias_name=targets[1] if bias else None,
        groups=int(fx.node.map_arg(given.get("groups", 1), lambda n: flow.id_tensors[n])),  # type: ignore[arg-type]
        transposed=False,
        linear=node_facts(node).channels_last,
    )


def named_arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of `F.conv2d` or `F.linear` by name."""
    return {**dict(zip(ARGUMENTS, node.args, strict=False)), **node.kwargs}


def layer_at(flow: Flow, node: fx.Node) -> Layer | None:
    """Return the layer that a node calls; functional layers go by the name of their weight."""
    if node.op == "call_module":
        return flow.layers.get(str(node.target))
    if not is_functional_layer(node):
        return None
    weight = named_arguments(node).get("weight")
    return flow.layers.get(str(weight.target)) if isinstance(weight, fx.Node) else None
