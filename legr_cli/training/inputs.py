"""What a training begins with: a network, images that fit it, and perhaps a teacher."""

from dataclasses import dataclass, replace
from typing import Any

from legr_cli.data.dataset import Data, open_data, small_size
from legr_cli.errors import LegrError
from legr_cli.models.network import Network, open_network, with_new_head
from legr_cli.training.measure import check_classes
from legr_cli.training.process_group import ProcessGroup


@dataclass(frozen=True)
class Start:
    """The network as the user names it."""

    checkpoint: str | None  # None: from scratch
    arch: str | None
    classes: int | None
    shape: tuple[int, ...] | None
    new_head: bool


@dataclass(frozen=True)
class Images:
    """The images as the user names them."""

    spec: str
    statistics: dict[str, Any] | None
    download: bool
    hold_out: bool = True  # some of them, for validation


def images_for(network: Network, images: Images, seed: int) -> Data:
    """Images as this network takes them; the seed says which are held out."""
    return open_data(
        images.spec,
        network.input_shape,
        seed=seed,
        statistics=images.statistics or network.notes.get("statistics"),
        download=images.download,
        hold_out=images.hold_out,
    )


def open_both(start: Start, images: Images, seed: int, group: ProcessGroup) -> tuple[Network, Data]:
    """Network and images; a fresh network or head has as many classes as they."""
    spec = f"random:{start.arch}" if start.checkpoint is None else start.checkpoint
    network = open_network(spec, start.arch, start.classes, start.shape, seed)
    with group.leader_first():
        download = images.download and group.is_leader
        if start.checkpoint is None and start.shape is None and network.arch.own:
            shape = small_size(images.spec, download, network.input_shape)
            network = replace(network, input_shape=shape)
        data = images_for(network, replace(images, download=download), seed)
    classes = len(data.classes)
    if spec.startswith("random:") and start.classes is None:
        network = open_network(spec, start.arch, classes, network.input_shape, seed)
    elif start.new_head:
        network = with_new_head(network, classes, seed)
    network.model.float()  # images come in single precision
    check_classes(network.model, data)
    return network, data


def open_teacher(checkpoint: str, arch: str | None, network: Network, data: Data) -> Network:
    """A teacher that knows the same classes; as a rule of the network's own architecture."""
    classes = None if arch is None else len(data.classes)
    try:
        teacher = open_network(checkpoint, arch, classes, usual=network.arch)
        teacher.model.float()
        check_classes(teacher.model, data)
    except LegrError as error:
        raise type(error)(f"--teacher: {error}") from error
    return teacher
