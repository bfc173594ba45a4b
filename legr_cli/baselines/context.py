"""What every method is given, and what it gives back."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from legr_cli.baselines.effort import Effort
from legr_cli.data.dataset import Data
from legr_cli.journal import Line
from legr_cli.pruning import Analysis
from legr_cli.ranking import Ranking, scored
from legr_cli.search.setup import provenance, run_description
from legr_cli.settings import Compare, Prune
from legr_cli.targets import Target
from legr_cli.training.devices import choose

ASIDE = "remove it and go on with --resume"  # what to do about a damaged file inside a comparison


@dataclass(frozen=True)
class MethodContext:
    """One network, one split of the images, one seed: the same for all methods."""

    analysis: Analysis
    data: Data
    settings: Compare
    seed: int
    device: str
    folder: Path  # for journals and rankings
    dense: Line  # what the network reaches on the validation images
    tell: Callable[[str], None]  # what is being done now

    @property
    def where(self) -> torch.device:
        """The device to train on."""
        return choose(self.device)

    def file(self, method: str, target: Target | None = None) -> Path:
        """The ranking of a method, for all targets or for one."""
        parts = [method, *([] if target is None else [target.label]), f"seed{self.seed}"]
        return self.folder / f"{'-'.join(parts)}.json"

    def work(self, method: str, target: Target | None = None) -> Path:
        """Beside it, what the record of rounds is named after; no file itself."""
        return self.file(method, target).with_suffix(".work")

    def cut(self, target: Target) -> Prune:
        """How a network is cut to a target."""
        return Prune(targets=(target,), align=self.settings.align, min_keep=self.settings.min_keep)

    def plain(self, **settings: Any) -> Line:
        """These settings and those that all methods have, as JSON has them."""
        own = self.settings
        about = {**settings, "align": own.align.name, "min_keep": own.min_keep}
        return {**about, "batch_size": own.batch_size, "seed": self.seed}

    def header(self, method: str, **settings: Any) -> Line:
        """What tells this work from other work, for a journal."""
        return {
            "method": method,
            **run_description(self.analysis, self.data, self.plain(**settings)),
        }

    def ranking(self, method: str, scores: np.ndarray, **settings: Any) -> Ranking:
        """A ranking by units' scores, with all that ranking.json says beside its rows."""
        about = self.plain(**settings)
        notes = provenance(self.analysis, self.data, about, self.seed, self.dense)
        return replace(scored(self.analysis.filters, scores, method), notes=notes)


@dataclass(frozen=True)
class Level:
    """A target, the ranking that reaches it, and what that took since the level before.

    `known` has the weights to cut: the dense ones, or what a method made of them.
    """

    target: Target
    analysis: Analysis
    ranking: Ranking
    effort: Effort


# Of all targets, from high to low, a method makes those that are still to be done.
Method = Callable[[MethodContext, list[Target], set[Target]], Iterator[Level]]
