"""What training minimizes: the task's loss, and the distance to a teacher's outputs."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legr_cli.data.feed import Feed
from legr_cli.errors import ModelError
from legr_cli.settings import Training
from legr_cli.training.loop import Loss, forward
from legr_cli.training.scores import Task

Teacher = Callable[[Tensor], Tensor]


def objective(settings: Training, teacher: Teacher | None, task: Task) -> Loss:
    """(1 − w) · loss + w · T² · KL(teacher ‖ network), softened by T; loss alone without one."""
    smoothing, temperature = settings.label_smoothing, settings.temperature
    weight = settings.teacher_weight

    def loss(outputs: Any, images: Tensor, targets: Tensor) -> Tensor:
        own = task.loss(outputs, targets, smoothing)
        if teacher is None:
            return own
        taught = F.kl_div(
            F.log_softmax(_single(outputs) / temperature, 1),
            F.log_softmax(teacher(images) / temperature, 1),
            reduction="batchmean",
            log_target=True,
        )
        return (1 - weight) * own + weight * temperature**2 * taught

    return loss


def _single(outputs: Any) -> Tensor:
    """The one tensor that a teacher and its student compare."""
    if not isinstance(outputs, Tensor):
        raise ModelError(
            f"a teacher needs networks with one output tensor, got a {type(outputs).__name__}"
        )
    return outputs


def teacher_from(model: nn.Module, half: torch.dtype | None, own: Feed, shown: Feed) -> Teacher:
    """A teacher for images normalized as `shown`, although it was trained on `own`."""
    model = model.eval()
    scale, shift = (
        torch.tensor(numbers).view(-1, 1, 1) for numbers in _renormalization(own, shown)
    )

    @torch.no_grad()
    def teach(images: Tensor) -> Tensor:
        if own.channels_last != shown.channels_last and images.ndim == 4:
            images = images.contiguous(memory_format=own.memory_format)
        if own.statistics != shown.statistics:
            images = images * scale.to(images.device) + shift.to(images.device)
        with torch.autocast(images.device.type, half, enabled=half is not None):
            outputs = forward(model, images)
        return _single(outputs).float()

    return teach


def _renormalization(own: Feed, shown: Feed) -> tuple[list[float], list[float]]:
    """Scale and shift per channel that turn one normalization into another."""
    if own.statistics == shown.statistics:
        return [1.0], [0.0]
    return (
        [s / o for s, o in zip(shown.std, own.std, strict=True)],
        [(s - o) / d for s, o, d in zip(shown.mean, own.mean, own.std, strict=True)],
    )
