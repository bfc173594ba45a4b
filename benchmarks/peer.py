"""Torch-Pruning beside legr: ResNet-20 on CIFAR-10 at one budget, tuned alike.

    pip install torch-pruning
    python benchmarks/peer.py resnet20-cifar10.th cifar10:DIR OUT [SHARE] [SEED]

Torch-Pruning 1.6 fails on option-A shortcuts, which subsample and pad with zeros. So each of them
is written as a fixed 1×1 convolution, which gives the same outputs; FLOPs count these convolutions.
Its global group norm and its Taylor importance remove channels in small steps until the FLOPs, by
fvcore, are at most SHARE. The networks are tuned for one epoch with the dense network as teacher:
as they were cut (recipes `quick` and `repaired`), and repaired by legr (recipe `repaired`), which
finds the channels that Torch-Pruning kept and checks that its own network gives the same outputs.
Every result is a line of OUT, in JSON; results that are there are not repeated.
"""

import copy
import json
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_pruning as tp
from torch import Tensor, nn

import legr_cli
from legr_cli.channels import Units, apply
from legr_cli.channels.norms import norm_behind
from legr_cli.channels.units import Kept
from legr_cli.cost import count_flops
from legr_cli.data.batches import Serving, in_order
from legr_cli.data.dataset import Data, open_data
from legr_cli.data.feed import parse_statistics
from legr_cli.models.cifar import CifarResNet
from legr_cli.models.kept import kept_channels
from legr_cli.models.network import as_network
from legr_cli.pruning import analyze
from legr_cli.repairs.pictures import training_pictures
from legr_cli.repairs.repair import repair_network
from legr_cli.settings import Repair
from legr_cli.training.recipes import settings_of

SHAPE, STEPS, IMAGES = (3, 32, 32), 400, 512


class Shortcut(nn.Module):
    """A ResNet block whose option-A shortcut is a fixed 1×1 convolution."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.conv1, self.bn1, self.conv2, self.bn2 = block.conv1, block.bn1, block.conv2, block.bn2
        into, out = block.conv1.in_channels, block.conv1.out_channels
        self.shortcut = nn.Conv2d(into, out, 1, block.stride, bias=False)
        with torch.no_grad():
            padded = F.pad(torch.eye(into)[:, :, None, None], block.padding[:4])
            before = block.padding[4]
            self.shortcut.weight.zero_()
            self.shortcut.weight[before : before + into] = padded

    def forward(self, x: Tensor) -> Tensor:
        """As in the original block."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def with_convolutions(model: nn.Module) -> nn.Module:
    """The same network without padding shortcuts."""
    weights, model = model.state_dict(), CifarResNet(20)
    model.load_state_dict(weights)
    for stage in (model.layer2, model.layer3):
        stage[0] = Shortcut(stage[0])
    return model.eval()


def prune(dense: nn.Module, criterion: str, share: float, data: Data, seed: int) -> nn.Module:
    """Torch-Pruning's network at a share of the FLOPs."""
    model = copy.deepcopy(dense)
    budget = share * count_flops(dense, SHAPE)
    importance = {
        "group norm": partial(tp.importance.GroupMagnitudeImportance, p=2),
        "Taylor": tp.importance.GroupTaylorImportance,
    }[criterion]()
    pruner = tp.pruner.BasePruner(
        model,
        torch.randn(1, *SHAPE),
        importance,
        global_pruning=True,
        pruning_ratio=1.0,
        max_pruning_ratio=0.9,  # a tenth of every layer stays, as in legr
        iterative_steps=STEPS,
        ignored_layers=[model.linear],
    )
    rows = np.random.default_rng(seed).permutation(len(data.train))[:IMAGES]
    batches = list(in_order(data.train.pick(rows), Serving(data.feed, 128, torch.device("cpu"))))
    while count_flops(model, SHAPE) > budget:
        if criterion == "Taylor":
            model.zero_grad()
            for images, labels in batches:
                F.cross_entropy(model(images.contiguous()), labels).backward()
        pruner.step()
    model.zero_grad()
    return model.eval()


def kept_by(units: Units, pruned: nn.Module) -> Kept:
    """The units that a network pruned elsewhere has kept: its norms are rows of the dense ones."""
    kept = np.ones(units.count, bool)
    dense = dict(units.source.model.named_modules())
    for name, layer in units.flow.layers.items():
        norm = norm_behind(units.flow, name)
        if norm is None:
            continue
        [place] = [other for other, module in dense.items() if module is norm]
        rows, left = (
            torch.stack([m.weight, m.bias, m.running_mean, m.running_var], 1).detach()
            for m in (norm, pruned.get_submodule(place))
        )
        found = (rows[:, None] == left[None]).all(2)
        assert found.any(0).all(), f"{place} was changed"
        unit = units.unit_of(layer.out)
        gone = unit[(~found.any(1)).numpy() & (unit >= 0)]
        kept[gone] = False
    return kept


def repaired(dense: nn.Module, pruned: nn.Module, data: Data, seed: int) -> nn.Module:
    """legr's repair of the channels that another tool kept."""
    analysis = analyze(as_network(dense, SHAPE))
    kept = kept_by(analysis.units, pruned)
    smaller = apply(analysis.units, kept)
    images = torch.randn(4, *SHAPE)
    difference = float((smaller(images) - pruned(images)).abs().max())
    assert difference < 1e-4, f"the networks differ by {difference}"
    notes = {"dense_sha256": analysis.sha256}
    network = as_network(dense, SHAPE)
    network = replace(
        network, model=smaller, kept=kept_channels(analysis.units, kept, None), notes=notes
    )
    settings = Repair(images=IMAGES, seed=seed)
    result = repair_network(
        network, as_network(dense, SHAPE), lambda n: training_pictures(n, data, settings), settings
    )
    return result.network.model


def accuracy(model: nn.Module, spec: str) -> float:
    """Accuracy on the test images."""
    return legr_cli.evaluate(model, spec, normalize="imagenet", input_shape=SHAPE).accuracy


def tuned(model: nn.Module, dense: nn.Module, spec: str, recipe: str, seed: int) -> float:
    """Test accuracy after one epoch with the dense network as teacher."""
    better = legr_cli.finetune(
        model,
        spec,
        settings=settings_of(recipe, epochs=1, amp=True, seed=seed),
        teacher=dense,
        normalize="imagenet",
        input_shape=SHAPE,
    )
    return accuracy(better, spec)


def main(checkpoint: str, spec: str, out: str, share: str = "0.5", seed: str = "0") -> None:
    """Measure both criteria."""
    path, number = Path(out), int(seed)
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    dense = with_convolutions(legr_cli.load(checkpoint, arch="resnet20"))
    data = open_data(spec, SHAPE, seed=number, statistics=parse_statistics("imagenet"))
    for criterion in ("group norm", "Taylor"):
        start = time.perf_counter()
        cut = prune(dense, criterion, float(share), data, number)
        seconds = time.perf_counter() - start
        rest: dict[str, Any] = {"criterion": criterion, "seed": number, "pruning_s": seconds}
        rest["flops"] = count_flops(cut, SHAPE) / count_flops(dense, SHAPE)
        for start_from in ("cut", "repaired"):
            for recipe in ("quick", "repaired")[start_from == "repaired" :]:
                key = {"criterion": criterion, "seed": number, "from": start_from, "recipe": recipe}
                if any(key.items() <= line.items() for line in done):
                    continue
                model = cut if start_from == "cut" else repaired(dense, cut, data, number)
                line = {**rest, **key, "before": accuracy(model, spec)}
                line["after"] = tuned(model, dense, spec, recipe, number)
                with path.open("a") as file:
                    print(json.dumps(line), file=file)
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
