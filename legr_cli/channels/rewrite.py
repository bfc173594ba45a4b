"""Adapt shape ops to fewer channels: leave them as they are, change sizes, or gather channels.

A dry run of the plan decides. The ids that every pruned tensor must hold are known beforehand (the
dense ids without the removed ones), so an op can stay exactly if it produces those ids.
"""

from typing import Any

import numpy as np
import torch
from torch import fx

from legr_cli.channels.dry_run import DryRun, Reshape, Rewrite, SizeOf, pruned_ids, result_or_none
from legr_cli.channels.gather import gather, select
from legr_cli.channels.id_tensors import Ids, first_tensor
from legr_cli.channels.ops import OpKind, describe, node_facts
from legr_cli.channels.push import map_arguments
from legr_cli.channels.rules import reads_only_metadata, run_op
from legr_cli.channels.structures import tensors
from legr_cli.channels.units import Kept, Units


def check_shape_ops(units: Units) -> list[tuple[Any, str]]:
    """Try two random plans; return the ids to pin, with the op that cannot be adapted."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        kept = units.without_empty_tensors(rng.random(units.count) < 0.6)
        if failures := plan_rewrites(units, kept).failures:
            return failures
    return []


def plan_rewrites(units: Units, kept: Kept) -> DryRun:
    """Run the network on id tensors without the removed channels."""
    dry_run = DryRun(units, kept)
    modules = dict(units.flow.traced.named_modules())
    for node in units.flow.traced.graph.nodes:
        dry_run.values[node] = _run_node(dry_run, node, modules)
    return dry_run


def _run_node(dry_run: DryRun, node: fx.Node, modules: dict[str, Any]) -> Any:
    """Return the pruned id tensor of a node; record a failure if it has none."""
    flow = dry_run.units.flow
    dense = flow.id_tensors[node]
    if node.op == "output":
        return None
    if node.op == "placeholder":
        return dense  # inputs are pinned
    if node.op == "get_attr":
        return pruned_ids(dry_run, dense) if flow.has_ids(node) else dense
    args, kwargs = map_arguments(node, dry_run.values)
    kind = flow.kinds.get(node)
    if kind is None:
        return _plain_value(dry_run, node, modules, args, kwargs)
    if kind is OpKind.SHAPE:
        return _run_shape_op(dry_run, node, modules, args, kwargs)
    if kind is OpKind.UNKNOWN:
        return dense  # all channels that it reads and returns are pinned
    if kind is OpKind.SOURCE:
        return _run_source(dry_run, node, modules, args, kwargs)
    id_tensor = _pruned_parts(dry_run, dense)
    ragged = id_tensor is None or any(dry_run.values[n] is None for n in node.all_input_nodes)
    # numbers computed from the width must not change; surgery updates those of layers, and
    # unpooling ignores the width in the size that it is given
    free = kind is OpKind.LAYER or node_facts(node, modules).others == "tie"
    numbers = not free and _numbers(args, kwargs)
    if ragged or (numbers and numbers != _numbers(*map_arguments(node, flow.id_tensors))):
        _record_failure(dry_run, node, modules)
    return id_tensor


def _pruned_parts(dry_run: DryRun, dense: Any) -> Any:
    """Remove pruned channels from an id tensor, or from each of several; None if that fails."""
    if isinstance(dense, torch.Tensor):
        return pruned_ids(dry_run, dense)
    parts = [_pruned_parts(dry_run, part) for part in dense]
    return None if any(part is None for part in parts) else parts


def _run_source(
    dry_run: DryRun, node: fx.Node, modules: dict[str, Any], args: Any, kwargs: Any
) -> Any:
    """Keep an op that makes a tensor if its size is right, else select from its result."""
    expected = pruned_ids(dry_run, dry_run.units.flow.id_tensors[node])
    if node_facts(node).like:
        result = first_tensor(args, kwargs)
    else:
        result = result_or_none(lambda: run_op(node, modules, args, kwargs))
    if expected is None or result is None or result.shape != expected.shape:
        rewrite = select(dry_run, node, result)
        if rewrite is None:
            _record_failure(dry_run, node, modules)
        else:
            dry_run.rewrites[node] = rewrite
    return expected


def _plain_value(
    dry_run: DryRun, node: fx.Node, modules: dict[str, Any], args: Any, kwargs: Any
) -> Any:
    """Compute a size or number again, from the pruned tensors."""
    flow = dry_run.units.flow
    inputs = [n for n in node.all_input_nodes if flow.has_ids(n)]
    if any(dry_run.values[n] is None for n in inputs):
        _record_failure(dry_run, node, modules)
        return flow.id_tensors[node]
    if not node.all_input_nodes or not reads_only_metadata(flow, node):
        return flow.id_tensors[node]
    value = run_op(node, modules, args, kwargs)
    # id tensors have another dtype and device than the network's tensors
    return flow.id_tensors[node] if isinstance(value, torch.dtype | torch.device | bool) else value


def _numbers(args: Any, kwargs: Any) -> list[Any]:
    """List the numbers among an op's arguments."""
    values: list[Any] = []
    fx.node.map_aggregate(
        (args, kwargs), lambda v: None if isinstance(v, torch.Tensor) else values.append(v)
    )
    return [v for v in values if isinstance(v, int | float)]


def _record_failure(dry_run: DryRun, node: fx.Node, modules: dict[str, Any]) -> None:
    """Record that an op cannot work on fewer channels: its inputs and outputs must be pinned."""
    id_tensors = dry_run.units.flow.id_tensors
    touched = [id_tensors[n] for n in node.all_input_nodes] + [id_tensors[node]]
    dry_run.failures.append((touched, describe(node, modules)))


def _run_shape_op(
    dry_run: DryRun, node: fx.Node, modules: dict[str, Any], args: Any, kwargs: Any
) -> Any:
    """Keep the op if it produces the expected ids on fewer channels, else rewrite it."""
    dense = dry_run.units.flow.id_tensors[node]
    inputs_known = all(dry_run.values[n] is not None for n in node.all_input_nodes)
    returns_several = not isinstance(dense, torch.Tensor)
    expected = [pruned_ids(dry_run, id_tensor) for id_tensor in tensors(dense)]
    if inputs_known and all(id_tensor is not None for id_tensor in expected):
        result = result_or_none(lambda: run_op(node, modules, args, kwargs))
        if _ids_match(result, expected, dry_run.units.flow.padding_ids):
            return result if returns_several else expected[0]
    if returns_several:
        return None  # its parts are gathered one by one
    if expected[0] is None:
        return None
    rewrite: Rewrite | None = None
    if inputs_known:
        rewrite = _reshape(dry_run, node, modules, args, expected[0])
    rewrite = rewrite or gather(dry_run, node, modules)
    if rewrite is None and not any(dry_run.units.flow.has_ids(n) for n in node.all_input_nodes):
        result = result_or_none(lambda: run_op(node, modules, args, kwargs))
        rewrite = select(dry_run, node, result)  # zeros of a fixed size
    if rewrite is None:
        _record_failure(dry_run, node, modules)
    else:
        dry_run.rewrites[node] = rewrite
    return expected[0]


def _ids_match(result: Any, expected: list[Ids], padding_ids: list[Ids]) -> bool:
    """Whether an op's result holds the expected ids; a zero matches any padding id."""
    actual = tensors(result)
    if [a.shape for a in actual] != [b.shape for b in expected]:
        return False
    for a, b in zip(actual, expected, strict=True):
        zeros = a == 0
        if bool(zeros.any()) and not bool(torch.isin(b[zeros], torch.cat(padding_ids)).all()):
            return False
        if not bool(((a == b) | zeros).all()):
            return False
    return True


def _reshape(
    dry_run: DryRun, node: fx.Node, modules: dict[str, Any], args: Any, expected: Ids
) -> Reshape | None:
    """Return the same reshape to the pruned sizes, if it produces the expected ids."""
    facts = node_facts(node, modules)
    if not facts.reshapes:
        return None
    result = result_or_none(lambda: args[0].reshape(expected.shape))
    if result is None or not torch.equal(result, expected):
        return None
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):
        sizes = tuple(sizes[0])
    if not facts.takes_sizes or len(sizes) != expected.ndim:
        return Reshape(_sizes_from(args[0].shape, expected.shape))
    values = fx.node.map_arg(sizes, lambda n: dry_run.values[n])
    return _resized(list(sizes), list(values), list(expected.shape))  # type: ignore[arg-type]


def _resized(sizes: list[Any], values: list[Any], expected: list[int]) -> Reshape | None:
    """The sizes as written where they are still right, for they may depend on the input.

    One that the network computes and that is wrong, such as `17 * h * w`, becomes -1.
    """
    wrong = [i for i, now in enumerate(expected) if values[i] not in (now, -1)]
    computed = [i for i in wrong if isinstance(sizes[i], fx.Node)]
    if len(computed) > (-1 not in values):
        return None
    for i in wrong:
        sizes[i] = -1 if i in computed else expected[i]
    return Reshape(tuple(sizes))


def _sizes_from(before: torch.Size, after: torch.Size) -> tuple[int | SizeOf, ...]:
    """The sizes of a reshape that changes some dimensions only, those between the equal ones."""
    shorter = min(len(before), len(after))
    first = next((i for i in range(shorter) if before[i] != after[i]), shorter)
    last = next((i for i in range(shorter - first) if before[-1 - i] != after[-1 - i]), None)
    last = shorter - first if last is None else last
    middle = after[first : len(after) - last]
    kept = range(len(before) - last, len(before))
    return (*map(SizeOf, range(first)), *middle, *map(SizeOf, kept))
