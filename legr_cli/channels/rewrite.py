"""How each shape op works on fewer channels: as it is, with new sizes, or as a gather.

The pruned network is played through on twins: its ids are known beforehand (the dense twin
without the removed ids), so an op fits as it is exactly when it gives those ids.
"""

from typing import Any

import numpy as np
import torch
from torch import fx

from legr_cli.channels.dry_run import DryRun, Reshape, Rewrite, attempt, pruned_ids
from legr_cli.channels.gather import gather
from legr_cli.channels.id_tensors import Ids, tensors
from legr_cli.channels.ops import OpKind, describe, node_facts
from legr_cli.channels.push import arguments
from legr_cli.channels.rules import asks_for_shape, run
from legr_cli.channels.units import Kept, Units


def check_shape_ops(units: Units) -> list[tuple[Any, str]]:
    """Play two random plans; the twins to pin, with the op that stands in the way."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        trouble = play(units, units.standing(rng.random(units.count) < 0.6)).trouble
        if trouble:
            return trouble
    return []


def play(units: Units, kept: Kept) -> DryRun:
    """Walk through the network with the removed channels gone."""
    stage = DryRun(units, kept)
    modules = dict(units.flow.traced.named_modules())
    for node in units.flow.traced.graph.nodes:
        stage.values[node] = _play_node(stage, node, modules)
    return stage


def _play_node(stage: DryRun, node: fx.Node, modules: dict[str, Any]) -> Any:
    """The pruned twin of a node; trouble is noted where it cannot have one."""
    flow = stage.units.flow
    dense = flow.twins[node]
    if node.op == "output":
        return None
    if node.op in ("placeholder", "get_attr"):
        return pruned_ids(stage, dense) if flow.has_twin(node) else dense
    args, kwargs = arguments(node, stage.values)
    kind = flow.kinds.get(node)
    if kind is None:
        return _plain_value(stage, node, modules, args, kwargs)
    if kind is OpKind.SHAPE:
        return _shape_op(stage, node, modules, args, kwargs)
    if kind is OpKind.UNKNOWN:
        return dense  # it reads and gives only what stays
    twin = pruned_ids(stage, dense)
    ragged = twin is None or any(stage.values[n] is None for n in node.all_input_nodes)
    numbers = kind is not OpKind.LAYER and _numbers(args, kwargs)  # surgery sets a layer's own
    if ragged or (numbers and numbers != _numbers(*arguments(node, flow.twins))):
        _note(stage, node, modules)
    return twin


def _plain_value(
    stage: DryRun, node: fx.Node, modules: dict[str, Any], args: Any, kwargs: Any
) -> Any:
    """A size or number, computed again on the pruned twins."""
    flow = stage.units.flow
    twins = [n for n in node.all_input_nodes if flow.has_twin(n)]
    if any(stage.values[n] is None for n in twins):
        _note(stage, node, modules)
        return flow.twins[node]
    if not node.all_input_nodes or not asks_for_shape(flow, node):
        return flow.twins[node]
    value = run(node, modules, args, kwargs)
    return flow.twins[node] if isinstance(value, torch.dtype | torch.device | bool) else value


def _numbers(args: Any, kwargs: Any) -> list[Any]:
    """The plain values among the arguments."""
    found: list[Any] = []
    fx.node.map_aggregate(
        (args, kwargs), lambda v: None if isinstance(v, torch.Tensor) else found.append(v)
    )
    return [v for v in found if isinstance(v, int | float)]


def _note(stage: DryRun, node: fx.Node, modules: dict[str, Any]) -> None:
    """This op cannot work on fewer channels: all that it touches has to stay."""
    twins = stage.units.flow.twins
    touched = [twins[n] for n in node.all_input_nodes] + [twins[node]]
    stage.trouble.append((touched, describe(node, modules)))


def _shape_op(stage: DryRun, node: fx.Node, modules: dict[str, Any], args: Any, kwargs: Any) -> Any:
    """Keep the op if it gives the wanted ids on fewer channels, else rewrite it."""
    dense = stage.units.flow.twins[node]
    whole = all(stage.values[n] is not None for n in node.all_input_nodes)
    many = not isinstance(dense, torch.Tensor)
    wanted = [pruned_ids(stage, twin) for twin in tensors(dense)]
    if whole and all(twin is not None for twin in wanted):
        made = attempt(lambda: run(node, modules, args, kwargs))
        if _same(made, wanted, stage.units.flow.constants):
            return made if many else wanted[0]
    if many:
        return None  # its parts are gathered one by one
    if wanted[0] is None:
        return None
    rewrite: Rewrite | None = _reshape(stage, node, modules, args, wanted[0]) if whole else None
    rewrite = rewrite or gather(stage, node, modules)
    if rewrite is None:
        _note(stage, node, modules)
    else:
        stage.rewrites[node] = rewrite
    return wanted[0]


def _same(made: Any, wanted: list[Ids], constants: list[Ids]) -> bool:
    """Whether the wanted ids were made; a zero is the op's own, and stands for a constant."""
    found = tensors(made)
    if [a.shape for a in found] != [b.shape for b in wanted]:
        return False
    for a, b in zip(found, wanted, strict=True):
        own = a == 0
        if bool(own.any()) and not bool(torch.isin(b[own], torch.cat(constants)).all()):
            return False
        if not bool(((a == b) | own).all()):
            return False
    return True


def _reshape(
    stage: DryRun, node: fx.Node, modules: dict[str, Any], args: Any, wanted: Ids
) -> Reshape | None:
    """The same reshape to the pruned sizes, if that puts every id in its place."""
    if not node_facts(node, modules).reshapes:
        return None
    made = attempt(lambda: args[0].reshape(wanted.shape))
    if made is None or not torch.equal(made, wanted):
        return None
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    if node.target not in ("reshape", torch.reshape) or len(sizes) != wanted.ndim:
        return Reshape((-1, *wanted.shape[1:]))
    values = fx.node.map_arg(sizes, lambda n: stage.values[n])
    pairs = zip(sizes, values, wanted.shape, strict=True)  # type: ignore[arg-type]
    # a size that still holds stays as it is written: it may depend on the image
    return Reshape(tuple(size if value in (now, -1) else now for size, value, now in pairs))  # type: ignore[misc]
