"""Push channel ids through a traced network.

Every tensor of the network has a twin of the same shape, filled with the ids of its channels.
Ops that move elements about are run on the twin as they are; other ops tie ids to each other.
Id 0 is never given out: a zero in a twin was made by the op itself (padding), and gets a new id.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from legr_cli.channels.flow import Flow, Layer, Term
from legr_cli.channels.ops import CONVOLUTIONS, Kind, describe, kind_of
from legr_cli.channels.rules import RULES
from legr_cli.channels.slicing import width_out
from legr_cli.channels.trace import TensorShape, fetch, shapes
from legr_cli.channels.twins import spread, tensors


def push(traced: fx.GraphModule, input_shape: tuple[int, ...]) -> Flow:
    """Push ids through `traced`; the example has two images, so that no batch is a broadcast."""
    tensor = next(traced.parameters(), torch.zeros(()))
    example = torch.zeros(2, *input_shape, dtype=tensor.dtype, device=tensor.device)
    flow = Flow(traced, shapes(traced, example))
    flow.pin(torch.zeros(1, dtype=torch.long), "weights that are computed on")
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        flow.twins[node] = _push_node(flow, node, modules)
    _pin_shared_tensors(flow)
    return flow


def _push_node(flow: Flow, node: fx.Node, modules: dict[str, nn.Module]) -> Any:
    """The twin of what `node` gives, after noting what it ties, makes and pins."""
    shape = flow.shapes[node]
    if node.op == "placeholder":
        ids = flow.fresh(shape[1]) if len(shape) > 1 else flow.fresh(1)
        flow.pin(ids, describe(node, modules))
        return spread(ids, 1, shape)
    if node.op == "get_attr":
        return _attribute(flow, node)
    args, kwargs = arguments(node, flow.twins)
    if node.op == "output":
        flow.pin(args, describe(node, modules))
        return args
    if not _has_shape(shape):
        return shape  # a plain value: a size, a number, a dtype
    flow.kinds[node] = kind = kind_of(node, modules)
    module = modules[str(node.target)] if node.op == "call_module" else None
    twin = None
    if tensors((args, kwargs)) or kind is Kind.SHAPE:
        twin = RULES[kind](flow, node, module, args, kwargs)
    if twin is None:
        if module is not None and kind is Kind.LAYER:
            flow.strangers[str(node.target)] = width_out(module)
        flow.kinds[node] = Kind.UNKNOWN
        flow.pin((args, kwargs), describe(node, modules))
        twin = _pinned(flow, shape, describe(node, modules))
    return twin


def arguments(node: fx.Node, values: dict[fx.Node, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The node's arguments with other nodes replaced by their values."""
    return (
        fx.node.map_arg(node.args, lambda n: values[n]),  # type: ignore[return-value]
        fx.node.map_arg(node.kwargs, lambda n: values[n]),
    )


def _has_shape(value: Any) -> bool:
    """Whether a recorded value is or holds a tensor."""
    if isinstance(value, TensorShape):
        return True
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, tuple | list) and any(_has_shape(v) for v in value)


def _pinned(flow: Flow, shape: Any, reason: str) -> Any:
    """One id that can never be removed, for all that an op without a rule gives."""
    if isinstance(shape, TensorShape):
        twin = flow.fresh(1).reshape([1] * len(shape)).expand(shape)
        flow.pin(twin, reason)
        return twin
    if isinstance(shape, dict):
        return {key: _pinned(flow, value, reason) for key, value in shape.items()}
    if isinstance(shape, tuple | list):
        return type(shape)(_pinned(flow, value, reason) for value in shape)
    return shape


def _attribute(flow: Flow, node: fx.Node) -> Any:
    """A tensor of the network: an index is a plain value, all else has an id an element."""
    name = str(node.target)
    value = fetch(flow.traced, name)
    if not isinstance(value, torch.Tensor):
        return value
    if not value.is_floating_point():
        return value.cpu()
    if any(user.target in (*CONVOLUTIONS, F.linear) for user in node.users):
        return torch.zeros((), dtype=torch.long).expand(value.shape)  # a layer's weight
    if name not in flow.channelwise:
        twin = flow.fresh(value.numel()).reshape(value.shape)
        flow.channelwise[name] = twin
        if isinstance(value, nn.Parameter):
            flow.terms.append(Term(name, 0.0, 1, twin.flatten()))
    return flow.channelwise[name]


def _pin_shared_tensors(flow: Flow) -> None:
    """A parameter that two layers share cannot be cut for one of them."""
    owners: dict[int, Layer] = {}
    for layer in flow.layers.values():
        other = owners.setdefault(id(layer.weight), layer)
        if other is not layer:
            reason = f"weights shared by {other.name} and {layer.name}"
            flow.pin([other.out, other.into, layer.out, layer.into], reason)
