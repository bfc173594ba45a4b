"""Run the dense and the pruned network side by side on a few pictures, layer by layer.

The values that later ops need are kept for all pictures, and dropped after their last use. Where
they would take too much memory, they are computed again from the last ones that were kept.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from legr_cli.channels import Units
from legr_cli.channels.layers import layer_at
from legr_cli.channels.ops import OpKind, in_place, kind_of
from legr_cli.channels.structures import tensors
from legr_cli.channels.surgery import DENSE_NODES

MEMORY = 1 << 30  # bytes of values kept between two layers, for all pictures
DENSE_MEMORY = 1 << 30  # bytes of the dense network's values kept for further pruned networks

Values = dict[fx.Node, Any]
_FRESH = (OpKind.LAYER, OpKind.CHANNELWISE, OpKind.GROUPWISE)  # never return their own input


class Graph:
    """The nodes of a network in order, and the means to run some of them."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced = traced
        self.nodes = [node for node in traced.graph.nodes if node.op != "output"]
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.modules = dict(traced.named_modules())
        last = {node: max(map(self._position, node.users), default=-1) for node in self.nodes}
        self._dead_after: dict[int, list[fx.Node]] = {}
        for node, position in last.items():
            self._dead_after.setdefault(max(position, self.index[node]), []).append(node)
        self._interpreter = fx.Interpreter(traced)

    def _position(self, node: fx.Node) -> int:
        """The index of a node; the output comes after all others."""
        return self.index.get(node, len(self.nodes))

    def kind(self, node: fx.Node) -> OpKind:
        """The kind of op that a node calls."""
        return kind_of(node, self.modules)

    def start(self, images: Tensor) -> Values:
        """The values before anything has run."""
        taken = next(node for node in self.nodes if node.op == "placeholder")
        return {taken: [images] if str(taken.target).startswith("*") else images}

    def advanced(self, before: Values, start: int, stop: int) -> Values:
        """The values after the nodes from `start` to `stop`; those of no further use are dropped.

        `before` stays as it is.
        """
        values = dict(before)
        if self._modifies(before, start, stop):
            copied = {node: value for node, value in before.items() if node.op != "get_attr"}
            values |= zip(copied, copy.deepcopy(list(copied.values())), strict=True)
        for position in range(start, stop):
            values[self.nodes[position]] = self.run(self.nodes[position], values)
            for node in self._dead_after.get(position, ()):
                values.pop(node, None)
        return values

    def run(self, node: fx.Node, values: Values) -> Any:
        """The value of one node, given those of its inputs."""
        if node.op == "placeholder" and node in values:
            return values[node]
        self._interpreter.env, self._interpreter.args_iter = values, iter(())
        return self._interpreter.run_node(node)

    def run_aside(self, nodes: list[fx.Node], values: Values) -> Values:
        """Run nodes on a copy of the values; nothing that was there before is modified."""
        values = dict(values)
        for node in nodes:
            if in_place(node, self.modules) and node.all_input_nodes:
                first = node.all_input_nodes[0]
                values[first] = values[first].clone()
            values[node] = self.run(node, values)
        return values

    def missing(self, goal: fx.Node, values: Values) -> list[fx.Node]:
        """What must run to get from these values to a node, in order, the node included."""
        found, pending = set[fx.Node](), [goal]
        while pending:
            node = pending.pop()
            if node not in values and node not in found:
                found.add(node)
                pending += node.all_input_nodes
        return sorted(found, key=self.index.__getitem__)

    def _modifies(self, values: Values, start: int, stop: int) -> bool:
        """Whether an op in this range may modify one of these values in place."""
        for node in self.nodes[start:stop]:
            if in_place(node, self.modules) and node.all_input_nodes:
                first = node.all_input_nodes[0]
                while in_place(first, self.modules) and first.all_input_nodes:
                    first = first.all_input_nodes[0]
                if first in values or self.kind(first) not in _FRESH:
                    return True
        return False


class DenseValues:
    """The dense network's values at every layer, computed once for any number of pruned networks.

    Those beyond `DENSE_MEMORY` bytes are left out; every lockstep computes them itself.
    """

    def __init__(self, units: Units, batches: list[Tensor]) -> None:
        self._values: dict[tuple[int, int], Values] = {}  # by batch and number of nodes done
        self.affine_lengths: dict[tuple[str, ...], int] = {}  # see `correction.plan`
        graph = Graph(units.flow.traced)
        stops = [i + 1 for i, node in enumerate(graph.nodes) if layer_at(units.flow, node)]
        storages: dict[int, int] = {}
        for number, images in enumerate(batches):
            values, done = graph.start(images), 0
            for stop in stops:
                values, done = graph.advanced(values, done, stop), stop
                storages |= _storages(values)
                if sum(storages.values()) > DENSE_MEMORY:
                    return
                self._values[number, stop] = values

    def at(self, batch: int, stop: int) -> Values | None:
        """The values of a batch after this number of nodes, if they are known."""
        return self._values.get((batch, stop))


@dataclass(frozen=True)
class Stop:
    """A point in the run of both networks: the number of nodes of each that are done."""

    dense: int
    pruned: int


class Lockstep:
    """Both networks, and the values of each on every batch of pictures."""

    def __init__(
        self,
        units: Units,
        pruned: fx.GraphModule,
        batches: list[Tensor],
        known: DenseValues | None = None,
    ) -> None:
        self.units, self.known = units, known
        self.dense, self.pruned = Graph(units.flow.traced), Graph(pruned)
        self.counterpart = _counterparts(self.dense, self.pruned)
        self.original = {p: d for d, p in self.counterpart.items()}
        self.lengths = [len(images) for images in batches]
        self._at = Stop(0, 0)
        self._kept = [(self.dense.start(images), self.pruned.start(images)) for images in batches]

    def visit(self, stop: Stop) -> Iterator[tuple[Values, Values]]:
        """Run every batch up to a point, and give the values of both networks there."""
        keep, start = False, self._at
        for number, length in enumerate(self.lengths):
            dense, pruned = self._kept[number]
            known = self.known and self.known.at(number, stop.dense)
            values = (
                known or self.dense.advanced(dense, start.dense, stop.dense),
                self.pruned.advanced(pruned, start.pruned, stop.pruned),
            )
            if number == 0:
                keep = _bytes(values) / length * sum(self.lengths) <= MEMORY
            if keep:
                self._kept[number] = values
            yield values
        if keep:
            self._at = stop


def _bytes(values: tuple[Values, Values]) -> int:
    """The memory that values take, but for the network's own tensors."""
    return sum({**_storages(values[0]), **_storages(values[1])}.values())


def _storages(values: Values) -> dict[int, int]:
    """The bytes of every storage that values take, by address."""
    own = [value for node, value in values.items() if node.op != "get_attr"]
    storages = (tensor.untyped_storage() for tensor in tensors(own))
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def _counterparts(dense: Graph, pruned: Graph) -> dict[fx.Node, fx.Node]:
    """By node of the dense graph, the node of the pruned one that computes the same."""
    by_name = {node.name: node for node in dense.nodes}
    return {
        by_name[name]: node
        for node in pruned.nodes
        for name in node.meta.get(DENSE_NODES, ())
        if name in by_name
    }
