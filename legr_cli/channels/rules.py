"""One rule for each kind of op: what it does to the ids of the channels it reads.

A rule gets the flow, the node, its module (or None) and its arguments, with id tensors in place of
tensors. It records ties, layers and costs, and returns the id tensor of the op's result, or None if
it cannot handle the call.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.flow import Flow, Term
from legr_cli.channels.id_tensors import Ids, compact, expand_along, first_tensor, varies
from legr_cli.channels.layers import layer_rule
from legr_cli.channels.ops import OpKind, describe, module_facts, node_facts
from legr_cli.channels.record import TensorShape
from legr_cli.channels.slicing import channel_axes, slices_like_base, width_out
from legr_cli.channels.structures import tensors


def run_op(node: fx.Node, modules: dict[str, nn.Module], args: Any, kwargs: Any) -> Any:
    """Run a node's op on other arguments, on the CPU whatever the network's device."""
    kwargs = {k: v for k, v in kwargs.items() if k != "device"}
    if node.op == "call_module":
        return modules[str(node.target)](*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def reads_only_metadata(flow: Flow, node: fx.Node) -> bool:
    """Whether a node that returns a plain value depends on shapes and dtypes only."""
    if not any(flow.has_ids(n) for n in node.all_input_nodes):
        return True  # arithmetic on such values
    return node_facts(node).kind is OpKind.METADATA


def _channelwise(flow: Flow, node: fx.Node, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A norm passes ids through, and its parameters follow them."""
    name, shape = str(node.target), flow.shapes[node]
    id_tensor = first_tensor(args, kwargs)
    if len(args) + len(kwargs) != 1 or not slices_like_base(module, id_tensor.shape):
        return None
    ids = flow.ids_along(id_tensor, 1)
    earlier = flow.channelwise.get(name)
    if earlier is not None:
        flow.tie(earlier, ids)
    flow.channelwise[name] = ids
    uncounted = 0
    for key in channel_axes(module):
        tensor = getattr(module, key)
        if earlier is None:
            flow.record_owner(name, tensor, ids)
        uncounted += tensor.numel() if flow.count_once(tensor) else 0
    params = uncounted // width_out(module)
    element_flops = module_facts(module).element_flops
    flops = element_flops(module) if element_flops else 0
    positions = math.prod(shape) // (2 * shape[1])  # shapes are those of two images
    flow.terms.append(Term(name, flops * positions, params, ids))
    return expand_along(ids, 1, shape)


def _groupwise(flow: Flow, node: fx.Node, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """GroupNorm ties the channels of each group, and is a norm otherwise."""
    assert isinstance(module, nn.GroupNorm)
    groups = flow.ids_along(first_tensor(args, kwargs), 1).reshape(module.num_groups, -1)
    flow.tie(groups, groups[:, :1])
    return _channelwise(flow, node, module, args, kwargs)


def _elementwise(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Tie operands position by position; pin an operand that is broadcast over channels."""
    shape = flow.shapes[node]
    if not isinstance(shape, TensorShape):
        return None
    operands = []
    only_first = module is None and node_facts(node).only_first
    for id_tensor in tensors((args, kwargs))[: 1 if only_first else None]:
        if id_tensor.numel() == 1 < math.prod(shape):
            continue  # one number for all channels
        id_tensor = id_tensor.reshape((1,) * (len(shape) - id_tensor.ndim) + id_tensor.shape)
        broadcast = [d for d in range(len(shape)) if id_tensor.shape[d] < shape[d]]
        has_channels = any(varies(id_tensor, d) for d in range(id_tensor.ndim))
        operands.append(((not has_channels, len(broadcast)), broadcast, id_tensor))
    result: Ids | None = None
    # the operand with the most channels and the fewest broadcast dimensions gives the result's ids
    for _, broadcast, id_tensor in sorted(operands, key=lambda operand: operand[0]):
        if result is not None and any(varies(result, d) for d in broadcast):
            modules = {str(node.target): module}
            flow.pin(id_tensor, f"{describe(node, modules)}, which spreads it over all channels")
        elif result is not None:
            flow.tie(id_tensor.expand(shape), result)
        else:
            result = id_tensor.expand(shape)
    return result


def _shape(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Run the op on the ids themselves."""
    if node_facts(node).indexes and any(flow.has_ids(n) for n in node.all_input_nodes[1:]):
        return None
    try:
        result = run_op(node, {str(node.target): module}, args, kwargs)
    except (RuntimeError, TypeError):  # the op does not support integers
        return None
    return fx.node.map_aggregate(result, lambda v: _number_zeros(flow, v))


def _number_zeros(flow: Flow, value: Any) -> Any:
    """Replace zeros, which a shape op has added, by new ids."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.long()
    zeros = value == 0
    if bool(zeros.any()):
        flow.padding_ids.append(flow.new_ids(int(zeros.sum())))
        value = value.clone()
        value[zeros] = flow.padding_ids[-1]
        return value
    return compact(value)


def _spatial(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Pooling and resizing keep every channel where it is."""
    shape = flow.shapes[node]
    if not isinstance(shape, TensorShape) or len(shape) < 3 or len(tensors((args, kwargs))) != 1:
        return None
    id_tensor = first_tensor(args, kwargs)
    if shape[:2] != tuple(id_tensor.shape[:2]):
        return None  # it pads the batch or the channels
    ids = flow.ids_along(id_tensor, 1)
    channel_flops = (module_facts(module) if module else node_facts(node)).channel_flops
    flops = channel_flops(module, kwargs, id_tensor.shape, shape) if channel_flops else 0
    if flops:
        flow.terms.append(Term(str(node.target if module else node.name), flops, 0, ids))
    return expand_along(ids, 1, shape)


def _reduce(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Tie the channels that a mean, sum or softmax combines; reducing over space ties nothing.

    A reduction over all channels would tie all of them, so it is left without a rule.
    """
    shape, id_tensor = flow.shapes[node], compact(first_tensor(args, kwargs))
    positional = args[1] if len(args) > 1 else None
    given = kwargs.get("dim", kwargs.get("axis", positional))
    dims = getattr(module, "dim", None) if module else given
    if dims is None or not isinstance(shape, TensorShape) or len(tensors((args, kwargs))) != 1:
        return None
    dims = [dims] if isinstance(dims, int) else list(dims)
    # the smallest id stands for all the ids that are combined with it
    combined = compact(id_tensor.amin(dims, keepdim=True))
    if any(varies(id_tensor, dim % id_tensor.ndim) for dim in dims):
        if not any(varies(combined, dim) for dim in range(combined.ndim)):
            return None
        flow.tie(id_tensor, combined)
    if tuple(shape) == tuple(id_tensor.shape):
        return combined.expand(id_tensor.shape)
    return combined.reshape(shape)


def _unknown(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """No rule."""
    return None


RULES: dict[OpKind, Callable[..., Any]] = {
    OpKind.LAYER: layer_rule,
    OpKind.CHANNELWISE: _channelwise,
    OpKind.GROUPWISE: _groupwise,
    OpKind.ELEMENTWISE: _elementwise,
    OpKind.SHAPE: _shape,
    OpKind.SPATIAL: _spatial,
    OpKind.REDUCE: _reduce,
    OpKind.METADATA: _unknown,  # reached only if the op returns a tensor after all
    OpKind.UNKNOWN: _unknown,
}
