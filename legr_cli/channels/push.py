"""Push channel ids through a traced network.

Every tensor of the network has a twin of the same shape, filled with the ids of its channels.
Ops that move elements about are run on the twin as they are; other ops tie ids to each other.
Id 0 is never given out: a zero in a twin was made by the op itself (padding), and gets a new id.
"""

from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.flow import Flow, Term
from legr_cli.channels.id_tensors import Ids, spread, tensors
from legr_cli.channels.ops import (
    OpKind,
    describe,
    in_place,
    is_functional_layer,
    kind_of,
    may_be_view,
    node_facts,
)
from legr_cli.channels.rules import RULES, asks_for_shape
from legr_cli.channels.slicing import width_out
from legr_cli.channels.trace import TensorShape, fetch


def push(traced: fx.GraphModule, shapes: dict[fx.Node, Any]) -> Flow:
    """Push ids through `traced`, whose values are known from a run on two images."""
    flow = Flow(traced, shapes)
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
        return _image(flow, node, shape)
    if node.op == "get_attr":
        return _attribute(flow, node)
    args, kwargs = arguments(node, flow.twins)
    if node.op == "output":
        flow.pin(args, describe(node, modules))
        return args
    module = modules[str(node.target)] if node.op == "call_module" else None
    if not _has_shape(shape):
        if not asks_for_shape(flow, node):
            flow.pin((args, kwargs), describe(node, modules))
        return shape  # a plain value: a size, a number, a dtype
    flow.kinds[node] = kind = kind_of(node, modules)
    twin = None
    hooked, base = _has_hooks(module), _base_of_view(flow, node, modules)
    if not hooked and base is None and (tensors((args, kwargs)) or kind is OpKind.SHAPE):
        twin = RULES[kind](flow, node, module, args, kwargs)
    if twin is None:
        if module is not None and kind is OpKind.LAYER:
            flow.strangers[str(node.target)] = width_out(module)
        flow.kinds[node] = OpKind.UNKNOWN
        reason = describe(node, modules) + (", which has hooks" if hooked else "")
        flow.pin((args, kwargs, flow.twins[base] if base else ()), reason)
        twin = _pinned(flow, shape, reason)
    return twin


def _image(flow: Flow, node: fx.Node, shape: Any) -> Any:
    """An input of the network; an option of `forward` is a plain value."""
    if not isinstance(shape, TensorShape):
        return shape
    ids = flow.fresh(shape[1] if len(shape) > 1 else 1)
    flow.pin(ids, describe(node, {}))
    return spread(ids, 1, shape)


def _has_hooks(module: nn.Module | None) -> bool:
    """Whether code runs around the module that the graph does not show (weight norm, masks)."""
    return module is not None and bool(module._forward_hooks or module._forward_pre_hooks)


def _base_of_view(flow: Flow, node: fx.Node, modules: dict[str, nn.Module]) -> fx.Node | None:
    """The tensor of which an op changes a part in place, if it is read again later on."""
    if not in_place(node, modules) or not node.all_input_nodes:
        return None
    root = node.all_input_nodes[0]
    while may_be_view(root, flow.kinds.get(root), modules) and root.all_input_nodes:
        root = root.all_input_nodes[0]
    if root is node.all_input_nodes[0]:
        return None
    views, later = [root], set()
    for view in views:
        views += [user for user in view.users if may_be_view(user, flow.kinds.get(user), modules)]
        later |= {user for user in view.users if user > node}
    return root if later else None


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
        return [_pinned(flow, value, reason) for value in shape]
    return shape


def _attribute(flow: Flow, node: fx.Node) -> Any:
    """A tensor of the network: an index or a weight is a value, all else has an id an element."""
    name = str(node.target)
    value = fetch(flow.traced, name)
    if not isinstance(value, torch.Tensor):
        return value
    if node.users and all(
        node_facts(user).indexes and user.args[0] is not node for user in node.users
    ):
        return value.cpu()
    if any(map(is_functional_layer, node.users)) or value.numel() == 1:
        return torch.zeros((), dtype=torch.long).expand(value.shape)
    if name not in flow.channelwise:
        twin = flow.fresh(value.numel()).reshape(value.shape)
        flow.channelwise[name] = twin
        flow.own(name, value, twin.flatten())
        if flow.counts(value):
            flow.terms.append(Term(name, 0.0, 1, twin.flatten()))
    return flow.channelwise[name]


def _pin_shared_tensors(flow: Flow) -> None:
    """A tensor that two layers or norms share cannot be cut for one of them."""
    owners: dict[int, tuple[str, list[Ids]]] = {}
    for name, tensor, ids in flow.owned:
        first, theirs = owners.setdefault(id(tensor), (name, ids))
        if first != name:
            flow.pin([theirs, ids], f"weights shared by {first} and {name}")
