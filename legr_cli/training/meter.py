"""Loss, accuracy and speed of the current epoch."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legr_cli.channels.structures import batch_size
from legr_cli.errors import TrainingError
from legr_cli.settings import Training
from legr_cli.training.tasks import Task

_INTERVAL = 0.5  # seconds between reports; each one waits for the device


@dataclass(frozen=True)
class StepProgress:
    """Progress within an epoch."""

    epoch: int  # from 1
    step: int  # completed steps of this epoch
    steps: int
    loss: float  # mean over this epoch's images so far
    accuracy: float | None  # on the same images, each before its step; None for other tasks
    images_per_second: float


ProgressCallback = Callable[[StepProgress], None]


class Meter:
    """Running sums of an epoch, kept on the device: reading them waits for it, so it is rare."""

    def __init__(
        self,
        settings: Training,
        task: Task,
        epoch: int,
        images: int,
        steps: int,
        device: torch.device,
    ) -> None:
        self.settings, self.task, self.epoch = settings, task, epoch
        self.images, self.steps = images, steps
        self.sums = torch.zeros(3, device=device)
        self.step, self.started = 0, time.perf_counter()
        self.last_report = self.started

    def add(self, step: int, outputs: Any, targets: Any, loss: Tensor) -> None:
        """Add the results of a step."""
        images = batch_size(outputs)
        count = torch.full_like(loss, images)
        correct = count * 0
        if self.task.is_classification:
            correct = (outputs.argmax(1) == targets).sum()
        self.sums += torch.stack([loss * images, correct, count])
        self.step = step + 1

    def report(self, callback: ProgressCallback) -> None:
        """Report progress, unless the last report is very recent."""
        if time.perf_counter() - self.last_report >= _INTERVAL:
            callback(self.progress(self.sums))

    def progress(self, sums: Tensor) -> StepProgress:
        """Progress according to `sums`, which may be those of all processes.

        Raises:
            TrainingError: The loss became NaN or infinite.
        """
        loss, correct, count = sums.tolist()
        self.last_report = time.perf_counter()
        if not math.isfinite(loss):
            raise TrainingError(_divergence_message(self.settings, self.epoch))
        images = min(self.step * self.settings.batch_size, self.images)
        speed = images / (self.last_report - self.started)
        accuracy = correct / count if self.task.is_classification else None
        return StepProgress(self.epoch, self.step, self.steps, loss / count, accuracy, speed)


def _divergence_message(settings: Training, epoch: int) -> str:
    """Say that the loss is not finite, and which settings may prevent it."""
    advice = [f"a lower --lr than {settings.lr:g}"]
    if not settings.clip:
        advice.append("--clip 1")
    if not settings.warmup:
        advice.append("--warmup 0.1")
    if settings.amp:
        advice.append("no --amp")
    kept = f"the state after epoch {epoch - 1} is kept" if epoch > 1 else "no epoch was completed"
    return (
        f"the loss became NaN or infinite in epoch {epoch}; {kept}. Start over with --force and "
        f"{' or '.join(advice)}"
    )
