"""One call of a layer as a matrix product: rows of its input, and its weight as a matrix.

A layer's own `forward` runs, and the convolution or linear function that it calls is recorded, so
that padding done inside a subclass and calls by function need no rules of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from legr_cli.channels.flow import Flow, Layer
from legr_cli.channels.layers import layer_at

_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = (*_CONV[:5], "output_padding", "groups", "dilation")
# The parameters of every function that is linear in its weight, in order.
SIGNATURES: dict[Any, tuple[str, ...]] = {
    F.linear: ("input", "weight", "bias"),
    **dict.fromkeys((F.conv1d, F.conv2d, F.conv3d), _CONV),
    **dict.fromkeys((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), _TRANSPOSED),
}


@dataclass(frozen=True)
class LinearCall:
    """A call that computes `rows @ matrix + bias`, for every group of channels by itself."""

    patches: Tensor  # a view: images × channels × output positions × kernel positions
    output: Tensor  # images × channels × output positions
    groups: int
    transposed: bool

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Images and output positions: there is one row for each."""
        return (len(self.output), *self.output.shape[2:])

    def inputs_at(self, rows: Tensor) -> Tensor:
        """Rows of the input: rows × groups × unknowns."""
        taken = _rows_at(self.patches, self.row_shape, rows)
        return taken.reshape(len(rows), self.groups, -1)

    def outputs_at(self, value: Tensor, rows: Tensor) -> Tensor:
        """Rows of the output, or of a tensor of its shape: rows × groups × channels."""
        value = value.reshape(self.output.shape)
        return _rows_at(value, self.row_shape, rows).reshape(len(rows), self.groups, -1)

    def matrix(self, weight: Tensor) -> Tensor:
        """A weight as groups × unknowns × channels."""
        if self.patches.ndim == 2:
            return weight.t()[None]
        weight = _flipped(weight, self.groups) if self.transposed else weight
        return weight.reshape(self.groups, len(weight) // self.groups, -1).mT

    def weight(self, matrix: Tensor, like: Tensor) -> Tensor:
        """The inverse of `matrix`: a weight of the shape of `like`."""
        if self.patches.ndim == 2:
            return matrix[0].t()
        if not self.transposed:
            return matrix.mT.reshape(like.shape)
        return _flipped(matrix.mT.reshape(_flipped(like, self.groups).shape), self.groups)


def record(run: Callable[[], Tensor], weight: Tensor) -> LinearCall | str:
    """Run a layer and describe its call; a string says why it is not a product with its weight."""
    with _CallRecorder(weight) as recorder:
        output = run()
    if len(recorder.calls) != 1 or recorder.calls[0][2] is not output:
        return "its output is not a plain product with its weight"
    function, given, _ = recorder.calls[0]
    if function is F.linear:
        x = given["input"]
        return LinearCall(
            x.reshape(-1, x.shape[-1]), output.reshape(-1, output.shape[-1]), 1, False
        )
    if given["input"].ndim != weight.ndim:
        return "its input has no batch dimension"
    transposed = SIGNATURES[function] is _TRANSPOSED
    patches = _unfold_transposed(given) if transposed else _unfold(given)
    return LinearCall(patches, output, int(given.get("groups", 1)), transposed)


class LayerCalls(fx.Interpreter):
    """Runs a traced network, and describes every call of a layer to a callback."""

    def __init__(self, flow: Flow, on_call: Callable[[Layer, LinearCall | str], None]) -> None:
        super().__init__(flow.traced)
        self.flow, self.on_call = flow, on_call

    def run_node(self, n: fx.Node) -> Any:
        """Run a node; the call of a layer is recorded."""
        layer = layer_at(self.flow, n)
        if layer is None:
            return super().run_node(n)
        outputs: list[Any] = []
        run = partial(super().run_node, n)

        def called() -> Any:
            outputs.append(run())
            return outputs[0]

        self.on_call(layer, record(called, layer.weight))
        return outputs[0]


class _CallRecorder(TorchFunctionMode):
    """Collects the calls that use a weight."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = weight
        self.calls: list[tuple[Any, dict[str, Any], Any]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {**dict(zip(SIGNATURES.get(func, ()), args, strict=False)), **(kwargs or {})}
        if given.get("weight") is self.weight:
            self.calls.append((func, given, result))
        return result


def _unfold(given: dict[str, Any]) -> Tensor:
    """The patches that a convolution reads."""
    x, kernel = given["input"], given["weight"].shape[2:]
    stride, dilation = (_each(given.get(name, 1), kernel) for name in ("stride", "dilation"))
    padding, amounts = given.get("padding", 0), list[int]()
    for dim in reversed(range(len(kernel))):  # F.pad starts at the last dimension
        if padding == "same":
            total = dilation[dim] * (kernel[dim] - 1)
            amounts += [total // 2, total - total // 2]
        else:
            amounts += [0 if padding == "valid" else _each(padding, kernel)[dim]] * 2
    return _windows(F.pad(x, amounts) if any(amounts) else x, kernel, stride, dilation)


def _unfold_transposed(given: dict[str, Any]) -> Tensor:
    """The patches of the ordinary convolution that equals a transposed one.

    Its input has `stride − 1` zeros between neighbours, its kernel is flipped.
    """
    x, kernel = given["input"], given["weight"].shape[2:]
    stride, dilation, padding, extra = (
        _each(given.get(name, default), kernel)
        for name, default in (("stride", 1), ("dilation", 1), ("padding", 0), ("output_padding", 0))
    )
    sides = [(side - 1) * s + 1 for side, s in zip(x.shape[2:], stride, strict=True)]
    spread = x.new_zeros(*x.shape[:2], *sides)
    every: tuple[Any, ...] = (..., *(slice(None, None, s) for s in stride))
    spread[every] = x
    amounts = list[int]()
    for dim in reversed(range(len(kernel))):
        around = dilation[dim] * (kernel[dim] - 1) - padding[dim]
        amounts += [around, around + extra[dim]]
    return _windows(F.pad(spread, amounts), kernel, (1,) * len(kernel), dilation)


def _windows(
    x: Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> Tensor:
    """A view of every window: images × channels × output positions × kernel positions."""
    for dim, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), 2):
        x = x.unfold(dim, d * (k - 1) + 1, s)[..., ::d]
    return x


def _rows_at(value: Tensor, row_shape: tuple[int, ...], rows: Tensor) -> Tensor:
    """Index images and positions at once; the channels are dimension 1."""
    image, *position = torch.unravel_index(rows, row_shape)
    index: tuple[Any, ...] = (image, slice(None), *position)
    return value[index]


def _each(value: Any, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """One number for each dimension of a kernel."""
    return tuple(value) if isinstance(value, tuple | list) else (int(value),) * len(kernel)


def _flipped(weight: Tensor, groups: int) -> Tensor:
    """The weight of a transposed convolution as that of an ordinary one, and back."""
    # of each group, in × out / groups × kernel becomes out × in / groups × kernel
    swapped = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    return swapped.flip(tuple(range(2, weight.ndim)))
