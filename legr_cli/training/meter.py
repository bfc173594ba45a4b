"""Loss, accuracy and speed of an epoch as it goes."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from legr_cli.errors import TrainingError
from legr_cli.settings import Training

_LOOK = 0.5  # seconds between looks at the loss, for which the device must finish its work


@dataclass(frozen=True)
class Progress:
    """What there is to see in the middle of an epoch."""

    epoch: int  # from 1
    step: int  # done, of this epoch
    steps: int
    loss: float  # mean over this epoch's images so far
    accuracy: float  # on them, before each step
    images_per_second: float


Watch = Callable[[Progress], None]


class Meter:
    """Sums on the device, and a look at them now and then."""

    def __init__(
        self, settings: Training, epoch: int, images: int, steps: int, device: torch.device
    ) -> None:
        self.settings, self.epoch, self.images, self.steps = settings, epoch, images, steps
        self.sums = torch.zeros(3, device=device)
        self.step, self.begun = 0, time.perf_counter()
        self.looked = self.begun

    def add(self, step: int, logits: Tensor, labels: Tensor, loss: Tensor) -> None:
        """Count a step."""
        right = (logits.argmax(1) == labels).sum()
        count = torch.full_like(loss, len(labels))
        self.sums += torch.stack([loss * len(labels), right, count])
        self.step = step + 1

    def look(self, watch: Watch) -> None:
        """Show where things stand, if that is some time ago."""
        if time.perf_counter() - self.looked >= _LOOK:
            watch(self.now(self.sums))

    def now(self, sums: Tensor) -> Progress:
        """Where things stand; an error if the loss is no number any more."""
        loss, right, count = sums.tolist()
        self.looked = time.perf_counter()
        if not math.isfinite(loss):
            raise TrainingError(_diverged(self.settings, self.epoch))
        seen = min(self.step * self.settings.batch_size, self.images)
        speed = seen / (self.looked - self.begun)
        return Progress(self.epoch, self.step, self.steps, loss / count, right / count, speed)


def _diverged(settings: Training, epoch: int) -> str:
    """What to do about a loss that is no number."""
    advice = [f"a lower --lr than {settings.lr:g}"]
    if not settings.clip:
        advice.append("--clip 1")
    if not settings.warmup:
        advice.append("--warmup 0.1")
    if settings.amp:
        advice.append("no --amp")
    kept = f"the state after epoch {epoch - 1} is kept" if epoch > 1 else "no epoch was done"
    return (
        f"the loss is no number any more in epoch {epoch}; {kept}. Begin anew with --force and "
        f"{' or '.join(advice)}"
    )
