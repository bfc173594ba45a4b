"""Sizes and numbers derived from them that remember how a traced network computed them.

They are real ints and floats, so the network's own code can branch on them, loop over them and
pass them anywhere; ops record the formula instead of the value, so that the traced network also
works for other widths, batches and picture sizes.
"""

import contextlib
import functools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import fx, nn

from legr_cli.channels.structures import holds


@dataclass(frozen=True)
class Formula:
    """How a number was computed: an op and its arguments, which may be traced numbers or nodes."""

    op: Callable[..., Any] | str  # a str is the name of a method of the first argument
    args: tuple[Any, ...]


class TracedInt(int):
    """An int with a formula."""

    formula: Formula


class TracedFloat(float):
    """A float with a formula."""

    formula: Formula


TracedNumber = TracedInt | TracedFloat


def traced_number(value: float, op: Callable[..., Any] | str, *args: Any) -> Any:
    """Attach a formula to a number."""
    number: TracedNumber = TracedInt(value) if isinstance(value, int) else TracedFloat(value)
    number.formula = Formula(op, args)
    return number


def plain_number(value: Any) -> Any:
    """Strip the formula of a number; other values stay as they are."""
    if isinstance(value, TracedInt):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, TracedFloat) else value


def _overload(op: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    """Make a method that computes with plain numbers and keeps the formula."""

    def method(self: Any, *others: Any) -> Any:
        if not all(isinstance(other, int | float) for other in others):
            return NotImplemented
        operands = (*others, self) if swapped else (self, *others)
        return traced_number(op(*map(plain_number, operands)), op, *operands)

    return method


_ARITHMETIC = ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow", "lshift", "rshift")
for _name in _ARITHMETIC:
    for _class in (TracedInt, TracedFloat):
        setattr(_class, f"__{_name}__", _overload(getattr(operator, _name)))
        setattr(_class, f"__r{_name}__", _overload(getattr(operator, _name), swapped=True))
for _name, _op in (
    ("neg", operator.neg),
    ("abs", abs),
    ("ceil", math.ceil),
    ("floor", math.floor),
    ("trunc", math.trunc),
    ("round", round),
):
    for _class in (TracedInt, TracedFloat):
        setattr(_class, f"__{_name}__", _overload(_op))
for _class in (TracedInt, TracedFloat):
    _class.__divmod__ = lambda self, other: (self // other, self % other)  # type: ignore
    _class.__rdivmod__ = lambda self, other: (other // self, other % self)  # type: ignore


def _stand_in(builtin: type) -> type:
    """A class that stands in for `int` or `float`, which strip a number of its formula."""

    class Meta(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, builtin)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, builtin)

        def __eq__(cls, other: Any) -> bool:
            return isinstance(other, type) and (
                issubclass(other, builtin) and other in (builtin, TracedInt, TracedFloat)
            )

        def __hash__(cls) -> int:
            return hash(builtin)

    class StandIn(builtin, metaclass=Meta):  # type: ignore[misc,valid-type]
        def __new__(cls, *args: Any) -> Any:
            if len(args) == 1 and isinstance(args[0], TracedNumber):
                return traced_number(builtin(plain_number(args[0])), builtin, *args)
            return builtin(*args)

    return StandIn


# Packages whose caches do not see the sizes of a network's tensors.
_NO_NETWORKS = {*sys.stdlib_module_names, "torch", "numpy", "scipy", "sympy", "legr_cli"}
_STAND_INS = {"int": _stand_in(int), "float": _stand_in(float)}


@contextlib.contextmanager
def traceable_numbers(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let numbers keep their formulas in `int(h / 2)` and in functions with an `lru_cache`.

    `int` is replaced in the packages that define these modules; caches are passed by everywhere.
    """
    packages = {type(module).__module__.partition(".")[0] for module in modules} - {"torch"}
    before: list[tuple[dict[str, Any], str, Any]] = []
    for name, file in list(sys.modules.items()):
        package = name.partition(".")[0]
        if package in _NO_NETWORKS or not isinstance(file, ModuleType):
            continue
        names = vars(file)
        if package in packages:
            before += [(names, name, None) for name in _STAND_INS if name not in names]
        before += [
            (names, n, v) for n, v in names.items() if type(v) is functools._lru_cache_wrapper
        ]
    try:
        for names, name, value in before:
            names[name] = _STAND_INS[name] if value is None else _without_cache(value)
        yield
    finally:
        for names, name, value in before:
            if value is None:
                names.pop(name, None)
            else:
                names[name] = value


def _without_cache(function: Any) -> Callable[..., Any]:
    """A function with a cache that computes anew for traced numbers: they equal plain ones."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        traced = holds((args, kwargs), lambda v: isinstance(v, TracedNumber))
        return (function.__wrapped__ if traced else function)(*args, **kwargs)

    return call


def emit(graph: fx.Graph, number: TracedNumber, values: dict[fx.Node, Any]) -> Any:
    """Add the nodes that compute a number to a graph, once, and record their values.

    A number that some cache kept from another graph is a constant here.
    """
    known = number.__dict__.get("node")
    if known is not None and known.graph is graph:
        return known
    args = tuple(
        emit(graph, a, values) if isinstance(a, TracedNumber) else a for a in number.formula.args
    )
    nodes = [a for a in args if isinstance(a, fx.Node)]
    if not nodes or any(node.graph is not graph for node in nodes):
        return plain_number(number)
    if isinstance(number.formula.op, str):
        node = graph.call_method(number.formula.op, args)
    else:
        node = graph.call_function(number.formula.op, args)
    number.__dict__["node"], values[node] = node, plain_number(number)
    return node
