"""Repair the layers of a pruned network one after the other, in the order in which they run."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from legr_cli.channels import Units
from legr_cli.channels.flow import Layer
from legr_cli.channels.layers import layer_at
from legr_cli.channels.linear_calls import LayerCalls, LinearCall, record
from legr_cli.channels.norms import norm_reading
from legr_cli.channels.ops import OpKind
from legr_cli.channels.switches import evaluating, fixed_seed
from legr_cli.channels.trace import fetch_attr
from legr_cli.channels.units import Kept
from legr_cli.errors import ModelError
from legr_cli.progress import Progress, Report
from legr_cli.repairs.activations import ActivationRows
from legr_cli.repairs.correction import Correction, plan, restricted
from legr_cli.repairs.lockstep import DenseValues, Lockstep, Stop, Values
from legr_cli.repairs.regression import Regression

ROWS = 20  # for each unknown
LEAST_ROWS = 20_000  # for each layer
ROW_MEMORY = 1 << 29  # bytes of a layer's rows that are kept to fit it again
REFITS = 2  # of a layer before a flat activation
_CHUNK = 1 << 22  # numbers of a matrix of rows that are in memory at once
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class RepairedLayer:
    """What became of one layer."""

    name: str
    reason: str | None  # why it was left as it was; None: it was repaired
    rows: int = 0  # input and output positions that its weights were fitted to
    unknowns: int = 0  # weights for each output channel
    corrects: bool = False  # whether it takes back the error of a sum


def repair_layers(
    units: Units,
    kept: Kept,
    pruned: fx.GraphModule,
    batches: list[Tensor],
    *,
    ridge: float,
    seed: int,
    progress: Report,
    correct: bool = True,
    refits: int = REFITS,
    rows: int | None = None,
    known: DenseValues | None = None,
) -> list[RepairedLayer]:
    """Give every layer of `pruned` new weights, in place.

    `correct=False` leaves out the correction of sums and activations, to see what it is worth.
    `refits` is how often a layer before a flat activation is fitted again. `rows` limits the rows
    of each layer. `known` are values of the dense network on the same batches.
    """
    lockstep, results = Lockstep(units, pruned, batches, known), list[RepairedLayer]()
    calls = _calls_by_layer(lockstep)
    with torch.no_grad(), fixed_seed():
        for number, (layer, nodes) in enumerate(calls):
            progress(Progress(number, len(calls), f"repairing {layer.name}"))
            work = _LayerRepair(lockstep, kept, layer, nodes, seed + number, correct, rows)
            results.append(work.run(ridge, refits))
    unsupported = units.flow.unsupported
    return results + [
        RepairedLayer(name, "it has no rule, so it is not cut") for name in unsupported
    ]


def why_not_repairable(units: Units) -> dict[str, str]:
    """The layers that have no closed form, whatever the plan, and why."""
    reasons: dict[str, str] = {}

    def note(layer: Layer, call: LinearCall | str) -> None:
        if isinstance(call, str):
            reasons[layer.name] = call

    with evaluating(units.source.model), torch.no_grad(), fixed_seed():
        LayerCalls(units.flow, note).run(*units.source.call(batch=2).tensors)
    return reasons


def _calls_by_layer(lockstep: Lockstep) -> list[tuple[Layer, list[fx.Node]]]:
    """Every layer with the nodes of the pruned graph that call it, in order of the first call."""
    found: dict[str, tuple[Layer, list[fx.Node]]] = {}
    for node in lockstep.dense.nodes:
        layer = layer_at(lockstep.units.flow, node)
        if layer is not None and node in lockstep.counterpart:
            found.setdefault(layer.name, (layer, []))[1].append(lockstep.counterpart[node])
    return list(found.values())


class _LayerRepair:
    """The fit of one layer; calls of a shared layer are fitted together."""

    def __init__(
        self,
        lockstep: Lockstep,
        kept: Kept,
        layer: Layer,
        nodes: list[fx.Node],
        seed: int,
        correct: bool,
        rows: int | None,
    ) -> None:
        self.lockstep, self.kept, self.layer, self.nodes = lockstep, kept, layer, nodes
        self.seed, self.correct, self.rows = seed, correct, rows
        self.weight, self.bias = _tensors_of(lockstep.pruned.traced, layer, nodes[0])
        self.norm = norm_reading(lockstep.pruned.traced, nodes[0]) if self.bias is None else None
        self.correction: Correction | None = None
        self.regression: Regression
        self.call: LinearCall | None = None
        self.keeps_rows, self.kept_rows = False, list[ActivationRows]()
        self.seen = dict.fromkeys(nodes, 0)  # rows of each call so far
        self.share = 1.0  # of all rows, those that are used

    def run(self, ridge: float, refits: int) -> RepairedLayer:
        """Fit the layer and give it its new weights."""
        if sharing := self._sharing():
            return RepairedLayer(self.layer.name, f"it shares its weights with {sharing[0]}")
        if (reason := self._gather_all(refits)) is not None:
            return RepairedLayer(self.layer.name, reason)
        if not self.regression.finite:
            raise ModelError(
                f"layer '{self.layer.name}' has NaN or infinite inputs or outputs on these images: "
                "are they normalized as in training?"
            )
        self._solve(ridge)
        for _ in range(refits if self.kept_rows else 0):
            self._hide()
            self._solve(ridge)
        unknowns = self.call.matrix(self.weight).shape[1] if self.call else 0
        corrects = self.correction is not None and self.correction.sums
        return RepairedLayer(self.layer.name, None, self.regression.count, unknowns, corrects)

    def _gather_all(self, refits: int) -> str | None:
        """Run both networks up to the layer, and add the rows of all calls and batches."""
        first = self.nodes[0]
        own = self.lockstep.original[first]
        stop = Stop(self.lockstep.dense.index[own] + 1, self.lockstep.pruned.index[first])
        visits = zip(self.lockstep.lengths, self.lockstep.visit(stop), strict=True)
        for batch, (length, values) in enumerate(visits):
            if batch == 0 and self.correct:
                # to fit again, all rows must be in front of the activation
                activations = refits > 0 and len(self.nodes) == 1
                self.correction = plan(self.lockstep, self.kept, first, values, activations)
            for node in self.nodes:
                if (reason := self._gather(node, values, length)) is not None:
                    return reason
        return None

    def _sharing(self) -> list[str]:
        """The other layers with the same weights, which one solution would not fit."""
        flow, own = self.lockstep.units.flow, self.layer
        layers = flow.layers.values()
        return [other.name for other in layers if other is not own and other.weight is own.weight]

    def _gather(self, node: fx.Node, values: tuple[Values, Values], images: int) -> str | None:
        """Add the rows of one call on one batch; a string says why that is impossible."""
        dense, pruned = values if node is self.nodes[0] else self._later(node, values)
        call = record(lambda: self.lockstep.pruned.run(node, pruned), self.weight)
        if isinstance(call, str):
            return call
        self._prepare(call, images)
        fix = self.correction if node is self.nodes[0] else None
        if fix is not None and fix.activation is not None:
            wanted = fix.dense_value(self.lockstep, self.kept, dense)
            output = call.output.reshape(wanted.shape)
            value, slope = fix.reached(self.lockstep, pruned, output)
            for rows in self._sample(node, call):
                parts = (call.outputs_at(part, rows) for part in (value, slope, wanted))
                self._add(ActivationRows(call.inputs_at(rows), *parts))
            return None
        if fix is not None:
            target = fix.target(self.lockstep, self.kept, (dense, pruned))
        else:
            target = restricted(self.lockstep, self.kept, node, dense)
        for rows in self._sample(node, call):
            residual = call.outputs_at(target, rows) - call.outputs_at(call.output, rows)
            self.regression.add(call.inputs_at(rows), residual)
        return None

    def _later(self, node: fx.Node, values: tuple[Values, Values]) -> tuple[Values, Values]:
        """The values at a later call of the layer.

        Where the pruned network cannot know its input yet, the dense one stands for it.
        """
        dense, pruned = values
        graph, original = self.lockstep.pruned, self.lockstep.original
        dense = self.lockstep.dense.run_aside(
            self.lockstep.dense.missing(original[node], dense), dense
        )
        before = graph.missing(node, pruned)[:-1]
        if any(graph.kind(other) is OpKind.LAYER for other in before):
            inputs = [n for n in node.all_input_nodes if n in original and n not in pruned]
            known = {n: restricted(self.lockstep, self.kept, n, dense) for n in inputs}
            pruned = {**pruned, **known}
            before = graph.missing(node, pruned)[:-1]
        return dense, graph.run_aside(before, pruned)

    def _prepare(self, call: LinearCall, images: int) -> None:
        """At the first call, decide how many rows to use and how to solve for them."""
        if self.call is not None:
            return
        self.call = call
        count, unknowns = math.prod(call.row_shape), call.matrix(self.weight).shape[1]
        wanted = self.rows or max(ROWS * unknowns, LEAST_ROWS)
        available = count * len(self.nodes) * sum(self.lockstep.lengths) / images
        self.share = min(1.0, wanted / available)
        used = min(wanted, available)
        self.keeps_rows = used * unknowns * call.groups * 4 <= ROW_MEMORY
        centred = self.bias is not None or self.norm is not None
        self.regression = Regression(centred, few=used <= unknowns)

    def _sample(self, node: fx.Node, call: LinearCall) -> Iterator[Tensor]:
        """The next rows of a call to use: evenly spread, whatever the size of the batches."""
        count, unknowns = math.prod(call.row_shape), call.matrix(self.weight).shape[1]
        numbers = torch.arange(self.seen[node], self.seen[node] + count, dtype=torch.float64)
        self.seen[node] += count
        used = ((numbers * _GOLDEN + self.seed * math.sqrt(2)) % 1 < self.share).nonzero().flatten()
        yield from used.split(max(1, _CHUNK // (unknowns * call.groups)))

    def _add(self, rows: ActivationRows) -> None:
        """Add rows in front of an activation, and keep them if there is room."""
        self.regression.add(rows.inputs, rows.residual())
        if self.keeps_rows:
            self.kept_rows.append(rows)

    def _solve(self, ridge: float) -> None:
        """Give the layer its new weights."""
        assert self.call is not None
        delta, shift = self.regression.solve(ridge)
        for rows in self.kept_rows:
            rows.move(delta, shift)
        self.weight.add_(self.call.weight(delta.to(self.weight.dtype), self.weight))
        if self.bias is not None:
            self.bias.add_(shift.flatten())
        elif self.norm is not None:
            assert self.norm.running_mean is not None
            self.norm.running_mean.sub_(shift.flatten())

    def _hide(self) -> None:
        """Replace the residuals of the rows that are kept by what their activation shows."""
        fix = self.correction
        assert fix is not None
        self.regression.restart()
        for rows in self.kept_rows:
            shown = rows.residual(partial(fix.activated, self.lockstep.pruned))
            self.regression.add(rows.inputs, shown)


def _tensors_of(
    traced: fx.GraphModule, layer: Layer, node: fx.Node
) -> tuple[Tensor, Tensor | None]:
    """The weight and bias of a layer of the pruned network."""
    if node.op == "call_module":
        module: Any = traced.get_submodule(layer.name)
        return module.weight, getattr(module, "bias", None)
    return fetch_attr(traced, layer.name), fetch_attr(traced, layer.bias) if layer.bias else None
