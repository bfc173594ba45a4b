"""The table of explorers: the ways to propose candidates."""

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from legr_cli.pruning import Analysis
from legr_cli.ranking import affine, level, spread
from legr_cli.search.amc import amc
from legr_cli.search.evolution import Evolution, Strategy
from legr_cli.search.legr_ddpg import legr_ddpg
from legr_cli.settings import Search


def evolution(analysis: Analysis, settings: Search) -> Strategy:
    """LeGR: regularized evolution of α and κ."""
    rng = np.random.default_rng(settings.seed)
    leveled = level(analysis.filters, analysis.cost.group_of)
    explorer = Evolution(spread(analysis.filters), leveled, settings, rng)
    return Strategy(explorer, functools.partial(affine, analysis.filters))


def random(analysis: Analysis, settings: Search) -> Strategy:
    """Random search: evolution that never leaves its initial population."""
    return evolution(analysis, replace(settings, start="random", population=settings.candidates))


EXPLORERS: dict[str, Callable[[Analysis, Search], Strategy]] = {
    "evolution": evolution,
    "random": random,
    "ddpg": legr_ddpg,
    "amc": amc,
}
