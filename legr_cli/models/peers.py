"""Open several networks that are measured side by side: one may record what another does not."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import nn

from legr_cli.models.card import Card
from legr_cli.models.network import Network, open_network
from legr_cli.shapes import Shapes


def open_peers(
    names: Sequence[str],
    arch: str | Callable[..., nn.Module] | None = None,
    classes: int | None = None,
    input_shape: Shapes | None = None,
    weights: str | None = None,
    in_memory: Mapping[str, Network] | None = None,
    on_open: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, Network]]:
    """Open networks one by one: first the files written by legr, then the others.

    Files written by legr record their architecture and input size, which checkpoints lack; the
    others default to those of the first network opened. `in_memory` holds networks that need no
    opening, by name; `on_open` is called with each name before its network is opened.
    """
    reference: Card | None = None
    for name in sorted(names, key=lambda name: not name.endswith(".safetensors")):
        on_open(name)
        network = (in_memory or {}).get(name)
        if network is None:
            shape = input_shape or _default_shape(reference, name)
            usual = None if reference is None else reference.arch
            network = open_network(name, arch, classes, shape, usual=usual, weights=weights)
        reference = reference or network.card
        yield name, network


def peer_opener(name: str | None, arch: str | None) -> Callable[[Network], Network] | None:
    """Opens a network beside another one, whose architecture and input size are the default."""
    if name is None:
        return None
    return lambda peer: open_network(name, arch, None, peer.input_shape, usual=peer.arch)


def _default_shape(reference: Card | None, name: str) -> Shapes | None:
    """Input shape for a network that may not record its own: that of the first network opened.

    None, to use the architecture's default, if the network is of another architecture.
    """
    if reference is None or name.endswith(".safetensors"):
        return None
    kind, _, arch = name.partition(":")
    names_arch = kind in ("random", "torchvision")
    if names_arch and arch.split("@")[0] != str(reference.arch):
        return None
    return reference.input_shape
