"""What repair is worth: cut, BatchNorm statistics, least squares in steps, and legr repair.

`python benchmarks/repair.py JOURNAL NETWORK…`, each NETWORK as `CHECKPOINT;ARCH;DATA;NORMALIZE`,
for example `resnet56.th;resnet56;cifar10:DIR;imagenet`; four of them in one run. Every network is
cut to three budgets. Prints accuracy on the test images where the data has labels for this network,
else `-`, and the share of held-out images on which the network agrees with the dense one. What is
in JOURNAL is not measured again.
"""

import copy
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import legr_cli
from legr_cli.channels import couple
from legr_cli.errors import DataError, SettingError
from legr_cli.models.card import card_of
from legr_cli.models.kept import kept_units
from legr_cli.models.network import as_network
from legr_cli.progress import silent
from legr_cli.repairs.layers import repair_layers
from legr_cli.repairs.pictures import RepairData, RepairImages, choose_pictures
from legr_cli.repairs.repair import repair_network
from legr_cli.settings import Repair
from legr_cli.training.loop import recalibrate

BUDGETS = (0.8, 0.5, 0.3)
SETTINGS = Repair()


def ways(
    dense: nn.Module, small: nn.Module, given: RepairImages
) -> Iterator[tuple[str, nn.Module]]:
    """The same cut network, treated in five ways."""
    yield "cut", small
    fresh = copy.deepcopy(small)
    recalibrate(fresh, [(batch, batch) for batch in given.fit])
    yield "BatchNorm statistics", fresh
    units = couple(dense, card_of(small).input_shape)
    kept, one_by_one = kept_units(units, card_of(small).kept), copy.deepcopy(small)
    options = {"ridge": SETTINGS.ridge, "seed": SETTINGS.seed, "progress": silent}
    repair_layers(units, kept, one_by_one, given.fit, correct=False, **options)
    yield "layer by layer", one_by_one
    streams = copy.deepcopy(small)
    repair_layers(units, kept, streams, given.fit, refits=0, **options)
    yield "with residual correction", streams
    networks = as_network(small), as_network(dense, card_of(small).input_shape)
    repaired = repair_network(*networks, lambda _: given, SETTINGS).network
    yield "legr repair", repaired.carried()


def measure(model: nn.Module, dense: nn.Module, given: RepairImages, data: str, size: str) -> dict:
    """Accuracy in percent, where there are labels, and agreement with the dense network."""
    with torch.no_grad():
        same = [model(x).argmax(1) == dense(x).argmax(1) for x in given.held_out]
    try:
        accuracy = legr_cli.evaluate(model, data, normalize=size).accuracy
    except (DataError, SettingError):  # no labels
        accuracy = None
    return {"accuracy": accuracy, "agreement": float(torch.cat(same).float().mean())}


def main(journal: str, *networks: str) -> None:
    """One line for each network, budget and way."""
    path = Path(journal)
    lines = path.read_text().splitlines() if path.exists() else []
    done = {tuple(row["key"]): row for row in map(json.loads, lines)}
    print("network", "FLOPs", "way", "accuracy", "agreement", "seconds", sep=" | ")
    for text in networks:
        checkpoint, arch, data, normalize = text.split(";")
        dense = legr_cli.load(checkpoint, arch=arch).float()
        source = RepairData(data=data, settings=SETTINGS, normalize=normalize)
        given = choose_pictures(as_network(dense), source)
        for budget in BUDGETS:
            small = legr_cli.prune(dense, flops=budget, align=1)
            start = time.perf_counter()
            for way, model in ways(dense, small, given):
                key, seconds = (arch, str(budget), way), time.perf_counter() - start
                if key not in done:
                    done[key] = {"key": key, "seconds": round(seconds, 1)}
                    done[key] |= measure(model.eval(), dense, given, data, normalize)
                    with path.open("a") as file:
                        file.write(json.dumps(done[key]) + "\n")
                row, start = done[key], time.perf_counter()
                shown = "-" if row["accuracy"] is None else f"{row['accuracy']:.1%}"
                print(*key, shown, f"{row['agreement']:.1%}", row["seconds"], sep=" | ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
