"""LeGR-DDPG (the paper's appendix): AMC's agent chooses α and κ for every layer."""

import functools

import numpy as np

from legr_cli.metrics.filters import spread
from legr_cli.pruning import Analysis
from legr_cli.ranking import affine
from legr_cli.search.episodes import EpisodeExplorer
from legr_cli.search.evolution import Genes, Strategy
from legr_cli.settings import Search

BOUND = 2.0  # |log α| ≤ BOUND·σ, and |κ| ≤ BOUND·σ · standard deviation of the layer's importance


def legr_ddpg(analysis: Analysis, settings: Search, _start: Genes | None = None) -> Strategy:
    """The search for a ranking, which then serves all targets."""
    to_ranking = functools.partial(affine, analysis.filters)
    return Strategy(AffineExplorer(analysis, settings), to_ranking)


class AffineExplorer(EpisodeExplorer):
    """Chooses two numbers per layer; their effect on the FLOPs is unknown until all are chosen."""

    def __init__(self, analysis: Analysis, settings: Search) -> None:
        super().__init__(analysis, list(analysis.filters.names), 2, settings)
        self.spread, self.sigma = spread(analysis.filters), settings.sigma

    def genes(self, number: int) -> Genes:
        """α and κ of one episode."""
        actions = self.run_episode(number, lambda _, action: action, lambda: 0.0)
        return genes_from(actions, self.sigma, self.spread)


def genes_from(actions: np.ndarray, sigma: float, spread: np.ndarray) -> Genes:
    """Map actions in (0, 1), layers × 2, to α and κ; ½ maps to the identity."""
    alpha, kappa = BOUND * (2 * actions - 1).T
    return {"alpha": np.exp(sigma * alpha), "kappa": sigma * kappa * spread}
