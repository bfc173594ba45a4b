"""What is known of the channels of a traced network: who makes, ties, reads and pins which one."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.id_tensors import Ids, narrowed, tensors
from legr_cli.channels.ops import OpKind
from legr_cli.channels.slicing import Axes


@dataclass(frozen=True)
class Term:
    """A cost of `flops` and `params` for each pair of an id in `rows` and one in `cols`."""

    owner: str
    flops: float
    params: int
    rows: Ids
    cols: Ids | None = None


@dataclass(frozen=True)
class Layer:
    """A convolution or linear: the ids it reads and those it makes, filter by filter."""

    name: str
    kind: str
    weight: torch.Tensor
    out: Ids
    into: Ids
    axes: Axes  # the dimensions of the weight that follow `out` and `into`
    bias: str | None = None  # of a functional layer: the name of its other parameter


@dataclass
class Flow:
    """All that pushing ids through a network tells of it."""

    traced: fx.GraphModule
    shapes: dict[fx.Node, Any]
    twins: dict[fx.Node, Any] = field(default_factory=dict)
    kinds: dict[fx.Node, OpKind] = field(default_factory=dict)
    layers: dict[str, Layer] = field(default_factory=dict)
    channelwise: dict[str, Ids] = field(default_factory=dict)
    terms: list[Term] = field(default_factory=list)
    ties: list[tuple[Ids, Ids]] = field(default_factory=list)
    pins: list[tuple[Ids, str]] = field(default_factory=list)
    strangers: dict[str, int] = field(default_factory=dict)  # layers without a rule: their width
    constants: list[Ids] = field(default_factory=list)  # of padding: no layer makes them
    owned: list[tuple[str, torch.Tensor, list[Ids]]] = field(default_factory=list)
    counted: set[int] = field(default_factory=set)
    ids: int = 1

    def own(self, name: str, tensor: torch.Tensor | None, *ids: Ids) -> None:
        """Note whose tensor this is and which ids it follows."""
        if tensor is not None:
            self.owned.append((name, tensor, list(ids)))

    def counts(self, tensor: torch.Tensor | None) -> bool:
        """Whether a tensor is a parameter that was not counted before."""
        fresh = isinstance(tensor, nn.Parameter) and id(tensor) not in self.counted
        self.counted.add(id(tensor))
        return fresh

    def has_twin(self, node: fx.Node) -> bool:
        """Whether a node gives tensors of channels, not plain values, indices or weights."""
        if node.op == "get_attr":
            return str(node.target) in self.channelwise
        return bool(tensors(self.twins[node]))

    def fresh(self, count: int) -> Ids:
        """New ids."""
        self.ids += count
        return torch.arange(self.ids - count, self.ids)

    def tie(self, a: Ids, b: Ids) -> None:
        """These ids live or die together, position by position."""
        a, b = torch.broadcast_tensors(narrowed(a), narrowed(b))
        self.ties.append((a.flatten(), b.flatten()))

    def along(self, twin: Ids, dim: int) -> Ids:
        """One id for each index of `dim`; several ids at one index are tied."""
        lines = narrowed(twin, but=dim).movedim(dim, 0).unsqueeze(-1).flatten(1)
        if lines.shape[1] > 1:
            self.tie(lines, lines[:, :1])
        return lines[:, 0].clone()

    def pin(self, value: Any, reason: str) -> None:
        """These channels stay."""
        for twin in tensors(value):
            self.pins.append((narrowed(twin).flatten(), reason))
