"""The channels of a traced network: which ops create, tie, read and pin which ids."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.id_tensors import Ids, collapse
from legr_cli.channels.ops import OpKind
from legr_cli.channels.slicing import Axes
from legr_cli.channels.structures import tensors


@dataclass(frozen=True)
class Term:
    """A cost for each pair of an id in `rows` and one in `cols` (or for each id in `rows`).

    `flops` are FLOPs per image, `params` parameters; `owner` names the layer, norm or pooling op.
    """

    owner: str
    flops: float
    params: int
    rows: Ids
    cols: Ids | None = None


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer: the ids of its output and input channels, in order."""

    name: str
    kind: str
    weight: torch.Tensor
    out: Ids
    into: Ids
    axes: Axes  # the dimensions of the weight that follow `out` and `into`
    bias: str | None = None  # functional layer: the name of its bias parameter


@dataclass(frozen=True)
class Grouped:
    """A call of a grouped convolution: the ids of its channels, one row for each group."""

    layer: str
    into: Ids
    out: Ids

    @property
    def whole(self) -> Ids:
        """All channels of each group."""
        return torch.cat([self.into, self.out], 1)


@dataclass
class Flow:
    """The result of pushing channel ids through a traced network."""

    traced: fx.GraphModule
    shapes: dict[fx.Node, Any]
    id_tensors: dict[fx.Node, Any] = field(default_factory=dict)
    kinds: dict[fx.Node, OpKind] = field(default_factory=dict)
    layers: dict[str, Layer] = field(default_factory=dict)
    channelwise: dict[str, Ids] = field(default_factory=dict)  # norms and tensors of the network
    readers: dict[str, Ids] = field(default_factory=dict)  # recurrent layers: ids of their input
    terms: list[Term] = field(default_factory=list)
    ties: list[tuple[Ids, Ids]] = field(default_factory=list)
    tied_by: list[str] = field(default_factory=list)  # the op of each tie
    op: str = ""  # the op whose rule runs now
    grouped: list[Grouped] = field(default_factory=list)
    pins: list[tuple[Ids, str]] = field(default_factory=list)
    unsupported: dict[str, int] = field(default_factory=dict)  # output width of layers without rule
    why_unsupported: dict[str, str] = field(default_factory=dict)
    padding_ids: list[Ids] = field(default_factory=list)  # zeros that ops add; no layer writes them
    owners: list[tuple[str, torch.Tensor, list[Ids]]] = field(default_factory=list)
    counted: set[int] = field(default_factory=set)
    id_count: int = 1  # id 0 is reserved for zeros that an op adds

    def record_owner(self, name: str, tensor: torch.Tensor | None, *ids: Ids) -> None:
        """Record which module a tensor belongs to, and the ids that its dimensions follow."""
        if tensor is not None:
            self.owners.append((name, tensor, list(ids)))

    def count_once(self, tensor: torch.Tensor | None) -> bool:
        """Whether a tensor is a parameter not counted so far; from now on it counts as counted."""
        uncounted = isinstance(tensor, nn.Parameter) and id(tensor) not in self.counted
        self.counted.add(id(tensor))
        return uncounted

    def has_ids(self, node: fx.Node) -> bool:
        """Whether a node returns tensors with channels, not plain values, indices or weights."""
        if node.op == "get_attr":
            return str(node.target) in self.channelwise
        return bool(tensors(self.id_tensors[node]))

    def new_ids(self, count: int) -> Ids:
        """Allocate new channel ids."""
        self.id_count += count
        return torch.arange(self.id_count - count, self.id_count)

    def tie(self, a: Ids, b: Ids) -> None:
        """Require that ids at the same position are kept or removed together."""
        a, b = torch.broadcast_tensors(collapse(a), collapse(b))
        self.ties.append((a.flatten(), b.flatten()))
        self.tied_by.append(self.op)

    def ids_along(self, id_tensor: Ids, dim: int) -> Ids:
        """Return one id for each index of `dim`; ids that share an index are tied."""
        # one row per index of `dim`, holding every id that occurs there
        rows = collapse(id_tensor, keep=dim).movedim(dim, 0).unsqueeze(-1).flatten(1)
        if rows.shape[1] > 1:
            self.tie(rows, rows[:, :1])
        return rows[:, 0].clone()

    def pin(self, value: Any, reason: str) -> None:
        """Require that all channels in `value` are kept."""
        for id_tensor in tensors(value):
            self.pins.append((collapse(id_tensor).flatten(), reason))
