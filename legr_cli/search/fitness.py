"""The table of fitness functions: how a candidate is adapted, and what it is ranked by.

torch is imported only when a candidate is adapted, so that the command line can list the entries
quickly.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from legr_cli.errors import SettingError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from legr_cli.channels.units import Kept
    from legr_cli.data.batches import Batch
    from legr_cli.search.reference import Reference
    from legr_cli.settings import Search
    from legr_cli.training.tasks import Task


@dataclass(frozen=True)
class Cut:
    """A pruned candidate, and what it can be adapted with."""

    model: "nn.Module"  # adapted in place
    kept: "Kept"
    batches: "Iterable[Batch]"
    settings: "Search"
    task: "Task"
    half: "torch.dtype | None"
    reference: "Reference | None"  # the dense network, if candidates are compared with it


def _finetune(cut: Cut) -> None:
    """Train for a few steps."""
    from legr_cli.training.loop import Trainer, sgd, task_loss, train

    optimizer = sgd(cut.model.requires_grad_(True), cut.settings.lr)
    train(Trainer(cut.model, optimizer, task_loss(cut.task), cut.half), cut.batches)


def _batchnorm(cut: Cut) -> None:
    """Re-estimate BatchNorm statistics."""
    from legr_cli.training.loop import recalibrate

    recalibrate(cut.model, cut.batches)


def _repair(cut: Cut) -> None:
    """Fit new weights to the dense network, in closed form."""
    from legr_cli.channels.part import whole_of

    assert cut.reference is not None
    cut.reference.repair(whole_of(cut.model), cut.kept)


@dataclass(frozen=True)
class Adaptation:
    """How a pruned candidate is adapted before it is scored."""

    adapt: Callable[[Cut], None] | None  # None: not at all
    steps: int  # default number of batches
    trains: bool = False  # whether it trains the weights, so that augmentation and --amp apply
    needs_batchnorm: bool = False
    ranks_by_divergence: bool = False  # from the dense network's outputs, instead of by the score
    search: dict[str, Any] = field(default_factory=dict)  # settings of a search, if not the paper's


FITNESS = {
    "finetune": Adaptation(_finetune, steps=200, trains=True),
    "bn": Adaptation(_batchnorm, steps=8, needs_batchnorm=True),
    "repair": Adaptation(
        _repair,
        steps=2,
        ranks_by_divergence=True,
        search={
            "flops": (0.2, 0.4, 0.8),
            "explorer": "surrogate",
            "metric": "reconstruction",
            "objective": "log",
            "candidates": 100,
            "population": 24,
            "sample": 8,
            "batch_size": 64,
            "val_images": 500,
            "reject_above": 1.15,
        },
    ),
    "none": Adaptation(None, steps=0),
}


def search_settings(fitness: str, **given: Any) -> "Search":
    """The settings of a search with this fitness, with some overridden."""
    from legr_cli.settings import Search

    settings = {**adaptation(fitness).search, **given}
    if "sigma" in given and "sigma_end" not in given:
        settings["sigma_end"] = given["sigma"]
    if settings.get("objective") != "log" and "reject_above" not in given:
        settings["reject_above"] = 0.0
    if "population" not in given and "candidates" in settings:
        candidates = max(1, settings["candidates"])
        settings["population"] = min(settings.get("population", Search.population), candidates)
    if "sample" not in given and "population" in settings:
        settings["sample"] = min(settings.get("sample", Search.sample), settings["population"])
    return Search(fitness=fitness, **settings)


def adaptation(name: str) -> Adaptation:
    """Look up a fitness by name."""
    if name not in FITNESS:
        raise SettingError(f"--fitness must be {' or '.join(FITNESS)}, got {name}")
    return FITNESS[name]


DEFAULT_FITNESS = "repair"  # where any layer of the network can be repaired


def fallback_fitness(task: "Task") -> str:
    """The fitness where no layer can be; without labels there is nothing to train for."""
    return "none" if task.needs_reference else "finetune"


def resolved_steps(fitness: str, steps: int | None) -> int:
    """The number of adaptation steps: as given, else the fitness's default."""
    entry = adaptation(fitness)
    return entry.steps if steps is None or entry.adapt is None else steps


def with_steps(settings: "Search") -> "Search":
    """Fill in the number of adaptation steps; turn off amp if the fitness trains nothing."""
    steps = resolved_steps(settings.fitness, settings.steps)
    return replace(settings, steps=steps, amp=settings.amp and adaptation(settings.fitness).trains)
