"""Regularized evolution of (α, κ) rows: Algorithm 1 of the paper. No torch inside.

A search asks an `Explorer` for candidates and tells it their fitness, in order of their numbers;
what it proposes depends on its random generator and on what it was told so far, nothing else.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from legr_cli.settings import Search

if TYPE_CHECKING:
    from legr_cli.ranking import Ranking

DRAWS = 20  # attempts to draw a candidate that is new

Genes = dict[str, np.ndarray]  # by name, such as alpha and kappa: one number per layer


@dataclass(frozen=True)
class Candidate:
    """A candidate, and the one it was mutated from."""

    number: int
    genes: Genes
    parent: int | None = None  # None: it was not mutated from a candidate


@dataclass(frozen=True, order=True)
class Fitness:
    """Higher accuracy is better; at equal accuracy, lower loss."""

    accuracy: float
    minus_loss: float


class Explorer:
    """Proposes candidates and remembers the best; subclasses say how they are drawn."""

    def __init__(self) -> None:
        self.asked = 0
        self.best: tuple[Candidate, Fitness] | None = None

    def ask(self, is_new: Callable[[Candidate], bool] = lambda _: True) -> Candidate:
        """The next candidate; one that is not new is drawn again, a few times."""
        number = self.asked
        self.asked += 1
        for _ in range(DRAWS):
            candidate = self._draw(number)
            if is_new(candidate):
                break
        return candidate

    def tell(self, candidate: Candidate, fitness: Fitness) -> None:
        """Take note of a candidate's fitness."""
        if self.best is None or fitness > self.best[1]:
            self.best = candidate, fitness

    def _draw(self, number: int) -> Candidate:
        """Draw candidate `number`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Strategy:
    """An explorer, and the ranking that its numbers stand for."""

    explorer: Explorer
    express: "Callable[[Genes], Ranking]"


class Evolution(Explorer):
    """A pool of the latest candidates: the fittest of a sample is mutated, the oldest leaves."""

    def __init__(
        self, spread: np.ndarray, level: Genes, settings: Search, rng: np.random.Generator
    ) -> None:
        """`spread`: standard deviation of importance by layer; `level`: α, κ that prune evenly."""
        super().__init__()
        self.spread = spread
        self.settings, self.rng = settings, rng
        self.identity = {"alpha": np.ones(len(spread)), "kappa": np.zeros(len(spread))}
        self.level = level
        self.known: list[Fitness] = []  # of the first two candidates, to choose where to start
        self.pool: deque[tuple[Candidate, Fitness]] = deque(maxlen=settings.population)

    def tell(self, candidate: Candidate, fitness: Fitness) -> None:
        """Add a candidate to the pool; the oldest leaves."""
        super().tell(candidate, fitness)
        self.pool.append((candidate, fitness))
        if candidate.number < 2:
            self.known.append(fitness)

    @property
    def origin(self) -> Genes:
        """What the initial population is mutated from; by default the fitter of two, once known.

        Plain norms (the identity) do better where many layers add up in one unit; pruning all
        layers evenly (level) does better at low targets.
        """
        start = self.settings.start
        if start == "auto" and len(self.known) == 2:
            start = "identity" if self.known[0] >= self.known[1] else "level"
        return self.level if start in ("auto", "level") else self.identity

    def _draw(self, number: int) -> Candidate:
        """Draw a candidate; the first is the identity, so that no search ends below it."""
        if number == 0:
            return Candidate(number, self.identity)
        if number == 1 and self.settings.start in ("auto", "level"):
            return Candidate(number, self.level)
        origin = Candidate(number, self.origin)
        everywhere = np.arange(len(self.spread))
        if self.settings.start == "random" and number < self.settings.population:
            return self._mutated(origin, number, everywhere, None)
        parent, known = origin, None
        if len(self.pool) >= self.settings.sample:
            chosen = self.rng.choice(len(self.pool), self.settings.sample, replace=False)
            parent = max((self.pool[i] for i in sorted(chosen)), key=lambda entry: entry[1])[0]
            known = parent.number
        count = max(1, round(self.settings.mutate * len(everywhere)))
        layers = self.rng.choice(everywhere, count, replace=False)
        return self._mutated(parent, number, np.sort(layers), known)

    def step(self, number: int) -> float:
        """Standard deviation of a mutation: linear from `sigma` to `sigma_end`."""
        done = number / max(1, self.settings.candidates - 1)
        return self.settings.sigma + done * (self.settings.sigma_end - self.settings.sigma)

    def _mutated(
        self, parent: Candidate, number: int, layers: np.ndarray, known: int | None
    ) -> Candidate:
        """a × exp(N(0, σ²)) and b + σ·N(0, spread²) at these layers.

        Here a and b transform the origin's importance, a·(α₀·‖Θ‖² + κ₀) + b, and spread is its
        standard deviation. If the origin is the identity, they are α and κ themselves.
        """
        alpha, kappa = parent.genes["alpha"].copy(), parent.genes["kappa"].copy()
        origin = self.origin
        scale, shift = origin["alpha"][layers], origin["kappa"][layers]
        sigma = self.step(number)
        a = alpha[layers] / scale
        b = kappa[layers] - a * shift
        a *= np.exp(sigma * self.rng.standard_normal(len(layers)))
        b += sigma * scale * self.spread[layers] * self.rng.standard_normal(len(layers))
        alpha[layers], kappa[layers] = a * scale, a * shift + b
        return Candidate(number, {"alpha": alpha, "kappa": kappa}, known)
