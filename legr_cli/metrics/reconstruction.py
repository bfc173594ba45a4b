"""What the layers that read a unit cannot reconstruct from the units that are still there.

For a layer that reads X with weights W, removing channels and refitting the others to its output by
least squares costs Wᵢᵀ (H⁻¹ᵢᵢ)⁻¹ Wᵢ, with H the covariance of X, as in Optimal Brain Surgeon. Each
group of units is taken apart one unit after the other, always the cheapest, with weights and H⁻¹
updated; a unit's score is what its removal costs at that point, and never less than that of an
earlier one. Errors of a layer are measured behind the scale of its BatchNorm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from legr_cli.channels.flow import Layer
from legr_cli.channels.linear_calls import LayerCalls, LinearCall
from legr_cli.channels.switches import evaluating, fixed_seed
from legr_cli.channels.units import Units
from legr_cli.cost import Cost
from legr_cli.errors import CheckpointError
from legr_cli.metrics.norms import norm_scale, squared_norm
from legr_cli.metrics.sharing import shared_out, summed

ROWS, LEAST_ROWS = 8000, 5000  # sampled for each layer …
ROWS_EACH = 20  # … and for each unknown, within these limits
RIDGE = 0.01  # relative to the mean variance of a layer's inputs
LARGEST = 5000  # unknowns of a layer: beyond, its inputs count as uncorrelated
STEPS = 64  # of a larger group, this part of what is left goes at once: 1/64


def reconstruction(units: Units, cost: Cost, batches: Sequence[Tensor]) -> dict[str, Tensor]:
    """For each filter, the logarithm of what its unit's removal costs."""
    readers = _readers(units, batches)
    scores = np.full(units.count, np.nan)
    for group in range(len(cost.sizes)):
        members = np.flatnonzero(cost.group_of == group)
        views = [view for reader in readers if (view := reader.view(members)) is not None]
        if views:
            _take_apart(members, views, scores)
    return shared_out(units, cost, _complete(units, scores))


def _complete(units: Units, scores: np.ndarray) -> np.ndarray:
    """Scores by squared norm for units that no layer reads, on the scale of the others."""
    norms = summed(units, squared_norm(units))
    missing = np.isnan(scores)
    if missing.all():
        return norms
    scale = np.median(scores[~missing]) / max(float(np.median(norms)), 1e-30)
    return np.where(missing, norms * scale, scores)


@dataclass
class _View:
    """A reader's weights and inverse covariance as a group is taken apart, by unit."""

    weights: Tensor  # unknowns × outputs
    inverse: Tensor  # unknowns × unknowns
    rows: dict[int, Tensor]  # by unit that is left: its unknowns
    removed: int = 0  # unknowns that are gone, and still take space

    def costs(self, alive: np.ndarray) -> np.ndarray:
        """What removing each of these units costs."""
        costs = np.zeros(len(alive))
        by_size: dict[int, list[int]] = {}
        for place, unit in enumerate(alive.tolist()):
            if unit in self.rows:
                by_size.setdefault(len(self.rows[unit]), []).append(place)
        for places in by_size.values():
            rows = torch.stack([self.rows[int(alive[place])] for place in places])
            weights = self.weights[rows]
            blocks = self.inverse[rows[:, :, None], rows[:, None, :]]
            costs[places] = (weights * torch.linalg.solve(blocks, weights)).sum((1, 2)).numpy()
        return costs

    def remove(self, gone: np.ndarray) -> None:
        """Refit the others to the outputs without these units."""
        found = [self.rows[unit] for unit in gone.tolist() if unit in self.rows]
        if not found:
            return
        rows = torch.cat(found)
        right = torch.cat([self.weights[rows], self.inverse[rows]], 1)
        solved = torch.linalg.solve(self.inverse[rows][:, rows], right)
        moved, lost = solved.split([self.weights.shape[1], len(self.inverse)], 1)
        across = self.inverse[:, rows]
        self.weights -= across @ moved
        self.inverse -= across @ lost
        self.weights[rows] = 0
        self.inverse[rows], self.inverse[:, rows] = 0, 0
        for unit in gone.tolist():
            self.rows.pop(unit, None)
        self.removed += len(rows)
        if 2 * self.removed > len(self.weights):
            self._compact()

    def _compact(self) -> None:
        """Drop the unknowns that are gone, which are all zero."""
        left = self.inverse.diagonal().nonzero().flatten()
        place = torch.full((len(self.inverse),), -1)
        place[left] = torch.arange(len(left))
        self.weights, self.inverse = self.weights[left], self.inverse[left][:, left]
        self.rows = {unit: place[rows] for unit, rows in self.rows.items()}
        self.removed = 0


@dataclass
class _DiagonalView:
    """A reader whose inputs count as uncorrelated: each unit costs the variance that it brings."""

    cost_of: dict[int, float]  # by unit

    def costs(self, alive: np.ndarray) -> np.ndarray:
        """What removing each of these units costs."""
        return np.array([self.cost_of.get(unit, 0.0) for unit in alive.tolist()])

    def remove(self, gone: np.ndarray) -> None:
        """Nothing can stand in for a unit."""


def _take_apart(
    members: np.ndarray, views: list[_View | _DiagonalView], scores: np.ndarray
) -> None:
    """Score the units of a group in the order in which they are cheapest to remove."""
    alive, reached = members, 0.0
    while len(alive):
        costs = np.sum([view.costs(alive) for view in views], axis=0)
        order = np.argsort(costs, kind="stable")[: max(1, len(alive) // STEPS)]
        for place in order.tolist():
            reached = max(reached * (1 + 1e-9), float(costs[place]))
            scores[alive[place]] = reached
        for view in views:
            view.remove(alive[order])
        alive = np.delete(alive, order)


@dataclass(frozen=True)
class _Reader:
    """A layer, or one group of its channels, with the covariance of its inputs."""

    weights: Tensor  # unknowns × outputs, behind the scale of the norm
    spread: Tensor  # inverse of the covariance, or the variance of each unknown alone
    into: np.ndarray  # unit of each input channel
    out: np.ndarray  # unit of each output channel

    def view(self, members: np.ndarray) -> _View | _DiagonalView | None:
        """What it reads of these units; None if nothing, or if it goes with them.

        The part of the inverse that belongs to them is all that their removal changes and needs.
        """
        read = np.unique(self.into[np.isin(self.into, members)])
        if not len(read) or np.isin(self.out, members).any():
            return None
        rows = {unit: self._rows(unit) for unit in read.tolist()}
        if self.spread.ndim == 1:
            shown = self.weights.square().sum(1) * self.spread
            return _DiagonalView({unit: float(shown[own].sum()) for unit, own in rows.items()})
        whole, ends = torch.cat(list(rows.values())), np.cumsum([len(own) for own in rows.values()])
        places = torch.arange(len(whole)).tensor_split(torch.from_numpy(ends[:-1]))
        return _View(
            self.weights[whole],
            self.spread[whole][:, whole],
            dict(zip(rows, places, strict=True)),
        )

    def _rows(self, unit: int) -> Tensor:
        """The unknowns of a unit; they are ordered by channel."""
        taps = len(self.weights) // len(self.into)
        channels = torch.from_numpy(np.flatnonzero(self.into == unit))
        return (channels[:, None] * taps + torch.arange(taps)).flatten()


def _reader(weights: Tensor, covariance: Tensor, into: np.ndarray, out: np.ndarray) -> _Reader:
    """A reader, with the covariance of its inputs inverted."""
    if covariance.ndim == 1:
        return _Reader(weights, covariance, into, out)
    diagonal = covariance.diagonal()
    ridge = RIDGE * float(diagonal.mean()) or 1.0  # inputs that are always 0
    regular = covariance + ridge * torch.eye(len(diagonal), dtype=torch.float64)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(regular))
    varies = diagonal[:, None] > 1e-9 * diagonal.mean()  # what does not vary costs nothing
    return _Reader(torch.where(varies, weights, 0.0), inverse, into, out)


class _Sums:
    """Second moments of the rows that a layer reads."""

    def __init__(self, call: LinearCall, matrix: Tensor, images: int) -> None:
        self.matrix, (groups, unknowns) = matrix, matrix.shape[:2]
        self.full = unknowns <= LARGEST
        shape = (groups, unknowns, unknowns) if self.full else (groups, unknowns)
        self.squares = torch.zeros(shape, dtype=torch.float64)
        self.total = torch.zeros(groups, unknowns, dtype=torch.float64)
        self.count = 0
        available = math.prod(call.row_shape) / len(call.output) * images
        self.share = min(1.0, min(ROWS, max(LEAST_ROWS, ROWS_EACH * unknowns)) / available)

    def add(self, call: LinearCall, generator: torch.Generator) -> None:
        """Add a sample of the rows of a call."""
        count = math.prod(call.row_shape)
        wanted = max(1, math.ceil(self.share * count))
        # sorted, so that rows that are close in memory are read together
        taken = torch.randperm(count, generator=generator)[:wanted].sort().values
        rows = call.inputs_at(taken).transpose(0, 1).double()
        self.squares += rows.mT @ rows if self.full else rows.square().sum(1)
        self.total += rows.sum(1)
        self.count += len(taken)

    def covariance(self, group: int) -> Tensor:
        """The covariance of a group's rows, or its diagonal."""
        mean = self.total[group] / self.count
        product = torch.outer(mean, mean) if self.full else mean.square()
        return self.squares[group] / self.count - product


def _readers(units: Units, batches: Sequence[Tensor]) -> list[_Reader]:
    """All layers that read units, by group of their channels."""
    sums_of, images = dict[str, _Sums](), sum(map(len, batches))
    generator = torch.Generator().manual_seed(0)

    def add(layer: Layer, call: LinearCall | str) -> None:
        if isinstance(call, str) or not any(_reads(*pair) for pair in _groups(units, layer)):
            return
        if layer.name not in sums_of:
            matrix = call.matrix(layer.weight.detach()).double()
            sums_of[layer.name] = _Sums(call, matrix, images)
        sums_of[layer.name].add(call, generator)

    with evaluating(units.source.model), torch.no_grad(), fixed_seed():
        for batch in batches:
            LayerCalls(units.flow, add).run(batch)
    found = []
    for name, sums in sums_of.items():
        layer, scale = units.flow.layers[name], norm_scale(units, name)
        if not torch.isfinite(sums.total).all():
            raise CheckpointError(f"layer '{name}' reads NaN or infinite values on these images")
        scales = torch.ones(len(layer.out)) if scale is None else scale
        scales = scales.double().reshape(len(sums.matrix), -1)
        for group, (into, out) in enumerate(_groups(units, layer)):
            if _reads(into, out):
                weights = sums.matrix[group] * scales[group]
                found.append(_reader(weights, sums.covariance(group), into, out))
    return found


def _groups(units: Units, layer: Layer) -> list[tuple[np.ndarray, np.ndarray]]:
    """The units of the input and output channels of each group of a layer's channels."""
    into, out = (
        units.unit_of(ids).reshape(layer.axes.groups, -1) for ids in (layer.into, layer.out)
    )
    return list(zip(into, out, strict=True))


def _reads(into: np.ndarray, out: np.ndarray) -> bool:
    """Whether outputs stay when inputs go: of a depthwise convolution, they go together."""
    return bool((into >= 0).any()) and not set(into.tolist()) & set(out.tolist()) - {-1}
