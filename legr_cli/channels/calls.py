"""How calls of torch functions become nodes of a graph, whatever a version of torch calls them."""

import operator
from collections.abc import Callable
from typing import Any

import torch

# Operators arrive as methods of Tensor, whose names differ between versions of torch: by name, the
# operator, and whether its operands are swapped.
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_OTHERS = (
    "neg", "invert", "getitem", "eq", "ne", "lt", "le", "gt", "ge", "xor",
    "iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "imod",
)  # fmt: skip
_OPERATORS: dict[str, tuple[Callable[..., Any], bool]] = {
    **{f"__{name}__": (getattr(operator, name), False) for name in (*_BINARY, *_OTHERS)},
    **{f"__r{name}__": (getattr(operator, name), True) for name in _BINARY},
    **{f"__{name}__": (getattr(operator, f"{name}_"), False) for name in ("and", "or")},
    "__rdiv__": (operator.truediv, True),
    "__div__": (operator.truediv, False),
    "__idiv__": (operator.itruediv, False),
}
# Methods of operators that call themselves something else: `Tensor.__pow__` is a function `pow`.
_RENAMED = {
    method: name
    for name in _OPERATORS
    if (method := getattr(torch.Tensor, name, None)) and method.__name__ != name
}
# Functions that draw random numbers; their in-place versions end in an underscore.
RANDOM = {
    "rand", "randn", "randint", "randperm", "normal", "bernoulli", "uniform", "exponential",
    "random", "log_normal", "cauchy", "geometric",
}  # fmt: skip
# What may be read from a tensor without depending on its values.
METADATA = {
    "shape", "size", "numel", "nelement", "dim", "ndim", "ndimension", "is_floating_point",
    "is_complex", "is_contiguous", "is_cuda",
    "is_cpu", "is_mps", "is_meta", "is_sparse", "is_quantized", "is_leaf", "is_signed",
    "is_inference", "is_same_size", "requires_grad", "grad", "grad_fn", "names", "layout",
    "device", "dtype", "stride", "storage_offset", "element_size", "itemsize", "nbytes",
    "get_device", "data_ptr", "type", "__len__", "__repr__", "__str__", "__format__", "__hash__",
    "_is_view", "_base", "_version", "is_shared", "is_pinned", "has_names", "is_conj", "is_neg",
}  # fmt: skip


def name_of(func: Any) -> str:
    """The name of a torch function; of the attribute if it is a getter."""
    name = _RENAMED.get(func) or getattr(func, "__name__", "")
    return str(getattr(func.__self__, "__name__", "")) if name == "__get__" else str(name)


def op_and_target(func: Any, name: str, args: Any) -> tuple[str, Any, Any]:
    """The kind of node, its target and its arguments that call a torch function."""
    if getattr(func, "__name__", "") == "__get__":
        return "call_function", getattr, (args[0], name)
    if name == "__iter__":
        return "call_function", torch.unbind, args
    if name in _OPERATORS:
        target, swapped = _OPERATORS[name]
        return "call_function", target, args[::-1] if swapped else args
    methods = (getattr(torch.Tensor, name, None), getattr(torch._C.TensorBase, name, None))
    if any(func is method for method in methods):
        return "call_method", name, args
    return "call_function", func, args
