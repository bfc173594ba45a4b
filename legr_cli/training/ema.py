"""Exponential moving average of a network's weights and BatchNorm statistics."""

from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel


def ema_model(model: nn.Module, decay: float) -> AveragedModel:
    """A copy of `model` that averages it: a ← d·a + (1 − d)·w, d = min(decay, (1 + n) / (10 + n)).

    n is the number of updates so far, so that the average warms up quickly.
    """

    @torch.no_grad()
    def update(averages: Any, values: Any, updates: Any) -> None:
        count = int(updates)
        weight = 1 - min(decay, (1 + count) / (10 + count))
        if averages[0].is_floating_point():
            torch._foreach_lerp_(averages, values, weight)
        else:
            torch._foreach_copy_(averages, values)  # num_batches_tracked

    return AveragedModel(model, multi_avg_fn=update, use_buffers=True)
