"""A network as a `torch.fx` graph in which layers and norms stay modules."""

import contextlib
import operator
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from legr_cli.channels.ops import in_place, module_facts
from legr_cli.errors import ModelError, first_line


class _Proxy(fx.Proxy):
    """A traced value that knows how many parts it was split into: `list(x.chunk(2, 1))` works."""

    def __len__(self) -> int:
        parts = _parts(self.node)
        return int(super().__len__()) if parts is None else parts


def _parts(node: fx.Node) -> int | None:
    """How many parts a split was asked for, where its arguments tell."""
    name = getattr(node.target, "__name__", node.target)
    asked = node.args[1] if len(node.args) > 1 else node.kwargs.get("chunks")
    if name == "chunk" and isinstance(asked, int):
        return asked
    return len(asked) if name == "split" and isinstance(asked, list | tuple) else None


class _Tracer(fx.Tracer):
    """Keeps convolutions, linears, norms and their subclasses whole."""

    proxy_buffer_attributes = True  # buffers keep their names in the graph

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        parts = _parts(obj.node)
        return super().iter(obj) if parts is None else (obj[i] for i in range(parts))  # type: ignore[index]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if module_facts(m).leaf:
            children = (p for child in m.children() for p in child.parameters())
            return next(children, None) is None
        return super().is_leaf_module(m, module_qualified_name)


def trace(model: nn.Module) -> fx.GraphModule:
    """Trace `model` in evaluation mode; its modules are shared, and it is left as it was."""
    before = set(vars(model))
    with evaluating(model):
        try:
            with _traceable_zeros():
                graph = _Tracer().trace(model)
            traced = fx.GraphModule(model, graph, type(model).__name__)
        except Exception as error:
            raise ModelError(f"torch.fx cannot trace this network: {_where(error)}") from error
        finally:  # torch.fx leaves the constants it meets on the model
            for name in set(vars(model)) - before:
                delattr(model, name)
        _tidy(traced)
    return traced


def drop_unused(traced: fx.GraphModule) -> None:
    """Drop nodes that nobody reads, unless they change a tensor in place."""
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
        found: list[fx.Proxy] = []
        fx.node.map_aggregate(
            (args, kwargs), lambda v: found.append(v) if isinstance(v, fx.Proxy) else None
        )
        if not found:
            return zeros(*args, **kwargs)
        return found[0].tracer.create_proxy("call_function", zeros, args, kwargs)

    torch.zeros = traced_zeros  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.zeros = zeros


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
    return operator.attrgetter(name)(root)


class TensorShape(tuple[int, ...]):
    """The shape of a tensor that a node gives (a plain tuple is a value of the network's own)."""


def run_once(traced: fx.GraphModule, example: torch.Tensor) -> tuple[Any, dict[fx.Node, Any]]:
    """The output, and of each node its value with `TensorShape` in the place of a tensor."""
    found: dict[fx.Node, Any] = {}

    class Recorder(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Any:
            value = super().run_node(n)
            found[n] = fx.node.map_aggregate(
                value, lambda v: TensorShape(v.shape) if isinstance(v, torch.Tensor) else v
            )
            return value

    with evaluating(traced), seeded():
        try:
            output = Recorder(traced).run(example)
        except Exception as error:
            size = "x".join(map(str, example.shape[1:]))
            reason = first_line(error)
            raise ModelError(
                f"the network does not run on a {size} input: {reason}; pass its size with --input"
            ) from error
    return output, found


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """The same random numbers every time, for networks that draw some even in evaluation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _tidy(traced: fx.GraphModule) -> None:
    """Make the graph fit for other widths and for training.

    Assertions on shapes go; `view` becomes `reshape`, which also takes a slice; functional dropout,
    frozen by tracing, works again in training.
    """
    for index, node in enumerate(list(traced.graph.nodes)):
        if node.target is torch._assert:
            traced.graph.erase_node(node)
        elif node.target == "view" and not isinstance(node.args[-1], torch.dtype):
            node.target = "reshape"
            if "size" in node.kwargs:
                node.args, node.kwargs = (*node.args, node.kwargs["size"]), {}
        elif node.target is F.dropout and node.kwargs.get("training") is False:
            p = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
            name = f"_dropout_{index}"
            traced.add_module(name, nn.Dropout(p))
            node.op, node.target, node.args, node.kwargs = "call_module", name, node.args[:1], {}
    drop_unused(traced)


def _where(error: Exception) -> str:
    """The reason and the line of the user's code that torch.fx stumbled on."""
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
