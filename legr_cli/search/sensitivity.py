"""A start from sensitivities: how far the outputs move when one group of units alone is halved."""

from collections.abc import Callable

import numpy as np

from legr_cli.channels.units import Kept
from legr_cli.errors import SearchError
from legr_cli.metrics.table import METRICS
from legr_cli.pruning import Analysis
from legr_cli.ranking import identity, importance, solve_shifts
from legr_cli.search.evolution import Genes

KEPT = 0.5  # share of the units of a group
SMALLEST = 1e-5  # divergence: below is noise


def measure(analysis: Analysis, divergence: Callable[[Kept], float | None]) -> list[float]:
    """The divergence of the network, repaired, with each group alone halved."""
    scores, found = importance(analysis.filters, identity(analysis.filters)), list[float]()
    for members in _groups(analysis):
        kept = np.ones(analysis.units.count, bool)
        kept[_worst(members, scores)] = False
        reached = divergence(analysis.units.without_empty_tensors(kept))
        if reached is None or not np.isfinite(reached):
            raise SearchError("--start sensitivity: outputs are NaN with half of a layer removed")
        found.append(reached)
    return found


def sensitive(analysis: Analysis, divergences: list[float]) -> Genes:
    """α and κ after which the importance of a group's units is its divergence for each FLOP.

    The divergence is shared out by the metric: log of it where the metric is a logarithm.
    """
    filters, cost = analysis.filters, analysis.cost
    scores = importance(filters, identity(filters))
    flops = np.maximum(cost.marginal(cost.flops, cost.sizes.astype(float)), 1)
    moved = np.log(np.maximum(divergences, SMALLEST)) - np.log(flops)
    is_log = METRICS[filters.metric].is_logarithm
    shown = np.exp(scores) if is_log else np.maximum(scores, np.finfo(float).tiny)
    lost = [shown[_worst(members, scores)].sum() for members in _groups(analysis)]
    shift = moved - np.log(np.maximum(lost, np.finfo(float).tiny))
    shift -= shift.mean()
    layers, count = len(filters.names), np.bincount(filters.layer)
    if is_log:
        return {"alpha": np.ones(layers), "kappa": solve_shifts(filters, cost.group_of, shift)}
    by_layer = np.bincount(filters.layer, shift[cost.group_of[filters.unit]]) / count
    return {"alpha": np.exp(np.clip(by_layer, -50, 50)), "kappa": np.zeros(layers)}


def _groups(analysis: Analysis) -> list[np.ndarray]:
    """The units of each group."""
    group_of = analysis.cost.group_of
    return [np.flatnonzero(group_of == group) for group in range(len(analysis.cost.sizes))]


def _worst(members: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The half of a group's units that matters least."""
    order = members[np.argsort(-scores[members], kind="stable")]
    return order[max(1, round(KEPT * len(members))) :]
