"""Find the units of a network."""

from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.id_tensors import tensors
from legr_cli.channels.push import push
from legr_cli.channels.rewrite import check_shape_ops
from legr_cli.channels.trace import evaluating, fixed_seed, run_once, trace
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
    traced = trace(model)
    flow = push(traced, _record_values(model, traced, input_shape))
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


def _record_values(
    model: nn.Module, traced: fx.GraphModule, input_shape: tuple[int, ...]
) -> dict[fx.Node, Any]:
    """Return the value of every node on two images (a batch of one would look like a broadcast).

    The graph must compute the same output as the network, which it may not: torch.fx does not see,
    for example, that a tensor is modified in place under another name.
    """
    tensor = next(model.parameters(), torch.zeros(()))
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, *input_shape, generator=generator).to(tensor)
    output, values = run_once(traced, images)
    if tensor.is_meta:
        return values
    with evaluating(model), fixed_seed():
        expected = tensors(model(images))
    actual = tensors(output)
    same = len(expected) == len(actual) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(expected, actual, strict=True)
    )
    if not same:
        raise ModelError(
            "the traced graph computes another output than the network: part of its code is "
            "invisible to torch.fx, such as a tensor modified in place under another name"
        )
    return values
