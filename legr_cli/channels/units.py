"""Units: sets of channels that can only be kept or removed together."""

from dataclasses import dataclass

import numpy as np
import torch

from legr_cli.channels.flow import Flow
from legr_cli.channels.id_tensors import Ids, collapse, connected_components
from legr_cli.channels.inputs import Source
from legr_cli.channels.structures import tensors

Kept = np.ndarray  # a plan: for each unit, whether it is kept


@dataclass(frozen=True)
class Pin:
    """Channels of a layer that cannot be removed, and the op that requires them."""

    layer: str
    channels: int
    reason: str


@dataclass(frozen=True)
class Units:
    """A traced network and its units."""

    flow: Flow
    unit_of_id: np.ndarray  # the unit of each channel id; -1 for channels that always stay
    count: int
    pins: tuple[Pin, ...]
    tied: tuple[Pin, ...]  # layers all of whose channels are one unit, and the op that ties them
    tensor_units: tuple[np.ndarray, ...]  # units of tensors that would vanish without all of them
    source: Source

    def unit_of(self, ids: Ids) -> np.ndarray:
        """Return the unit of each id; -1 for channels that always stay."""
        return self.unit_of_id[ids.numpy()]

    def keeps(self, kept: Kept, ids: Ids) -> np.ndarray:
        """Return whether each id is kept under a plan."""
        # unit -1 indexes the appended True: channels of no unit always stay
        return np.append(kept, True)[self.unit_of(ids)]

    def without_empty_tensors(self, kept: Kept) -> Kept:
        """Return the plan with one unit added back to every tensor that would lose them all."""
        kept = kept.copy()
        for units in self.tensor_units:
            kept[units[0]] |= not kept[units].any()
        return kept


def assign_units(flow: Flow, source: Source) -> Units:
    """Number the sets of tied ids that contain output channels of a layer and no pinned id."""
    label = connected_components(flow.id_count, flow.ties)
    reason_of: dict[int, str] = {}
    for ids, reason in flow.pins:
        for root in np.unique(label[ids.numpy()]):
            reason_of.setdefault(int(root), reason)
    pinned = np.zeros(flow.id_count, bool)
    pinned[list(reason_of)] = True
    roots = [label[layer.out.numpy()] for layer in flow.layers.values()]
    free = np.unique(np.concatenate([r[~pinned[r]] for r in roots])) if roots else np.array([], int)
    # a set's label is its smallest id, so units are numbered in network order
    unit_of_root = np.full(flow.id_count, -1)
    unit_of_root[free] = np.arange(len(free))
    pins = [
        Pin(name, int(count), reason_of[int(root)])
        for name, r in zip(flow.layers, roots, strict=True)
        for root, count in _count_by_reason(r[pinned[r]], reason_of)
    ]
    for name, width in flow.unsupported.items():
        pins.append(Pin(name, width, flow.why_unsupported[name]))
    unit_of_id = unit_of_root[label]
    tensor_units, tied = _tensor_units(flow, unit_of_id), _tied_layers(flow, unit_of_id)
    return Units(flow, unit_of_id, len(free), tuple(pins), tied, tensor_units, source)


def _tied_layers(flow: Flow, unit_of_id: np.ndarray) -> tuple[Pin, ...]:
    """Find the layers whose channels can only be removed all together, and what ties them."""
    tied, reasons = [], dict[int, str]()
    for name, layer in flow.layers.items():
        units = np.unique(unit_of_id[layer.out.numpy()])
        if len(units) > 1 or units[0] < 0 or len(layer.out) == 1:
            continue
        reason = reasons.setdefault(int(units[0]), "") or _tied_by(flow, layer.out)
        reasons[int(units[0])] = reason
        tied.append(Pin(name, len(layer.out), reason))
    return tuple(tied)


def _tied_by(flow: Flow, ids: Ids) -> str:
    """The op that ties the last of these ids to the others."""
    low, high = 0, len(flow.ties)
    while low + 1 < high:  # `low` ties are too few, `high` are enough
        middle = (low + high) // 2
        label = connected_components(flow.id_count, flow.ties[:middle])
        enough = len(np.unique(label[ids.numpy()])) == 1
        low, high = (low, middle) if enough else (middle, high)
    return flow.tied_by[high - 1]


def _tensor_units(flow: Flow, unit_of_id: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the units of every tensor all of whose channels can be removed."""
    distinct: dict[bytes, np.ndarray] = {}
    for node, value in flow.id_tensors.items():
        if node.op == "output" or not flow.has_ids(node):
            continue
        for id_tensor in tensors(value):
            units = np.unique(unit_of_id[collapse(id_tensor).numpy()])
            if units.size and units[0] >= 0:
                distinct[units.tobytes()] = units
    return tuple(distinct.values())


def _count_by_reason(roots: np.ndarray, reason_of: dict[int, str]) -> list[tuple[int, int]]:
    """Return, for each reason, one of its roots and the number of channels it pins."""
    first: dict[str, int] = {}
    counts: dict[str, int] = {}
    for root in roots.tolist():
        reason = reason_of[root]
        first.setdefault(reason, root)
        counts[reason] = counts.get(reason, 0) + 1
    return [(first[reason], counts[reason]) for reason in first]


def kept_index(kept: np.ndarray) -> torch.Tensor:
    """Return the kept positions as an index tensor."""
    return torch.from_numpy(np.flatnonzero(kept))
