"""Images → batches on the device, ready for the network.

Decoded images are picked, cut and mirrored by the batch; files are read by loader processes with
torchvision's transforms. Random numbers come from the generator that is passed in, on the CPU, so
that every device and every process sees the same batches.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from legr_cli.data.dataset import Feed, Part
from legr_cli.data.pixels import read_image
from legr_cli.errors import DataError

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Serving:
    """How batches are made; of several processes, each takes its share of every batch."""

    feed: Feed
    size: int  # images in a batch, of all processes together
    device: torch.device
    rank: int = 0
    ranks: int = 1
    loaders: int | None = None  # processes that read files; as many as torch has threads

    def share(self, rows: Tensor) -> Tensor:
        """Of a batch, what is for this process."""
        return rows[self.rank :: self.ranks]


def in_order(part: Part, serving: Serving) -> Iterator[Batch]:
    """Every image once, as it is."""
    yield from _batches(part, serving, torch.arange(len(part)), None)


def shuffled(
    part: Part, serving: Serving, generator: torch.Generator, augment: bool = True
) -> Iterator[Batch]:
    """Every image once in random order; the rest that fills no batch is left out."""
    order = torch.randperm(len(part), generator=generator)
    size = serving.size
    if len(order) >= size:
        order = order[: len(order) // size * size]
    yield from _batches(part, serving, order, generator if augment else None)


def steps_in(part: Part, size: int) -> int:
    """Batches that `shuffled` makes of this part."""
    return max(1, len(part) // size)


def endless(epoch: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
    """One epoch after another."""
    while True:
        yield from epoch()


def _batches(
    part: Part, serving: Serving, order: Tensor, augment: torch.Generator | None
) -> Iterator[Batch]:
    """The images in this order."""
    device = serving.device
    if part.own is not None:
        found = _from_own(part, serving, order, augment)
    elif part.pixels is None:
        found = _from_files(part, serving, order, augment)
    else:
        found = _from_memory(part, serving, order, augment)
    for images, labels in found:
        images = as_input(images.to(device, non_blocking=True), serving.feed)
        yield images, labels.to(device, non_blocking=True)


def _from_memory(
    part: Part, serving: Serving, order: Tensor, augment: torch.Generator | None
) -> Iterator[Batch]:
    """Rows of the decoded images, moved and mirrored on the device."""
    assert part.pixels is not None
    pixels = part.pixels.on(serving.device)
    index, labels = torch.from_numpy(part.index), torch.from_numpy(part.labels)
    for batch in order.split(serving.size):
        rows = serving.share(batch)
        images = pixels.index_select(0, index[rows].to(serving.device))
        if augment is not None:  # drawn for the whole batch: the same for any number of processes
            pad = max(1, images.shape[2] // 8)
            moves = torch.randint(2 * pad + 1, (len(batch), 2), generator=augment)
            coins = torch.rand(len(batch), generator=augment) < 0.5
            mirrored = serving.share(coins) if serving.feed.flip else None
            images = crop_and_flip(images, pad, serving.share(moves), mirrored)
        yield images, labels[rows]


def crop_and_flip(images: Tensor, pad: int, moves: Tensor, mirrored: Tensor | None) -> Tensor:
    """Move each image down and right by −pad … pad, as `moves` − pad says, and mirror some."""
    count, _, height, width = images.shape
    windows = F.pad(images, (pad, pad, pad, pad)).unfold(2, height, 1).unfold(3, width, 1)
    down, right = moves.to(images.device).unbind(1)
    moved = windows[torch.arange(count, device=images.device), :, down, right]
    if mirrored is None:
        return moved
    return torch.where(mirrored.to(images.device)[:, None, None, None], moved.flip(3), moved)


def as_input(images: Tensor, feed: Feed) -> Tensor:
    """Bytes → normalised numbers of the network's size, channels last."""
    layout = torch.channels_last if images.ndim == 4 else torch.contiguous_format
    values = images.to(torch.float32, memory_format=layout)
    if not feed.mean:
        return values
    if values.shape[2:] != feed.shape[1:]:
        values = F.interpolate(values, feed.shape[1:], mode="bilinear", antialias=True)
    mean, std = (
        torch.tensor(x, device=values.device).view(1, -1, 1, 1) for x in (feed.mean, feed.std)
    )
    return values.mul_(1 / (255 * std)).sub_(mean / std)


def _from_own(
    part: Part, serving: Serving, order: Tensor, augment: torch.Generator | None
) -> Iterator[Batch]:
    """A user's own data; what its transforms draw is another in every epoch of a training."""
    assert part.own is not None
    seed = 0 if augment is None else int(torch.randint(2**62, (), generator=augment))
    shares = [part.index[serving.share(batch)].tolist() for batch in order.split(serving.size)]
    alone = multiprocessing.current_process().daemon  # it may have no children of its own
    yield from part.own.batches([rows for rows in shares if rows], seed, 0 if alone else None)


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
    part: Part, serving: Serving, order: Tensor, augment: torch.Generator | None
) -> Iterator[Batch]:
    """Files, read by loader processes."""
    from torchvision.transforms import v2

    feed = serving.feed
    side = feed.shape[1:]
    if augment is None:
        seed = 0
        steps = [v2.Resize(round(min(side) * 256 / 224)), v2.CenterCrop(side)]
    else:
        seed = int(torch.randint(2**62, (), generator=augment))
        steps = [v2.RandomResizedCrop(side)] + [v2.RandomHorizontalFlip()] * feed.flip
    alone = multiprocessing.current_process().daemon  # it may have no children of its own
    fork = "fork" in multiprocessing.get_all_start_methods()
    mine = [serving.share(batch).tolist() for batch in order.split(serving.size)]
    loaders = torch.get_num_threads() if serving.loaders is None else serving.loaders
    loader: DataLoader = DataLoader(
        _Files(part, feed.shape[0], v2.Compose([*steps, v2.PILToTensor()]), seed),
        batch_sampler=[rows for rows in mine if rows],
        num_workers=0 if alone else loaders,
        multiprocessing_context="fork" if fork and loaders and not alone else None,
        pin_memory=serving.device.type == "cuda",
        generator=torch.Generator(),
    )
    try:
        yield from ((images, labels) for images, labels in loader)
    except DataError as error:  # of a loader process: with its traceback, whose last line is ours
        raise DataError(str(error).strip().splitlines()[-1].split("DataError: ")[-1]) from None
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise DataError(
            "a process that reads images was lost, as a rule for want of memory: go on with fewer"
        ) from error
