"""Decoded images, cached in files that all processes on a machine map into memory and share."""

import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from PIL import Image, ImageOps

from legr_cli.errors import DataError, first_line


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


def decode(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Read one image as C × H × W uint8, resized and center-cropped to `shape`."""
    channels, height, width = shape
    image = read_image(path, channels)
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


def state_of(path: Path) -> os.stat_result:
    """The `stat` of a file; raises DataError if it cannot be accessed."""
    try:
        return path.stat()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: replace or remove it") from error


def decoded(root: Path, files: tuple[str, ...], shape: tuple[int, ...]) -> Pixels:
    """All of these images, decoded on first use and read from the cache afterwards."""

    def fill(array: np.ndarray) -> None:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            images = pool.map(lambda name: decode(root / name, shape), files)
            for row, image in enumerate(images):
                array[row] = image

    key = hashlib.sha256(repr((str(root.resolve()), shape)).encode())
    for name in files:
        stat = state_of(root / name)
        key.update(os.fsencode(f"{name} {stat.st_size} {stat.st_mtime_ns}\n"))
    return stored(key.hexdigest(), (len(files), *shape), fill)


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
