"""Algorithm 1: pool, sample, fittest, mutate, replace the oldest."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from legr_cli.search.evolution import Candidate, Evolution, Fitness
from legr_cli.settings import Search

LAYERS = 23
SPREAD = np.linspace(0.5, 3.0, LAYERS)
MEAN = np.linspace(9.0, 2.0, LAYERS)
LEVEL = {"alpha": 1 / SPREAD, "kappa": -MEAN / SPREAD}  # every layer to mean 0 and deviation 1


def planted(candidate: Candidate) -> Fitness:
    """Best at one place in α (a half or twice) and κ (a spread up or down), known to nobody."""
    sign = np.where(np.arange(LAYERS) % 2, 1.0, -1.0)
    alpha = np.log(candidate.genes["alpha"]) - sign * math.log(2)
    kappa = candidate.genes["kappa"] / SPREAD + sign
    distance = float(np.sqrt((alpha**2 + kappa**2).sum()))
    return Fitness(1 / (1 + distance), -distance)


def run(settings: Search, fitness=planted) -> tuple[Evolution, list[Candidate]]:
    evolution = Evolution(SPREAD, LEVEL, settings, np.random.default_rng(settings.seed))
    asked = []
    for _ in range(settings.candidates):
        asked.append(evolution.ask())
        evolution.tell(asked[-1], fitness(asked[-1]))
    return evolution, asked


def test_no_torch_inside() -> None:
    code = "import sys, legr_cli.search.evolution; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_the_seed_decides() -> None:
    one, two = run(Search(candidates=90))[1], run(Search(candidates=90))[1]
    other = run(Search(candidates=90, seed=1))[1]
    for a, b in zip(one, two, strict=True):
        assert np.array_equal(a.genes["alpha"], b.genes["alpha"])
        assert np.array_equal(a.genes["kappa"], b.genes["kappa"])
    assert not np.array_equal(one[2].genes["alpha"], other[2].genes["alpha"])


def test_first_is_the_identity_then_a_tenth_of_the_layers_changes() -> None:
    _, asked = run(Search(start="identity"))
    assert np.array_equal(asked[0].genes["alpha"], np.ones(LAYERS))
    assert np.array_equal(asked[0].genes["kappa"], np.zeros(LAYERS))
    origin = asked[0]
    for candidate in asked[1:]:
        parent = origin if candidate.parent is None else asked[candidate.parent]
        for name in ("alpha", "kappa"):  # round(0.1 × 23)
            assert np.count_nonzero(candidate.genes[name] != parent.genes[name]) == 2
    assert all(c.parent is None for c in asked[:16])
    assert all(c.parent is not None for c in asked[16:])


def test_every_layer_changes_over_400_candidates() -> None:
    _, asked = run(Search())
    touched = sum((c.genes["alpha"] != 1) & (c.genes["kappa"] != 0) for c in asked)
    assert (touched > 0).all()


def test_at_least_one_layer_changes() -> None:
    _, asked = run(Search(mutate=0.001, candidates=20, population=8, sample=4))
    assert all(np.count_nonzero(c.genes["alpha"] != 1) >= 1 for c in asked[1:])


def test_no_two_random_candidates_are_equal() -> None:
    _, asked = run(Search(start="random", candidates=64))
    assert len({c.genes["alpha"].tobytes() + c.genes["kappa"].tobytes() for c in asked}) == 64
    assert all((c.genes["alpha"] != 1).all() for c in asked[1:])


def test_parent_is_the_fittest_of_a_sample_and_the_oldest_goes() -> None:
    settings = Search(candidates=40, population=8, sample=8)  # the sample is all of the pool
    table = np.random.default_rng(0).random(40)
    evolution, asked = run(settings, lambda c: Fitness(float(table[c.number]), 0.0))
    assert [c.number for c, _ in evolution.population] == list(range(32, 40))
    for candidate in asked[8:]:
        alive = range(max(0, candidate.number - 8), candidate.number)
        assert candidate.parent == max(alive, key=lambda number: table[number])
    assert evolution.best is not None
    assert evolution.best[0].number == int(table.argmax())


def test_ties_go_to_the_lower_loss() -> None:
    assert Fitness(0.9, -0.3) > Fitness(0.9, -0.4) > Fitness(0.8, -0.1) > Fitness(0.8, -math.inf)


def test_steps_shrink_in_a_straight_line() -> None:
    evolution = Evolution(SPREAD, LEVEL, Search(candidates=101, sigma=1.0, sigma_end=0.2), None)
    assert [evolution.sigma(n) for n in (0, 50, 100)] == pytest.approx([1.0, 0.6, 0.2])


def test_sizes_of_a_change() -> None:
    settings = Search(candidates=3000, population=3000, sigma=0.5, sigma_end=0.5, start="random")
    _, asked = run(settings)
    logs = np.log(np.array([c.genes["alpha"] for c in asked[1:]]))
    kappas = np.array([c.genes["kappa"] for c in asked[1:]])
    assert logs.mean() == pytest.approx(0, abs=0.02)
    assert logs.std() == pytest.approx(0.5, rel=0.03)
    assert kappas.std(0) == pytest.approx(0.5 * SPREAD, rel=0.06)


def test_beats_random_search_on_a_planted_problem() -> None:
    for seed in range(10):
        settings = Search(seed=seed)
        found = run(settings)[0].best
        drawn = run(replace(settings, start="random", population=400))[0].best
        assert found is not None
        assert drawn is not None
        assert found[1] > drawn[1], seed


def test_what_is_not_new_is_drawn_again() -> None:
    evolution = Evolution(SPREAD, LEVEL, Search(), np.random.default_rng(0))
    drawn: list[Candidate] = []

    def is_new(candidate: Candidate) -> bool:
        drawn.append(candidate)
        return len(drawn) in (1, 5)

    assert evolution.ask(is_new) is drawn[0]
    assert evolution.ask(is_new) is drawn[4]
    assert {candidate.number for candidate in drawn[1:]} == {1}
    assert evolution.ask(lambda _: False).number == 2  # after some draws it is taken as it is


def test_a_level_start_changes_layers_about_their_middle() -> None:
    """What the origin brings to 0 (here a filter of mean norm) a change of α leaves there."""
    settings = Search(candidates=12, population=12, sample=12, start="level")
    _, asked = run(settings)
    assert np.array_equal(asked[0].genes["alpha"], np.ones(LAYERS))
    assert asked[1].genes["alpha"] == pytest.approx(1 / SPREAD)
    assert asked[1].genes["kappa"] == pytest.approx(-MEAN / SPREAD)
    rng = np.random.default_rng(settings.seed)  # the draws of the first change, once more
    layers = np.sort(rng.choice(np.arange(LAYERS), 2, replace=False))
    grown, moved = np.exp(rng.standard_normal(2)), rng.standard_normal(2)
    genes = asked[2].genes
    at_mean = genes["alpha"] * MEAN + genes["kappa"]
    assert at_mean[layers] == pytest.approx(moved)  # a · 0 + b, b in deviations of the origin
    above = genes["alpha"] * (MEAN + SPREAD) + genes["kappa"]
    assert above[layers] == pytest.approx(grown + moved)
    others = np.setdiff1d(np.arange(LAYERS), layers)
    assert at_mean[others] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("better", [0, 1])
def test_by_default_the_fitter_start_is_changed(better: int) -> None:
    """Once both are known; from the pool on, parents are what they are."""
    settings = Search(candidates=16, sample=16)
    score = {better: Fitness(0.5, 0.0)}
    _, asked = run(settings, lambda c: score.get(c.number, Fitness(0.1, 0.0)))
    for candidate in asked[2:]:
        same = candidate.genes["alpha"] == asked[better].genes["alpha"]
        assert np.count_nonzero(same) == LAYERS - 2
