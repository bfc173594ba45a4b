"""How candidates are proposed: one entry for each way."""

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from legr_cli.pruning import Analysis
from legr_cli.ranking import affine, level, spread
from legr_cli.search import amc, legr_ddpg
from legr_cli.search.evolution import Evolution, Strategy
from legr_cli.settings import Search


def evolution(analysis: Analysis, settings: Search) -> Strategy:
    """LeGR: regularized evolution of α and κ."""
    rng = np.random.default_rng(settings.seed)
    even = level(analysis.filters, analysis.cost.group_of)
    explorer = Evolution(spread(analysis.filters), even, settings, rng)
    return Strategy(explorer, functools.partial(affine, analysis.filters))


def random(analysis: Analysis, settings: Search) -> Strategy:
    """Random search: evolution whose initial population is all there is."""
    return evolution(analysis, replace(settings, start="random", population=settings.candidates))


EXPLORERS: dict[str, Callable[[Analysis, Search], Strategy]] = {
    "evolution": evolution,
    "random": random,
    "ddpg": legr_ddpg.reinforced,
    "amc": amc.reinforced,
}
