"""How close a network's outputs are to those of the dense network it came from; needs no labels.

For one tensor of images × classes, the measure is the mean Kullback-Leibler divergence of the class
distributions, in nats. For any other outputs it is the squared error over the variance of the dense
output, summed over all tensors; of whole numbers, such as the result of argmax, the share that
differs. 0 means equal; lower is closer.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import evaluating
from legr_cli.errors import ModelError, first_line


class Divergence:
    """Divergence from the dense network, accumulated over batches."""

    def __init__(self) -> None:
        self.images = 0
        self.kl = 0.0
        self._errors: list[Tensor] = []  # by tensor: squared error, Σ d, Σ d², count

    def add(self, outputs: Any, dense_outputs: Any) -> None:
        """Add one batch of outputs of both networks."""
        found, wanted = tensors(outputs), tensors(dense_outputs)
        if [t.shape for t in found] != [t.shape for t in wanted]:
            raise ModelError("the outputs of the two networks have different shapes")
        self.images += len(wanted[0])
        if is_classification(wanted):
            log_p, log_q = (F.log_softmax(t[0].double(), 1) for t in (wanted, found))
            self.kl += float(F.kl_div(log_q, log_p, reduction="sum", log_target=True))
            return
        new = [_sums(*pair) for pair in zip(found, wanted, strict=True)]
        if self._errors:
            new = [a + b for a, b in zip(self._errors, new, strict=True)]
        self._errors = new

    @property
    def value(self) -> float:
        """The divergence of all batches; infinite if an output is NaN."""
        total = self.kl / max(1, self.images)
        for error, linear, square, count in (sums.tolist() for sums in self._errors):
            variance = square - linear * linear / count
            total += error / variance if variance > 0 else (math.inf if error > 0 else 0.0)
        return math.inf if math.isnan(total) else total


def is_classification(outputs: Sequence[Tensor]) -> bool:
    """Whether outputs are one tensor of images × classes."""
    return (
        len(outputs) == 1
        and outputs[0].ndim == 2
        and outputs[0].shape[1] > 1
        and outputs[0].is_floating_point()
    )


def _sums(found: Tensor, wanted: Tensor) -> Tensor:
    """Squared error, sum, sum of squares and count; for whole numbers, those that differ."""
    if not wanted.is_floating_point():
        return torch.tensor([int((found != wanted).sum()), 0.0, wanted.numel(), wanted.numel()])
    found, wanted = found.double(), wanted.double()
    error, linear, square = (found - wanted).square().sum(), wanted.sum(), wanted.square().sum()
    return torch.stack([error, linear, square, error.new_tensor(wanted.numel())])


@torch.no_grad()
def divergences(
    models: Sequence[nn.Module], dense: nn.Module, batches: Iterable[Tensor]
) -> list[float]:
    """The divergence of each network from the dense one on these images."""
    found = [Divergence() for _ in models]
    for images in batches:
        wanted = _outputs(dense, images)
        for model, divergence in zip(models, found, strict=True):
            divergence.add(_outputs(model, images), wanted)
    return [divergence.value for divergence in found]


def _outputs(model: nn.Module, images: Tensor) -> Any:
    """What a network gives; `images` stay as they are."""
    try:
        with evaluating(model):
            return model(images.clone())
    except Exception as error:
        size = "x".join(map(str, images.shape))
        raise ModelError(f"the network fails on images of {size}: {first_line(error)}") from error
