"""Push channel ids through a traced network.

Every tensor of the network gets an id tensor of the same shape, filled with the ids of its
channels. Ops that only move elements are run on id tensors as they are; other ops tie ids to each
other. Id 0 is never allocated: a zero in an id tensor comes from the op itself (padding) and is
replaced by a new id.
"""

from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.flow import Flow, Term
from legr_cli.channels.groups import tie_groups
from legr_cli.channels.id_tensors import Ids, expand_along
from legr_cli.channels.ops import (
    OpKind,
    describe,
    in_place,
    is_functional_layer,
    kind_of,
    may_be_view,
    module_facts,
    node_facts,
)
from legr_cli.channels.record import TensorShape
from legr_cli.channels.rules import RULES, pinned_ids, reads_only_metadata
from legr_cli.channels.slicing import width_out
from legr_cli.channels.structures import tensors
from legr_cli.channels.trace import fetch_attr


def push(traced: fx.GraphModule, shapes: dict[fx.Node, Any]) -> Flow:
    """Push ids through `traced`; `shapes` are the node values recorded on two images."""
    flow = Flow(traced, shapes)
    flow.pin(torch.zeros(1, dtype=torch.long), "weights computed in the forward pass")
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        flow.id_tensors[node] = _push_node(flow, node, modules)
    _pin_shared_tensors(flow)
    tie_groups(flow)
    return flow


def _push_node(flow: Flow, node: fx.Node, modules: dict[str, nn.Module]) -> Any:
    """Return the id tensor of a node's result, recording what the op ties, creates and pins."""
    shape = flow.shapes[node]
    if node.op == "placeholder":
        return _push_input(flow, node, shape)
    if node.op == "get_attr":
        return _push_attribute(flow, node)
    args, kwargs = map_arguments(node, flow.id_tensors)
    if node.op == "output":
        flow.pin(args, describe(node, modules))
        return args
    module = modules[str(node.target)] if node.op == "call_module" else None
    if not _holds_tensor(shape):
        if not reads_only_metadata(flow, node):
            flow.pin((args, kwargs), describe(node, modules))
        return shape  # a plain value: a size, a number, a dtype
    flow.kinds[node] = kind = kind_of(node, modules)
    id_tensor = None
    hooked, base = _has_hooks(module), _base_of_view(flow, node, modules)
    if (
        not hooked
        and base is None
        and (tensors((args, kwargs)) or kind in (OpKind.SHAPE, OpKind.SOURCE))
    ):
        flow.op = describe(node, modules)
        id_tensor = RULES[kind](flow, node, module, args, kwargs)
    if id_tensor is None:
        flow.kinds[node] = OpKind.UNKNOWN
        reason = describe(node, modules) + _why_no_rule(node, module)
        if kind is OpKind.LAYER:
            name, width = _name_and_width(node, module, shape)
            flow.unsupported[name], flow.why_unsupported[name] = width, reason
        flow.pin((args, kwargs, flow.id_tensors[base] if base else ()), reason)
        id_tensor = pinned_ids(flow, shape, reason)
    return id_tensor


def _name_and_width(node: fx.Node, module: nn.Module | None, shape: Any) -> tuple[str, int]:
    """The name of a layer and its output channels; functions go by the module that calls them."""
    if module is not None:
        return str(node.target), width_out(module)
    owners = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    width = shape[-1] if node_facts(node).channels_last else shape[1]
    return (owners[-1] if owners and owners[-1] else node.name), width


def _push_input(flow: Flow, node: fx.Node, shape: Any) -> Any:
    """Create pinned ids for an input of the network; other arguments of `forward` have none."""
    if isinstance(shape, dict):
        return {key: _push_input(flow, node, part) for key, part in shape.items()}
    if isinstance(shape, list):
        return [_push_input(flow, node, part) for part in shape]
    if not isinstance(shape, TensorShape):
        return shape
    ids = flow.new_ids(shape[1] if len(shape) > 1 else 1)
    flow.pin(ids, describe(node, {}))
    return expand_along(ids, 1, shape)


def _has_hooks(module: nn.Module | None) -> bool:
    """Whether hooks that the graph does not show (weight norm, masks) run around a module."""
    return module is not None and bool(module._forward_hooks or module._forward_pre_hooks)


def _why_no_rule(node: fx.Node, module: nn.Module | None) -> str:
    """What keeps a layer from its rule, and the way out, if there is one."""
    hooks = [] if module is None else list(module._forward_pre_hooks.values())
    for norm in ("weight_norm", "spectral_norm"):
        if any(type(hook).__name__.lower() == norm.replace("_", "") for hook in hooks):
            kind = norm.replace("_norm", "-normed")
            return f", which is {kind}: call torch.nn.utils.remove_{norm} first"
    if _has_hooks(module):
        return ", which has hooks"
    owners = [owner for _, owner in (node.meta.get("nn_module_stack") or {}).values()]
    if is_functional_layer(node) and owners and owners[-1].__name__.startswith("Parametrized"):
        return (
            ", whose weight is parametrized: call "
            "torch.nn.utils.parametrize.remove_parametrizations first"
        )
    if is_functional_layer(node):
        return ", whose weight is computed in forward"
    if isinstance(module, torch.jit.ScriptModule):
        return ", which is scripted: use the module from before torch.jit.script"
    if module is not None and module_facts(module).kind is OpKind.LAYER:
        base = next(b for b in type(module).__mro__ if b.__module__.startswith("torch.nn"))
        if base is not type(module):
            return f", whose forward treats channels unlike that of {base.__name__}"
    return ""


def _base_of_view(flow: Flow, node: fx.Node, modules: dict[str, nn.Module]) -> fx.Node | None:
    """Return the tensor of which an in-place op modifies a view, if it is read again later."""
    if not in_place(node, modules) or not node.all_input_nodes:
        return None
    base = node.all_input_nodes[0]
    while may_be_view(base, flow.kinds.get(base), modules) and base.all_input_nodes:
        base = base.all_input_nodes[0]
    if base is node.all_input_nodes[0]:
        return None
    views, later_users = [base], set()
    for view in views:
        views += [user for user in view.users if may_be_view(user, flow.kinds.get(user), modules)]
        later_users |= {user for user in view.users if user > node}
    return base if later_users else None


def map_arguments(
    node: fx.Node, values: dict[fx.Node, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the node's arguments with other nodes replaced by their values."""
    return (
        fx.node.map_arg(node.args, lambda n: values[n]),  # type: ignore[return-value]
        fx.node.map_arg(node.kwargs, lambda n: values[n]),
    )


def _holds_tensor(value: Any) -> bool:
    """Whether a recorded value is or contains a tensor."""
    if isinstance(value, TensorShape):
        return True
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, tuple | list) and any(_holds_tensor(v) for v in value)


def _push_attribute(flow: Flow, node: fx.Node) -> Any:
    """Return an index as it is, zeros for a layer's weight, and an id per element otherwise."""
    name = str(node.target)
    value = fetch_attr(flow.traced, name)
    if not isinstance(value, torch.Tensor):
        return value
    if node.users and all(
        node_facts(user).indexes and user.args[0] is not node for user in node.users
    ):
        return value.cpu()
    if all(node_facts(user).kind is OpKind.METADATA for user in node.users) or value.numel() == 1:
        return torch.zeros((), dtype=torch.long).expand(value.shape)
    if any(map(is_functional_layer, node.users)):
        return torch.zeros((), dtype=torch.long).expand(value.shape)
    if name not in flow.channelwise:
        id_tensor = flow.new_ids(value.numel()).reshape(value.shape)
        flow.channelwise[name] = id_tensor
        flow.record_owner(name, value, id_tensor.flatten())
        if flow.count_once(value):
            flow.terms.append(Term(name, 0.0, 1, id_tensor.flatten()))
    return flow.channelwise[name]


def _pin_shared_tensors(flow: Flow) -> None:
    """Pin the channels of tensors that several modules share: slicing one would slice the other."""
    owners: dict[int, tuple[str, list[Ids]]] = {}
    for name, tensor, ids in flow.owners:
        first_owner, first_ids = owners.setdefault(id(tensor), (name, ids))
        if first_owner != name:
            flow.pin([first_ids, ids], f"weights shared by {first_owner} and {name}")
