"""What training and measuring start from: a network, images that fit it, perhaps a teacher."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from legr_cli.channels.trace import evaluating
from legr_cli.data.batches import Serving, in_order
from legr_cli.data.dataset import Data, open_data, own_data, parse_statistics, small_size
from legr_cli.data.own import Rows, own_rows
from legr_cli.errors import DataError, LegrError, ModelError, SettingError
from legr_cli.models.network import Network, open_network, with_new_head
from legr_cli.training.loop import forward
from legr_cli.training.process_group import ProcessGroup
from legr_cli.training.scores import CLASSIFICATION, Task


@dataclass(frozen=True)
class Start:
    """The network to train, as the user names it."""

    checkpoint: str | Network | None  # None: from scratch
    arch: str | Callable[..., nn.Module] | None = None
    classes: int | None = None
    shape: tuple[int, ...] | None = None
    new_head: bool = False
    weights: str | None = None  # where in the checkpoint


@dataclass(frozen=True)
class Images:
    """The images, as the user names them."""

    data: str | Rows
    statistics: dict[str, Any] | None = None
    download: bool = False
    hold_out: bool = True  # some of them, for validation
    validation: Rows | None = None  # held out by the user

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Shape of one image, where the data decides it."""
        return None if isinstance(self.data, str) else self.data.shape


def as_images(
    data: Any,
    validation: Any = None,
    *,
    normalize: str | None = None,
    download: bool = False,
    hold_out: bool = True,
) -> Images:
    """Images from what a Python user passes: a SPEC, a DataLoader, tensors or batches.

    Raises:
        DataError: `data` or `validation` is none of these, or is empty.
        SettingError: The arguments contradict each other.
    """
    if isinstance(data, str):
        if validation is not None:
            raise SettingError("validation is for data of your own: a SPEC has its own split")
        return Images(data, parse_statistics(normalize), download, hold_out)
    if normalize is not None or download:
        raise SettingError("normalize and download are for a SPEC: normalize in your dataset")
    held_out = None if validation is None else own_rows(validation, "validation")
    return Images(own_rows(data), None, False, hold_out, held_out)


def images_for(network: Network, images: Images, seed: int, task: Task = CLASSIFICATION) -> Data:
    """Images as this network takes them; the seed selects those held out."""
    if isinstance(images.data, str):
        return open_data(
            images.data,
            network.input_shape,
            seed=seed,
            statistics=images.statistics or network.notes.get("statistics"),
            download=images.download,
            hold_out=images.hold_out,
        )
    labels = _output_width(network) if task.labels else None
    shape, hold_out = network.input_shape, images.hold_out
    return own_data(images.data, images.validation, shape, labels, seed=seed, hold_out=hold_out)


def open_both(
    start: Start, images: Images, seed: int, group: ProcessGroup, task: Task = CLASSIFICATION
) -> tuple[Network, Data]:
    """Network and images; a new network or head gets as many classes as the images have."""
    spec = f"random:{start.arch}" if start.checkpoint is None else start.checkpoint
    if isinstance(spec, Network):
        network, spec = spec, ""
    else:
        network = open_network(
            spec, start.arch, start.classes, start.shape, seed, weights=start.weights
        )
    with group.leader_first():
        download = images.download and group.is_leader
        own = start.checkpoint is None and start.shape is None and network.arch.own
        if own and isinstance(images.data, str):
            shape = small_size(images.data, download, network.input_shape)
            network = replace(network, input_shape=shape)
        data = images_for(network, replace(images, download=download), seed, task)
    classes = len(data.classes)
    if spec.startswith("random:") and start.classes is None:
        network = open_network(spec, start.arch, classes, network.input_shape, seed)
    elif start.new_head:
        network = with_new_head(network, classes, seed)
    network.model.float()  # images are float32
    check_outputs(network.model, data, task)
    return network, data


def open_teacher(
    checkpoint: str, arch: str | None, network: Network, data: Data, task: Task = CLASSIFICATION
) -> Network:
    """A teacher for the same classes, of the network's own architecture unless named."""
    classes = None if arch is None else len(data.classes)
    try:
        teacher = open_network(checkpoint, arch, classes, usual=network.arch)
        teacher.model.float()
        check_outputs(teacher.model, data, task)
    except LegrError as error:
        raise type(error)(f"--teacher: {error}") from error
    return teacher


def check_outputs(model: nn.Module, data: Data, task: Task = CLASSIFICATION) -> None:
    """The network must run on the images and, for classification, give a number per class."""
    batch = next(in_order(data.validation, Serving(data.feed, 2, torch.device("cpu"))))[0]
    with evaluating(model), torch.no_grad():
        outputs = forward(model, batch)
    if not task.labels:
        return
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        raise ModelError(
            "the network must give one tensor of images × classes; for another task, pass loss= "
            "and score= from Python"
        )
    if outputs.shape[1] != len(data.classes):
        raise DataError(
            f"the network has {outputs.shape[1]} outputs, but {data.spec} has {len(data.classes)} "
            "classes: is it the right data? (legr finetune --new-head replaces the last layer)"
        )


def _output_width(network: Network) -> int:
    """Number of classes that a network tells apart."""
    with evaluating(network.model), torch.no_grad():
        outputs = forward(network.model, torch.zeros(2, *network.input_shape))
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        raise ModelError(
            "the network must give one tensor of images × classes; for another task, pass loss= "
            "and score="
        )
    return outputs.shape[1]
