"""The budget cut: which units stay at a target, by the ranking.

Units are kept in **blocks** of one group (one unit, or as many as the alignment asks for). Blocks
are ranked by their middle unit: a group's count rounds to the nearest whole block. From the top
of the ranking blocks are kept as long as the budget holds; what is left of it goes to the best
of the cheaper blocks below. Plans are made level by level (90 %, 80 %, …), each from the blocks
of the one above, so they nest.
"""

from dataclasses import dataclass

import numpy as np

from legr_cli.channels.units import Kept, Units
from legr_cli.cost import Cost, CostTerms
from legr_cli.errors import BudgetError
from legr_cli.settings import Align

LEVELS = 10  # plans nest across every tenth
ENOUGH = 0.001  # a share of the dense cost that is not worth filling


@dataclass(frozen=True)
class Blocks:
    """All blocks, best first, and how many of each group are protected."""

    group: np.ndarray  # of each block
    step: np.ndarray  # units in a whole block of each group
    all: np.ndarray  # blocks in each group
    protected: np.ndarray  # blocks of each group that always stay
    ranked: tuple[np.ndarray, ...]  # the units of each group, best first
    place: np.ndarray  # of each block within its group

    def units(self, blocks: np.ndarray, cost: Cost) -> np.ndarray:
        """Units of each group in this many of its blocks."""
        return np.minimum(blocks * self.step, cost.sizes)

    def kept(self, blocks: np.ndarray, cost: Cost) -> Kept:
        """The plan that keeps this many blocks of each group."""
        kept = np.zeros(len(cost.group_of), bool)
        for ranked, count in zip(self.ranked, self.units(blocks, cost), strict=True):
            kept[ranked[:count]] = True
        return kept


def arrange(
    units: Units, cost: Cost, importance: np.ndarray, min_keep: float, align: Align
) -> Blocks:
    """Sort units into blocks and protect the best ⌈min_keep·n⌉ units of every layer."""
    order = np.argsort(-importance, kind="stable")
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    by_group = order[np.argsort(cost.group_of[order], kind="stable")]
    ranked = tuple(np.split(by_group, np.cumsum(cost.sizes)[:-1]))
    step = np.minimum(align.blocks(cost.channels * cost.sizes, cost.channels), cost.sizes)
    least = np.zeros(len(cost.sizes), int)
    for line, share in _lines(units, min_keep):
        best = line[np.argsort(position[line])][: max(1, int(np.ceil(share * len(line) - 1e-9)))]
        least = np.maximum(least, np.bincount(cost.group_of[best], minlength=len(least)))
    all_blocks = -(-cost.sizes // step)
    group = np.repeat(np.arange(len(step)), all_blocks)
    place = np.arange(len(group)) - np.repeat(np.cumsum(all_blocks) - all_blocks, all_blocks)
    size = np.minimum(step[group], cost.sizes[group] - place * step[group])
    start = np.cumsum(cost.sizes) - cost.sizes
    middle = position[by_group[start[group] + place * step[group] + size // 2]]
    sort = np.argsort(middle, kind="stable")
    protected = -(-least // step)
    return Blocks(group[sort], step, all_blocks, protected, ranked, place[sort])


def _lines(units: Units, min_keep: float) -> list[tuple[np.ndarray, float]]:
    """The units of every layer with the share to protect, and of every tensor with none."""
    layers = [np.unique(units.unit_of(layer.out)) for layer in units.flow.layers.values()]
    own = [(line[line >= 0], min_keep) for line in layers if (line >= 0).any()]
    return own + [(line, 0.0) for line in units.tensor_units]


def uniform_scores(importance: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """Scores for uniform pruning: the share of its group that each unit ranks no worse than.

    One threshold then cuts the same share of every group; the best unit of each scores 1.
    """
    order = np.lexsort((importance, group_of))  # by group, the least important first
    sizes = np.bincount(group_of)
    start = np.cumsum(sizes) - sizes
    place = np.empty(len(order))
    place[order] = np.arange(len(order)) - start[group_of[order]] + 1
    return place / sizes[group_of]


def cut(
    cost: Cost, blocks: Blocks, terms: CostTerms, share: float, what: str = "FLOPs"
) -> np.ndarray:
    """The blocks of each group to keep for at most `share` of the dense cost."""
    dense = cost.of(terms, cost.sizes)
    lowest = cost.of(terms, blocks.units(blocks.protected, cost))
    if lowest > share * dense:
        raise BudgetError(
            f"{share:g} of the {what} cannot be reached: the lowest is "
            f"{floor(cost, blocks, terms):g}; "
            "ask for that or more, or lower --min-keep or --align"
        )
    above = blocks.all
    for level in range(LEVELS - 1, -1, -1):
        at, here = level / LEVELS, blocks.protected
        if at * dense >= lowest:
            here = _take(cost, blocks, terms, here, above, at * dense)
        if share >= at + 1e-9:  # between two levels
            return _take(cost, blocks, terms, here, above, share * dense)
        if share >= at - 1e-9:
            return here
        above = here
    raise AssertionError("unreachable")


def floor(cost: Cost, blocks: Blocks, terms: CostTerms) -> float:
    """The lowest share that can be asked for, in thousandths."""
    share = cost.of(terms, blocks.units(blocks.protected, cost)) / cost.of(terms, cost.sizes)
    return float(np.ceil(share * 1000) / 1000)


def _take(
    cost: Cost,
    blocks: Blocks,
    terms: CostTerms,
    core: np.ndarray,
    limit: np.ndarray,
    budget: float,
) -> np.ndarray:
    """Add to `core`, up to `limit`, the best blocks that fit, then the best of the cheaper ones."""
    have, limit = core.copy(), limit.copy()
    budget = budget * (1 + 1e-12)
    enough = ENOUGH * cost.of(terms, cost.sizes)
    while True:
        free = (blocks.place >= have[blocks.group]) & (blocks.place < limit[blocks.group])
        queue = blocks.group[free]
        low, high = 0, len(queue)  # the longest prefix that fits
        while low < high:
            middle = (low + high + 1) // 2
            trial = have + np.bincount(queue[:middle], minlength=len(have))
            fits = cost.of(terms, blocks.units(trial, cost)) <= budget
            low, high = (middle, high) if fits else (low, middle - 1)
        have = have + np.bincount(queue[:low], minlength=len(have))
        units = blocks.units(have, cost)
        slack = budget - cost.of(terms, units)
        if low == len(queue) or slack <= enough:
            return have
        step = np.minimum(blocks.step, cost.sizes - units)
        limit = np.where(cost.one_more(terms, units, step) <= slack, limit, have)
