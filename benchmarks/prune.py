"""Prune ResNet-50 to 20, 30, … 80 % of its FLOPs with legr and with Torch-Pruning.

    pip install torch-pruning && python benchmarks/prune.py

prints the seconds of each stage of legr; the seconds of Torch-Pruning, used in its usual way (prune
in small steps, count FLOPs, stop at each target); how close both come to the targets; and the time
and peak memory of the whole command `legr prune random:resnet50 --flops 0.2:0.8:0.1`.
"""

import copy
import logging
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn

from legr_cli.channels import apply, couple
from legr_cli.channels.units import Kept
from legr_cli.cost import count_flops, price
from legr_cli.cut import arrange, cut
from legr_cli.metrics.filters import collect_filters
from legr_cli.models.kept import kept_channels
from legr_cli.models.network import Network, open_network, write_network
from legr_cli.ranking import identity, importance
from legr_cli.settings import Align

SHARES = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


T = TypeVar("T")


def timed(job: Callable[[], T]) -> tuple[float, T]:
    """Run a job; return its seconds and its result."""
    start = time.perf_counter()
    result = job()
    return time.perf_counter() - start, result


def with_legr(network: Network, folder: Path) -> tuple[float, dict[float, float]]:
    """Prune with legr, stage by stage; return total seconds and the share reached per target."""
    model, shape = network.model, network.input_shape
    couple_s, units = timed(lambda: couple(model, shape))
    price_s, cost = timed(lambda: price(units))
    norms_s, filters = timed(lambda: collect_filters(units))
    cut_s, write_s, reached = [], [], {}
    dense = cost.total(cost.flops, cost.sizes)
    for share in SHARES:

        def decide(share: float = share) -> Kept:
            scores = importance(filters, identity(filters))
            blocks = arrange(units, cost, scores, 0.1, Align())
            return blocks.kept(cut(cost, blocks, cost.flops, share), cost)

        seconds, kept = timed(decide)
        cut_s.append(seconds)

        def write(kept: Kept = kept, share: float = share) -> nn.Module:
            smaller = apply(units, kept)
            pruned = Network(smaller, network.arch, shape, kept_channels(units, kept))
            write_network(pruned, folder / f"{share}.safetensors")
            return smaller

        seconds, smaller = timed(write)
        write_s.append(seconds)
        reached[share] = count_flops(smaller, shape) / dense
    print(
        f"trace + couple {couple_s:.2f} s, cost model {price_s:.2f} s, filter norms {norms_s:.2f} s"
    )
    print(f"importance + cut, median {statistics.median(cut_s) * 1e3:.1f} ms")
    print(f"surgery + save, median {statistics.median(write_s):.2f} s, most {max(write_s):.2f} s")
    return couple_s + price_s + norms_s + sum(cut_s) + sum(write_s), reached


def with_torch_pruning(
    network: Network, folder: Path, steps: int = 100
) -> tuple[float, dict[float, float]]:
    """The same with Torch-Pruning: global L2 norm, small steps down to the lowest target."""
    import torch_pruning as tp

    example = torch.zeros(1, *network.input_shape)
    dense = count_flops(network.model, network.input_shape)
    reached, start, counting = {}, time.perf_counter(), 0.0
    model = copy.deepcopy(network.model)
    pruner = tp.pruner.MagnitudePruner(
        model,
        example,
        importance=tp.importance.MagnitudeImportance(p=2),
        global_pruning=True,
        pruning_ratio=0.9,
        max_pruning_ratio=0.9,
        iterative_steps=steps,
        ignored_layers=[model.fc],
    )
    dense_macs, _ = tp.utils.count_ops_and_params(model, example)
    remaining = sorted(SHARES, reverse=True)
    for _ in range(steps):
        pruner.step()
        macs, _ = tp.utils.count_ops_and_params(model, example)
        while remaining and macs <= remaining[0] * dense_macs:
            share = remaining.pop(0)
            torch.save(model, folder / f"tp-{share}.pth")
            seconds, flops = timed(lambda: count_flops(model, network.input_shape))
            counting += seconds  # only for the comparison, so not charged to Torch-Pruning
            reached[share] = flops / dense
        if not remaining:
            break
    return time.perf_counter() - start - counting, reached


def command(*args: str) -> tuple[float, float]:
    """Run a `legr` command in a new process; return its seconds and peak memory in MB."""
    code = (  # started by a small process, because a child's peak includes its parent's size
        "import resource, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=-3, stderr=-3)\n"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024\n"
        "print(time.perf_counter() - start, peak)\n"
    )
    line = [sys.executable, "-c", code, sys.executable, "-m", "legr_cli", *args]
    seconds, peak = subprocess.run(line, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(peak)


def main() -> None:
    """Print all results."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    network = open_network("random:resnet50")
    network.model(torch.zeros(1, 3, 224, 224))  # warm up: the first run of a process is slow
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds, reached = with_legr(network, folder)
        peer_seconds, peer_reached = with_torch_pruning(network, folder)
        print("target   legr      Torch-Pruning")
        for share in SHARES:
            print(f"{share:.0%}      {reached[share]:.3%}   {peer_reached[share]:.3%}")
        print(
            f"seconds  {seconds:.1f}      {peer_seconds:.1f}   ratio {peer_seconds / seconds:.1f}"
        )
        for shares in ("0.2:0.8:0.1", "0.2,0.3"):
            args = ("prune", "random:resnet50", "--flops", shares, "--out", str(folder / shares))
            seconds, memory = command(*args)
            print(f"legr prune random:resnet50 --flops {shares}: {seconds:.1f} s, {memory:.0f} MB")
        for args in (("--help",), ("prune", "--help")):
            seconds = statistics.median(command(*args)[0] for _ in range(7))
            print(f"legr {' '.join(args)}: {seconds:.2f} s")


if __name__ == "__main__":
    main()
