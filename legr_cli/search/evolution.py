"""Regularized evolution of α and κ: Algorithm 1 of the paper, in NumPy alone.

A search asks an `Explorer` for candidates and tells it their fitness, both in the order of their
numbers. Proposals depend only on the random generator and the fitness values told so far.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from legr_cli.settings import Search

if TYPE_CHECKING:
    from legr_cli.ranking import Ranking

TWO = ("auto", "level", "sensitivity")  # starts that try a second candidate besides the identity
MAX_DRAWS = 20  # attempts to draw a candidate that is new

Genes = dict[str, np.ndarray]  # by name, such as alpha and kappa: one number per layer


@dataclass(frozen=True)
class Candidate:
    """A candidate and its parent."""

    number: int
    genes: Genes
    parent: int | None = None  # number of the candidate that it was mutated from, if any


@dataclass(frozen=True, order=True)
class Fitness:
    """Higher scores are better; at equal scores, lower loss is."""

    score: float  # accuracy, or what the objective makes of the divergences from the dense network
    minus_loss: float


class Explorer:
    """Proposes candidates and remembers the best; subclasses implement how they are drawn."""

    def __init__(self) -> None:
        self.asked = 0
        self.best: tuple[Candidate, Fitness] | None = None

    def ask(self, is_new: Callable[[Candidate], bool] = lambda _: True) -> Candidate:
        """Propose the next candidate; if it is not new, try again a few times."""
        number = self.asked
        self.asked += 1
        for _ in range(MAX_DRAWS):
            candidate = self._draw(number)
            if is_new(candidate):
                break
        return candidate

    def tell(self, candidate: Candidate, fitness: Fitness) -> None:
        """Report a candidate's fitness."""
        if self.best is None or fitness > self.best[1]:
            self.best = candidate, fitness

    def _draw(self, number: int) -> Candidate:
        """Draw candidate `number`."""
        raise NotImplementedError


@dataclass(frozen=True)
class Strategy:
    """An explorer, and the function that converts its genes into a ranking."""

    explorer: Explorer
    to_ranking: "Callable[[Genes], Ranking]"


class Evolution(Explorer):
    """Mutates the fittest of a random sample of the population; the oldest member is replaced."""

    def __init__(
        self,
        spread: np.ndarray,
        level: Genes,
        settings: Search,
        rng: np.random.Generator,
        center: np.ndarray | None = None,
    ) -> None:
        """Start from `level`, α and κ that prune all layers evenly, or from the identity.

        `spread` is the standard deviation of the importance metric in each layer. With `center`,
        its mean in each layer, mutations of α leave the importance of the layer's middle as it is.
        """
        super().__init__()
        self.spread, self.center = spread, center
        self.settings, self.rng = settings, rng
        self.identity = {"alpha": np.ones(len(spread)), "kappa": np.zeros(len(spread))}
        self.level = level
        self.first_two: list[Fitness] = []  # of identity and level, to choose the origin
        self.population: deque[tuple[Candidate, Fitness]] = deque(maxlen=settings.population)

    def tell(self, candidate: Candidate, fitness: Fitness) -> None:
        """Add a candidate to the population; if it is full, the oldest member is removed."""
        super().tell(candidate, fitness)
        self.population.append((candidate, fitness))
        if candidate.number < 2:
            self.first_two.append(fitness)

    @property
    def origin(self) -> Genes:
        """The genes that the initial population is mutated from.

        With `start="auto"`, the fitter of identity and level, once both are known: plain norms
        (identity) are better if units span many layers, even pruning (level) at low targets. With
        `"sensitivity"`, `level` stands for what the sensitivities suggest.
        """
        start = self.settings.start
        if start in ("auto", "sensitivity") and len(self.first_two) == 2:
            return self.identity if self.first_two[0] >= self.first_two[1] else self.level
        return self.level if start in TWO else self.identity

    @property
    def fixed(self) -> int:
        """The number of candidates that are given: the identity, and `level` if it may start."""
        return 2 if self.settings.start in TWO else 1

    def _draw(self, number: int) -> Candidate:
        """Draw a candidate; the first is the identity, so that the result is at least as good."""
        if number < self.fixed:
            return Candidate(number, (self.identity, self.level)[number])
        origin = Candidate(number, self.origin)
        all_layers = np.arange(len(self.spread))
        if self.settings.start == "random" and number < self.settings.population:
            return self._mutate(origin, number, all_layers, None)
        parent, parent_number = origin, None
        if len(self.population) >= self.settings.sample:
            sample = self.rng.choice(len(self.population), self.settings.sample, replace=False)
            members = (self.population[i] for i in sorted(sample))
            parent = max(members, key=lambda member: member[1])[0]
            parent_number = parent.number
        count = max(1, round(self.settings.mutate * len(all_layers)))
        layers = self.rng.choice(all_layers, count, replace=False)
        return self._mutate(parent, number, np.sort(layers), parent_number)

    def sigma(self, number: int) -> float:
        """Standard deviation of a mutation: changes linearly from `sigma` to `sigma_end`."""
        done = number / max(1, self.settings.candidates - 1)
        return self.settings.sigma + done * (self.settings.sigma_end - self.settings.sigma)

    def _mutate(
        self,
        parent: Candidate,
        number: int,
        layers: np.ndarray,
        parent_number: int | None,
        sigma: float | None = None,
    ) -> Candidate:
        """Change these layers: a becomes a·exp(N(0, σ²)), b becomes b + σ·N(0, spread²)."""
        sigma = self.sigma(number) if sigma is None else sigma
        grown = sigma * self.rng.standard_normal(len(layers))
        moved = sigma * self.rng.standard_normal(len(layers))
        return self._moved(parent, number, layers, grown, moved, parent_number)

    def _moved(
        self,
        parent: Candidate,
        number: int,
        layers: np.ndarray,
        grown: np.ndarray,
        moved: np.ndarray,
        parent_number: int | None,
    ) -> Candidate:
        """Change these layers: a becomes a·exp(grown), b becomes b + moved·spread.

        a and b transform the origin's importance, a·(α₀·‖Θ‖² + κ₀) + b, and spread is its standard
        deviation. If the origin is the identity, a and b are α and κ.
        """
        alpha, kappa = parent.genes["alpha"].copy(), parent.genes["kappa"].copy()
        origin = self.origin
        scale, shift = origin["alpha"][layers], origin["kappa"][layers]
        a = alpha[layers] / scale
        b = kappa[layers] - a * shift
        wider = a * np.exp(grown)
        if self.center is not None:
            b += (a - wider) * (scale * self.center[layers] + shift)
        b += moved * scale * self.spread[layers]
        alpha[layers], kappa[layers] = wider * scale, wider * shift + b
        return Candidate(number, {"alpha": alpha, "kappa": kappa}, parent_number)
