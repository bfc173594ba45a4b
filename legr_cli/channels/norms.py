"""The BatchNorm behind a layer."""

from torch import fx
from torch.nn.modules.batchnorm import _BatchNorm

from legr_cli.channels.flow import Flow
from legr_cli.channels.layers import layer_at


def norm_reading(traced: fx.GraphModule, node: fx.Node) -> _BatchNorm | None:
    """The BatchNorm with running statistics that alone reads a node, and nothing else."""
    users = list(node.users)
    if len(users) != 1 or users[0].op != "call_module":
        return None
    target = users[0].target
    norm = traced.get_submodule(str(target))
    calls = sum(n.op == "call_module" and n.target == target for n in traced.graph.nodes)
    if not isinstance(norm, _BatchNorm) or type(norm).forward is not _BatchNorm.forward:
        return None
    return norm if norm.running_mean is not None and calls == 1 else None


def norm_behind(flow: Flow, layer: str) -> _BatchNorm | None:
    """The BatchNorm that alone reads a layer's output, if the layer is called once."""
    nodes = [
        node
        for node in flow.traced.graph.nodes
        if (found := layer_at(flow, node)) is not None and found.name == layer
    ]
    return norm_reading(flow.traced, nodes[0]) if len(nodes) == 1 else None
