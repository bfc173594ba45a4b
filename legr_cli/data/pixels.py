"""Decoded images, cached in files that all processes on a machine map into memory and share."""

import contextlib
import functools
import hashlib
import math
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from PIL import Image, ImageOps

from legr_cli.errors import DataError, first_line

IGNORED = 255  # in label pictures as networks see them: a pixel that does not count
_LABEL_MODES = {"1", "L", "P", "I", "I;16"}
_BILINEAR = int(Image.Resampling.BILINEAR)


class Pixels:
    """A uint8 array of N × C × H × W; if it is mapped from a file, only the path is pickled."""

    def __init__(self, array: np.ndarray, path: Path | None = None) -> None:
        self.array, self.path = array, path
        self._on: dict[torch.device, torch.Tensor] = {}

    @classmethod
    def map(cls, path: Path) -> "Pixels":
        """Map a file into memory; pages are read on demand and shared between processes."""
        return cls(open_memmap(path, "c"), path)  # copy-on-write: torch warns on read-only arrays

    def __reduce__(self) -> tuple[Callable[..., "Pixels"], tuple[Any, ...]]:
        return (Pixels, (self.array,)) if self.path is None else (Pixels.map, (self.path,))

    def on(self, device: torch.device) -> torch.Tensor:
        """All images as a tensor; copied to each device once."""
        if device not in self._on:
            self._on[device] = torch.from_numpy(self.array).to(device)
        return self._on[device]


def cache_folder() -> Path:
    """The folder for decoded images: `$LEGR_CACHE`, or `legr` in the user's cache folder."""
    if configured := os.environ.get("LEGR_CACHE"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "legr"


def read_image(path: Path, channels: int) -> Image.Image:
    """Read an image file in grayscale or RGB, at its original size; 16 bits become 8."""
    try:
        with Image.open(path) as file:
            is_16_bit = file.mode.startswith("I;16") or file.mode == "I"
            image = Image.fromarray((np.asarray(file) >> 8).astype(np.uint8)) if is_16_bit else file
            return image.convert("L" if channels == 1 else "RGB")
    except Exception as error:  # PIL raises many types of errors on invalid files
        raise DataError(
            f"{path} is not a readable image ({first_line(error)}): replace or remove it"
        ) from error


def read_labels(path: Path, ignored: int, classes: int) -> Image.Image:
    """Read a label picture, a class number for each pixel; pixels that do not count become 255."""
    try:
        with Image.open(path) as file:
            numbers = np.asarray(file) if file.mode in _LABEL_MODES else None
            mode = file.mode
    except Exception as error:  # PIL raises many types of errors on invalid files
        raise DataError(f"{path} is not a readable image ({first_line(error)})") from error
    if numbers is None:
        raise DataError(
            f"{path} is a picture of mode {mode}: a label picture has one class number for each "
            "pixel (mode L or P)"
        )
    counts = numbers != ignored
    least, most = (int(f(numbers[counts])) for f in (np.min, np.max)) if counts.any() else (0, 0)
    if least < 0 or most >= classes:
        most = least if least < 0 else most
        raise DataError(
            f"{path} has class {most}, but the network has {classes} classes: pass --ignore-index "
            f"{most} if these pixels do not count, or a network with more --classes"
        )
    return Image.fromarray(np.where(counts, numbers, IGNORED).astype(np.uint8))


@dataclass(frozen=True)
class Fitting:
    """How pictures of any size are brought to one size."""

    size: tuple[int, int]  # width and height
    resize: str = "crop"  # one of `settings.RESIZES`
    crop: float = 1.0  # "crop": side of the central crop, relative to the resized picture's

    @property
    def keeps(self) -> bool:
        """Whether pictures that have this size already are taken as they are."""
        return self.resize != "crop" or self.crop == 1

    def __call__(
        self, image: Image.Image, name: object, resample: int = _BILINEAR, fill: int = 0
    ) -> Image.Image:
        """The picture at this size; `name` is what an error calls it."""
        if self.keeps and image.size == self.size:
            return image
        if self.resize == "none":
            found, wanted = ("x".join(map(str, size)) for size in (image.size, self.size))
            raise DataError(
                f"{name} is {found}, but the input is {wanted} and --resize none takes images "
                "as they are: pass --resize crop, squash or pad, or another --input"
            )
        if self.resize == "squash":
            return image.resize(self.size, resample)
        if self.resize == "pad":
            return ImageOps.pad(image, self.size, resample, fill)
        if self.crop == 1:
            return ImageOps.fit(image, self.size, resample)
        return self._center_crop(image, resample)

    def _center_crop(self, image: Image.Image, resample: int) -> Image.Image:
        """What torchvision's Resize and CenterCrop give; it always covers the input."""
        width, height = self.size
        resized = _with_short_side(image.size, round(min(self.size) / self.crop))
        if resized[0] < width or resized[1] < height:  # the input is longer than the picture
            scale = max(width / image.width, height / image.height) / self.crop
            resized = _with_short_side(image.size, math.ceil(scale * min(image.size)))
        image = image.resize(resized, resample)
        left, top = round((resized[0] - width) / 2), round((resized[1] - height) / 2)
        return image.crop((left, top, left + width, top + height))


def _with_short_side(size: tuple[int, int], short: int) -> tuple[int, int]:
    """Width and height with the same aspect ratio and this short side, rounded as torchvision."""
    width, height = size
    if width <= height:
        return short, int(short * height / width)
    return int(short * width / height), short


def as_array(image: Image.Image) -> np.ndarray:
    """A grayscale or RGB picture as C × H × W uint8."""
    return np.asarray(image).reshape(image.height, image.width, -1).transpose(2, 0, 1)


def image_size(path: Path) -> tuple[int, int] | None:
    """Width and height from an image file's header; None if it cannot be read."""
    try:
        with Image.open(path) as file:
            return file.size
    except Exception:  # an error that matters is raised where the picture is used
        return None


def state_of(path: Path) -> os.stat_result:
    """The `stat` of a file; raises DataError if it cannot be accessed."""
    try:
        return path.stat()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: replace or remove it") from error


def decoded(root: Path, files: tuple[str, ...], channels: int, fitting: Fitting) -> Pixels:
    """All of these images, decoded on first use and read from the cache afterwards."""

    def decode(name: str) -> np.ndarray:
        path = root / name
        return as_array(fitting(read_image(path, channels), path))

    def fill(array: np.ndarray) -> None:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for row, image in enumerate(pool.map(decode, files)):
                array[row] = image

    width, height = fitting.size
    shape = (channels, height, width)
    about = (shape,) if fitting == Fitting(fitting.size) else (shape, fitting)
    key = hashlib.sha256(repr((str(root.resolve()), *about)).encode())
    for name in files:
        stat = state_of(root / name)
        key.update(os.fsencode(f"{name} {stat.st_size} {stat.st_mtime_ns}\n"))
    return stored(key.hexdigest(), (len(files), *shape), fill)


def refitted(pixels: np.ndarray, fitting: Fitting, name: str) -> np.ndarray:
    """The same images, N × C × H × W, at another size."""
    layers = (rows[0] if len(rows) == 1 else rows.transpose(1, 2, 0) for rows in pixels)
    return np.stack([as_array(fitting(Image.fromarray(rows), name)) for rows in layers])


def stored(key: str, shape: tuple[int, ...], fill: Callable[[np.ndarray], None]) -> Pixels:
    """The cached pixels with this key; on a miss, `fill` writes them into a new array."""
    folder = _writable_folder()
    path = folder / f"images-{key[:32]}.npy"
    with contextlib.suppress(Exception):  # missing or damaged: write it again
        cached = Pixels.map(path)
        if cached.array.shape == shape and cached.array.dtype == np.uint8:
            return cached
    handle, name = tempfile.mkstemp(prefix=".images-", dir=folder)
    os.close(handle)
    try:
        array = open_memmap(name, "w+", np.uint8, shape)
        _reserve(Path(name))
        fill(array)
        array.flush()
        Path(name).replace(path)
    except OSError as error:
        raise DataError(
            f"cannot cache the decoded images in {folder} ({error.strerror}): "
            "set LEGR_CACHE to another folder"
        ) from error
    finally:
        Path(name).unlink(missing_ok=True)
    return Pixels.map(path)


def _reserve(path: Path) -> None:
    """Allocate disk space now: writing to a mapped file on a full disk would kill the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


@functools.cache
def _writable_folder() -> Path:
    """The cache folder or, if it is not writable, a temporary one for this process."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        temporary = tempfile.TemporaryDirectory(prefix="legr-")
        _temporary.append(temporary)  # a reference, so that it is removed only at exit
        return Path(temporary.name)


_temporary: list[tempfile.TemporaryDirectory] = []
