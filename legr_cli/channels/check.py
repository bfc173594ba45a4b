"""Is a pruned network right? The dense one, with the removed channels silenced, must agree."""

import copy
from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.flow import Layer
from legr_cli.channels.gates import Gated, shut
from legr_cli.channels.id_tensors import tensors
from legr_cli.channels.trace import evaluating
from legr_cli.channels.units import Kept, Units


def silenced(
    units: Units, kept: Kept, images: torch.Tensor, traced: fx.GraphModule | None = None
) -> Any:
    """dense(x) with the removed channels set to zero where layers read them."""
    traced = traced or units.flow.traced

    def gate(layer: Layer, x: torch.Tensor) -> torch.Tensor:
        return shut(layer, x, torch.from_numpy(units.keeps(kept, layer.into)).to(x.device))

    with evaluating(traced):
        return Gated(traced, units.flow, gate).run(images)


def disagreement(units: Units, kept: Kept, smaller: nn.Module, exact: bool = False) -> float:
    """Largest difference of `smaller` to the silenced dense network, relative to its output.

    `exact` computes both in double precision, which tells a mistake from rounding.
    """
    traced = units.flow.traced
    if exact:
        traced, smaller = copy.deepcopy(traced).double(), copy.deepcopy(smaller).double()
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(2, *units.input_shape, generator=generator).to(next(traced.parameters()))
    expected = tensors(silenced(units, kept, images, traced))
    with evaluating(smaller):
        found = tensors(smaller(images))
    if [t.shape for t in expected] != [t.shape for t in found]:
        return float("inf")
    return max(_relative(a, b) for a, b in zip(expected, found, strict=True))


def _relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference relative to the largest value of `a`; infinite if only one is NaN."""
    a, b = a.double(), b.double()
    alike = (a == b) | (a.isnan() & b.isnan())
    gap = torch.where(alike, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
    scale = float(a[a.isfinite()].abs().max()) if bool(a.isfinite().any()) else 1.0
    return float(gap.max()) / (scale or 1.0) if gap.numel() else 0.0
