"""FisherPruning (Theis et al. 2018): what the loss rises by when a unit goes, less what that saves.

The rise is, to second order, ½ · mean over images of (∂loss/∂mask)², the Fisher information of the
unit's mask; of it λ × the FLOPs that go with the unit is taken off.
"""

import numpy as np
import torch
from torch import Tensor

from legr_cli.baselines.probe import Criterion, Reads, by_unit


def take(gradients: list[Tensor], reads: Reads, count: int) -> Tensor:
    """Σ over images of the squared gradient of each unit's mask, which all its gates share."""
    masks = [by_unit(own, units, count) for own, units in zip(gradients, reads, strict=True)]
    return torch.stack(masks).sum(0).square().sum(0)


def fisher(weight: float) -> Criterion:
    """With λ = `weight` × the mean information of a unit / the mean of its FLOPs."""

    def score(mean: np.ndarray, _reads: Reads, saved: np.ndarray) -> np.ndarray:
        information = mean / 2
        there = information > 0  # what is removed has none
        if not there.any():
            return -saved
        price = weight * information[there].mean() / saved[there].mean()
        return information - price * saved

    return Criterion(take, score)
