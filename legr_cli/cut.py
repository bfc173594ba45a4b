"""The budget cut: choose the units to keep for a target, by the ranking.

Units are kept in **blocks** of one group (one unit, or as many as the alignment requires). Blocks
are ranked by their middle unit, so a group's count rounds to the nearest whole block. Blocks are
kept from the top of the ranking as long as they fit the budget; the rest of the budget is filled
with the best of the cheaper blocks below. Plans are made level by level (90 %, 80 %, …), each from
the blocks of the level above, so they nest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from legr_cli.channels.units import Kept, Units
from legr_cli.cost import Cost, CostTerms
from legr_cli.errors import BudgetError, SettingError
from legr_cli.settings import Align, LayerShares

LEVELS = 10  # plans nest at every tenth of the dense cost
SLACK = 0.001  # share of the dense cost that may stay unused


@dataclass(frozen=True)
class Blocks:
    """All blocks, best first, and the number of protected blocks per group."""

    group: np.ndarray  # group of each block
    step: np.ndarray  # units in a whole block of each group
    totals: np.ndarray  # blocks in each group
    protected: np.ndarray  # blocks of each group that always stay
    ranked: tuple[np.ndarray, ...]  # units of each group, best first
    place: np.ndarray  # rank of each block within its group, from 0
    advice: str  # what to do about a target that is out of reach

    def units(self, blocks: np.ndarray, cost: Cost) -> np.ndarray:
        """Count the units in the first `blocks` blocks of each group; the last may be smaller."""
        return np.minimum(blocks * self.step, cost.sizes)

    def kept(self, blocks: np.ndarray, cost: Cost) -> Kept:
        """Return the plan that keeps the first `blocks` blocks of each group."""
        kept = np.zeros(len(cost.group_of), bool)
        for ranked, count in zip(self.ranked, self.units(blocks, cost), strict=True):
            kept[ranked[:count]] = True
        return kept


def arrange(
    units: Units,
    cost: Cost,
    importance: np.ndarray,
    min_keep: float,
    align: Align,
    layers: LayerShares = (),
) -> Blocks:
    """Rank units in blocks, and protect the best ⌈min_keep·n⌉ units of every layer.

    `importance` has one value per unit, higher is better; `min_keep` is a share from 0 to 1, and
    `layers` has higher ones for layers whose names match a pattern.
    """
    order = np.argsort(-importance, kind="stable")
    position = np.empty_like(order)  # rank of each unit in the network
    position[order] = np.arange(len(order))
    # units sorted by group, and by rank within each group
    by_group = order[np.argsort(cost.group_of[order], kind="stable")]
    ranked = tuple(np.split(by_group, np.cumsum(cost.sizes)[:-1]))
    step = np.minimum(align.blocks(cost.channels * cost.sizes, cost.channels), cost.sizes)
    least, at_zero = (
        _protected(units, cost, position, *shares) for shares in ((min_keep, layers), (0.0, ()))
    )
    totals = -(-cost.sizes // step)  # rounded up
    # list the blocks group by group: a block's place is its index minus that of its group's first
    group = np.repeat(np.arange(len(step)), totals)
    place = np.arange(len(group)) - np.repeat(np.cumsum(totals) - totals, totals)
    # a block ranks as its middle unit; the last block of a group may be smaller than a step
    size = np.minimum(step[group], cost.sizes[group] - place * step[group])
    start = np.cumsum(cost.sizes) - cost.sizes
    middle = position[by_group[start[group] + place * step[group] + size // 2]]
    sort = np.argsort(middle, kind="stable")
    protected = -(-least // step)
    advice = _advice(units, bool((least > at_zero).any()), bool((step > 1).any()))
    return Blocks(group[sort], step, totals, protected, ranked, place[sort], advice)


def _protected(
    units: Units, cost: Cost, position: np.ndarray, min_keep: float, layers: LayerShares
) -> np.ndarray:
    """Count the units of each group that are protected."""
    least = np.zeros(len(cost.sizes), int)
    for members, share in _protected_shares(units, min_keep, layers):
        count = max(1, int(np.ceil(share * len(members) - 1e-9)))
        best = members[np.argsort(position[members])][:count]
        least = np.maximum(least, np.bincount(cost.group_of[best], minlength=len(least)))
    return least


def _advice(units: Units, min_keep_helps: bool, align_helps: bool) -> str:
    """What to do about a target that is out of reach, and which ops stand in the way."""
    options = [("--min-keep", min_keep_helps), ("--align", align_helps)]
    lower = " or ".join(option for option, helps in options if helps)
    advice = f"raise the target, or lower {lower}" if lower else "raise the target"
    channels: dict[str, int] = {}
    for verb, pins in (("pinned", units.pins), ("tied into one unit", units.tied)):
        for pin in pins:
            what = f"{verb} by {pin.reason}"
            channels[what] = channels.get(what, 0) + pin.channels
    channels.pop("pinned by the network's output", None)
    worst = sorted(channels, key=lambda what: -channels[what])[:2]
    obstacles = [f"{channels[what]} channels are {what}" for what in worst]
    return "; ".join([advice, *obstacles])


def _protected_shares(
    units: Units, min_keep: float, layers: LayerShares
) -> list[tuple[np.ndarray, float]]:
    """Pair the units of every layer with the share to keep, and those of every tensor with 0.

    At least one unit is protected even for a share of 0, so that no tensor vanishes.
    """
    shares = _shares_by_layer(list(units.flow.layers), min_keep, layers)
    pairs = []
    for name, layer in units.flow.layers.items():
        members = np.unique(units.unit_of(layer.out))
        if (members >= 0).any():
            pairs.append((members[members >= 0], shares[name]))
    return pairs + [(members, 0.0) for members in units.tensor_units]


def _shares_by_layer(names: list[str], min_keep: float, layers: LayerShares) -> dict[str, float]:
    """The share of each layer to keep: the highest that applies to it.

    A pattern names layers, as in a shell, or the module that contains them.
    """
    shares = dict.fromkeys(names, min_keep)
    for pattern, share in layers:
        matching = [n for n in names if fnmatchcase(n, pattern) or fnmatchcase(n, f"{pattern}.*")]
        if not matching:
            close = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            given = f"--keep {pattern}" if share == 1 else f"--min-keep {pattern}={share:g}"
            raise SettingError(f"{given} matches no layer; this network has {close}")
        for name in matching:
            shares[name] = max(shares[name], share)
    return shares


def uniform_scores(importance: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    """Score units for uniform pruning by their quantile within their group, from 1/n to 1.

    One threshold then removes the same share of every group.
    """
    order = np.lexsort((importance, group_of))  # by group, least important first
    sizes = np.bincount(group_of)
    # rank within a group (from 1) = index in the sorted list minus the index of the group's first
    start = np.cumsum(sizes) - sizes
    rank = np.empty(len(order))
    rank[order] = np.arange(len(order)) - start[group_of[order]] + 1
    return rank / sizes[group_of]


@dataclass(frozen=True)
class Unlearned:
    """A way to rank units that needs no search."""

    note: str  # what the command line says about it
    scores: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None  # importance, group → …


# By the method of the ranking; other methods are learned, and rank by importance as "norm" does.
UNLEARNED = {
    "norm": Unlearned("no --ranking: filters are ranked by their squared norm (α = 1, κ = 0)"),
    "uniform": Unlearned(
        "uniform: every layer is pruned by the same share, by squared norm within the layer",
        uniform_scores,
    ),
}


def cut(
    cost: Cost, blocks: Blocks, terms: CostTerms, share: float, what: str = "FLOPs"
) -> np.ndarray:
    """Return how many blocks of each group to keep for at most `share` of the dense cost.

    `terms` are `cost.flops` or `cost.params`, and `what` names them in messages. Raises BudgetError
    if the protected blocks alone cost more than that.
    """
    dense = cost.total(terms, cost.sizes)
    lowest = cost.total(terms, blocks.units(blocks.protected, cost))
    if lowest > share * dense:
        raise BudgetError(
            f"{share:g} of the {what} cannot be reached: the lowest is "
            f"{floor(cost, blocks, terms):g}; {blocks.advice}"
        )
    above = blocks.totals
    for level in range(LEVELS - 1, -1, -1):
        at, here = level / LEVELS, blocks.protected
        if at * dense >= lowest:
            here = _fill(cost, blocks, terms, here, above, at * dense)
        if share >= at + 1e-9:  # between two levels
            return _fill(cost, blocks, terms, here, above, share * dense)
        if share >= at - 1e-9:
            return here
        above = here
    raise AssertionError("unreachable")


def floor(cost: Cost, blocks: Blocks, terms: CostTerms) -> float:
    """Return the lowest share of the dense cost that can be reached, rounded up to 0.001."""
    share = cost.total(terms, blocks.units(blocks.protected, cost)) / cost.total(terms, cost.sizes)
    return float(np.ceil(share * 1000) / 1000)


def _fill(
    cost: Cost,
    blocks: Blocks,
    terms: CostTerms,
    start: np.ndarray,
    limit: np.ndarray,
    budget: float,
) -> np.ndarray:
    """Add the best blocks that fit the budget to `start`, then the best of the cheaper ones.

    `start`, `limit` and the result are blocks per group; `budget` is in FLOPs or parameters.
    """
    have, limit = start.copy(), limit.copy()
    budget = budget * (1 + 1e-12)  # tolerate rounding
    enough = SLACK * cost.total(terms, cost.sizes)
    while True:
        free = (blocks.place >= have[blocks.group]) & (blocks.place < limit[blocks.group])
        queue = blocks.group[free]
        low, high = 0, len(queue)  # bisect for the longest prefix that fits
        while low < high:
            middle = (low + high + 1) // 2
            trial = have + np.bincount(queue[:middle], minlength=len(have))
            fits = cost.total(terms, blocks.units(trial, cost)) <= budget
            low, high = (middle, high) if fits else (low, middle - 1)
        have = have + np.bincount(queue[:low], minlength=len(have))
        units = blocks.units(have, cost)
        slack = budget - cost.total(terms, units)
        if low == len(queue) or slack <= enough:
            return have
        # close the groups whose next block does not fit, and continue with the others
        step = np.minimum(blocks.step, cost.sizes - units)
        limit = np.where(cost.added(terms, units, step) <= slack, limit, have)
