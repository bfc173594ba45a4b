"""The pictures that a network is repaired with: a random choice of those given, without labels."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legr_cli.data.batches import Serving, in_order
from legr_cli.data.dataset import Data, described, open_pictures, own_data
from legr_cli.data.feed import parse_statistics
from legr_cli.data.own import picture_rows
from legr_cli.errors import DataError, SettingError
from legr_cli.models.network import Network
from legr_cli.settings import Pictures as PictureSettings
from legr_cli.settings import Repair
from legr_cli.shapes import image_shape

HELD_OUT = 5  # one picture in so many is only used to judge the repair
MOST_BYTES = 1 << 30  # of pictures in memory
_BATCH_BYTES = 1 << 23


@dataclass(frozen=True)
class RepairImages:
    """Images as the network takes them, in batches."""

    fit: list[Tensor]
    held_out: list[Tensor]
    about: dict[str, Any]  # what they are, for the network's notes
    notes: tuple[str, ...] = ()
    shown: dict[str, Any] = field(default_factory=dict)  # statistics and pictures, for the notes
    described: tuple[str, ...] = ()  # how images become inputs, in words

    @property
    def count(self) -> int:
        """The number of pictures, those held out included."""
        return sum(map(len, self.fit)) + sum(map(len, self.held_out))


@dataclass(frozen=True, kw_only=True)
class RepairData:
    """What networks are repaired with; all but the first two are for a SPEC."""

    data: Any  # a SPEC, a DataLoader, a tensor of images or batches
    settings: Repair = field(default_factory=Repair)
    normalize: str | None = None
    pictures: PictureSettings = field(default_factory=PictureSettings)
    download: bool = False


def choose_pictures(network: Network, given: RepairData) -> RepairImages:
    """Choose images at random, as the network takes them.

    Raises:
        DataError: There are fewer than two, or they do not fit the network.
    """
    size, notes = 4 * math.prod(image_shape(network.input_shape)), list[str]()
    images = given.settings.images
    if images * size > MOST_BYTES:
        notes.append(f"using at most {MOST_BYTES // size} images: more do not fit in memory")
        images = MOST_BYTES // size
    return _split(_opened(network, given, images), size, tuple(notes))


def training_pictures(network: Network, data: Data, settings: Repair) -> RepairImages:
    """Choose training images at random, of data that was opened for the network."""
    size = 4 * math.prod(image_shape(network.input_shape))
    chosen = np.random.default_rng(settings.seed).permutation(len(data.train))
    limit = min(settings.images, max(2, MOST_BYTES // size))
    return _split(replace(data, train=data.train.pick(chosen[:limit])), size)


def _split(opened: Data, size: int, notes: tuple[str, ...] = ()) -> RepairImages:
    """Hold out a part of the images; `size` is the number of bytes of one."""
    count = len(opened.train)
    if count < 2:
        raise DataError(f"repair needs at least 2 images, and {opened.spec} has {count}")
    held_out = max(1, count // HELD_OUT)
    rows = np.split(np.arange(count), [count - held_out])
    fit, judge = (list(_batches(opened, part, size)) for part in rows)
    card = opened.card
    about = {"kind": card["kind"], "sha256": card["sha256"], "images": count}
    known = {"statistics": opened.feed.statistics, "pictures": opened.pictures}
    shown = {key: value for key, value in known.items() if value is not None}
    return RepairImages(
        fit,
        judge,
        about,
        notes,
        shown if opened.pictures else {},
        tuple(described(opened)),
    )


def _opened(network: Network, given: RepairData, images: int) -> Data:
    """Up to `images` pictures in random order, as training images."""
    data, seed, shape = given.data, given.settings.seed, image_shape(network.input_shape)
    if isinstance(data, str):
        return open_pictures(
            data,
            shape,
            images,
            seed=seed,
            statistics=parse_statistics(given.normalize) or network.notes.get("statistics"),
            pictures=given.pictures,
            recorded_pictures=network.notes.get("pictures"),
            download=given.download,
        )
    if replace(given, data="", settings=Repair()) != RepairData(data=""):
        raise SettingError(
            "normalize, resize, crop and download need a SPEC: prepare data of your own in your "
            "dataset"
        )
    rows = picture_rows(data, images)
    opened = own_data(rows, rows, shape, None, seed=seed)
    chosen = np.random.default_rng(seed).permutation(len(opened.train))[:images]
    return replace(opened, train=opened.train.pick(chosen))


def _batches(data: Data, rows: np.ndarray, size: int) -> Iterator[Tensor]:
    """These pictures in batches of a few megabytes."""
    count = min(128, max(1, _BATCH_BYTES // size))
    serving = Serving(data.feed, count, torch.device("cpu"))
    for images, _ in in_order(data.train.pick(rows), serving):
        if not images.isfinite().all():
            raise DataError(f"{data.spec} has images with NaN or infinite values")
        yield images.contiguous()
