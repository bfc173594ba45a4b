"""FLOPs and parameters of a plan, vectorized, and equal to fvcore's count on the pruned network.

Every cost is `coefficient × output channels × input channels` (or one of the two). Channels are
counted by **group**: units that occur in the same tensors equally often, so they cost the same.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from legr_cli.channels.inputs import Call, Source
from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import evaluating, unchanged
from legr_cli.channels.units import Kept, Units
from legr_cli.errors import ModelError, first_line
from legr_cli.flop_handles import HANDLES
from legr_cli.shapes import Shapes


def count_flops(model: nn.Module, input_shape: Shapes, module: str = "") -> int:
    """Count the FLOPs of one image with fvcore: one fused multiply-add is one FLOP.

    `input_shape` is the size of one image, or that of each input by name; `module` names the part
    of the network to count. What fvcore leaves out, such as recurrent layers and attention, is in
    `flop_handles`. Raises ModelError if fvcore cannot run the network.
    """
    source = Source(model, input_shape, module)
    return _count_call(source.part, source.call(batch=1))


def _count_call(model: nn.Module, call: Call) -> int:
    """Count the FLOPs of a call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fvcore.nn import FlopCountAnalysis

    logging.getLogger("fvcore.nn.jit_analysis").setLevel(logging.ERROR)
    with (
        unchanged(model),
        evaluating(model),
        _plain_attention(),
        _PaddingForUnpooling(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        analysis = FlopCountAnalysis(TensorsOnly(model, call), tuple(call.tensors))
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        analysis.set_op_handle(**HANDLES)
        try:
            return int(analysis.total())
        except Exception as error:
            reason = first_line(error)
            raise ModelError(f"fvcore cannot count the FLOPs of this network: {reason}") from error


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    """Run `nn.MultiheadAttention` as the ops it consists of, not as one that cannot be counted."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


class _PaddingForUnpooling(TorchFunctionMode):
    """Pads where a network calls max-unpooling, whose sizes `torch.jit` cannot trace.

    Both give a tensor of the same size, and fvcore counts neither.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        space = _UNPOOLING.get(func)
        if space is None:
            return func(*args, **(kwargs or {}))
        names = ("input", "indices", "kernel_size", "stride", "padding", "output_size")
        given = {"stride": None, "padding": 0, "output_size": None, **(kwargs or {})}
        given |= dict(zip(names, args, strict=False))
        x = given["input"]
        now = [int(n) for n in x.shape[-space:]]
        kernel = _per_dim(given["kernel_size"], space)
        stride = _per_dim(given["stride"] or kernel, space)
        padding = _per_dim(given["padding"], space)
        sizes = [
            (n - 1) * s - 2 * p + k for n, k, s, p in zip(now, kernel, stride, padding, strict=True)
        ]
        if given["output_size"] is not None:
            sizes = [int(n) for n in given["output_size"][-space:]]
        # pairs from the last dimension backwards
        amounts = [(0, new - old) for new, old in zip(sizes, now, strict=True)][::-1]
        return F.pad(x, [amount for pair in amounts for amount in pair])


_UNPOOLING = {F.max_unpool1d: 1, F.max_unpool2d: 2, F.max_unpool3d: 3}


def _per_dim(value: Any, space: int) -> list[int]:
    """One number for each dimension of space."""
    return [value] * space if isinstance(value, int) else list(value)


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
