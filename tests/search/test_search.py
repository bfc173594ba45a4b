"""The search around evolution: the window, lost workers, the journal."""

import json
import multiprocessing
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import nets
import numpy as np
import pytest

from legr_cli.errors import OutputError, SearchError
from legr_cli.journal import Journal, journal, read_header
from legr_cli.models.network import Network
from legr_cli.models.registry import Arch
from legr_cli.pruning import Analysis, analyze
from legr_cli.ranking import level
from legr_cli.search.evaluator import Outcome, Plans
from legr_cli.search.explorers import evolution
from legr_cli.search.history import HISTORY
from legr_cli.search.run import SearchResult, search
from legr_cli.search.workers import Evaluate, InProcess, WorkerPool
from legr_cli.settings import Search
from legr_cli.training.scores import Score

SETTINGS = Search(flops=(0.5,), candidates=60, population=16, sample=4, mutate=0.3)
HEADER = {
    "arch": "tiny",
    "input": [3, 16, 16],
    "weights_sha256": "1234",
    "settings": {"sigma": 1.0, "seed": 0, "batch_size": 128},
    "data": {"sha256": "ab", "images": {"train": 9}, "split": {"sha256": "cd"}},
    "statistics": {"mean": [0.5], "std": [0.5]},
}

LINE = {"candidate": 0, "accuracy": 0.5, "loss": 1.0, "cached": False, "flops": 7}


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    net = nets.Residual()
    return analyze(Network(nets.enliven(net), Arch("tiny"), (3, 16, 16)))


def outcome(accuracy: float, loss: float, *seconds: float) -> Outcome:
    return Outcome(Score(accuracy, loss, 10, {"accuracy": accuracy}), *seconds)


def reach(cuts: Plans, _: object = None) -> list[Outcome]:
    """Accuracies that depend on the kept units alone."""
    made = []
    for kept in cuts:
        noise = np.random.default_rng(np.packbits(kept).tolist()).random()
        made.append(outcome(float(kept.mean() / 2 + noise / 10), 1.0, 0.1, 0.05, 0.05))
    return made


def worker_pool(call: Evaluate = reach, executor: Executor | None = None) -> WorkerPool:
    return WorkerPool(lambda: (executor or InProcess(), call, ()))


def run(
    analysis: Analysis, path: Path, workers: WorkerPool, settings: Search = SETTINGS, **kw
) -> SearchResult:
    with journal(path, HISTORY, HEADER, kw.get("resume", False)) as book:
        return search(
            analysis,
            settings,
            evolution(analysis, settings),
            workers,
            book,
            kw.get("watch", lambda _: None),
            lambda _: None,
        )


def rows(found: SearchResult) -> list[tuple[float, float]]:
    return [(row.alpha, row.kappa) for row in found.ranking.rows]


def test_same_answer_whatever_finishes_first(analysis: Analysis, tmp_path: Path) -> None:
    settings = replace(SETTINGS, workers=4)
    answers = []
    for seed in range(3):
        rng, lock, running, most = np.random.default_rng(seed), threading.Lock(), [0], [0]

        def late(
            cuts: Plans, _: object, rng=rng, lock=lock, running=running, most=most
        ) -> list[Outcome]:
            with lock:
                delay = rng.random() / 10
                running[0] += 1
                most[0] = max(most[0], running[0])
            time.sleep(delay)
            with lock:
                running[0] -= 1
            return reach(cuts)

        with ThreadPoolExecutor(4) as executor:
            found = run(analysis, tmp_path / f"{seed}.jsonl", worker_pool(late, executor), settings)
        answers.append(rows(found))
        assert most[0] > 1
    assert answers[0] == answers[1] == answers[2]
    orders = {
        tuple(json.loads(line)["candidate"] for line in path.read_text().splitlines()[1:])
        for path in tmp_path.glob("*.jsonl")
    }
    assert len(orders) > 1  # they were recorded as they finished


def test_a_candidate_sees_only_results_up_to_w_before_it(
    analysis: Analysis, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, workers=5)
    with ThreadPoolExecutor(5) as executor:
        run(analysis, tmp_path / "h.jsonl", worker_pool(reach, executor), settings)
    lines = [json.loads(line) for line in (tmp_path / "h.jsonl").read_text().splitlines()[1:]]
    parents = [(line["candidate"], line["parent"]) for line in lines if line["parent"] is not None]
    assert len(parents) > 30
    assert all(parent <= number - 5 for number, parent in parents)


def test_a_plan_is_not_tried_twice(analysis: Analysis, tmp_path: Path) -> None:
    tried: list[str] = []

    def note(cuts: Plans, _: object) -> list[Outcome]:
        tried.append(str([kept.tolist() for kept in cuts]))
        return reach(cuts)

    found = run(analysis, tmp_path / "h.jsonl", worker_pool(note))
    assert len(tried) == len(set(tried)) == 60 - found.cached
    lines = [json.loads(line) for line in (tmp_path / "h.jsonl").read_text().splitlines()[1:]]
    by_plan: dict[str, float] = {}
    for line in lines:
        assert by_plan.setdefault(line["plan"], line["accuracy"]) == line["accuracy"]
    assert found.best["accuracy"] == max(line["accuracy"] for line in lines)
    assert found.first["candidate"] == 0
    assert set(lines[0]["alpha"]) == {1.0}
    even = level(analysis.filters, analysis.cost.group_of)
    assert (lines[1]["alpha"], lines[1]["kappa"]) == (
        even["alpha"].tolist(),
        even["kappa"].tolist(),
    )


def test_several_shares_count_alike(analysis: Analysis, tmp_path: Path) -> None:
    """A candidate is cut at each share, and its fitness is the mean of what that reached."""
    settings = replace(SETTINGS, flops=(0.5, 0.8), candidates=30)
    seen: list[list[int]] = []

    def note(cuts: Plans, _: object) -> list[Outcome]:
        seen.append([int(kept.sum()) for kept in cuts])
        return [outcome(0.2, 1.0, 0.1, 0.05, 0.05), outcome(0.2 + len(seen) / 100, 3.0, 1, 0.5, 0)]

    found = run(analysis, tmp_path / "h.jsonl", worker_pool(note), settings)
    assert all(smaller < larger for smaller, larger in seen)
    lines = [json.loads(line) for line in (tmp_path / "h.jsonl").read_text().splitlines()[1:]]
    assert lines[0]["each"] == pytest.approx([0.2, 0.21])
    assert lines[0]["accuracy"] == pytest.approx(0.205)
    assert lines[0]["loss"] == 2.0
    assert lines[0]["seconds"] == pytest.approx(1.1)
    assert lines[0]["flops"] <= 0.5 * analysis.flops
    assert found.best == max(lines, key=lambda line: line["accuracy"])


class Mortal(InProcess):
    """An executor that breaks at chosen calls, and stays broken."""

    def __init__(self, calls: list[int], deaths: set[int]) -> None:
        self.calls, self.deaths, self.broken = calls, deaths, False

    def submit(self, fn, /, *args, **kwargs):
        if self.broken:
            raise BrokenExecutor("broken")
        self.calls[0] += 1
        if self.calls[0] in self.deaths:
            self.broken = True

            def dead(*_: object) -> None:
                raise BrokenExecutor("a worker died")

            return super().submit(dead)
        return super().submit(fn, *args, **kwargs)


def test_a_lost_worker_costs_a_retry(analysis: Analysis, tmp_path: Path) -> None:
    plain = run(analysis, tmp_path / "plain.jsonl", worker_pool())
    calls = [0]
    mortal = WorkerPool(lambda: (Mortal(calls, {3, 9, 10, 11}), reach, ()))
    assert rows(run(analysis, tmp_path / "mortal.jsonl", mortal)) == rows(plain)
    assert mortal.generation == 4


def test_a_candidate_that_kills_four_workers_ends_the_search(
    analysis: Analysis, tmp_path: Path
) -> None:
    path, calls = tmp_path / "h.jsonl", [0]
    mortal = WorkerPool(lambda: (Mortal(calls, {5, 6, 7, 8}), reach, ()))
    with pytest.raises(SearchError, match=r"lost its worker 4 times.*--resume"):
        run(analysis, path, mortal)
    before = path.read_text()
    plain = run(analysis, tmp_path / "plain.jsonl", worker_pool())
    assert rows(run(analysis, path, worker_pool(), resume=True)) == rows(plain)
    assert path.read_text().startswith(before)


def test_an_error_of_a_candidate_is_not_hidden(analysis: Analysis, tmp_path: Path) -> None:
    def wrong(cuts: Plans, _: object) -> list[Outcome]:
        raise ZeroDivisionError("of the test")

    with pytest.raises(SearchError, match="candidate 0 failed: ZeroDivisionError: of the test"):
        run(analysis, tmp_path / "h.jsonl", worker_pool(wrong))


def test_a_loss_that_is_no_number_ranks_last(analysis: Analysis, tmp_path: Path) -> None:
    def diverged(cuts: Plans, _: object) -> list[Outcome]:
        return [outcome(0.1, float("nan"), 0.1, 0.1, 0.1)]

    found = run(analysis, tmp_path / "h.jsonl", worker_pool(diverged))
    assert found.best["loss"] is None


def test_resumed_from_every_byte_it_is_the_same(analysis: Analysis, tmp_path: Path) -> None:
    settings = replace(SETTINGS, candidates=12)
    path = tmp_path / "h.jsonl"
    wanted = rows(run(analysis, path, worker_pool(), settings))
    whole = path.read_bytes()
    cuts = {*np.random.default_rng(0).integers(len(whole), size=40).tolist(), 0, len(whole) - 1}
    for cut in sorted(cuts):
        path.write_bytes(whole[:cut])
        assert rows(run(analysis, path, worker_pool(), settings, resume=True)) == wanted
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert sorted(line["candidate"] for line in lines[1:]) == list(range(12))


def test_a_finished_search_is_not_repeated(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    wanted = rows(run(analysis, path, worker_pool()))

    def never(cuts: Plans, _: object) -> list[Outcome]:
        raise AssertionError("nothing is left to try")

    assert rows(run(analysis, path, worker_pool(never), resume=True)) == wanted


def other(**changes: object) -> dict:
    return {**HEADER, **changes}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (other(arch="huge"), "--arch was tiny, is now huge"),
        (other(weights_sha256="99"), "the checkpoint's weights differ"),
        (other(input=[3, 8, 8]), r"--input was \[3, 16, 16\], is now \[3, 8, 8\]"),
        (
            other(settings={"sigma": 0.5, "seed": 0, "batch_size": 64}),
            "--sigma was 1.0, is now 0.5; --batch-size was 128, is now 64",
        ),
        (
            other(data={**HEADER["data"], "split": {"sha256": "ee"}}),
            "the train/validation split differs",
        ),
        (other(data={**HEADER["data"], "sha256": "ee"}), "the data differs"),
        (other(statistics={"mean": [0.4], "std": [0.5]}), "--normalize differs"),
    ],
)
def test_another_search_is_not_resumed(header: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with journal(path, HISTORY, HEADER, resume=False) as book:
        book.add(LINE)
    before = path.read_bytes()
    with pytest.raises(SearchError, match=message), journal(path, HISTORY, header, resume=True):
        pass
    assert path.read_bytes() == before


def test_damage_is_named(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    run(analysis, path, worker_pool(), replace(SETTINGS, candidates=5))
    lines = path.read_text().splitlines(keepends=True)
    wrong = [
        {**json.loads(lines[3]), **change}
        for change in (
            {"accuracy": "x"},
            {"accuracy": float("inf")},
            {"loss": "1"},
            {"candidate": -1},
            {"candidate": True},
            {"cached": None},
            {"flops": []},
        )
    ]
    damages = [(3, "{]\n"), (4, "7\n"), (5, lines[1]), *((4, json.dumps(x) + "\n") for x in wrong)]
    for number, damage in damages:
        path.write_text("".join([*lines[: number - 1], damage, *lines[number:]]))
        with (
            pytest.raises(SearchError, match=f"line {number} is damaged"),
            journal(path, HISTORY, HEADER, True),
        ):
            pass
    for text in ('{"format": "legr-history", "version": 9}\n', "a note of mine", "[1]\n", "{}\n"):
        path.write_text(text)
        with pytest.raises(SearchError, match=r"not a legr-history file|is damaged"):
            read_header(path, HISTORY)


def test_a_changed_history_is_refused(analysis: Analysis, tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    settings = replace(SETTINGS, candidates=5)
    run(analysis, path, worker_pool(), settings)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[3]["alpha"][0] += 0.5
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SearchError, match=r"candidate 2 in the history differs.*--force"):
        run(analysis, path, worker_pool(), settings, resume=True)


def test_two_searches_do_not_share_a_journal(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with journal(path, HISTORY, HEADER, resume=False) as book:
        book.add(LINE)
        with (
            pytest.raises(SearchError, match="another legr learn is writing"),
            journal(path, HISTORY, HEADER, True),
        ):
            pass
    with journal(path, HISTORY, HEADER, resume=True) as again:
        assert isinstance(again, Journal)
        assert list(again.lines) == [0]


def test_a_forked_process_does_not_hold_a_journal(tmp_path: Path) -> None:
    """As loader processes that outlive a killed parent by some seconds would."""
    path = tmp_path / "h.jsonl"
    with journal(path, HISTORY, HEADER, resume=False) as book:
        book.add(LINE)
        context = multiprocessing.get_context("fork")
        alive = context.Event()
        child = context.Process(target=lambda: alive.set() or time.sleep(60))
        child.start()
        assert alive.wait(30)
    try:
        with journal(path, HISTORY, HEADER, resume=True) as again:
            assert list(again.lines) == [0]
    finally:
        child.kill()
        child.join()


def test_a_search_does_not_write_over_another(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with journal(path, HISTORY, HEADER, resume=False) as book:
        book.add(LINE)
    before = path.read_bytes()
    with (
        pytest.raises(OutputError, match="already exists"),
        journal(path, HISTORY, HEADER, resume=False),
    ):
        pass
    assert path.read_bytes() == before
    with journal(path, HISTORY, HEADER, resume=False, force=True) as book:
        assert book.lines == {}


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands for it."""
    code = f"""
import resource, signal
from pathlib import Path
from legr_cli.journal import journal
from legr_cli.search.history import HISTORY
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with journal(Path({str(tmp_path / "h.jsonl")!r}), HISTORY, {HEADER!r}, resume=False) as book:
    for number in range(99):
        book.add(dict({LINE!r}, candidate=number))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "OutputError: cannot write" in done.stderr.splitlines()[-1]
    with journal(tmp_path / "h.jsonl", HISTORY, HEADER, resume=True) as book:
        assert len(book.lines) > 3
