"""Load the inputs of training and evaluation: a network, matching images, and a teacher."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from legr_cli.channels.switches import evaluating
from legr_cli.data.batches import Serving, in_order
from legr_cli.data.class_order import comparable, in_network_order, valid_names
from legr_cli.data.dataset import Data, open_data, own_data, small_size
from legr_cli.data.feed import parse_statistics
from legr_cli.data.own import Rows, own_rows
from legr_cli.data.pixels import IGNORED
from legr_cli.data.sources import kind_of
from legr_cli.errors import DataError, LegrError, ModelError, SettingError
from legr_cli.models.network import Network, open_network, with_new_head
from legr_cli.settings import Pictures
from legr_cli.shapes import Shapes, image_shape
from legr_cli.training.loop import forward
from legr_cli.training.memory_format import in_memory_format
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.tasks import (
    CLASSIFICATION,
    CLOSENESS,
    TASKS,
    Task,
    check_same,
    class_maps,
)


@dataclass(frozen=True)
class NetworkSource:
    """Where the network to train comes from."""

    checkpoint: str | Network | None  # None: train from scratch
    arch: str | Callable[..., nn.Module] | None = None
    classes: int | None = None
    shape: Shapes | None = None
    new_head: bool = False
    weights: str | None = None  # where in the checkpoint


@dataclass(frozen=True)
class Images:
    """Where the images come from, and how to normalize and split them."""

    data: str | Rows  # a SPEC, or the user's own data
    statistics: dict[str, Any] | None = None  # None: those of the network or the dataset
    download: bool = False
    hold_out: bool = True  # whether to split off validation images
    validation: Rows | None = None  # the user's own validation data
    pictures: Pictures = field(default_factory=Pictures)  # how to resize, crop and mirror
    ignore_class_names: bool = False  # number classes in sorted order
    ignore_index: int = IGNORED  # of label pictures: pixels that do not count

    @property
    def task(self) -> Task:
        """The task that the data implies."""
        if isinstance(self.data, str):
            return TASKS[kind_of(self.data).task]
        return CLASSIFICATION if self.data.labelled else CLOSENESS

    @property
    def labelled(self) -> bool:
        """Whether there are labels or other targets."""
        return not self.task.needs_reference

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of one image of the user's own data; None for a SPEC, which can be resized."""
        return None if isinstance(self.data, str) else self.data.shape


def as_images(
    data: Any,
    validation: Any = None,
    *,
    normalize: str | None = None,
    download: bool = False,
    hold_out: bool = True,
    pictures: Pictures | None = None,
    ignore_class_names: bool = False,
    ignore_index: int = IGNORED,
) -> Images:
    """Convert the data of a public function: a SPEC, a DataLoader, tensors or batches.

    Raises:
        DataError: `data` or `validation` has an unsupported type, or is empty.
        SettingError: The arguments contradict each other.
    """
    if isinstance(data, str):
        if validation is not None:
            raise SettingError(
                "validation needs data of your own: legr splits a SPEC into training and "
                "validation images itself"
            )
        return Images(
            data,
            parse_statistics(normalize),
            download,
            hold_out,
            pictures=pictures or Pictures(),
            ignore_class_names=ignore_class_names,
            ignore_index=ignore_index,
        )
    if normalize is not None or download:
        raise SettingError(
            "normalize and download need a SPEC: normalize data of your own in your dataset"
        )
    if pictures not in (None, Pictures()) or ignore_class_names:
        raise SettingError(
            "resize, crop, random_crop, flip and ignore_class_names need a SPEC: prepare images of "
            "your own in your dataset"
        )
    held_out = None if validation is None else own_rows(validation, "validation")
    return Images(own_rows(data), None, False, hold_out, held_out)


def images_for(
    network: Network,
    images: Images,
    seed: int,
    task: Task = CLASSIFICATION,
    missing_ok: bool = False,
) -> Data:
    """Load images at the network's input size; the seed selects the held-out ones.

    The task says what their targets are. With `missing_ok`, there may be no images of some of the
    network's classes.
    """
    shape, hold_out = image_shape(network.input_shape), images.hold_out
    if not isinstance(images.data, str):
        labels = _classes_of(network) if task.targets == "classes" else None
        return own_data(images.data, images.validation, shape, labels, seed=seed, hold_out=hold_out)
    if images.pictures.transform is not None and images.statistics is not None:
        raise SettingError("--transform normalizes the images as well: remove --normalize")
    data = open_data(
        images.data,
        shape,
        seed=seed,
        statistics=images.statistics or network.notes.get("statistics"),
        pictures=images.pictures,
        recorded_pictures=network.notes.get("pictures"),
        download=images.download,
        hold_out=hold_out,
        classes=_count_maps(_trial_outputs(network)) if task.targets == "maps" else 0,
        ignore_index=images.ignore_index,
    )
    if task.targets != "classes":
        return data
    names = () if images.ignore_class_names else class_names(network)
    return in_network_order(data, names, missing_ok) if names else data


def class_names(network: Network) -> tuple[str, ...]:
    """What a network calls its classes; nothing if its notes do not name every output."""
    note = network.notes.get("class_names")
    if note is None:
        return ()
    outputs = _trial_outputs(network)
    is_list = isinstance(outputs, Tensor) and outputs.ndim == 2
    return valid_names(note, outputs.shape[1]) if is_list else ()


def open_network_and_data(
    source: NetworkSource,
    images: Images,
    seed: int,
    group: ProcessGroup,
    task: Task = CLASSIFICATION,
) -> tuple[Network, Data]:
    """Load the network and the images; a new network or head gets one output per class."""
    spec = f"random:{source.arch}" if source.checkpoint is None else source.checkpoint
    if isinstance(spec, Network):
        network, spec = spec, ""
    else:
        network = open_network(
            spec, source.arch, source.classes, source.shape, seed, weights=source.weights
        )
    if source.new_head:
        network = replace(network, notes=_without_classes(network.notes))
    network.model.float()  # images are float32
    with group.leader_first():
        download = images.download and group.is_leader
        any_size = source.checkpoint is None and source.shape is None and network.arch.own
        if any_size and isinstance(images.data, str):
            shape = small_size(images.data, download, image_shape(network.input_shape))
            network = replace(network, input_shape=shape)
        data = images_for(network, replace(images, download=download), seed, task)
    classes = len(data.classes)
    if task.targets != "classes":
        if source.new_head:
            raise SettingError("--new-head is for classifiers: images need labels in class folders")
    elif spec.startswith("random:") and source.classes is None:
        network = open_network(spec, source.arch, classes, network.input_shape, seed)
    elif source.new_head:
        network = with_new_head(network, classes, seed)
    network.model.float()  # images are float32
    data = in_memory_format(network.model, data)
    check_outputs(network.model, data, task)
    return network, data


def _without_classes(notes: dict[str, Any]) -> dict[str, Any]:
    """Notes without what belongs to the classes: their names, and whether flips keep them."""
    kept = {key: value for key, value in notes.items() if key != "class_names"}
    if isinstance(pictures := kept.get("pictures"), dict):
        chosen = {key: pictures[key] for key in ("resize", "crop") if key in pictures}
        kept["pictures"] = chosen
    return kept


def open_teacher(
    checkpoint: str, arch: str | None, network: Network, data: Data, images: Images, task: Task
) -> Network:
    """Load a teacher with the same classes; its architecture is the network's unless given."""
    classes = None if arch is None else len(data.classes) or None
    try:
        teacher = open_network(checkpoint, arch, classes, usual=network.arch)
        teacher.model.float()
        check_teacher(teacher, data, images, task)
    except LegrError as error:
        raise type(error)(f"--teacher: {error}") from error
    return teacher


def check_teacher(teacher: Network, data: Data, images: Images, task: Task) -> None:
    """A teacher must run on the images, and have the same classes in the same order."""
    check_outputs(teacher.model, in_memory_format(teacher.model, data), task)
    if task.targets != "classes":
        return
    if not isinstance(images.data, str) or images.ignore_class_names:
        return
    names = class_names(teacher)
    if names and comparable(data.classes, names) and names != data.classes:
        raise DataError(
            "its classes, or their order, differ from the network's: pass a teacher for these "
            "classes, or --ignore-class-names if only the names differ"
        )


def check_outputs(model: nn.Module, data: Data, task: Task = CLASSIFICATION) -> None:
    """Raise unless the network runs on the images and has an output for each class, if any.

    Raises:
        ModelError: The network fails, or its output is not a tensor of images × classes.
        DataError: The number of classes differs.
    """
    batches = in_order(data.validation, Serving(data.feed, 2, torch.device("cpu")))
    images, targets = next(batches)
    with evaluating(model), torch.no_grad():
        outputs = forward(model, images)
    if task.targets == "maps" and _count_maps(outputs) != len(data.classes):
        raise DataError(
            f"the network has {_count_maps(outputs)} classes, and the labels {len(data.classes)}"
        )
    if task.targets == "classes" and _count_classes(outputs) != len(data.classes):
        raise DataError(
            f"the network has {_count_classes(outputs)} outputs, but {data.spec} has "
            f"{len(data.classes)} classes: is it the right data? (legr finetune --new-head "
            "replaces the last layer)"
        )
    if task.name not in TASKS and not task.needs_reference:
        check_same(task, outputs, targets)


def _classes_of(network: Network) -> int:
    """Number of classes that a network distinguishes."""
    return _count_classes(_trial_outputs(network))


def _trial_outputs(network: Network) -> Any:
    """The outputs for two black images."""
    with evaluating(network.model), torch.no_grad():
        return forward(network.model, torch.zeros(2, *image_shape(network.input_shape)))


def _count_maps(outputs: Any) -> int:
    """Number of classes in a segmenter's output."""
    return class_maps(outputs).shape[1]


def _count_classes(outputs: Any) -> int:
    """Number of classes in a classifier's output."""
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        raise ModelError(
            "the network must return one tensor of images × classes: for label pictures pass "
            "pairs:DIR, for images without labels images:DIR, for any other task --loss and --score"
        )
    return outputs.shape[1]
