"""Find the units of a network."""

import torch
from torch import nn

from legr_cli.channels.push import push
from legr_cli.channels.rewrite import check_shape_ops
from legr_cli.channels.structures import tensors
from legr_cli.channels.trace import Traced, evaluating, fixed_seed, trace
from legr_cli.channels.units import Units, assign_units
from legr_cli.errors import ModelError


def couple(model: nn.Module, input_shape: tuple[int, ...]) -> Units:
    """Trace `model` and group its channels into units; `model` is left unchanged.

    `input_shape` is the size of one image (channels, height, width). Removal is tried out on random
    plans; channels in the way of an op that cannot be adapted are pinned, with the op as reason.

    Raises ModelError if the network cannot be traced, does not run on such an image, or has no
    channel that can be removed.

        units = couple(torchvision.models.resnet18(), (3, 224, 224))
    """
    traced = trace(model, _example(model, input_shape, batch=2))
    _verify(model, traced, input_shape)
    flow = push(traced.graph_module, traced.values)
    units = assign_units(flow, input_shape)
    while failures := check_shape_ops(units):
        for value, reason in failures:
            flow.pin(value, reason)
        previous_count, units = units.count, assign_units(flow, input_shape)
        if units.count == previous_count:
            raise ModelError(
                f"cannot prune around {failures[0][1]}: this is a bug in legr, please report it "
                "with the network"
            )
    if units.count == 0:
        reasons = sorted({pin.reason for pin in units.pins})
        why = "all are pinned by " + "; ".join(reasons[:3]) if reasons else "it has no layers"
        raise ModelError(f"no channel of this network can be removed: {why}")
    return units


def _example(model: nn.Module, input_shape: tuple[int, ...], batch: int) -> tuple[torch.Tensor]:
    """Random images of the network's dtype and device."""
    generator = torch.Generator().manual_seed(batch)
    images = torch.rand(batch, *input_shape, generator=generator)
    return (images.to(next(model.parameters(), torch.zeros(()))),)


def _verify(model: nn.Module, traced: Traced, input_shape: tuple[int, ...]) -> None:
    """Compare the graph with the network on other images, in batches of another size.

    If the network's code reads values of tensors, for example in a condition, the images are of
    several kinds. Raises ModelError if an output differs.
    """
    if any(tensor.is_meta for tensor in model.parameters()):
        return
    (images,) = _example(model, input_shape, batch=1)
    kinds = [images]
    if traced.read_values:
        kinds += [-images, torch.zeros_like(images), images * 10 - 5, (images - 0.5) / 10]
    for kind in kinds:
        if not _agree(model, traced.graph_module, (kind,)):
            raise ModelError(_unfaithful(traced))


def _agree(model: nn.Module, graph_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> bool:
    """Whether two networks give the same output, up to rounding; or the first refuses the input."""
    try:
        with evaluating(model), fixed_seed():
            expected = tensors(model(*inputs))
    except Exception:
        return True
    try:
        with evaluating(graph_module), fixed_seed():
            actual = tensors(graph_module(*inputs))
    except Exception:
        return False
    return len(expected) == len(actual) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(expected, actual, strict=True)
    )


def _unfaithful(traced: Traced) -> str:
    """Why a graph cannot stand for its network, and what to do."""
    advice = "move this out of forward, or prune a part of the network without it (--module)"
    if traced.read_values:
        return (
            "the network's output depends on the values that its code reads from tensors at "
            f"{traced.read_values[0]}; {advice}"
        )
    return (
        "the traced graph computes another output than the network on another image: part of its "
        f"code runs outside torch, for example in NumPy; {advice}"
    )
