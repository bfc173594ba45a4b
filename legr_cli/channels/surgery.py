"""Remove units: build a smaller `GraphModule` with the parameter names of the dense network."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.graph_module import _USER_PRESERVED_ATTRIBUTES_KEY

from legr_cli.channels.dead_code import drop_unused
from legr_cli.channels.dry_run import Gather, Reshape, SizeOf, kept_box
from legr_cli.channels.inputs import submodule
from legr_cli.channels.layers import ARGUMENTS, layer_at
from legr_cli.channels.rewrite import plan_rewrites
from legr_cli.channels.slicing import (
    Axes,
    as_parameter_like,
    groups_left,
    slice_module,
    slice_recurrent,
    slice_tensor,
)
from legr_cli.channels.trace import fetch_attr
from legr_cli.channels.units import Kept, Units, kept_index
from legr_cli.errors import ModelError

DENSE_NODES = (
    "legr_dense_nodes"  # entry of a node's meta: the nodes of the dense graph it stands for
)


def apply(units: Units, kept: Kept) -> nn.Module:
    """Return a copy of the network with only the kept units, in evaluation mode.

    If the units are those of a part of the network, the copy has a smaller part in its place.

    `kept` has one bool per unit. The dense network is left unchanged. Raises ModelError if an op
    cannot be adapted to this plan.
    """
    dry_run = plan_rewrites(units, kept)
    if dry_run.failures:
        raise ModelError(
            f"{dry_run.failures[0][1]} cannot be adapted to this plan: this is a bug in legr, "
            "please report it with the network; another target may work"
        )
    root = nn.Module()
    graph = fx.Graph()
    flow = units.flow
    _copy_tensors(units, kept, root)
    copied: dict[fx.Node, fx.Node] = {}
    for node in flow.traced.graph.nodes:
        rewrite = dry_run.rewrites.get(node)
        if rewrite is None:
            copied[node] = graph.node_copy(node, lambda n: copied[n])
            _set_groups(units, kept, copied[node], node)
        elif isinstance(rewrite, Reshape):
            copied[node] = _emit_reshape(graph, copied[node.all_input_nodes[0]], rewrite, copied)
        else:
            if node in rewrite.sources:  # it makes its tensor at full size
                copied[node] = graph.node_copy(node, lambda n: copied[n])
            copied[node] = _emit_gather(graph, root, rewrite, copied, node.name)
        # a gather that selects everything emits no op: its node then stands for several
        stands_for = copied[node].meta.get(DENSE_NODES, ())
        copied[node].meta[DENSE_NODES] = (*stands_for, node.name)
    smaller = fx.GraphModule(root, graph, type(flow.traced).__name__)
    drop_unused(smaller)
    return put_back(units.source.model, units.source.module, smaller.eval())


def put_back(model: nn.Module, module: str, smaller: nn.Module) -> nn.Module:
    """A copy of a network with another part, which keeps the attributes of the old one."""
    if not module:
        return smaller
    part = submodule(model, module)
    for name, value in vars(part).items():  # such as `out_channels`, which others may read
        if not name.startswith("_") and not hasattr(smaller, name):
            smaller.__dict__[name] = copy.deepcopy(value)
            if isinstance(smaller, fx.GraphModule):  # else a copy of it would lose them
                preserved = smaller.meta.setdefault(_USER_PRESERVED_ATTRIBUTES_KEY, {})
                preserved[name] = smaller.__dict__[name]
    return copy.deepcopy(model, {id(part): smaller}).eval()


def _set_groups(units: Units, kept: Kept, new: fx.Node, node: fx.Node) -> None:
    """Update the `groups` argument of a functional grouped convolution."""
    layer = layer_at(units.flow, node)
    if node.op == "call_module" or layer is None or layer.axes.groups == 1:
        return
    out = kept_index(units.keeps(kept, layer.out))
    groups = groups_left(out, len(layer.out), layer.axes.groups)
    place = ARGUMENTS.index("groups")
    if len(node.args) > place:
        new.args = (*new.args[:place], groups)
    else:
        new.kwargs = {**new.kwargs, "groups": groups}


def _copy_tensors(units: Units, kept: Kept, root: nn.Module) -> None:
    """Add a sliced copy of every module and tensor that the graph uses to `root`."""
    flow = units.flow
    copies: dict[int, torch.Tensor] = {}
    nodes = list(flow.traced.graph.nodes)
    modules = {str(node.target) for node in nodes if node.op == "call_module"}
    for name in sorted(modules):  # a module comes before its submodules
        if _has(root, name):
            continue
        module = flow.traced.get_submodule(name)
        if name in flow.layers:
            layer = flow.layers[name]
            out, into = (kept_index(units.keeps(kept, ids)) for ids in (layer.out, layer.into))
            _set(root, name, slice_module(module, out, into, copies))
        elif name in flow.channelwise:
            index = kept_index(units.keeps(kept, flow.channelwise[name]))
            _set(root, name, slice_module(module, index, index, copies))
        elif name in flow.readers:
            into = kept_index(units.keeps(kept, flow.readers[name]))
            _set(root, name, slice_recurrent(module, into))
        else:
            _set(root, name, copy.deepcopy(module))
    for node in nodes:
        if node.op == "get_attr" and not _has(root, str(node.target)):
            _set(root, str(node.target), _slice_attribute(units, kept, node, copies))


def _slice_attribute(
    units: Units, kept: Kept, node: fx.Node, copies: dict[int, torch.Tensor]
) -> Any:
    """Slice a parameter or buffer that the graph reads directly."""
    flow, name = units.flow, str(node.target)
    value = fetch_attr(flow.traced, name)
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    if id(value) in copies:
        return copies[id(value)]
    new = value.detach().clone()
    for layer in flow.layers.values():
        if name in (layer.name, layer.bias):
            out, into = (kept_index(units.keeps(kept, ids)) for ids in (layer.out, layer.into))
            new = slice_tensor(new, layer.axes if name == layer.name else Axes(0), out, into)
    if name in flow.channelwise:
        for dim, pick in enumerate(kept_box(units, kept, flow.channelwise[name]) or []):
            new = new if pick is None else new.index_select(dim, pick.to(new.device))
    copies[id(value)] = as_parameter_like(value, new)
    return copies[id(value)]


def _has(root: nn.Module, name: str) -> bool:
    """Whether `root` has an attribute at this dotted name."""
    try:
        fetch_attr(root, name)
    except AttributeError:
        return False
    return True


def _set(root: nn.Module, name: str, value: Any, persistent: bool = True) -> None:
    """Set an attribute at a dotted name, adding the modules in between."""
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


def _emit_reshape(
    graph: fx.Graph, source: fx.Node, reshape: Reshape, copied: dict[fx.Node, fx.Node]
) -> fx.Node:
    """Emit a reshape whose sizes are numbers, sizes of its input, or computed by the network."""
    sizes: list[Any] = []
    for size in reshape.sizes:
        if isinstance(size, SizeOf):
            size = graph.call_method("size", (source, size.dim))
        sizes.append(copied.get(size, size) if isinstance(size, fx.Node) else size)
    return graph.call_method("reshape", (source, *sizes))


def _emit_gather(
    graph: fx.Graph, root: nn.Module, gather: Gather, copied: dict[fx.Node, fx.Node], name: str
) -> fx.Node:
    """Emit the cheapest ops that select the channels: none, a slice, padding, or an index."""
    sources = [copied[source] for source in gather.sources]
    value = sources[0]
    if len(sources) > 1:
        value = graph.call_function(torch.cat, (sources, gather.dim))
    # zeros at both ends become padding; the picks between them become a slice or an index
    picks, zero = list(gather.picks), gather.width
    nonzero = [i for i, pick in enumerate(picks) if pick != zero] or [0]
    before, after = nonzero[0], len(picks) - 1 - nonzero[-1]
    inner = picks[before : len(picks) - after]
    if zero in inner:  # zeros in between: append a channel of zeros for the index to select
        value = _emit_pad(graph, value, gather, 0, 1)
    if inner == list(range(inner[0], inner[0] + len(inner))):
        if len(inner) < gather.width:
            value = graph.call_function(torch.narrow, (value, gather.dim, inner[0], len(inner)))
    else:
        buffer = f"_picks_{name}"
        _set(root, buffer, torch.tensor(inner), persistent=False)
        value = graph.call_function(torch.index_select, (value, gather.dim, graph.get_attr(buffer)))
    return _emit_pad(graph, value, gather, before, after) if before or after else value


def _emit_pad(graph: fx.Graph, value: fx.Node, gather: Gather, before: int, after: int) -> fx.Node:
    """Pad the channel dimension with zeros."""
    # F.pad lists (before, after) pairs from the last dimension backwards
    amounts = [0, 0] * (gather.ndim - 1 - gather.dim) + [before, after]
    return graph.call_function(F.pad, (value, amounts))
