"""A chain of shape ops as a choice of channels: what shuffles, splits and padding become."""

from typing import Any

import torch
from torch import fx

from legr_cli.channels.dry_run import DryRun, Gather, attempt, box
from legr_cli.channels.ops import OpKind
from legr_cli.channels.push import arguments
from legr_cli.channels.rules import run


def gather(stage: DryRun, node: fx.Node, modules: dict[str, Any]) -> Gather | None:
    """Express a chain of shape ops as a choice of channels of the tensors it starts from.

    The chain is run on places (1, 2, … in the joined sources, 0 for the ops' own zeros) to see
    where each channel comes from, and on random numbers to see that nothing else moves.
    """
    twins = stage.units.flow.twins
    chain, sources = _chain(stage, node)
    boxes = [box(stage.units, stage.kept, twins[n]) for n in (node, *sources)]
    dims = {d for picks in boxes for d, pick in enumerate(picks or []) if pick is not None}
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
    joined = attempt(
        lambda: torch.cat([torch.zeros_like(numbers[0]).narrow(dim, 0, 1), *numbers], dim)
    )
    made = _replay(stage, chain, dict(zip(sources, spread, strict=True)), modules)
    redone = _replay(stage, chain, dict(zip(sources, numbers, strict=True)), modules)
    if joined is None or made is None or redone is None:
        return None
    line = made.long().movedim(dim, 0).flatten(1)[:, 0]
    if not torch.equal(redone, joined.index_select(dim, line)):
        return None
    new_place, width = _new_places(sizes, [stay[dim] for stay in boxes[1:]])  # type: ignore[index]
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


def _chain(stage: DryRun, node: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
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
    stage: DryRun,
    chain: list[fx.Node],
    start: dict[fx.Node, torch.Tensor],
    modules: dict[str, Any],
) -> Any:
    """Run a chain of shape ops on dense tensors; None if it cannot be."""
    values: dict[fx.Node, Any] = {**stage.units.flow.twins, **start}
    for node in chain:
        if stage.units.flow.kinds.get(node) is not OpKind.SHAPE:
            return None
        args, kwargs = arguments(node, values)
        values[node] = run(node, modules, args, kwargs)
    return values[chain[-1]]
