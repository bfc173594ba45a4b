"""Scores of units as logarithms, shared out to the filters of each unit."""

import numpy as np
import torch
from torch import Tensor

from legr_cli.channels.units import Units
from legr_cli.cost import Cost

_SMALLEST = 1e-9  # of a score, relative to the median: scores of dead channels are 0


def shared_out(units: Units, cost: Cost, scores: np.ndarray) -> dict[str, Tensor]:
    """log(score / √FLOPs) of each unit, centred over the network, over its number of filters.

    The sum over a unit's filters is the logarithm again, so that α = 1 and κ = 0 rank by what a
    unit is worth for its FLOPs. The square root is a compromise: the score of a unit counts alone
    where many units must go, its score for each FLOP where few must.
    """
    flops = np.maximum(cost.marginal(cost.flops, cost.sizes.astype(float)), 1)[cost.group_of]
    least = _SMALLEST * float(np.median(scores[scores > 0])) if (scores > 0).any() else 1.0
    values = np.log(np.maximum(scores, least)) - np.log(flops) / 2
    values -= values.mean()
    layers = {name: units.unit_of(layer.out) for name, layer in units.flow.layers.items()}
    members = np.concatenate([unit[unit >= 0] for unit in layers.values()])
    filters = np.maximum(np.bincount(members, minlength=units.count), 1)
    each = np.append(values / filters, 0.0)  # unit −1, channels that always stay, indexes the 0
    return {name: torch.from_numpy(each[unit]) for name, unit in layers.items()}


def summed(units: Units, values: dict[str, Tensor]) -> np.ndarray:
    """The sum of each unit's filters; layers without values count as 0."""
    sums = np.zeros(units.count)
    for name, each in values.items():
        unit = units.unit_of(units.flow.layers[name].out)
        np.add.at(sums, unit[unit >= 0], each.cpu().numpy()[unit >= 0])
    return sums
