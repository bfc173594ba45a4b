"""Record a network as a `torch.fx` graph while it runs on an example.

The network runs for real, so its code may do whatever Python allows: branch, loop, assert, take
`*args`, assign to slices, call scripted functions. Every torch function and every layer that it
calls on the way becomes a node of the graph. Sizes stay symbolic (`sizes.py`); other values that
the code reads from a tensor are fixed as they were, and noted in `Recording.read_values`.
"""

import contextlib
import dataclasses
import linecache
import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from legr_cli.channels.calls import METADATA, RANDOM, name_of, op_and_target
from legr_cli.channels.functional import assigned
from legr_cli.channels.inputs import Call
from legr_cli.channels.ops import in_place, module_facts
from legr_cli.channels.sizes import (
    TracedNumber,
    emit,
    plain_number,
    traceable_numbers,
    traced_number,
)
from legr_cli.channels.structures import holds, parts
from legr_cli.channels.switches import unchanged

_DTYPES = {int: torch.int64, float: torch.float64, bool: torch.bool}  # Python's names for them


class TensorShape(tuple[int, ...]):
    """The shape of a tensor that a node returns, as opposed to a tuple that it returns."""


@dataclass
class Recording:
    """A recorded run."""

    graph: fx.Graph
    values: dict[fx.Node, Any] = field(default_factory=dict)  # with shapes in place of tensors
    constants: dict[str, Tensor] = field(default_factory=dict)  # no attributes of the network
    output: Any = None
    read_values: list[str] = field(default_factory=list)  # lines that turn tensors into numbers
    loops: list[str] = field(default_factory=list)  # lines that loop over a tensor


def record(model: nn.Module, call: Call) -> Recording:
    """Call `model` and record what it does."""
    try:
        with traceable_numbers(model.modules()):
            return _record(model, call)
    except Exception:  # its code may need the real `int`, such as in `dtype=int`
        return _record(model, call)


def _record(model: nn.Module, call: Call) -> Recording:
    """Record one call."""
    with unchanged(model), _eager_only():
        if any(parameter.is_meta for parameter in model.parameters()):
            _without_memory(model)
        return _Recorder(model).run(call)


def _without_memory(model: nn.Module) -> None:
    """Replace computed buffers, which have memory, so that they meet weights that have none."""
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to("meta")


class _Recorder(TorchFunctionMode):
    """Sees every torch function that runs while it is active."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.graph = fx.Graph()
        self.recording = Recording(self.graph)
        self.modules = dict(model.named_modules())
        self.module_names = {id(m): name for name, m in reversed(self.modules.items())}
        self.attributes = _tensor_attributes(model)
        self.tensors: dict[int, tuple[Tensor, fx.Node]] = {}  # holds tensors, so ids stay unique
        self.attribute_nodes: dict[str, fx.Node] = {}
        self.scope: list[str] = []
        self.busy = False  # inside a recorded call: what runs there is part of it
        self.sources: dict[Any, tuple[fx.Node, str]] = {}  # dtype or device → where it was read

    def run(self, call: Call) -> Recording:
        """Run the network and finish the graph."""
        placeholders = [
            (self.graph.placeholder(name, _dataclass_of(value)), value)
            for name, value in call.named(self.model).items()
        ]
        for node, value in placeholders:
            self._bind(node, value)
        with self._recorded_modules(), _UnseenOps(self), self:
            self.recording.output = call.run(self.model)
        node = self.graph.output(self._argument(self.recording.output))
        self.recording.values[node] = None
        return self.recording

    # -- what the network calls ----------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.busy:
            return func(*args, **kwargs)
        with self._inside():
            return self._call(func, args, kwargs)

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a torch function; record it if it depends on the input, a weight or chance."""
        name = name_of(func)
        plain = fx.node.map_aggregate((args, kwargs), plain_number)
        if not self._is_traced((args, kwargs)) and name.rstrip("_") not in RANDOM:
            return func(*plain[0], **plain[1])  # type: ignore[index]
        if name in METADATA:
            result = func(*plain[0], **plain[1])  # type: ignore[index]
            if not isinstance(result, Tensor):
                return self._metadata(name, args, result)
        if name == "__setitem__":
            return self._set_item(func, args)
        if kwargs.get("out") is not None:
            return self._write_out(func, name, args, kwargs)
        op, target, args = op_and_target(func, name, args)
        recorded = self._argument(args), self._argument(kwargs)  # before the call changes them
        result = func(*plain[0], **plain[1])  # type: ignore[index]
        if name == "__iter__":
            result = tuple(result)
        if name in ("__iter__", "unbind") and args[1:] in ((), (0,)):  # of the first dimension
            self.recording.loops.append(user_line() or "code of torch")
        if not holds(result, Tensor):
            if result is not None:
                self._note_read_value()
            return result
        result = self._record(op, target, *recorded, result)
        return iter(result) if name == "__iter__" else result

    def call_module(
        self, module: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Run a module: a layer is recorded as one node, the code of others is followed."""
        name = self.module_names.get(id(module))
        if self.busy or name is None:
            return run(module, *args, **kwargs)
        if module is self.model or not _is_leaf(module):
            self.scope.append(name)
            try:
                return run(module, *args, **kwargs)
            finally:
                self.scope.pop()
        with self._inside():
            recorded = self._argument(args), self._argument(kwargs)
            plain = fx.node.map_aggregate((args, kwargs), plain_number)
            result = run(module, *plain[0], **plain[1])  # type: ignore[index]
            return self._record("call_module", name, *recorded, result)

    def unseen_op(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Record an op that no Python code called, such as those of scripted functions."""
        if self.busy or not self._is_traced((args, kwargs)):
            return op(*args, **kwargs)
        with self._inside():
            recorded = self._argument(args), self._argument(kwargs)
            result = op(*args, **kwargs)
            return self._record("call_function", op, *recorded, result)

    def _metadata(self, name: str, args: Any, result: Any) -> Any:
        """Give sizes a formula, and remember where a dtype or device was read."""
        tensor = args[0]
        node = self._node(tensor)
        if isinstance(result, torch.dtype | torch.device):
            self.sources[result] = (node, name)
        if id(tensor) not in self.tensors:
            return result  # the size of a weight: a constant
        if name in ("numel", "nelement"):
            return traced_number(result, "numel", node)
        if isinstance(result, torch.Size) and name in ("shape", "size"):
            return torch.Size(traced_number(n, "size", node, dim) for dim, n in enumerate(result))
        if name == "size":
            dim = args[1] if len(args) > 1 else 0
            return traced_number(result, "size", node, int(dim))
        return result

    def _set_item(self, func: Any, args: Any) -> None:
        """Record `tensor[index] = value` as a new tensor where the old one has no other name."""
        tensor, index, value = args
        is_mask = isinstance(index, Tensor) and index.dtype == torch.bool
        plain = fx.node.map_aggregate(args, plain_number)
        recorded = self._argument(args)
        func(*plain)  # type: ignore[misc]
        if self._has_other_names(tensor):
            node = self._add("call_function", operator.setitem, recorded, {})
            self.recording.values[node] = None
            return
        fills = is_mask and index.shape == tensor.shape and getattr(value, "shape", ()) == ()
        node = self._add("call_function", torch.masked_fill if fills else assigned, recorded, {})
        self._bind(node, tensor)

    def _write_out(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Record `func(..., out=tensor)` as a new tensor where the old one has no other name."""
        plain = fx.node.map_aggregate((args, kwargs), plain_number)
        others = {key: value for key, value in kwargs.items() if key != "out"}
        op, target, args = op_and_target(func, name, args)
        node = self._add(op, target, self._argument(args), self._argument(others))
        result = func(*plain[0], **plain[1])  # type: ignore[index]
        if isinstance(result, Tensor) and self._has_other_names(result):
            self.recording.values[node] = _shapes(result)
            node = self._add("call_method", "copy_", (self._node(result), node), {})
            self.recording.values[node] = _shapes(result)
        else:
            self._bind(node, result)
        return result

    def _has_other_names(self, tensor: Tensor) -> bool:
        """Whether a change of a tensor is also seen elsewhere: in its base, or in the network."""
        return tensor._is_view() or id(tensor) in self.attributes

    # -- nodes ---------------------------------------------------------------------------------

    def _record(self, op: str, target: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Add a node for a call, and give its result, under a new name if it is an old tensor."""
        node = self._add(op, target, args, kwargs)
        is_old = id(result) in self.tensors or id(result) in self.attributes
        if is_old and not in_place(node, self.modules):
            # `Dropout` and `contiguous` may give their own input; the graph must tell them apart
            result = result.detach()
        self._bind(node, result)
        return result

    def _add(self, op: str, target: Any, args: Any, kwargs: Any) -> fx.Node:
        """Add a node that knows in which module it was called."""
        node = self.graph.create_node(op, target, tuple(args), dict(kwargs))
        if self.scope:
            name = self.scope[-1]
            node.meta["nn_module_stack"] = {name: (name, type(self.modules[name]))}
        return node

    def _bind(self, node: fx.Node, value: Any) -> None:
        """Let the tensors in a value refer to a node, or to the node's parts."""
        self.recording.values[node] = _shapes(value)
        if isinstance(value, Tensor):
            self.tensors[id(value)] = (value, node)
        for part, get, key in parts(value):
            if holds(part, Tensor):
                self._bind(self._add("call_function", get, (node, key), {}), part)

    def _node(self, tensor: Tensor) -> fx.Node:
        """The node that gives a tensor; attributes and constants get theirs when first used."""
        if id(tensor) in self.tensors:
            return self.tensors[id(tensor)][1]
        name = self.attributes.get(id(tensor))
        if name is None:
            name = self._new_constant(tensor)
        if name not in self.attribute_nodes:
            node = self.attribute_nodes[name] = self.graph.get_attr(name)
            self.recording.values[node] = TensorShape(tensor.shape)
        return self.attribute_nodes[name]

    def _new_constant(self, tensor: Tensor) -> str:
        """Name a tensor that the network's code makes from nothing; it may change it later."""
        taken = len(self.recording.constants)
        while hasattr(self.model, name := f"_tensor_constant{taken}"):
            taken += 1
        self.recording.constants[name] = tensor.detach().clone()
        return name

    def _argument(self, value: Any) -> Any:
        """Replace tensors and traced numbers by their nodes."""
        if isinstance(value, Tensor):
            return self._node(value)
        if isinstance(value, TracedNumber):
            return emit(self.graph, value, self.recording.values)
        if isinstance(value, torch.dtype | torch.device) and value in self.sources:
            return self._source(value)
        if isinstance(value, type) and value in _DTYPES:
            return _DTYPES[value]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._argument, value))
        if isinstance(value, tuple | list):
            replaced = tuple(map(self._argument, value))
            return list(replaced) if type(value) is list else replaced  # a torch.Size is a tuple
        if isinstance(value, dict):
            return {key: self._argument(part) for key, part in value.items()}
        if isinstance(value, slice):
            return slice(*map(self._argument, (value.start, value.stop, value.step)))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {
                f.name: self._argument(getattr(value, f.name)) for f in dataclasses.fields(value)
            }
            node = self.graph.call_function(type(value), (), fields)
            self.recording.values[node] = _shapes(value)
            return node
        return value

    def _source(self, value: Any) -> fx.Node:
        """The dtype or device of the tensor from which the network read it last."""
        node, name = self.sources[value]
        result = self.graph.call_function(getattr, (node, name))
        self.recording.values[result] = value
        return result

    def _is_traced(self, value: Any) -> bool:
        """Whether a value holds something that the graph must compute."""
        return holds(
            value,
            lambda v: (
                isinstance(v, TracedNumber)
                or (isinstance(v, Tensor) and (id(v) in self.tensors or id(v) in self.attributes))
            ),
        )

    def _note_read_value(self) -> None:
        """Note the line of the user's code that reads a tensor's value, unless it asserts."""
        where = user_line() or "code of torch"
        is_check = where.partition(": ")[2].startswith(("assert ", "print("))
        if not is_check and where not in self.recording.read_values:
            self.recording.read_values.append(where)

    # -- switches ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        """Record nothing in this block."""
        self.busy, before = True, self.busy
        try:
            yield
        finally:
            self.busy = before

    @contextlib.contextmanager
    def _recorded_modules(self) -> Iterator[None]:
        """Route calls of modules through `call_module`."""
        run = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self.call_module(module, run, args, kwargs)

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = run  # type: ignore[method-assign]


class _UnseenOps(TorchDispatchMode):
    """Sees ops below the Python functions."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.recorder.unseen_op(func, args, kwargs or {})


@contextlib.contextmanager
def _eager_only() -> Iterator[None]:
    """Run functions that are decorated with `torch.compile` as they are written."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _is_leaf(module: nn.Module) -> bool:
    """Whether a module is recorded as one node: layers, norms, torch's own and scripted modules."""
    if module_facts(module).leaf:
        children = (p for child in module.children() for p in child.parameters())
        return next(children, None) is None
    if isinstance(module, torch.jit.ScriptModule):
        return True
    is_torch = type(module).__module__.startswith(("torch.nn", "torch.ao.nn"))
    return is_torch and not isinstance(module, nn.Sequential)


def _shapes(value: Any) -> Any:
    """A value with tensors replaced by their shapes."""
    if isinstance(value, Tensor):
        return TensorShape(value.shape)
    if isinstance(value, tuple | list):
        return [_shapes(part) for part in value]
    if isinstance(value, dict):
        return {key: _shapes(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: _shapes(part) for part, _, name in parts(value)}
    return plain_number(value)


def _dataclass_of(value: Any) -> Any:
    """The class of a dataclass, by which the traced network knows what it takes."""
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return type(value) if is_dataclass else None


def _tensor_attributes(model: nn.Module) -> dict[int, str]:
    """The name of every parameter, buffer and other tensor that a module has as an attribute."""
    names: dict[int, str] = {}
    for prefix, module in model.named_modules():
        held = {**module._parameters, **module._buffers, **vars(module)}
        for name, value in held.items():
            if isinstance(value, Tensor):
                names.setdefault(id(value), f"{prefix}.{name}" if prefix else name)
    return names


def user_line() -> str | None:
    """The innermost line of code on the stack that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        parts = Path(frame.f_code.co_filename).parts
        if not {"torch", "legr_cli"} & set(parts) and "contextlib.py" not in parts:
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            return f"{frame.f_code.co_filename}:{frame.f_lineno}: {line}"
        frame = frame.f_back  # type: ignore[assignment]
    return None
