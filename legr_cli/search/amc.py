"""AMC (He et al. 2018): an agent chooses the share of every group of units that stays.

An action is bound so that the target can still be met when all groups after it are cut as far as
they may be; within a group the units of the largest norm stay.
"""

import functools

import numpy as np

from legr_cli.cost import Cost
from legr_cli.cut import arrange, uniform_scores
from legr_cli.pruning import Analysis
from legr_cli.ranking import Ranking, identity, importance, scored
from legr_cli.search.evolution import Genes, Strategy
from legr_cli.search.states import Walker
from legr_cli.settings import Search

METHOD = "amc"


def reinforced(analysis: Analysis, settings: Search) -> Strategy:
    """AMC's search at one target."""
    places = uniform_scores(
        importance(analysis.filters, identity(analysis.filters)), analysis.cost.group_of
    )
    return Strategy(_Ratios(analysis, settings), functools.partial(kept, analysis, places))


def kept(analysis: Analysis, places: np.ndarray, genes: Genes) -> Ranking:
    """Above 0 are the best units of each group, as many as its ratio says."""
    return scored(analysis.filters, places - 1 + genes["ratio"][analysis.cost.group_of], METHOD)


def bound(cost: Cost, counts: np.ndarray, group: int, budget: float) -> int:
    """The most units of a group that the budget allows, with these counts of all others."""
    low, high = 0, int(cost.sizes[group])
    while low < high:
        middle = (low + high + 1) // 2
        trial = np.where(np.arange(len(counts)) == group, middle, counts)
        fits = cost.total(cost.flops, trial) <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


class _Ratios(Walker):
    """A ratio for each group, in the order of the network."""

    def __init__(self, analysis: Analysis, settings: Search) -> None:
        self.analysis, self.settings = analysis, settings
        super().__init__(analysis, leaders(analysis), 1, settings)
        scores = importance(analysis.filters, identity(analysis.filters))
        blocks = arrange(analysis.units, analysis.cost, scores, settings.min_keep, settings.align)
        self.least = blocks.units(blocks.protected, analysis.cost)

    def genes(self, number: int) -> Genes:
        """One episode through the groups."""
        cost, flops, counts = self.analysis.cost, self.analysis.flops, self.least.copy()
        decided = 0

        def reduced() -> float:
            so_far = np.where(np.arange(len(counts)) < decided, counts, cost.sizes)
            return 1 - cost.total(cost.flops, so_far) / flops

        def take(group: int, action: np.ndarray) -> np.ndarray:
            nonlocal decided
            most = bound(cost, counts, group, self.settings.flops[0] * flops)
            least, size = self.least[group], cost.sizes[group]
            ratio = np.clip(action, least / size, max(least, most) / size)
            counts[group] = int(ratio[0] * size + 1e-9)
            decided = group + 1
            return ratio

        return {"ratio": self.walk(number, take, reduced)[:, 0]}


def leaders(analysis: Analysis) -> list[str]:
    """For each group the first layer that makes units of it."""
    found: dict[int, str] = {}
    for name, layer in analysis.units.flow.layers.items():
        of = analysis.units.unit_of(layer.out)
        for group in np.unique(analysis.cost.group_of[of[of >= 0]]).tolist():
            found.setdefault(group, name)
    return [found[group] for group in range(len(analysis.cost.sizes))]
