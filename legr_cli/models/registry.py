"""`--arch` → network: our own names, torchvision's, `timm:NAME` and the user's `module:factory`."""

import ast
import contextlib
import functools
import importlib
import operator
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn

from legr_cli.errors import ModelError, first_line
from legr_cli.models import cifar

IMAGENET_STATISTICS = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
TRAINING_ONLY = ("aux1.", "aux2.", "AuxLogits.")  # heads that evaluation does not use
_OURS: dict[str, Callable[..., nn.Module]] = {
    **{
        f"resnet{depth}": functools.partial(cifar.CifarResNet, depth)
        for depth in (20, 32, 44, 56, 110)
    },
    "vgg13_cifar": cifar.vgg13_cifar,
    "small_cifar": cifar.small_cifar,
    "mobilenet_v2_cifar": cifar.mobilenet_v2_cifar,
}
_INPUTS = {"inception_v3": (3, 299, 299), **dict.fromkeys(_OURS, (3, 32, 32))}
_BUILT_WITHOUT_HEADS = {"inception_v3", "googlenet"}
_NEVER = {"weights", "weights_backbone", "pretrained", "pretrained_cfg", "checkpoint_path"}


@dataclass(frozen=True)
class Arch:
    """A network without weights: its name, its options and its number of classes."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    classes: int | None = None
    factory: Callable[..., nn.Module] | None = field(default=None, compare=False, repr=False)

    @property
    def own(self) -> bool:
        """Whether building it runs the user's code: such a name is never taken from a file."""
        return ":" in self.name and not self.name.startswith("timm:")

    def __str__(self) -> str:
        return ",".join([self.name, *(f"{k}={v}" for k, v in self.options.items())])


def as_arch(arch: Any, classes: int | None = None) -> Arch:
    """An architecture from its name or from the function that builds it."""
    if isinstance(arch, str):
        return parse_arch(arch, classes)
    if not callable(arch) or isinstance(arch, nn.Module):
        raise ModelError(
            f"arch must be a name or a function that returns the network, got {type(arch).__name__}"
        )
    module, name = getattr(arch, "__module__", None), getattr(arch, "__qualname__", None)
    if module == "__main__" and (file := getattr(sys.modules["__main__"], "__file__", None)):
        module = Path(file).stem  # the name under which other programs import this script
    return Arch(f"{module}:{name or type(arch).__name__}", {}, classes, arch)


def parse_arch(text: str, classes: int | None = None) -> Arch:
    """`NAME[,KEY=VALUE…]`, as in `resnet56,pad=after` or `mobilenet_v2,width_mult=0.5`."""
    name, *pairs = (part.strip() for part in text.split(","))
    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.isidentifier():
            raise ModelError(f"--arch {text}: expected NAME,KEY=VALUE, got {pair!r}")
        options[key] = _literal(value)
    return Arch(name, options, classes)


def _literal(value: str) -> Any:
    """A number or a truth value if it reads as one, else the text."""
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return found if isinstance(found, int | float | bool) else value


def default_input(arch: Arch, model: nn.Module) -> tuple[int, ...]:
    """The image size that a network is made for."""
    config = getattr(model, "pretrained_cfg", None) or {}
    if arch.name.startswith("timm:") and "input_size" in config:
        return tuple(config["input_size"])
    return _INPUTS.get(arch.name, (3, 224, 224))


def default_statistics(arch: Arch) -> dict[str, list[float]] | None:
    """Mean and deviation of the images a network was trained on, where its name tells."""
    return IMAGENET_STATISTICS if arch.name in torchvision_names() else None


@functools.cache
def torchvision_names() -> frozenset[str]:
    """The classification networks of torchvision."""
    return frozenset(torchvision.models.list_models(module=torchvision.models))


def build(arch: Arch, seed: int = 0) -> nn.Module:
    """The network in evaluation mode, with the random weights its code gives it."""
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
            raise ModelError(f"--arch {arch} cannot be built: {reason}") from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"--arch {arch} gives {type(model).__name__}, not a torch.nn.Module: "
            "name a function that returns the network"
        )
    return model.eval()


def _check_options(arch: Arch) -> None:
    """No option may fetch or read weights; values are plain."""
    for key, value in arch.options.items():
        if key in _NEVER:
            raise ModelError(
                f"--arch {arch}: {key} is not allowed here: weights come from CHECKPOINT"
            )
        if not isinstance(value, int | float | bool | str):
            raise ModelError(f"--arch {arch}: {key} must be a number or a word")
    if arch.classes is not None and not 1 <= arch.classes <= 1_000_000:
        raise ModelError(f"--classes must be from 1 to 1000000, got {arch.classes}")


def _factory(arch: Arch) -> Callable[..., Any]:
    """The function that builds a network of this name."""
    name = arch.name
    if arch.factory is not None:
        return arch.factory
    if name in _OURS:
        return _OURS[name]
    if name in torchvision_names():
        extra = {"aux_logits": False, "init_weights": False} if name in _BUILT_WITHOUT_HEADS else {}
        return functools.partial(torchvision.models.get_model_builder(name), weights=None, **extra)
    if name.startswith("timm:"):
        return _timm_factory(name.removeprefix("timm:"))
    if ":" in name:
        return _own_factory(name)
    raise ModelError(
        f"unknown --arch {name!r}{_nearest(name)}; `legr inspect --archs` lists all, and "
        "a network of your own is module:factory"
    )


def _nearest(name: str) -> str:
    """A hint at the names that look alike."""
    import difflib

    close = difflib.get_close_matches(name, known_names(), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _timm_factory(name: str) -> Callable[..., Any]:
    """`timm.create_model` for a name of timm's own list; nothing is fetched."""
    try:
        timm = importlib.import_module("timm")
    except ImportError:
        raise ModelError(f"--arch timm:{name} needs timm: pip install 'legr-cli[timm]'") from None
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name) or not timm.is_model(name):
        raise ModelError(f"timm has no network {name!r}; timm.list_models() names them")
    return functools.partial(timm.create_model, name, pretrained=False)


def _own_factory(name: str) -> Callable[..., Any]:
    """`package.module:factory`, looked up with the current directory on the path."""
    module_name, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            found = operator.attrgetter(attribute)(importlib.import_module(module_name))
    except (Exception, SystemExit) as error:
        reason = first_line(error)
        raise ModelError(
            f"--arch {name} does not import: {reason}; it is looked for in this folder and on "
            "PYTHONPATH as package.module:factory"
        ) from error
    if not callable(found):
        raise ModelError(f"--arch {name} is no function: name one that returns the network")
    return found  # type: ignore[no-any-return]


def known_names() -> list[str]:
    """All names that need nothing installed beside legr."""
    return [*_OURS, *sorted(torchvision_names())]
