"""Images → normalized batches on the device.

Decoded images are gathered, cropped and flipped a batch at a time; files are read by DataLoader
workers with torchvision's transforms. Random numbers come from the CPU generator passed in, so
batches do not depend on the device or the number of processes.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from legr_cli.data.dataset import Part
from legr_cli.data.feed import Feed
from legr_cli.data.pixels import IGNORED, as_array, read_image, read_labels
from legr_cli.data.preparation import imported_transform
from legr_cli.errors import DataError, first_line

Batch = tuple[Tensor, Any]  # images, and labels or other targets
_NEAREST = int(Image.Resampling.NEAREST)


@dataclass(frozen=True)
class Serving:
    """How batches are made; with several processes, each takes its share of every batch."""

    feed: Feed
    size: int  # images per batch, summed over all processes
    device: torch.device
    rank: int = 0
    ranks: int = 1
    loaders: int | None = None  # DataLoader workers; None: as many as torch has threads

    def share(self, rows: Tensor) -> Tensor:
        """The rows of a batch that belong to this process."""
        return rows[self.rank :: self.ranks]


def in_order(part: Part, serving: Serving) -> Iterator[Batch]:
    """Yield every image once, in order and without augmentation."""
    yield from _batches(part, serving, torch.arange(len(part)), None)


def shuffled(
    part: Part, serving: Serving, generator: torch.Generator, augment: bool = True
) -> Iterator[Batch]:
    """Yield images in random order, each at most once; an incomplete last batch is dropped."""
    order = torch.randperm(len(part), generator=generator)
    size = serving.size
    if len(order) >= size:
        order = order[: len(order) // size * size]
    yield from _batches(part, serving, order, generator if augment else None)


def steps_in(part: Part, size: int) -> int:
    """Number of batches that `shuffled` yields for this part."""
    return max(1, len(part) // size)


def endless(epoch: Callable[[], Iterator[Batch]]) -> Iterator[Batch]:
    """Repeat epochs forever."""
    while True:
        yield from epoch()


def _batches(
    part: Part, serving: Serving, order: Tensor, augment: torch.Generator | None
) -> Iterator[Batch]:
    """Yield the images in this order; `augment` draws the augmentation, None turns it off."""
    device = serving.device
    if part.own is not None:
        batches = _from_own(part, serving, order, augment)
    elif part.pixels is None:
        batches = _from_files(part, serving, order, augment)
    else:
        batches = _from_memory(part, serving, order, augment)
    for images, labels in batches:
        images = as_input(images.to(device, non_blocking=True), serving.feed)
        yield images, labels.to(device, non_blocking=True)


def _from_memory(
    part: Part, serving: Serving, order: Tensor, augment: torch.Generator | None
) -> Iterator[Batch]:
    """Batches of decoded images, cropped and flipped on the device."""
    assert part.pixels is not None
    pixels = part.pixels.on(serving.device)
    index, labels = torch.from_numpy(part.index), torch.from_numpy(part.labels)
    for batch in order.split(serving.size):
        rows = serving.share(batch)
        images = pixels.index_select(0, index[rows].to(serving.device))
        if augment is not None:
            feed = serving.feed
            pad = _padding(images.shape[2]) if feed.random_crop == "padded" else 0
            # Drawn for the full batch, so the number of processes is irrelevant.
            offsets = torch.randint(2 * pad + 1, (len(batch), 2), generator=augment)
            coins = torch.rand(len(batch), generator=augment) < 0.5
            flipped = serving.share(coins) if feed.flip else None
            images = crop_and_flip(images, pad, serving.share(offsets), flipped)
        yield images, labels[rows]


def _padding(height: int) -> int:
    """Zeros around an image before a random crop: 4 for an image of 32×32."""
    return max(1, height // 8)


def crop_and_flip(images: Tensor, pad: int, offsets: Tensor, flipped: Tensor | None) -> Tensor:
    """Zero-pad each image by `pad`, crop it at its (row, column) offset, and flip where told to."""
    count, _, height, width = images.shape
    # A view of every possible crop: N × C × offset row × offset column × H × W.
    windows = F.pad(images, (pad, pad, pad, pad)).unfold(2, height, 1).unfold(3, width, 1)
    rows, columns = offsets.to(images.device).unbind(1)
    cropped = windows[torch.arange(count, device=images.device), :, rows, columns]
    if flipped is None:
        return cropped
    return torch.where(flipped.to(images.device)[:, None, None, None], cropped.flip(3), cropped)


def as_input(images: Tensor, feed: Feed) -> Tensor:
    """Convert uint8 images to normalized floats of the network's size and memory format."""
    layout = feed.memory_format if images.ndim == 4 else torch.contiguous_format
    values = images.to(torch.float32, memory_format=layout)
    if not feed.mean:
        return values
    if values.shape[2:] != feed.shape[1:]:
        values = F.interpolate(values, feed.shape[1:], mode="bilinear", antialias=True)
    mean, std = (
        torch.tensor(x, device=values.device).view(1, -1, 1, 1) for x in (feed.mean, feed.std)
    )
    return values.mul_(1 / (255 * std)).sub_(mean / std)  # (x / 255 − mean) / std, in place


def _from_own(
    part: Part, serving: Serving, order: Tensor, augment: torch.Generator | None
) -> Iterator[Batch]:
    """Batches of a user's own data; random transforms get a new seed in every epoch."""
    assert part.own is not None
    seed = 0 if augment is None else int(torch.randint(2**62, (), generator=augment))
    # as arrays: NumPy takes a tensor of one row for a plain number
    shares = [
        part.index[serving.share(rows).numpy()].tolist() for rows in order.split(serving.size)
    ]
    is_daemon = multiprocessing.current_process().daemon  # daemons cannot start workers
    yield from part.own.batches([rows for rows in shares if rows], seed, 0 if is_daemon else None)


class _Files(Dataset[Any]):
    """Image files, transformed to uint8 tensors of the network's size."""

    def __init__(self, part: Part, feed: Feed, vary: Any, seed: int) -> None:
        self.part, self.feed, self.vary, self.seed = part, feed, vary, seed
        self.whole = vary is not None and feed.random_crop == "resized"

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, row: int) -> Any:
        """One image and its label; random transforms depend only on the seed and the row."""
        path = self.part.root / self.part.files[self.part.index[row]]
        if self.feed.transform is not None:
            return _transformed(path, self.feed), int(self.part.labels[row])
        image = read_image(path, self.feed.shape[0])
        labels = None if self.part.maps is None else self._labels(row, image)
        if not self.whole:
            image = self.feed.fitting(image, path)
            labels = labels and self.feed.fitting(labels, path, _NEAREST, IGNORED)
        mask = [] if labels is None else [_as_mask(labels)]
        if self.vary is not None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed + row)
                varied = self.vary(image, *mask)
            image, *mask = varied if mask else [varied]
        pixels = torch.from_numpy(as_array(image).copy())
        return pixels, mask[0].data.long() if mask else int(self.part.labels[row])

    def _labels(self, row: int, image: Image.Image) -> Image.Image:
        """The label picture of an image."""
        maps = self.part.maps
        assert maps is not None
        path = self.part.root / maps.files[self.part.index[row]]
        labels = read_labels(path, maps.ignored, maps.classes)
        if labels.size != image.size:
            sizes = ("x".join(map(str, size)) for size in (labels.size, image.size))
            raise DataError("{} is {}, but its image is {}".format(path, *sizes))
        return labels


def _transformed(path: Path, feed: Feed) -> Tensor:
    """An image file as the user's own function makes an input of it."""
    assert feed.transform is not None
    name = f"--transform {feed.transform}"
    function, image = imported_transform(feed.transform), read_image(path, feed.shape[0])
    try:
        values = function(image)
    except Exception as error:
        kind = type(error).__name__
        raise DataError(f"{name} failed on {path}: {kind}: {first_line(error)}") from error
    if not isinstance(values, Tensor) or not values.is_floating_point():
        got = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise DataError(f"{name} must return a floating-point tensor, got {got}")
    if tuple(values.shape) != feed.shape:
        found, wanted = ("x".join(map(str, shape)) for shape in (values.shape, feed.shape))
        raise DataError(f"{name} returns {found} for {path}, but the input is {wanted}")
    return values.detach().float()


def _as_mask(labels: Image.Image) -> Any:
    """A label picture as torchvision's transforms know it: they crop and mirror it alike."""
    from torchvision.tv_tensors import Mask

    return Mask(torch.from_numpy(np.array(labels)))


def _variation(feed: Feed) -> Any:
    """torchvision's transform that varies a training picture; None if nothing is varied."""
    from torchvision.transforms import v2
    from torchvision.tv_tensors import Mask

    side, fill = feed.shape[1:], {Mask: IGNORED, "others": 0}
    crops = {
        "none": [],
        "padded": [v2.RandomCrop(side, padding=_padding(side[0]), fill=fill)],
        "resized": [v2.RandomResizedCrop(side)],
    }
    steps = [*crops[feed.random_crop], *[v2.RandomHorizontalFlip()] * feed.flip]
    return v2.Compose(steps) if steps else None


def _from_files(
    part: Part, serving: Serving, order: Tensor, augment: torch.Generator | None
) -> Iterator[Batch]:
    """Batches of image files, read by DataLoader workers."""
    feed, vary, seed = serving.feed, None, 0
    if augment is not None:
        vary, seed = _variation(feed), int(torch.randint(2**62, (), generator=augment))
    is_daemon = multiprocessing.current_process().daemon  # daemons cannot start workers
    fork = "fork" in multiprocessing.get_all_start_methods()
    mine = [serving.share(batch).tolist() for batch in order.split(serving.size)]
    loaders = torch.get_num_threads() if serving.loaders is None else serving.loaders
    loader: DataLoader = DataLoader(
        _Files(part, feed, vary, seed),
        batch_sampler=[rows for rows in mine if rows],
        num_workers=0 if is_daemon else loaders,
        multiprocessing_context="fork" if fork and loaders and not is_daemon else None,
        pin_memory=serving.device.type == "cuda",
        generator=torch.Generator(),
    )
    try:
        yield from ((images, labels) for images, labels in loader)
    except DataError as error:  # from a worker: its traceback ends with our message
        raise DataError(str(error).strip().splitlines()[-1].split("DataError: ")[-1]) from None
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise DataError(
            "a DataLoader worker died, most likely because memory ran out: use fewer workers"
        ) from error
