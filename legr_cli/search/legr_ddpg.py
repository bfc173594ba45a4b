"""LeGR-DDPG (the paper's appendix): AMC's agent chooses α and κ of every layer."""

import functools

import numpy as np

from legr_cli.pruning import Analysis
from legr_cli.ranking import affine, spread
from legr_cli.search.evolution import Genes, Strategy
from legr_cli.search.states import Walker
from legr_cli.settings import Search

REACH = 2.0  # log α is within ± so many σ of 0, κ within ± so many of its layer's deviations


def reinforced(analysis: Analysis, settings: Search) -> Strategy:
    """The search; what is found is a ranking for all targets."""
    return Strategy(_Rows(analysis, settings), functools.partial(affine, analysis.filters))


class _Rows(Walker):
    """Two actions for each layer; what a ranking removes is known only when all are chosen."""

    def __init__(self, analysis: Analysis, settings: Search) -> None:
        super().__init__(analysis, list(analysis.filters.names), 2, settings)
        self.spread, self.sigma = spread(analysis.filters), settings.sigma

    def genes(self, number: int) -> Genes:
        """One episode through the layers."""
        actions = self.walk(number, lambda _, action: action, lambda: 0.0)
        return rows(actions, self.sigma, self.spread)


def rows(actions: np.ndarray, sigma: float, spread: np.ndarray) -> Genes:
    """From numbers in (0, 1) to α and κ; ½ is the identity."""
    alpha, kappa = REACH * (2 * actions - 1).T
    return {"alpha": np.exp(sigma * alpha), "kappa": sigma * kappa * spread}
