"""Trace a network to a `torch.fx` graph in which layers and norms stay modules."""

import operator
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.dead_code import drop_unused
from legr_cli.channels.inputs import Call
from legr_cli.channels.ops import node_facts
from legr_cli.channels.record import Recording, record
from legr_cli.channels.switches import evaluating, fixed_seed
from legr_cli.errors import ModelError, first_line


@dataclass(frozen=True)
class Traced:
    """A network as a graph that shares its modules, and what the graph's nodes returned."""

    graph_module: fx.GraphModule
    values: dict[fx.Node, Any]  # tensors are replaced by their shapes
    read_values: tuple[str, ...]  # lines of its code that turn tensors into numbers
    loops: tuple[str, ...]  # lines of its code that loop over a tensor
    reads_caches: bool  # whether it uses tensors that it neither computes nor stores


def trace(model: nn.Module, call: Call) -> Traced:
    """Record `model` in evaluation mode while it runs; it is left unchanged."""
    with evaluating(model), fixed_seed():
        recording = _record(model, call)
        for name, constant in recording.constants.items():
            model.__dict__[name] = constant
        try:
            traced = fx.GraphModule(model, recording.graph, type(model).__name__)
        finally:
            for name in recording.constants:
                del model.__dict__[name]
    _clean_up(traced)
    read, loops = tuple(recording.read_values), tuple(recording.loops)
    return Traced(traced, recording.values, read, loops, _reads_caches(model, traced.graph))


def _reads_caches(model: nn.Module, graph: fx.Graph) -> bool:
    """Whether a graph reads tensors that are no parameters and in no file."""
    stored = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    stored |= set(model.state_dict())
    return any(node.op == "get_attr" and node.target not in stored for node in graph.nodes)


def _record(model: nn.Module, call: Call) -> Recording:
    """Run the network and record it; explain why if it does not run."""
    try:
        return record(model, call)
    except ModelError:
        raise
    except Exception as error:
        sizes = ", ".join("x".join(map(str, x.shape[1:])) for x in call.tensors)
        raise ModelError(
            f"the network does not run on an input of {sizes}: {_error_location(error)}; "
            "pass the right size with --input"
        ) from error


def fetch_attr(root: nn.Module, name: str) -> Any:
    """Return the attribute at a dotted name: a module, a tensor, a number."""
    return operator.attrgetter(name)(root)


def _clean_up(traced: fx.GraphModule) -> None:
    """Make the graph work for other widths and in training.

    `view` becomes `reshape`, which also takes non-contiguous
    tensors. Functional dropout, which tracing freezes in evaluation mode, becomes a module.
    """
    for index, node in enumerate(list(traced.graph.nodes)):
        facts = node_facts(node)
        if node.target == "view" and not isinstance(node.args[-1], torch.dtype):
            node.target = "reshape"
            if "size" in node.kwargs:
                node.args, node.kwargs = (*node.args, node.kwargs["size"]), {}
        elif facts.train_as is not None and node.kwargs.get("training") is False:
            p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
            name = f"_dropout_{index}"
            traced.add_module(name, facts.train_as(p))
            node.op, node.target, node.args, node.kwargs = "call_module", name, node.args[:1], {}
    drop_unused(traced)


def _error_location(error: Exception) -> str:
    """Return the reason, and the line of the user's code at which tracing failed."""
    reason = first_line(error)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not {"torch", "legr_cli"} & set(Path(frame.filename).parts)
    ]
    if not frames:
        return reason
    last = frames[-1]
    return f"{reason} at {last.filename}:{last.lineno}: {last.line}"
