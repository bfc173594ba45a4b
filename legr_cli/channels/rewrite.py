"""How each shape op works on fewer channels: as it is, with new sizes, or as a gather.

The pruned network is played through on twins: its ids are known beforehand (the dense twin
without the removed ids), so an op fits as it is exactly when it gives those ids.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx

from legr_cli.channels.ops import RESHAPE_MODULES, RESHAPES, Kind, describe
from legr_cli.channels.push import arguments
from legr_cli.channels.rules import asks_for_shape, run
from legr_cli.channels.twins import Ids, narrowed, tensors
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
class Rehearsal:
    """The pruned twins of every node, the ops to rewrite, and those that cannot be."""

    units: Units
    kept: Kept
    values: dict[fx.Node, Any] = field(default_factory=dict)  # None: no tensor of its own
    rewrites: dict[fx.Node, Rewrite] = field(default_factory=dict)
    trouble: list[tuple[Any, str]] = field(default_factory=list)


def rehearse(units: Units) -> list[tuple[Any, str]]:
    """Play two random plans; the twins to pin, with the op that stands in the way."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        kept = rng.random(units.count) < 0.6
        for line in units.lines:
            kept[line[0]] |= not kept[line].any()
        trouble = play(units, kept).trouble
        if trouble:
            return trouble
    return []


def play(units: Units, kept: Kept) -> Rehearsal:
    """Walk through the network with the removed channels gone."""
    stage = Rehearsal(units, kept)
    modules = dict(units.flow.traced.named_modules())
    for node in units.flow.traced.graph.nodes:
        stage.values[node] = _play_node(stage, node, modules)
    return stage


def _play_node(stage: Rehearsal, node: fx.Node, modules: dict[str, Any]) -> Any:
    """The pruned twin of a node; trouble is noted where it cannot have one."""
    flow = stage.units.flow
    dense = flow.twins[node]
    if node.op == "output":
        return None
    if node.op in ("placeholder", "get_attr"):
        return _pruned(stage, dense) if flow.has_twin(node) else dense
    args, kwargs = arguments(node, stage.values)
    kind = flow.kinds.get(node)
    if kind is None:
        return _plain_value(stage, node, modules, args, kwargs)
    if kind is Kind.SHAPE:
        return _shape_op(stage, node, modules, args, kwargs)
    if kind is Kind.UNKNOWN:
        return dense  # it reads and gives only what stays
    twin = _pruned(stage, dense)
    ragged = twin is None or any(stage.values[n] is None for n in node.all_input_nodes)
    numbers = kind is not Kind.LAYER and _numbers(args, kwargs)  # surgery sets a layer's own
    if ragged or (numbers and numbers != _numbers(*arguments(node, flow.twins))):
        _note(stage, node, modules)
    return twin


def _plain_value(
    stage: Rehearsal, node: fx.Node, modules: dict[str, Any], args: Any, kwargs: Any
) -> Any:
    """A size or number, computed again on the pruned twins."""
    flow = stage.units.flow
    twins = [n for n in node.all_input_nodes if flow.has_twin(n)]
    if any(stage.values[n] is None for n in twins):
        _note(stage, node, modules)
        return flow.twins[node]
    if not node.all_input_nodes or not asks_for_shape(flow, node):
        return flow.twins[node]
    value = run(node, modules, args, kwargs)
    return flow.twins[node] if isinstance(value, torch.dtype | torch.device | bool) else value


def _numbers(args: Any, kwargs: Any) -> list[Any]:
    """The plain values among the arguments."""
    found: list[Any] = []
    fx.node.map_aggregate(
        (args, kwargs), lambda v: None if isinstance(v, torch.Tensor) else found.append(v)
    )
    return [v for v in found if isinstance(v, int | float)]


def _note(stage: Rehearsal, node: fx.Node, modules: dict[str, Any]) -> None:
    """This op cannot work on fewer channels: all that it touches has to stay."""
    twins = stage.units.flow.twins
    touched = [twins[n] for n in node.all_input_nodes] + [twins[node]]
    stage.trouble.append((touched, describe(node, modules)))


def _pruned(stage: Rehearsal, twin: Any) -> Any:
    """A dense twin without its removed channels; None where what stays is no box."""
    if not isinstance(twin, torch.Tensor):
        return None
    picks = _box(stage, twin)
    if picks is None:
        return None
    small, shape = narrowed(twin), list(twin.shape)
    for dim, pick in enumerate(picks):
        if pick is not None:
            small, shape[dim] = small.index_select(dim, pick), len(pick)
    return small.expand(shape)


def _box(stage: Rehearsal, twin: Ids) -> list[torch.Tensor | None] | None:
    """For each dimension the indices that stay (None: all), if what stays fills a box."""
    small = narrowed(twin)
    stays = torch.from_numpy(stage.units.keeps(stage.kept, small.reshape(-1))).reshape(small.shape)
    picks: list[torch.Tensor | None] = [None] * twin.ndim
    for dim in range(twin.ndim):
        line = stays.movedim(dim, 0).unsqueeze(-1).flatten(1).any(1)
        if not bool(line.all()):
            picks[dim] = line.nonzero().flatten()
            stays = stays.index_select(dim, picks[dim])  # type: ignore[arg-type]
    return picks if bool(stays.all()) else None


def _shape_op(
    stage: Rehearsal, node: fx.Node, modules: dict[str, Any], args: Any, kwargs: Any
) -> Any:
    """Keep the op if it gives the wanted ids on fewer channels, else rewrite it."""
    dense = stage.units.flow.twins[node]
    whole = all(stage.values[n] is not None for n in node.all_input_nodes)
    many = not isinstance(dense, torch.Tensor)
    wanted = [_pruned(stage, twin) for twin in tensors(dense)]
    if whole and all(twin is not None for twin in wanted):
        made = _attempt(lambda: run(node, modules, args, kwargs))
        if _same(made, wanted, stage.units.flow.constants):
            return made if many else wanted[0]
    if many:
        return None  # its parts are gathered one by one
    if wanted[0] is None:
        return None
    rewrite: Rewrite | None = _reshape(stage, node, modules, args, wanted[0]) if whole else None
    rewrite = rewrite or _gather(stage, node, modules)
    if rewrite is None:
        _note(stage, node, modules)
    else:
        stage.rewrites[node] = rewrite
    return wanted[0]


def _attempt(op: Callable[[], Any]) -> Any:
    """What an op gives, or None if it does not run on these sizes."""
    try:
        return op()
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None


def _same(made: Any, wanted: list[Ids], constants: list[Ids]) -> bool:
    """Whether the wanted ids were made; a zero is the op's own, and stands for a constant."""
    found = tensors(made)
    if [a.shape for a in found] != [b.shape for b in wanted]:
        return False
    for a, b in zip(found, wanted, strict=True):
        own = a == 0
        if bool(own.any()) and not bool(torch.isin(b[own], torch.cat(constants)).all()):
            return False
        if not bool(((a == b) | own).all()):
            return False
    return True


def _reshape(
    stage: Rehearsal, node: fx.Node, modules: dict[str, Any], args: Any, wanted: Ids
) -> Reshape | None:
    """The same reshape to the pruned sizes, if that puts every id in its place."""
    module = modules.get(str(node.target)) if node.op == "call_module" else None
    if node.target not in RESHAPES and not isinstance(module, RESHAPE_MODULES):
        return None
    made = _attempt(lambda: args[0].reshape(wanted.shape))
    if made is None or not torch.equal(made, wanted):
        return None
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    if node.target not in ("reshape", torch.reshape) or len(sizes) != wanted.ndim:
        return Reshape((-1, *wanted.shape[1:]))
    dense = stage.units.flow.twins[node].shape  # what does not change may depend on the image
    pairs = zip(sizes, dense, wanted.shape, strict=True)
    return Reshape(tuple(size if was == now else now for size, was, now in pairs))  # type: ignore[misc]


def _gather(stage: Rehearsal, node: fx.Node, modules: dict[str, Any]) -> Gather | None:
    """Express a chain of shape ops as a choice of channels of the tensors it starts from.

    The chain is run on places (1, 2, … in the joined sources, 0 for the ops' own zeros) to see
    where each channel comes from, and on random numbers to see that nothing else moves.
    """
    twins = stage.units.flow.twins
    chain, sources = _chain(stage, node)
    boxes = [_box(stage, twins[n]) for n in (node, *sources)]
    dims = {d for box in boxes for d, pick in enumerate(box or []) if pick is not None}
    if None in boxes or not sources or len(dims) != 1:
        return None
    dim, ndim = dims.pop(), twins[node].ndim
    if any(twins[n].ndim != ndim for n in sources):
        return None
    sizes = [twins[n].shape[dim] for n in sources]
    places = torch.arange(1, sum(sizes) + 1).split(sizes)
    view = [-1 if d == dim else 1 for d in range(ndim)]
    spread = [p.reshape(view).expand(twins[n].shape) for p, n in zip(places, sources, strict=True)]
    numbers = [torch.rand(tuple(twins[n].shape)) for n in sources]
    joined = _attempt(
        lambda: torch.cat([torch.zeros_like(numbers[0]).narrow(dim, 0, 1), *numbers], dim)
    )
    made = _replay(stage, chain, dict(zip(sources, spread, strict=True)), modules)
    redone = _replay(stage, chain, dict(zip(sources, numbers, strict=True)), modules)
    if joined is None or made is None or redone is None:
        return None
    line = made.long().movedim(dim, 0).flatten(1)[:, 0]
    if not torch.equal(redone, joined.index_select(dim, line)):
        return None
    new_place, width = _new_places(sizes, [box[dim] for box in boxes[1:]])  # type: ignore[index]
    stays = boxes[0][dim]  # type: ignore[index]
    picks = new_place[line if stays is None else line[stays]]
    if bool((picks < 0).any()):
        return None
    return Gather(tuple(sources), dim, ndim, width, tuple(picks.tolist()))


def _new_places(sizes: list[int], stays: list[torch.Tensor | None]) -> tuple[torch.Tensor, int]:
    """Where each dense place is in the joined pruned sources (-1: removed), and their width."""
    masks = []
    for size, stay in zip(sizes, stays, strict=True):
        mask = torch.full((size,), stay is None)
        masks.append(mask if stay is None else mask.index_fill(0, stay, True))
    mask = torch.cat(masks)
    width = int(mask.sum())
    place = torch.where(mask, mask.cumsum(0) - 1, -1)
    return torch.cat([torch.tensor([width]), place]), width


def _chain(stage: Rehearsal, node: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
    """The ops between `node` and the nearest pruned tensors, and the nodes of those tensors."""
    flow = stage.units.flow
    chain, sources, waiting = {node}, set(), [node]
    while waiting:
        for n in waiting.pop().all_input_nodes:
            if not flow.has_twin(n):
                continue
            makes_zeros = not any(flow.has_twin(m) for m in n.all_input_nodes) and n in flow.kinds
            if stage.values[n] is not None and not makes_zeros:
                sources.add(n)
            elif n not in chain:
                chain.add(n)
                waiting.append(n)
    nodes = list(flow.traced.graph.nodes)
    return [n for n in nodes if n in chain], [n for n in nodes if n in sources]


def _replay(
    stage: Rehearsal,
    chain: list[fx.Node],
    start: dict[fx.Node, torch.Tensor],
    modules: dict[str, Any],
) -> Any:
    """Run a chain of shape ops on dense tensors; None if it cannot be."""
    values: dict[fx.Node, Any] = {**stage.units.flow.twins, **start}
    for node in chain:
        if stage.units.flow.kinds.get(node) is not Kind.SHAPE:
            return None
        args, kwargs = arguments(node, values)
        values[node] = run(node, modules, args, kwargs)
    return values[chain[-1]]
