"""One table: what each op does to channels.

An op that is in no row has no rule: the channels it reads are pinned, never passed through.
"""

import operator
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torchvision.ops import StochasticDepth


class OpKind(Enum):
    """The few ways in which an op can treat channels."""

    LAYER = "layer"  # reads channels, makes new ones
    CHANNELWISE = "channelwise"  # has parameters of its own for each channel
    GROUPWISE = "groupwise"  # mixes the channels of each group
    ELEMENTWISE = "elementwise"  # ties its operands position by position
    SHAPE = "shape"  # moves elements about: run on the ids themselves
    SPATIAL = "spatial"  # mixes positions of one channel: (N, C, *space)
    REDUCE = "reduce"  # takes dimensions away or works along them
    UNKNOWN = "unknown"  # no rule: pinned


CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d)

_MODULES: dict[OpKind, tuple[type[nn.Module], ...]] = {
    OpKind.LAYER: (nn.modules.conv._ConvNd, nn.Linear),
    OpKind.CHANNELWISE: (nn.modules.batchnorm._NormBase, nn.PReLU),
    OpKind.GROUPWISE: (nn.GroupNorm,),
    OpKind.ELEMENTWISE: (
        *(nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Hardsigmoid),
        *(nn.Hardtanh, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.Mish, nn.Softplus, nn.Softsign),
        *(nn.LogSigmoid, nn.Threshold, nn.Hardshrink, nn.Softshrink, nn.Tanhshrink, nn.RReLU),
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.Identity),
        *(nn.FeatureAlphaDropout, StochasticDepth),
    ),
    OpKind.SHAPE: (
        *(nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
        *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    ),
    OpKind.SPATIAL: (
        *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
        *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.LPPool1d),
        *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d, nn.LPPool2d),
        *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReplicationPad1d, nn.ReplicationPad2d),
        *(nn.CircularPad1d, nn.CircularPad2d, nn.ConstantPad1d, nn.ConstantPad2d, nn.Upsample),
    ),
    OpKind.REDUCE: (nn.Softmax, nn.LogSoftmax),
}

_FUNCTIONS: dict[OpKind, tuple[Any, ...]] = {
    OpKind.LAYER: (*CONVOLUTIONS, F.linear),
    OpKind.ELEMENTWISE: (
        *(F.relu, F.relu_, torch.relu, F.relu6, F.hardswish, F.silu, F.gelu, F.sigmoid, F.tanh),
        *(torch.sigmoid, torch.tanh, F.hardsigmoid, F.hardtanh, F.leaky_relu, F.elu, F.selu),
        *(F.celu, F.mish, F.softplus, F.softsign, F.logsigmoid, F.dropout, F.dropout2d),
        *(operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul),
        *(operator.truediv, operator.itruediv, operator.pow, operator.neg),
        *(torch.add, torch.sub, torch.mul, torch.div, torch.true_divide, torch.pow, torch.neg),
        *(torch.abs, torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.square, torch.clamp),
        *(torch.minimum, torch.maximum, torch.clone, torch.clip, torch.clamp_min, torch.clamp_max),
        *(
            torch.addcmul,
            torch.lerp,
            torch.erf,
            torch.sin,
            torch.cos,
            torch.sign,
            torch.log1p,
            torch.expm1,
            torch.reciprocal,
        ),
        *(F.leaky_relu_, F.hardtanh_, F.elu_, F.threshold, F.rrelu, F.dropout1d, F.dropout3d),
        *(F.alpha_dropout, F.feature_alpha_dropout, torch.round, torch.floor, torch.ceil),
    ),
    OpKind.SHAPE: (
        *(torch.cat, torch.concat, torch.concatenate, torch.stack, torch.chunk, torch.split),
        *(torch.tensor_split, torch.unbind, torch.flatten, torch.unflatten, torch.reshape),
        *(torch.permute, torch.transpose, torch.swapaxes, torch.movedim, torch.squeeze),
        *(torch.unsqueeze, torch.narrow, torch.select, torch.flip, torch.roll, torch.tile),
        *(torch.repeat_interleave, torch.broadcast_to, torch.index_select, torch.zeros),
        *(torch.zeros_like, F.pad, F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle),
        operator.getitem,
    ),
    OpKind.SPATIAL: (
        *(F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
        *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
        *(F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d, F.interpolate),
    ),
    OpKind.REDUCE: (torch.mean, torch.sum, torch.amax, torch.amin, torch.softmax, F.softmax),
}

_METHODS: dict[OpKind, tuple[str, ...]] = {
    OpKind.ELEMENTWISE: (
        *("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "add", "add_", "sub", "sub_", "mul"),
        *("mul_", "div", "div_", "pow", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "square"),
        *("clip", "clip_", "clamp_min", "clamp_max", "erf", "sin", "cos", "sign", "reciprocal"),
        *("clamp", "clamp_", "clone", "detach", "float", "half", "double", "to", "type_as"),
    ),
    OpKind.SHAPE: (
        *("view", "reshape", "flatten", "unflatten", "permute", "transpose", "swapaxes", "squeeze"),
        *("unsqueeze", "contiguous", "expand", "expand_as", "repeat", "repeat_interleave", "chunk"),
        *("split", "tensor_split", "unbind", "narrow", "select", "flip", "roll", "tile", "movedim"),
        *("index_select", "view_as", "reshape_as", "new_zeros"),
    ),
    OpKind.REDUCE: ("mean", "sum", "amax", "amin", "softmax", "log_softmax"),
}

_KIND_OF_FUNCTION = {function: kind for kind, row in _FUNCTIONS.items() for function in row}
_KIND_OF_METHOD = {name: kind for kind, row in _METHODS.items() for name in row}
RESHAPES = {
    *("reshape", "flatten", "unflatten", "squeeze"),
    *(torch.reshape, torch.flatten, torch.unflatten, torch.squeeze),
}
RESHAPE_MODULES = (nn.Flatten, nn.Unflatten)


_COPIES = (  # shape ops whose result is memory of its own, never a view
    *(
        "cat",
        "concat",
        "concatenate",
        "stack",
        "pad",
        "repeat",
        "repeat_interleave",
        "tile",
        "roll",
    ),
    *("flip", "index_select", "zeros", "zeros_like", "new_zeros", "channel_shuffle"),
    *("pixel_shuffle", "pixel_unshuffle"),
)


def may_be_view(node: fx.Node, kind: OpKind | None) -> bool:
    """Whether a node's result may share its memory with the tensor it was made from."""
    name = getattr(node.target, "__name__", node.target)
    return kind is OpKind.SHAPE and name not in _COPIES


def kind_of(node: fx.Node, modules: dict[str, nn.Module]) -> OpKind:
    """The kind of a call node; `Kind.UNKNOWN` when the table has no row for it."""
    if node.op == "call_module":
        module = modules[str(node.target)]
        rows = (kind for kind, types in _MODULES.items() if isinstance(module, types))
        return next(rows, OpKind.UNKNOWN)
    table: dict[Any, OpKind] = (
        _KIND_OF_FUNCTION if node.op == "call_function" else _KIND_OF_METHOD  # type: ignore[assignment]
    )
    kind = table.get(node.target, OpKind.UNKNOWN)
    return OpKind.SPATIAL if _pads_space(node) else kind


def _pads_space(node: fx.Node) -> bool:
    """Padding by anything but zeros is a rule for space only."""
    if node.target is not F.pad:
        return False
    mode = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
    value = node.args[3] if len(node.args) > 3 else node.kwargs.get("value")
    return bool(mode != "constant" or value not in (None, 0, 0.0))


def describe(node: fx.Node, modules: dict[str, nn.Module]) -> str:
    """How an op is named to the user: `LayerNorm (features.1)`, `matmul (in blocks.0.attn)`."""
    if node.op == "call_module":
        return f"{type(modules[str(node.target)]).__name__} ({node.target})"
    if node.op in ("placeholder", "output"):
        return f"the network's {'input' if node.op == 'placeholder' else 'output'}"
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "?")
    owners = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return f"{name} (in {owners[-1]})" if owners and owners[-1] else str(name)
