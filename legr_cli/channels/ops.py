"""One table of what is known about each op.

To support an op, add it to the row of `OPS` with its facts, or add a row. A new kind of op also
needs a rule in `rules.RULES`. An op that is not in the table has no rule: the channels it reads are
pinned, and the op is named as the reason.
"""

import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._ops import OpOverload
from torchvision.ops import StochasticDepth

from legr_cli.channels import flops
from legr_cli.channels.functional import assigned


class OpKind(Enum):
    """How an op treats channels; each kind has one rule."""

    LAYER = "layer"  # reads channels and makes new ones
    CHANNELWISE = "channelwise"  # has parameters per channel
    GROUPWISE = "groupwise"  # has parameters per channel and mixes the channels of each group
    ELEMENTWISE = "elementwise"  # ties its operands position by position
    SHAPE = "shape"  # only moves elements, so it can be run on channel ids
    SPATIAL = "spatial"  # mixes positions within a channel of an (N, C, *space) tensor
    REDUCE = "reduce"  # reduces, sorts or normalizes along dimensions
    SOURCE = "source"  # makes a tensor of a given size from nothing: noise, ones, a range
    RECURRENT = "recurrent"  # reads channels, and its own state
    METADATA = "metadata"  # reads a tensor's shape or dtype, never its values
    UNKNOWN = "unknown"  # no rule: pinned


@dataclass(frozen=True)
class OpFacts:
    """What is known about an op besides its name."""

    kind: OpKind
    kind_if: Callable[[fx.Node, Any], OpKind | None] | None = None  # for calls of another kind
    leaf: bool = False  # module: tracing does not look inside its subclasses either
    channels_last: bool = False  # layer: channels are the last dimension instead of dimension 1
    reshapes: bool = False  # the result is `x.reshape(...)` to other sizes
    takes_sizes: bool = False  # the arguments after the input are those sizes
    copies: bool = False  # shape op: the result never shares memory with the input
    like: bool = False  # source: of the size of its first argument
    others: str = ""  # spatial: "tie" or "pin" the channels of the tensors after the first
    dim_at: int = 1  # reduction: position of the argument `dim`
    dim: int | None = None  # reduction: default of the argument `dim`
    only_first: bool = False  # elementwise: only the first argument's values matter
    indexes: bool = False  # also takes a tensor of indices
    in_place: bool = False  # modifies its first argument, though its name has no trailing `_`
    train_as: type[nn.Module] | None = None  # module that replaces a call frozen in eval mode
    element_flops: Callable[[Any], int] | None = None  # norm: FLOPs per element
    channel_flops: Callable[..., int] | None = None  # spatial op: FLOPs per channel of one image

    @property
    def per_channel(self) -> bool:
        """Whether every parameter of the module has one entry (or row) per channel."""
        return self.kind in (OpKind.CHANNELWISE, OpKind.GROUPWISE)


# Attributes in which modules store how many channels they write, read, and treat as one group.
OUT_WIDTHS = ("out_channels", "out_features", "num_features", "num_channels", "num_parameters")
IN_WIDTHS = ("in_channels", "in_features")
GROUP_COUNTS = ("groups", "num_groups")


def _pad_kind(node: fx.Node, module: Any) -> OpKind | None:
    """Padding with anything but zeros cannot be run on channel ids, so only space may be padded."""
    mode = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
    value = node.args[3] if len(node.args) > 3 else node.kwargs.get("value")
    return OpKind.SPATIAL if mode != "constant" or value not in (None, 0, 0.0) else None


def _prelu_kind(node: fx.Node, module: Any) -> OpKind | None:
    """A PReLU with a single slope for all channels has nothing to slice."""
    return OpKind.ELEMENTWISE if module.num_parameters == 1 else None


def _group_norm_kind(node: fx.Node, module: Any) -> OpKind | None:
    """A GroupNorm with one group normalizes over all channels, so none of them can go."""
    return OpKind.UNKNOWN if module.num_groups == 1 else None


def _max_kind(node: fx.Node, module: Any) -> OpKind | None:
    """The larger one of two tensors, instead of the largest element along a dimension."""
    other = node.args[1] if len(node.args) > 1 else node.kwargs.get("other")
    return OpKind.ELEMENTWISE if isinstance(other, fx.Node) else None


Op = type[nn.Module] | Callable[..., Any] | str  # a module class, a function or a method's name

# fmt: off
OPS: dict[OpFacts, tuple[Op, ...]] = {
    OpFacts(OpKind.LAYER, leaf=True): (nn.modules.conv._ConvNd,),
    OpFacts(OpKind.LAYER): (F.conv1d, F.conv2d, F.conv3d),
    OpFacts(OpKind.LAYER, leaf=True, channels_last=True): (nn.Linear,),
    OpFacts(OpKind.LAYER, channels_last=True): (F.linear,),

    OpFacts(OpKind.CHANNELWISE, leaf=True): (nn.modules.batchnorm._NormBase,),
    OpFacts(OpKind.CHANNELWISE, leaf=True, element_flops=flops.batch_norm_flops): (
        nn.modules.batchnorm._BatchNorm,
    ),
    OpFacts(OpKind.CHANNELWISE, leaf=True, element_flops=flops.normalization_flops): (
        nn.modules.instancenorm._InstanceNorm,
    ),
    OpFacts(OpKind.CHANNELWISE, kind_if=_prelu_kind): (nn.PReLU,),
    OpFacts(OpKind.CHANNELWISE, element_flops=flops.batch_norm_flops): (F.batch_norm,),
    OpFacts(OpKind.CHANNELWISE, element_flops=flops.normalization_flops): (F.instance_norm,),
    OpFacts(OpKind.CHANNELWISE): (F.prelu, torch.prelu),
    OpFacts(
        OpKind.GROUPWISE, leaf=True, kind_if=_group_norm_kind,
        element_flops=flops.normalization_flops,
    ): (nn.GroupNorm,),

    OpFacts(OpKind.ELEMENTWISE): (
        nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Hardsigmoid,
        nn.Hardtanh, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish, nn.Softplus, nn.Softsign,
        nn.LogSigmoid, nn.Threshold, nn.Hardshrink, nn.Softshrink, nn.Tanhshrink, nn.RReLU,
        nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout,
        nn.FeatureAlphaDropout, nn.Identity,
        F.relu, F.relu_, torch.relu, F.relu6, F.hardswish, F.silu, F.gelu, F.sigmoid, F.tanh,
        torch.sigmoid, torch.tanh, F.hardsigmoid, F.hardtanh, F.hardtanh_, F.leaky_relu,
        F.leaky_relu_, F.elu, F.elu_, F.selu, F.celu, F.mish, F.softplus, F.softsign, F.logsigmoid,
        F.threshold, F.rrelu, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout,
        F.feature_alpha_dropout,
        operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.neg,
        torch.add, torch.sub, torch.mul, torch.div, torch.true_divide, torch.pow, torch.neg,
        torch.abs, torch.exp, torch.expm1, torch.log, torch.log1p, torch.sqrt, torch.rsqrt,
        torch.square, torch.reciprocal, torch.erf, torch.sin, torch.cos, torch.sign, torch.round,
        torch.floor, torch.ceil, torch.clamp, torch.clamp_min, torch.clamp_max, torch.clip,
        torch.minimum, torch.maximum, torch.addcmul, torch.lerp, torch.clone,
        torch.where, torch.masked_fill, torch.nan_to_num, torch.isnan, torch.isfinite,
        torch.gt, torch.lt, torch.ge, torch.le, torch.eq, torch.ne, torch.heaviside,
        torch.logical_and, torch.logical_or, torch.logical_not, torch.logical_xor,
        operator.gt, operator.lt, operator.ge, operator.le, operator.eq, operator.ne,
        operator.and_, operator.or_, operator.xor, operator.invert,
        "where", "masked_fill", "masked_fill_", "nan_to_num", "isnan", "isfinite", "gt", "lt",
        "ge", "le", "eq", "ne", "logical_and", "logical_or", "logical_not", "bool", "int", "long",
        "relu", "relu_", "sigmoid", "sigmoid_", "tanh", "add", "add_", "sub", "sub_", "mul", "mul_",
        "div", "div_", "pow", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "square", "reciprocal",
        "erf", "sin", "cos", "sign", "clamp", "clamp_", "clamp_min", "clamp_max", "clip", "clip_",
        "clone", "detach", "data", "float", "half", "double", "bfloat16",
    ),
    OpFacts(OpKind.ELEMENTWISE, only_first=True): ("to", "type_as", "type"),
    OpFacts(OpKind.ELEMENTWISE, train_as=nn.Dropout): (F.dropout,),
    OpFacts(OpKind.ELEMENTWISE, leaf=True): (StochasticDepth,),
    OpFacts(OpKind.ELEMENTWISE, in_place=True): (
        operator.iadd, operator.isub, operator.imul, operator.itruediv,
    ),

    OpFacts(OpKind.SHAPE): (
        torch.chunk, torch.split, torch.tensor_split, torch.unbind, torch.permute,
        torch.transpose, torch.swapaxes, torch.movedim, torch.unsqueeze, torch.narrow,
        torch.select, torch.broadcast_to,
        "chunk", "split", "tensor_split", "unbind", "permute", "transpose", "swapaxes", "movedim",
        "unsqueeze", "narrow", "select", "expand", "expand_as", "view", "view_as", "reshape_as",
        "contiguous",
    ),
    OpFacts(OpKind.SHAPE, reshapes=True): (
        nn.Flatten, nn.Unflatten, torch.flatten, torch.unflatten, torch.squeeze,
        "flatten", "unflatten", "squeeze",
    ),
    OpFacts(OpKind.SHAPE, reshapes=True, takes_sizes=True): (torch.reshape, "reshape"),
    OpFacts(OpKind.SHAPE, copies=True): (
        nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle,
        nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d,
        torch.cat, torch.concat, torch.concatenate, torch.stack, torch.flip, torch.roll, torch.tile,
        torch.repeat_interleave, torch.zeros, torch.zeros_like,
        F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle, assigned,
        "repeat", "repeat_interleave", "flip", "roll", "tile", "new_zeros",
    ),
    OpFacts(OpKind.SHAPE, copies=True, kind_if=_pad_kind): (F.pad,),
    OpFacts(OpKind.SHAPE, copies=True, indexes=True): (torch.index_select, "index_select"),
    OpFacts(OpKind.SHAPE, indexes=True): (operator.getitem,),

    OpFacts(OpKind.SPATIAL): (
        nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d,
        nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool3d,
        nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.LPPool1d, nn.LPPool2d,
        nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d,
        nn.CircularPad1d, nn.CircularPad2d, nn.ConstantPad1d, nn.ConstantPad2d,
        F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d,
        F.adaptive_avg_pool1d, F.adaptive_avg_pool3d,
        F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d,
        F.max_pool1d_with_indices, F.max_pool2d_with_indices, F.max_pool3d_with_indices,
    ),
    OpFacts(OpKind.SPATIAL, channel_flops=flops.adaptive_pool_flops): (
        nn.AdaptiveAvgPool2d, F.adaptive_avg_pool2d,
    ),
    OpFacts(OpKind.SPATIAL, channel_flops=flops.resize_flops): (nn.Upsample, F.interpolate),

    OpFacts(OpKind.SPATIAL, channel_flops=flops.grid_sample_flops, others="pin"): (F.grid_sample,),
    OpFacts(OpKind.SPATIAL, others="tie"): (
        nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d,
        F.max_unpool1d, F.max_unpool2d, F.max_unpool3d,
    ),

    OpFacts(OpKind.REDUCE): (
        nn.Softmax, nn.LogSoftmax, F.softmax,
        torch.mean, torch.sum, torch.amax, torch.amin, torch.softmax,
        torch.std, torch.var, torch.std_mean, torch.var_mean, torch.prod, torch.logsumexp,
        torch.argmax, torch.argmin, torch.any, torch.all, torch.cumsum, torch.cumprod,
        "mean", "sum", "amax", "amin", "softmax", "log_softmax",
        "std", "var", "prod", "logsumexp", "argmax", "argmin", "any", "all", "cumsum", "cumprod",
    ),
    OpFacts(OpKind.REDUCE, kind_if=_max_kind): (torch.max, torch.min, "max", "min"),
    OpFacts(OpKind.REDUCE, dim=-1): (
        torch.sort, torch.argsort, torch.median, torch.mode, "sort", "argsort", "median", "mode",
    ),
    OpFacts(OpKind.REDUCE, dim_at=2): (
        torch.norm, torch.linalg.norm, torch.linalg.vector_norm, "norm",
    ),
    OpFacts(OpKind.REDUCE, dim_at=2, dim=1): (F.normalize,),
    OpFacts(OpKind.REDUCE, dim_at=2, dim=-1): (torch.topk, torch.kthvalue, "topk", "kthvalue"),

    OpFacts(OpKind.SOURCE, copies=True): (
        torch.rand, torch.randn, torch.ones, torch.full, torch.arange, torch.linspace,
        "new_ones", "new_full",
    ),
    OpFacts(OpKind.SOURCE, copies=True, like=True): (
        torch.rand_like, torch.randn_like, torch.ones_like, torch.full_like,
    ),
    OpFacts(OpKind.RECURRENT): (
        nn.GRU, nn.LSTM, nn.RNN, nn.GRUCell, nn.LSTMCell, nn.RNNCell,
    ),
    OpFacts(OpKind.METADATA): (  # methods, and attributes read by `getattr`
        "size", "shape", "dim", "ndim", "numel", "dtype", "device", "is_floating_point",
    ),

    # ops without a rule: norms that are named as the reason of a pin, in-place operators
    OpFacts(OpKind.UNKNOWN, leaf=True): (nn.LayerNorm, nn.LocalResponseNorm),
    OpFacts(OpKind.UNKNOWN, in_place=True): (operator.setitem, operator.ipow),
}
# fmt: on

_FACTS: dict[Any, OpFacts] = {op: facts for facts, ops in OPS.items() for op in ops}
_NO_FACTS = OpFacts(OpKind.UNKNOWN)


def module_facts(module: nn.Module) -> OpFacts:
    """Return the facts of a module's class, or of its nearest base class in the table."""
    return next((_FACTS[base] for base in type(module).__mro__ if base in _FACTS), _NO_FACTS)


def node_facts(node: fx.Node, modules: dict[str, nn.Module] | None = None) -> OpFacts:
    """Return the facts of the op that a node calls; module calls need `modules`, by name."""
    if node.op == "call_module":
        return module_facts(modules[str(node.target)]) if modules else _NO_FACTS
    if node.op not in ("call_function", "call_method"):
        return _NO_FACTS
    target = node.args[1] if node.target is getattr else node.target
    return (
        _facts_of_overload(target)
        if isinstance(target, OpOverload)
        else _FACTS.get(target, _NO_FACTS)
    )


def _facts_of_overload(op: OpOverload) -> OpFacts:
    """The facts of an op of scripted code: those of the function or method of the same name."""
    name = op_name(op).removeprefix("_")
    known = (getattr(torch, name, None), getattr(F, name, None), name)
    facts = next((_FACTS[key] for key in known if key in _FACTS), _NO_FACTS)
    return facts if facts.kind in (OpKind.ELEMENTWISE, OpKind.SHAPE, OpKind.REDUCE) else _NO_FACTS


def op_name(target: Any) -> str:
    """The name of a function or method that a node calls."""
    if isinstance(target, OpOverload):
        return str(target._schema.name).rpartition("::")[2]
    return target if isinstance(target, str) else getattr(target, "__name__", "?")


def kind_of(node: fx.Node, modules: dict[str, nn.Module]) -> OpKind:
    """The kind of op that a node calls; `OpKind.UNKNOWN` if the op is not in the table."""
    facts = node_facts(node, modules)
    module = modules[str(node.target)] if node.op == "call_module" else None
    return (facts.kind_if and facts.kind_if(node, module)) or facts.kind


def is_functional_layer(node: fx.Node) -> bool:
    """Whether a node calls a layer as a function, such as `F.conv2d(x, weight)`."""
    return node.op == "call_function" and node_facts(node).kind is OpKind.LAYER


def may_be_view(node: fx.Node, kind: OpKind | None, modules: dict[str, nn.Module]) -> bool:
    """Whether the result of an op of this kind may share memory with its input."""
    return kind is OpKind.SHAPE and not node_facts(node, modules).copies


def in_place(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether an op modifies its input: `x.add_(y)`, `x += y`, `nn.ReLU(inplace=True)`."""
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    name = op_name(node.target)
    if (name.endswith("_") and not name.endswith("__")) or node_facts(node).in_place:
        return True
    try:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # built-in ops have neither a signature nor `inplace`
        return False
    return given.arguments.get("inplace") is True


def describe(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    """Name an op for the user: `LayerNorm (features.1)`, `matmul (in blocks.0.attn)`."""
    if node.op == "call_module":
        return f"{type(modules[str(node.target)]).__name__} ({node.target})"
    if node.op in ("placeholder", "output"):
        return f"the network's {'input' if node.op == 'placeholder' else 'output'}"
    name = op_name(node.target)
    if node.target is assigned:
        name = "assignment to a slice"
    owners = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return f"{name} (in {owners[-1]})" if owners and owners[-1] else name
