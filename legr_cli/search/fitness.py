"""How a candidate is adapted before its accuracy is measured: one entry for each kind.

No torch is imported until a candidate is adapted, so that the command line can list the kinds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from legr_cli.errors import SettingError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from legr_cli.data.batches import Batch
    from legr_cli.settings import Search
    from legr_cli.training.scores import Task

    Adapt = Callable[[nn.Module, Iterable[Batch], Search, Task, torch.dtype | None], None]


def _finetune(
    model: "nn.Module",
    batches: "Iterable[Batch]",
    settings: "Search",
    task: "Task",
    half: "torch.dtype | None",
) -> None:
    """Train for a few steps."""
    from legr_cli.training.loop import Trainer, sgd, task_loss, train

    optimizer = sgd(model.requires_grad_(True), settings.lr)
    train(Trainer(model, optimizer, task_loss(task), half), batches)


def _batchnorm(
    model: "nn.Module",
    batches: "Iterable[Batch]",
    _settings: "Search",
    _task: "Task",
    _half: "torch.dtype | None",
) -> None:
    """Re-estimate BatchNorm statistics."""
    from legr_cli.training.loop import recalibrate

    recalibrate(model, batches)


@dataclass(frozen=True)
class Adaptation:
    """What happens to a pruned candidate before it is measured."""

    adapt: "Adapt | None"  # None: nothing
    steps: int  # batches of images, unless the user says otherwise
    trains: bool = False  # by gradient descent: on augmented images, in mixed precision if asked
    needs_batchnorm: bool = False


FITNESS = {
    "finetune": Adaptation(_finetune, steps=200, trains=True),
    "bn": Adaptation(_batchnorm, steps=8, needs_batchnorm=True),
    "none": Adaptation(None, steps=0),
}


def adaptation(name: str) -> Adaptation:
    """The entry of this name."""
    if name not in FITNESS:
        raise SettingError(f"--fitness must be {' or '.join(FITNESS)}, got {name}")
    return FITNESS[name]


def with_steps(settings: "Search") -> "Search":
    """The settings with the number of adaptation steps that their fitness implies."""
    kind = adaptation(settings.fitness)
    steps = kind.steps if settings.steps is None or kind.adapt is None else settings.steps
    return replace(settings, steps=steps, amp=settings.amp and kind.trains)
