"""From a network to its units."""

from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.id_tensors import tensors
from legr_cli.channels.push import push
from legr_cli.channels.rewrite import check_shape_ops
from legr_cli.channels.trace import evaluating, run_once, seeded, trace
from legr_cli.channels.units import Units, number
from legr_cli.errors import ModelError


def couple(model: nn.Module, input_shape: tuple[int, ...]) -> Units:
    """Trace `model` and tie its channels into units; `model` is left as it was.

    Cutting is rehearsed on random plans; whatever stands in the way is pinned, and named.
    """
    traced = trace(model)
    flow = push(traced, _observe(model, traced, input_shape))
    units = number(flow, input_shape)
    while trouble := check_shape_ops(units):
        for value, reason in trouble:
            flow.pin(value, reason)
        before, units = units.count, number(flow, input_shape)
        if units.count == before:
            raise ModelError(f"no way to cut around {trouble[0][1]}: please report this network")
    if units.count == 0:
        reasons = sorted({pin.reason for pin in units.pins})
        why = "all are pinned by " + "; ".join(reasons[:3]) if reasons else "it has no layers"
        raise ModelError(f"no channel of this network can be removed: {why}")
    return units


def _observe(
    model: nn.Module, traced: fx.GraphModule, input_shape: tuple[int, ...]
) -> dict[fx.Node, Any]:
    """The values of every node on two images (so that no batch is a broadcast of one).

    The graph must compute what the network does: torch.fx does not see, for one, a tensor that is
    changed in place under another name.
    """
    tensor = next(model.parameters(), torch.zeros(()))
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, *input_shape, generator=generator).to(tensor)
    output, values = run_once(traced, images)
    if tensor.is_meta:
        return values
    with evaluating(model), seeded():
        expected = tensors(model(images))
    found = tensors(output)
    same = len(expected) == len(found) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)
        for a, b in zip(expected, found, strict=True)
    )
    if not same:
        raise ModelError(
            "the traced network does not compute what the network does: it has code that torch.fx "
            "does not see, such as a tensor changed in place under another name"
        )
    return values
