"""Tasks: the loss that training minimizes, and the score that decides which network is best.

Commands always use classification; Python users can pass their own loss and score. Higher scores
are better.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from legr_cli.errors import ModelError, first_line

BatchFunction = Callable[[Any, Tensor], Any]  # outputs, targets → mean over the batch


@dataclass(frozen=True)
class Score:
    """The result of evaluating a network."""

    accuracy: float  # top-1 accuracy, from 0 to 1; or the mean of a custom score
    top5: float | None  # top-5 accuracy, from 0 to 1; None for custom tasks
    loss: float  # mean over the images
    images: int

    def line(self) -> dict[str, Any]:
        """The object that journals store."""
        return {"accuracy": self.accuracy, "loss": finite_or_none(self.loss), "images": self.images}

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> "Score":
        """The score that a journal stores."""
        loss = math.nan if line["loss"] is None else line["loss"]
        return cls(line["accuracy"], None, loss, line["images"])


def finite_or_none(value: float) -> float | None:
    """Replace NaN and infinity, which JSON does not have, by None."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Task:
    """The loss and the score of a network's outputs."""

    name: str
    loss: Callable[[Any, Tensor, float], Tensor]  # outputs, targets, label smoothing → batch mean
    sums: Callable[[Any, Tensor], Tensor]  # → [score, top-5, loss, images], summed over a batch
    labels: bool = True  # whether targets are class indices
    is_accuracy: bool = False  # whether the score is how often the largest output is right

    @property
    def record(self) -> dict[str, str]:
        """How journals name the task; nothing for the one that they all had at first."""
        return {} if self == CLASSIFICATION else {"task": self.name}


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Mean cross entropy of class indices."""
    return F.cross_entropy(logits, labels, label_smoothing=smoothing)


def _classification_sums(logits: Tensor, labels: Tensor) -> Tensor:
    """Top-1 and top-5 hits, cross entropy and number of images, summed over a batch."""
    hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
    loss = F.cross_entropy(logits, labels, reduction="sum")
    return torch.stack(
        [hits[:, 0].sum(), hits.any(1).sum(), loss, torch.full_like(loss, len(labels))]
    )


TASKS = {
    "classification": Task(
        "classification", _cross_entropy, _classification_sums, is_accuracy=True
    ),
}
CLASSIFICATION = TASKS["classification"]


def format_score(task: Task, score: float) -> str:
    """Format an accuracy in percent, a custom score as a number."""
    return f"{score:.2%}" if task.is_accuracy else f"{score:.4g}"


def task_for(loss: BatchFunction | None, score: BatchFunction | None) -> Task:
    """The task with this loss and score; classification if both are None.

    The default loss is cross entropy. With a loss alone, the score is the negative loss.
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
        mean_loss = batch_loss(outputs, targets, 0.0).detach().float()
        mean_score = (
            -mean_loss if score is None else _scalar("score", score, outputs, targets).detach()
        )
        count = torch.full_like(mean_loss, len(targets))
        top5 = torch.full_like(mean_loss, math.nan)  # not defined
        return torch.stack([mean_score.to(mean_loss) * count, top5, mean_loss * count, count])

    name = f"{_qualified_name(loss or F.cross_entropy)}, {_qualified_name(score or loss)}"
    return Task(name, batch_loss, sums, labels=loss is None)


def _scalar(name: str, function: BatchFunction, outputs: Any, targets: Tensor) -> Tensor:
    """Call a user's function on a batch; raise ModelError unless it returns one number."""
    try:
        value = function(outputs, targets)
    except Exception as error:
        raise ModelError(f"{name} failed: {type(error).__name__}: {first_line(error)}") from error
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.reshape(())
    if isinstance(value, int | float):
        return torch.tensor(float(value), device=targets.device)
    got = (
        f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else type(value).__name__
    )
    raise ModelError(f"{name} must return one number, the mean over the batch, got {got}")


def _qualified_name(function: Any) -> str:
    """`module.function`, which identifies a custom task in journals."""
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return f"{module}.{name}" if name else type(function).__name__
