"""Tiny networks, cut and repaired by the engine itself."""

import copy
from typing import Any

import laws
import nets
import torch
from torch import Tensor, fx

from legr_cli.channels import Units, apply, couple
from legr_cli.channels.units import Kept
from legr_cli.cost import price
from legr_cli.progress import silent
from legr_cli.repairs.layers import RepairedLayer, repair_layers


def pictures(count: int, seed: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *nets.INPUT, generator=generator)


def halved(name: str, share: float = 0.6) -> tuple[Units, Kept, fx.GraphModule]:
    """A network of `nets`, and what is left of it."""
    units = couple(nets.make(name).float(), nets.INPUT)
    kept = laws.plan(units, price(units), share)
    return units, kept, apply(units, kept)


def repaired(
    units: Units, kept: Kept, cut: fx.GraphModule, batches: list[Tensor], **options: Any
) -> tuple[fx.GraphModule, list[RepairedLayer]]:
    smaller = copy.deepcopy(cut)
    options = {"ridge": 0.1, "seed": 0, **options}
    return smaller, repair_layers(units, kept, smaller, batches, progress=silent, **options)
