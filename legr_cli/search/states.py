"""A layer as AMC's agent sees it, and an episode through all layers.

The state has eleven features when an action is one number: t, n, c, h, w, stride, k, FLOPs[t],
reduced, rest, a[t−1]; each of the first seven as a share of its largest value in the network, FLOPs
as shares of all.
"""

from collections.abc import Callable

import numpy as np

from legr_cli.channels.layers import layer_at
from legr_cli.pruning import Analysis
from legr_cli.search.ddpg import Agent, Step
from legr_cli.search.evolution import Candidate, Explorer, Fitness, Genes
from legr_cli.settings import Search


def described(analysis: Analysis, names: list[str]) -> np.ndarray:
    """Of each of these layers t, n, c, h, w, stride, k, FLOPs[t], and rest: all FLOPs after it."""
    flow = analysis.units.flow
    flops = analysis.cost.flops_by_layer(analysis.cost.sizes)
    nodes = {
        layer.name: node for node in flow.traced.graph.nodes if (layer := layer_at(flow, node))
    }
    rows = []
    for t, name in enumerate(names):
        layer, node = flow.layers[name], nodes[name]
        before, after = flow.shapes[node.all_input_nodes[0]], flow.shapes[node]
        image = layer.kind != "linear" and len(before) == 4
        height, width = before[2:] if image else (1, 1)
        stride = round(width / after[3]) if image else 1
        kernel = layer.weight.shape[-1] if image else 1
        into, out = len(layer.into), len(layer.out)
        rows.append([t, out, into, height, width, stride, kernel, flops[name]])
    table = np.array(rows, float)
    table[:, :7] /= np.maximum(table[:, :7].max(0), 1)
    table[:, 7] /= analysis.flops
    return np.column_stack([table, table[:, 7].sum() - np.cumsum(table[:, 7])])


class Walker(Explorer):
    """An agent that goes through the layers once for each candidate, and learns from its fitness.

    `take(t, a)` makes of the agent's numbers the action that is taken at layer t, and `reduced`
    says what share of the FLOPs is gone by then.
    """

    def __init__(
        self, analysis: Analysis, names: list[str], actions: int, settings: Search
    ) -> None:
        super().__init__()
        self.table = described(analysis, names)
        rng = np.random.default_rng(settings.seed)
        self.agent = Agent(10 + actions, actions, settings.candidates, rng)
        self.episodes: dict[int, list[Step]] = {}

    def walk(
        self,
        number: int,
        take: Callable[[int, np.ndarray], np.ndarray],
        reduced: Callable[[], float],
    ) -> np.ndarray:
        """One episode; the action at each layer."""
        steps: list[Step] = []
        last = np.ones(self.agent.actions)
        for t, row in enumerate(self.table):
            state = np.concatenate([row[:8], [reduced()], row[8:], last])
            last = take(t, self.agent.act(state, number))
            steps.append((state, last))
        self.episodes[number] = steps
        return np.stack([action for _, action in steps])

    def tell(self, candidate: Candidate, fitness: Fitness) -> None:
        """The reward of an episode has come."""
        super().tell(candidate, fitness)
        self.agent.learn(self.episodes.pop(candidate.number), fitness.accuracy)

    def _draw(self, number: int) -> Candidate:
        return Candidate(number, self.genes(number))

    def genes(self, number: int) -> Genes:
        """What an episode comes to."""
        raise NotImplementedError
