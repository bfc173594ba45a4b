"""Open several networks that are measured side by side: one may record what another does not."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import nn

from legr_cli.models.card import Card
from legr_cli.models.network import Network, open_network


def open_peers(
    names: Sequence[str],
    arch: str | Callable[..., nn.Module] | None = None,
    classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    opened: Mapping[str, Network] | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> Iterator[tuple[str, Network]]:
    """Open networks one by one, files written by legr first, whatever their order.

    A network that records neither its architecture nor its input size, such as the dense
    checkpoint, takes those of the first. `opened` has networks that are open already, by name;
    `watch` is told which one is next.
    """
    first: Card | None = None
    for name in sorted(names, key=lambda name: not name.endswith(".safetensors")):
        watch(name)
        network = (opened or {}).get(name)
        if network is None:
            size = input_shape or _size_like(first, name)
            usual = None if first is None else first.arch
            network = open_network(name, arch, classes, size, usual=usual)
        first = first or network.card
        yield name, network


def _size_like(first: Card | None, name: str) -> tuple[int, ...] | None:
    """Input size for a network that does not record its own: that of its peer."""
    if first is None or name.endswith(".safetensors"):
        return None
    kind, _, arch = name.partition(":")
    named = kind in ("random", "torchvision")
    return first.input_shape if not named or arch.split("@")[0] == str(first.arch) else None
