"""Remove what a traced network computes in vain, also where it does so in place."""

from torch import fx, nn

from legr_cli.channels.ops import OpKind, in_place, kind_of, node_facts

# Kinds of op whose result is always a tensor of its own.
_FRESH = (OpKind.LAYER, OpKind.CHANNELWISE, OpKind.GROUPWISE, OpKind.SPATIAL, OpKind.RECURRENT)


def drop_unused(traced: fx.GraphModule) -> None:
    """Remove the nodes that do not contribute to the output."""
    modules = dict(traced.named_modules())
    changing = {node for node in traced.graph.nodes if in_place(node, modules)}
    needed = _needed(traced.graph, changing, _tensors(traced.graph, changing, modules))
    traced.graph.eliminate_dead_code(
        lambda node: node in needed if node in changing else node.is_impure()
    )
    traced.recompile()


def _needed(
    graph: fx.Graph, changing: set[fx.Node], tensors: dict[fx.Node, fx.Node]
) -> set[fx.Node]:
    """What the output depends on; an op in place counts if its tensor is needed anywhere."""
    changes: dict[fx.Node, list[fx.Node]] = {}
    for node in changing:
        changes.setdefault(tensors[node], []).append(node)
    found: set[fx.Node] = set()
    waiting = [n for n in graph.nodes if n.op in ("output", "placeholder", "get_attr")]
    waiting += [n for n in graph.nodes if n not in changing and n.is_impure()]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [*node.all_input_nodes, *changes.pop(tensors[node], ())]
    return found


def _tensors(
    graph: fx.Graph, changing: set[fx.Node], modules: dict[str, nn.Module]
) -> dict[fx.Node, fx.Node]:
    """For each node, one that stands for all nodes that may share memory with it."""
    first: dict[fx.Node, fx.Node] = {}

    def root(node: fx.Node) -> fx.Node:
        while first[node] is not node:
            node = first[node]
        return node

    for node in graph.nodes:
        first[node] = node
        kind, facts = kind_of(node, modules), node_facts(node, modules)
        combines = kind is OpKind.ELEMENTWISE and len(node.all_input_nodes) > 1
        fresh = kind in _FRESH or facts.copies or (combines and not facts.only_first)
        if node in changing or not fresh:
            for other in node.all_input_nodes:
                first[root(other)] = node
    return {node: root(node) for node in graph.nodes}
