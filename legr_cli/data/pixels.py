"""Decoded images as bytes, kept in a file that every process of a machine maps and shares."""

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
    """N × C × H × W bytes; pickled as the name of their file where they have one."""

    def __init__(self, array: np.ndarray, path: Path | None = None) -> None:
        self.array, self.path = array, path
        self._on: dict[torch.device, torch.Tensor] = {}

    @classmethod
    def map(cls, path: Path) -> "Pixels":
        """The bytes of a file, which are read when they are needed and shared by its readers."""
        return cls(open_memmap(path, "c"), path)  # "c": writable for torch, never written

    def __reduce__(self) -> tuple[Callable[..., "Pixels"], tuple[Any, ...]]:
        return (Pixels, (self.array,)) if self.path is None else (Pixels.map, (self.path,))

    def on(self, device: torch.device) -> torch.Tensor:
        """All images as a tensor; copied to another device once."""
        if device not in self._on:
            self._on[device] = torch.from_numpy(self.array).to(device)
        return self._on[device]


def cache_folder() -> Path:
    """Where decoded images are kept: `$LEGR_CACHE`, or legr's folder in the user's cache."""
    if named := os.environ.get("LEGR_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "legr"


def read_image(path: Path, channels: int) -> Image.Image:
    """An image file as it is, grey or in colour."""
    try:
        with Image.open(path) as found:
            deep = found.mode.startswith("I;16") or found.mode == "I"
            image = Image.fromarray((np.asarray(found) >> 8).astype(np.uint8)) if deep else found
            return image.convert("L" if channels == 1 else "RGB")
    except Exception as error:  # PIL fails in many ways on files that are no images
        raise DataError(
            f"{path} is no readable image ({first_line(error)}): replace or remove it"
        ) from error


def decode(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """One image as bytes, scaled and cut to the middle where it is of another size."""
    channels, height, width = shape
    image = read_image(path, channels)
    if image.size != (width, height):
        image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(height, width, channels).transpose(2, 0, 1)


def state_of(path: Path) -> os.stat_result:
    """Size and time of a file that must be there."""
    try:
        return path.stat()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}: replace or remove it") from error


def decoded(root: Path, files: tuple[str, ...], shape: tuple[int, ...]) -> Pixels:
    """All of these images, decoded the first time and mapped after that."""

    def fill(array: np.ndarray) -> None:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            images = pool.map(lambda name: decode(root / name, shape), files)
            for row, image in enumerate(images):
                array[row] = image

    stamp = hashlib.sha256(repr((str(root.resolve()), shape)).encode())
    for name in files:
        state = state_of(root / name)
        stamp.update(os.fsencode(f"{name} {state.st_size} {state.st_mtime_ns}\n"))
    return stored(stamp.hexdigest(), (len(files), *shape), fill)


def stored(key: str, shape: tuple[int, ...], fill: Callable[[np.ndarray], None]) -> Pixels:
    """The bytes kept under this key; made by `fill` if there are none."""
    folder = _folder()
    path = folder / f"images-{key[:32]}.npy"
    with contextlib.suppress(Exception):  # there is none, or it is damaged: make it
        found = Pixels.map(path)
        if found.array.shape == shape and found.array.dtype == np.uint8:
            return found
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
            f"no room for the decoded images in {folder} ({error.strerror}): "
            "point LEGR_CACHE at another folder"
        ) from error
    finally:
        Path(name).unlink(missing_ok=True)
    return Pixels.map(path)


def _reserve(path: Path) -> None:
    """Take the room on the disk now: a mapped file that finds none later kills the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


@functools.cache
def _folder() -> Path:
    """The cache folder, or one that goes with this process where none can be written."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        kept = tempfile.TemporaryDirectory(prefix="legr-")
        _temporary.append(kept)  # removed when the process ends
        return Path(kept.name)


_temporary: list[tempfile.TemporaryDirectory] = []
