"""The pictures that a network is repaired with: a random choice of those given, without labels."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from legr_cli.data.batches import Serving, in_order
from legr_cli.data.dataset import Data, open_pictures, own_data
from legr_cli.data.feed import parse_statistics
from legr_cli.data.own import picture_rows
from legr_cli.errors import DataError, SettingError
from legr_cli.models.network import Network
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

    @property
    def count(self) -> int:
        """The number of pictures, those held out included."""
        return sum(map(len, self.fit)) + sum(map(len, self.held_out))


def choose_pictures(
    network: Network,
    data: Any,
    images: int,
    seed: int,
    normalize: str | None = None,
    download: bool = False,
) -> RepairImages:
    """Choose up to `images` pictures from a SPEC, a DataLoader, a tensor or batches.

    Raises:
        DataError: There are fewer than two, or they do not fit the network.
    """
    size, notes = 4 * math.prod(image_shape(network.input_shape)), list[str]()
    if images * size > MOST_BYTES:
        notes.append(f"using at most {MOST_BYTES // size} images: more do not fit in memory")
        images = MOST_BYTES // size
    opened = _opened(network, data, images, seed, normalize, download)
    count = len(opened.train)
    if count < 2:
        raise DataError(f"repair needs at least 2 images, and {opened.spec} has {count}")
    held_out = max(1, count // HELD_OUT)
    rows = np.split(np.arange(count), [count - held_out])
    fit, judge = (list(_batches(opened, part, size)) for part in rows)
    card = opened.card
    about = {"kind": card["kind"], "sha256": card["sha256"], "images": count}
    return RepairImages(fit, judge, about, tuple(notes))


def _opened(
    network: Network, data: Any, images: int, seed: int, normalize: str | None, download: bool
) -> Data:
    """Up to `images` pictures in random order, as training images."""
    if isinstance(data, str):
        statistics = parse_statistics(normalize) or network.notes.get("statistics")
        shape = image_shape(network.input_shape)
        return open_pictures(
            data,
            shape,
            images,
            seed=seed,
            statistics=statistics,
            recorded_pictures=network.notes.get("pictures"),
            download=download,
        )
    if normalize is not None or download:
        raise SettingError(
            "normalize and download need a SPEC: normalize data of your own in your dataset"
        )
    rows = picture_rows(data, images)
    opened = own_data(rows, rows, image_shape(network.input_shape), None, seed=seed)
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
