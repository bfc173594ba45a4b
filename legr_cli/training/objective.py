"""The training objective: the task's loss, and distillation from a teacher."""

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

Teacher = Callable[[Tensor], Tensor]  # images, normalized for the student → logits


def objective(settings: Training, teacher: Teacher | None, task: Task) -> Loss:
    """Return the loss, combined with distillation if there is a teacher.

    (1 − w) · loss + w · T² · KL(teacher ‖ network), both softened with temperature T.
    """
    smoothing, temperature = settings.label_smoothing, settings.temperature
    weight = settings.teacher_weight

    def loss(outputs: Any, images: Tensor, targets: Tensor) -> Tensor:
        hard = task.loss(outputs, targets, smoothing)
        if teacher is None:
            return hard
        soft = F.kl_div(
            F.log_softmax(_one_tensor(outputs) / temperature, 1),
            F.log_softmax(teacher(images) / temperature, 1),
            reduction="batchmean",
            log_target=True,
        )
        return (1 - weight) * hard + weight * temperature**2 * soft

    return loss


def _one_tensor(outputs: Any) -> Tensor:
    """Check that a network has a single output, which distillation can compare."""
    if not isinstance(outputs, Tensor):
        raise ModelError(
            f"distillation needs networks with one output tensor, got a {type(outputs).__name__}"
        )
    return outputs


def teacher_from(
    model: nn.Module, half: torch.dtype | None, teacher_feed: Feed, feed: Feed
) -> Teacher:
    """Return a teacher that takes images normalized by `feed`, but was trained on `teacher_feed`.

    `half` is the dtype of autocast; None turns it off.
    """
    model = model.eval()
    scale, shift = (
        torch.tensor(numbers).view(-1, 1, 1) for numbers in _renormalization(teacher_feed, feed)
    )

    @torch.no_grad()
    def teach(images: Tensor) -> Tensor:
        if teacher_feed.channels_last != feed.channels_last and images.ndim == 4:
            images = images.contiguous(memory_format=teacher_feed.memory_format)
        if teacher_feed.statistics != feed.statistics:
            images = images * scale.to(images.device) + shift.to(images.device)
        with torch.autocast(images.device.type, half, enabled=half is not None):
            outputs = forward(model, images)
        return _one_tensor(outputs).float()

    return teach


def _renormalization(target: Feed, source: Feed) -> tuple[list[float], list[float]]:
    """Scale and shift per channel that convert the source's normalization into the target's."""
    if target.statistics == source.statistics:
        return [1.0], [0.0]
    # x = (pixel − m) / s for the source, so pixel = x·s + m, and for the target (pixel − m′) / s′.
    return (
        [s / t for s, t in zip(source.std, target.std, strict=True)],
        [(s - t) / std for s, t, std in zip(source.mean, target.mean, target.std, strict=True)],
    )
