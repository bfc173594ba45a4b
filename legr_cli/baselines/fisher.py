"""FisherPruning (Theis et al. 2018): the estimated increase of the loss, minus λ × FLOPs saved.

To second order, removing a unit increases the loss by ½ · mean over images of (∂loss/∂mask)², half
the Fisher information of the unit's mask.
"""

import numpy as np
import torch
from torch import Tensor

from legr_cli.baselines.probe import Criterion, GateUnits, sum_by_unit


def accumulate(gradients: list[Tensor], gate_units: GateUnits, count: int) -> Tensor:
    """Σ over images of the squared gradient of each unit's mask, which its gates share."""
    masks = [
        sum_by_unit(gradient, units, count)
        for gradient, units in zip(gradients, gate_units, strict=True)
    ]
    return torch.stack(masks).sum(0).square().sum(0)


def fisher(weight: float) -> Criterion:
    """The criterion with λ = `weight` × mean information of a unit / mean FLOPs of a unit."""

    def score(mean: np.ndarray, _gate_units: GateUnits, saved: np.ndarray) -> np.ndarray:
        information = mean / 2
        present = information > 0  # removed units have none
        if not present.any():
            return -saved
        price = weight * information[present].mean() / saved[present].mean()
        return information - price * saved

    return Criterion(accumulate, score)
