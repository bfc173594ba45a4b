"""Push channel ids through a traced network: who makes, ties, reads and pins which channel.

Every tensor of the network has a twin of the same shape, filled with the ids of its channels.
Ops that move elements about are run on the twin as they are; other ops tie ids to each other.
Id 0 is never given out: a zero in a twin was made by the op itself (padding), and gets a new id.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from legr_cli.channels.ops import CONVOLUTIONS, Kind, describe, kind_of
from legr_cli.channels.slicing import Axes, axes_of, groups_of, obeys, width_out
from legr_cli.channels.trace import TensorShape, shapes

Ids = torch.Tensor


@dataclass(frozen=True)
class Term:
    """A cost of `flops` and `params` for each pair of an id in `rows` and one in `cols`."""

    owner: str
    flops: float
    params: int
    rows: Ids
    cols: Ids | None = None


@dataclass(frozen=True)
class Layer:
    """A convolution or linear: the ids it reads and those it makes, filter by filter."""

    name: str
    kind: str
    weight: torch.Tensor
    out: Ids
    into: Ids
    axes: Axes  # the dimensions of the weight that follow `out` and `into`
    bias: str | None = None  # of a functional layer: the name of its other parameter


@dataclass
class Flow:
    """All that pushing ids through a network tells of it."""

    traced: fx.GraphModule
    shapes: dict[fx.Node, Any]
    twins: dict[fx.Node, Any] = field(default_factory=dict)
    kinds: dict[fx.Node, Kind] = field(default_factory=dict)
    layers: dict[str, Layer] = field(default_factory=dict)
    channelwise: dict[str, Ids] = field(default_factory=dict)
    terms: list[Term] = field(default_factory=list)
    ties: list[tuple[Ids, Ids]] = field(default_factory=list)
    pins: list[tuple[Ids, str]] = field(default_factory=list)
    strangers: dict[str, int] = field(default_factory=dict)  # layers without a rule: their width
    constants: list[Ids] = field(default_factory=list)  # of padding: no layer makes them
    ids: int = 1

    def has_twin(self, node: fx.Node) -> bool:
        """Whether a node gives tensors of channels, not plain values, indices or weights."""
        if node.op == "get_attr":
            return str(node.target) in self.channelwise
        return bool(tensors(self.twins[node]))

    def fresh(self, count: int) -> Ids:
        """New ids."""
        self.ids += count
        return torch.arange(self.ids - count, self.ids)

    def tie(self, a: Ids, b: Ids) -> None:
        """These ids live or die together, position by position."""
        a, b = torch.broadcast_tensors(narrowed(a), narrowed(b))
        self.ties.append((a.flatten(), b.flatten()))

    def along(self, twin: Ids, dim: int) -> Ids:
        """One id for each index of `dim`; several ids at one index are tied."""
        lines = narrowed(twin, but=dim).movedim(dim, 0).flatten(1)
        if lines.shape[1] > 1:
            self.tie(lines, lines[:, :1])
        return lines[:, 0].clone()

    def pin(self, value: Any, reason: str) -> None:
        """These channels stay."""
        for twin in tensors(value):
            self.pins.append((narrowed(twin).flatten(), reason))


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors in a nest of tuples, lists and dicts."""
    found: list[torch.Tensor] = []
    fx.node.map_aggregate(
        value, lambda v: found.append(v) if isinstance(v, torch.Tensor) else None
    )
    return found


def narrowed(twin: Ids, but: int | None = None) -> Ids:
    """The twin with expanded dimensions (stride 0) cut to size 1, for speed."""
    for dim in range(twin.ndim):
        if twin.stride(dim) == 0 and twin.shape[dim] > 1 and dim != but:
            twin = twin.narrow(dim, 0, 1)
    return twin


def compact(twin: Ids) -> Ids:
    """The same twin with every dimension along which nothing varies as an expanded one."""
    small = narrowed(twin)
    for dim in range(small.ndim):
        first = small.narrow(dim, 0, 1)
        if small.shape[dim] > 1 and bool((small == first).all()):
            small = first
    return small.expand(twin.shape)


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
        return _spread(ids, 1, shape)
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
        twin = _RULES[kind](flow, node, module, args, kwargs)
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


def run(node: fx.Node, modules: dict[str, nn.Module], args: Any, kwargs: Any) -> Any:
    """Run a node's op on other values, on the CPU whatever device the network is on."""
    kwargs = {k: v for k, v in kwargs.items() if k != "device"}
    if node.op == "call_module":
        return modules[str(node.target)](*args, **kwargs)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


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


def _spread(ids: Ids, dim: int, shape: TensorShape) -> Ids:
    """A twin of this shape whose ids follow one dimension."""
    view = [1] * len(shape)
    if len(shape) > dim:
        view[dim] = -1
    return ids.reshape(view).expand(shape)


def _attribute(flow: Flow, node: fx.Node) -> Any:
    """A tensor of the network: an index is a plain value, all else has an id an element."""
    value: Any = flow.traced
    for part in str(node.target).split("."):
        value = getattr(value, part)
    if not isinstance(value, torch.Tensor):
        return value
    if not value.is_floating_point():
        return value.cpu()
    if any(user.target in (*CONVOLUTIONS, F.linear) for user in node.users):
        return torch.zeros((), dtype=torch.long).expand(value.shape)  # a layer's weight
    twin = flow.fresh(value.numel()).reshape(value.shape)
    flow.channelwise[str(node.target)] = twin
    if isinstance(value, nn.Parameter):
        flow.terms.append(Term(str(node.target), 0.0, 1, twin.flatten()))
    return twin


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


def _layer(flow: Flow, node: fx.Node, module: nn.Module | None, args: Any, kwargs: Any) -> Any:
    """A convolution or linear reads the ids of its input and makes new ones."""
    call = _module_call(node, module, args) if module else _functional_call(flow, node)
    if call is None:
        return None
    shape, twin = flow.shapes[node], args[0] if args else kwargs["input"]
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
    axes = Axes(int(call.transposed), 1 - int(call.transposed) if call.groups == 1 else None)
    flow.layers[call.name] = Layer(call.name, kind, call.weight, out, into, axes, call.bias_name)
    _layer_cost(flow, call, flow.layers[call.name], twin.shape, shape, dim, known is None)
    return _spread(out, dim, shape)


def _layer_cost(
    flow: Flow, call: _Call, layer: Layer, before: Any, after: Any, dim: int, first: bool
) -> None:
    """weights × output positions (× input positions if transposed); a multiply-add is one."""
    cols = layer.into if call.groups == 1 else None
    pairs = layer.weight.numel() // (len(layer.out) * (1 if cols is None else len(cols)))
    space = before if call.transposed else after
    positions = math.prod(space) // (2 * space[dim])
    flow.terms.append(Term(call.name, pairs * positions, pairs * first, layer.out, cols))
    if call.bias is not None:
        flow.terms.append(Term(call.name, 0, int(first), layer.out))


def _module_call(node: fx.Node, module: nn.Module, args: Any) -> _Call | None:
    """What a layer that is a module works with; None when its `forward` breaks the rules."""
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    transposed, groups = getattr(module, "transposed", False), groups_of(module)
    if not isinstance(weight, torch.Tensor) or (transposed and groups > 1):
        return None
    if len(args) != 1 or not obeys(module, args[0].shape):
        return None
    linear = isinstance(module, nn.Linear)
    return _Call(str(node.target), weight, bias, None, groups, transposed, linear)


def _functional_call(flow: Flow, node: fx.Node) -> _Call | None:
    """What `F.conv2d` or `F.linear` works with, if its weight is a parameter as it is."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    nodes = [n for n in (given.get("weight"), given.get("bias")) if n is not None]
    for n in nodes:
        if not isinstance(n, fx.Node) or n.op != "get_attr":
            return None
        if any(user.target not in (*CONVOLUTIONS, F.linear) for user in n.users):
            return None
    targets = [str(n.target) for n in nodes]
    weight, *bias = [flow.traced.get_parameter(target) for target in targets]
    return _Call(
        name=targets[0],
        weight=weight,
        bias=bias[0] if bias else None,
        bias_name=targets[1] if bias else None,
        groups=given.get("groups", 1),
        transposed=False,
        linear=node.target is F.linear,
    )


def _channelwise(flow: Flow, node: fx.Node, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A norm passes ids on; its own numbers go with them."""
    if isinstance(module, nn.PReLU) and module.num_parameters == 1:
        return args[0]
    return _norm(flow, node, module, args, _norm_flops(module))


def _groupwise(flow: Flow, node: fx.Node, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """GroupNorm ties each group; with one group it looks at all channels, and has no rule."""
    assert isinstance(module, nn.GroupNorm)
    if module.num_groups == 1:
        return None
    lines = flow.along(args[0], 1).reshape(module.num_groups, -1)
    flow.tie(lines, lines[:, :1])
    return _norm(flow, node, module, args, 5 if module.affine else 4)


def _norm(flow: Flow, node: fx.Node, module: nn.Module, args: Any, flops: int) -> Any:
    """Note the channels of a module with numbers for each channel, and what it costs."""
    name, shape = str(node.target), flow.shapes[node]
    if len(args) != 1 or not obeys(module, args[0].shape):
        return None
    ids = flow.along(args[0], 1)
    known = flow.channelwise.get(name)
    if known is not None:
        flow.tie(known, ids)
    flow.channelwise[name] = ids
    sizes = [p.numel() for n, p in module.named_parameters(recurse=False) if n in axes_of(module)]
    params = 0 if known is not None else sum(sizes) // width_out(module)
    positions = math.prod(shape) // (2 * shape[1])
    flow.terms.append(Term(name, flops * positions, params, ids))
    return _spread(ids, 1, shape)


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
        twin = twin.reshape((1,) * (len(shape) - twin.ndim) + twin.shape)
        wide = [d for d in range(len(shape)) if twin.shape[d] < shape[d]]
        operands.append((len(wide), wide, twin))
    full: Ids | None = None
    for _, wide, twin in sorted(operands, key=lambda operand: operand[0]):
        if full is not None and any(_varies(full, d) for d in wide):
            modules = {str(node.target): module}
            flow.pin(twin, f"{describe(node, modules)}, which spreads it over all channels")
        elif full is not None:
            flow.tie(twin.expand(shape), full)
        else:
            full = twin.expand(shape)
    return full


def _varies(twin: Ids, dim: int) -> bool:
    """Whether the ids differ along a dimension."""
    return compact(twin).stride(dim) != 0 and twin.shape[dim] > 1


def _shape(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Run the op on the ids themselves."""
    if _indexes(node) and any(flow.has_twin(n) for n in node.all_input_nodes[1:]):
        return None
    try:
        made = run(node, {str(node.target): module}, args, kwargs)
    except (RuntimeError, TypeError):  # it does not work on whole numbers
        return None
    return fx.node.map_aggregate(made, lambda v: _named(flow, v))


def _indexes(node: fx.Node) -> bool:
    """Whether the op takes a tensor of indices beside the tensor that it moves about."""
    return getattr(node.target, "__name__", node.target) in ("getitem", "index_select")


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
    ids = flow.along(args[0], 1)
    flops = _spatial_flops(node, module, args[0].shape, shape, kwargs)
    if flops:
        flow.terms.append(Term(str(node.target if module else node.name), flops, 0, ids))
    return _spread(ids, 1, shape)


def _spatial_flops(node: fx.Node, module: Any, into: Any, out: Any, kwargs: Any) -> float:
    """Operations a channel, as fvcore counts them: adaptive pooling and resizing, in 2-D."""
    if isinstance(module, nn.AdaptiveAvgPool2d) or node.target is F.adaptive_avg_pool2d:
        return math.prod(into[2:])
    if isinstance(module, nn.Upsample) or node.target is F.interpolate:
        mode = module.mode if module else kwargs.get("mode", "nearest")
        return {"nearest": 1, "bilinear": 4}.get(mode, 0) * math.prod(out[2:]) * (len(out) == 4)
    return 0


def _reduce(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """Mean, sum, softmax …: fine over space, without a rule over channels."""
    shape, twin = flow.shapes[node], compact(args[0])
    default = args[1] if len(args) > 1 else None
    dims = getattr(module, "dim", None) if module else kwargs.get("dim", default)
    if dims is None or not isinstance(shape, TensorShape) or len(tensors((args, kwargs))) != 1:
        return None
    dims = [dims] if isinstance(dims, int) else list(dims)
    if any(_varies(twin, dim % twin.ndim) for dim in dims):
        return None
    if shape == twin.shape:
        return twin
    return compact(twin.amax(dims, keepdim=len(shape) == twin.ndim))


def _unknown(flow: Flow, node: fx.Node, module: Any, args: Any, kwargs: Any) -> Any:
    """No rule."""
    return None


def _pin_shared_tensors(flow: Flow) -> None:
    """A parameter that two layers share cannot be cut for one of them."""
    owners: dict[int, Layer] = {}
    for layer in flow.layers.values():
        other = owners.setdefault(id(layer.weight), layer)
        if other is not layer:
            reason = f"weights shared by {other.name} and {layer.name}"
            flow.pin([other.out, other.into, layer.out, layer.into], reason)


_RULES: dict[Kind, Callable[..., Any]] = {
    Kind.LAYER: _layer,
    Kind.CHANNELWISE: _channelwise,
    Kind.GROUPWISE: _groupwise,
    Kind.ELEMENTWISE: _elementwise,
    Kind.SHAPE: _shape,
    Kind.SPATIAL: _spatial,
    Kind.REDUCE: _reduce,
    Kind.UNKNOWN: _unknown,
}


def components(count: int, ties: Iterable[tuple[Ids, Ids]]) -> np.ndarray:
    """The smallest id tied to each id, by hooking roots onto smaller ones until none moves."""
    pairs = [np.stack([a.numpy(), b.numpy()]) for a, b in ties]
    label = np.arange(count)
    if not pairs:
        return label
    a, b = np.unique(np.concatenate(pairs, 1), axis=1)
    while True:
        low, high = np.minimum(label[a], label[b]), np.maximum(label[a], label[b])
        if np.array_equal(low, high):
            return label
        np.minimum.at(label, high, low)
        while not np.array_equal(label, label[label]):
            label = label[label]
