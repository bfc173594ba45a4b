"""The table of explorers: the ways to propose candidates."""

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from legr_cli.errors import BudgetError, SettingError
from legr_cli.metrics.filters import centers, spread
from legr_cli.metrics.table import METRICS
from legr_cli.pruning import Analysis, plans
from legr_cli.ranking import affine, level
from legr_cli.search.amc import amc
from legr_cli.search.cma import CovarianceAdaptation
from legr_cli.search.evolution import Evolution, Genes, Strategy
from legr_cli.search.legr_ddpg import legr_ddpg
from legr_cli.search.surrogate import SurrogateEvolution
from legr_cli.settings import MANY, Search


def evolution(analysis: Analysis, settings: Search, start: Genes | None = None) -> Strategy:
    """LeGR: regularized evolution of α and κ (paper, Algorithm 1)."""
    return _affine_strategy(analysis, settings, start, Evolution)


def random(analysis: Analysis, settings: Search, _start: Genes | None = None) -> Strategy:
    """Random search: evolution that never leaves its initial population."""
    population = MANY if settings.minutes else settings.candidates
    return evolution(analysis, replace(settings, start="random", population=population))


def surrogate(analysis: Analysis, settings: Search, start: Genes | None = None) -> Strategy:
    """Evolution whose mutations a model screens."""
    features = functools.partial(_widths, analysis, settings)
    explorer = functools.partial(SurrogateEvolution, features=features)
    return _affine_strategy(analysis, settings, start, explorer)


def cmaes(analysis: Analysis, settings: Search, start: Genes | None = None) -> Strategy:
    """CMA-ES on (log α, κ)."""
    return _affine_strategy(analysis, settings, start, CovarianceAdaptation)


def _affine_strategy(
    analysis: Analysis, settings: Search, start: Genes | None, explorer: Callable[..., Evolution]
) -> Strategy:
    """An explorer of α and κ over the metric of the analysis.

    `start` is the second candidate; None: the α and κ that prune every layer by the same share.
    """
    filters, rng = analysis.filters, np.random.default_rng(settings.seed)
    second = level(filters, analysis.cost.group_of) if start is None else start
    center = centers(filters) if METRICS[filters.metric].is_logarithm else None
    made = explorer(spread(filters), second, settings, rng, center=center)
    return Strategy(made, functools.partial(affine, filters))


def _widths(analysis: Analysis, settings: Search, genes: Genes) -> np.ndarray | None:
    """The logarithm of the share that each group keeps, and its square: means over the targets."""
    try:
        kept = plans(analysis, affine(analysis.filters, genes), settings.cut)
    except BudgetError:
        return None
    cost = analysis.cost
    shares = np.array([np.maximum(cost.counts(plan), 0.5) / cost.sizes for plan in kept])
    logs = np.log(shares)
    return np.concatenate([logs.mean(0), np.square(logs).mean(0)])


EXPLORERS: dict[str, Callable[[Analysis, Search, Genes | None], Strategy]] = {
    "surrogate": surrogate,
    "evolution": evolution,
    "cmaes": cmaes,
    "random": random,
    "ddpg": legr_ddpg,
    "amc": amc,
}
LEARNERS = ("surrogate", "evolution", "cmaes", "random")  # those that find α and κ


def check_explorer(name: str) -> None:
    """Raise unless this explorer finds α and κ."""
    if name not in LEARNERS:
        raise SettingError(f"--explorer {name}: expected {', '.join(LEARNERS)}")
