"""One rule for each kind of op: what it does to the ids of the channels it reads.

A rule gets the flow, the node, its module (or None) and its arguments with twins in the place of
tensors. It notes ties, layers and costs, and gives the twin of the op's result; None means that
the op has no rule after all.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from legr_cli.channels.flow import Flow, Term
from legr_cli.channels.id_tensors import Ids, compact, first, spread, tensors, varies
from legr_cli.channels.layers import layer
from legr_cli.channels.ops import OpKind, describe, node_facts
from legr_cli.channels.slicing import axes_of, obeys, width_out
from legr_cli.channels.trace import TensorShape


def run(node: fx.Node, modules: dict[str, nn.Module], args: Any, kwargs: Any) -> Any:
    """Run a node's op on other values, on the CPU whatever device the network is on."""
    kwargs = {k: v for k, v in kwargs.items() if k != "device"}
    if node.op == "call_module":
        return modules[str(node.target)](*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _channelwise(flow: Flow, node: fx.Node, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A norm passes ids on; its own numbers go with them."""
    if isinstance(module, nn.PReLU) and module.num_parameters == 1:
        return first(args, kwargs)
    return _norm(flow, node, module, args, kwargs, _norm_flops(module))


def _groupwise(flow: Flow, node: fx.Node, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """GroupNorm ties each group; with one group it looks at all channels, and has no rule."""
    assert isinstance(module, nn.GroupNorm)
    if module.num_groups == 1:
        return None
    lines = flow.along(first(args, kwargs), 1).reshape(module.num_groups, -1)
    flow.tie(lines, lines[:, :1])
    return _norm(flow, node, module, args, kwargs, 5 if module.affine else 4)


def _norm(flow: Flow, node: fx.Node, module: nn.Module, args: Any, kwargs: Any, flops: int) -> Any:
    """Note the channels of a module with numbers for each channel, and what it costs."""
    name, shape = str(node.target), flow.shapes[node]
    twin = first(args, kwargs)
    if len(args) + len(kwargs) != 1 or not obeys(module, twin.shape):
        return None
    ids = flow.along(twin, 1)
    known = flow.channelwise.get(name)
    if known is not None:
        flow.tie(known, ids)
    flow.channelwise[name] = ids
    sizes = 0
    for key in axes_of(module):
        tensor = getattr(module, key)
        if known is None:
            flow.own(name, tensor, ids)
        sizes += tensor.numel() if flow.counts(tensor) else 0
    params = sizes // width_out(module)
    positions = math.prod(shape) // (2 * shape[1])
    flow.terms.append(Term(name, flops * positions, params, ids))
    return spread(ids, 1, shape)


def _norm_flops(module: nn.Module) -> int:
    """Operations an element, as fvcore counts them in evaluation mode."""
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return 5 if module.affine else 4
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        if module.running_mean is None:
            return 5 if module.affine else 4
        return 2 if module.affine else 1
    return 0


def _elementwise(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Ties operands position by position; one that is spread over channels is pinned."""
    shape = flow.shapes[node]
    if not isinstance(shape, TensorShape):
        return None
    operands = []
    for twin in tensors((args, kwargs)):
        if twin.numel() == 1 < math.prod(shape):
            continue  # a number for all channels
        twin = twin.reshape((1,) * (len(shape) - twin.ndim) + twin.shape)
        wide = [d for d in range(len(shape)) if twin.shape[d] < shape[d]]
        varied = any(varies(twin, d) for d in range(twin.ndim))
        operands.append(((not varied, len(wide)), wide, twin))
    full: Ids | None = None
    for _, wide, twin in sorted(operands, key=lambda operand: operand[0]):
        if full is not None and any(varies(full, d) for d in wide):
            modules = {str(node.target): module}
            flow.pin(twin, f"{describe(node, modules)}, which spreads it over all channels")
        elif full is not None:
            flow.tie(twin.expand(shape), full)
        else:
            full = twin.expand(shape)
    return full


def _shape(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Run the op on the ids themselves."""
    if node_facts(node).indexes and any(flow.has_twin(n) for n in node.all_input_nodes[1:]):
        return None
    try:
        made = run(node, {str(node.target): module}, args, kwargs)
    except (RuntimeError, TypeError):  # it does not work on whole numbers
        return None
    return fx.node.map_aggregate(made, lambda v: _named(flow, v))


def asks_for_shape(flow: Flow, node: fx.Node) -> bool:
    """Whether a node that gives a plain value looks at shapes and types only, never at numbers."""
    if not any(flow.has_twin(n) for n in node.all_input_nodes):
        return True  # arithmetic on such values
    return node_facts(node).kind is OpKind.METADATA


def _named(flow: Flow, value: Any) -> Any:
    """A twin that a shape op made, with new ids in the place of its zeros."""
    if not isinstance(value, torch.Tensor):
        return value
    value = value.long()
    blank = value == 0
    if bool(blank.any()):
        flow.constants.append(flow.fresh(int(blank.sum())))
        value = value.clone()
        value[blank] = flow.constants[-1]
        return value
    return compact(value)


def _spatial(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Pooling and resizing: each channel goes on as itself."""
    shape = flow.shapes[node]
    if not isinstance(shape, TensorShape) or len(shape) < 3 or len(tensors((args, kwargs))) != 1:
        return None
    twin = first(args, kwargs)
    if shape[:2] != tuple(twin.shape[:2]):
        return None  # it pads channels or more
    ids = flow.along(twin, 1)
    flops = _spatial_flops(node, module, twin.shape, shape, kwargs)
    if flops:
        flow.terms.append(Term(str(node.target if module else node.name), flops, 0, ids))
    return spread(ids, 1, shape)


def _spatial_flops(node: fx.Node, module: Any, into: Any, out: Any, kwargs: Any) -> float:
    """Operations a channel, as fvcore counts them: adaptive pooling and resizing, in 2-D."""
    if isinstance(module, nn.AdaptiveAvgPool2d) or node.target is F.adaptive_avg_pool2d:
        return math.prod(into[2:])
    if isinstance(module, nn.Upsample) or node.target is F.interpolate:
        mode = module.mode if module else kwargs.get("mode", "nearest")
        if mode == "area":  # adaptive pooling by another name
            return math.prod(into[2:]) * (len(out) == 4)
        return {"nearest": 1, "bilinear": 4}.get(mode, 0) * math.prod(out[2:]) * (len(out) == 4)
    return 0


def _reduce(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Mean, sum, softmax …: over space as it is; what they mix beside that is tied, line by line.

    Over all channels there would be one line only: that has no rule.
    """
    shape, twin = flow.shapes[node], compact(first(args, kwargs))
    default = args[1] if len(args) > 1 else None
    named = kwargs.get("dim", kwargs.get("axis", default))
    dims = getattr(module, "dim", None) if module else named
    if dims is None or not isinstance(shape, TensorShape) or len(tensors((args, kwargs))) != 1:
        return None
    dims = [dims] if isinstance(dims, int) else list(dims)
    lines = compact(twin.amin(dims, keepdim=True))
    if any(varies(twin, dim % twin.ndim) for dim in dims):
        if not any(varies(lines, dim) for dim in range(lines.ndim)):
            return None
        flow.tie(twin, lines)
    return lines.expand(twin.shape) if tuple(shape) == tuple(twin.shape) else lines.reshape(shape)


def _unknown(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """No rule."""
    return None


RULES: dict[OpKind, Callable[..., Any]] = {
    OpKind.LAYER: layer,
    OpKind.CHANNELWISE: _channelwise,
    OpKind.GROUPWISE: _groupwise,
    OpKind.ELEMENTWISE: _elementwise,
    OpKind.SHAPE: _shape,
    OpKind.SPATIAL: _spatial,
    OpKind.REDUCE: _reduce,
    OpKind.METADATA: _unknown,  # reached only if it gives a tensor after all
    OpKind.UNKNOWN: _unknown,
}
