"""Tasks: the loss that training minimizes and the score that decides which network is best.

Classification is the entry that every command uses; Python users can bring a loss and a score of
their own. Scores are better when higher.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from legr_cli.errors import ModelError, first_line

OwnFunction = Callable[[Any, Tensor], Any]  # of outputs and targets: a mean over the batch


@dataclass(frozen=True)
class Score:
    """What a network reached on some images."""

    accuracy: float  # share of images whose class comes first; or the mean of your own score
    top5: float | None  # share of images whose class is among the first five; None: not measured
    loss: float  # mean over the images
    images: int

    def line(self) -> dict[str, Any]:
        """As a journal has it."""
        return {"accuracy": self.accuracy, "loss": finite(self.loss), "images": self.images}


def finite(value: float) -> float | None:
    """A number as JSON has it: None for NaN and infinity."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Task:
    """How outputs are compared with targets."""

    name: str
    loss: Callable[[Any, Tensor, float], Tensor]  # outputs, targets, label smoothing → batch mean
    sums: Callable[[Any, Tensor], Tensor]  # → [score, top 5, loss, images], summed over a batch
    labels: bool = True  # whether targets are class numbers


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Cross entropy of class numbers."""
    return F.cross_entropy(logits, labels, label_smoothing=smoothing)


def _classified(logits: Tensor, labels: Tensor) -> Tensor:
    """Images classified correctly, those in the top five, cross entropy and count."""
    first = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
    loss = F.cross_entropy(logits, labels, reduction="sum")
    return torch.stack(
        [first[:, 0].sum(), first.any(1).sum(), loss, torch.full_like(loss, len(labels))]
    )


TASKS = {"classification": Task("classification", _cross_entropy, _classified)}
CLASSIFICATION = TASKS["classification"]


def shown(task: Task, reached: float) -> str:
    """An accuracy in percent; a score of the user's own as it is."""
    return f"{reached:.2%}" if task is CLASSIFICATION else f"{reached:.4g}"


def task_for(loss: OwnFunction | None, score: OwnFunction | None) -> Task:
    """The task that a loss and a score define; classification where neither is given.

    Without a score, the negative loss decides; without a loss, cross entropy is minimized.
    """
    if loss is None and score is None:
        return CLASSIFICATION
    for name, function in (("loss", loss), ("score", score)):
        if function is not None and not callable(function):
            raise ModelError(
                f"{name} must be a function of outputs and targets, got {type(function).__name__}"
            )

    def batch_loss(outputs: Any, targets: Tensor, smoothing: float) -> Tensor:
        if loss is None:
            return _cross_entropy(outputs, targets, smoothing)
        return _scalar("loss", loss, outputs, targets)

    def sums(outputs: Any, targets: Tensor) -> Tensor:
        lost = batch_loss(outputs, targets, 0.0).detach().float()
        reached = -lost if score is None else _scalar("score", score, outputs, targets).detach()
        unknown, count = torch.full_like(lost, math.nan), torch.full_like(lost, len(targets))
        return torch.stack([reached.to(lost) * count, unknown, lost * count, count])

    name = f"{_name(loss or F.cross_entropy)}, {_name(score or loss)}"
    return Task(name, batch_loss, sums, labels=loss is None)


def _scalar(name: str, function: OwnFunction, outputs: Any, targets: Tensor) -> Tensor:
    """The number that a user's function gives for a batch."""
    try:
        value = function(outputs, targets)
    except Exception as error:
        raise ModelError(f"{name} failed: {type(error).__name__}: {first_line(error)}") from error
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.reshape(())
    if isinstance(value, int | float):
        return torch.tensor(float(value), device=targets.device)
    kind = (
        f"a tensor of {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    )
    raise ModelError(f"{name} must give one number, the mean over the batch, got {kind}")


def _name(function: Any) -> str:
    """`module.function`, to tell one task from another in a journal."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{module}.{name}" if name else type(function).__name__
