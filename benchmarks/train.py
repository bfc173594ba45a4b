"""Images a second: legr's training beside a bare loop on one batch, and pruned beside dense.

    python benchmarks/train.py resnet56-cifar10.th --data cifar10:DIR [--align auto --ranking FILE]

The loops take turns, a few steps each, so that a ratio holds on a noisy machine.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import legr_cli
from legr_cli.data.dataset import Data, open_data
from legr_cli.models.network import open_network
from legr_cli.training.devices import choose
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.recipes import settings_of
from legr_cli.training.run import Run


def bare(model: nn.Module, device: torch.device, batch: int, steps: int) -> Callable[[], float]:
    """Images a second of forward, backward and step on one batch that is always the same."""
    model = model.train().requires_grad_(True).to(device, memory_format=torch.channels_last)
    options = {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": True}
    optimizer = torch.optim.SGD(model.parameters(), 0.01, **options)
    images = torch.randn(batch, 3, 32, 32, device=device)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device=device)

    def run() -> float:
        begun = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return steps * batch / (time.perf_counter() - begun)

    return run


def ours(model: nn.Module, data: Data, device: torch.device, rounds: int) -> Callable[[], float]:
    """Images a second of an epoch of legr's, with data, rate and tally."""
    settings = settings_of("cifar", epochs=rounds + 1)
    run = Run(model, data, settings, ProcessGroup(device))
    return lambda: run.train_epoch(lambda _: None)["images_per_second"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint")
    parser.add_argument("--data", required=True)
    parser.add_argument("--arch", default="resnet56")
    parser.add_argument("--flops", type=float, default=0.47)
    parser.add_argument("--align", default="auto")
    parser.add_argument("--ranking", help="a ranking.json, or uniform")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device = choose(args.device)
    network = open_network(args.checkpoint, args.arch)
    cut = {"flops": args.flops, "align": args.align, "ranking": args.ranking}
    smaller = legr_cli.prune(network.model, network.input_shape, **cut)
    whole = open_data(args.data, network.input_shape, seed=0)
    rows = np.arange(args.steps * 128)
    data = replace(whole, train=whole.train.pick(rows), validation=whole.validation.pick(rows[:8]))
    again = open_network(args.checkpoint, args.arch).model
    small_again = legr_cli.prune(again, network.input_shape, **cut)
    loops = {
        "dense, bare loop": bare(again, device, 128, args.steps),
        "dense, legr": ours(network.model, data, device, args.rounds),
        "pruned, bare loop": bare(small_again, device, 128, args.steps),
        "pruned, legr": ours(smaller, data, device, args.rounds),
    }
    found: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(args.rounds + 1):
        for name, loop in loops.items():
            found[name].append(loop())
    found = {name: speeds[1:] for name, speeds in found.items()}  # the first warms up
    print(f"{args.arch} on {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for name, speeds in found.items():
        print(f"{name:20} {statistics.median(speeds):8.1f} images/s")

    def ratio(a: str, b: str) -> float:
        return statistics.median(x / y for x, y in zip(found[a], found[b], strict=True))

    print(f"legr / bare, dense   {ratio('dense, legr', 'dense, bare loop'):.3f}")
    print(f"legr / bare, pruned  {ratio('pruned, legr', 'pruned, bare loop'):.3f}")
    print(f"pruned / dense       {ratio('pruned, legr', 'dense, legr'):.2f} ")


if __name__ == "__main__":
    main()
