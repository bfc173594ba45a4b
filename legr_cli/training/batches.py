"""Images → batches on the device, ready for the network.

Decoded images are picked, cut and mirrored by the batch; files are read by loader processes with
torchvision's transforms. Random numbers come from the generator that is passed in, on the CPU, so
that every device and every process sees the same batches.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from legr_cli.errors import DataError
from legr_cli.training.data import Feed, Part
from legr_cli.training.pixels import read_image

Batch = tuple[Tensor, Tensor]


def in_order(part: Part, feed: Feed, size: int, device: torch.device) -> Iterator[Batch]:
    """Every image once, as it is."""
    yield from _batches(part, feed, size, device, torch.arange(len(part)), None)


def shuffled(
    part: Part,
    feed: Feed,
    size: int,
    device: torch.device,
    generator: torch.Generator,
    augment: bool = True,
) -> Iterator[Batch]:
    """Every image once in random order; the rest that fills no batch is left out."""
    order = torch.randperm(len(part), generator=generator)
    if len(order) >= size:
        order = order[: len(order) // size * size]
    yield from _batches(part, feed, size, device, order, generator if augment else None)


def endless(epoch: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
    """One epoch after another."""
    while True:
        yield from epoch()


def _batches(
    part: Part,
    feed: Feed,
    size: int,
    device: torch.device,
    order: Tensor,
    augment: torch.Generator | None,
) -> Iterator[Batch]:
    """The images in this order."""
    if part.pixels is None:
        found = _from_files(part, feed, size, order, augment)
    else:
        found = _from_memory(part, size, device, order)
    for images, labels in found:
        images = images.to(device, non_blocking=True)
        if augment is not None and part.pixels is not None:
            images = crop_and_flip(images, feed.flip, augment)
        yield as_input(images, feed), labels.to(device, non_blocking=True)


def _from_memory(part: Part, size: int, device: torch.device, order: Tensor) -> Iterator[Batch]:
    """Rows of the decoded images."""
    assert part.pixels is not None
    pixels = part.pixels.on(device)
    index, labels = torch.from_numpy(part.index), torch.from_numpy(part.labels)
    for rows in order.split(size):
        yield pixels.index_select(0, index[rows].to(device)), labels[rows]


def crop_and_flip(images: Tensor, flip: bool, generator: torch.Generator) -> Tensor:
    """Shift each image by up to an eighth of its side, and mirror one in two."""
    count, _, height, width = images.shape
    pad = max(1, height // 8)
    windows = F.pad(images, (pad, pad, pad, pad)).unfold(2, height, 1).unfold(3, width, 1)
    down, right = torch.randint(2 * pad + 1, (2, count), generator=generator).to(images.device)
    moved = windows[torch.arange(count, device=images.device), :, down, right]
    if not flip:
        return moved
    mirrored = torch.rand(count, generator=generator).to(images.device) < 0.5
    return torch.where(mirrored[:, None, None, None], moved.flip(3), moved)


def as_input(images: Tensor, feed: Feed) -> Tensor:
    """Bytes → normalised numbers of the network's size, channels last."""
    values = images.to(torch.float32, memory_format=torch.channels_last)
    if values.shape[2:] != feed.shape[1:]:
        values = F.interpolate(values, feed.shape[1:], mode="bilinear", antialias=True)
    mean, std = (
        torch.tensor(x, device=values.device).view(1, -1, 1, 1) for x in (feed.mean, feed.std)
    )
    return values.mul_(1 / (255 * std)).sub_(mean / std)


class _Files(Dataset[Any]):
    """Image files as bytes of the network's size."""

    def __init__(self, part: Part, channels: int, transform: Any, seed: int) -> None:
        self.part, self.channels, self.transform, self.seed = part, channels, transform, seed

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, row: int) -> Any:
        """One image and its label; its random numbers depend on the seed and on nothing else."""
        path = self.part.root / self.part.files[self.part.index[row]]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed + row)
            image = self.transform(read_image(path, self.channels))
        return image, int(self.part.labels[row])


def _from_files(
    part: Part, feed: Feed, size: int, order: Tensor, augment: torch.Generator | None
) -> Iterator[Batch]:
    """Files, read by as many loader processes as this one has threads."""
    from torchvision.transforms import v2

    side = feed.shape[1:]
    if augment is None:
        seed = 0
        steps = [v2.Resize(round(min(side) * 256 / 224)), v2.CenterCrop(side)]
    else:
        seed = int(torch.randint(2**62, (), generator=augment))
        steps = [v2.RandomResizedCrop(side)] + [v2.RandomHorizontalFlip()] * feed.flip
    alone = multiprocessing.current_process().daemon  # it may have no children of its own
    fork = "fork" in multiprocessing.get_all_start_methods()
    loader: DataLoader = DataLoader(
        _Files(part, feed.shape[0], v2.Compose([*steps, v2.PILToTensor()]), seed),
        batch_size=size,
        sampler=order.tolist(),
        num_workers=0 if alone else torch.get_num_threads(),
        multiprocessing_context="fork" if fork and not alone else None,
        generator=torch.Generator(),
    )
    try:
        yield from ((images, labels) for images, labels in loader)
    except DataError as error:  # of a loader process: with its traceback, whose last line is ours
        raise DataError(str(error).strip().splitlines()[-1].split("DataError: ")[-1]) from None
