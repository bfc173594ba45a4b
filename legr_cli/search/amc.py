"""AMC (He et al. 2018): an agent chooses the fraction of units to keep in every group.

Each action is clipped so that the target can still be met if all later groups are pruned as far as
allowed. Within a group, the units with the largest norm are kept.
"""

import functools

import numpy as np

from legr_cli.cost import Cost
from legr_cli.cut import arrange, uniform_scores
from legr_cli.pruning import Analysis
from legr_cli.ranking import Ranking, identity, importance, scored
from legr_cli.search.episodes import EpisodeExplorer
from legr_cli.search.evolution import Genes, Strategy
from legr_cli.settings import Search

METHOD = "amc"


def amc(analysis: Analysis, settings: Search, _start: Genes | None = None) -> Strategy:
    """AMC's search at one target."""
    quantiles = uniform_scores(
        importance(analysis.filters, identity(analysis.filters)), analysis.cost.group_of
    )
    to_ranking = functools.partial(ranking_of, analysis, quantiles)
    return Strategy(RatioExplorer(analysis, settings), to_ranking)


def ranking_of(analysis: Analysis, quantiles: np.ndarray, genes: Genes) -> Ranking:
    """A ranking whose scores are positive for the units to keep: the best `ratio` of each group.

    `quantiles` are the quantiles of the units' norms within their groups.
    """
    ratio = genes["ratio"][analysis.cost.group_of]
    return scored(analysis.filters, quantiles - 1 + ratio, METHOD)


def most_units(cost: Cost, counts: np.ndarray, group: int, budget: float) -> int:
    """The most units of a group that fit the budget, given the counts of all other groups.

    `budget` is in FLOPs.
    """
    low, high = 0, int(cost.sizes[group])
    while low < high:  # bisect for the largest count that fits
        middle = (low + high + 1) // 2
        trial = np.where(np.arange(len(counts)) == group, middle, counts)
        fits = cost.total(cost.flops, trial) <= budget
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


class RatioExplorer(EpisodeExplorer):
    """Chooses a keep ratio for each group, in the order of the network."""

    def __init__(self, analysis: Analysis, settings: Search) -> None:
        self.analysis, self.settings = analysis, settings
        super().__init__(analysis, first_layers(analysis), 1, settings)
        scores = importance(analysis.filters, identity(analysis.filters))
        blocks = arrange(analysis.units, analysis.cost, scores, settings.min_keep, settings.align)
        self.least = blocks.units(blocks.protected, analysis.cost)

    def genes(self, number: int) -> Genes:
        """The ratios of one episode."""
        cost, flops, counts = self.analysis.cost, self.analysis.flops, self.least.copy()
        decided = 0  # groups whose count is final; the others still have their least

        def reduced() -> float:
            so_far = np.where(np.arange(len(counts)) < decided, counts, cost.sizes)
            return 1 - cost.total(cost.flops, so_far) / flops

        def clip(group: int, action: np.ndarray) -> np.ndarray:
            nonlocal decided
            most = most_units(cost, counts, group, self.settings.flops[0] * flops)
            least, size = self.least[group], cost.sizes[group]
            ratio = np.clip(action, least / size, max(least, most) / size)
            counts[group] = int(ratio[0] * size + 1e-9)
            decided = group + 1
            return ratio

        return {"ratio": self.run_episode(number, clip, reduced)[:, 0]}


def first_layers(analysis: Analysis) -> list[str]:
    """For each group, the first layer whose outputs belong to it."""
    first: dict[int, str] = {}
    for name, layer in analysis.units.flow.layers.items():
        units = analysis.units.unit_of(layer.out)
        for group in np.unique(analysis.cost.group_of[units[units >= 0]]).tolist():
            first.setdefault(group, name)
    return [first[group] for group in range(len(analysis.cost.sizes))]
