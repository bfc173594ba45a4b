"""Which dimension of which tensor of a module follows its output or input channels."""

import copy
from dataclasses import dataclass

import torch
from torch import nn

from legr_cli.channels.ops import module_facts
from legr_cli.channels.trace import evaluating


@dataclass(frozen=True)
class Axes:
    """The dimensions of a tensor that follow the module's output and input channels."""

    out: int | None = None
    into: int | None = None


def width_out(module: nn.Module) -> int:
    """How many channels the module writes."""
    for name in ("out_channels", "out_features", "num_features", "num_channels", "num_parameters"):
        if hasattr(module, name):
            return int(getattr(module, name))
    raise TypeError(type(module))


def groups_of(module: nn.Module) -> int:
    """How many independent groups of channels the module works on."""
    return int(getattr(module, "groups", 1))


def weight_axes(transposed: bool, groups: int) -> Axes:
    """The dimensions of a convolution's or linear layer's weight; those of groups stay as wide."""
    return Axes(int(transposed), int(not transposed) if groups == 1 else None)


def axes_of(module: nn.Module) -> dict[str, Axes]:
    """For each parameter and buffer the dimensions that shrink when channels go."""
    found = {}
    tensors = {**module._parameters, **module._buffers}
    transposed = getattr(module, "transposed", False)
    for name, tensor in tensors.items():
        if tensor is None or tensor.ndim == 0:
            continue
        if name == "weight" and not module_facts(module).per_channel:
            found[name] = weight_axes(transposed, groups_of(module))
        elif tensor.shape[0] == width_out(module):
            found[name] = Axes(0)
    return found


def sliced(
    module: nn.Module,
    out: torch.Tensor,
    into: torch.Tensor,
    made: dict[int, torch.Tensor] | None = None,
) -> nn.Module:
    """A copy of `module` with only the output and input channels in `out` and `into`.

    `made` holds the copies of tensors so far: modules that share one, share its copy.
    """
    smaller = copy.copy(module)
    axes, made = axes_of(module), {} if made is None else made
    for drawer in ("_parameters", "_buffers"):
        kept: dict[str, torch.Tensor | None] = {}
        for name, tensor in getattr(module, drawer).items():
            if tensor is not None and id(tensor) not in made:
                new = take(tensor.detach(), axes.get(name, Axes()), out, into)
                made[id(tensor)] = like(tensor, new)
            kept[name] = None if tensor is None else made[id(tensor)]
        smaller.__dict__[drawer] = kept
    smaller.__dict__["_modules"] = {n: copy.deepcopy(m) for n, m in module._modules.items()}
    _set_widths(smaller, module, len(out), len(into))
    return smaller


def like(old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    """`new` as a parameter, if `old` is one."""
    return nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new


def take(tensor: torch.Tensor, axes: Axes, out: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
    """A copy of `tensor` with only these output and input channels."""
    if axes.out is not None:
        tensor = tensor.index_select(axes.out, out.to(tensor.device))
    if axes.into is not None:
        tensor = tensor.index_select(axes.into, into.to(tensor.device))
    return tensor.clone() if axes == Axes() else tensor


def _set_widths(smaller: nn.Module, module: nn.Module, out: int, into: int) -> None:
    """Make the module's own notes of its widths true again."""
    for name in ("out_channels", "out_features", "num_features", "num_channels", "num_parameters"):
        if hasattr(module, name) and width_out(module) > 1:
            setattr(smaller, name, out)
    for name in ("in_channels", "in_features"):
        if hasattr(module, name):
            setattr(smaller, name, into)
    for name in ("groups", "num_groups"):
        if getattr(module, name, 1) > 1:
            setattr(smaller, name, int(getattr(module, name)) * out // width_out(module))


def obeys(module: nn.Module, shape: torch.Size) -> bool:
    """Whether a subclass with a `forward` of its own still treats channels as its base does.

    Half of its groups are cut out of it; on an input in which those channels are silent, both
    must agree. Weight standardisation, for one, does not pass: it looks at a filter as a whole.
    """
    if type(module).__module__.startswith("torch.nn"):
        return True
    tensors = [*module.parameters(), *module.buffers()]
    if tensors and tensors[0].is_meta:
        return False
    generator = torch.Generator().manual_seed(0)
    like = tensors[0] if tensors and tensors[0].is_floating_point() else torch.zeros(1)
    dim = len(shape) - 1 if isinstance(module, nn.Linear) else 1
    out, into = _half(module, width_out(module), shape[dim], generator)
    loud = torch.rand(*shape[:dim], len(into), *shape[dim + 1 :], generator=generator)
    x = torch.zeros(shape).index_copy(dim, into, loud).to(like)
    try:
        with evaluating(module):
            whole = module(x).index_select(dim, out.to(x.device))
            part = sliced(module, out, into)(x.index_select(dim, into.to(x.device)))
    except (RuntimeError, ValueError, AttributeError, TypeError):
        return False
    return whole.shape == part.shape and torch.allclose(whole, part, rtol=1e-3, atol=1e-4)


def _half(
    module: nn.Module, out: int, into: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A random half of the output and input channels: of each on its own, or by whole groups."""

    def members(groups: int, width: int, chosen: torch.Tensor) -> torch.Tensor:
        return torch.arange(width).reshape(groups, -1)[chosen].flatten()

    def some(groups: int) -> torch.Tensor:
        return torch.randperm(groups, generator=generator)[: max(1, groups // 2)].sort().values

    groups = max(int(getattr(module, name, 1)) for name in ("groups", "num_groups"))
    if groups == 1 and module_facts(module).per_channel:
        groups = out
    if groups == 1:
        return members(out, out, some(out)), members(into, into, some(into))
    chosen = some(groups)
    return members(groups, out, chosen), members(groups, into, chosen)
