"""Early rejection: candidates that are far worse than the best one are not measured further."""

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from running import legr

from legr_cli.data.dataset import open_data
from legr_cli.errors import SettingError
from legr_cli.journal import Line, journal
from legr_cli.models.network import open_network
from legr_cli.pruning import analyze
from legr_cli.search.evaluator import CandidateEvaluator, Outcome, Plans
from legr_cli.search.fitness import search_settings, with_steps
from legr_cli.search.history import HISTORY
from legr_cli.search.lines import fitness_of, mean_outcome
from legr_cli.search.measured import with_metric
from legr_cli.search.objectives import excess
from legr_cli.search.run import search
from legr_cli.search.setup import SearchSetup
from legr_cli.search.workers import WorkerPool, in_process
from legr_cli.settings import Search
from legr_cli.training.scores import Score

SHAPE = (3, 32, 32)
LIMIT = 1.3
COUNT = 16
TIMES = ("seconds", "adapt_seconds", "measure_seconds", "think_seconds")
NET = ("--arch", "digits_net:build", "--input", "3x32x32", "--data", "digits")


def settings_of(**given: object) -> Search:
    small = {"candidates": COUNT, "population": 6, "sample": 3, "batch_size": 16, "steps": 1}
    given = {"val_images": 60, "explorer": "evolution", "reject_above": LIMIT, **given}
    return with_steps(search_settings("repair", **{**small, **given}))


@pytest.fixture(scope="module")
def setup(weights: Path) -> SearchSetup:
    """A search at three shares; the metric is that of the weights, evolution tries bad ones."""
    network = open_network(str(weights), "digits_net:build", input_shape=SHAPE)
    settings, data = settings_of(metric="squared-norm"), open_data("digits", SHAPE, seed=0)
    return SearchSetup(with_metric(analyze(network), data, settings), data, settings, "cpu")


def run(setup: SearchSetup, path: Path, pool: WorkerPool | None = None, **kw: bool) -> list[Line]:
    """The lines of all candidates in order, without what a clock said."""
    pool = pool or in_process(
        lambda: CandidateEvaluator(setup.analysis.units, setup.protocol).evaluate
    )
    with journal(path, HISTORY, setup.header, kw.get("resume", False)) as book:
        parts = setup.analysis, setup.settings, setup.strategy, pool, book
        found = search(*parts, lambda _: None, lambda _: None)
        lines = [book.lines[number] for number in range(COUNT)]
    pool.shutdown()
    assert "measured" not in found.best
    return [{key: line[key] for key in line if key not in TIMES} for line in lines]


@pytest.fixture(scope="module")
def lines(setup: SearchSetup, tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    return run(setup, tmp_path_factory.mktemp("search") / "h.jsonl")


def test_what_was_not_measured_is_completed(setup: SearchSetup, lines: list[Line]) -> None:
    """The other divergences are the best one's, times the factor by which it is worse."""
    rejected = [line for line in lines if "measured" in line and not line["cached"]]
    assert {line["measured"] for line in rejected} == {1, 2}
    assert len(rejected) < COUNT - 2
    for line in lines:
        assert len(line["divergences"]) == 3
        assert line["divergence"] == pytest.approx(np.mean(line["divergences"]))
        if not line["candidate"] or line["cached"]:
            continue
        earlier = lines[: line["candidate"]]
        best = max(earlier, key=lambda one: fitness_of(one, setup.settings))["divergences"]
        measured = line.get("measured", 3)
        assert len(line.get("each", [line["accuracy"]])) == measured
        for count in range(1, measured):
            assert excess(line["divergences"][:count], best) <= LIMIT
        if measured < 3:
            factor = excess(line["divergences"][:measured], best)
            assert factor > LIMIT
            completed = [divergence * factor for divergence in best[measured:]]
            assert line["divergences"][measured:] == pytest.approx(completed)
            assert fitness_of(line, setup.settings) < fitness_of(
                max(earlier, key=lambda one: fitness_of(one, setup.settings)), setup.settings
            )


def test_0_measures_all(setup: SearchSetup, lines: list[Line], tmp_path: Path) -> None:
    """The first candidates are the same, and at the shares that both measure, their numbers."""
    whole = replace(setup, settings=replace(setup.settings, reject_above=0.0))
    found = run(whole, tmp_path / "h.jsonl")
    assert all("measured" not in line and len(line["each"]) == 3 for line in found)
    for one, two in zip(found[:3], lines[:3], strict=True):
        assert one["plan"] == two["plan"]
        measured = two.get("measured", 3)
        assert one["divergences"][:measured] == two["divergences"][:measured]


def test_a_replay_gives_the_same(setup: SearchSetup, lines: list[Line], tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    assert run(setup, path) == lines
    whole = path.read_bytes()
    for cut in (len(whole) // 3, len(whole) // 2):
        path.write_bytes(whole[:cut])
        assert run(setup, path, resume=True) == lines


def test_the_order_of_completion_does_not_matter(setup: SearchSetup, tmp_path: Path) -> None:
    """With two workers, a candidate is compared with the best of those up to two before it."""
    two = replace(setup, settings=replace(setup.settings, workers=2))
    wanted = run(two, tmp_path / "one.jsonl")
    orders, lock = [], threading.Lock()
    for seed in range(2):
        rng = np.random.default_rng(seed)
        evaluator = CandidateEvaluator(setup.analysis.units, two.protocol)

        def late(
            plans: Plans, best: Sequence[float] | None, rng=rng, evaluator=evaluator
        ) -> list[Outcome]:
            with lock:
                outcomes, delay = evaluator.evaluate(plans, best), rng.random() / 10
            time.sleep(delay)
            return outcomes

        path = tmp_path / f"{seed}.jsonl"
        with ThreadPoolExecutor(2) as executor:
            pool = WorkerPool(lambda executor=executor, late=late: (executor, late, ()))
            assert run(two, path, pool) == wanted
        recorded = [json.loads(line)["candidate"] for line in path.read_text().splitlines()[1:]]
        orders.append(recorded)
    assert any(order != sorted(order) for order in orders)
    assert any("measured" in line for line in wanted)


def test_two_worker_processes_reject_the_same(setup: SearchSetup, tmp_path: Path) -> None:
    two = replace(setup, settings=replace(setup.settings, workers=2))
    assert run(two, tmp_path / "two.jsonl", two.pool()) == run(two, tmp_path / "one.jsonl")


def test_the_command_says_how_many(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    args = ("--candidates", 12, "--explorer", "random", "--val-images", 60, "--batch-size", 16)
    said = legr("learn", weights, *NET, *args, "--steps", 1, "--out", out, "--json")
    found = json.loads(said)
    lines = (tmp_path / "r.history.jsonl").read_text().splitlines()[1:]
    assert any('"measured"' in line for line in lines)
    assert "measured" not in found["best"]
    assert len(found["best"]["divergences"]) == len(found["best"]["each"]) == 3


def test_a_network_whose_dense_rivals_are_no_numbers_is_no_reason(setup: SearchSetup) -> None:
    """A best candidate with infinite divergences rejects nobody."""
    evaluator = CandidateEvaluator(setup.analysis.units, setup.protocol)
    kept = setup.analysis.units.without_empty_tensors(np.ones(setup.analysis.units.count, bool))
    found = evaluator.evaluate((kept, kept, kept), [np.inf, np.inf, np.inf])
    assert len(found) == 3
    assert len(evaluator.evaluate((kept, kept, kept), None)) == 3


def test_what_was_rejected_never_ranks_above_the_best() -> None:
    """Better where there is much divergence, worse where there is little: by the log, worse.

    The mean and the score could prefer it, so they reject nobody.
    """
    best, found = [10.0, 0.1, 0.1], [5.0, 0.5]
    assert excess(found, best) == pytest.approx((5.02 / 10.02 * 0.52 / 0.12) ** 0.5)
    scores = [Score(value, 1.0, 9, {"accuracy": value}) for value in (0.9, 0.8, 0.1)]
    lines = [
        mean_outcome(
            [Outcome(one, 1.0, 0.5, 0.5, d) for one, d in zip(scores, each, strict=False)], best
        )
        for each in (best, found)
    ]
    assert "measured" not in lines[0]
    assert lines[1]["measured"] == 2
    assert fitness_of(lines[1], settings_of()) < fitness_of(lines[0], settings_of())
    for objective in ("mean", "score"):
        with pytest.raises(SettingError, match="--reject-above compares logarithms"):
            settings_of(objective=objective)
        assert settings_of(objective=objective, reject_above=0.0).reject_above == 0
        assert search_settings("repair", objective=objective).reject_above == 0
    assert search_settings("repair").reject_above > 1


@pytest.mark.parametrize("factor", [1.0, 0.5, -2.0, float("nan"), float("inf")])
def test_factors_that_make_no_sense(factor: float) -> None:
    with pytest.raises(SettingError, match="--reject-above must be over 1, or 0 to measure all"):
        Search(reject_above=factor)
