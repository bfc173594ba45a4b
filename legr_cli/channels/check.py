"""Check a pruned network against the dense network with the removed channels set to zero."""

import copy
from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.flow import Layer
from legr_cli.channels.gates import GatedInterpreter, mask_channels
from legr_cli.channels.inputs import Call, submodule
from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import WithoutNoise, evaluating
from legr_cli.channels.units import Kept, Units


def masked_output(
    units: Units, kept: Kept, call: Call, traced: fx.GraphModule | None = None
) -> Any:
    """Return the dense network's output with the removed channels zeroed before every layer."""
    traced = traced or units.flow.traced

    def gate(layer: Layer, x: torch.Tensor) -> torch.Tensor:
        stays = torch.from_numpy(units.keeps(kept, layer.into)).to(x.device)
        return mask_channels(layer, x, stays)

    with evaluating(traced), WithoutNoise():
        given = call.named(units.source.part)
        inputs = {n: given[str(n.target)] for n in traced.graph.nodes if n.op == "placeholder"}
        return GatedInterpreter(traced, units.flow, gate).run(initial_env=inputs)


def disagreement(units: Units, kept: Kept, smaller: nn.Module, exact: bool = False) -> float:
    """Return the largest difference between `smaller` and the masked dense network.

    It is relative to the largest value of the output. `exact` computes in double precision, to
    distinguish mistakes from rounding errors.
    """
    traced, smaller = units.flow.traced, submodule(smaller, units.source.module)
    if exact:
        traced, smaller = copy.deepcopy(traced).double(), copy.deepcopy(smaller).double()
    call = units.source.call(batch=2).like(next(traced.parameters()))
    expected = tensors(masked_output(units, kept, call, traced))
    with evaluating(smaller), WithoutNoise():
        actual = tensors(call.run(smaller))
    if [t.shape for t in expected] != [t.shape for t in actual]:
        return float("inf")
    return max(relative_difference(a, b) for a, b in zip(expected, actual, strict=True))


def relative_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference relative to the largest value of `a`; inf if one is NaN."""
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    difference = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
    scale = float(a[a.isfinite()].abs().max()) if bool(a.isfinite().any()) else 1.0
    return float(difference.max()) / (scale or 1.0) if difference.numel() else 0.0
