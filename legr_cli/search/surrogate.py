"""Evolution with a surrogate: a model of what was measured screens mutations before they are.

The objective is nearly a sum over groups of units of what each of them loses. So a ridge regression
on the logarithm of the share that each group keeps, and its square, predicts it from few
candidates. Of many mutations of the best candidates, the one is measured that a draw from the
regression's posterior likes best (Thompson sampling), so that what is uncertain gets tried as well.
"""

from collections.abc import Callable

import numpy as np

from legr_cli.search.evolution import MAX_DRAWS, Candidate, Evolution, Fitness, Genes
from legr_cli.settings import Search

WARM_UP = 12  # candidates by evolution alone
PROPOSALS = 60  # mutations to screen for each candidate
PARENTS = 8  # the best candidates, which are mutated
SIGMAS = (0.25, 0.5, 1.0)  # of a mutation, relative to --sigma
SHARES = (0.05, 0.1, 0.3)  # of the layers that a mutation changes
NOISE, PRIOR, SPREAD = 0.05, 0.3, 0.3  # variances relative to the fitness's; of the draws

Features = Callable[[Genes], "np.ndarray | None"]


class SurrogateEvolution(Evolution):
    """Screens mutations by a regression from the widths of a plan to its fitness."""

    def __init__(
        self,
        spread: np.ndarray,
        level: Genes,
        settings: Search,
        rng: np.random.Generator,
        features: Features,
        center: np.ndarray | None = None,
    ) -> None:
        """`features` describes the plans of a candidate; None if a target cannot be reached."""
        super().__init__(spread, level, settings, rng, center)
        self.features = features
        self.measured: list[tuple[Candidate, np.ndarray, float]] = []
        self.screened = -1  # the latest candidate that mutations were screened for

    def tell(self, candidate: Candidate, fitness: Fitness) -> None:
        """Add a candidate to what the regression is fitted to."""
        super().tell(candidate, fitness)
        features = self.features(candidate.genes)
        if features is not None and np.isfinite(fitness.score):
            self.measured.append((candidate, features, fitness.score))

    def _draw(self, number: int) -> Candidate:
        """The mutation that a draw from the posterior likes best."""
        if len(self.measured) < WARM_UP:
            return super()._draw(number)
        if number == self.screened:  # what the screening chose is known already
            return self._reachable(number)
        self.screened = number
        ranked = sorted(self.measured, key=lambda one: -one[2])[:PARENTS]
        predict = self._posterior_draw()
        known = {features.tobytes() for _, features, _ in self.measured}
        best: tuple[float, Candidate] | None = None
        for _ in range(PROPOSALS):
            parent = ranked[self.rng.integers(len(ranked))][0]
            mutant = self._mutation(parent, number)
            features = self.features(mutant.genes)
            if features is None or features.tobytes() in known:
                continue
            value = predict(features)
            if best is None or value > best[0]:
                best = value, mutant
        return self._reachable(number) if best is None else best[1]

    def _reachable(self, number: int) -> Candidate:
        """A mutation by evolution that reaches the targets, if one is found soon."""
        for _ in range(MAX_DRAWS):
            mutant = super()._draw(number)
            if self.features(mutant.genes) is not None:
                break
        return mutant

    def _mutation(self, parent: Candidate, number: int) -> Candidate:
        """A mutation of random size."""
        sigma = self.sigma(number) * float(self.rng.choice(SIGMAS))
        count = max(1, round(float(self.rng.choice(SHARES)) * len(self.spread)))
        layers = np.sort(self.rng.choice(len(self.spread), count, replace=False))
        return self._mutate(parent, number, layers, parent.number, sigma)

    def _posterior_draw(self) -> Callable[[np.ndarray], float]:
        """A linear model of the fitness, drawn from the posterior of a Bayesian regression."""
        rows = np.array([features for _, features, _ in self.measured])
        wanted = np.array([score for _, _, score in self.measured])
        mean, deviation = rows.mean(0), rows.std(0) + 1e-6
        scaled = (rows - mean) / deviation
        variance = float(wanted.var()) + 1e-12
        precision = scaled.T @ scaled / NOISE + np.eye(rows.shape[1]) / PRIOR
        covariance = np.linalg.inv(precision)
        weights = covariance @ (scaled.T @ (wanted - wanted.mean())) / NOISE
        factor = np.linalg.cholesky(covariance * SPREAD * variance)
        drawn = weights + factor @ self.rng.standard_normal(len(weights))
        return lambda features: float((features - mean) / deviation @ drawn)
