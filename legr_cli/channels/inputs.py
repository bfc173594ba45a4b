"""What a network is called with: one image, several named tensors, or what reaches a part of it."""

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from legr_cli.channels.structures import map_tensors, tensors
from legr_cli.channels.switches import evaluating, fixed_seed, unchanged
from legr_cli.errors import ModelError, SettingError, first_line
from legr_cli.shapes import Shapes

_STARS: dict[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}


@dataclass(frozen=True)
class Call:
    """The arguments of a call."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def run(self, model: Any) -> Any:
        """Call a network with them."""
        return model(*self.args, **self.kwargs)

    def named(self, model: nn.Module) -> dict[str, Any]:
        """The arguments by the name that `forward` gives them, with its stars: `*args`."""
        try:
            bound = inspect.signature(model.forward).bind(*self.args, **self.kwargs)
        except (TypeError, ValueError):  # a signature that Python cannot read
            return {f"input_{i}": value for i, value in enumerate(self.args)}
        kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
        return {_STARS.get(kinds[name], "") + name: v for name, v in bound.arguments.items()}

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among them, in order."""
        return tensors((self.args, dict(self.kwargs)))

    def with_tensors(self, new: list[Tensor]) -> "Call":
        """The same call with other tensors, in the order of `tensors`."""
        queue = iter(new)
        args, kwargs = map_tensors((self.args, dict(self.kwargs)), lambda _: next(queue))
        return Call(args, kwargs)

    def like(self, tensor: Tensor) -> "Call":
        """The same call on the device of a tensor and, where it has floats, with its dtype."""
        return self.with_tensors(
            [x.to(tensor if x.is_floating_point() else tensor.device) for x in self.tensors]
        )


def example(model: nn.Module, shapes: Shapes, batch: int, seed: int = 0) -> Call:
    """Call a network with random numbers from 0 to 1, of its own dtype and device."""
    generator = torch.Generator().manual_seed(seed)
    like = next(model.parameters(), torch.zeros(()))

    def random(shape: tuple[int, ...]) -> Tensor:
        return torch.rand(batch, *shape, generator=generator).to(like)

    if not isinstance(shapes, Mapping):
        _check_required(model, _required(model)[:1])
        return Call((random(shapes),))
    return _by_name(model, {name: random(shape) for name, shape in shapes.items()})


def _by_name(model: nn.Module, named: dict[str, Tensor]) -> Call:
    """Pass named tensors as the arguments of these names, or as one dict or dataclass of them."""
    parameters = inspect.signature(model.forward).parameters
    kinds = {p.kind for p in parameters.values()}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds and set(_required(model)) <= set(named)
    if takes_any or set(named) <= set(parameters):
        _check_required(model, list(named))
        return Call((), named)
    required = [parameters[name] for name in _required(model)]
    if not required and inspect.Parameter.VAR_POSITIONAL in kinds:
        return Call((named,))
    if len(required) != 1:
        raise SettingError(
            f"--input: forward takes {', '.join(parameters)}, not {', '.join(named)}; "
            "name its arguments, or the entries of the one dict or dataclass that it takes"
        )
    kind = required[0].annotation
    if isinstance(kind, str):
        kind = get_type_hints(model.forward).get(required[0].name)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return Call((kind(**named),))
    return Call((named,))


def _required(model: nn.Module) -> list[str]:
    """The arguments of `forward` that have no default."""
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):  # a signature that Python cannot read
        return []
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [n for n, p in parameters.items() if p.default is p.empty and p.kind not in stars]


def _check_required(model: nn.Module, given: list[str]) -> None:
    """Raise if `forward` needs more inputs than are given."""
    missing = [name for name in _required(model) if name not in given]
    if missing:
        raise SettingError(
            f"--input: forward also needs {', '.join(missing)}; name each input, such as "
            + " ".join(f"--input {name}=SIZE" for name in _required(model))
        )


@dataclass(frozen=True)
class Source:
    """A network, what it takes, and the part of it to look at (the network itself if empty)."""

    model: nn.Module
    shapes: Shapes
    module: str = ""
    calls: dict[tuple[int, int], Call] = field(default_factory=dict, compare=False, repr=False)

    @property
    def part(self) -> nn.Module:
        """The part to look at."""
        return submodule(self.model, self.module)

    def larger(self, by: int) -> "Source":
        """The same network on images that are larger by this many pixels on every side."""

        def enlarged(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (*shape[:1], *(side + by for side in shape[1:]))

        if isinstance(self.shapes, Mapping):
            shapes: Shapes = {name: enlarged(shape) for name, shape in self.shapes.items()}
        else:
            shapes = enlarged(self.shapes)
        return Source(self.model, shapes, self.module)

    def call(self, batch: int, seed: int = 0) -> Call:
        """With what the part is called while the network runs on noise."""
        if (batch, seed) not in self.calls:
            call = example(self.model, self.shapes, batch, seed)
            self.calls[batch, seed] = (
                captured(self.model, self.module, call) if self.module else call
            )
        return self.calls[batch, seed]


class _ReachedModule(Exception):  # noqa: N818 (no error)
    """Ends the run of a network at one of its modules."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call


def captured(model: nn.Module, name: str, call: Call) -> Call:
    """With what the module of this name is called while the network runs; its first call counts."""
    part = submodule(model, name)

    def stop(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        raise _ReachedModule(Call(args, kwargs))

    hook = part.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with unchanged(model), evaluating(model), fixed_seed():
            call.run(model)
    except _ReachedModule as reached:
        return reached.call
    except Exception as error:
        raise ModelError(
            f"the network fails before it calls '{name}': {first_line(error)}; is --input right?"
        ) from error
    finally:
        hook.remove()
    raise ModelError(f"--module {name}: the network never calls this module")


def submodule(model: nn.Module, name: str) -> nn.Module:
    """The module of this name; the network itself for an empty name."""
    try:
        return model.get_submodule(name)
    except AttributeError:
        names = [n for n, m in model.named_children() if next(m.parameters(), None) is not None]
        raise SettingError(
            f"--module {name}: there is no such module; this network has {', '.join(names)}"
        ) from None
