"""`--data` → images by class. To add a kind of dataset, add an entry to `DATASETS`."""

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
    """Image files and their labels, sorted by class and name."""

    root: Path
    files: tuple[str, ...]  # relative to root
    labels: np.ndarray  # all 0 if the images have none, or label pictures
    maps: tuple[str, ...] = ()  # label pictures, one for each image, relative to root


@dataclass(frozen=True)
class Arrays:
    """Images as a uint8 array of N × C × H × W, and their labels."""

    pixels: np.ndarray
    labels: np.ndarray


Split = Listing | Arrays


@dataclass(frozen=True)
class StoredDataset:
    """A dataset as stored: its classes and its splits (train, val, test)."""

    classes: tuple[str, ...]
    splits: dict[str, Split]


@dataclass(frozen=True)
class DatasetKind:
    """How to read one kind of dataset, and the defaults that suit it."""

    read: Callable[[Path], StoredDataset]
    statistics: str  # key of `feed.STATISTICS`, the default of --normalize
    flip: bool = True  # whether a horizontal flip keeps the class
    augment: bool = True  # whether training crops and flips by default
    layout: str = ""  # expected content of the folder; empty: bundled with legr, no folder
    where: str = ""  # where to get it
    first: str = ""  # file or folder that identifies the original layout, without train/
    torchvision: str = ""  # class in torchvision.datasets that can download it
    task: str = "classification"  # a key of `tasks.TASKS`

    @property
    def labels(self) -> bool:
        """Whether the images have labels; if not, any layout of the folder will do."""
        return self.task != "closeness"


def _folders(root: Path, names: dict[str, str]) -> StoredDataset:
    """Read splits that have one folder per class; `names` maps a split to its folder."""
    classes = _classes(root / names["train"])
    splits: dict[str, Split] = {}
    for split, name in names.items():
        if split == "train" or (root / name).is_dir():
            splits[split] = _listing(root / name, classes)
    return StoredDataset(classes, splits)


def _class_folders(folder: Path) -> tuple[str, ...]:
    """The names of the folders in a folder, sorted."""
    with os.scandir(folder) as entries:
        names = (e.name for e in entries if e.is_dir() and not e.name.startswith("."))
        return tuple(sorted(names))


def _classes(folder: Path) -> tuple[str, ...]:
    """The classes of a training folder."""
    classes = _class_folders(folder)
    if not classes:
        raise DataError(f"{folder} is empty: expected one folder of images per class")
    if len(classes) == 1:
        raise DataError(f"{folder} has only one class ({classes[0]}): at least two are needed")
    return classes


def _listing(folder: Path, classes: tuple[str, ...]) -> Listing:
    """List the images of every class."""
    unknown = sorted(set(_class_folders(folder)) - set(classes))
    if unknown:
        raise DataError(f"{folder} has a class '{unknown[0]}' that is not in the training folder")
    names: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        inside = sorted(str(path.relative_to(folder)) for path in _images(folder / name))
        if not inside and folder.name == "train":
            raise DataError(f"{folder / name} has no images: add some or remove the folder")
        names += inside
        labels += [label] * len(inside)
    if not names:
        raise DataError(f"{folder} has no images")
    return Listing(folder, tuple(names), np.array(labels, np.int64))


def _images(folder: Path) -> Iterator[Path]:
    """All images below a folder; links are followed, but never in a cycle."""
    seen = set()
    for parent, folders, files in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(parent))
        folders[:] = [name for name in folders if os.path.realpath(Path(parent, name)) not in seen]
        yield from (Path(parent, name) for name in files if Path(name).suffix.lower() in _SUFFIXES)


def _folder(root: Path) -> StoredDataset:
    """Read `train/`, and `val/` and `test/` if they exist."""
    return _folders(root, {"train": "train", "val": "val", "test": "test"})


def _unlabelled(root: Path) -> StoredDataset:
    """List all images below a folder, as training images of no class."""
    names = tuple(sorted(str(path.relative_to(root)) for path in _images(root)))
    if not names:
        raise DataError(f"{root} has no images ({', '.join(sorted(_SUFFIXES))})")
    return StoredDataset((), {"train": Listing(root, names, np.zeros(len(names), np.int64))})


def _pairs(root: Path) -> StoredDataset:
    """Read `train/` and `train-labels/`, and `val` and `test` alike if they exist."""
    splits: dict[str, Split] = {}
    for split in ("train", "val", "test"):
        if split == "train" or (root / split).is_dir():
            splits[split] = _paired(root, split)
    return StoredDataset((), splits)


def _paired(root: Path, split: str) -> Listing:
    """The images of a split and, under the same names, their label pictures."""
    folder, labels = root / split, root / f"{split}-labels"
    if not labels.is_dir():
        raise DataError(f"{labels} is missing: it must hold a label picture for each of {folder}")
    maps = {path.relative_to(labels).with_suffix(""): path for path in _images(labels)}
    images = sorted(_images(folder), key=lambda path: str(path.relative_to(folder)))
    if not images:
        raise DataError(f"{folder} has no images ({', '.join(sorted(_SUFFIXES))})")
    names: list[str] = []
    for path in images:
        name = path.relative_to(folder).with_suffix("")
        if name not in maps:
            raise DataError(f"{path} has no label picture: expected {labels / name}.png")
        names.append(str(maps[name].relative_to(root)))
    files = tuple(str(path.relative_to(root)) for path in images)
    return Listing(root, files, np.zeros(len(files), np.int64), tuple(names))


def _imagenet(root: Path) -> StoredDataset:
    """Read `train/` and `val/`; `val/` is the test set, since results are reported on it."""
    return _folders(root, {"train": "train", "test": "val"})


def _cifar(name: str) -> Callable[[Path], StoredDataset]:
    """Make a reader of torchvision's files, or of image folders `train/` and `test/`."""

    def read(root: Path) -> StoredDataset:
        if (root / "train").is_dir():
            return _folders(root, {"train": "train", "test": "test"})
        import torchvision

        dataset_class = getattr(torchvision.datasets, name)
        splits: dict[str, Split] = {}
        for split in ("train", "test"):
            try:
                dataset = dataset_class(str(root), train=split == "train")  # verifies checksums
            except RuntimeError as error:
                raise DataError(f"{root} has damaged files: {first_line(error)}") from error
            pixels = np.ascontiguousarray(dataset.data.transpose(0, 3, 1, 2))
            splits[split] = Arrays(pixels, np.array(dataset.targets, np.int64))
        return StoredDataset(tuple(dataset.classes), splits)

    return read


def _cub200(root: Path) -> StoredDataset:
    """Read the original layout (`images.txt`, `train_test_split.txt`, …), or image folders."""
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
        raise DataError(f"{root} is not a complete CUB-200-2011: {first_line(error)}") from error
    splits: dict[str, Split] = {}
    for split, wanted in (("train", True), ("test", False)):
        chosen = [(name, label) for name, label, train in rows if train is wanted]
        missing = next((name for name, _ in chosen if not (root / "images" / name).is_file()), None)
        if missing is not None:
            raise DataError(f"{root / 'images' / missing} is missing")
        targets = np.array([label for _, label in chosen], np.int64)
        if len(targets):
            splits[split] = Listing(root / "images", tuple(name for name, _ in chosen), targets)
    names = tuple(classes[key].strip() for key in sorted(classes, key=int))
    if "train" not in splits or not all(0 <= label < len(names) for _, label, _ in rows):
        raise DataError(
            f"{root} is not a complete CUB-200-2011: training images or classes are missing"
        )
    return StoredDataset(names, splits)


def _digits(_root: Path) -> StoredDataset:
    """Load UCI's 8×8 handwritten digits, enlarged to 3×32×32; the last fifth is the test split."""
    with np.load(str(packaged("legr_cli.training").joinpath("digits.npz"))) as archive:
        small, labels = archive["images"], archive["labels"].astype(np.int64)
    # Gray levels 0 … 16 → 0 … 255, every pixel repeated 4 × 4 times, the same in all 3 channels.
    large = (small.astype(np.uint16) * 255 // 16).astype(np.uint8).repeat(4, 1).repeat(4, 2)
    pixels = np.repeat(large[:, None], 3, 1)
    train_count = len(pixels) * 4 // 5
    splits: dict[str, Split] = {
        "train": Arrays(pixels[:train_count], labels[:train_count]),
        "test": Arrays(pixels[train_count:], labels[train_count:]),
    }
    return StoredDataset(tuple("0123456789"), splits)


def _cifar_kind(name: str, first: str) -> DatasetKind:
    """CIFAR-10 or CIFAR-100, given its class in torchvision and the folder of its files."""
    return DatasetKind(
        _cifar(name),
        name.lower(),
        layout=f"torchvision's files ({first}), or train/CLASS/*.png and test/CLASS/*.png",
        where="https://www.cs.toronto.edu/~kriz/cifar.html, or pass --download",
        first=first,
        torchvision=name,
    )


DATASETS = {
    "digits": DatasetKind(_digits, "digits", flip=False),
    "cifar10": _cifar_kind("CIFAR10", "cifar-10-batches-py"),
    "cifar100": _cifar_kind("CIFAR100", "cifar-100-python"),
    "imagenet": DatasetKind(
        _imagenet,
        "imagenet",
        layout="train/CLASS/*.JPEG and val/CLASS/*.JPEG",
        where="https://image-net.org (requires an account); sort val/ into class folders",
    ),
    "cub200": DatasetKind(
        _cub200,
        "imagenet",
        layout="the original CUB_200_2011 files (images/, images.txt, …), or train/ and test/",
        where="https://www.vision.caltech.edu/datasets/cub_200_2011",
        first="images.txt",
    ),
    "folder": DatasetKind(
        _folder,
        "imagenet",
        augment=False,
        layout="train/CLASS/*.jpg, and optionally val/ and test/",
    ),
    "pairs": DatasetKind(
        _pairs,
        "imagenet",
        augment=False,
        layout="train/*.jpg and train-labels/*.png, and optionally the same for val and test",
        task="segmentation",
    ),
    "images": DatasetKind(
        _unlabelled, "imagenet", layout="images, in subfolders or not", task="closeness"
    ),
}


def kind_of(spec: str) -> DatasetKind:
    """The entry of the table that a SPEC refers to."""
    name = spec.partition(":")[0]
    if name not in DATASETS:
        known = ", ".join(f"{key}:DIR" if kind.layout else key for key, kind in DATASETS.items())
        raise DataError(f"--data {spec}: unknown dataset {name!r}; expected one of {known}")
    return DATASETS[name]


def find(spec: str, download: bool = False) -> tuple[str, DatasetKind, StoredDataset]:
    """Read the dataset that `KIND:DIR`, or the name of a bundled one, refers to."""
    name, colon, folder = spec.partition(":")
    kind = kind_of(spec)
    if not kind.layout:
        if colon:
            raise DataError(f"--data {spec}: {name} is bundled with legr: omit the folder")
        return name, kind, kind.read(Path())
    if not folder:
        raise DataError(
            f"--data {spec}: expected {name}:DIR, where DIR is a folder with {kind.layout}"
        )
    try:
        root = Path(folder).expanduser()
        exists = root.is_dir()
    except (OSError, RuntimeError) as error:
        raise DataError(f"--data {spec[:80]}: {first_line(error)}") from error
    if download:
        _download(kind, name, root)
    if not exists and not download:
        hint = f"; get it from {kind.where}" if kind.where else ""
        raise DataError(
            f"--data {spec}: {root} is not a folder; expected a folder with {kind.layout}{hint}"
        )
    named = kind.labels and not (root / "train").is_dir()
    if named and not (kind.first and (root / kind.first).exists()):
        raise DataError(f"--data {spec}: expected {root} to contain {kind.layout}")
    try:
        return name, kind, kind.read(root)
    except OSError as error:
        raise DataError(f"--data {spec}: {error.filename}: {error.strerror}") from error


def _download(kind: DatasetKind, name: str, root: Path) -> None:
    """Download a dataset that torchvision can download."""
    if not kind.torchvision:
        hint = f": get it from {kind.where}" if kind.where else ""
        raise DataError(f"--download does not support {name}{hint}")
    import torchvision

    dataset_class: Any = getattr(torchvision.datasets, kind.torchvision)
    try:
        dataset_class(str(root), download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"cannot download {name} ({first_line(error)}): get it from "
            f"{kind.where.split(',')[0]} and put it in {root}"
        ) from error
