"""Trace a network to a `torch.fx` graph in which layers and norms stay modules."""

import contextlib
import operator
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from legr_cli.channels.ops import in_place, module_facts, node_facts
from legr_cli.errors import ModelError, first_line


class _Proxy(fx.Proxy):
    """A traced value with a length if it was split, so that `list(x.chunk(2, 1))` works."""

    def __len__(self) -> int:
        parts = _number_of_parts(self.node)
        return int(super().__len__()) if parts is None else parts


def _number_of_parts(node: fx.Node) -> int | None:
    """Return how many tensors a call such as `x.chunk(2, 1)` returns, if its arguments say so."""
    parts = node_facts(node).parts
    return None if parts is None else parts(node)


class _Tracer(fx.Tracer):
    """Keeps convolutions, linear layers, norms and their subclasses as modules."""

    proxy_buffer_attributes = True  # buffers keep their names in the graph

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        parts = _number_of_parts(obj.node)
        return super().iter(obj) if parts is None else (obj[i] for i in range(parts))  # type: ignore[index]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_facts(m).leaf:
            children = (p for child in m.children() for p in child.parameters())
            return next(children, None) is None
        return super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> fx.GraphModule:
    """Trace `model` in evaluation mode; the graph shares its modules, and it is left unchanged."""
    attributes = set(vars(model))
    with evaluating(model):
        try:
            with _traceable_zeros():
                graph = _Tracer().trace(model)
            traced = fx.GraphModule(model, graph, type(model).__name__)
        except Exception as error:
            location = _error_location(error)
            raise ModelError(f"torch.fx cannot trace this network: {location}") from error
        finally:  # torch.fx stores tensor constants as attributes of the model
            for name in set(vars(model)) - attributes:
                delattr(model, name)
        _clean_up(traced)
    return traced


def drop_unused(traced: fx.GraphModule) -> None:
    """Remove nodes without users, except in-place ops."""
    modules = dict(traced.named_modules())
    traced.graph.eliminate_dead_code(lambda node: node.is_impure() or in_place(node, modules))
    traced.recompile()


@contextlib.contextmanager
def _traceable_zeros() -> Iterator[None]:
    """Let `torch.zeros` take traced sizes, as in hand-written shortcuts that pad channels.

    It takes no tensor, so torch.fx cannot intercept it: the function is replaced during tracing.
    """
    zeros = torch.zeros

    def traced_zeros(*args: Any, **kwargs: Any) -> Any:
        proxies: list[fx.Proxy] = []
        fx.node.map_aggregate(
            (args, kwargs), lambda v: proxies.append(v) if isinstance(v, fx.Proxy) else None
        )
        if not proxies:
            return zeros(*args, **kwargs)
        return proxies[0].tracer.create_proxy("call_function", zeros, args, kwargs)

    torch.zeros = traced_zeros  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.zeros = zeros


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch `model` to evaluation mode without gradients, and restore its modes afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def fetch_attr(root: nn.Module, name: str) -> Any:
    """Return the attribute at a dotted name: a module, a tensor, a number."""
    return operator.attrgetter(name)(root)


class TensorShape(tuple[int, ...]):
    """The shape of a tensor that a node returns, as opposed to a tuple that it returns."""


def run_once(traced: fx.GraphModule, example: torch.Tensor) -> tuple[Any, dict[fx.Node, Any]]:
    """Return the output, and the value of every node with tensors replaced by their shapes."""
    values: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            values[n] = fx.node.map_aggregate(
                value, lambda v: TensorShape(v.shape) if isinstance(v, torch.Tensor) else v
            )
            return value

    with evaluating(traced), fixed_seed():
        try:
            output = Recorder(traced).run(example)
        except Exception as error:
            size = "x".join(map(str, example.shape[1:]))
            reason = first_line(error)
            raise ModelError(
                f"the network does not run on a {size} input: {reason}; "
                "pass the right size with --input"
            ) from error
    return output, values


@contextlib.contextmanager
def fixed_seed() -> Iterator[None]:
    """Fix the random state, for networks that draw random numbers even in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _clean_up(traced: fx.GraphModule) -> None:
    """Make the graph work for other widths and in training.

    Assertions on shapes are removed. `view` becomes `reshape`, which also takes non-contiguous
    tensors. Functional dropout, which tracing freezes in evaluation mode, becomes a module.
    """
    for index, node in enumerate(list(traced.graph.nodes)):
        facts = node_facts(node)
        if facts.assertion:
            traced.graph.erase_node(node)
        elif node.target == "view" and not isinstance(node.args[-1], torch.dtype):
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
