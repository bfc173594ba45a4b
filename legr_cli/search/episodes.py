"""Episodes of AMC's agent: the features of each layer, and a walk through all layers.

With one action per layer, a state has eleven features: t, n, c, h, w, stride, k, FLOPs[t], reduced,
rest and a[t−1]. The first seven are relative to their maximum in the network, FLOPs to the total.
"""

import math
from collections.abc import Callable

import numpy as np

from legr_cli.channels.layers import layer_at
from legr_cli.pruning import Analysis
from legr_cli.search.ddpg import Agent, Step
from legr_cli.search.evolution import Candidate, Explorer, Fitness, Genes
from legr_cli.settings import Search


def layer_features(analysis: Analysis, names: list[str]) -> np.ndarray:
    """For each of these layers: t, n, c, h, w, stride, k, FLOPs[t], and the FLOPs of later ones."""
    flow = analysis.units.flow
    flops = analysis.cost.flops_by_layer(analysis.cost.sizes)
    nodes = {
        layer.name: node for node in flow.traced.graph.nodes if (layer := layer_at(flow, node))
    }
    rows = []
    for t, name in enumerate(names):
        layer, node = flow.layers[name], nodes[name]
        inputs, outputs = flow.shapes[node.all_input_nodes[0]], flow.shapes[node]
        is_2d = layer.kind != "linear" and len(inputs) == 4
        height, width = inputs[2:] if is_2d else (1, 1)
        stride = round(width / outputs[3]) if is_2d else 1
        kernel = layer.weight.shape[-1] if is_2d else 1
        out_channels, in_channels = len(layer.out), len(layer.into)
        rows.append([t, out_channels, in_channels, height, width, stride, kernel, flops[name]])
    table = np.array(rows, float)
    table[:, :7] /= np.maximum(table[:, :7].max(0), 1)
    table[:, 7] /= analysis.flops
    return np.column_stack([table, table[:, 7].sum() - np.cumsum(table[:, 7])])


class EpisodeExplorer(Explorer):
    """An agent that visits all layers once per candidate, and learns from the fitness."""

    def __init__(
        self, analysis: Analysis, names: list[str], actions: int, settings: Search
    ) -> None:
        super().__init__()
        self.features = layer_features(analysis, names)
        rng = np.random.default_rng(settings.seed)
        self.agent = Agent(10 + actions, actions, settings.candidates, rng)
        self.episodes: dict[int, list[Step]] = {}

    def run_episode(
        self,
        number: int,
        clip: Callable[[int, np.ndarray], np.ndarray],
        reduced: Callable[[], float],
    ) -> np.ndarray:
        """Run episode `number`; return layers × actions.

        `clip(t, action)` restricts the action at layer t to what is allowed; `reduced()` is the
        share of the FLOPs that the actions so far have removed.
        """
        steps: list[Step] = []
        action = np.ones(self.agent.actions)
        for t, row in enumerate(self.features):
            state = np.concatenate([row[:8], [reduced()], row[8:], action])
            action = clip(t, self.agent.act(state, number))
            steps.append((state, action))
        self.episodes[number] = steps
        return np.stack([action for _, action in steps])

    def tell(self, candidate: Candidate, fitness: Fitness) -> None:
        """Train the agent with the score as the reward of the episode."""
        super().tell(candidate, fitness)
        episode = self.episodes.pop(candidate.number)
        if math.isfinite(fitness.score):
            self.agent.learn(episode, fitness.score)

    def _draw(self, number: int) -> Candidate:
        return Candidate(number, self.genes(number))

    def genes(self, number: int) -> Genes:
        """Run an episode, and convert its actions into genes."""
        raise NotImplementedError
