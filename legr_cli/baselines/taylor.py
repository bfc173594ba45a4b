"""Taylor (Molchanov et al. 2016): a channel's importance is |activation × gradient|.

Θ(z) = mean over images of |1/M Σ z · ∂loss/∂z|, summed over the M positions of the channel, then
divided by the L2 norm of its layer's values (so M cancels). A unit has the sum of its channels'.
"""

import numpy as np
import torch
from torch import Tensor

from legr_cli.baselines.probe import Criterion, GateUnits


def accumulate(gradients: list[Tensor], _gate_units: GateUnits, _count: int) -> Tensor:
    """Σ over images of |gradient|, for the channels of all gates in sequence."""
    return torch.cat([gradient.abs().sum(0) for gradient in gradients])


def score(mean: np.ndarray, gate_units: GateUnits, saved: np.ndarray) -> np.ndarray:
    """Normalize by layer, and sum by unit."""
    scores = np.zeros(len(saved))
    parts = np.split(mean, np.cumsum([len(units) for units in gate_units])[:-1])
    for units, part in zip(gate_units, parts, strict=True):
        norm = float(np.sqrt(np.square(part).sum())) or 1.0
        np.add.at(scores, units[units >= 0], part[units >= 0] / norm)
    return scores


TAYLOR = Criterion(accumulate, score)
