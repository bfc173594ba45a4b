"""Rewrite a chain of shape ops (shuffles, splits, padding) as a selection of channels."""

from typing import Any

import torch
from torch import fx

from legr_cli.channels.dry_run import DryRun, Gather, kept_box, result_or_none
from legr_cli.channels.ops import OpKind
from legr_cli.channels.push import map_arguments
from legr_cli.channels.rules import run_op


def gather(dry_run: DryRun, node: fx.Node, modules: dict[str, Any]) -> Gather | None:
    """Express a chain of shape ops as a selection of channels of its source tensors.

    None if the chain does more than that. To find where each channel comes from, the chain is run
    on positions (1, 2, … in the concatenated sources; 0 stands for zeros that the ops add), then on
    random numbers to make sure that nothing else moves.
    """
    id_tensors = dry_run.units.flow.id_tensors
    chain, sources = _chain(dry_run, node)
    boxes = [kept_box(dry_run.units, dry_run.kept, id_tensors[n]) for n in (node, *sources)]
    dims = {d for picks in boxes for d, pick in enumerate(picks or []) if pick is not None}
    if None in boxes or not sources or len(dims) != 1:
        return None
    dim, ndim = dims.pop(), id_tensors[node].ndim
    if any(id_tensors[n].ndim != ndim for n in sources):
        return None
    sizes = [id_tensors[n].shape[dim] for n in sources]
    shapes = [tuple(id_tensors[n].shape) for n in sources]
    selected = _selected_positions(dry_run, chain, sources, shapes, dim, modules)
    if selected is None:
        return None
    new_position, width = _new_positions(sizes, [picks[dim] for picks in boxes[1:]])  # type: ignore[index]
    stays = boxes[0][dim]  # type: ignore[index]
    picks = new_position[selected if stays is None else selected[stays]]
    if bool((picks < 0).any()):
        return None
    return Gather(tuple(sources), dim, ndim, width, tuple(picks.tolist()))


def select(dry_run: DryRun, node: fx.Node, result: Any) -> Gather | None:
    """Select the kept channels from what an op gives at full size; None if it gives another."""
    dense = dry_run.units.flow.id_tensors[node]
    picks = kept_box(dry_run.units, dry_run.kept, dense)
    if result is None or result.shape != dense.shape or picks is None:
        return None
    dims = [dim for dim, pick in enumerate(picks) if pick is not None]
    if len(dims) != 1:
        return None
    [dim] = dims
    kept = picks[dim]
    assert kept is not None
    return Gather((node,), dim, dense.ndim, dense.shape[dim], tuple(kept.tolist()))


def _selected_positions(
    dry_run: DryRun,
    chain: list[fx.Node],
    sources: list[fx.Node],
    shapes: list[tuple[int, ...]],
    dim: int,
    modules: dict[str, Any],
) -> torch.Tensor | None:
    """Return the position from which the chain takes each channel; None if it does more."""
    sizes = [shape[dim] for shape in shapes]
    # number the channels of all sources from 1 and broadcast the numbers to the sources' shapes
    positions = torch.arange(1, sum(sizes) + 1).split(sizes)
    view = [-1 if d == dim else 1 for d in range(len(shapes[0]))]
    numbered = [p.reshape(view).expand(s) for p, s in zip(positions, shapes, strict=True)]
    noise = [torch.rand(shape) for shape in shapes]
    # position 0 is a channel of zeros in front of the concatenated sources
    joined = result_or_none(
        lambda: torch.cat([torch.zeros_like(noise[0]).narrow(dim, 0, 1), *noise], dim)
    )
    moved = _run_chain(dry_run, chain, dict(zip(sources, numbered, strict=True)), modules)
    expected = _run_chain(dry_run, chain, dict(zip(sources, noise, strict=True)), modules)
    if joined is None or moved is None or expected is None:
        return None
    selected: torch.Tensor = moved.long().movedim(dim, 0).flatten(1)[:, 0]
    return selected if torch.equal(expected, joined.index_select(dim, selected)) else None


def _new_positions(sizes: list[int], picks: list[torch.Tensor | None]) -> tuple[torch.Tensor, int]:
    """Map dense positions to positions in the concatenated pruned sources, and give their width.

    Removed channels map to -1; position 0, the zeros, maps to the width.
    """
    masks = []
    for size, pick in zip(sizes, picks, strict=True):
        mask = torch.full((size,), pick is None)
        masks.append(mask if pick is None else mask.index_fill(0, pick, True))
    mask = torch.cat(masks)
    width = int(mask.sum())
    # a kept channel moves to the number of kept channels before it
    position = torch.where(mask, mask.cumsum(0) - 1, -1)
    return torch.cat([torch.tensor([width]), position]), width


def _chain(dry_run: DryRun, node: fx.Node) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the ops from the nearest pruned tensors to `node`, and the nodes of those tensors."""
    flow = dry_run.units.flow
    chain, sources, waiting = {node}, set(), [node]
    while waiting:
        for n in waiting.pop().all_input_nodes:
            if not flow.has_ids(n):
                continue
            makes_zeros = not any(flow.has_ids(m) for m in n.all_input_nodes) and n in flow.kinds
            if dry_run.values[n] is not None and not makes_zeros:
                sources.add(n)
            elif n not in chain:
                chain.add(n)
                waiting.append(n)
    nodes = list(flow.traced.graph.nodes)
    return [n for n in nodes if n in chain], [n for n in nodes if n in sources]


def _run_chain(
    dry_run: DryRun,
    chain: list[fx.Node],
    inputs: dict[fx.Node, torch.Tensor],
    modules: dict[str, Any],
) -> Any:
    """Run a chain of ops on dense tensors; None if one of them is not a shape op."""
    values: dict[fx.Node, Any] = {**dry_run.units.flow.id_tensors, **inputs}
    for node in chain:
        if dry_run.units.flow.kinds.get(node) is not OpKind.SHAPE:
            return None
        args, kwargs = map_arguments(node, values)
        values[node] = run_op(node, modules, args, kwargs)
    return values[chain[-1]]
