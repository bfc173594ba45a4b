"""The training objective: the task's loss, and distillation from a teacher."""

from typing import Any

import torch
from torch import Tensor, nn

from legr_cli.channels.part import part_or_whole
from legr_cli.data.dataset import Data
from legr_cli.data.feed import Feed, feed_for
from legr_cli.models.network import Network
from legr_cli.settings import Training
from legr_cli.training.loop import Loss, forward
from legr_cli.training.memory_format import in_memory_format
from legr_cli.training.tasks import Reference, Task, in_single_precision, matching_loss


def objective(settings: Training, teacher: Reference | None, task: Task) -> Loss:
    """Return the loss, combined with distillation if there is a teacher.

    (1 − w) · loss + w · matching_loss(outputs, the teacher's outputs, T); without labels, only the
    latter.
    """
    smoothing, temperature = settings.label_smoothing, settings.temperature
    weight = settings.teacher_weight

    def loss(outputs: Any, images: Tensor, targets: Any) -> Tensor:
        if teacher is None:
            return task.loss(outputs, targets, smoothing)
        soft = matching_loss(outputs, teacher(images), temperature, task.values)
        if task.needs_reference:
            return soft
        return (1 - weight) * task.loss(outputs, targets, smoothing) + weight * soft

    return loss


def reference_from(
    network: Network,
    data: Data,
    device: torch.device,
    half: torch.dtype | None = None,
    part: str = "",
) -> Reference:
    """Return a network that takes images prepared for another one, and outputs float32.

    `data` prepares the images; the network normalizes them again if it was trained with other
    statistics. `half` is the dtype of autocast; None turns it off. `part` is the module whose
    outputs to return.
    """
    feed, model = data.feed, network.model.float()
    own_format = in_memory_format(model, data).feed
    own_feed = feed_for(own_format, network.notes.get("statistics"))
    model.to(device, memory_format=own_feed.memory_format)  # type: ignore[call-overload]
    return teacher_from(part_or_whole(model, part), half, own_feed, feed)


def teacher_from(
    model: nn.Module, half: torch.dtype | None, teacher_feed: Feed, feed: Feed
) -> Reference:
    """Return a teacher that takes images normalized by `feed`, but was trained on `teacher_feed`.

    `half` is the dtype of autocast; None turns it off.
    """
    model = model.eval()
    scale, shift = (
        torch.tensor(numbers).view(-1, 1, 1) for numbers in _renormalization(teacher_feed, feed)
    )

    @torch.no_grad()
    def teach(images: Tensor) -> Any:
        if teacher_feed.channels_last != feed.channels_last and images.ndim == 4:
            images = images.contiguous(memory_format=teacher_feed.memory_format)
        if teacher_feed.statistics != feed.statistics:
            images = images * scale.to(images.device) + shift.to(images.device)
        with torch.autocast(images.device.type, half, enabled=half is not None):
            outputs = forward(model, images)
        return in_single_precision(outputs)

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
