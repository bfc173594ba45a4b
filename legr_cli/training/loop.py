"""The one way to train, to re-estimate BatchNorm statistics, and to measure."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from legr_cli.errors import ModelError, first_line
from legr_cli.training.batches import Batch


@dataclass(frozen=True)
class Score:
    """What a network reached on some images."""

    accuracy: float  # share of images whose class comes first
    top5: float  # … is among the first five
    loss: float  # mean cross entropy
    images: int


def number(loss: float) -> float | None:
    """A loss as JSON has it: none if it is no number."""
    return loss if math.isfinite(loss) else None


def sgd(model: nn.Module, lr: float) -> torch.optim.SGD:
    """The paper's optimiser: Nesterov momentum 0.9, weight decay 5e-4."""
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True)


def train(model: nn.Module, batches: Iterable[Batch], optimizer: torch.optim.Optimizer) -> None:
    """One step for each batch."""
    model.train()
    for images, labels in batches:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    model.eval()


def has_statistics(model: nn.Module) -> bool:
    """Whether there is any BatchNorm statistic to re-estimate."""
    return bool(_norms(model))


def _norms(model: nn.Module) -> list[_BatchNorm]:
    """The layers that keep statistics of the images."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Replace the BatchNorm statistics by their mean over these batches; nothing else changes."""
    model.eval()
    norms = _norms(model)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean of all batches
        norm.train()
    for images, _ in batches:
        model(images)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()


def answer(model: nn.Module, images: Tensor) -> Any:
    """What the network says; if it cannot, an error that says so."""
    try:
        return model(images)
    except torch.OutOfMemoryError as error:
        raise ModelError("the device has too little memory: pass a smaller --batch-size") from error
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        size = "x".join(map(str, images.shape))
        raise ModelError(f"the network fails on images of {size}: {first_line(error)}") from error


@torch.inference_mode()
def evaluate(model: nn.Module, batches: Iterable[Batch]) -> Score:
    """Accuracy and loss; the device is asked for numbers once, at the end."""
    model.eval()
    rows: list[Tensor] = []
    count = 0
    for images, labels in batches:
        logits = answer(model, images).float()
        first = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
        loss = F.cross_entropy(logits, labels, reduction="sum")
        rows.append(torch.stack([first[:, 0].sum(), first.any(1).sum(), loss]))
        count += len(labels)
    right, near, lost = torch.stack(rows).cpu().double().sum(0).div(count).tolist()
    return Score(right, near, lost, count)
