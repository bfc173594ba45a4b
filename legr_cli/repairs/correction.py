"""What a layer's output should be, so that what the network makes of it becomes the dense value.

A layer's output often reaches a sum through ops that are affine in it: a norm, a permutation, a
scale, another sum. Where the pruned network's other operands differ from the dense ones, the layer
can take that error back. With f the affine ops from the layer's output y to the sum, computed with
the pruned network's other operands, and S the dense sum, the target is

    y* = y + Jᵀ(S − f(y)) / JᵀJ1        with J the derivative of f

which inverts f exactly where it works on each element by itself (norms, scales, permutations,
slices), and is the least-squares solution for upsampling and average pooling. Which ops are affine
is tested on the values themselves, so that no table of them is needed.

Behind the affine ops there often is an activation that is flat somewhere, such as ReLU: it hides
some errors, which `activations.py` leaves out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from legr_cli.channels.dry_run import kept_box
from legr_cli.channels.ops import OpKind
from legr_cli.channels.structures import tensors
from legr_cli.channels.units import Kept
from legr_cli.repairs.lockstep import Graph, Lockstep, Values

_ROUNDING = 1e-3  # relative deviation from affine that float32 explains
_SMALLEST = 1e-6  # of JᵀJ1, relative to its largest value: below, an element is left alone
_ELEMENTWISE = (OpKind.ELEMENTWISE, OpKind.CHANNELWISE)
_NEIGHBOUR = 0.1  # distance of a value's neighbour, in standard deviations
_FLAT = 0.01  # share of the values from which on an activation counts as flat


@dataclass(frozen=True)
class Correction:
    """The ops behind a layer's output, up to the value that the layer brings to the dense one."""

    layer: fx.Node  # of the pruned graph
    path: tuple[fx.Node, ...]  # affine ops, from the layer's user to the value
    sums: bool  # whether other operands enter on the path
    activation: fx.Node | None = None  # a flat activation that is alone in reading the value

    @property
    def end(self) -> fx.Node:
        """The node of the value."""
        return (self.layer, *self.path)[-1]

    def target(self, lockstep: Lockstep, kept: Kept, values: tuple[Values, Values]) -> Tensor:
        """The corrected target of the layer, from the values of one batch at the layer."""
        dense, pruned = values
        own = restricted(lockstep, kept, self.layer, dense)
        others = _with_operands(lockstep.pruned, self.layer, self.path, {**pruned, self.layer: own})
        with torch.enable_grad():
            y = own.detach().requires_grad_()
            reached = self._follow(lockstep.pruned, y, others)
            with torch.no_grad():
                direction = self._follow(lockstep.pruned, own + 1, others) - reached
                error = self.dense_value(lockstep, kept, dense) - reached
            (back,) = torch.autograd.grad(reached, y, error, retain_graph=True)
            (scale,) = torch.autograd.grad(reached, y, direction)
        solvable = scale > _SMALLEST * scale.max()
        return own + torch.where(solvable, back / scale, 0.0)

    def reached(self, lockstep: Lockstep, pruned: Values, output: Tensor) -> tuple[Tensor, Tensor]:
        """The value at the end of an elementwise path, given the layer's output, and its slope."""
        graph = lockstep.pruned
        others = _with_operands(graph, self.layer, self.path, {**pruned, self.layer: output})
        value = self._follow(graph, output, others)
        return value, self._follow(graph, output + 1, others) - value

    def dense_value(self, lockstep: Lockstep, kept: Kept, dense: Values) -> Tensor:
        """The dense value at the end of the path, without the removed channels."""
        graph, end = lockstep.dense, lockstep.original[self.end]
        values = graph.run_aside(graph.missing(end, dense), dense)
        return restricted(lockstep, kept, self.end, values)

    def activated(self, graph: Graph, value: Tensor) -> Tensor:
        """The activation of values."""
        assert self.activation is not None
        result: Tensor = graph.run_aside([self.activation], {self.end: value})[self.activation]
        return result

    def is_elementwise(self, graph: Graph) -> bool:
        """Whether every element of the value depends on one of the layer's output, in its place."""
        return all(graph.kind(node) in _ELEMENTWISE for node in self.path)

    def is_flat(self, lockstep: Lockstep, kept: Kept, dense: Values) -> bool:
        """Whether the activation maps many of the dense values and their neighbours to one."""
        graph, node = lockstep.pruned, self.activation
        if node is None or node.all_input_nodes != [self.end]:
            return False
        if graph.kind(node) is not OpKind.ELEMENTWISE:
            return False
        value = self.dense_value(lockstep, kept, dense)
        step = _NEIGHBOUR * value.std()
        same = self.activated(graph, value) == self.activated(graph, value + step)
        return bool(step > 0) and float(same.float().mean()) > _FLAT

    def _follow(self, graph: Graph, y: Tensor, values: Values) -> Tensor:
        """The value at the end of the path, given the layer's output."""
        return graph.run_aside(list(self.path), {**values, self.layer: y * 1})[self.end]


def restricted(lockstep: Lockstep, kept: Kept, node: fx.Node, dense: Values) -> Tensor:
    """The dense value of a pruned node, without the removed channels."""
    original = lockstep.original[node]
    value: Tensor = dense[original]
    box = kept_box(lockstep.units, kept, lockstep.units.flow.id_tensors[original])
    assert box is not None
    for dim, pick in enumerate(box):
        value = value if pick is None else value.index_select(dim, pick)
    return value


def plan(
    lockstep: Lockstep,
    kept: Kept,
    layer: fx.Node,
    values: tuple[Values, Values],
    activations: bool = True,
) -> Correction | None:
    """Follow a layer's output to a flat activation, or to the last sum that it can correct.

    None if there is neither; `activations=False` looks for sums only.
    """
    graph, path = lockstep.pruned, list[fx.Node]()
    chain = _chain(graph, layer)
    for node in chain:
        operands = _operands(graph, layer, [*path, node], values[1])
        if any(graph.kind(operand) is OpKind.LAYER for operand in operands):
            break  # it needs a layer that is not repaired yet
        path.append(node)
    path = path[: _affine_length(lockstep, kept, layer, path, values)]
    joins = [_joins(node, {layer, *path}) for node in path]
    ends = [_restrictable(lockstep, kept, node) for node in path]
    last_sum = max((i + 1 for i, j in enumerate(joins) if j and ends[i]), default=0)
    if activations and len(path) < len(chain) and all(ends[-1:]):
        found = Correction(layer, tuple(path), last_sum > 0, chain[len(path)])
        if found.is_elementwise(graph) and found.is_flat(lockstep, kept, values[0]):
            return found
    return Correction(layer, tuple(path[:last_sum]), sums=True) if last_sum else None


def _affine_length(
    lockstep: Lockstep,
    kept: Kept,
    layer: fx.Node,
    path: list[fx.Node],
    values: tuple[Values, Values],
) -> int:
    """The number of ops after which a path is still affine in the layer's output."""
    known = {} if lockstep.known is None else lockstep.known.affine_lengths
    key = (layer.name, *(node.name for node in path))
    if key not in known:
        known[key] = _tested_length(lockstep, kept, layer, path, values)
    return known[key]


def _tested_length(
    lockstep: Lockstep,
    kept: Kept,
    layer: fx.Node,
    path: list[fx.Node],
    values: tuple[Values, Values],
) -> int:
    """Whether ops are affine is a fact of the network; it is tested once for all candidates."""
    graph, own = lockstep.pruned, restricted(lockstep, kept, layer, values[0])
    others = _with_operands(graph, layer, path, {**values[1], layer: own})
    generator = torch.Generator().manual_seed(0)
    # steps so large that they cross the bend of every activation
    step = torch.randn(own.shape, generator=generator, dtype=own.dtype) * 4 * own.abs().max()
    below, at, above = ({**others, layer: y} for y in (own - step, own, own + step))
    for length, node in enumerate(path):
        below, at, above = (graph.run_aside([node], v) for v in (below, at, above))
        # an op such as chunk gives several tensors
        values_of = ([t.detach() for t in tensors(v[node])] for v in (below, at, above))
        parts = list(zip(*values_of, strict=True))
        bend = max((float((a + c - 2 * b).abs().max()) for a, b, c in parts), default=math.inf)
        slope = max((float((c - a).abs().max()) for a, _, c in parts), default=0.0)
        if not bend <= _ROUNDING * slope:
            return length
    return len(path)


def _chain(graph: Graph, node: fx.Node) -> list[fx.Node]:
    """The chain of nodes that each are the only one to use the one before."""
    chain = list[fx.Node]()
    while True:
        users = [u for u in node.users if u not in graph.index or not _reads_shape(graph, u)]
        if len(users) != 1 or users[0] not in graph.index:
            return chain
        [node] = users
        if graph.kind(node) is OpKind.LAYER:
            return chain
        chain.append(node)


def _reads_shape(graph: Graph, node: fx.Node) -> bool:
    """Whether a node reads no values of its input."""
    return graph.kind(node) is OpKind.METADATA


def _operands(
    graph: Graph, layer: fx.Node, path: Sequence[fx.Node], values: Values
) -> list[fx.Node]:
    """The nodes that must run for the other operands of a path."""
    known = {**values, layer: None, **dict.fromkeys(path)}
    inputs = {operand for node in path for operand in node.all_input_nodes}
    needed = {node for operand in inputs for node in graph.missing(operand, known)}
    return sorted(needed, key=graph.index.__getitem__)


def _with_operands(graph: Graph, layer: fx.Node, path: Sequence[fx.Node], values: Values) -> Values:
    """The values, and those of the other operands of a path.

    An operand may be a size of the path's own values, so that the path runs as far as it is needed.
    """
    operands = _operands(graph, layer, path, values)
    last = max(map(graph.index.__getitem__, operands), default=-1)
    before = [node for node in path if graph.index[node] < last]
    return graph.run_aside(sorted([*operands, *before], key=graph.index.__getitem__), values)


def _restrictable(lockstep: Lockstep, kept: Kept, node: fx.Node) -> bool:
    """Whether a node's dense value can be restricted to what the pruned node computes."""
    if node not in lockstep.original:
        return False
    ids = lockstep.units.flow.id_tensors[lockstep.original[node]]
    return isinstance(ids, Tensor) and kept_box(lockstep.units, kept, ids) is not None


def _joins(node: fx.Node, path: set[fx.Node]) -> bool:
    """Whether another operand enters at a node."""
    return any(operand not in path and operand.op != "get_attr" for operand in node.all_input_nodes)
