"""Dry run of a plan on id tensors: which channels every tensor of the pruned network holds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from legr_cli.channels.id_tensors import Ids, collapse
from legr_cli.channels.units import Kept, Units


@dataclass(frozen=True)
class SizeOf:
    """The size that the op's input has along a dimension."""

    dim: int


@dataclass(frozen=True)
class Reshape:
    """Reshape the op's input to these sizes, some of which the network computes."""

    sizes: tuple[int | fx.Node | SizeOf, ...]


@dataclass(frozen=True)
class Gather:
    """Select channels of the concatenated sources; an index of `width` selects zeros."""

    sources: tuple[fx.Node, ...]
    dim: int
    ndim: int
    width: int  # channels of all sources
    picks: tuple[int, ...]


Rewrite = Reshape | Gather


@dataclass
class DryRun:
    """The pruned id tensor of every node, the ops to rewrite, and the ops that fail."""

    units: Units
    kept: Kept
    values: dict[fx.Node, Any] = field(default_factory=dict)  # None: not a tensor by itself
    rewrites: dict[fx.Node, Rewrite] = field(default_factory=dict)
    failures: list[tuple[Any, str]] = field(default_factory=list)  # ids to pin, and the op's name


def pruned_ids(dry_run: DryRun, id_tensor: Any) -> Any:
    """Remove pruned channels from an id tensor; None if the kept ones do not form a box."""
    if not isinstance(id_tensor, torch.Tensor):
        return None
    picks = kept_box(dry_run.units, dry_run.kept, id_tensor)
    if picks is None:
        return None
    small, shape = collapse(id_tensor), list(id_tensor.shape)
    for dim, pick in enumerate(picks):
        if pick is not None:
            small, shape[dim] = small.index_select(dim, pick), len(pick)
    return small.expand(shape)


def kept_box(units: Units, kept: Kept, id_tensor: Ids) -> list[torch.Tensor | None] | None:
    """Return the kept indices of each dimension (None: all), if kept elements form a box."""
    small = collapse(id_tensor)
    stays = torch.from_numpy(units.keeps(kept, small.reshape(-1))).reshape(small.shape)
    picks: list[torch.Tensor | None] = [None] * id_tensor.ndim
    for dim in range(id_tensor.ndim):
        # an index of this dimension is needed if any element at it is kept
        needed = stays.movedim(dim, 0).unsqueeze(-1).flatten(1).any(1)
        if not bool(needed.all()):
            picks[dim] = needed.nonzero().flatten()
            stays = stays.index_select(dim, picks[dim])  # type: ignore[arg-type]
    return picks if bool(stays.all()) else None


def result_or_none(op: Callable[[], Any]) -> Any:
    """Return the result of an op, or None if it does not run on these sizes."""
    try:
        return op()
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None
