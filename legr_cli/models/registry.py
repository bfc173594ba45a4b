"""`--arch` → network: built-in and torchvision names, `timm:NAME`, the user's `module:factory`."""

import ast
import contextlib
import functools
import importlib
import operator
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from legr_cli.arguments import check_number
from legr_cli.errors import ModelError, first_line
from legr_cli.models import cifar
from legr_cli.models.torchvision_models import (
    options_with_weights,
    torchvision_builder,
    torchvision_input,
    torchvision_names,
)

IMAGENET_STATISTICS = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_BUILTIN: dict[str, Callable[..., nn.Module]] = {
    **{
        f"resnet{depth}": functools.partial(cifar.CifarResNet, depth)
        for depth in (20, 32, 44, 56, 110)
    },
    "vgg13_cifar": cifar.vgg13_cifar,
    "small_cifar": cifar.small_cifar,
    "mobilenet_v2_cifar": cifar.mobilenet_v2_cifar,
}
_FORBIDDEN_OPTIONS = {
    "weights",
    "weights_backbone",
    "pretrained",
    "pretrained_cfg",
    "checkpoint_path",
}


@dataclass(frozen=True)
class Arch:
    """A network without weights: its name, its options and its number of classes."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    classes: int | None = None
    factory: Callable[..., nn.Module] | None = field(default=None, compare=False, repr=False)

    @property
    def own(self) -> bool:
        """Whether building it imports the user's code; such names are never read from a file."""
        return ":" in self.name and not self.name.startswith("timm:")

    def __str__(self) -> str:
        return ",".join([self.name, *(f"{k}={v}" for k, v in self.options.items())])


def as_arch(arch: Any, classes: int | None = None) -> Arch:
    """Make an `Arch` from a name or from a function that builds the network."""
    if isinstance(arch, str):
        return parse_arch(arch, classes)
    if not callable(arch) or isinstance(arch, nn.Module):
        raise ModelError(
            f"arch must be a name or a function that returns the network, got {type(arch).__name__}"
        )
    module, name = getattr(arch, "__module__", None), getattr(arch, "__qualname__", None)
    if module == "__main__" and (file := getattr(sys.modules["__main__"], "__file__", None)):
        module = Path(file).stem  # the name under which this script can be imported
    return Arch(f"{module}:{name or type(arch).__name__}", {}, classes, arch)


def parse_arch(text: str, classes: int | None = None) -> Arch:
    """Parse `NAME[,KEY=VALUE…]`, such as `resnet56,pad=after` or `mobilenet_v2,width_mult=0.5`."""
    name, *pairs = (part.strip() for part in text.split(","))
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ModelError(f"--arch {text}: expected NAME,KEY=VALUE, got {pair!r}")
        options[key] = _literal(value)
    return Arch(name, options, classes)


def _literal(value: str) -> Any:
    """Parse a number or a boolean; anything else stays a string."""
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return literal if isinstance(literal, int | float | bool) else value


def default_input(arch: Arch, model: nn.Module) -> tuple[int, ...]:
    """The input shape that a network was designed for."""
    config = getattr(model, "pretrained_cfg", None) or {}
    if arch.name.startswith("timm:") and "input_size" in config:
        return tuple(config["input_size"])
    if arch.name in _BUILTIN:
        return (3, 32, 32)
    side = arch.options.get("image_size")
    if arch.name in torchvision_names() and type(side) is int:  # vision transformers
        return (3, side, side)
    return torchvision_input(arch.name) or (3, 224, 224)


def default_statistics(arch: Arch) -> dict[str, list[float]] | None:
    """Mean and standard deviation of the training images, where the name implies them."""
    task = torchvision_names().get(arch.name)  # detectors normalize their images themselves
    return IMAGENET_STATISTICS if task in ("classification", "segmentation") else None


def with_weights(arch: Arch, weights: str) -> Arch:
    """The network as torchvision builds it for these weights of its own."""
    return replace(arch, options={**options_with_weights(arch.name, weights), **arch.options})


def readings(arch: Arch, tensors: Iterable[str]) -> list[Arch]:
    """What the network in a weights file may be, the likeliest first.

    Most names mean one network. Some of torchvision's builders make another one with `weights=`
    than without, and both have tensors of the same names.
    """
    options = options_with_weights(arch.name)
    published = replace(arch, options={**options, **arch.options})
    if published == arch:
        return [arch]
    if "frozen_eps" in options:
        # Only norms that train count their batches, so the file itself tells.
        trains = any(name.endswith("num_batches_tracked") for name in tensors)
        return [arch] if trains else [published, arch]
    # torchvision's own weights have the default number of classes.
    return [published, arch] if arch.classes is None else [arch, published]


def build(arch: Arch, seed: int = 0) -> nn.Module:
    """Build the network in evaluation mode, with randomly initialized weights."""
    _check_options(arch)
    factory = _factory(arch)
    options = dict(arch.options)
    if arch.classes is not None:
        options["num_classes"] = arch.classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
                model = factory(**options)
        except ModelError:
            raise
        except (Exception, SystemExit) as error:
            reason = first_line(error)
            raise ModelError(f"cannot build --arch {arch}: {reason}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"--arch {arch} returns {type(model).__name__}, not a torch.nn.Module: "
            "name a function that returns the network"
        )
    return model.eval()


def _check_options(arch: Arch) -> None:
    """Raise if an option would load or download weights, or is not a plain value."""
    for key, value in arch.options.items():
        if key in _FORBIDDEN_OPTIONS:
            raise ModelError(
                f"--arch {arch}: {key} is not allowed, because the weights come from CHECKPOINT"
            )
        if not isinstance(value, int | float | bool | str):
            raise ModelError(f"--arch {arch}: {key} must be a number, a boolean or a string")
    if arch.classes is None:
        return
    check_number(arch.classes, "--classes", whole=True)
    if not 1 <= arch.classes <= 1_000_000:
        raise ModelError(f"--classes must be from 1 to 1000000, got {arch.classes}")


def _factory(arch: Arch) -> Callable[..., Any]:
    """Look up the function that builds the network."""
    name = arch.name
    if arch.factory is not None:
        return arch.factory
    if name in _BUILTIN:
        return _BUILTIN[name]
    if name in torchvision_names():
        return torchvision_builder(name)
    if name.startswith("timm:"):
        return _timm_factory(name.removeprefix("timm:"))
    if ":" in name:
        return _user_factory(name)
    raise ModelError(
        f"unknown --arch {name!r}{_suggestion(name)}; `legr inspect --archs` lists all names; "
        "for your own network pass module:factory"
    )


def _suggestion(name: str) -> str:
    """A hint with similar names, or an empty string."""
    import difflib

    close = difflib.get_close_matches(name, known_names(), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _timm_factory(name: str) -> Callable[..., Any]:
    """`timm.create_model` for a name that timm knows; downloads nothing."""
    try:
        timm = importlib.import_module("timm")
    except ImportError:
        raise ModelError(f"--arch timm:{name} needs timm: pip install 'legr-cli[timm]'") from None
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or not timm.is_model(name):
        raise ModelError(f"timm has no network {name!r}; timm.list_models() lists them")
    return functools.partial(timm.create_model, name, pretrained=False)


def _user_factory(name: str) -> Callable[..., Any]:
    """The factory that `--arch package.module:factory` names."""
    return imported("--arch", name, "factory", "a function that returns the network")


def imported(option: str, name: str, attribute: str, what: str) -> Callable[..., Any]:
    """Import the function that an option names, with the current directory on the path."""
    example = f"package.module:{attribute}"
    module_name, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            factory = operator.attrgetter(attribute)(importlib.import_module(module_name))
    except (Exception, SystemExit) as error:
        reason = first_line(error)
        raise ModelError(
            f"cannot import {option} {name}: {reason}; expected {example}, importable from the "
            "current directory or PYTHONPATH"
        ) from error
    if not callable(factory):
        raise ModelError(f"{option} {name} is not callable: name {what}")
    return factory  # type: ignore[no-any-return]


def known_names() -> list[str]:
    """All names that need no optional dependency."""
    return [*_BUILTIN, *sorted(torchvision_names())]
