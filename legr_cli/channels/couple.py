"""Find the units of a network."""

import contextlib
import io
from collections.abc import Callable

import torch
from torch import nn

from legr_cli.channels.inputs import Call, Source
from legr_cli.channels.push import push
from legr_cli.channels.rewrite import check_shape_ops
from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import evaluating, fixed_seed, unchanged
from legr_cli.channels.trace import Traced, trace
from legr_cli.channels.units import Units, assign_units
from legr_cli.errors import ModelError
from legr_cli.shapes import Shapes


def couple(model: nn.Module, input_shape: Shapes, module: str = "") -> Units:
    """Trace `model` and group its channels into units; `model` is left unchanged.

    `input_shape` is the size of one image (channels, height, width), or that of each input by name.
    `module` names the part of the network to look at, whatever surrounds it. Removal is tried out
    on random plans; channels in the way of an op that cannot be adapted are pinned, with the op as
    reason.

    Raises ModelError if the network cannot be traced, does not run on such an image, or has no
    channel that can be removed.

        units = couple(torchvision.models.resnet18(), (3, 224, 224))
    """
    source = Source(model, input_shape, module)
    with unchanged(model):
        traced = trace(source.part, source.call(batch=2))
        if traced.reads_caches:
            traced = _without_caches(source, traced)
        _verify(source, traced)
    flow = push(traced.graph_module, traced.values)
    units = assign_units(flow, source)
    while failures := check_shape_ops(units):
        for value, reason in failures:
            flow.pin(value, reason)
        previous_count, units = units.count, assign_units(flow, source)
        if units.count == previous_count:
            raise ModelError(
                f"cannot prune around {failures[0][1]}: this is a bug in legr, please report it "
                "with the network"
            )
    if units.count == 0:
        # those that say what to do come first
        reasons = sorted({pin.reason for pin in units.pins}, key=lambda r: (": call " not in r, r))
        why = "all are pinned by " + "; ".join(reasons[:3]) if reasons else "it has no layers"
        raise ModelError(f"no channel of this network can be removed: {why}")
    return units


def _without_caches(source: Source, traced: Traced) -> Traced:
    """Trace again after a run on larger images.

    A network may keep tensors that it computed for a size of images, such as the grid of anchors
    of a detector. When the size changes, it computes them while it is traced.
    """
    larger = source.larger(32)
    try:
        with evaluating(source.part), fixed_seed():
            larger.call(batch=1).run(source.part)
        return trace(source.part, source.call(batch=2))
    except Exception:  # it runs on one size only
        return traced


def _verify(source: Source, traced: Traced) -> None:
    """Compare the graph with the network on other images, in a batch of another size.

    If the network's code reads values of tensors, for example in a condition, the images are of
    several kinds. Raises ModelError if an output differs.
    """
    if any(tensor.is_meta for tensor in source.part.parameters()):
        return
    call = source.call(batch=1, seed=1)
    calls = [call]
    if traced.read_values:
        for change in (torch.neg, torch.zeros_like, lambda x: x * 10 - 5, lambda x: (x - 0.5) / 10):
            calls.append(call.with_tensors([_changed(x, change) for x in call.tensors]))
    for other in calls:
        if not _agree(source.part, traced.graph_module, other):
            raise ModelError(_unfaithful(source, traced))


def _changed(x: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Other values in a tensor of floats."""
    return change(x) if x.is_floating_point() else x


def _agree(model: nn.Module, graph_module: nn.Module, call: Call) -> bool:
    """Whether two networks give the same output, up to rounding; or the first refuses the input."""
    try:
        with evaluating(model), fixed_seed():
            expected = tensors(call.run(model))
    except Exception:
        return True
    try:
        with evaluating(graph_module), fixed_seed(), contextlib.redirect_stderr(io.StringIO()):
            actual = tensors(call.run(graph_module))
    except Exception:
        return False
    return len(expected) == len(actual) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(expected, actual, strict=True)
    )


def _unfaithful(source: Source, traced: Traced) -> str:
    """Why a graph cannot stand for its network, and what to do."""
    children = [name for name, part in source.part.named_children() if _size(part)]
    largest = max(children, key=lambda n: _size(source.part.get_submodule(n)), default="NAME")
    name = f"{source.module}.{largest}" if source.module else largest
    advice = f"move this out of forward, or prune a part of the network, such as --module {name}"
    if traced.read_values:
        return (
            "the network's output depends on values that its code reads from tensors at "
            f"{traced.read_values[0]}; {advice}"
        )
    if traced.loops:
        return f"the network's code loops over the images of a batch at {traced.loops[0]}; {advice}"
    return (
        "on another image, the output of the traced graph differs from the network's: part of its "
        f"code runs outside torch; {advice}"
    )


def _size(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())
