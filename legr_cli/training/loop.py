"""The one way to train, to re-estimate BatchNorm statistics, and to measure."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from legr_cli.data.batches import Batch
from legr_cli.errors import LegrError, ModelError, first_line
from legr_cli.training.scores import CLASSIFICATION, Score, Task

Loss = Callable[[Any, Tensor, Tensor], Tensor]  # of outputs, images and targets


def sgd(
    model: nn.Module,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    nesterov: bool = True,
) -> torch.optim.SGD:
    """The paper's optimizer."""
    return torch.optim.SGD(
        model.parameters(), lr, momentum, weight_decay=weight_decay, nesterov=nesterov
    )


def plain_loss(task: Task = CLASSIFICATION) -> Loss:
    """The loss of a task by itself, without a teacher or label smoothing."""

    def loss(outputs: Any, _images: Tensor, targets: Tensor) -> Tensor:
        return task.loss(outputs, targets, 0.0)

    return loss


class Trainer:
    """A network and how it takes a step; `half` is the type to compute in, if not float32."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss | None = None,  # cross entropy
        half: torch.dtype | None = None,
        clip: float = 0.0,
    ) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss or plain_loss()
        self.half, self.clip = half, clip
        device = next(model.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=half == torch.float16)

    def step(self, images: Tensor, targets: Tensor) -> tuple[Any, Tensor]:
        """Learn from one batch; returns outputs and loss from before the step."""
        try:
            return self._step(images, targets)
        except (LegrError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ModelError(f"the network cannot be trained: {first_line(error)}") from error

    def _step(self, images: Tensor, targets: Tensor) -> tuple[Any, Tensor]:
        """Forward, backward, update."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, self.half, enabled=self.half is not None):
            outputs = forward(self.model, images)
        outputs = outputs.float() if isinstance(outputs, Tensor) else outputs
        loss = self.loss(outputs, images, targets)
        self.scaler.scale(loss).backward()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            trained = (p for group in self.optimizer.param_groups for p in group["params"])
            nn.utils.clip_grad_norm_(trained, self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        seen = outputs.detach() if isinstance(outputs, Tensor) else outputs
        return seen, loss.detach()


def train(
    trainer: Trainer,
    batches: Iterable[Batch],
    rate: Callable[[int], float] | None = None,
    watch: Callable[[int, Any, Tensor, Tensor], None] | None = None,
) -> None:
    """One step for each batch; `rate` gives its learning rate, `watch` sees what came of it."""
    trainer.model.train()
    for step, (images, targets) in enumerate(batches):
        if rate is not None:
            for group in trainer.optimizer.param_groups:
                group["lr"] = rate(step)
        outputs, loss = trainer.step(images, targets)
        if watch is not None:
            watch(step, outputs, targets, loss)
    trainer.model.eval()


def has_statistics(model: nn.Module) -> bool:
    """Whether a network has BatchNorm statistics to re-estimate."""
    return bool(_norms(model))


def _norms(model: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers that keep running statistics."""
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


def forward(model: nn.Module, images: Tensor) -> Any:
    """The network's output, or an error that says on what it failed."""
    try:
        return model(images)
    except torch.OutOfMemoryError as error:
        raise ModelError("the device ran out of memory: pass a smaller --batch-size") from error
    except Exception as error:
        size = "x".join(map(str, images.shape))
        raise ModelError(f"the network fails on images of {size}: {first_line(error)}") from error


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    task: Task = CLASSIFICATION,
    together: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Score:
    """Score and loss over all batches; the device is asked for numbers once, at the end.

    `together` adds up the sums of processes that share the images.
    """
    model.eval()
    rows: list[Tensor] = []
    for images, targets in batches:
        if not len(targets):
            continue  # this process has no share of a last, small batch
        outputs = forward(model, images)
        outputs = outputs.float() if isinstance(outputs, Tensor) else outputs
        rows.append(task.sums(outputs, targets))
    sums = torch.stack(rows).cpu().double().sum(0) if rows else torch.zeros(4, dtype=torch.double)
    reached, near, lost, count = together(sums).tolist()
    top5 = near / count
    return Score(reached / count, None if top5 != top5 else top5, lost / count, round(count))
