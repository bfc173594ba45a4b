"""A network as a `torch.fx` graph in which layers and norms stay modules."""

import contextlib
import traceback
import unittest.mock
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torchvision.ops import StochasticDepth

from legr_cli.errors import ModelError

_LAYERS_AND_NORMS = (
    *(nn.modules.conv._ConvNd, nn.Linear, nn.modules.batchnorm._NormBase, nn.GroupNorm),
    *(nn.LayerNorm, nn.LocalResponseNorm),
)


class _Tracer(fx.Tracer):
    """Keeps convolutions, linears, norms and their subclasses whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, StochasticDepth):
            return True
        if isinstance(m, _LAYERS_AND_NORMS):
            children = (p for child in m.children() for p in child.parameters())
            return next(children, None) is None
        return super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> fx.GraphModule:
    """Trace `model` in evaluation mode; its modules are shared, and it is left as it was."""
    with evaluating(model):
        try:
            with _traceable_zeros():
                graph = _Tracer().trace(model)
        except Exception as error:
            raise ModelError(f"torch.fx cannot trace this network: {_where(error)}") from error
        traced = fx.GraphModule(model, graph, type(model).__name__)
        _tidy(traced)
    return traced


@contextlib.contextmanager
def _traceable_zeros() -> Iterator[None]:
    """`torch.zeros` with sizes of the graph, as hand-written shortcuts pad; fx alone refuses it."""
    zeros = torch.zeros

    def traced_zeros(*args: Any, **kwargs: Any) -> Any:
        found: list[fx.Proxy] = []
        fx.node.map_aggregate(
            (args, kwargs), lambda v: found.append(v) if isinstance(v, fx.Proxy) else None
        )
        if not found:
            return zeros(*args, **kwargs)
        return found[0].tracer.create_proxy("call_function", zeros, args, kwargs)

    with unittest.mock.patch.object(torch, "zeros", traced_zeros):
        yield


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients, for the time of a block."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def fetch(root: nn.Module, name: str) -> Any:
    """What a network has at a dotted name: a module, a tensor, a number."""
    value: Any = root
    for part in name.split("."):
        value = getattr(value, part)
    return value


class TensorShape(tuple[int, ...]):
    """The shape of a tensor that a node gives (a plain tuple is a value of the network's own)."""


def shapes(traced: fx.GraphModule, example: torch.Tensor) -> dict[fx.Node, Any]:
    """Run the graph once: for each node its value, with `TensorShape` in the place of a tensor."""
    found: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            found[n] = fx.node.map_aggregate(
                value, lambda v: TensorShape(v.shape) if isinstance(v, torch.Tensor) else v
            )
            return value

    with evaluating(traced):
        try:
            Recorder(traced).run(example)
        except Exception as error:
            size = "x".join(map(str, example.shape[1:]))
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error)
            raise ModelError(
                f"the network does not run on a {size} input: {reason}; pass its size with --input"
            ) from error
    return found


def _tidy(traced: fx.GraphModule) -> None:
    """Make the graph fit for other widths and for training.

    Assertions on shapes go; `view` becomes `reshape`, which also takes a slice; functional dropout,
    frozen by tracing, works again in training.
    """
    for index, node in enumerate(list(traced.graph.nodes)):
        if node.target is torch._assert:
            traced.graph.erase_node(node)
        elif node.target == "view" and not isinstance(node.args[1], torch.dtype):
            node.target = "reshape"
        elif node.target is F.dropout and node.kwargs.get("training") is False:
            p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
            name = f"_dropout_{index}"
            traced.add_module(name, nn.Dropout(p))
            node.op, node.target, node.args, node.kwargs = "call_module", name, node.args[:1], {}
    traced.graph.eliminate_dead_code()
    traced.recompile()


def _where(error: Exception) -> str:
    """The reason and the line of the user's code that torch.fx stumbled on."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not {"torch", "legr_cli"} & set(Path(frame.filename).parts)
    ]
    if not frames:
        return reason
    last = frames[-1]
    return f"{reason} at {last.filename}:{last.lineno}: {last.line}"
