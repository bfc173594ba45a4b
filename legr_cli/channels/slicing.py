"""Slice modules: which dimension of which tensor follows a module's output or input channels."""

import copy
from dataclasses import dataclass

import torch
from torch import nn

from legr_cli.channels.ops import GROUP_COUNTS, IN_WIDTHS, OUT_WIDTHS, module_facts
from legr_cli.channels.switches import evaluating


@dataclass(frozen=True)
class Axes:
    """The dimensions of a tensor that follow the module's output and input channels."""

    out: int | None = None
    into: int | None = None
    groups: int = 1


def width_out(module: nn.Module) -> int:
    """Return the number of channels that a module writes."""
    for name in OUT_WIDTHS:
        if hasattr(module, name):
            return int(getattr(module, name))
    raise TypeError(type(module))


def groups_of(module: nn.Module) -> int:
    """Return the number of groups of a convolution; 1 for other modules."""
    return int(getattr(module, "groups", 1))


def weight_axes(transposed: bool, groups: int) -> Axes:
    """Return the axes of a layer's weight; its second one holds the channels of one group."""
    return Axes(int(transposed), int(not transposed), groups)


def by_filter(weight: torch.Tensor, axes: Axes) -> torch.Tensor:
    """Return a view of a layer's weight with its output channels in front, in one axis or two."""
    if axes.groups > 1 and axes.out == 1:  # (in, out / groups, …): groups × out / groups × …
        return weight.unflatten(0, (axes.groups, -1)).transpose(1, 2)
    return weight.movedim(axes.out or 0, 0)


def channel_axes(module: nn.Module) -> dict[str, Axes]:
    """Return the axes of every parameter and buffer that has any, by name."""
    axes = {}
    tensors = {**module._parameters, **module._buffers}
    transposed = getattr(module, "transposed", False)
    for name, tensor in tensors.items():
        if tensor is None or tensor.ndim == 0:
            continue
        if name == "weight" and not module_facts(module).per_channel:
            axes[name] = weight_axes(transposed, groups_of(module))
        elif tensor.shape[0] == width_out(module):
            axes[name] = Axes(0)
    return axes


def slice_module(
    module: nn.Module,
    out: torch.Tensor,
    into: torch.Tensor,
    copies: dict[int, torch.Tensor] | None = None,
) -> nn.Module:
    """Copy `module` with only the output channels `out` and the input channels `into`.

    `copies` maps the id of each tensor sliced so far to its copy, so that modules which share a
    tensor share its copy.
    """
    smaller = copy.copy(module)
    axes, copies = channel_axes(module), {} if copies is None else copies
    for registry in ("_parameters", "_buffers"):
        sliced: dict[str, torch.Tensor | None] = {}
        for name, tensor in getattr(module, registry).items():
            if tensor is not None and id(tensor) not in copies:
                new = slice_tensor(tensor.detach(), axes.get(name, Axes()), out, into)
                copies[id(tensor)] = as_parameter_like(tensor, new)
            sliced[name] = None if tensor is None else copies[id(tensor)]
        smaller.__dict__[registry] = sliced
    smaller.__dict__["_modules"] = {n: copy.deepcopy(m) for n, m in module._modules.items()}
    _set_widths(smaller, module, out, into)
    return smaller


def input_weights(module: nn.Module) -> list[str]:
    """The weights of a recurrent layer whose columns follow its input: those of its first layer."""
    names = (name for name, _ in module.named_parameters(recurse=False))
    firsts = ("weight_ih_l0", "weight_ih_l0_reverse", "weight_ih")
    return [name for name in names if name in firsts]


def slice_recurrent(module: nn.Module, into: torch.Tensor) -> nn.Module:
    """Copy a recurrent layer with only the input channels `into`."""
    smaller = copy.deepcopy(module)
    for name in input_weights(module):
        weight = getattr(module, name)
        new = slice_tensor(weight.detach(), Axes(into=1), into, into)
        setattr(smaller, name, as_parameter_like(weight, new))
    smaller.input_size = len(into)  # type: ignore[assignment]
    return smaller


def as_parameter_like(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """Return `new`, as a parameter if `old` is one."""
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


def slice_tensor(
    tensor: torch.Tensor, axes: Axes, out: torch.Tensor, into: torch.Tensor
) -> torch.Tensor:
    """Copy `tensor` with only these output and input channels."""
    if axes.groups > 1:
        return _slice_grouped(tensor, axes.groups, *((out, into) if axes.out == 0 else (into, out)))
    if axes.out is not None:
        tensor = _select(tensor, axes.out, out)
    if axes.into is not None:
        tensor = _select(tensor, axes.into, into)
    return tensor.clone() if axes == Axes() else tensor


def _select(tensor: torch.Tensor, axis: int, index: torch.Tensor) -> torch.Tensor:
    """Copy `tensor` with only the rows `index` along an axis."""
    return tensor.index_select(axis, index.to(tensor.device))


def _slice_grouped(
    tensor: torch.Tensor, groups: int, rows: torch.Tensor, cols: torch.Tensor
) -> torch.Tensor:
    """Slice a weight whose second axis holds the channels of one group.

    `rows` and `cols` number the channels of all groups. They stay on their own device: a tensor
    on the meta device has no values to count groups by.
    """
    height, width = len(tensor) // groups, tensor.shape[1]
    left = rows.div(height, rounding_mode="floor").unique()
    if len(cols) == len(left) * width:  # the groups that are left are whole
        return _select(tensor, 0, rows)

    def members(index: torch.Tensor, group: int, size: int) -> torch.Tensor:
        return index[index.div(size, rounding_mode="floor") == group]

    blocks = [
        _select(
            _select(tensor, 0, members(rows, group, height)),
            axis=1,
            index=members(cols, group, width) - group * width,
        )
        for group in left.tolist()
    ]
    return torch.cat(blocks)


def groups_left(out: torch.Tensor, width: int, groups: int) -> int:
    """Return how many of `groups` groups of `width` channels have any of the channels `out`."""
    return len(out.div(width // groups, rounding_mode="floor").unique())


def _set_widths(
    smaller: nn.Module, module: nn.Module, out: torch.Tensor, into: torch.Tensor
) -> None:
    """Update the attributes in which a module stores its widths and groups."""
    for name in OUT_WIDTHS:
        if hasattr(module, name) and width_out(module) > 1:
            setattr(smaller, name, len(out))
    for name in IN_WIDTHS:
        if hasattr(module, name):
            setattr(smaller, name, len(into))
    for name in GROUP_COUNTS:
        if getattr(module, name, 1) > 1:
            left = groups_left(out, width_out(module), int(getattr(module, name)))
            setattr(smaller, name, left)


def slices_like_base(module: nn.Module, shape: torch.Size) -> bool:
    """Whether a subclass with its own `forward` treats channels as its base class does.

    A random half of the module's channels (or groups) is sliced out; on an input that is zero in
    the other half, the slice and the module must agree. Weight standardization, for example, fails
    this test: it normalizes over a whole filter.
    """
    if _runs_like_base(module):
        return True
    tensors = [*module.parameters(), *module.buffers()]
    if tensors and tensors[0].is_meta:
        return False
    generator = torch.Generator().manual_seed(0)
    like = tensors[0] if tensors and tensors[0].is_floating_point() else torch.zeros(1)
    dim = len(shape) - 1 if module_facts(module).channels_last else 1
    out, into = _random_half(module, width_out(module), shape[dim], generator)
    values = torch.rand(*shape[:dim], len(into), *shape[dim + 1 :], generator=generator)
    x = torch.zeros(shape).index_copy(dim, into, values).to(like)
    try:
        with evaluating(module):
            expected = module(x).index_select(dim, out.to(x.device))
            actual = slice_module(module, out, into)(x.index_select(dim, into.to(x.device)))
    except (RuntimeError, ValueError, AttributeError, TypeError):
        return False
    return expected.shape == actual.shape and torch.allclose(expected, actual, rtol=1e-3, atol=1e-4)


def _runs_like_base(module: nn.Module) -> bool:
    """Whether a module is one of torch's own, or a subclass that runs torch's code."""
    kind = type(module)
    base = next(base for base in kind.__mro__ if base.__module__.startswith("torch.nn"))
    code = ("forward", "_conv_forward", "__call__", "__getattr__")
    return all(getattr(kind, name, None) is getattr(base, name, None) for name in code)


def _random_half(
    module: nn.Module, out: int, into: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Choose half of the output and input channels: independently, or by whole groups."""

    def members(groups: int, width: int, chosen: torch.Tensor) -> torch.Tensor:
        return torch.arange(width).reshape(groups, -1)[chosen].flatten()

    def half(groups: int) -> torch.Tensor:
        return torch.randperm(groups, generator=generator)[: max(1, groups // 2)].sort().values

    groups = max(int(getattr(module, name, 1)) for name in GROUP_COUNTS)
    if groups == 1 and module_facts(module).per_channel:
        groups = out
    if groups == 1:
        return members(out, out, half(out)), members(into, into, half(into))
    chosen = half(groups)
    return members(groups, out, chosen), members(groups, into, chosen)
