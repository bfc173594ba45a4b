"""What a training makes small: the cross entropy, and the distance to a teacher's answers."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legr_cli.data.dataset import Feed
from legr_cli.settings import Training
from legr_cli.training.loop import Loss, answer

Teacher = Callable[[Tensor], Tensor]


def objective(settings: Training, teacher: Teacher | None) -> Loss:
    """(1 − w) · cross entropy + w · T² · KL(teacher ‖ network), both softened by T; w = 0 alone."""
    smoothing, heat = settings.label_smoothing, settings.temperature
    weight = settings.teacher_weight

    def loss(logits: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        own = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        if teacher is None:
            return own
        taught = F.kl_div(
            F.log_softmax(logits / heat, 1),
            F.log_softmax(teacher(images) / heat, 1),
            reduction="batchmean",
            log_target=True,
        )
        return (1 - weight) * own + weight * heat**2 * taught

    return loss


def teacher_from(model: nn.Module, half: torch.dtype | None, own: Feed, shown: Feed) -> Teacher:
    """A network that answers images normalised as `shown` although it was trained on `own`."""
    model = model.eval()
    scale, shift = (
        torch.tensor(numbers).view(1, -1, 1, 1)
        for numbers in (
            [s / o for s, o in zip(shown.std, own.std, strict=True)],
            [(s - o) / d for s, o, d in zip(shown.mean, own.mean, own.std, strict=True)],
        )
    )

    @torch.no_grad()
    def teach(images: Tensor) -> Tensor:
        if own.statistics != shown.statistics:
            images = images * scale.to(images.device) + shift.to(images.device)
        with torch.autocast(images.device.type, half, enabled=half is not None):
            logits: Tensor = answer(model, images)
        return logits.float()

    return teach
