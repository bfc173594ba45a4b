"""Cut units out of a network: a new, smaller `GraphModule` with the old parameter names."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from legr_cli.channels.dry_run import Gather, Reshape, box
from legr_cli.channels.layers import layer_at
from legr_cli.channels.rewrite import play
from legr_cli.channels.slicing import Axes, like, sliced, take
from legr_cli.channels.trace import drop_unused, fetch
from legr_cli.channels.units import Kept, Units, index
from legr_cli.errors import ModelError


def apply(units: Units, kept: Kept) -> fx.GraphModule:
    """The network with only the kept units; the dense network is not touched."""
    stage = play(units, kept)
    if stage.trouble:
        raise ModelError(
            f"{stage.trouble[0][1]} cannot work on so few channels: please report this network; "
            "another target may do"
        )
    root = nn.Module()
    graph = fx.Graph()
    flow = units.flow
    _copy_tensors(units, kept, root)
    copied: dict[fx.Node, fx.Node] = {}
    for node in flow.traced.graph.nodes:
        rewrite = stage.rewrites.get(node)
        if rewrite is None:
            copied[node] = graph.node_copy(node, lambda n: copied[n])
            _set_groups(units, kept, copied[node], node)
        elif isinstance(rewrite, Reshape):
            source = copied[node.all_input_nodes[0]]
            sizes = [copied[s] if isinstance(s, fx.Node) else s for s in rewrite.sizes]
            copied[node] = graph.call_method("reshape", (source, *sizes))
        else:
            copied[node] = _emit_gather(graph, root, rewrite, copied, node.name)
    smaller = fx.GraphModule(root, graph, type(flow.traced).__name__)
    drop_unused(smaller)
    return smaller.eval()


def _set_groups(units: Units, kept: Kept, new: fx.Node, node: fx.Node) -> None:
    """A functional grouped convolution is told its groups: now as many as stay."""
    layer = layer_at(units.flow, node)
    if node.op == "call_module" or layer is None or layer.axes.into is not None:
        return
    groups = len(index(units.keeps(kept, layer.into))) // layer.weight.shape[1]
    if len(node.args) > 6:
        new.args = (*new.args[:6], groups)
    else:
        new.kwargs = {**new.kwargs, "groups": groups}


def _copy_tensors(units: Units, kept: Kept, root: nn.Module) -> None:
    """Give `root` a copy of every module and tensor that the graph uses, cut to size."""
    flow = units.flow
    made: dict[int, torch.Tensor] = {}
    nodes = list(flow.traced.graph.nodes)
    modules = {str(node.target) for node in nodes if node.op == "call_module"}
    for name in sorted(modules):  # a module comes before those inside it
        if _has(root, name):
            continue
        module = flow.traced.get_submodule(name)
        if name in flow.layers:
            layer = flow.layers[name]
            out, into = (index(units.keeps(kept, ids)) for ids in (layer.out, layer.into))
            _put(root, name, sliced(module, out, into, made))
        elif name in flow.channelwise:
            ids = index(units.keeps(kept, flow.channelwise[name]))
            _put(root, name, sliced(module, ids, ids, made))
        else:
            _put(root, name, copy.deepcopy(module))
    for node in nodes:
        if node.op == "get_attr" and not _has(root, str(node.target)):
            _put(root, str(node.target), _tensor(units, kept, node, made))


def _tensor(units: Units, kept: Kept, node: fx.Node, made: dict[int, torch.Tensor]) -> Any:
    """A parameter or buffer that the graph reads by itself, cut to size."""
    flow, name = units.flow, str(node.target)
    value = fetch(flow.traced, name)
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    if id(value) in made:
        return made[id(value)]
    new = value.detach().clone()
    for layer in flow.layers.values():
        if name in (layer.name, layer.bias):
            out, into = (index(units.keeps(kept, ids)) for ids in (layer.out, layer.into))
            new = take(new, layer.axes if name == layer.name else Axes(0), out, into)
    if name in flow.channelwise:
        for dim, pick in enumerate(box(units, kept, flow.channelwise[name]) or []):
            new = new if pick is None else new.index_select(dim, pick.to(new.device))
    made[id(value)] = like(value, new)
    return made[id(value)]


def _has(root: nn.Module, name: str) -> bool:
    """Whether `root` has something at this dotted name."""
    try:
        fetch(root, name)
    except AttributeError:
        return False
    return True


def _put(root: nn.Module, name: str, value: Any, persistent: bool = True) -> None:
    """Set a dotted name, making the modules on the way."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    if isinstance(value, nn.Module):
        root.add_module(last, value)
    elif isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
        root.register_buffer(last, value, persistent=persistent)
    else:
        setattr(root, last, value)


def _emit_gather(
    graph: fx.Graph, root: nn.Module, gather: Gather, copied: dict[fx.Node, fx.Node], name: str
) -> fx.Node:
    """Write a choice of channels as plainly as can be: nothing, a slice, padding, or an index."""
    sources = [copied[source] for source in gather.sources]
    value = sources[0]
    if len(sources) > 1:
        value = graph.call_function(torch.cat, (sources, gather.dim))
    picks, zero = list(gather.picks), gather.width
    inside = [i for i, pick in enumerate(picks) if pick != zero] or [0]
    before, after = inside[0], len(picks) - 1 - inside[-1]
    inner = picks[before : len(picks) - after]
    if zero in inner:  # zeros in the middle: a channel of zeros at the end, to point to
        value = _pad(graph, value, gather, 0, 1)
    if inner == list(range(inner[0], inner[0] + len(inner))):
        if len(inner) < gather.width:
            value = graph.call_function(torch.narrow, (value, gather.dim, inner[0], len(inner)))
    else:
        buffer = f"_picks_{name}"
        _put(root, buffer, torch.tensor(inner), persistent=False)
        value = graph.call_function(torch.index_select, (value, gather.dim, graph.get_attr(buffer)))
    return _pad(graph, value, gather, before, after) if before or after else value


def _pad(graph: fx.Graph, value: fx.Node, gather: Gather, before: int, after: int) -> fx.Node:
    """Zeros before and after the channels."""
    amounts = [0, 0] * (gather.ndim - 1 - gather.dim) + [before, after]
    return graph.call_function(F.pad, (value, amounts))
