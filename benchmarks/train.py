"""How fast is legr's training? Images per second against a bare loop, and pruned against dense.

    python benchmarks/train.py resnet56-cifar10.th --data cifar10:DIR [--align auto --ranking FILE]

The loops take turns of a few steps, so that their ratios hold on a noisy machine.
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


def bare_loop(
    model: nn.Module, device: torch.device, batch: int, steps: int
) -> Callable[[], float]:
    """Return a function that trains on a single fixed batch and returns images per second."""
    model = model.train().requires_grad_(True).to(device, memory_format=torch.channels_last)
    options = {"momentum": 0.9, "weight_decay": 5e-4, "nesterov": True}
    optimizer = torch.optim.SGD(model.parameters(), 0.01, **options)
    images = torch.randn(batch, 3, 32, 32, device=device)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,), device=device)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return steps * batch / (time.perf_counter() - start)

    return run


def legr_epoch(
    model: nn.Module, data: Data, device: torch.device, rounds: int
) -> Callable[[], float]:
    """Return a function that runs one epoch of legr's training and returns images per second."""
    settings = settings_of("cifar", epochs=rounds + 1)
    run = Run(model, data, settings, ProcessGroup(device))
    return lambda: run.train_epoch(lambda _: None)["images_per_second"]


def main() -> None:
    """Print images per second of each loop, and their ratios."""
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
    images = open_data(args.data, network.input_shape, seed=0)
    rows = np.arange(args.steps * 128)
    data = replace(
        images, train=images.train.pick(rows), validation=images.validation.pick(rows[:8])
    )
    dense_copy = open_network(args.checkpoint, args.arch).model
    smaller_copy = legr_cli.prune(dense_copy, network.input_shape, **cut)
    loops = {
        "dense, bare loop": bare_loop(dense_copy, device, 128, args.steps),
        "dense, legr": legr_epoch(network.model, data, device, args.rounds),
        "pruned, bare loop": bare_loop(smaller_copy, device, 128, args.steps),
        "pruned, legr": legr_epoch(smaller, data, device, args.rounds),
    }
    measured: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(args.rounds + 1):
        for name, loop in loops.items():
            measured[name].append(loop())
    speeds = {name: rounds[1:] for name, rounds in measured.items()}  # the first round warms up
    print(f"{args.arch} on {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for name, rounds in speeds.items():
        print(f"{name:20} {statistics.median(rounds):8.1f} images/s")

    def ratio(a: str, b: str) -> float:
        return statistics.median(x / y for x, y in zip(speeds[a], speeds[b], strict=True))

    print(f"legr / bare, dense   {ratio('dense, legr', 'dense, bare loop'):.3f}")
    print(f"legr / bare, pruned  {ratio('pruned, legr', 'pruned, bare loop'):.3f}")
    print(f"pruned / dense       {ratio('pruned, legr', 'dense, legr'):.2f} ")


if __name__ == "__main__":
    main()
