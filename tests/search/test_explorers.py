"""The surrogate and CMA-ES beside evolution: seeds, what they try, and what they find."""

import functools
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
from torch import nn

from legr_cli.errors import SettingError
from legr_cli.journal import journal
from legr_cli.models.network import Network
from legr_cli.models.registry import Arch
from legr_cli.pruning import Analysis, analyze, plans
from legr_cli.ranking import affine
from legr_cli.search.cma import CovarianceAdaptation
from legr_cli.search.evaluator import Outcome, Plans
from legr_cli.search.evolution import Candidate, Evolution, Fitness, Genes
from legr_cli.search.explorers import EXPLORERS, LEARNERS, check_explorer
from legr_cli.search.fitness import search_settings
from legr_cli.search.history import HISTORY
from legr_cli.search.lines import fitness_of
from legr_cli.search.run import SearchResult, search
from legr_cli.search.surrogate import WARM_UP, SurrogateEvolution
from legr_cli.search.workers import InProcess, WorkerPool
from legr_cli.settings import Search
from legr_cli.training.scores import Score

LAYERS = 23
SPREAD = np.linspace(0.5, 3.0, LAYERS)
LEVEL = {"alpha": 1 / SPREAD, "kappa": -np.linspace(9.0, 2.0, LAYERS) / SPREAD}
SETTINGS = Search(candidates=100, population=24, sample=8, start="identity")


def shares(genes: Genes) -> np.ndarray:
    """What each layer keeps of a common budget, the more the higher its α and κ are."""
    pull = np.exp(np.log(genes["alpha"]) + genes["kappa"] / SPREAD)
    return np.clip(0.4 * LAYERS * pull / pull.sum(), 0.02, 1.0)


def features(genes: Genes) -> np.ndarray:
    logs = np.log(shares(genes))
    return np.concatenate([logs, np.square(logs)])


def planted(seed: int) -> Callable[[Candidate], Fitness]:
    """Each layer loses by itself: the less of it is kept, the more, by a weight of its own."""
    weight = np.exp(np.random.default_rng(1000 + seed).normal(0, 1.5, LAYERS))

    def fitness(candidate: Candidate) -> Fitness:
        return Fitness(-float((weight * np.square(np.log(shares(candidate.genes)))).mean()), 0.0)

    return fitness


def explored(
    explorer: Callable[..., Evolution],
    settings: Search = SETTINGS,
    fitness: Callable[[Candidate], Fitness] | None = None,
) -> tuple[Evolution, list[Candidate]]:
    """All candidates, one after the other."""
    made = explorer(SPREAD, LEVEL, settings, np.random.default_rng(settings.seed))
    fitness, asked = fitness or planted(settings.seed), []
    for _ in range(settings.candidates):
        asked.append(made.ask())
        made.tell(asked[-1], fitness(asked[-1]))
    return made, asked


surrogate = functools.partial(SurrogateEvolution, features=features)
BOTH = {"surrogate": surrogate, "cmaes": CovarianceAdaptation}


@pytest.mark.parametrize("name", BOTH)
def test_the_seed_decides(name: str) -> None:
    settings = replace(SETTINGS, candidates=40)
    one, two = (explored(BOTH[name], settings, planted(0))[1] for _ in range(2))
    other = explored(BOTH[name], replace(settings, seed=1), planted(0))[1]
    for key in ("alpha", "kappa"):
        assert all(
            np.array_equal(a.genes[key], b.genes[key]) for a, b in zip(one, two, strict=True)
        )
        assert not any(
            np.array_equal(a.genes[key], b.genes[key])
            for a, b in zip(one[1:], other[1:], strict=True)
        )


@pytest.mark.parametrize("start", ["auto", "identity", "level"])
@pytest.mark.parametrize("name", BOTH)
def test_what_is_given_comes_first_and_every_layer_changes(name: str, start: str) -> None:
    _, asked = explored(BOTH[name], replace(SETTINGS, start=start))
    assert np.array_equal(asked[0].genes["alpha"], np.ones(LAYERS))
    assert np.array_equal(asked[0].genes["kappa"], np.zeros(LAYERS))
    if start != "identity":
        assert np.array_equal(asked[1].genes["alpha"], LEVEL["alpha"])
    origins = [asked[0].genes, LEVEL]
    changed = np.zeros(LAYERS, int)
    for candidate in asked[2:]:
        assert (candidate.genes["alpha"] > 0).all()
        changed += np.all([candidate.genes["alpha"] != o["alpha"] for o in origins], axis=0)
    assert (changed > 0).all()


def test_the_surrogate_begins_as_evolution_does() -> None:
    asked = explored(surrogate)[1][: WARM_UP + 1]
    plain = explored(Evolution)[1][: WARM_UP + 1]
    same = [
        np.array_equal(one.genes["alpha"], two.genes["alpha"])
        for one, two in zip(asked, plain, strict=True)
    ]
    assert same == [True] * WARM_UP + [False]


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_they_beat_random_search_on_a_planted_problem(name: str) -> None:
    for seed in range(4):
        settings = replace(SETTINGS, seed=seed)
        drawn = replace(settings, start="random", population=100)
        found, by_chance = explored(BOTH[name], settings)[0], explored(Evolution, drawn)[0]
        assert found.best[1] > by_chance.best[1], seed


def test_the_surrogate_beats_evolution_at_equal_candidates() -> None:
    """On a problem that is a sum over layers, as networks nearly are; from every seed."""
    ratios = []
    for seed in range(5):
        settings = replace(SETTINGS, seed=seed, candidates=60)
        losses = [-explored(e, settings)[0].best[1].score for e in (surrogate, Evolution)]
        assert losses[0] < losses[1], seed
        ratios.append(losses[0] / losses[1])
    assert np.mean(ratios) < 0.9


def test_the_surrogate_screens_out_what_is_out_of_reach() -> None:
    """It has no features; what evolution draws of it in the beginning is never a parent."""

    def reachable(genes: Genes) -> bool:
        return bool(shares(genes)[:4].min() > 0.15)

    def known(genes: Genes) -> np.ndarray | None:
        return features(genes) if reachable(genes) else None

    def fitness(candidate: Candidate) -> Fitness:
        good = planted(0)(candidate)
        return good if reachable(candidate.genes) else Fitness(-np.inf, -np.inf)

    explorer = functools.partial(SurrogateEvolution, features=known)
    settings = replace(SETTINGS, candidates=60, sigma=2.0, sigma_end=2.0)
    made, asked = explored(explorer, settings, fitness)
    lost = [candidate.number for candidate in asked if not reachable(candidate.genes)]
    assert lost
    assert max(lost) <= WARM_UP + len(lost)  # from then on, all are within reach
    assert len(made.measured) == 60 - len(lost)
    assert made.best is not None
    assert reachable(made.best[0].genes)
    screened = [c for c in asked if c.number > WARM_UP + len(lost)]
    assert not {candidate.parent for candidate in screened} & set(lost)


def test_cmaes_follows_what_is_better() -> None:
    """Its distribution moves towards a target in (log α, κ), and its steps shrink there."""
    target = np.where(np.arange(LAYERS) % 2, 0.5, -0.5)

    def distance(candidate: Candidate) -> float:
        alpha = np.log(candidate.genes["alpha"]) - target
        return float(np.square(alpha).mean() + np.square(candidate.genes["kappa"] / SPREAD).mean())

    settings = replace(SETTINGS, candidates=600)
    made, asked = explored(CovarianceAdaptation, settings, lambda c: Fitness(-distance(c), 0.0))
    first, last = (np.mean([distance(c) for c in part]) for part in (asked[1:60], asked[-60:]))
    assert last < 0.3 * first
    assert made.points == {}


def test_unknown_explorers() -> None:
    assert set(LEARNERS) < set(EXPLORERS)
    for name in LEARNERS:
        check_explorer(name)
    for name in ("amc", "hope"):
        message = f"--explorer {name}: expected surrogate, evolution, cmaes, random"
        with pytest.raises(SettingError, match=message):
            check_explorer(name)


@pytest.mark.parametrize("minutes", [None, 1.0])
def test_random_search_never_evolves(analysis: Analysis, minutes: float | None) -> None:
    """Also if --minutes allows more candidates than the default."""
    settings = search_settings("repair", explorer="random", candidates=20, minutes=minutes)
    explorer = EXPLORERS["random"](analysis, settings).explorer
    for number in range(20 if minutes is None else 60):
        candidate = explorer.ask()
        explorer.tell(candidate, Fitness(number / 100, 0.0))
        assert candidate.parent is None
        if number:
            assert (candidate.genes["alpha"] != 1).all()


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    """Of a chain of four layers, so that many widths cost the same."""
    torch.manual_seed(0)
    widths = itertools.pairwise((3, 13, 23, 29, 31))
    layers = itertools.chain.from_iterable((nets.conv(a, b), nn.ReLU()) for a, b in widths)
    model = nn.Sequential(*layers, nets.head(31))
    return analyze(Network(model.eval(), Arch("tiny"), nets.INPUT))


def reach(cuts: Plans, _: object = None) -> list[Outcome]:
    """Divergences that are a sum over groups of units, but for some noise."""
    made = []
    for kept in cuts:
        noise = np.random.default_rng(np.packbits(kept).tolist()).random()
        lost = float(len(kept) / kept.sum() + 3 * 13 / (1 + kept[:13].sum()) + noise / 10)
        score = Score(1 / lost, lost, 10, {"accuracy": 1 / lost})
        made.append(Outcome(score, 0.1, 0.05, 0.05, divergence=lost / 10))
    return made


HEADER = {"settings": {"sigma": 1.0}}


def run(
    analysis: Analysis, settings: Search, path: Path, resume: bool = False
) -> tuple[SearchResult, list[dict]]:
    pool = WorkerPool(lambda: (InProcess(), reach, ()))
    strategy = EXPLORERS[settings.explorer](analysis, settings)
    with journal(path, HISTORY, HEADER, resume) as book:
        quiet = (lambda _: None, lambda _: None)
        found = search(analysis, settings, strategy, pool, book, *quiet)
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return found, [{k: v for k, v in line.items() if k != "think_seconds"} for line in lines]


def small(explorer: str, **given: object) -> Search:
    defaults = {"candidates": 18, "population": 8, "sample": 4, "flops": (0.4, 0.7)}
    return search_settings("repair", explorer=explorer, **{**defaults, **given})


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("explorer", LEARNERS)
def test_resumed_from_any_line_it_is_the_same(
    explorer: str, workers: int, analysis: Analysis, tmp_path: Path
) -> None:
    settings, path = small(explorer, workers=workers), tmp_path / "h.jsonl"
    wanted, lines = run(analysis, settings, path)
    assert [line["candidate"] for line in lines] == list(range(18))
    whole = path.read_bytes().splitlines(keepends=True)
    for count in (1, 14):
        path.write_bytes(b"".join(whole[: 1 + count]) + whole[1 + count][:20])
        found, again = run(analysis, settings, path, resume=True)
        assert again == lines
        assert found.ranking.rows == wanted.ranking.rows


def test_the_surrogate_sees_the_widths_of_every_target(analysis: Analysis) -> None:
    """Mean logarithm of the share that each group keeps, and the mean of its square."""
    explorer = EXPLORERS["surrogate"](analysis, small("surrogate")).explorer
    assert isinstance(explorer, SurrogateEvolution)
    genes = {"alpha": np.ones(4), "kappa": np.linspace(0, 3, 4)}
    decided = plans(analysis, affine(analysis.filters, genes), small("surrogate").cut)
    groups = range(len(analysis.cost.sizes))
    logs = np.log([[plan[analysis.cost.group_of == g].mean() for g in groups] for plan in decided])
    expected = np.concatenate([logs.mean(0), (logs**2).mean(0)])
    assert explorer.features(genes) == pytest.approx(expected)


@pytest.mark.parametrize("explorer", ["surrogate", "cmaes"])
def test_a_target_that_only_some_candidates_reach(explorer: str, tmp_path: Path) -> None:
    """Half of the layer that spans two groups stays: the best half, some of which cost more."""
    model = nets.make("pad halves")
    with torch.no_grad():
        model.stem.weight.mul_(0.2)
    analysis = analyze(Network(model, Arch("tiny"), nets.INPUT))
    settings = small(explorer, candidates=40, flops=(0.34, 0.6), min_keep=0.5)
    found, lines = run(analysis, settings, tmp_path / "h.jsonl")
    lost = {line["candidate"] for line in lines if line["plan"] is None}
    assert bool(lost) is (explorer == "cmaes")  # the surrogate screens them out
    assert all((lines[n]["accuracy"], lines[n]["loss"]) == (0, None) for n in lost)
    assert found.best["candidate"] not in lost
    assert found.best["flops"] <= 0.34 * analysis.flops
    reached = [line for line in lines if line["candidate"] not in lost]
    best = max(reached, key=lambda line: fitness_of(line, settings))
    assert found.best["candidate"] == best["candidate"]
