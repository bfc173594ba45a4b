"""AMC (He et al. 2018): an agent chooses the share of every group of units that stays.

An action is bound so that the target can still be met when all groups after it are cut as far as
they may be; within a group the units of the largest norm stay.
"""

import functools

import numpy as np

from legr_cli.baselines.states import Walker
from legr_cli.baselines.uniform import even
from legr_cli.cost import Cost
from legr_cli.cut import arrange
from legr_cli.pruning import Study
from legr_cli.ranking import Ranking, identity, importance, scored
from legr_cli.search.evolution import Genes
from legr_cli.search.learn import Way
from legr_cli.settings import Search

METHOD = "amc"


def reinforced(known: Study, settings: Search) -> Way:
    """AMC's search at one target."""
    places = even(importance(known.filters, identity(known.filters)), known.cost.group_of)
    return Way(_Ratios(known, settings), functools.partial(kept, known, places))


def kept(known: Study, places: np.ndarray, genes: Genes) -> Ranking:
    """Above 0 are the best units of each group, as many as its ratio says."""
    return scored(known.filters, places - 1 + genes["ratio"][known.cost.group_of], METHOD)


def bound(cost: Cost, counts: np.ndarray, group: int, budget: float) -> int:
    """The most units of a group that the budget allows, with these counts of all others."""
    low, high = 0, int(cost.sizes[group])
    while low < high:
        middle = (low + high + 1) // 2
        trial = np.where(np.arange(len(counts)) == group, middle, counts)
        fits = cost.of(cost.flops, trial) <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


class _Ratios(Walker):
    """A ratio for each group, in the order of the network."""

    def __init__(self, known: Study, settings: Search) -> None:
        self.known, self.settings = known, settings
        super().__init__(known, leaders(known), 1, settings)
        scores = importance(known.filters, identity(known.filters))
        blocks = arrange(known.units, known.cost, scores, settings.min_keep, settings.align)
        self.least = blocks.units(blocks.protected, known.cost)

    def genes(self, number: int) -> Genes:
        """One episode through the groups."""
        cost, flops, counts = self.known.cost, self.known.flops, self.least.copy()
        decided = 0

        def reduced() -> float:
            so_far = np.where(np.arange(len(counts)) < decided, counts, cost.sizes)
            return 1 - cost.of(cost.flops, so_far) / flops

        def take(group: int, action: np.ndarray) -> np.ndarray:
            nonlocal decided
            most = bound(cost, counts, group, self.settings.flops[0] * flops)
            least, size = self.least[group], cost.sizes[group]
            ratio = np.clip(action, least / size, max(least, most) / size)
            counts[group] = int(ratio[0] * size + 1e-9)
            decided = group + 1
            return ratio

        return {"ratio": self.walk(number, take, reduced)[:, 0]}


def leaders(known: Study) -> list[str]:
    """For each group the first layer that makes units of it."""
    found: dict[int, str] = {}
    for name, layer in known.units.flow.layers.items():
        of = known.units.of(layer.out)
        for group in np.unique(known.cost.group_of[of[of >= 0]]).tolist():
            found.setdefault(group, name)
    return [found[group] for group in range(len(known.cost.sizes))]
