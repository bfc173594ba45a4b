"""The one way to train, to re-estimate BatchNorm statistics, and to measure."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from legr_cli.data.batches import Batch
from legr_cli.errors import LegrError, ModelError, first_line

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of logits, images and labels


@dataclass(frozen=True)
class Score:
    """What a network reached on some images."""

    accuracy: float  # share of images whose class comes first
    top5: float  # … is among the first five
    loss: float  # mean cross entropy
    images: int

    def line(self) -> dict[str, Any]:
        """As a journal has it."""
        return {"accuracy": self.accuracy, "loss": number(self.loss), "images": self.images}


def number(loss: float) -> float | None:
    """A loss as JSON has it: none if it is no number."""
    return loss if math.isfinite(loss) else None


def sgd(
    model: nn.Module,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    nesterov: bool = True,
) -> torch.optim.SGD:
    """The paper's optimiser."""
    return torch.optim.SGD(
        model.parameters(), lr, momentum, weight_decay=weight_decay, nesterov=nesterov
    )


def cross_entropy(logits: Tensor, _images: Tensor, labels: Tensor) -> Tensor:
    """The plain loss."""
    return F.cross_entropy(logits, labels)


class Trainer:
    """A network and how it takes a step; in half precision where a type is named."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss = cross_entropy,
        half: torch.dtype | None = None,
        clip: float = 0.0,
    ) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.half, self.clip = half, clip
        device = next(model.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=half == torch.float16)

    def step(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Learn from one batch; the logits and the loss before that."""
        try:
            return self._step(images, labels)
        except (LegrError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ModelError(f"the network cannot be trained: {first_line(error)}") from error

    def _step(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Forward, backward and a step."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, self.half, enabled=self.half is not None):
            logits = answer(self.model, images)
        logits = logits.float()
        loss = self.loss(logits, images, labels)
        self.scaler.scale(loss).backward()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            found = (p for group in self.optimizer.param_groups for p in group["params"])
            nn.utils.clip_grad_norm_(found, self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return logits.detach(), loss.detach()


def train(
    trainer: Trainer,
    batches: Iterable[Batch],
    rate: Callable[[int], float] | None = None,
    watch: Callable[[int, Tensor, Tensor, Tensor], None] | None = None,
) -> None:
    """One step for each batch; `rate` by its number, `watch` with logits, labels and loss."""
    trainer.model.train()
    for step, (images, labels) in enumerate(batches):
        if rate is not None:
            for group in trainer.optimizer.param_groups:
                group["lr"] = rate(step)
        logits, loss = trainer.step(images, labels)
        if watch is not None:
            watch(step, logits, labels, loss)
    trainer.model.eval()


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
    except Exception as error:
        size = "x".join(map(str, images.shape))
        raise ModelError(f"the network fails on images of {size}: {first_line(error)}") from error


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    together: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Score:
    """Accuracy and loss; the device is asked for numbers once, at the end.

    `together` adds up the sums of several processes that share the images.
    """
    model.eval()
    rows: list[Tensor] = []
    for images, labels in batches:
        if not len(labels):
            continue  # this process has no share of a last, small batch
        logits = answer(model, images).float()
        first = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
        loss = F.cross_entropy(logits, labels, reduction="sum")
        count = torch.full_like(loss, len(labels))
        rows.append(torch.stack([first[:, 0].sum(), first.any(1).sum(), loss, count]))
    sums = torch.stack(rows).cpu().double().sum(0) if rows else torch.zeros(4, dtype=torch.double)
    right, near, lost, images_seen = together(sums).tolist()
    return Score(right / images_seen, near / images_seen, lost / images_seen, round(images_seen))
