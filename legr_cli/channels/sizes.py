"""Sizes and numbers derived from them that remember how a traced network computed them.

They are real ints and floats, so the network's own code can branch on them, loop over them and
pass them anywhere; ops record the formula instead of the value, so that the traced network also
works for other widths, batches and picture sizes.
"""

import contextlib
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx, nn


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


for _name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "pow"):
    for _class in (TracedInt, TracedFloat):
        setattr(_class, f"__{_name}__", _overload(getattr(operator, _name)))
        setattr(_class, f"__r{_name}__", _overload(getattr(operator, _name), swapped=True))
for _name, _op in (
    ("neg", operator.neg),
    ("ceil", math.ceil),
    ("floor", math.floor),
    ("trunc", math.trunc),
    ("round", round),
):
    for _class in (TracedInt, TracedFloat):
        setattr(_class, f"__{_name}__", _overload(_op))


class _IntType(type):
    """Makes `isinstance(x, int)` mean the built-in type."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, int)


class _TracedIntType(int, metaclass=_IntType):
    """Stands in for `int`, whose result Python would strip of its formula."""

    def __new__(cls, value: Any = 0, *args: Any) -> Any:
        if isinstance(value, TracedNumber):
            return traced_number(int(plain_number(value)), int, value)
        return int(value, *args)


@contextlib.contextmanager
def traceable_int(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Let `int(h / 2)` keep its formula in the files that define these modules."""
    names = {type(module).__module__ for module in modules}
    files = [vars(sys.modules[name]) for name in sorted(names) if name in sys.modules]
    files = [f for f in files if not f["__name__"].startswith("torch.") and "int" not in f]
    try:
        for file in files:
            file["int"] = _TracedIntType
        yield
    finally:
        for file in files:
            file.pop("int", None)


def emit(graph: fx.Graph, number: TracedNumber, values: dict[fx.Node, Any]) -> fx.Node:
    """Add the nodes that compute a number to a graph, once, and record their values."""
    known = number.__dict__.get("node")
    if known is not None:
        return known  # type: ignore[no-any-return]
    args = tuple(
        emit(graph, a, values) if isinstance(a, TracedNumber) else a for a in number.formula.args
    )
    if isinstance(number.formula.op, str):
        node = graph.call_method(number.formula.op, args)
    else:
        node = graph.call_function(number.formula.op, args)
    number.__dict__["node"], values[node] = node, plain_number(number)
    return node
