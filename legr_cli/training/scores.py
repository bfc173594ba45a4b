"""The score of a network on some images, and how it is shown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ACCURACY = "accuracy"
WORST = -1e30  # a score below all others; journals hold finite numbers
_SHARES = {ACCURACY, "top 5", "mean IoU", "pixel accuracy", "agreement", "pixel agreement"}


@dataclass(frozen=True)
class Score:
    """The result of evaluating a network."""

    value: float  # what networks are chosen by: higher is better
    loss: float  # mean over the images
    images: int
    figures: Mapping[str, float] = field(default_factory=dict)  # by name, the one to show first

    def line(self) -> dict[str, Any]:
        """The object that journals store; `accuracy` is the value of classification alone."""
        rest = {"loss": finite_or_none(self.loss), "images": self.images}
        if ACCURACY in self.figures:
            return {ACCURACY: self.value, **rest}
        return {"score": self.value, "figures": dict(self.figures), **rest}

    @classmethod
    def from_line(cls, line: dict[str, Any]) -> "Score":
        """The score that a journal stores."""
        loss = math.nan if line["loss"] is None else line["loss"]
        return cls(score_in(line), loss, line["images"], figures_in(line))


def finite_or_none(value: float) -> float | None:
    """Replace NaN and infinity, which JSON does not have, by None."""
    return value if math.isfinite(value) else None


def score_in(line: Mapping[str, Any]) -> float:
    """What networks are chosen by, from a journal's line."""
    return line[ACCURACY] if ACCURACY in line else line["score"]  # type: ignore[no-any-return]


def figures_in(line: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a journal's line, the one to show first."""
    if ACCURACY in line:
        return {ACCURACY: line[ACCURACY]}
    return line.get("figures") or {"score": line["score"]}


def first_figure(line: Mapping[str, Any]) -> tuple[str, float]:
    """Name and value of the figure of a journal's line to show first."""
    return next(iter(figures_in(line).items()))


def shown(line: Mapping[str, Any]) -> str:
    """The first figure of a journal's line, such as `91.20%`; its name is `headline(line)`."""
    return format_figure(*first_figure(line))


def headline(line: Mapping[str, Any]) -> str:
    """What the first figure of a journal's line is called."""
    return first_figure(line)[0]


def is_share(name: str) -> bool:
    """Whether a figure goes from 0 to 1 and is shown in percent."""
    return name in _SHARES


def format_figure(name: str, value: float) -> str:
    """Format a share in percent, any other figure as a number."""
    return f"{value:.2%}" if is_share(name) else f"{value:.4g}"


def plotted(name: str, value: float) -> float:
    """A figure as charts and tables show it, without its unit: shares in percent."""
    return 100 * value if is_share(name) else value


def as_number(name: str, value: float) -> str:
    """Format a figure without its unit, which is in the title of its column."""
    return f"{100 * value:.2f}" if is_share(name) else f"{value:.4g}"


def with_unit(title: str, name: str) -> str:
    """The title of an axis or a column with the unit of a figure, such as `test mean IoU, %`."""
    return f"{title}, %" if is_share(name) else title


def capitalized(title: str) -> str:
    """A title with a capital letter, unless it starts with a name such as `mIoU`."""
    first = title.partition(" ")[0]
    return title[:1].upper() + title[1:] if first == first.lower() else title
