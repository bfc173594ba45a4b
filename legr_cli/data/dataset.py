"""A data set made ready for a network: parts to train, validate and test on, and how to feed it."""

import functools
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from legr_cli.data.own import OwnPart, Rows
from legr_cli.data.pixels import Pixels, decoded, read_image, state_of, stored
from legr_cli.data.sources import Listing, Split, find
from legr_cli.errors import DataError, SettingError
from legr_cli.models.registry import IMAGENET_STATISTICS

VALIDATION = 0.1  # of the training images, never trained on
LARGEST_SIDE, LARGEST_BYTES = 96, 4 << 30  # of what is kept in memory
STATISTICS = {  # mean and deviation of the channels, of values from 0 to 1
    "imagenet": IMAGENET_STATISTICS,
    "cifar10": {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2470, 0.2435, 0.2616]},
    "cifar100": {"mean": [0.5071, 0.4865, 0.4409], "std": [0.2673, 0.2564, 0.2762]},
    "digits": {"mean": [0.305] * 3, "std": [0.376] * 3},
    "half": {"mean": [0.5] * 3, "std": [0.5] * 3},
    "none": {"mean": [0.0] * 3, "std": [1.0] * 3},
}


@dataclass(frozen=True)
class Part:
    """Some images of a set and their labels: decoded pixels, files to read, or a user's own."""

    labels: np.ndarray  # all 0 where they are known only once an image is read
    index: np.ndarray  # of each image, in `pixels`, `files` or `own`
    pixels: Pixels | None = None
    root: Path = Path()
    files: tuple[str, ...] = ()
    own: OwnPart | None = None

    def __len__(self) -> int:
        return len(self.index)

    def pick(self, rows: np.ndarray) -> "Part":
        """Some of these images."""
        return replace(self, labels=self.labels[rows], index=self.index[rows])

    def carried(self) -> "Part":
        """The same part for another machine: decoded images go along, files must be there."""
        if self.pixels is None:
            return self
        rows = Pixels(self.pixels.array[self.index])
        return Part(self.labels, np.arange(len(self.index)), rows)


@dataclass(frozen=True)
class Feed:
    """How images become a network's input."""

    shape: tuple[int, ...]  # channels, height, width
    mean: tuple[float, ...]  # none: images come as the network takes them
    std: tuple[float, ...]
    flip: bool  # whether training mirrors images

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        if not self.mean:
            return f"{size}, as the data gives them"
        numbers = (",".join(f"{x:g}" for x in side) for side in (self.mean, self.std))
        return f"{size}, normalised by {':'.join(numbers)}"

    @property
    def statistics(self) -> dict[str, list[float]] | None:
        """As a network's file has them; None: unknown, the data is normalized already."""
        if not self.mean:
            return None
        return {"mean": list(self.mean), "std": list(self.std)}


@dataclass(frozen=True)
class Data:
    """A data set for one network."""

    spec: str
    classes: tuple[str, ...]
    train: Part
    validation: Part
    test: Part | None
    feed: Feed
    native: tuple[int, int]  # width and height of the first image, as it lies there
    kind: str
    split_by: dict[str, Any]  # share and seed of the validation images, if legr chose them
    held_out: bool = True  # whether those are kept from training

    @functools.cached_property
    def card(self) -> dict[str, Any]:
        """What tells this set and this split from others; stored with results."""
        return {
            "kind": self.kind,
            "classes": len(self.classes),
            "sha256": _fingerprint(self.classes, self.train, self.validation),
            "images": {"train": len(self.train), "validation": len(self.validation)},
            "split": {
                **self.split_by,
                "sha256": hashlib.sha256(self.validation.index.tobytes()).hexdigest(),
            },
        }


def open_data(
    spec: str,
    input_shape: tuple[int, ...],
    *,
    seed: int,
    statistics: dict[str, Any] | None = None,
    download: bool = False,
    hold_out: bool = True,
) -> Data:
    """Read a set, keep a tenth of its training images for validation, and fit it to a network.

    Where none are to be held out, those are measured as ever, and trained on as well.
    """
    if len(input_shape) != 3 or input_shape[0] not in (1, 3):
        size = "x".join(map(str, input_shape))
        raise DataError(f"the network takes {size}; images have 1 or 3 channels and two sides")
    name, kind, source = find(spec, download)
    parts = {key: _part(split, input_shape) for key, split in source.splits.items()}
    train, validation = parts["train"], parts.get("val")
    own = validation is not None
    if own and not hold_out:
        raise DataError(f"--all-images: {spec} has validation images of its own, in val/")
    if validation is None:
        stays, held = split_off(train.labels, VALIDATION, seed)
        train, validation = train.pick(stays) if hold_out else train, train.pick(held)
    feed = _feed(input_shape, statistics or STATISTICS[kind.statistics], kind.flip)
    native = _native(source.splits["train"])
    split_by = {"share": None, "seed": None} if own else {"share": VALIDATION, "seed": seed}
    test = parts.get("test")
    return Data(
        spec, source.classes, train, validation, test, feed, native, name, split_by, hold_out
    )


def own_data(
    rows: Rows,
    validation: Rows | None,
    input_shape: tuple[int, ...],
    labels: int | None,
    *,
    seed: int,
    hold_out: bool = True,
) -> Data:
    """A user's own data; a tenth of it is held out unless `validation` is given.

    `labels` is the number of classes, or None if targets are not class numbers.
    """
    for given in (rows, validation):
        if given is not None and given.shape != input_shape:
            size, own = ("x".join(map(str, side)) for side in (input_shape, given.shape))
            raise DataError(f"the network takes images of {size}, the data has {own}")
    train = _own_part(rows, labels)
    if validation is None:
        stays, held = split_off(train.labels, VALIDATION, seed)
        split_by: dict[str, Any] = {"share": VALIDATION, "seed": seed}
        parts = train.pick(stays) if hold_out else train, train.pick(held)
    else:
        split_by = {"share": None, "seed": None}
        parts = train, _own_part(validation, labels)
    classes = rows.classes if len(rows.classes) == labels else tuple(map(str, range(labels or 0)))
    feed, native = Feed(input_shape, (), (), False), (input_shape[-1], input_shape[-2])
    return Data("data", classes, *parts, None, feed, native, rows.kind, split_by, hold_out)


def _own_part(rows: Rows, labels: int | None) -> Part:
    """All rows of a user's own data."""
    count = len(rows)
    return Part(np.zeros(count, np.int64), np.arange(count), own=OwnPart(rows, labels))


def small_size(spec: str, download: bool, most: tuple[int, ...]) -> tuple[int, ...]:
    """The size of the first image if it is smaller than `most`, for a network of no size yet."""
    width, height = _native(find(spec, download)[2].splits["train"])
    smaller = height < most[1] and width < most[2]
    return (most[0], height, width) if smaller else most


def _native(split: Split) -> tuple[int, int]:
    """Width and height of the first image."""
    if isinstance(split, Listing):
        return read_image(split.root / split.files[0], 3).size
    return split.pixels.shape[3], split.pixels.shape[2]


def _fingerprint(classes: tuple[str, ...], *parts: Part) -> str:
    """sha256 over labels and pixels; of images too large for memory, over names and sizes."""
    whole = hashlib.sha256(os.fsencode(repr(classes)))
    for part in parts:
        whole.update(part.labels.tobytes())
        if part.own is not None:
            whole.update(part.own.rows.sha256().encode())
            continue
        if part.pixels is not None:
            whole.update(hashlib.sha256(part.pixels.array[part.index].tobytes()).digest())
            continue
        for row in part.index:
            name = part.files[row]
            whole.update(os.fsencode(f"{name} {state_of(part.root / name).st_size}\n"))
    return whole.hexdigest()


def doubts(data: Data) -> list[str]:
    """What looks wrong with how the images are shown, for a user to read."""
    width, height = data.native
    if width >= data.feed.shape[2] or height >= data.feed.shape[1]:
        return []
    size = f"{data.feed.shape[0]}x{height}x{width}"
    return [
        f"the images are {width}x{height} and made larger for the network: if it was trained on "
        f"them as they are, pass --input {size}"
    ]


def feed_for(shown: Feed, statistics: dict[str, Any] | None) -> Feed:
    """The same images for a network with statistics of its own, where they are known."""
    if statistics is None or not shown.mean:
        return shown
    return _feed(shown.shape, statistics, shown.flip)


def _feed(shape: tuple[int, ...], statistics: dict[str, Any], flip: bool) -> Feed:
    """Statistics for as many channels as the network has; of grey images their mean."""
    found = _numbers(statistics)
    if found is None:
        raise DataError(
            f"the network's file has statistics that make no sense ({statistics}): pass --normalize"
        )
    mean, std = found
    if shape[0] == 1:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    elif len(mean) == 1:
        mean, std = mean * shape[0], std * shape[0]
    return Feed(shape, mean, std, flip)


def _numbers(statistics: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and deviation, if they make sense: one or three of each, finite, deviations over 0."""
    try:
        mean, std = (tuple(float(x) for x in statistics[key]) for key in ("mean", "std"))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    fit = len(mean) == len(std) and len(mean) in (1, 3)
    return (mean, std) if fit and np.isfinite([*mean, *std]).all() and min(std) > 0 else None


def split_off(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that stay and rows held out: the same share of every class, chosen by the seed."""
    rng = np.random.default_rng(seed)
    held = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        held.append(rows[:count])
    out = np.sort(np.concatenate(held))
    if not len(out):
        raise DataError("the data has one image of each class: too few to hold any out")
    return np.setdiff1d(np.arange(len(labels)), out), out


def _part(split: Split, shape: tuple[int, ...]) -> Part:
    """A split in memory if its images are small, else as files."""
    everything = np.arange(len(split.labels))
    if not isinstance(split, Listing):
        return Part(split.labels, everything, _shared(split.pixels, shape[0]))
    small = max(shape[1:]) <= LARGEST_SIDE
    if small and len(split.files) * int(np.prod(shape)) <= LARGEST_BYTES:
        return Part(split.labels, everything, decoded(split.root, split.files, shape))
    return Part(split.labels, everything, None, split.root.resolve(), split.files)


def _shared(pixels: np.ndarray, channels: int) -> Pixels:
    """Bytes in a file that all processes share; grey where the network wants one channel."""
    if channels == 1:
        pixels = pixels.mean(1, keepdims=True).round().astype(np.uint8)

    def fill(array: np.ndarray) -> None:
        array[:] = pixels

    return stored(hashlib.sha256(pixels.tobytes()).hexdigest(), pixels.shape, fill)


def parse_statistics(text: str | None) -> dict[str, list[float]] | None:
    """`imagenet`, …, or means and standard deviations `0.5,0.5,0.5:0.25,0.25,0.25`, or None."""
    if text is None:
        return None
    if text in STATISTICS:
        return STATISTICS[text]
    sides = [side.split(",") for side in text.split(":")]
    found = _numbers(dict(zip(("mean", "std"), sides, strict=True))) if len(sides) == 2 else None
    if found is not None:
        return {"mean": list(found[0]), "std": list(found[1])}
    raise SettingError(
        f"--normalize {text}: expected {', '.join(STATISTICS)}, or means and deviations such as "
        "0.5,0.5,0.5:0.25,0.25,0.25"
    )
