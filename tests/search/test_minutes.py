"""`--minutes`: the first three candidates say how many there will be."""

import json
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import nets
import numpy as np
import pytest

from legr_cli.errors import SearchError, SettingError
from legr_cli.journal import journal
from legr_cli.models.network import Network
from legr_cli.models.registry import Arch
from legr_cli.pruning import Analysis, analyze
from legr_cli.search.evaluator import Outcome, Plans
from legr_cli.search.explorers import EXPLORERS
from legr_cli.search.fitness import search_settings
from legr_cli.search.history import HISTORY, PRICED
from legr_cli.search.run import SearchProgress, search
from legr_cli.search.workers import Evaluate, InProcess, WorkerPool
from legr_cli.settings import Search
from legr_cli.training.scores import Score

SETTINGS = search_settings(
    "repair", explorer="evolution", population=6, sample=3, flops=(0.5,), minutes=0.1
)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyze(Network(nets.make("residual"), Arch("tiny"), nets.INPUT))


def half_a_second(cuts: Plans, _: Sequence[float] | None = None) -> list[Outcome]:
    """What the clock would say is given, so that 0.1 minutes are 12 candidates."""
    [kept] = cuts
    noise = np.random.default_rng(np.packbits(kept).tolist()).random()
    return [Outcome(Score(0.5, 1.0, 10, {"accuracy": 0.5}), 0.5, 0.2, 0.2, divergence=noise)]


def run(
    analysis: Analysis,
    path: Path,
    settings: Search = SETTINGS,
    resume: bool = False,
    call: Evaluate = half_a_second,
    executor: Executor | None = None,
) -> tuple[list[dict], list[SearchProgress]]:
    """The lines as they were written, without the time to think, and the progress."""
    pool = WorkerPool(lambda: (executor or InProcess(), call, ()))
    strategy, seen = EXPLORERS[settings.explorer](analysis, settings), list[SearchProgress]()
    header = {"settings": {"minutes": settings.minutes}}
    with journal(path, HISTORY, header, resume) as book:
        search(analysis, settings, strategy, pool, book, seen.append, lambda _: None)
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    return [{k: v for k, v in line.items() if k != "think_seconds"} for line in lines], seen


@pytest.mark.parametrize(
    ("minutes", "workers", "count"), [(0.1, 1, 12), (0.1, 2, 24), (0.01, 1, 3)]
)
def test_the_number_is_recorded_once_the_price_is_known(
    minutes: float, workers: int, count: int, analysis: Analysis, tmp_path: Path
) -> None:
    """60 · minutes · workers / 0.5 s; at least the three that say so."""
    settings = replace(SETTINGS, minutes=minutes, workers=workers)
    lines, seen = run(analysis, tmp_path / "h.jsonl", settings)
    assert [line["candidate"] for line in lines] == list(range(count))
    assert [line.get("planned") for line in lines] == [
        count if number == PRICED - 1 else None for number in range(count)
    ]
    totals = [state.total for state in seen]
    assert totals == [None] * 2 + [count] * (count - 2)
    assert [state.done for state in seen] == list(range(1, count + 1))


def test_a_finished_search_is_not_continued(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    run(analysis, path)
    whole = path.read_bytes()

    def never(cuts: Plans, _: object) -> list[Outcome]:
        raise AssertionError("nothing is left to try")

    run(analysis, path, resume=True, call=never)
    assert path.read_bytes() == whole


def test_a_killed_search_ends_at_the_same_number(analysis: Analysis, tmp_path: Path) -> None:
    """Although the rest takes ten times as long; killed before the third, the price is its own."""
    path = tmp_path / "h.jsonl"
    lines, _ = run(analysis, path)
    whole = path.read_bytes().splitlines(keepends=True)

    def slower(cuts: Plans, best: Sequence[float] | None) -> list[Outcome]:
        return [replace(one, seconds=5.0) for one in half_a_second(cuts, best)]

    for kept in (3, 4, 9):
        path.write_bytes(b"".join(whole[: 1 + kept]))
        found, _ = run(analysis, path, resume=True, call=slower)
        assert len(found) == 12
        assert [line["alpha"] for line in found] == [line["alpha"] for line in lines]
    path.write_bytes(b"".join(whole[:3]))
    found, _ = run(analysis, path, resume=True, call=slower)
    assert found[2]["planned"] == len(found) == 3  # (0.5 + 0.5 + 5) / 3 is 2 s each


def test_a_history_that_does_not_say_how_many_is_damaged(
    analysis: Analysis, tmp_path: Path
) -> None:
    path = tmp_path / "h.jsonl"
    run(analysis, path)
    text = path.read_text()
    for wrong in ('"planned": 2', '"planned": null', '"planned": 12.5', '"plans": 12'):
        path.write_text(text.replace('"planned": 12', wrong))
        with pytest.raises(SearchError, match="line 4 is damaged"):
            run(analysis, path, resume=True)


def test_the_order_of_completion_does_not_matter(analysis: Analysis, tmp_path: Path) -> None:
    """Whether the third candidate ends before or after the first, later ones are the same."""
    settings = replace(SETTINGS, workers=3, sample=2, population=2)
    found = []
    for first in (0, 2):
        gates = [threading.Event() for _ in range(3)]
        gates[first].set()
        calls, lock = [0], threading.Lock()

        def held(cuts: Plans, best: object, gates=gates, calls=calls, lock=lock) -> list[Outcome]:
            with lock:
                number, calls[0] = calls[0], calls[0] + 1
            if number < 3:
                gates[number].wait(10)
                threading.Timer(0.05, gates[{0: 1, 1: 2, 2: 0}[number]].set).start()
            return half_a_second(cuts)

        with ThreadPoolExecutor(3) as executor:
            path = tmp_path / f"{first}.jsonl"
            lines, _ = run(analysis, path, settings, call=held, executor=executor)
        lines.sort(key=lambda line: line["candidate"])
        found.append([(line["parent"], line["alpha"], line["kappa"]) for line in lines])
    assert found[0] == found[1]


def test_settings_of_minutes() -> None:
    with pytest.raises(SettingError, match="--minutes must be at least"):
        Search(minutes=0.0)
    with pytest.raises(SettingError, match="--minutes must be at least"):
        Search(minutes=float("nan"))
    with pytest.raises(SettingError, match="--sigma-end needs --candidates: pass it instead of"):
        Search(minutes=1.0, sigma_end=0.5)
    assert Search(minutes=1.0, sigma=0.5, sigma_end=0.5).minutes == 1
