"""Training recipes, including those of the paper, and their learning rate schedules."""

import math
from dataclasses import dataclass, field
from typing import Any

from legr_cli.arguments import check_number
from legr_cli.errors import SettingError
from legr_cli.settings import MANY, Training


@dataclass(frozen=True)
class Recipe:
    """A training schedule of any length: drops and patience are fractions of the epochs."""

    what_for: str
    epochs: int
    drops: tuple[float, ...] = ()  # when the learning rate drops, as fractions of the epochs
    patience: float = 0.0  # stop after this fraction of the epochs without improvement
    rest: dict[str, Any] = field(default_factory=dict)  # settings independent of the length


_PAPER = (0.3, 0.6, 0.8)
RECIPES = {
    "quick": Recipe(
        "any pruned network",
        5,
        rest={"lr": 0.05, "schedule": "one-cycle", "warmup": 0.1},
    ),
    "repaired": Recipe(
        "repaired networks",
        5,
        rest={"lr": 0.01, "schedule": "one-cycle", "warmup": 0.1},
    ),
    "match": Recipe(
        "images without labels",
        5,
        # Statistics of batches would take a repaired network away from the teacher again; without
        # them, and with errors relative to the outputs' variance, gradients may be of any size.
        rest={
            "lr": 0.01,
            "schedule": "one-cycle",
            "warmup": 0.1,
            "clip": 1.0,
            "freeze_bn": True,
        },
    ),
    "cifar": Recipe(
        "pruned CIFAR networks",
        60,
        drops=_PAPER,
        rest={"lr": 0.01, "drop_by": 10.0},
    ),
    "cifar10-long": Recipe(
        "pruned, long schedule",
        400,
        drops=_PAPER,
        rest={"lr": 0.01, "drop_by": 5.0},
    ),
    "imagenet": Recipe(
        "networks on ImageNet",
        60,
        drops=(0.5, 0.75),
        rest={"lr": 0.01, "drop_by": 10.0},
    ),
    "birds": Recipe(
        "small datasets",
        60,
        drops=_PAPER,
        patience=1 / 3,
        rest={"lr": 0.01, "drop_by": 10.0},
    ),
    "cifar-train": Recipe(
        "training from scratch",
        200,
        drops=_PAPER,
        rest={"lr": 0.1, "drop_by": 5.0},
    ),
}


def default_recipe(notes: dict[str, Any] | None, taught: bool, labelled: bool = True) -> str:
    """The recipe for a network with these notes (None: trained from scratch) if none is named."""
    if not labelled:
        return "match"
    if notes is None:
        return "cifar-train"
    # a repaired network is close to the dense one: a high rate would take it away again
    return "repaired" if taught and "repaired" in notes else "quick"


def settings_of(name: str, **given: Any) -> Training:
    """The settings of a recipe with some overridden; `epochs` rescales the whole schedule."""
    if name not in RECIPES:
        raise SettingError(
            f"--recipe {name}: expected {', '.join(RECIPES)}; legr finetune --recipes shows them"
        )
    recipe = RECIPES[name]
    check_number(given.get("epochs", 1), "--epochs", whole=True)
    epochs = min(given.get("epochs", recipe.epochs), MANY + 1)  # rejected below, without overflow
    schedule = {**recipe.rest, **given}.get("schedule")
    for option in ("drops", "drop_by"):
        if schedule == "one-cycle" and option in given:
            raise SettingError(
                f"--{option.replace('_', '-')} is for --schedule steps, this is one-cycle"
            )
    scaled = {
        "epochs": epochs,
        "drops": tuple(round(share * epochs, 6) for share in recipe.drops if epochs > 0),
        "patience": math.ceil(recipe.patience * epochs),
    }
    return Training(recipe=name, **{**scaled, **recipe.rest, **given})


def rate(settings: Training, epochs: float) -> float:
    """The learning rate after `epochs` epochs; 2.5 is the middle of the third epoch.

    steps: lr, divided by `drop_by` at each of `drops`. one-cycle: a cosine from lr down to 0. With
    a warmup, both first rise linearly from 0 to lr.
    """
    warmup = settings.warmup * settings.epochs
    if epochs < warmup:
        return settings.lr * epochs / warmup
    if settings.schedule == "one-cycle":
        done = (epochs - warmup) / (settings.epochs - warmup)
        return settings.lr * (1 + math.cos(math.pi * done)) / 2
    drops = sum(epochs >= drop for drop in settings.drops)
    return settings.lr / settings.drop_by**drops
