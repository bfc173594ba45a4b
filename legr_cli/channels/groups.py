"""Which channels of grouped convolutions are removed together.

A grouped convolution needs groups of equal size. As a rule legr removes whole groups. Where that
leaves too few units, every group loses equally many channels instead.
"""

from collections import deque
from dataclasses import replace

import numpy as np
import torch

from legr_cli.channels.flow import Flow, Grouped, Term
from legr_cli.channels.id_tensors import connected_components

FEW = 4  # fewer units than this are too few to prune a layer finely


def tie_groups(flow: Flow) -> None:
    """Tie the channels of every grouped convolution: whole groups, or one channel of each."""
    inside = _layers_to_cut_inside(flow)
    for call in flow.grouped:
        flow.op = f"the groups of {call.layer}"
        if call.layer not in inside:
            flow.tie(call.whole, call.whole[:, :1])
    calls = [call for call in flow.grouped if call.layer in inside]
    label = connected_components(flow.id_count, flow.ties)
    # inputs come first: behind a shuffle, this often balances the layer before it as well
    sides = [(call, call.into) for call in calls] + [(call, call.out) for call in calls]
    for call, rows in sides:
        flow.op = f"the groups of {call.layer}"
        merged = np.arange(flow.id_count)
        for members in _balanced_sets(label[rows.numpy()]):
            together = torch.tensor(members)
            flow.tie(together, together[:1])
            merged[members] = min(members)
        label = merged[label]
    flow.terms[:] = [
        _term_inside(term, inside[term.owner].into) if term.owner in inside and term.flops else term
        for term in flow.terms
    ]


def _layers_to_cut_inside(flow: Flow) -> dict[str, Grouped]:
    """Return the layers of which every group loses equally many channels.

    These are layers whose groups form a single unit, and layers whose groups form fewer than `FEW`
    units if such layers make up most of the network's FLOPs.
    """
    calls = {c.layer: c for c in flow.grouped if min(c.into.shape[1], c.out.shape[1]) > 1}
    if not calls:
        return {}
    whole = [(call.whole, call.whole[:, :1].expand(call.whole.shape)) for call in flow.grouped]
    ties = [(a.flatten(), b.flatten()) for a, b in whole]
    label = connected_components(flow.id_count, [*flow.ties, *ties])
    pinned = label[torch.cat([ids for ids, _ in flow.pins]).numpy()]
    free = {name: np.setdiff1d(label[call.out.numpy()], pinned) for name, call in calls.items()}
    empty = np.array([], int)
    coarse = np.concatenate([empty, *(found for found in free.values() if len(found) < FEW)])
    flops = coarse_flops = 0.0
    for term in flow.terms:
        cost = term.flops * len(term.rows) * (1 if term.cols is None else len(term.cols))
        flops += cost
        coarse_flops += cost * bool(np.isin(label[term.rows.numpy()], coarse).all())
    least = FEW if coarse_flops > flops / 2 else 2
    return {name: call for name, call in calls.items() if len(free[name]) < least}


def _balanced_sets(rows: np.ndarray) -> list[list[int]]:
    """Return the sets of labels to merge, so that each label is equally frequent in every row.

    Labels that occur in different rows are merged in order, so that the first channel of a group
    goes with the first of the others; what cannot be balanced in this way is merged as a whole.
    """
    labels, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
    counts = np.zeros((len(labels), len(rows)), int)
    np.add.at(counts, (inverse.reshape(rows.shape), np.arange(len(rows))[:, None]), 1)
    done = []
    # by the rows in which they occur, sets that wait for labels from the other rows
    waiting: dict[frozenset[int], deque[tuple[list[int], np.ndarray]]] = {}
    for index in np.argsort(first):
        members, count = [int(labels[index])], counts[index]
        if count.min() == count.max():
            continue
        occurs = frozenset(np.flatnonzero(count).tolist())
        partner = next((o for o, sets in waiting.items() if sets and not o & occurs), None)
        if partner is not None:
            more, other = waiting[partner].popleft()
            members, count, occurs = more + members, count + other, partner | occurs
        if count.min() == count.max():
            done.append(members)
        else:
            waiting.setdefault(occurs, deque()).append((members, count))
    rest = [label for sets in waiting.values() for members, _ in sets for label in members]
    return [*done, rest] if rest else done


def _term_inside(term: Term, into: torch.Tensor) -> Term:
    """The cost of a layer by its output channels and the input channels of one group."""
    width = into.shape[1]
    return replace(term, flops=term.flops / width, params=term.params // width, cols=into[0])
