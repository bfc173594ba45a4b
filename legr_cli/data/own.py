"""A user's own data from Python: a DataLoader, a pair of tensors, or any iterable of batches.

A batch is a pair of tensors, (images, targets), with images as the network takes them: legr neither
resizes nor normalizes them. Every batch is checked before a network sees it.
"""

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from legr_cli.errors import DataError, first_line

Batch = tuple[Tensor, Tensor]
_SAMPLED = 16  # rows of a dataset that its fingerprint reads


class Rows(Protocol):
    """Images and targets that can be read in any order."""

    kind: str
    labelled: bool  # whether there are targets; if not, they are zeros
    shape: tuple[int, ...]  # of one image
    classes: tuple[str, ...]  # their names, where the data knows them

    def __len__(self) -> int: ...

    def batches(self, order: list[list[int]], seed: int, workers: int | None) -> Iterator[Batch]:
        """One batch for each list of row numbers; `seed` fixes what the data draws at random."""

    def sha256(self) -> str:
        """Fingerprint of the data, from a sample of its rows."""


@dataclass(frozen=True)
class OwnPart:
    """Rows, and what every batch of them must look like."""

    rows: Rows
    labels: int | None  # number of classes; None: targets are not labels

    def __post_init__(self) -> None:
        if self.labels is not None and isinstance(self.rows, TensorRows):
            _check_labels(self.rows.targets, self.labels)  # at once: nothing has been written yet

    def batches(self, order: list[list[int]], seed: int, workers: int | None) -> Iterator[Batch]:
        """Batches, each checked."""
        for batch in self.rows.batches(order, seed, workers):
            images, targets = as_pair(batch)
            _check_shape(images, self.rows.shape)
            if not images.isfinite().all():
                raise DataError("data has images with NaN or infinite values")
            if self.labels is not None:
                _check_labels(targets, self.labels)
            yield images, targets


def own_rows(data: Any, name: str = "data") -> Rows:
    """Rows of whatever a user passed as `data`.

    Raises:
        DataError: It is none of the accepted kinds, is empty, or its batches are not pairs of
            tensors of one shape.
    """
    if isinstance(data, Tensor):
        return TensorRows(*_without_targets(data, name), labelled=False)
    if isinstance(data, Sequence) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        return TensorRows(*as_pair(data, name))
    if isinstance(data, DataLoader) and data.batch_sampler is not None and _has_rows(data.dataset):
        return _dataset_rows(data.dataset, data.collate_fn, data.num_workers, name)
    if isinstance(data, Dataset) and _has_rows(data):
        return _dataset_rows(data, default_collate, 0, name)
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        raise DataError(
            f"{name} must be a SPEC such as 'cifar10:DIR', a DataLoader, tensors of images and "
            "targets, a tensor of images, or an iterable of batches of either, got "
            f"{type(data).__name__}"
        )
    return _in_memory(data, name)


def _dataset_rows(
    dataset: Any, collate: Callable[..., Any], workers: int, name: str
) -> "DatasetRows":
    """Rows of a dataset, with its targets if it has some."""
    try:
        first = collate([dataset[0]]) if len(dataset) else None
    except Exception as error:
        raise DataError(f"{name} cannot be read: {first_line(error)}") from error
    if _is_alone(first):
        return DatasetRows(dataset, _PicturesOnly(collate, name), workers, name, labelled=False)
    return DatasetRows(dataset, collate, workers, name)


def _is_alone(batch: Any) -> bool:
    """Whether a batch is images without targets."""
    is_one = isinstance(batch, Sequence) and len(batch) == 1 and isinstance(batch[0], Tensor)
    return is_one or isinstance(batch, Tensor)


def picture_rows(data: Any, most: int, name: str = "data") -> Rows:
    """Rows of pictures with or without targets; targets, if any, become zeros.

    Of batches that can only be read in order, at most `most` pictures are read.
    """
    if isinstance(data, Tensor):
        return TensorRows(*_without_targets(data, name))
    rows_of = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(rows_of, Dataset) and _has_rows(rows_of):
        collate, workers = default_collate, 0
        if isinstance(data, DataLoader):
            collate, workers = data.collate_fn, data.num_workers
        return DatasetRows(rows_of, _PicturesOnly(collate, name), workers, name)
    if isinstance(data, Sequence) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        return TensorRows(*_without_targets(data, name))
    if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
        raise DataError(
            f"{name} must be a SPEC such as 'images:DIR', a DataLoader, a tensor of images or an "
            f"iterable of batches, got {type(data).__name__}"
        )
    return _in_memory(_first(data, most, name), name)


def _first(data: Iterable[Any], most: int, name: str) -> Iterator[Batch]:
    """Batches until there are enough pictures."""
    seen = 0
    for batch in data:
        pair = _without_targets(batch, name)
        yield pair
        seen += len(pair[0])
        if seen >= most:
            return


def _without_targets(batch: Any, name: str) -> Batch:
    """The images of a batch, which may be alone or come first, and zeros as targets."""
    images = batch[0] if isinstance(batch, Sequence) and len(batch) else batch
    if not isinstance(images, Tensor) or not images.ndim:
        raise DataError(f"{name} must yield tensors of images, got {_describe(batch)}")
    return as_pair((images, torch.zeros(len(images))), name)


@dataclass(frozen=True)
class _PicturesOnly:
    """A collate function whose batches lose their targets."""

    collate: Callable[..., Any]
    name: str

    def __call__(self, items: list[Any]) -> Batch:
        return _without_targets(self.collate(items), self.name)


def _has_rows(dataset: Any) -> bool:
    """Whether a dataset can be read by row number."""
    return hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset)


def _in_memory(data: Iterable[Any], name: str) -> "TensorRows":
    """Read all batches once and keep them."""
    labelled = True
    try:
        batches = list[Batch]()
        for batch in data:
            labelled = labelled and not _is_alone(batch)
            batches.append(as_pair(batch, name) if labelled else _without_targets(batch, name))
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{name} cannot be read: {first_line(error)}") from error
    if not batches:
        raise DataError(f"{name} is empty: it has no batches")
    for images, _ in batches:
        _check_shape(images, tuple(batches[0][0].shape[1:]))
    try:
        pairs = zip(*batches, strict=True)
        images, targets = (torch.cat([t.cpu() for t in parts]) for parts in pairs)
    except RuntimeError as error:
        raise DataError(f"{name} has targets whose shapes differ: {first_line(error)}") from error
    return TensorRows(images, targets, labelled)


class TensorRows:
    """Images and targets in memory."""

    kind = "tensors"
    classes: tuple[str, ...] = ()

    def __init__(self, images: Tensor, targets: Tensor, labelled: bool = True) -> None:
        self.images, self.targets = images.detach().cpu(), targets.detach().cpu()
        self.labelled = labelled
        self.shape = tuple(images.shape[1:])

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, order: list[list[int]], _seed: int, _workers: int | None) -> Iterator[Batch]:
        """Rows of both tensors."""
        for rows in order:
            yield self.images[rows], self.targets[rows]

    def sha256(self) -> str:
        """Over all targets and some images."""
        return _sha256([(self.images[_sample(len(self))], self.targets)])


class DatasetRows:
    """A map-style dataset and how its loader collates it; legr draws the batches itself."""

    kind = "loader"

    def __init__(
        self,
        dataset: Any,
        collate: Callable[..., Any],
        workers: int,
        name: str,
        labelled: bool = True,
    ) -> None:
        self.dataset, self.collate, self.workers, self.name = dataset, collate, workers, name
        self.labelled = labelled
        if not len(dataset):
            raise DataError(f"{name} is empty: its dataset has no images")
        self.shape = tuple(next(self.batches([[0]], 0, 0))[0].shape[1:])
        names = getattr(dataset, "classes", ())
        is_list = isinstance(names, Sequence) and not isinstance(names, str)
        self.classes = tuple(map(str, names)) if is_list else ()

    def __len__(self) -> int:
        return len(self.dataset)

    def batches(self, order: list[list[int]], seed: int, workers: int | None) -> Iterator[Batch]:
        """Batches from loader processes, as many as the user's own loader has."""
        loader: DataLoader[Any] = DataLoader(
            _SeededRows(self.dataset, seed),
            batch_sampler=order,
            collate_fn=self.collate,
            num_workers=self.workers if workers is None else workers,
            generator=torch.Generator(),
        )
        try:
            yield from (as_pair(batch, self.name) for batch in loader)
        except DataError:
            raise
        except Exception as error:
            raise DataError(f"{self.name} cannot be read: {first_line(error)}") from error

    def sha256(self) -> str:
        """Over the number of rows and a sample of them."""
        rows = [[row] for row in _sample(len(self))]
        return _sha256([(torch.tensor(len(self)), torch.tensor(0)), *self.batches(rows, 0, 0)])


class _SeededRows(Dataset[Any]):
    """A dataset whose random transforms depend on the seed and the row, on nothing else."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __getitem__(self, row: int) -> Any:
        with _seeded_everywhere((self.seed + row) % 2**63):
            return self.dataset[row]


@contextlib.contextmanager
def _seeded_everywhere(seed: int) -> Iterator[None]:
    """Seed torch, Python and NumPy in this block, and leave them as they were after it."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def as_pair(batch: Any, name: str = "data") -> Batch:
    """A batch as (images, targets)."""
    pair = isinstance(batch, Sequence) and len(batch) == 2
    if not pair or not all(isinstance(tensor, Tensor) for tensor in batch):
        raise DataError(
            f"{name} must yield pairs of tensors, (images, targets), got {_describe(batch)}: a "
            "collate_fn can make such pairs"
        )
    images, targets = batch
    if images.ndim < 2 or not len(images) or targets.ndim < 1 or len(targets) != len(images):
        shapes = f"{tuple(images.shape)} and {tuple(targets.shape)}"
        raise DataError(f"{name} must yield as many images as targets, at least one; got {shapes}")
    if not images.is_floating_point():
        raise DataError(
            f"{name} must yield images as the network expects them, in floating point and "
            f"normalized; got {images.dtype}"
        )
    if images.is_meta or targets.is_meta:
        raise DataError(f"{name} has tensors on the meta device, which have no values")
    return images, targets


def _describe(batch: Any) -> str:
    """The type of a batch, and of its parts if it has some."""
    if isinstance(batch, Sequence) and not isinstance(batch, str):
        return f"a {type(batch).__name__} of {', '.join(type(part).__name__ for part in batch[:4])}"
    return f"a {type(batch).__name__}"


def _check_shape(images: Tensor, shape: tuple[int, ...]) -> None:
    """All images of a set have one shape."""
    if tuple(images.shape[1:]) != shape:
        sizes = ("x".join(map(str, side)) for side in (shape, images.shape[1:]))
        raise DataError("images must all have the same shape, got {} and {}".format(*sizes))


def _check_labels(targets: Tensor, classes: int) -> None:
    """Labels are class numbers."""
    if targets.ndim != 1 or targets.is_floating_point() or targets.dtype == torch.bool:
        raise DataError(
            f"targets must be class indices, one per image, got {targets.dtype} of shape "
            f"{tuple(targets.shape)}; for another task, pass loss= and score="
        )
    least, most = int(targets.min()), int(targets.max())
    if least < 0 or most >= classes:
        wrong = least if least < 0 else most
        raise DataError(f"label {wrong} is out of range: the network has {classes} outputs")


def _sample(count: int) -> list[int]:
    """Evenly spaced row numbers."""
    return np.unique(np.linspace(0, count - 1, _SAMPLED).astype(int)).tolist()


def _sha256(batches: Iterable[Batch]) -> str:
    """sha256 over the numbers of some tensors, and their shapes."""
    whole = hashlib.sha256()
    for batch in batches:
        for tensor in batch:
            whole.update(repr((tuple(tensor.shape), tensor.dtype)).encode())
            whole.update(
                tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            )
    return whole.hexdigest()
