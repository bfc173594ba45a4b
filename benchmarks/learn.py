"""What a search costs: overhead, workers, kinds of fitness, the data path, memory.

`python benchmarks/learn.py resnet56-cifar10.th resnet56 cifar10:DIR` (ImageNet statistics). Every
figure is a ratio of two things measured in turn in one run.
"""

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

from legr_cli.data.batches import Serving, endless, shuffled
from legr_cli.data.dataset import open_data, parse_statistics
from legr_cli.journal import journal
from legr_cli.models.network import open_network
from legr_cli.pruning import analyze, plans
from legr_cli.ranking import identity
from legr_cli.search.evaluator import CandidateEvaluator
from legr_cli.search.fitness import FITNESS, with_steps
from legr_cli.search.history import HISTORY
from legr_cli.search.run import SearchProgress, search
from legr_cli.search.setup import SearchSetup
from legr_cli.search.workers import processes
from legr_cli.settings import Search, parse_align
from legr_cli.training.loop import sgd

CPU = torch.device("cpu")


def run(session: SearchSetup) -> list[tuple[float, dict]]:
    """A search; the moment at which each candidate was done, and its line."""
    moments: list[tuple[float, dict]] = []

    def note(now: SearchProgress) -> None:
        moments.append((time.perf_counter(), now.latest))

    with (
        tempfile.TemporaryDirectory() as folder,
        journal(Path(folder, "h.jsonl"), HISTORY, session.header, resume=False) as book,
    ):
        pool = session.pool()
        strategy = session.strategy
        search(session.analysis, session.settings, strategy, pool, book, note, print)
        pool.shutdown()
    return moments


def overhead(session: SearchSetup) -> None:
    """Share of a candidate's time that is neither training nor measuring."""
    begin = time.perf_counter()
    moments = run(session)
    whole = moments[-1][0] - begin
    useful = sum(
        line.get("adapt_seconds", 0) + line.get("measure_seconds", 0) for _, line in moments
    )
    start = moments[0][0] - begin - moments[0][1]["seconds"]  # opening the network, once
    each = (whole - start) / len(moments)
    share = 1 - useful / (whole - start)
    print(f"overhead: {share:.2%} of {each:.2f} s a candidate (and {start:.2f} s once)")


def workers(session: SearchSetup, rounds: int = 2) -> None:
    """Candidates an hour of one process with all threads, and of a process for each core."""
    cores = os.cpu_count() or 1
    rates: dict[int, list[float]] = {1: [], cores: []}
    for _ in range(rounds):
        for count in rates:
            moments = run(replace(session, settings=replace(session.settings, workers=count)))
            tried = [at for at, line in moments if not line["cached"]]
            rates[count].append((len(tried) - count) / (tried[-1] - tried[count - 1]) * 3600)
    for count, found in rates.items():
        print(f"{count} workers: {', '.join(f'{rate:.0f}' for rate in found)} candidates an hour")
    print(f"ratio: {median(rates[cores]) / median(rates[1]):.2f}")


def kinds(session: SearchSetup) -> None:
    """Seconds a candidate by kind of fitness."""
    analysis, settings = session.analysis, session.settings
    [kept] = plans(analysis, identity(analysis.filters), settings.cut)
    seconds = {}
    for kind in FITNESS:
        chosen = with_steps(replace(settings, fitness=kind, steps=None))
        protocol = replace(session, settings=chosen).protocol
        [found] = CandidateEvaluator(analysis.units, protocol).evaluate((kept,))
        seconds[kind] = found.seconds
        print(f"--fitness {kind}: {found.seconds:.2f} s, accuracy {found.accuracy:.2%}")
    print(f"finetune / bn: {seconds['finetune'] / seconds['bn']:.1f}")


def data_path(session: SearchSetup, steps: int = 8) -> None:
    """Share of a dense training step that its batch takes."""
    model = session.analysis.network.model.to(memory_format=torch.channels_last).train()
    optimizer = sgd(model, 0.01)
    part, feed, generator = session.data.train, session.data.feed, torch.Generator()
    batches = endless(lambda: shuffled(part, Serving(feed, 128, CPU), generator))
    waits, works = [], []
    for _ in range(steps):
        start = time.perf_counter()
        images, labels = next(batches)
        ready = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        waits.append(ready - start)
        works.append(time.perf_counter() - ready)
    model.eval()
    batch, step = median(waits), median(works)
    print(f"a batch: {batch * 1e3:.1f} ms, {batch / step:.1%} of a step of {step:.2f} s")


def memory(session: SearchSetup) -> None:
    """What one more worker adds (proportional set size, so that shared pages count once)."""
    analysis = session.analysis
    [kept] = plans(analysis, identity(analysis.filters), session.settings.cut)
    pool = processes(session.job(), 2, 1)
    for future in [pool.submit((kept,)) for _ in range(2)]:
        future.result()
    executor = pool._made[0] if pool._made else None
    for pid in getattr(executor, "_processes", {}):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        sizes = dict(line.split()[:2] for line in rollup.splitlines()[1:])
        own, whole = (int(sizes[key]) / 1e6 for key in ("Pss:", "Rss:"))
        print(f"a worker: {own:.2f} GB, with all that it shares {whole:.2f}")
    pool.shutdown()


def main(checkpoint: str, arch: str, data: str) -> None:
    """All of it."""
    analysis = analyze(open_network(checkpoint, arch))
    found = open_data(
        data, analysis.network.input_shape, seed=0, statistics=parse_statistics("imagenet")
    )
    settings = Search(
        flops=(0.2,), candidates=8, population=8, sample=2, steps=20, align=parse_align("auto")
    )
    session = SearchSetup(analysis, found, settings, "cpu")
    data_path(session)
    overhead(session)
    quick = replace(settings, fitness="bn", steps=8, candidates=14)
    workers(replace(session, settings=quick))
    memory(replace(session, settings=replace(settings, steps=2)))
    kinds(session)


if __name__ == "__main__":
    main(*sys.argv[1:])
