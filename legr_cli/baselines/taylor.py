"""Taylor (Molchanov et al. 2016): a channel is worth |activation × gradient|, by layer.

Θ(z) = mean over images of |1/M Σ z · ∂loss/∂z| over the M positions of the channel, divided by the
length of the layer's vector of them (which M cancels from); a unit has the sum of its channels'.
"""

import numpy as np
import torch
from torch import Tensor

from legr_cli.baselines.probe import Criterion, Reads


def take(gradients: list[Tensor], _reads: Reads, _count: int) -> Tensor:
    """Σ over images of |gradient|, one gate after the other."""
    return torch.cat([gradient.abs().sum(0) for gradient in gradients])


def score(mean: np.ndarray, reads: Reads, saved: np.ndarray) -> np.ndarray:
    """Normalised by layer, summed by unit."""
    scores = np.zeros(len(saved))
    parts = np.split(mean, np.cumsum([len(units) for units in reads])[:-1])
    for units, part in zip(reads, parts, strict=True):
        length = float(np.sqrt(np.square(part).sum())) or 1.0
        np.add.at(scores, units[units >= 0], part[units >= 0] / length)
    return scores


TAYLOR = Criterion(take, score)
