"""The accuracy of one network on one data set."""

import dataclasses
import itertools
from typing import Any

import torch

from legr_cli.cost import count_flops
from legr_cli.data.batches import Serving, in_order, shuffled
from legr_cli.data.dataset import Data
from legr_cli.errors import DataError, ModelError
from legr_cli.models.network import Network
from legr_cli.settings import FITNESS
from legr_cli.training.devices import choose
from legr_cli.training.loop import answer, evaluate, number, recalibrate


def measure(
    network: Network,
    data: Data,
    *,
    split: str,
    recalibrated: bool,
    seed: int,
    batch_size: int,
    device: str,
) -> dict[str, Any]:
    """Accuracy and loss on the test or the held-out images, and the FLOPs it took."""
    where = choose(device)
    part = data.validation if split == "val" else data.test
    if part is None:
        raise DataError(f"{data.spec} has no test images: pass --split val")
    check_classes(network.model, data)
    flops = count_flops(network.model, network.input_shape)
    model = network.model.to(where, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if recalibrated:
        refresh(model, data, where, seed)
    serving = Serving(data.feed, batch_size, where)
    score = dataclasses.asdict(evaluate(model, in_order(part, serving)))
    score["loss"] = number(score["loss"])
    dense = network.notes.get("dense_flops")
    if not isinstance(dense, int) or dense < 1:
        dense = flops
    return {**score, "classes": len(data.classes), "flops": flops, "flops_share": flops / dense}


def refresh(model: torch.nn.Module, data: Data, device: torch.device, seed: int) -> None:
    """Re-estimate the BatchNorm statistics on 1,024 training images."""
    generator = torch.Generator().manual_seed(seed)
    some = shuffled(data.train, Serving(data.feed, 128, device), generator, augment=False)
    recalibrate(model, itertools.islice(some, FITNESS["bn"]))


def check_classes(model: torch.nn.Module, data: Data) -> None:
    """The network must give one number for each class of the data."""
    batch = next(in_order(data.validation, Serving(data.feed, 2, torch.device("cpu"))))[0]
    with torch.no_grad():
        given = answer(model, batch)
    if not isinstance(given, torch.Tensor) or given.ndim != 2:
        raise ModelError("the network must give one tensor of images × classes to be measured")
    if given.shape[1] != len(data.classes):
        raise DataError(
            f"the network tells {given.shape[1]} classes apart, {data.spec} has "
            f"{len(data.classes)}: is it the right data? (legr finetune --new-head gives "
            "it another last layer)"
        )
