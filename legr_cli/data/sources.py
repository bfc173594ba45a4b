"""`--data` → images by class: each kind of data set, and the layouts in which it is found."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files as packaged
from pathlib import Path
from typing import Any

import numpy as np

from legr_cli.errors import DataError, first_line

_SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class Listing:
    """Image files and their labels, in order of class and name."""

    root: Path
    files: tuple[str, ...]  # relative to root
    labels: np.ndarray


@dataclass(frozen=True)
class Arrays:
    """Images as N × C × H × W bytes, and their labels."""

    pixels: np.ndarray
    labels: np.ndarray


Split = Listing | Arrays


@dataclass(frozen=True)
class Source:
    """A data set as it is found: its classes, and its splits train, val and test."""

    classes: tuple[str, ...]
    splits: dict[str, Split]


@dataclass(frozen=True)
class Kind:
    """How a kind of data set is read, and what is known of all sets of it."""

    read: Callable[[Path], Source]
    statistics: str
    flip: bool = True  # whether a mirrored image is of the same class
    layout: str = ""  # what a folder must look like
    where: str = ""  # where to get it
    first: str = ""  # what is in the folder where train/ is not
    torchvision: str = ""  # its class there, where it can be fetched


def _folders(root: Path, names: dict[str, str]) -> Source:
    """Splits that are folders with a folder for each class; `names`: split → folder."""
    classes = _classes(root / names["train"])
    splits: dict[str, Split] = {}
    for split, name in names.items():
        if split == "train" or (root / name).is_dir():
            splits[split] = _listing(root / name, classes)
    return Source(classes, splits)


def _class_folders(folder: Path) -> tuple[str, ...]:
    """The folders in a folder, by name."""
    with os.scandir(folder) as entries:
        found = (e.name for e in entries if e.is_dir() and not e.name.startswith("."))
        return tuple(sorted(found))


def _classes(folder: Path) -> tuple[str, ...]:
    """The classes of a training folder."""
    found = _class_folders(folder)
    if not found:
        raise DataError(f"{folder} is empty: it needs a folder of images for each class")
    if len(found) == 1:
        raise DataError(f"{folder} has one class only ({found[0]}): it takes two to tell apart")
    return found


def _listing(folder: Path, classes: tuple[str, ...]) -> Listing:
    """The images in each class's folder."""
    strange = sorted(set(_class_folders(folder)) - set(classes))
    if strange:
        raise DataError(f"{folder} has a class '{strange[0]}' that the training folder has not")
    names: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        inside = sorted(str(path.relative_to(folder)) for path in _images(folder / name))
        if not inside and folder.name == "train":
            raise DataError(f"{folder / name} has no images: fill the folder or remove it")
        names += inside
        labels += [label] * len(inside)
    if not names:
        raise DataError(f"{folder} has no images")
    return Listing(folder, tuple(names), np.array(labels, np.int64))


def _images(folder: Path) -> Iterator[Path]:
    """All images below a folder; one that links to itself is not walked twice."""
    seen = set()
    for at, inner, found in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(at))
        inner[:] = [name for name in inner if os.path.realpath(Path(at, name)) not in seen]
        yield from (Path(at, name) for name in found if Path(name).suffix.lower() in _SUFFIXES)


def _folder(root: Path) -> Source:
    """`train/`, and `val/` and `test/` where there are."""
    return _folders(root, {"train": "train", "val": "val", "test": "test"})


def _imagenet(root: Path) -> Source:
    """`train/` and `val/`, which is what results are reported on: it is the test set."""
    return _folders(root, {"train": "train", "test": "val"})


def _cifar(name: str) -> Callable[[Path], Source]:
    """torchvision's own files, or image folders `train/` and `test/`."""

    def read(root: Path) -> Source:
        if (root / "train").is_dir():
            return _folders(root, {"train": "train", "test": "test"})
        import torchvision

        made = getattr(torchvision.datasets, name)
        splits: dict[str, Split] = {}
        for split in ("train", "test"):
            try:
                found = made(str(root), train=split == "train")  # compares checksums first
            except RuntimeError as error:
                raise DataError(f"{root} has damaged files: {first_line(error)}") from error
            pixels = np.ascontiguousarray(found.data.transpose(0, 3, 1, 2))
            splits[split] = Arrays(pixels, np.array(found.targets, np.int64))
        return Source(tuple(found.classes), splits)

    return read


def _cub200(root: Path) -> Source:
    """The original layout (`images.txt`, `train_test_split.txt`, …), or image folders."""
    if (root / "train").is_dir():
        return _folder(root)
    try:
        tables = [
            dict(line.split(maxsplit=1) for line in (root / name).read_text().splitlines())
            for name in (
                "images.txt",
                "image_class_labels.txt",
                "train_test_split.txt",
                "classes.txt",
            )
        ]
        images, labels, is_train, classes = tables
        order = sorted(images, key=int)
        rows = [(images[i].strip(), int(labels[i]) - 1, is_train[i].strip() == "1") for i in order]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{root} is no complete CUB-200-2011: {first_line(error)}") from error
    splits: dict[str, Split] = {}
    for split, wanted in (("train", True), ("test", False)):
        chosen = [(name, label) for name, label, train in rows if train is wanted]
        absent = next((name for name, _ in chosen if not (root / "images" / name).is_file()), None)
        if absent is not None:
            raise DataError(f"{root / 'images' / absent} is missing")
        numbers = np.array([label for _, label in chosen], np.int64)
        if len(numbers):
            splits[split] = Listing(root / "images", tuple(name for name, _ in chosen), numbers)
    names = tuple(classes[key].strip() for key in sorted(classes, key=int))
    if "train" not in splits or not all(0 <= label < len(names) for _, label, _ in rows):
        raise DataError(f"{root} is no complete CUB-200-2011: no training images, or odd classes")
    return Source(names, splits)


def _digits(_root: Path) -> Source:
    """UCI's handwritten digits, 8 × 8, shown as 3 × 32 × 32; the last fifth is for testing."""
    with np.load(str(packaged("legr_cli.training").joinpath("digits.npz"))) as found:
        small, labels = found["images"], found["labels"].astype(np.int64)
    large = (small.astype(np.uint16) * 255 // 16).astype(np.uint8).repeat(4, 1).repeat(4, 2)
    pixels = np.repeat(large[:, None], 3, 1)
    edge = len(pixels) * 4 // 5
    splits: dict[str, Split] = {
        "train": Arrays(pixels[:edge], labels[:edge]),
        "test": Arrays(pixels[edge:], labels[edge:]),
    }
    return Source(tuple("0123456789"), splits)


def _cifar_kind(name: str, first: str) -> Kind:
    """CIFAR-10 or CIFAR-100, by its name in torchvision and the folder of its files."""
    return Kind(
        _cifar(name),
        name.lower(),
        layout=f"torchvision's files ({first}), or train/CLASS/*.png and test/CLASS/*.png",
        where="https://www.cs.toronto.edu/~kriz/cifar.html, or pass --download",
        first=first,
        torchvision=name,
    )


KINDS = {
    "digits": Kind(_digits, "digits", flip=False),
    "cifar10": _cifar_kind("CIFAR10", "cifar-10-batches-py"),
    "cifar100": _cifar_kind("CIFAR100", "cifar-100-python"),
    "imagenet": Kind(
        _imagenet,
        "imagenet",
        layout="train/CLASS/*.JPEG and val/CLASS/*.JPEG",
        where="https://image-net.org (an account is needed); val/ sorted into class folders",
    ),
    "cub200": Kind(
        _cub200,
        "imagenet",
        layout="CUB_200_2011 as it was packed (images/, images.txt, …), or train/ and test/",
        where="https://www.vision.caltech.edu/datasets/cub_200_2011",
        first="images.txt",
    ),
    "folder": Kind(
        _folder, "imagenet", layout="train/CLASS/*.jpg, and val/ and test/ if you have them"
    ),
}


def find(spec: str, download: bool = False) -> tuple[str, Kind, Source]:
    """The data set that `KIND:DIR` or `digits` names."""
    name, colon, folder = spec.partition(":")
    if name not in KINDS:
        known = ", ".join("digits" if kind == "digits" else f"{kind}:DIR" for kind in KINDS)
        raise DataError(f"--data {spec}: unknown kind {name!r}; known are {known}")
    kind = KINDS[name]
    if name == "digits":
        if colon:
            raise DataError(f"--data {spec}: digits are inside legr: leave the folder out")
        return name, kind, kind.read(Path())
    if not folder:
        raise DataError(f"--data {spec}: say where it is, as {name}:DIR; in DIR {kind.layout}")
    try:
        root = Path(folder).expanduser()
        there = root.is_dir()
    except (OSError, RuntimeError) as error:
        raise DataError(f"--data {spec[:80]}: {first_line(error)}") from error
    if download:
        _download(kind, name, root)
    if not there and not download:
        get = f"; get it from {kind.where}" if kind.where else ""
        raise DataError(f"--data {spec}: {root} is no folder; expected in it: {kind.layout}{get}")
    if not (root / "train").is_dir() and not (kind.first and (root / kind.first).exists()):
        raise DataError(f"--data {spec}: expected in {root}: {kind.layout}")
    try:
        return name, kind, kind.read(root)
    except OSError as error:
        raise DataError(f"--data {spec}: {error.filename}: {error.strerror}") from error


def _download(kind: Kind, name: str, root: Path) -> None:
    """Fetch a set that torchvision can fetch."""
    if not kind.torchvision:
        raise DataError(f"--download cannot fetch {name}: {kind.where or 'it is your own'}")
    import torchvision

    made: Any = getattr(torchvision.datasets, kind.torchvision)
    try:
        made(str(root), download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{name} cannot be fetched ({first_line(error)}): get it elsewhere, from "
            f"{kind.where.split(',')[0]}, and put it in {root}"
        ) from error
