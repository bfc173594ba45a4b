"""Prepare a dataset for a network: train, validation and test parts, and input preprocessing."""

import functools
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from legr_cli.data.own import OwnPart, Rows
from legr_cli.data.pixels import Pixels, decoded, read_image, state_of, stored
from legr_cli.data.sources import Arrays, Listing, Split, find
from legr_cli.errors import DataError, SettingError
from legr_cli.models.registry import IMAGENET_STATISTICS

VALIDATION = 0.1  # fraction of the training images held out for validation
LARGEST_SIDE, LARGEST_BYTES = 96, 4 << 30  # limits on images and datasets kept decoded
STATISTICS = {  # per-channel mean and standard deviation of pixel values in [0, 1]
    "imagenet": IMAGENET_STATISTICS,
    "cifar10": {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2470, 0.2435, 0.2616]},
    "cifar100": {"mean": [0.5071, 0.4865, 0.4409], "std": [0.2673, 0.2564, 0.2762]},
    "digits": {"mean": [0.305] * 3, "std": [0.376] * 3},
    "half": {"mean": [0.5] * 3, "std": [0.5] * 3},
    "none": {"mean": [0.0] * 3, "std": [1.0] * 3},
}


@dataclass(frozen=True)
class Part:
    """A subset of images and labels, stored as decoded pixels, files, or a user's own data."""

    labels: np.ndarray  # all 0 if labels are only known once an image is read
    index: np.ndarray  # position of each image in `pixels`, `files` or `own`
    pixels: Pixels | None = None
    root: Path = Path()
    files: tuple[str, ...] = ()
    own: OwnPart | None = None

    def __len__(self) -> int:
        return len(self.index)

    def pick(self, rows: np.ndarray) -> "Part":
        """Select images by position."""
        return replace(self, labels=self.labels[rows], index=self.index[rows])

    def carried(self) -> "Part":
        """The same part for another machine: decoded images are copied, files must exist there."""
        if self.pixels is None:
            return self
        rows = Pixels(self.pixels.array[self.index])
        return Part(self.labels, np.arange(len(self.index)), rows)


@dataclass(frozen=True)
class Feed:
    """How images are preprocessed for a network."""

    shape: tuple[int, ...]  # channels, height, width
    mean: tuple[float, ...]  # empty: the data is already normalized
    std: tuple[float, ...]
    flip: bool  # whether to flip images horizontally at random during training

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        if not self.mean:
            return f"{size}, not normalized by legr"
        numbers = (",".join(f"{x:g}" for x in values) for values in (self.mean, self.std))
        return f"{size}, normalized by {':'.join(numbers)}"

    @property
    def statistics(self) -> dict[str, list[float]] | None:
        """Mean and std as stored in a network's file; None if the data is already normalized."""
        if not self.mean:
            return None
        return {"mean": list(self.mean), "std": list(self.std)}


@dataclass(frozen=True)
class Data:
    """A dataset prepared for one network."""

    spec: str
    classes: tuple[str, ...]
    train: Part
    validation: Part
    test: Part | None
    feed: Feed
    native: tuple[int, int]  # width and height of the first image before resizing
    kind: str
    split_by: dict[str, Any]  # fraction and seed of the validation split, if legr chose it
    held_out: bool = True  # whether validation images are excluded from training

    @functools.cached_property
    def card(self) -> dict[str, Any]:
        """Identifies the dataset and its split; stored with results."""
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
    """Read the dataset that `spec` names and prepare it for a network.

    A tenth of the training images is held out for validation, unless the dataset has a validation
    split. With `hold_out=False` the same images are still used for validation, but also trained on.
    """
    _check_image_shape(input_shape)
    name, kind, source = find(spec, download)
    if not kind.labels:
        raise DataError(
            f"--data {spec}: these images have no labels, which only legr repair does without; "
            "pass folder:DIR with train/CLASS/*.jpg"
        )
    parts = {key: _part(split, input_shape) for key, split in source.splits.items()}
    train, validation = parts["train"], parts.get("val")
    has_validation = validation is not None
    if has_validation and not hold_out:
        raise DataError(f"--all-images: {spec} has its own validation images, in val/")
    if validation is None:
        remaining, held = split_off(train.labels, VALIDATION, seed)
        train, validation = train.pick(remaining) if hold_out else train, train.pick(held)
    feed = _feed(input_shape, statistics or STATISTICS[kind.statistics], kind.flip)
    native = _native(source.splits["train"])
    split_by: dict[str, Any] = {"share": VALIDATION, "seed": seed}
    if has_validation:
        split_by = {"share": None, "seed": None}
    test = parts.get("test")
    return Data(
        spec, source.classes, train, validation, test, feed, native, name, split_by, hold_out
    )


def open_pictures(
    spec: str,
    input_shape: tuple[int, ...],
    count: int,
    *,
    seed: int,
    statistics: dict[str, Any] | None = None,
    download: bool = False,
) -> Data:
    """Choose up to `count` pictures at random, with or without labels; they become `train`.

    Validation and test images are not among them.
    """
    _check_image_shape(input_shape)
    name, kind, source = find(spec, download)
    split = source.splits["train"]
    rows = np.arange(len(split.labels))
    if kind.labels and "val" not in source.splits:
        rows, _ = split_off(split.labels, VALIDATION, seed)
    rows = np.random.default_rng(seed).permutation(rows)[:count]
    chosen = _part(_pick(split, rows), input_shape)
    feed = _feed(input_shape, statistics or STATISTICS[kind.statistics], kind.flip)
    none, split_by = chosen.pick(rows[:0]), {"share": None, "seed": seed}
    return Data(spec, source.classes, chosen, none, None, feed, _native(split), name, split_by)


def _check_image_shape(shape: tuple[int, ...]) -> None:
    """Raise unless images of this shape can be read from files."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        size = "x".join(map(str, shape))
        raise DataError(f"the network expects {size}, but images have 1 or 3 channels and 2 sides")


def _pick(split: Split, rows: np.ndarray) -> Split:
    """Some images of a split, before any is decoded."""
    if isinstance(split, Listing):
        return Listing(split.root, tuple(split.files[row] for row in rows), split.labels[rows])
    return Arrays(split.pixels[rows], split.labels[rows])


def own_data(
    rows: Rows,
    validation: Rows | None,
    input_shape: tuple[int, ...],
    labels: int | None,
    *,
    seed: int,
    hold_out: bool = True,
) -> Data:
    """Prepare a user's own data; a tenth of it is held out unless `validation` is given.

    `labels` is the number of classes, or None if the targets are not class indices.
    """
    for given in (rows, validation):
        if given is not None and given.shape != input_shape:
            expected, actual = ("x".join(map(str, shape)) for shape in (input_shape, given.shape))
            raise DataError(f"the network expects images of {expected}, but the data has {actual}")
    train = _own_part(rows, labels)
    if validation is None:
        remaining, held = split_off(train.labels, VALIDATION, seed)
        split_by: dict[str, Any] = {"share": VALIDATION, "seed": seed}
        parts = train.pick(remaining) if hold_out else train, train.pick(held)
    else:
        split_by = {"share": None, "seed": None}
        parts = train, _own_part(validation, labels)
    classes = rows.classes if len(rows.classes) == labels else tuple(map(str, range(labels or 0)))
    feed, native = Feed(input_shape, (), (), False), (input_shape[-1], input_shape[-2])
    return Data("data", classes, *parts, None, feed, native, rows.kind, split_by, hold_out)


def _own_part(rows: Rows, labels: int | None) -> Part:
    """A part with all rows of a user's own data."""
    count = len(rows)
    return Part(np.zeros(count, np.int64), np.arange(count), own=OwnPart(rows, labels))


def small_size(spec: str, download: bool, most: tuple[int, ...]) -> tuple[int, ...]:
    """The input shape for a network without a fixed one: the first image's size, up to `most`."""
    width, height = _native(find(spec, download)[2].splits["train"])
    smaller = height < most[1] and width < most[2]
    return (most[0], height, width) if smaller else most


def _native(split: Split) -> tuple[int, int]:
    """Width and height of the first image."""
    if isinstance(split, Listing):
        return read_image(split.root / split.files[0], 3).size
    return split.pixels.shape[3], split.pixels.shape[2]


def _fingerprint(classes: tuple[str, ...], *parts: Part) -> str:
    """SHA-256 of labels and pixels; for images read from files, of file names and sizes."""
    digest = hashlib.sha256(os.fsencode(repr(classes)))
    for part in parts:
        digest.update(part.labels.tobytes())
        if part.own is not None:
            digest.update(part.own.rows.sha256().encode())
            continue
        if part.pixels is not None:
            digest.update(hashlib.sha256(part.pixels.array[part.index].tobytes()).digest())
            continue
        for row in part.index:
            name = part.files[row]
            digest.update(os.fsencode(f"{name} {state_of(part.root / name).st_size}\n"))
    return digest.hexdigest()


def doubts(data: Data) -> list[str]:
    """Warnings about preprocessing that looks wrong."""
    width, height = data.native
    if width >= data.feed.shape[2] or height >= data.feed.shape[1]:
        return []
    size = f"{data.feed.shape[0]}x{height}x{width}"
    return [
        f"the images are {width}x{height} and are enlarged for the network: if it was trained at "
        f"their original size, pass --input {size}"
    ]


def feed_for(shown: Feed, statistics: dict[str, Any] | None) -> Feed:
    """The same preprocessing with another network's statistics, if they are known."""
    if statistics is None or not shown.mean:
        return shown
    return _feed(shown.shape, statistics, shown.flip)


def _feed(shape: tuple[int, ...], statistics: dict[str, Any], flip: bool) -> Feed:
    """Make a `Feed`, with statistics adapted to the number of channels (grayscale: their mean)."""
    parsed = _mean_std(statistics)
    if parsed is None:
        raise DataError(
            f"the network's file has invalid normalization statistics ({statistics}): "
            "pass --normalize"
        )
    mean, std = parsed
    if shape[0] == 1:
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    elif len(mean) == 1:
        mean, std = mean * shape[0], std * shape[0]
    return Feed(shape, mean, std, flip)


def _mean_std(statistics: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation if valid (one or three of each, finite, std > 0), else None."""
    try:
        mean, std = (tuple(float(x) for x in statistics[key]) for key in ("mean", "std"))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    valid = len(mean) == len(std) and len(mean) in (1, 3)
    return (mean, std) if valid and np.isfinite([*mean, *std]).all() and min(std) > 0 else None


def split_off(labels: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into remaining and held-out ones: the same fraction of every class, by seed."""
    rng = np.random.default_rng(seed)
    held = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        held.append(rows[:count])
    held_out = np.sort(np.concatenate(held))
    if not len(held_out):
        raise DataError("the data has only one image per class: too few to hold any out")
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def _part(split: Split, shape: tuple[int, ...]) -> Part:
    """Make a part of a split: decoded if its images are small, else read from files."""
    index = np.arange(len(split.labels))
    if not isinstance(split, Listing):
        return Part(split.labels, index, _shared(split.pixels, shape[0]))
    small = max(shape[1:]) <= LARGEST_SIDE
    if small and len(split.files) * int(np.prod(shape)) <= LARGEST_BYTES:
        return Part(split.labels, index, decoded(split.root, split.files, shape))
    return Part(split.labels, index, None, split.root.resolve(), split.files)


def _shared(pixels: np.ndarray, channels: int) -> Pixels:
    """Pixels in a file that all processes share; grayscale if the network has one input channel."""
    if channels == 1:
        pixels = pixels.mean(1, keepdims=True).round().astype(np.uint8)

    def fill(array: np.ndarray) -> None:
        array[:] = pixels

    return stored(hashlib.sha256(pixels.tobytes()).hexdigest(), pixels.shape, fill)


def parse_statistics(text: str | None) -> dict[str, list[float]] | None:
    """Parse a name such as `imagenet`, or means and standard deviations `MEAN,…:STD,…`.

    None stays None.
    """
    if text is None:
        return None
    if text in STATISTICS:
        return STATISTICS[text]
    sides = [side.split(",") for side in text.split(":")]
    parsed = _mean_std(dict(zip(("mean", "std"), sides, strict=True))) if len(sides) == 2 else None
    if parsed is not None:
        return {"mean": list(parsed[0]), "std": list(parsed[1])}
    raise SettingError(
        f"--normalize {text}: expected {', '.join(STATISTICS)}, or means and standard deviations "
        "such as 0.5,0.5,0.5:0.25,0.25,0.25"
    )
