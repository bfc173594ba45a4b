"""How close a network's outputs are to those of the dense network it came from; needs no labels.

For one tensor of images × classes, the measure is the mean Kullback-Leibler divergence of the class
distributions, in nats. For any other outputs it is the squared error over the variance of the dense
output, summed over all tensors; of whole numbers, such as the result of argmax, the share that
differs. 0 means equal; lower is closer. Where images × classes are numbers rather than class
scores, such as angles, the caller says so (`values`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import evaluating
from legr_cli.errors import ModelError, first_line

_COMMON, _OF_TENSOR = 4, 4  # numbers in `closeness_sums`: for all outputs, and for each tensor


@dataclass(frozen=True)
class Closeness:
    """How close outputs are, from the sums over all batches."""

    sums: Sequence[float]  # what `closeness_sums` gives, added up; empty: no images

    @property
    def images(self) -> int:
        """The number of images."""
        return round(self.sums[0]) if len(self.sums) else 0

    @property
    def divergence(self) -> float:
        """The divergence; infinite if an output is NaN."""
        total = self.sums[1] / max(1, self.images) if len(self.sums) else 0.0
        total += sum(self._relative_errors)
        return math.inf if math.isnan(total) else total

    @property
    def figure(self) -> tuple[str, float]:
        """What people understand: how often the top class agrees, or else the relative error."""
        _, _, same, count = self.sums[:_COMMON]
        if count:
            name = "agreement" if count == self.images else "pixel agreement"
            return name, same / count
        errors = self._relative_errors
        mean = sum(errors) / max(1, len(errors))
        return "relative error", math.inf if math.isnan(mean) else math.sqrt(mean)

    @property
    def _relative_errors(self) -> list[float]:
        """For each tensor, the squared error over the variance of the dense output."""
        errors = []
        for start in range(_COMMON, len(self.sums), _OF_TENSOR):
            error, linear, square, count = self.sums[start : start + _OF_TENSOR]
            variance = square - linear * linear / count
            # of NaN, neither comparison is true: the error is infinite
            errors.append(error / variance if variance > 0 else (0.0 if error == 0 else math.inf))
        return errors


def closeness_sums(outputs: Any, dense_outputs: Any, values: bool = False) -> Tensor:
    """Sums over a batch of outputs of both networks, to be added up over all batches.

    Number of images, divergence of class distributions, outputs whose top class is the same, and
    their number; then for each tensor squared error, Σ d, Σ d² and count.
    """
    found, wanted = (list(map(_exact, of)) for of in of_structure(outputs, dense_outputs))
    same = count = divergence = wanted[0].new_zeros((), dtype=torch.double)
    if not values and has_classes(wanted):
        hits = (found[0].argmax(1) == wanted[0].argmax(1)) & ~found[0].isnan().any(1)
        same, count = hits.sum().to(same), torch.full_like(same, hits.numel())
    errors = []
    if not values and is_classification(wanted):
        log_p, log_q = (F.log_softmax(t[0], 1) for t in (wanted, found))
        divergence = F.kl_div(log_q, log_p, reduction="sum", log_target=True)
    else:
        errors = [_sums(*pair).to(same) for pair in zip(found, wanted, strict=True)]
    images = torch.full_like(same, len(wanted[0]))
    return torch.cat([torch.stack([images, divergence, same, count]), *errors])


def _exact(values: Tensor) -> Tensor:
    """Numbers in double precision, which Apple's GPUs do not have."""
    if not values.is_floating_point():
        return values
    return values.cpu().double() if values.device.type == "mps" else values.double()


def of_structure(outputs: Any, dense_outputs: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors in the outputs of both networks; raise ModelError unless they correspond.

    Empty tensors, and those of a single number for the whole batch, such as an auxiliary loss, say
    nothing about an image and are left out.
    """
    found, wanted = (
        [t for t in tensors(of) if t.ndim and t.numel()] for of in (outputs, dense_outputs)
    )
    if not wanted and tensors(dense_outputs):
        raise ModelError("the network returns nothing for each image that could be compared")
    if not wanted or [t.shape for t in found] != [t.shape for t in wanted]:
        shapes = (
            ", ".join("x".join(map(str, t.shape)) for t in of) or "none" for of in (found, wanted)
        )
        raise ModelError(
            "the outputs of the two networks have different shapes: {} and {}; if they change from "
            "image to image, use --module for a part whose outputs do not".format(*shapes)
        )
    return found, wanted


def is_classification(outputs: Sequence[Tensor]) -> bool:
    """Whether outputs are one tensor of images × classes."""
    return has_classes(outputs) and outputs[0].ndim == 2


def has_classes(outputs: Sequence[Tensor]) -> bool:
    """Whether outputs are one tensor of images × classes, with a height and a width or without."""
    return (
        len(outputs) == 1
        and outputs[0].ndim in (2, 4)
        and outputs[0].shape[1] > 1
        and outputs[0].is_floating_point()
    )


def _sums(found: Tensor, wanted: Tensor) -> Tensor:
    """Squared error, sum, sum of squares and count; for whole numbers, those that differ."""
    if not wanted.is_floating_point():
        return torch.tensor([int((found != wanted).sum()), 0.0, wanted.numel(), wanted.numel()])
    error, linear, square = (found - wanted).square().sum(), wanted.sum(), wanted.square().sum()
    return torch.stack([error, linear, square, error.new_tensor(wanted.numel())])


@torch.no_grad()
def divergences(
    models: Sequence[nn.Module],
    dense: nn.Module,
    batches: Iterable[Tensor],
    values: bool = False,
) -> list[float]:
    """The divergence of each network from the dense one on these images."""
    rows: list[list[Tensor]] = [[] for _ in models]
    for images in batches:
        wanted = _outputs(dense, images)
        for model, row in zip(models, rows, strict=True):
            row.append(closeness_sums(_outputs(model, images), wanted, values))
    return [Closeness(torch.stack(row).sum(0).tolist()).divergence for row in rows]


def _outputs(model: nn.Module, images: Tensor) -> Any:
    """What a network gives; `images` stay as they are."""
    try:
        with evaluating(model):
            return model(images.clone())
    except Exception as error:
        size = "x".join(map(str, images.shape))
        raise ModelError(f"the network fails on images of {size}: {first_line(error)}") from error
