"""How networks are trained: the paper's recipes, and the learning rate at any moment of one."""

import math
from dataclasses import dataclass, field
from typing import Any

from legr_cli.errors import SettingError
from legr_cli.settings import MANY, Training


@dataclass(frozen=True)
class Recipe:
    """A training of any length: epochs are shares of the whole, so that its shape stays."""

    what_for: str
    epochs: int
    drops: tuple[float, ...] = ()  # share of the epochs after which the rate falls
    patience: float = 0.0  # share of the epochs without a better one that is too long
    rest: dict[str, Any] = field(default_factory=dict)  # settings that do not depend on the length


_PAPER = (0.3, 0.6, 0.8)
RECIPES = {
    "quick": Recipe(
        "any pruned network",
        5,
        rest={"lr": 0.05, "schedule": "one-cycle", "warmup": 0.1},
    ),
    "cifar": Recipe(
        "pruned networks",
        60,
        drops=_PAPER,
        rest={"lr": 0.01, "drop_by": 10.0},
    ),
    "cifar10-long": Recipe(
        "… as prior art",
        400,
        drops=_PAPER,
        rest={"lr": 0.01, "drop_by": 5.0},
    ),
    "imagenet": Recipe(
        "pruned networks",
        60,
        drops=(0.5, 0.75),
        rest={"lr": 0.01, "drop_by": 10.0},
    ),
    "birds": Recipe(
        "… on small sets",
        60,
        drops=_PAPER,
        patience=1 / 3,
        rest={"lr": 0.01, "drop_by": 10.0},
    ),
    "cifar-train": Recipe(
        "from scratch",
        200,
        drops=_PAPER,
        rest={"lr": 0.1, "drop_by": 5.0},
    ),
}


def settings_of(name: str, **given: Any) -> Training:
    """A recipe with some of its settings changed; of another length it keeps its shape."""
    if name not in RECIPES:
        raise SettingError(
            f"--recipe {name}: expected {', '.join(RECIPES)}; legr finetune --recipes shows them"
        )
    recipe = RECIPES[name]
    epochs = min(given.get("epochs", recipe.epochs), MANY + 1)  # more is an error, not an overflow
    schedule = {**recipe.rest, **given}.get("schedule")
    for option in ("drops", "drop_by"):
        if schedule == "one-cycle" and option in given:
            raise SettingError(
                f"--{option.replace('_', '-')} is for --schedule steps, this is one-cycle"
            )
    shaped = {
        "epochs": epochs,
        "drops": tuple(round(share * epochs, 6) for share in recipe.drops if epochs > 0),
        "patience": math.ceil(recipe.patience * epochs),
    }
    return Training(recipe=name, **{**shaped, **recipe.rest, **given})


def rate(settings: Training, epochs: float) -> float:
    """The learning rate when so many epochs are done; 2.5 is the middle of the third.

    steps: lr, divided by `drop_by` at each of `drops`. one-cycle: a cosine from lr down to 0. Both
    first rise from 0 to that in a straight line if there is a warm-up.
    """
    warmup = settings.warmup * settings.epochs
    if epochs < warmup:
        return settings.lr * epochs / warmup
    if settings.schedule == "one-cycle":
        done = (epochs - warmup) / (settings.epochs - warmup)
        return settings.lr * (1 + math.cos(math.pi * done)) / 2
    fallen = sum(epochs >= drop for drop in settings.drops)
    return settings.lr / settings.drop_by**fallen
