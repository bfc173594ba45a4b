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
from legr_cli.channels.functional import assigned
from legr_cli.channels.id_tensors import Ids, collapse, compact, expand_along, first_tensor, varies
from legr_cli.channels.layers import layer_rule
from legr_cli.channels.ops import OpKind, describe, module_facts, node_facts
from legr_cli.channels.record import TensorShape
from legr_cli.channels.slicing import channel_axes, input_weights, slices_like_base, width_out
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
    if module is None:
        return _functional_channelwise(flow, node, args, kwargs)
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


def _functional_channelwise(flow: Flow, node: fx.Node, args: Any, kwargs: Any) -> Any:
    """A norm called as a function: its parameters are tensors of the network, one id for each."""
    shape, (id_tensor, *parameters) = flow.shapes[node], tensors((args, kwargs))
    ids = flow.ids_along(id_tensor, 1)
    for parameter in parameters:
        if parameter.shape != ids.shape:
            return None
        flow.tie(parameter, ids)
    element_flops = node_facts(node).element_flops
    call = _NormCall(args, kwargs)
    flops = element_flops(call) * (math.prod(shape) // (2 * shape[1])) if element_flops else 0
    flow.terms.append(Term(node.name, flops, 0, ids))
    return expand_along(ids, 1, shape)


class _NormCall:
    """The arguments of `F.batch_norm` or `F.instance_norm`, as `flops` reads them off a module."""

    def __init__(self, args: Any, kwargs: Any) -> None:
        names = ("input", "running_mean", "running_var", "weight", "bias", "training")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        self.running_mean = None if given.get("training") else given.get("running_mean")
        self.affine = given.get("weight") is not None


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
            if any(varies(id_tensor, d) and varies(result, d) for d in range(len(shape))):
                flow.tie(id_tensor.expand(shape), result)  # it has channels of its own as well
        elif result is not None:
            flow.tie(id_tensor.expand(shape), result)
        else:
            result = id_tensor.expand(shape)
    return result


def _shape(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Run the op on the ids themselves."""
    if any(flow.has_ids(n) for n in _indices(node)):
        return None
    try:
        result = run_op(node, {str(node.target): module}, args, kwargs)
    except (RuntimeError, TypeError):  # the op does not support integers
        return None
    return fx.node.map_aggregate(result, lambda v: _number_zeros(flow, v))


def _indices(node: fx.Node) -> list[fx.Node]:
    """The nodes by whose values an op selects."""
    if node.target is assigned:
        found: list[fx.Node] = []
        fx.node.map_arg(node.args[1], found.append)
        return found
    return node.all_input_nodes[1:] if node_facts(node).indexes else []


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
    shapes = _shapes_of(flow.shapes[node])
    id_tensor, *others = tensors((args, kwargs))
    facts = module_facts(module) if module else node_facts(node)
    if not shapes or len(shapes[0]) < 3 or (others and not facts.others):
        return None
    if shapes[0][:2] != tuple(id_tensor.shape[:2]):
        return None  # it pads the batch or the channels
    ids = flow.ids_along(id_tensor, 1)
    for other in others:
        if facts.others == "pin":
            flow.pin(other, describe(node, {}))
        else:
            flow.tie(flow.ids_along(other, 1), ids)
    count = facts.channel_flops
    each = count(module, kwargs, id_tensor.shape, shapes[0]) if count else 0
    flops = each * shapes[0][0] / 2  # shapes are those of two images, each perhaps of many frames
    if flops:
        flow.terms.append(Term(str(node.target if module else node.name), flops, 0, ids))
    return _each(flow.shapes[node], [expand_along(ids, 1, shape) for shape in shapes])


def _shapes_of(value: Any) -> list[TensorShape]:
    """The shapes of an op's results: of one tensor, or of several, as `max` has; else none."""
    if isinstance(value, TensorShape):
        return [value]
    several = isinstance(value, tuple | list) and all(isinstance(v, TensorShape) for v in value)
    return list(value) if several else []


def _each(value: Any, id_tensors: list[Ids]) -> Any:
    """The id tensors of an op's results, as one tensor or several."""
    return id_tensors[0] if isinstance(value, TensorShape) else tuple(id_tensors)


def _reduce(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Tie the channels that a mean, sum or softmax combines; reducing over space ties nothing.

    Some reductions have two results of the same shape: values and indices.

    A reduction over all channels would tie all of them, so it is left without a rule.
    """
    shapes, id_tensor = _shapes_of(flow.shapes[node]), compact(first_tensor(args, kwargs))
    facts = node_facts(node)
    positional = args[facts.dim_at] if len(args) > facts.dim_at else facts.dim
    given = kwargs.get("dim", kwargs.get("axis", positional))
    dims = getattr(module, "dim", None) if module else given
    if dims is None or isinstance(dims, bool):  # `x.std(False)` has no dim, but an option
        return None
    if not shapes or len(tensors((args, kwargs))) != 1:
        return None
    dims = [dims] if isinstance(dims, int) else list(dims)
    # the smallest id stands for all the ids that are combined with it
    combined = compact(id_tensor.amin(dims, keepdim=True))
    if any(varies(id_tensor, dim % id_tensor.ndim) for dim in dims):
        if not any(varies(combined, dim) for dim in range(combined.ndim)):
            return None
        flow.tie(id_tensor, combined)
    kept_dims = len(shapes[0]) == id_tensor.ndim
    return _each(
        flow.shapes[node],
        [combined.expand(shape) if kept_dims else combined.reshape(shape) for shape in shapes],
    )


def _source(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """A tensor made from nothing has new channels, which no layer writes."""
    shape = flow.shapes[node]
    if not isinstance(shape, TensorShape):
        return None
    if node_facts(node).like:  # ids vary where those of its argument do
        like = collapse(compact(first_tensor(args, kwargs)))
        return flow.new_ids(like.numel()).reshape(like.shape).expand(shape)
    return _number_zeros(flow, torch.zeros(shape))


def _recurrent(flow: Flow, node: fx.Node, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A recurrent layer reads its input's channels; its state and its output stay as they are."""
    id_tensor, name = first_tensor(args, kwargs), str(node.target)
    if id_tensor.ndim < 2 or not args or args[0] is not id_tensor:
        return None  # packed sequences
    flow.pin((args[1:], kwargs), describe(node, {name: module}))
    into = flow.ids_along(id_tensor, id_tensor.ndim - 1)
    earlier = flow.readers.get(name)
    if earlier is not None:
        flow.tie(earlier, into)
    flow.readers[name] = into
    rows = uncounted = 0
    for key in input_weights(module):
        weight = getattr(module, key)
        rows += len(weight)
        if earlier is None:
            flow.record_owner(name, weight, into)
        uncounted += len(weight) if flow.count_once(weight) else 0
    steps = id_tensor.numel() // (2 * id_tensor.shape[-1])  # shapes are those of two images
    flow.terms.append(Term(name, rows * steps, uncounted, into))
    return pinned_ids(flow, flow.shapes[node], describe(node, {name: module}))


def pinned_ids(flow: Flow, shape: Any, reason: str) -> Any:
    """Create one pinned id per tensor in the result of an op."""
    if isinstance(shape, TensorShape):
        id_tensor = flow.new_ids(1).reshape([1] * len(shape)).expand(shape)
        flow.pin(id_tensor, reason)
        return id_tensor
    if isinstance(shape, dict):
        return {key: pinned_ids(flow, value, reason) for key, value in shape.items()}
    if isinstance(shape, tuple | list):
        return [pinned_ids(flow, value, reason) for value in shape]
    return shape


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
    OpKind.SOURCE: _source,
    OpKind.RECURRENT: _recurrent,
    OpKind.METADATA: _unknown,  # reached only if the op returns a tensor after all
    OpKind.UNKNOWN: _unknown,
}
