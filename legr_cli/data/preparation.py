"""How a dataset's pictures are prepared: by the user's choices, the network's file, or defaults."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from legr_cli.data.pixels import image_size, read_image
from legr_cli.data.sources import DatasetKind, Listing, Split
from legr_cli.errors import DataError, SettingError
from legr_cli.models.registry import imported
from legr_cli.settings import Pictures

LARGEST_SIDE, LARGEST_BYTES = 96, 4 << 30  # limits on images and datasets kept decoded
CLASSIC_CROP = 224 / 256  # of ImageNet
_SAMPLED = 16  # pictures whose sizes are looked at

Size = tuple[int, int]  # width and height


def fits_in_memory(split: Split, shape: tuple[int, ...]) -> bool:
    """Whether a split is kept decoded, rather than read from its files again and again."""
    if not isinstance(split, Listing):
        return True
    return max(shape[1:]) <= LARGEST_SIDE and len(split.files) * math.prod(shape) <= LARGEST_BYTES


def sizes_in(split: Split) -> list[Size]:
    """The different sizes of a split's images, from a sample; that of the first image first."""
    if not isinstance(split, Listing):
        return [(split.pixels.shape[3], split.pixels.shape[2])]
    first = read_image(split.root / split.files[0], 3).size
    rows = np.linspace(0, len(split.files) - 1, _SAMPLED).astype(int)
    others = (image_size(split.root / split.files[row]) for row in rows[1:])
    return list(dict.fromkeys([first, *(size for size in others if size is not None)]))


def earlier(kind: DatasetKind, split: Split, shape: tuple[int, ...]) -> Pictures:
    """What legr did before it recorded its choices; still the default of the known datasets."""
    if not isinstance(split, Listing):
        [(width, height)] = sizes_in(split)
        resize = "crop" if width * shape[1] == height * shape[2] else "squash"
        crop = 1.0 if resize == "crop" else None
        return Pictures(resize=resize, crop=crop, random_crop="padded", flip=kind.flip)
    if fits_in_memory(split, shape):
        return Pictures(resize="crop", crop=1.0, random_crop="padded", flip=kind.flip)
    return Pictures(resize="crop", crop=CLASSIC_CROP, random_crop="resized", flip=kind.flip)


def usual(kind: DatasetKind, split: Split, shape: tuple[int, ...], sizes: list[Size]) -> Pictures:
    """The default. Pictures that have the input size already are taken as they are."""
    default = earlier(kind, split, shape)
    if not kind.augment:  # a mirrored or cropped picture may belong to another class
        return Pictures(resize="crop", crop=1.0, random_crop="none", flip=False)
    if sizes == [(shape[2], shape[1])]:
        return Pictures(crop=1.0).over(default)
    return default


def imported_transform(name: str) -> Callable[..., Any]:
    """The user's own function that makes an input of an image."""
    return imported("--transform", name, "function", "a function of an image")


def resolved(chosen: Pictures, note: Any, usually: Pictures, split: Split, spec: str) -> Pictures:
    """The user's choices; where they leave one open, the file's; and where that does, the usual."""
    noted = _recorded(note)
    if chosen.transform is None and noted.transform is not None:
        if chosen == Pictures():
            raise DataError(
                f"the network takes images as {noted.transform} makes them: pass --transform "
                f"{noted.transform} (legr imports nothing because a file says so), or --resize"
            )
        noted = Pictures()
    if chosen.transform is not None:
        if not isinstance(split, Listing) or split.maps:
            raise SettingError(
                f"--transform needs image files without label pictures, and {spec} has none: from "
                "Python, pass a dataset of your own"
            )
        imported_transform(chosen.transform)  # raises here rather than in a worker
        return chosen
    if not isinstance(split, Listing):  # arrays are cropped at their own size only
        if chosen.random_crop == "resized":
            raise SettingError(
                f"--random-crop resized needs image files, and {spec} has none: pass "
                "--random-crop padded"
            )
        if noted.random_crop == "resized":
            noted = replace(noted, random_crop=None)
    return chosen.over(noted).over(usually)


def _recorded(note: Any) -> Pictures:
    """The choices that a network's file records; none where it records nothing."""
    if note is None:
        return Pictures()
    try:
        return Pictures(**note)
    except (TypeError, SettingError) as error:
        raise DataError(
            f"the network's file has notes on preprocessing that this version of legr cannot read "
            f"({note}): was it written by a newer one?"
        ) from error
