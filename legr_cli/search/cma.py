"""CMA-ES on (log α, κ), by the package `cmaes`."""

import numpy as np
from cmaes import CMA

from legr_cli.search.evolution import Candidate, Evolution, Fitness, Genes
from legr_cli.settings import Search

STEP = 0.3  # initial standard deviation, relative to --sigma


class CovarianceAdaptation(Evolution):
    """Draws from a normal distribution that follows the better half of each generation.

    A point has two numbers for each layer: by how many σ its α (as a logarithm) and its κ (in
    standard deviations of the metric) differ from the origin's.
    """

    def __init__(
        self,
        spread: np.ndarray,
        level: Genes,
        settings: Search,
        rng: np.random.Generator,
        center: np.ndarray | None = None,
    ) -> None:
        super().__init__(spread, level, settings, rng, center)
        start, seed = np.zeros(2 * len(spread)), int(rng.integers(2**31))
        self.optimizer = CMA(mean=start, sigma=STEP * settings.sigma, seed=seed)
        self.points: dict[int, np.ndarray] = {}  # by candidate, while its fitness is not known
        self.generation: list[tuple[np.ndarray, float]] = []

    def tell(self, candidate: Candidate, fitness: Fitness) -> None:
        """Move the distribution once a generation is complete."""
        super().tell(candidate, fitness)
        point = self.points.pop(candidate.number, None)
        if point is None:
            return
        badness = -fitness.score if np.isfinite(fitness.score) else 1e9
        self.generation.append((point, badness))
        if len(self.generation) == self.optimizer.population_size:
            self.optimizer.tell(self.generation)
            self.generation = []

    def _draw(self, number: int) -> Candidate:
        """Draw a point; the first candidates are those of evolution, one of which is the origin."""
        if number < self.fixed:
            return super()._draw(number)
        point = self.optimizer.ask()
        self.points[number] = point
        grown, moved = np.split(point, 2)
        return self._moved(
            Candidate(number, self.origin), number, np.arange(len(self.spread)), grown, moved, None
        )
