"""Prepare a dataset for a network: train, validation and test parts, and input preprocessing."""

import dataclasses
import functools
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from legr_cli.data.feed import STATISTICS, Feed, mean_std
from legr_cli.data.own import OwnPart, Rows
from legr_cli.data.pixels import IGNORED, Pixels, decoded, refitted, state_of, stored
from legr_cli.data.preparation import earlier, fits_in_memory, resolved, sizes_in, usual
from legr_cli.data.sources import Arrays, Listing, Split, find
from legr_cli.errors import DataError
from legr_cli.settings import Pictures

VALIDATION = 0.1  # fraction of the training images held out for validation


@dataclass(frozen=True)
class LabelMaps:
    """Label pictures beside the files of a part."""

    files: tuple[str, ...]  # one for each of the part's files
    classes: int
    ignored: int  # class number of pixels that do not count


@dataclass(frozen=True)
class Part:
    """A subset of images and labels, stored as decoded pixels, files, or a user's own data."""

    labels: np.ndarray  # all 0 if labels are only known once an image is read
    index: np.ndarray  # position of each image in `pixels`, `files` or `own`
    pixels: Pixels | None = None
    root: Path = Path()
    files: tuple[str, ...] = ()
    own: OwnPart | None = None
    maps: LabelMaps | None = None  # label pictures, if targets are such

    def __len__(self) -> int:
        return len(self.index)

    def pick(self, rows: np.ndarray) -> "Part":
        """Select images by position."""
        return replace(self, labels=self.labels[rows], index=self.index[rows])

    def self_contained(self) -> "Part":
        """The same part for another machine: decoded images are copied, files must exist there."""
        if self.pixels is None:
            return self
        rows = Pixels(self.pixels.array[self.index])
        return Part(self.labels, np.arange(len(self.index)), rows)


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
    mixed: bool = False  # whether images differ in size
    as_before: bool = True  # whether images are prepared as before legr recorded how
    remarks: tuple[str, ...] = ()  # on how classes were matched with the network's

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; none for a user's own data without names."""
        numbers = tuple(map(str, range(len(self.classes))))
        return [] if self.train.own and self.classes == numbers else list(self.classes)

    @property
    def pictures(self) -> dict[str, Any] | None:
        """How pictures become inputs, as notes record it; None for a user's own data."""
        if not self.feed.mean and self.feed.transform is None:
            return None
        chosen = dataclasses.asdict(self.feed.pictures)
        return {name: value for name, value in chosen.items() if value is not None}

    @functools.cached_property
    def card(self) -> dict[str, Any]:
        """Identifies the dataset and its split; stored with results."""
        return {
            "kind": self.kind,
            "classes": len(self.classes),
            "sha256": _fingerprint(self.classes, self.train, self.validation),
            "images": {"train": len(self.train), "validation": len(self.validation)},
            **({} if self.train.maps is None else {"ignore_index": self.train.maps.ignored}),
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
    pictures: Pictures | None = None,
    recorded_pictures: Any = None,
    download: bool = False,
    hold_out: bool = True,
    classes: int = 0,
    ignore_index: int = IGNORED,
) -> Data:
    """Read the dataset that `spec` names and prepare it for a network.

    A tenth of the training images is held out for validation, unless the dataset has a validation
    split. With `hold_out=False` the same images are still used for validation, but also trained on.
    Choices that `pictures` leaves open are those of `recorded_pictures`, from the network's file,
    or the dataset's defaults. `classes` and `ignore_index` are for label pictures.
    """
    _check_image_shape(input_shape)
    name, kind, source = find(spec, download)
    original = source.splits["train"]
    sizes = sizes_in(original)
    usually = usual(kind, original, input_shape, sizes)
    chosen = resolved(pictures or Pictures(), recorded_pictures, usually, original, spec)
    feed = _feed(input_shape, statistics or STATISTICS[kind.statistics], chosen)
    parts = {
        key: _part(split, feed, spec, classes, ignore_index) for key, split in source.splits.items()
    }
    train, validation = parts["train"], parts.get("val")
    has_validation = validation is not None
    if has_validation and not hold_out:
        raise DataError(f"--all-images: {spec} has its own validation images, in val/")
    if validation is None:
        remaining, held = split_off(train.labels, VALIDATION, seed)
        train, validation = train.pick(remaining) if hold_out else train, train.pick(held)
    split_by: dict[str, Any] = {"share": VALIDATION, "seed": seed}
    if has_validation:
        split_by = {"share": None, "seed": None}
    return Data(
        spec,
        source.classes or tuple(map(str, range(classes))),
        train,
        validation,
        parts.get("test"),
        feed,
        sizes[0],
        name,
        split_by,
        hold_out,
        mixed=len(sizes) > 1,
        as_before=feed.pictures == earlier(kind, original, input_shape),
    )


def _feed(shape: tuple[int, ...], statistics: dict[str, Any], chosen: Pictures) -> Feed:
    """How images are prepared, once no choice is left open."""
    if chosen.transform is not None:
        return Feed(shape, (), (), False, "none", transform=chosen.transform)
    mean, std = mean_std(statistics, shape[0])
    flip, random_crop, resize = bool(chosen.flip), chosen.random_crop, chosen.resize
    assert random_crop is not None
    assert resize is not None
    return Feed(shape, mean, std, flip, random_crop, resize, chosen.crop or 1.0)


def open_pictures(
    spec: str,
    input_shape: tuple[int, ...],
    count: int,
    *,
    seed: int,
    statistics: dict[str, Any] | None = None,
    pictures: Pictures | None = None,
    recorded_pictures: Any = None,
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
    sizes = sizes_in(split)
    usually = usual(kind, split, input_shape, sizes)
    how = resolved(pictures or Pictures(), recorded_pictures, usually, split, spec)
    feed = _feed(input_shape, statistics or STATISTICS[kind.statistics], how)
    chosen = _part(_pick(split, rows), feed, spec)
    none, split_by = chosen.pick(rows[:0]), {"share": None, "seed": seed}
    return Data(spec, source.classes, chosen, none, None, feed, sizes[0], name, split_by)


def _check_image_shape(shape: tuple[int, ...]) -> None:
    """Raise unless images of this shape can be read from files."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        size = "x".join(map(str, shape))
        raise DataError(
            f"the network expects {size}, but images have 1 or 3 channels, a height and a width"
        )


def _pick(split: Split, rows: np.ndarray) -> Split:
    """Some images of a split, before any is decoded."""
    if isinstance(split, Listing):
        files, maps = (tuple(of[row] for row in rows if of) for of in (split.files, split.maps))
        return Listing(split.root, files, split.labels[rows], maps)
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
    height, width = (1, 1, *input_shape)[-2:]  # of vectors as well
    feed, native = Feed(input_shape, (), (), False), (width, height)
    return Data("data", classes, *parts, None, feed, native, rows.kind, split_by, hold_out)


def _own_part(rows: Rows, labels: int | None) -> Part:
    """A part with all rows of a user's own data."""
    count = len(rows)
    return Part(np.zeros(count, np.int64), np.arange(count), own=OwnPart(rows, labels))


def small_size(spec: str, download: bool, most: tuple[int, ...]) -> tuple[int, ...]:
    """The input shape for a network without a fixed one: the first image's size, up to `most`."""
    width, height = sizes_in(find(spec, download)[2].splits["train"])[0]
    smaller = height < most[1] and width < most[2]
    return (most[0], height, width) if smaller else most


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
            for names in (part.files, () if part.maps is None else part.maps.files):
                if names:
                    size = state_of(part.root / names[row]).st_size
                    digest.update(os.fsencode(f"{names[row]} {size}\n"))
    return digest.hexdigest()


def described(data: Data, training: bool = False) -> list[str]:
    """How images become inputs, in words; `training` adds how they are varied."""
    feed, size = data.feed, "{}x{}".format(*data.native)
    if not feed.mean:  # a user's own data
        return []
    how = f"crop {feed.crop:.4g}" if feed.resize == "crop" and feed.crop < 1 else feed.resize
    side = "{}x{}".format(*feed.fitting.size)
    text = f"images {size}, resized to {side} ({how})"
    if data.mixed:
        text = f"images of several sizes, such as {size}, resized to {side} ({how})"
    elif data.native == feed.fitting.size and feed.fitting.keeps:
        text = f"images {size}, used as they are"
    return [text, *[_variation(feed)] * training, *data.remarks]


def _variation(feed: Feed) -> str:
    """How images are varied in training, in words."""
    crop = "no random crops" if feed.random_crop == "none" else f"{feed.random_crop} random crops"
    flip = "mirroring" if feed.flip else "no mirroring"
    return f"training images: {crop}, {flip} (--random-crop, --flip)"


def doubts(data: Data) -> list[str]:
    """Warnings about preprocessing that looks wrong."""
    width, height = data.native
    if data.feed.transform is not None or len(data.feed.shape) < 3:
        return []
    if width >= data.feed.shape[2] or height >= data.feed.shape[1]:
        return []
    size = f"{data.feed.shape[0]}x{height}x{width}"
    return [
        f"the images are {width}x{height} and are enlarged for the network: if it was trained at "
        f"their original size, pass --input {size}"
    ]


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
        per_class = " per class" if len(held) > 1 else ""
        raise DataError(f"the data has only one image{per_class}: too few to hold any out")
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


def _part(
    split: Split, feed: Feed, spec: str, classes: int = 0, ignore_index: int = IGNORED
) -> Part:
    """Make a part of a split: decoded if its images are small, else read from files."""
    index = np.arange(len(split.labels))
    if not isinstance(split, Listing):
        return Part(split.labels, index, _shared(split.pixels, feed, spec))
    if split.maps and classes:
        maps = LabelMaps(split.maps, classes, ignore_index)
        return Part(split.labels, index, None, split.root.resolve(), split.files, maps=maps)
    in_memory = feed.random_crop != "resized" and feed.transform is None
    if in_memory and fits_in_memory(split, feed.shape):
        pixels = decoded(split.root, split.files, feed.shape[0], feed.fitting)
        return Part(split.labels, index, pixels)
    return Part(split.labels, index, None, split.root.resolve(), split.files)


def _shared(pixels: np.ndarray, feed: Feed, spec: str) -> Pixels:
    """Pixels in a file that all processes share; grayscale if the network has one input channel.

    Where the whole image is just scaled, it keeps its size here and is resized in batches.
    """
    if feed.shape[0] == 1:
        pixels = pixels.mean(1, keepdims=True).round().astype(np.uint8)
    (height, width), fitting = pixels.shape[2:], feed.fitting
    same_aspect = width * feed.shape[1] == height * feed.shape[2]
    scaled = feed.resize == "squash" or (fitting.keeps and same_aspect and feed.resize != "none")
    if not scaled and not (fitting.keeps and fitting.size == (width, height)):
        pixels = refitted(pixels, fitting, f"an image of {spec}")

    def fill(array: np.ndarray) -> None:
        array[:] = pixels

    return stored(hashlib.sha256(pixels.tobytes()).hexdigest(), pixels.shape, fill)
