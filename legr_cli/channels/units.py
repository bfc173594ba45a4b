"""Units: the channels of a network that must live or die together."""

from dataclasses import dataclass

import numpy as np
import torch

from legr_cli.channels.flow import Flow
from legr_cli.channels.id_tensors import Ids, components, narrowed, tensors

Kept = np.ndarray  # a bool for each unit


@dataclass(frozen=True)
class Pin:
    """Channels of a layer that stay, and the op that holds them."""

    layer: str
    channels: int
    reason: str


@dataclass(frozen=True)
class Units:
    """A traced network and its units.

    `of_id[i]` is the unit of channel id `i`, or -1 where nothing can be removed. Of each of
    `lines` at least one unit stays, so that no tensor vanishes.
    """

    flow: Flow
    of_id: np.ndarray
    count: int
    pins: tuple[Pin, ...]
    lines: tuple[np.ndarray, ...]
    input_shape: tuple[int, ...]

    def of(self, ids: Ids) -> np.ndarray:
        """The unit of each of these ids; -1 for those that always stay."""
        return self.of_id[ids.numpy()]

    def keeps(self, kept: Kept, ids: Ids) -> np.ndarray:
        """Whether each of these ids stays under a plan."""
        return np.append(kept, True)[self.of(ids)]

    def standing(self, kept: Kept) -> Kept:
        """The plan with a unit put back wherever a tensor would vanish."""
        kept = kept.copy()
        for line in self.lines:
            kept[line[0]] |= not kept[line].any()
        return kept


def number(flow: Flow, input_shape: tuple[int, ...]) -> Units:
    """Number the classes of tied ids that hold filters and no pinned channel: the units."""
    label = components(flow.ids, flow.ties)
    reason_of: dict[int, str] = {}
    for ids, reason in flow.pins:
        for root in np.unique(label[ids.numpy()]):
            reason_of.setdefault(int(root), reason)
    pinned = np.zeros(flow.ids, bool)
    pinned[list(reason_of)] = True
    roots = [label[layer.out.numpy()] for layer in flow.layers.values()]
    free = np.unique(np.concatenate([r[~pinned[r]] for r in roots])) if roots else np.array([], int)
    of_root = np.full(flow.ids, -1)
    of_root[free] = np.arange(len(free))
    pins = [
        Pin(name, int(count), reason_of[int(root)])
        for name, r in zip(flow.layers, roots, strict=True)
        for root, count in _by_reason(r[pinned[r]], reason_of)
    ]
    for name, width in flow.strangers.items():
        kind = type(flow.traced.get_submodule(name)).__name__
        pins.append(Pin(name, width, f"{kind} ({name})"))
    of_id = of_root[label]
    return Units(flow, of_id, len(free), tuple(pins), _lines(flow, of_id), tuple(input_shape))


def _lines(flow: Flow, of_id: np.ndarray) -> tuple[np.ndarray, ...]:
    """The units of every tensor that has no other channels."""
    found: dict[bytes, np.ndarray] = {}
    for node, twin in flow.twins.items():
        if node.op == "output" or not flow.has_twin(node):
            continue
        for tensor in tensors(twin):
            line = np.unique(of_id[narrowed(tensor).numpy()])
            if line.size and line[0] >= 0:
                found[line.tobytes()] = line
    return tuple(found.values())


def _by_reason(roots: np.ndarray, reason_of: dict[int, str]) -> list[tuple[int, int]]:
    """For each reason one of its roots and how many channels it holds."""
    first: dict[str, int] = {}
    counts: dict[str, int] = {}
    for root in roots.tolist():
        reason = reason_of[root]
        first.setdefault(reason, root)
        counts[reason] = counts.get(reason, 0) + 1
    return [(first[reason], counts[reason]) for reason in first]


def index(kept: np.ndarray) -> torch.Tensor:
    """The positions that are kept, as an index for tensors."""
    return torch.from_numpy(np.flatnonzero(kept))
