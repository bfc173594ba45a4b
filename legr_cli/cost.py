"""FLOPs and parameters of a plan, vectorized, and equal to fvcore's count on the pruned network.

Every cost is `coefficient × output channels × input channels` (or one of the two). Channels are
counted by **group**: units that occur in the same tensors equally often, so they cost the same.
"""

import logging
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from legr_cli.channels.inputs import Call, Shapes, Source
from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import evaluating
from legr_cli.channels.units import Kept, Units
from legr_cli.errors import ModelError, first_line


def count_flops(model: nn.Module, input_shape: Shapes, module: str = "") -> int:
    """Count the FLOPs of one image with fvcore: one fused multiply-add is one FLOP.

    `input_shape` is the size of one image, or that of each input by name; `module` names the part
    of the network to count. Raises ModelError if fvcore cannot run the network.
    """
    source = Source(model, input_shape, module)
    return _count_call(source.part, source.call(batch=1))


def _count_call(model: nn.Module, call: Call) -> int:
    """Count the FLOPs of a call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fvcore.nn import FlopCountAnalysis

    logging.getLogger("fvcore.nn.jit_analysis").setLevel(logging.ERROR)
    with evaluating(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        analysis = FlopCountAnalysis(TensorsOnly(model, call), tuple(call.tensors))
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        analysis.set_op_handle("aten::_convolution_mode", _same_padding_flops)
        try:
            return int(analysis.total())
        except Exception as error:
            reason = first_line(error)
            raise ModelError(f"fvcore cannot count the FLOPs of this network: {reason}") from error


def _same_padding_flops(inputs: list[Any], outputs: list[Any]) -> int:
    """Count the FLOPs of a convolution with padding="same" or "valid", which fvcore ignores."""
    from fvcore.nn.jit_handles import conv_flop_count, get_shape

    return int(conv_flop_count(get_shape(inputs[0]), get_shape(inputs[1]), get_shape(outputs[0])))


class TensorsOnly(nn.Module):
    """Wraps a network to take and return tensors only, which is all that fvcore can trace."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the tensors in the network's output."""
        return tuple(tensors(self.call.with_tensors(list(inputs)).run(self.model)))


def count_params(model: nn.Module) -> int:
    """Count the elements of all parameters."""
    return sum(p.numel() for p in model.parameters())


@dataclass(frozen=True)
class CostTerms:
    """FLOPs per image, or parameters: Σ coefficient × width[row] × width[col] + fixed.

    A width is the number of channels of an axis; axis 0 has width 1, for terms of one factor.
    """

    coefficients: np.ndarray
    rows: np.ndarray  # axis of each term
    cols: np.ndarray
    fixed: float  # the cost that no plan changes

    def total(self, widths: np.ndarray) -> np.ndarray:
        """Return the cost at these widths (axes, or axes × alternatives)."""
        return self.coefficients @ (widths[self.rows] * widths[self.cols]) + self.fixed


@dataclass(frozen=True)
class Cost:
    """The cost of every plan of one network."""

    group_of: np.ndarray  # group of each unit
    sizes: np.ndarray  # units in each group
    channels: np.ndarray  # channels of a layer that one unit of the group removes, at most
    per_unit: np.ndarray  # axes × groups: channels of the axis that one unit removes
    always: np.ndarray  # channels of each axis that no plan removes
    flops: CostTerms
    params: CostTerms
    owners: tuple[str, ...]  # layer, norm or pooling op of each term

    def counts(self, kept: Kept) -> np.ndarray:
        """Count the units of each group that a plan keeps."""
        return np.bincount(self.group_of[kept], minlength=len(self.sizes))

    def widths(self, counts: np.ndarray) -> np.ndarray:
        """Return the channels of every axis if `counts` units of each group are kept."""
        return self.per_unit @ counts + self.always

    def total(self, terms: CostTerms, counts: np.ndarray) -> float:
        """Return the FLOPs per image, or parameters, if `counts` units of each group are kept."""
        return float(terms.total(self.widths(counts)))

    def added(self, terms: CostTerms, counts: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return, for each group by itself, the cost of keeping `step` more of its units."""
        widths = self.widths(counts)
        # one column of widths per group: those after adding units of this group only
        more = terms.total(widths[:, None] + self.per_unit * step[None, :])
        return more - float(terms.total(widths))

    def marginal(self, terms: CostTerms, counts: np.ndarray) -> np.ndarray:
        """Return the derivative of the cost with respect to the count of each group."""
        widths = self.widths(counts)
        # product rule by axis, d(c·r·k) = c·k dr + c·r dk; the chain rule then leads to groups
        slope = np.zeros(len(widths))
        np.add.at(slope, terms.rows, terms.coefficients * widths[terms.cols])
        np.add.at(slope, terms.cols, terms.coefficients * widths[terms.rows])
        return self.per_unit.T @ slope

    def flops_by_layer(self, counts: np.ndarray) -> dict[str, float]:
        """Return the FLOPs per image of each layer, norm and pooling op."""
        widths, terms = self.widths(counts), self.flops
        each = terms.coefficients * widths[terms.rows] * widths[terms.cols]
        by_layer: dict[str, float] = {}
        for owner, flops in zip(self.owners, each.tolist(), strict=True):
            by_layer[owner] = by_layer.get(owner, 0.0) + flops
        return by_layer


def price(units: Units) -> Cost:
    """Derive the cost of every plan of a network.

    What fvcore counts on the dense network beyond the known terms is the fixed cost. Raises
    ModelError if it counts less than those.
    """
    axes = _Axes(units)
    rows, cols = [], []
    for term in units.flow.terms:
        rows.append(axes.index(units.unit_of(term.rows)))
        cols.append(0 if term.cols is None else axes.index(units.unit_of(term.cols)))
    for tensor in units.tensor_units:  # so that the units of a group occur in the same tensors
        axes.index(tensor)
    group_of, sizes, per_unit, always = axes.grouped()
    dense = per_unit @ sizes + always
    model = units.flow.traced
    totals = (_count_call(model, units.source.call(batch=1)), count_params(model))
    both = []
    for name, total in zip(("flops", "params"), totals, strict=True):
        coefficients = np.array([float(getattr(term, name)) for term in units.flow.terms])
        terms = CostTerms(coefficients, np.array(rows), np.array(cols), 0.0)
        fixed = total - float(terms.total(dense))
        if fixed < 0:
            raise ModelError(
                f"fvcore counts {-fixed:.0f} {name} fewer than the layers have: does the network "
                "detach tensors from the graph, for example with .data?"
            )
        both.append(CostTerms(coefficients, terms.rows, terms.cols, fixed))
    channels = np.ones(len(sizes), int)
    for layer in units.flow.layers.values():
        each = per_unit[axes.index(units.unit_of(layer.out))]
        channels = np.maximum(channels, each.astype(int))
    owners = tuple(term.owner for term in units.flow.terms)
    return Cost(group_of, sizes, channels, per_unit, always, both[0], both[1], owners)


class _Axes:
    """The distinct lists of channels (axes) in a network; axis 0 is one channel that stays."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.members: list[np.ndarray] = [np.array([-1])]  # unit of each channel of each axis
        self.indices: dict[bytes, int] = {}

    def index(self, members: np.ndarray) -> int:
        """Return the index of the axis with these units, adding it if it is new."""
        key = members.tobytes()
        if key not in self.indices:
            self.indices[key] = len(self.members)
            self.members.append(members)
        return self.indices[key]

    def grouped(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Group units that occur in every axis equally often.

        Returns the group of each unit, group sizes, channels per unit (axes × groups), and the
        channels of each axis that always stay.
        """
        # a unit's signature is a random linear hash of how often it occurs in each axis
        weights = np.random.default_rng(0).integers(2**63, size=len(self.members), dtype=np.uint64)
        signature = np.zeros(self.units.count, np.uint64)
        for members, weight in zip(self.members, weights, strict=True):
            occurrences = np.bincount(members[members >= 0], minlength=self.units.count)
            signature += occurrences.astype(np.uint64) * weight
        _, first, group_of, sizes = np.unique(
            signature, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)  # renumber groups in network order
        first, sizes, group_of = first[order], sizes[order], np.argsort(order)[group_of]
        per_unit = np.zeros((len(self.members), len(first)))
        always = np.zeros(len(self.members))
        # the first unit of a group stands for all of them
        for axis, members in enumerate(self.members):
            per_unit[axis] = np.bincount(members[members >= 0], minlength=self.units.count)[first]
            always[axis] = np.count_nonzero(members < 0)
        return group_of, sizes, per_unit, always
