"""ResNet-50 to 20, 30, … 80 % of its FLOPs: legr beside Torch-Pruning, in one run.

`pip install torch-pruning && python benchmarks/prune.py` prints the table of docs/results.md:
seconds of each of our stages, the same job with Torch-Pruning as one would use it (prune in small
steps, count FLOPs, stop at each target), how close both land, and time and peak memory of the
whole command `legr prune random:resnet50 --flops 0.2:0.8:0.1`.
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

import torch

from legr_cli.channels import apply, couple
from legr_cli.cost import count_flops, price
from legr_cli.cut import arrange, cut
from legr_cli.models.kept import kept_channels
from legr_cli.models.network import Network, open_network, write_network
from legr_cli.ranking import filters, identity, importance
from legr_cli.settings import Align

SHARES = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def timed(job: Callable[[], object]) -> tuple[float, object]:
    """Seconds and result of a job."""
    start = time.perf_counter()
    result = job()
    return time.perf_counter() - start, result


def ours(network: Network, folder: Path) -> tuple[float, dict[float, float]]:
    """Our stages, one by one; all seconds and the share reached at each target."""
    model, shape = network.model, network.input_shape
    traced, units = timed(lambda: couple(model, shape))
    priced, cost = timed(lambda: price(units))
    normed, analysis = timed(lambda: filters(units))
    decisions, cuts, reached = [], [], {}
    dense = cost.total(cost.flops, cost.sizes)
    for share in SHARES:

        def decide(share: float = share) -> object:
            scores = importance(analysis, identity(analysis))
            blocks = arrange(units, cost, scores, 0.1, Align())
            return blocks.kept(cut(cost, blocks, cost.flops, share), cost)

        seconds, kept = timed(decide)
        decisions.append(seconds)

        def write(kept: object = kept, share: float = share) -> object:
            smaller = apply(units, kept)
            done = Network(smaller, network.arch, shape, kept_channels(units, kept))
            write_network(done, folder / f"{share}.safetensors")
            return smaller

        seconds, smaller = timed(write)
        cuts.append(seconds)
        reached[share] = count_flops(smaller, shape) / dense
    print(f"trace + couple {traced:.2f} s, cost model {priced:.2f} s, filter norms {normed:.2f} s")
    print(f"decision (importance + cut), median {statistics.median(decisions) * 1e3:.1f} ms")
    print(f"surgery + save, median {statistics.median(cuts):.2f} s, most {max(cuts):.2f} s")
    return traced + priced + normed + sum(decisions) + sum(cuts), reached


def torch_pruning(
    network: Network, folder: Path, steps: int = 100
) -> tuple[float, dict[float, float]]:
    """The same seven networks with Torch-Pruning: global L2 norm, small steps down to 20 %."""
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
    base, _ = tp.utils.count_ops_and_params(model, example)
    waiting = sorted(SHARES, reverse=True)
    for _ in range(steps):
        pruner.step()
        macs, _ = tp.utils.count_ops_and_params(model, example)
        while waiting and macs <= waiting[0] * base:
            share = waiting.pop(0)
            torch.save(model, folder / f"tp-{share}.pth")
            seconds, flops = timed(lambda: count_flops(model, network.input_shape))
            counting += seconds  # our own count, for the comparison only
            reached[share] = flops / dense
        if not waiting:
            break
    return time.perf_counter() - start - counting, reached


def command(*args: str) -> tuple[float, float]:
    """Seconds and peak memory (MB) of a `legr` command, imports and all."""
    code = (  # in a small process of its own: a child's peak starts at its parent's size
        "import resource, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=-3, stderr=-3)\n"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024\n"
        "print(time.perf_counter() - start, peak)\n"
    )
    whole = [sys.executable, "-c", code, sys.executable, "-m", "legr_cli", *args]
    seconds, peak = subprocess.run(whole, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), float(peak)


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    network = open_network("random:resnet50")
    network.model(torch.zeros(1, 3, 224, 224))  # the first run of a process is slow
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seconds, reached = ours(network, folder)
        peer_seconds, peer_reached = torch_pruning(network, folder)
        print("target   legr      Torch-Pruning")
        for share in SHARES:
            print(f"{share:.0%}      {reached[share]:.3%}   {peer_reached[share]:.3%}")
        print(
            f"seconds  {seconds:.1f}      {peer_seconds:.1f}   ratio {peer_seconds / seconds:.1f}"
        )
        for shares in ("0.2:0.8:0.1", "0.2,0.3"):
            args = ("prune", "random:resnet50", "--flops", shares, "--out", str(folder / shares))
            effort, memory = command(*args)
            print(f"legr prune random:resnet50 --flops {shares}: {effort:.1f} s, {memory:.0f} MB")
        for args in (("--help",), ("prune", "--help")):
            effort = statistics.median(command(*args)[0] for _ in range(7))
            print(f"legr {' '.join(args)}: {effort:.2f} s")


if __name__ == "__main__":
    main()
