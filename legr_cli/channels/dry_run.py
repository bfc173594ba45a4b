"""A plan played through on twins: what every tensor of the pruned network will hold."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from legr_cli.channels.id_tensors import Ids, narrowed
from legr_cli.channels.units import Kept, Units


@dataclass(frozen=True)
class Reshape:
    """Reshape the op's input to these sizes, some of which the network computes."""

    sizes: tuple[int | fx.Node, ...]


@dataclass(frozen=True)
class Gather:
    """Take channels of the joined sources, `width` in all; a pick of `width` means zeros."""

    sources: tuple[fx.Node, ...]
    dim: int
    ndim: int
    width: int
    picks: tuple[int, ...]


Rewrite = Reshape | Gather


@dataclass
class DryRun:
    """The pruned twins of every node, the ops to rewrite, and those that cannot be."""

    units: Units
    kept: Kept
    values: dict[fx.Node, Any] = field(default_factory=dict)  # None: no tensor of its own
    rewrites: dict[fx.Node, Rewrite] = field(default_factory=dict)
    trouble: list[tuple[Any, str]] = field(default_factory=list)


def pruned_ids(stage: DryRun, twin: Any) -> Any:
    """A dense twin without its removed channels; None where what stays is no box."""
    if not isinstance(twin, torch.Tensor):
        return None
    picks = box(stage.units, stage.kept, twin)
    if picks is None:
        return None
    small, shape = narrowed(twin), list(twin.shape)
    for dim, pick in enumerate(picks):
        if pick is not None:
            small, shape[dim] = small.index_select(dim, pick), len(pick)
    return small.expand(shape)


def box(units: Units, kept: Kept, twin: Ids) -> list[torch.Tensor | None] | None:
    """For each dimension the indices that stay (None: all), if what stays fills a box."""
    small = narrowed(twin)
    stays = torch.from_numpy(units.keeps(kept, small.reshape(-1))).reshape(small.shape)
    picks: list[torch.Tensor | None] = [None] * twin.ndim
    for dim in range(twin.ndim):
        line = stays.movedim(dim, 0).unsqueeze(-1).flatten(1).any(1)
        if not bool(line.all()):
            picks[dim] = line.nonzero().flatten()
            stays = stays.index_select(dim, picks[dim])  # type: ignore[arg-type]
    return picks if bool(stays.all()) else None


def attempt(op: Callable[[], Any]) -> Any:
    """What an op gives, or None if it does not run on these sizes."""
    try:
        return op()
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None
