"""`legr_cli.evaluate`: the accuracy of a network, or another task's score."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from legr_cli.arguments import check_number
from legr_cli.channels.part import part_or_whole
from legr_cli.cost import count_flops
from legr_cli.data.batches import Serving, in_order, shuffled
from legr_cli.data.dataset import Data, Part, described, doubts
from legr_cli.errors import DataError, SettingError
from legr_cli.models.network import Network, as_network, in_single_precision
from legr_cli.settings import Pictures
from legr_cli.training import loop
from legr_cli.training.devices import choose
from legr_cli.training.inputs import Images, as_images, check_outputs, images_for
from legr_cli.training.loop import recalibrate
from legr_cli.training.memory_format import in_memory_format
from legr_cli.training.objective import reference_from
from legr_cli.training.scores import ACCURACY, finite_or_none
from legr_cli.training.tasks import (
    CLASSIFICATION,
    CLOSENESS,
    BatchFunction,
    Task,
    task_for,
    with_targets,
)

SPLITS = ("test", "val")
SCORES = "legr-scores"  # the format of what `legr evaluate --out` writes
RECALIBRATION_STEPS = 8  # batches of 128 images for re-estimating BatchNorm statistics


@dataclass(frozen=True)
class Evaluation:
    """The scores of a network, and its FLOPs."""

    score: float  # higher is better; of classification, the accuracy
    figures: dict[str, float]  # by name, such as accuracy, mean IoU or agreement; shares: 0 to 1
    loss: float | None  # mean over the images; None if it is not finite
    images: int
    classes: int  # 0 for other tasks
    flops: int  # per image; one multiply-add is one FLOP
    flops_share: float  # relative to the network that it was pruned from
    split: str  # "test", "val", or "all" of a user's own data
    notes: tuple[str, ...] = ()  # how images were preprocessed, and warnings

    @property
    def accuracy(self) -> float | None:
        """Top-1 accuracy, from 0 to 1; None unless it is a classification."""
        return self.figures.get(ACCURACY)

    @property
    def top5(self) -> float | None:
        """Top-5 accuracy, from 0 to 1; None unless it is a classification."""
        return self.figures.get("top 5")


def evaluate(
    model: nn.Module,
    data: Any,
    *,
    split: str | None = None,
    against: nn.Module | None = None,
    loss: BatchFunction | None = None,
    score: BatchFunction | None = None,
    outputs: str | None = None,
    recalibrate: bool = False,
    input_shape: Sequence[int] | None = None,
    normalize: str | None = None,
    resize: str | None = None,
    crop: float | None = None,
    transform: str | None = None,
    ignore_class_names: bool = False,
    download: bool = False,
    batch_size: int = 250,
    seed: int = 0,
    device: str = "auto",
) -> Evaluation:
    """Measure a network: accuracy, mean IoU, a score of your own, or closeness to another network.

    Args:
        model: Any module; it is not changed.
        data: A SPEC such as `"cifar10:DIR"`, `"pairs:DIR"` or `"images:DIR"`, a DataLoader, a pair
            of tensors, or an iterable of batches. Your own data is never split: all of it is used.
        split: For a SPEC: `"test"`, or `"val"` for the images held out from training; the default
            is the test images if there are any.
        against: Measure how close the outputs are to those of this network, such as the dense one;
            labels are not used, and images need none.
        loss: `loss(outputs, targets)`, the mean over a batch; cross entropy by default.
        score: `score(outputs, targets)`, the mean over a batch, higher is better; accuracy by
            default, or the negative loss if you pass only `loss`. With `against`, targets are the
            outputs of that network.
        outputs: What outputs of images × numbers are, where they are compared with another
            network's: `"classes"` for class scores, `"values"` for numbers such as angles. Defaults
            to what the network's card records, or else to `"classes"`.
        recalibrate: First re-estimate BatchNorm statistics on 1,024 training images, in a copy.
        input_shape: Shape of one image; needed for a SPEC and a module that is not from legr.
        normalize: For a SPEC: mean and standard deviation, in the format of `--normalize`.
        resize: For a SPEC: `"crop"`, `"squash"`, `"pad"` or `"none"`, as for `--resize`. It and
            `crop` default to what the network's card records, or else to the dataset's usual.
        crop: For `resize="crop"`: side of the center crop, relative to the resized image.
        transform: For a SPEC: `"module:function"` that makes the input of a PIL image, instead of
            resizing, cropping and normalizing it.
        ignore_class_names: For a SPEC: number classes in sorted order, even if the network's card
            names others.
        download: For a SPEC: download the dataset first, if torchvision provides it.
        batch_size: Images per batch.
        seed: Selects the images of `"val"` and of `recalibrate`.
        device: `"auto"`, `"cpu"`, `"cuda"`, `"cuda:1"` or `"mps"`.

    Returns:
        The score, figures such as accuracy by name, loss, number of images, and FLOPs.

    Raises:
        DataError: The data is empty, has labels out of range or does not match the network.
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
        pictures=Pictures(resize=resize, crop=crop, transform=transform),
        ignore_class_names=ignore_class_names,
    )
    if not isinstance(images.data, str):
        images = replace(images, validation=images.data)  # evaluate on all of it
    network = as_network(model, input_shape or images.shape)
    [evaluation] = evaluate_each(
        [network.copied()],
        images,
        split=split,
        against=None
        if against is None
        else lambda peer: as_network(against, peer.input_shape).copied(),
        task=task_for(
            loss,
            score,
            images.task if against is None else CLOSENESS,
            outputs or network.outputs,
        ),
        recalibrated=recalibrate,
        batch_size=batch_size,
        seed=seed,
        device=device,
    )
    return evaluation


def evaluate_each(
    networks: Iterable[Network],
    images: Images,
    *,
    split: str | None,
    against: Callable[[Network], Network] | None = None,
    task: Task = CLASSIFICATION,
    recalibrated: bool,
    batch_size: int,
    seed: int,
    device: str,
) -> Iterator[Evaluation]:
    """Evaluate several networks; those with the same input and statistics share the images.

    `against` opens the network that each is compared with.
    """
    if task.needs_reference and against is None:
        raise SettingError(
            "these images have no labels: pass --against DENSE to measure how close the outputs "
            "are to another network's"
        )
    if split not in (None, *SPLITS):
        raise SettingError(f"--split must be {' or '.join(SPLITS)}, got {split}")
    check_number(seed, "--seed", whole=True)
    check_number(batch_size, "--batch-size", whole=True)
    if batch_size < 1:
        raise SettingError(f"--batch-size must be at least 1, got {batch_size}")
    target, loaded = choose(device), dict[str, Data]()
    for opened in networks:
        network = replace(opened, model=in_single_precision(opened.model))  # as images are
        recorded = [network.notes.get(key) for key in ("statistics", "pictures", "class_names")]
        key = repr((network.input_shape, recorded))
        if key not in loaded:
            loaded[key] = images_for(network, images, seed, task, missing_ok=True)
        data = in_memory_format(network.model, loaded[key])
        check_outputs(network.model, data, task)
        flops = count_flops(network.model, network.input_shape, network.module)
        memory_format = data.feed.memory_format
        model = network.model.to(target, memory_format=memory_format)  # type: ignore[call-overload]
        if recalibrated:
            recalibrate_on(data, model, target, seed)
        serving = Serving(data.feed, batch_size, target)
        reference = None
        if against is not None:
            name = network.module
            reference = reference_from(against(network), data, target, part=name)
            model = part_or_whole(model, name)
        usual = "val" if data.test is None and task.needs_reference else "test"
        part = _part(data, split or usual)
        batches = with_targets(task, in_order(part, serving), reference)
        score = loop.evaluate(model, batches, task)
        yield Evaluation(
            score.value,
            dict(score.figures),
            finite_or_none(score.loss),
            score.images,
            len(data.classes),
            flops,
            flops / _dense_flops(network, flops),
            "all" if part.own is not None else split or usual,
            (f"preprocessed as {data.feed}", *described(data), *doubts(data), *_advice(network)),
        )


def _part(data: Data, split: str) -> Part:
    """The images of a split; for a user's own data, the images passed as validation."""
    if data.validation.own is not None:
        return data.validation
    part = data.validation if split == "val" else data.test
    if part is None:
        raise DataError(f"{data.spec} has no test images: pass --split val")
    return part


def _advice(network: Network) -> list[str]:
    """What to do next with a network that was only cut."""
    if network.kept is None or {"repaired", "training"} & network.notes.keys():
        return []
    return [
        "legr neither repaired nor fine-tuned some of the pruned networks: legr "
        "repair makes them usable at once, without labels"
    ]


def _dense_flops(network: Network, flops: int) -> int:
    """FLOPs of the network that this one was pruned from; its own if it was not pruned."""
    dense = network.notes.get("dense_flops")
    return dense if isinstance(dense, int) and dense > 0 else flops


def recalibrate_on(data: Data, model: nn.Module, device: torch.device, seed: int) -> None:
    """Re-estimate a network's BatchNorm statistics, in place, on 1,024 training images."""
    generator = torch.Generator().manual_seed(seed)
    batches = shuffled(data.train, Serving(data.feed, 128, device), generator, augment=False)
    recalibrate(model, itertools.islice(batches, RECALIBRATION_STEPS))
