"""FLOPs and parameters of a plan, vectorised, and exactly what fvcore counts on the pruned net.

Every cost is `coefficient × channels out × channels in` (or one of them), and channels are counted
by **group**: the units that the same tensors share, which cost the same and differ only in rank.
"""

import logging
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from legr_cli.channels.id_tensors import tensors
from legr_cli.channels.trace import evaluating
from legr_cli.channels.units import Kept, Units
from legr_cli.errors import ModelError, first_line


def count_flops(model: nn.Module, input_shape: tuple[int, ...]) -> int:
    """FLOPs of one image by fvcore: one fused multiply-add is one FLOP."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from fvcore.nn import FlopCountAnalysis

    tensor = next(model.parameters())
    images = torch.zeros(1, *input_shape, dtype=tensor.dtype, device=tensor.device)
    logging.getLogger("fvcore.nn.jit_analysis").setLevel(logging.ERROR)
    with evaluating(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        analysis = FlopCountAnalysis(_TensorsOnly(model), images)
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        analysis.set_op_handle("aten::_convolution_mode", _same_padding_flops)
        try:
            return int(analysis.total())
        except Exception as error:
            reason = first_line(error)
            raise ModelError(f"fvcore cannot count the FLOPs of this network: {reason}") from error


def _same_padding_flops(inputs: list[Any], outputs: list[Any]) -> int:
    """A convolution with padding="same" or "valid", which fvcore would leave out."""
    from fvcore.nn.jit_handles import conv_flop_count, get_shape

    return int(conv_flop_count(get_shape(inputs[0]), get_shape(inputs[1]), get_shape(outputs[0])))


class _TensorsOnly(nn.Module):
    """A network that gives its tensors and nothing else, as the counter's tracer wants it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors in what the network gives."""
        return tuple(tensors(self.model(images)))


def count_params(model: nn.Module) -> int:
    """Trainable numbers of a network."""
    return sum(p.numel() for p in model.parameters())


@dataclass(frozen=True)
class CostTerms:
    """One kind of cost: Σ coefficient × n[rows] × n[cols], plus what no plan changes."""

    coefficients: np.ndarray
    rows: np.ndarray
    cols: np.ndarray
    fixed: float

    def total(self, widths: np.ndarray) -> np.ndarray:
        """The cost at these widths (axes, or axes × alternatives)."""
        return self.coefficients @ (widths[self.rows] * widths[self.cols]) + self.fixed


@dataclass(frozen=True)
class Cost:
    """What plans of one network cost; `group_of[u]` is the group of unit u."""

    group_of: np.ndarray
    sizes: np.ndarray  # units in each group
    channels: np.ndarray  # channels of a layer that one unit of the group stands for
    per_unit: np.ndarray  # axes × groups: channels of the axis that go with one unit
    always: np.ndarray  # channels of the axis that always stay
    flops: CostTerms
    params: CostTerms
    owners: tuple[str, ...]  # the layer, norm or pool of each term

    def counts(self, kept: Kept) -> np.ndarray:
        """How many units of each group a plan keeps."""
        return np.bincount(self.group_of[kept], minlength=len(self.sizes))

    def widths(self, counts: np.ndarray) -> np.ndarray:
        """Channels of every axis when `counts` units of each group are kept."""
        return self.per_unit @ counts + self.always

    def of(self, terms: CostTerms, counts: np.ndarray) -> float:
        """The cost of keeping this many units of each group."""
        return float(terms.total(self.widths(counts)))

    def one_more(self, terms: CostTerms, counts: np.ndarray, step: np.ndarray) -> np.ndarray:
        """For each group, what `step` more of its units would cost."""
        widths = self.widths(counts)
        more = terms.total(widths[:, None] + self.per_unit * step[None, :])
        return more - float(terms.total(widths))

    def marginal(self, terms: CostTerms, counts: np.ndarray) -> np.ndarray:
        """By group, the derivative of the cost with respect to its count."""
        widths = self.widths(counts)
        slope = np.zeros(len(widths))
        np.add.at(slope, terms.rows, terms.coefficients * widths[terms.cols])
        np.add.at(slope, terms.cols, terms.coefficients * widths[terms.rows])
        return self.per_unit.T @ slope

    def flops_by_layer(self, counts: np.ndarray) -> dict[str, float]:
        """FLOPs of each layer, norm and pool."""
        widths, terms = self.widths(counts), self.flops
        each = terms.coefficients * widths[terms.rows] * widths[terms.cols]
        found: dict[str, float] = {}
        for owner, flops in zip(self.owners, each.tolist(), strict=True):
            found[owner] = found.get(owner, 0.0) + flops
        return found


def price(units: Units) -> Cost:
    """Derive the cost of every plan of a network; fvcore's count of the dense one is the anchor."""
    axes = _Axes(units)
    rows, cols = [], []
    for term in units.flow.terms:
        rows.append(axes.number(units.unit_of(term.rows)))
        cols.append(0 if term.cols is None else axes.number(units.unit_of(term.cols)))
    for line in units.tensor_units:
        axes.number(line)
    group_of, sizes, per_unit, always = axes.grouped()
    dense = per_unit @ sizes + always
    model = units.flow.traced
    totals = (count_flops(model, units.input_shape), count_params(model))
    terms_of = []
    for name, total in zip(("flops", "params"), totals, strict=True):
        coefficients = np.array([float(getattr(term, name)) for term in units.flow.terms])
        terms = CostTerms(coefficients, np.array(rows), np.array(cols), 0.0)
        rest = total - float(terms.total(dense))
        if rest < 0:
            raise ModelError(
                f"fvcore counts {-rest:.0f} {name} fewer than the layers have: "
                "does the network cut itself off, as by .data?"
            )
        terms_of.append(CostTerms(coefficients, terms.rows, terms.cols, rest))
    channels = np.ones(len(sizes), int)
    for layer in units.flow.layers.values():
        each = per_unit[axes.number(units.unit_of(layer.out))]
        channels = np.maximum(channels, each.astype(int))
    owners = tuple(term.owner for term in units.flow.terms)
    return Cost(group_of, sizes, channels, per_unit, always, terms_of[0], terms_of[1], owners)


class _Axes:
    """Numbered lists of channels; axis 0 is one channel that always stays."""

    def __init__(self, units: Units) -> None:
        self.units = units
        self.members: list[np.ndarray] = [np.array([-1])]
        self.numbers: dict[bytes, int] = {}

    def number(self, members: np.ndarray) -> int:
        """The number of this list of units."""
        key = members.tobytes()
        if key not in self.numbers:
            self.numbers[key] = len(self.members)
            self.members.append(members)
        return self.numbers[key]

    def grouped(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Units with equal membership of every axis form a group; a hash tells them apart."""
        words = np.random.default_rng(0).integers(2**63, size=len(self.members), dtype=np.uint64)
        signature = np.zeros(self.units.count, np.uint64)
        for members, word in zip(self.members, words, strict=True):
            times = np.bincount(members[members >= 0], minlength=self.units.count)
            signature += times.astype(np.uint64) * word
        _, first, group_of, sizes = np.unique(
            signature, return_index=True, return_inverse=True, return_counts=True
        )
        order = np.argsort(first)  # groups are numbered as they come in the network
        first, sizes, group_of = first[order], sizes[order], np.argsort(order)[group_of]
        per_unit = np.zeros((len(self.members), len(first)))
        always = np.zeros(len(self.members))
        for axis, members in enumerate(self.members):
            per_unit[axis] = np.bincount(members[members >= 0], minlength=self.units.count)[first]
            always[axis] = np.count_nonzero(members < 0)
        return group_of, sizes, per_unit, always
