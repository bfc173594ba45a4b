"""What does a search cost? Overhead, workers, fitness, data loading and memory.

    python benchmarks/learn.py resnet56-cifar10.th resnet56 cifar10:DIR

Images are normalized with ImageNet statistics. Every ratio compares two things that were measured
in the same run.
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
from legr_cli.data.dataset import open_data
from legr_cli.data.feed import parse_statistics
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


def run(setup: SearchSetup) -> list[tuple[float, dict]]:
    """Run a search; return when each candidate was finished, and its line in the journal."""
    finished: list[tuple[float, dict]] = []

    def record(progress: SearchProgress) -> None:
        finished.append((time.perf_counter(), progress.latest))

    with (
        tempfile.TemporaryDirectory() as folder,
        journal(Path(folder, "h.jsonl"), HISTORY, setup.header, resume=False) as book,
    ):
        pool = setup.pool()
        strategy = setup.strategy
        search(setup.analysis, setup.settings, strategy, pool, book, record, print)
        pool.shutdown()
    return finished


def overhead(setup: SearchSetup) -> None:
    """Print the share of a candidate's time that is spent neither adapting nor measuring it."""
    begin = time.perf_counter()
    finished = run(setup)
    total = finished[-1][0] - begin
    useful = sum(
        line.get("adapt_seconds", 0) + line.get("measure_seconds", 0) for _, line in finished
    )
    startup = finished[0][0] - begin - finished[0][1]["seconds"]
    each = (total - startup) / len(finished)
    share = 1 - useful / (total - startup)
    print(f"overhead: {share:.2%} of {each:.2f} s per candidate (startup: {startup:.2f} s)")


def workers(setup: SearchSetup, rounds: int = 2) -> None:
    """Print candidates per hour with one process on all cores, and with one process per core."""
    cores = os.cpu_count() or 1
    rates: dict[int, list[float]] = {1: [], cores: []}
    for _ in range(rounds):
        for count in rates:
            finished = run(replace(setup, settings=replace(setup.settings, workers=count)))
            times = [at for at, line in finished if not line["cached"]]
            # from the end of the first batch of candidates, so that startup is left out
            rates[count].append((len(times) - count) / (times[-1] - times[count - 1]) * 3600)
    for count, hourly in rates.items():
        print(f"{count} workers: {', '.join(f'{rate:.0f}' for rate in hourly)} candidates per hour")
    print(f"ratio: {median(rates[cores]) / median(rates[1]):.2f}")


def fitness(setup: SearchSetup) -> None:
    """Print the seconds per candidate for each fitness."""
    analysis, settings = setup.analysis, setup.settings
    [kept] = plans(analysis, identity(analysis.filters), settings.cut)
    seconds = {}
    for name in FITNESS:
        chosen = with_steps(replace(settings, fitness=name, steps=None))
        protocol = replace(setup, settings=chosen).protocol
        [outcome] = CandidateEvaluator(analysis.units, protocol).evaluate((kept,))
        seconds[name] = outcome.seconds
        print(f"--fitness {name}: {outcome.seconds:.2f} s, accuracy {outcome.accuracy:.2%}")
    print(f"finetune / bn: {seconds['finetune'] / seconds['bn']:.1f}")


def data_loading(setup: SearchSetup, steps: int = 8) -> None:
    """Print the share of a dense training step that is spent on preparing its batch."""
    model = setup.analysis.network.model.to(memory_format=torch.channels_last).train()
    optimizer = sgd(model, 0.01)
    part, feed, generator = setup.data.train, setup.data.feed, torch.Generator()
    batches = endless(lambda: shuffled(part, Serving(feed, 128, CPU), generator))
    loading, training = [], []
    for _ in range(steps):
        start = time.perf_counter()
        images, labels = next(batches)
        ready = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        loading.append(ready - start)
        training.append(time.perf_counter() - ready)
    model.eval()
    batch, step = median(loading), median(training)
    print(f"batch: {batch * 1e3:.1f} ms, {batch / step:.1%} of a step of {step:.2f} s")


def memory(setup: SearchSetup) -> None:
    """Print the memory of a worker (proportional set size: shared pages are divided up)."""
    analysis = setup.analysis
    [kept] = plans(analysis, identity(analysis.filters), setup.settings.cut)
    pool = processes(setup.job(), 2, 1)
    for future in [pool.submit((kept,)) for _ in range(2)]:
        future.result()
    executor = pool._made[0] if pool._made else None
    for pid in getattr(executor, "_processes", {}):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        sizes = dict(line.split()[:2] for line in rollup.splitlines()[1:])
        proportional, resident = (int(sizes[key]) / 1e6 for key in ("Pss:", "Rss:"))
        print(f"worker: {proportional:.2f} GB, including all shared pages {resident:.2f} GB")
    pool.shutdown()


def main(checkpoint: str, arch: str, data: str) -> None:
    """Run all measurements."""
    analysis = analyze(open_network(checkpoint, arch))
    images = open_data(
        data, analysis.network.input_shape, seed=0, statistics=parse_statistics("imagenet")
    )
    settings = Search(
        flops=(0.2,), candidates=8, population=8, sample=2, steps=20, align=parse_align("auto")
    )
    setup = SearchSetup(analysis, images, settings, "cpu")
    data_loading(setup)
    overhead(setup)
    quick = replace(settings, fitness="bn", steps=8, candidates=14)
    workers(replace(setup, settings=quick))
    memory(replace(setup, settings=replace(settings, steps=2)))
    fitness(setup)


if __name__ == "__main__":
    main(*sys.argv[1:])
