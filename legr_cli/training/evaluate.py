"""`legr_cli.evaluate`: the accuracy of a network, or its score on a task of the user's own."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from legr_cli.cost import count_flops
from legr_cli.data.batches import Serving, in_order, shuffled
from legr_cli.data.dataset import Data, Part, described, doubts
from legr_cli.errors import DataError, SettingError
from legr_cli.models.network import Network, as_network, own_copy
from legr_cli.settings import Pictures
from legr_cli.training import loop
from legr_cli.training.devices import choose
from legr_cli.training.inputs import (
    Images,
    as_images,
    check_outputs,
    images_for,
    in_memory_format,
)
from legr_cli.training.loop import recalibrate
from legr_cli.training.scores import CLASSIFICATION, OwnFunction, Task, finite, task_for

SPLITS = ("test", "val")
RECALIBRATION_STEPS = 8  # batches of 128 images that BatchNorm statistics are re-estimated on


@dataclass(frozen=True)
class Evaluation:
    """What a network reaches, and what it costs."""

    accuracy: float  # share of images whose class comes first; or the mean of your own score
    top5: float | None  # share of images whose class is among the first five
    loss: float | None  # mean over the images; None if it is not finite
    images: int
    classes: int  # 0 for a task of your own
    flops: int  # for one image; one multiply-add counts as one
    flops_share: float  # of the network that it was pruned from
    notes: tuple[str, ...] = ()  # how images were preprocessed, and likely mistakes


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    split: str = "test",
    loss: OwnFunction | None = None,
    score: OwnFunction | None = None,
    recalibrate: bool = False,
    input_shape: Sequence[int] | None = None,
    normalize: str | None = None,
    resize: str | None = None,
    crop: float | None = None,
    ignore_class_names: bool = False,
    download: bool = False,
    batch_size: int = 250,
    seed: int = 0,
    device: str = "auto",
) -> Evaluation:
    """Measure a network on images that have labels.

    Args:
        model: Any module; it is not changed.
        data: A SPEC such as `"cifar10:DIR"`, a DataLoader, a pair of tensors, or an iterable of
            `(images, targets)`. Data of your own is measured whole.
        split: For a SPEC: `"test"`, or `"val"` for the images that training holds out.
        loss: `loss(outputs, targets)`, the mean over a batch; cross entropy by default.
        score: `score(outputs, targets)`, the mean over a batch, higher is better; the share of
            images classified correctly by default.
        recalibrate: Re-estimate BatchNorm statistics on 1,024 training images first, in a copy.
        input_shape: Shape of one image, for a module that does not come from legr and a SPEC.
        normalize: For a SPEC: mean and standard deviation, as `--normalize` takes them.
        resize: For a SPEC: `"crop"`, `"squash"`, `"pad"` or `"none"`, as `--resize`; by default
            what the network's card records, or else the dataset's default.
        crop: For `resize="crop"`: side of the central crop, relative to the picture's.
        ignore_class_names: For a SPEC: number classes in sorted order, whatever the network's
            card calls them.
        download: For a SPEC: download the dataset first, if torchvision provides it.
        batch_size: Images per batch.
        seed: Selects the images of `"val"` and of `recalibrate`.
        device: `"auto"`, `"cpu"`, `"cuda"`, `"cuda:1"` or `"mps"`.

    Returns:
        Accuracy (or your score), top-5 accuracy, loss, number of images, and FLOPs.

    Raises:
        DataError: The data is empty, has labels out of range or does not fit the network.
        ModelError: The network fails on the images.
        SettingError: An argument is out of range.

    Example:
        >>> legr_cli.evaluate(tuned, "cifar10:data").accuracy
        0.9231
    """
    images = as_images(
        data,
        normalize=normalize,
        download=download,
        pictures=Pictures(resize=resize, crop=crop),
        ignore_class_names=ignore_class_names,
    )
    if not isinstance(images.data, str):
        images = replace(images, validation=images.data)  # none is held out: all are measured
    network = as_network(model, input_shape or images.shape)
    [found] = evaluate_each(
        [replace(network, model=own_copy(network.model))],
        images,
        split=split,
        task=task_for(loss, score),
        recalibrated=recalibrate,
        batch_size=batch_size,
        seed=seed,
        device=device,
    )
    return found


def evaluate_each(
    networks: Iterable[Network],
    images: Images,
    *,
    split: str,
    task: Task = CLASSIFICATION,
    recalibrated: bool,
    batch_size: int,
    seed: int,
    device: str,
) -> Iterator[Evaluation]:
    """Measure several networks; images are read once for all that take them alike."""
    if split not in SPLITS:
        raise SettingError(f"--split must be {' or '.join(SPLITS)}, got {split}")
    if batch_size < 1:
        raise SettingError(f"--batch-size must be at least 1, got {batch_size}")
    where, opened = choose(device), dict[str, Data]()
    for network in networks:
        noted = [network.notes.get(key) for key in ("statistics", "pictures", "class_names")]
        key = repr((network.input_shape, noted))
        if key not in opened:
            opened[key] = images_for(network, images, seed, task, missing_ok=True)
        data = in_memory_format(network.model, opened[key])
        check_outputs(network.model, data, task)
        flops = count_flops(network.model, network.input_shape)
        layout = data.feed.memory_format
        model = network.model.to(where, memory_format=layout)  # type: ignore[call-overload]
        if recalibrated:
            refresh(model, data, where, seed)
        serving = Serving(data.feed, batch_size, where)
        reached = loop.evaluate(model, in_order(_part(data, split), serving), task)
        yield Evaluation(
            reached.accuracy,
            reached.top5,
            finite(reached.loss),
            reached.images,
            len(data.classes),
            flops,
            flops / _dense_flops(network, flops),
            (f"preprocessed as {data.feed}", *described(data), *doubts(data)),
        )


def _part(data: Data, split: str) -> Part:
    """The images to measure on; of a user's own data, those that were passed for it."""
    if data.validation.own is not None:
        return data.validation
    part = data.validation if split == "val" else data.test
    if part is None:
        raise DataError(f"{data.spec} has no test images: pass --split val")
    return part


def _dense_flops(network: Network, flops: int) -> int:
    """FLOPs of the network that this one was pruned from; its own if it was not."""
    dense = network.notes.get("dense_flops")
    return dense if isinstance(dense, int) and dense > 0 else flops


def refresh(model: nn.Module, data: Data, device: torch.device, seed: int) -> None:
    """Re-estimate the BatchNorm statistics on 1,024 training images."""
    generator = torch.Generator().manual_seed(seed)
    some = shuffled(data.train, Serving(data.feed, 128, device), generator, augment=False)
    recalibrate(model, itertools.islice(some, RECALIBRATION_STEPS))
