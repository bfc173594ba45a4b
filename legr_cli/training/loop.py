"""The training loop, BatchNorm recalibration and evaluation that every part of legr uses."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from legr_cli.channels.structures import map_tensors
from legr_cli.data.batches import Batch
from legr_cli.errors import LegrError, ModelError, first_line
from legr_cli.training.scores import Score
from legr_cli.training.tasks import CLASSIFICATION, Task, in_single_precision

Loss = Callable[[Any, Tensor, Any], Tensor]  # outputs, images, targets → mean over the batch
StepCallback = Callable[[int, Any, Any, Tensor], None]  # step, outputs, targets, loss


def sgd(
    model: nn.Module,
    lr: float,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    nesterov: bool = True,
) -> torch.optim.SGD:
    """SGD with the paper's defaults."""
    return torch.optim.SGD(
        model.parameters(), lr, momentum, weight_decay=weight_decay, nesterov=nesterov
    )


def task_loss(task: Task = CLASSIFICATION) -> Loss:
    """The loss of a task, without a teacher or label smoothing."""

    def loss(outputs: Any, _images: Tensor, targets: Any) -> Tensor:
        return task.loss(outputs, targets, 0.0)

    return loss


class Trainer:
    """A network with its optimizer and loss; `half` is the dtype of autocast, None turns it off."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Loss | None = None,  # None: cross entropy
        half: torch.dtype | None = None,
        clip: float = 0.0,
        freeze_bn: bool = False,
    ) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss or task_loss()
        self.half, self.clip, self.freeze_bn = half, clip, freeze_bn
        device = next(model.parameters()).device.type
        self.scaler = torch.amp.GradScaler(device, enabled=half == torch.float16)

    def step(self, images: Tensor, targets: Any) -> tuple[Any, Tensor]:
        """Train on one batch; return the outputs and the loss from before the update."""
        try:
            return self._step(images, targets)
        except (LegrError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ModelError(f"the network cannot be trained: {first_line(error)}") from error

    def _step(self, images: Tensor, targets: Any) -> tuple[Any, Tensor]:
        """Forward pass, backward pass and update."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, self.half, enabled=self.half is not None):
            outputs = in_single_precision(forward(self.model, images))
        loss = self.loss(outputs, images, targets)
        self.scaler.scale(loss).backward()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            parameters = (p for group in self.optimizer.param_groups for p in group["params"])
            nn.utils.clip_grad_norm_(parameters, self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return map_tensors(outputs, Tensor.detach), loss.detach()


def train(
    trainer: Trainer,
    batches: Iterable[Batch],
    lr: Callable[[int], float] | None = None,
    on_step: StepCallback | None = None,
) -> None:
    """Take one step per batch; `lr` gives the learning rate of each, `on_step` is called after it.

    The network is in evaluation mode afterwards.
    """
    trainer.model.train()
    if trainer.freeze_bn:
        for layer in _batchnorms(trainer.model):
            layer.eval()
    for step, (images, targets) in enumerate(batches):
        if lr is not None:
            for group in trainer.optimizer.param_groups:
                group["lr"] = lr(step)
        outputs, loss = trainer.step(images, targets)
        if on_step is not None:
            on_step(step, outputs, targets, loss)
    trainer.model.eval()


def has_running_stats(model: nn.Module) -> bool:
    """Whether a network has BatchNorm statistics to re-estimate."""
    return bool(_batchnorms(model))


def _batchnorms(model: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers that track running statistics."""
    return [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Replace the BatchNorm statistics by their mean over these batches; change nothing else."""
    model.eval()
    layers = _batchnorms(model)
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # torch then averages all batches equally
        layer.train()
    for images, _ in batches:
        model(images)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.eval()


def forward(model: nn.Module, images: Tensor) -> Any:
    """Run the network; raise ModelError with the shape of the images if it fails."""
    try:
        return model(images)
    except torch.OutOfMemoryError as error:
        raise ModelError("the device ran out of memory: pass a smaller --batch-size") from error
    except Exception as error:
        shape = "x".join(map(str, images.shape))
        raise ModelError(
            f"the network fails on images of shape {shape}: {first_line(error)}"
        ) from error


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    task: Task = CLASSIFICATION,
    reduce: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> Score:
    """Mean score and loss over all batches.

    `reduce` adds up the sums of all processes that share the images.
    """
    model.eval()
    rows: list[Tensor] = []
    for images, targets in batches:
        if len(images):  # the last batch may be too small for every process to get a share
            rows.append(task.sums(in_single_precision(forward(model, images)), targets))
    if len({row.shape for row in rows}) > 1:
        raise ModelError(
            "the network's outputs change from image to image: use --module for a part whose "
            "outputs do not, such as a detector's backbone"
        )
    # Copied to the CPU once, at the end: every copy waits for the device.
    return task.score(reduce(torch.stack(rows).cpu().double().sum(0)).tolist())
