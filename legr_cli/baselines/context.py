"""The interface of a method: its context and its results."""

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
from legr_cli.training.objective import reference_from
from legr_cli.training.tasks import CLASSIFICATION, Reference, Task

DAMAGED_ADVICE = "delete it and pass --resume"  # for damaged files within a comparison


@dataclass(frozen=True)
class MethodContext:
    """The network, the images and the seed, which are the same for all methods."""

    analysis: Analysis
    data: Data
    settings: Compare
    seed: int
    device: str
    folder: Path  # for journals and rankings
    dense: Line  # score of the dense network on the validation images
    report: Callable[[str], None]  # called with the current step
    task: Task = CLASSIFICATION

    @property
    def torch_device(self) -> torch.device:
        """The device to train on."""
        return choose(self.device)

    @property
    def reference(self) -> Reference | None:
        """The dense network's outputs, if they are the targets; see `reference_for`."""
        return reference_for(self.analysis, self.data, self.device, self.task)

    def ranking_file(self, method: str, target: Target | None = None) -> Path:
        """The file for a method's ranking, for all targets or for one."""
        parts = [method, *([] if target is None else [target.label]), f"seed{self.seed}"]
        return self.folder / f"{'-'.join(parts)}.json"

    def record_files(self, method: str, target: Target | None = None) -> Path:
        """A path next to the ranking that the journal and the state are named after."""
        return self.ranking_file(method, target).with_suffix(".work")  # never written itself

    def prune_settings(self, target: Target) -> Prune:
        """The settings for pruning to a target."""
        return Prune(targets=(target,), align=self.settings.align, min_keep=self.settings.min_keep)

    def settings_as_json(self, **settings: Any) -> Line:
        """A method's own settings and the common ones, as journals and rankings store them."""
        common = self.settings
        return {
            **settings,
            "align": common.align.name,
            "min_keep": common.min_keep,
            "batch_size": common.batch_size,
            "seed": self.seed,
        }

    def header(self, method: str, **settings: Any) -> Line:
        """The header of a method's journal; identifies the run."""
        stored = self.settings_as_json(**settings)
        about = run_description(self.analysis, self.data, stored)
        return {"method": method, **about, **self.task.record}

    def ranking(self, method: str, scores: np.ndarray, **settings: Any) -> Ranking:
        """A ranking by scores of units, with the notes that ranking.json stores."""
        stored = self.settings_as_json(**settings)
        notes = provenance(self.analysis, self.data, stored, self.seed, self.dense)
        return replace(scored(self.analysis.filters, scores, method), notes=notes)


def reference_for(analysis: Analysis, data: Data, device: str, task: Task) -> Reference | None:
    """A copy of the dense network on the device, if its outputs are the targets of the task."""
    if not task.needs_reference:
        return None
    return reference_from(analysis.network.copied(), data, choose(device))


@dataclass(frozen=True)
class MethodResult:
    """The ranking that a method found for a target, and the effort since its previous result."""

    target: Target
    analysis: Analysis  # of the network to prune: the dense one, or a copy that the method trained
    ranking: Ranking
    effort: Effort


# A method gets all targets, from high to low, and yields results for those in the set.
Method = Callable[[MethodContext, list[Target], set[Target]], Iterator[MethodResult]]
