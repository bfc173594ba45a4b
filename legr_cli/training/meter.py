"""Running loss, accuracy and speed of an epoch."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from legr_cli.errors import TrainingError
from legr_cli.settings import Training
from legr_cli.training.scores import CLASSIFICATION, Task

_LOOK = 0.5  # seconds between looks at the loss, for which the device must finish its work


@dataclass(frozen=True)
class StepProgress:
    """Where an epoch stands."""

    epoch: int  # from 1
    step: int  # steps done in this epoch
    steps: int
    loss: float  # mean over this epoch's images so far
    accuracy: float | None  # on these images, before each step; None for a task of one's own
    images_per_second: float


Watch = Callable[[StepProgress], None]


class Meter:
    """Sums on the device, read only now and then because reading waits for the device."""

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
        self.step, self.begun = 0, time.perf_counter()
        self.looked = self.begun

    def add(self, step: int, outputs: Any, targets: Tensor, loss: Tensor) -> None:
        """Count a step."""
        count = torch.full_like(loss, len(targets))
        right = count * 0
        if self.task is CLASSIFICATION:
            right = (outputs.argmax(1) == targets).sum()
        self.sums += torch.stack([loss * len(targets), right, count])
        self.step = step + 1

    def look(self, watch: Watch) -> None:
        """Report where the epoch stands, if the last report is some time ago."""
        if time.perf_counter() - self.looked >= _LOOK:
            watch(self.now(self.sums))

    def now(self, sums: Tensor) -> StepProgress:
        """Where the epoch stands.

        Raises:
            TrainingError: The loss became NaN or infinite.
        """
        loss, right, count = sums.tolist()
        self.looked = time.perf_counter()
        if not math.isfinite(loss):
            raise TrainingError(_diverged(self.settings, self.epoch))
        seen = min(self.step * self.settings.batch_size, self.images)
        speed = seen / (self.looked - self.begun)
        accuracy = right / count if self.task is CLASSIFICATION else None
        return StepProgress(self.epoch, self.step, self.steps, loss / count, accuracy, speed)


def _diverged(settings: Training, epoch: int) -> str:
    """What to do about a loss that is not finite."""
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
