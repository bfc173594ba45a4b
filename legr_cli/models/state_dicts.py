"""Checkpoints as training scripts leave them → the network with the weights in them.

Every dictionary of tensors in the file is looked at, under its own names and without wrappers such
as `module.`; whether it fits is decided by loading it.
"""

import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from legr_cli.errors import CheckpointError
from legr_cli.models.loading import StateDict, load_into, shown, state_dict
from legr_cli.models.registry import Arch, readings

_log = logging.getLogger(__name__)

_WRAPPERS = ("module", "_orig_mod", "model", "net")  # attributes that hold the network
_INNER_WRAPPERS = ("module", "_orig_mod")  # of DataParallel and torch.compile: around any layer
# By pattern of an architecture's name: how its public files name what the network names otherwise.
_ALIASES = {
    r"resnet(20|32|44|56|110)": (r"^fc\.", "linear."),
    r"densenet\d+": (r"(denselayer\d+\.[a-z]+)\.([12])\.", r"\1\2."),
}
_EXTRA_STATE = "_extra_state"  # torch's name for what a module stores besides tensors
_MOST_ATTEMPTS = 8

Rename = Callable[[str], str | None]  # None: not part of the network


@dataclass(frozen=True)
class Match:
    """A network with the weights of a file."""

    arch: Arch
    model: nn.Module
    key: str  # of the state dict in the file; empty: the file is the state dict
    ignored: tuple[str, ...]  # tensors that the network does not use
    selected: bool  # whether other state dicts fit as well, or the user named this one


@dataclass(frozen=True)
class _Attempt:
    """A state dict of a file, under the names that the network uses."""

    key: str
    weights: StateDict
    outside: tuple[str, ...] = ()  # tensors beside the wrapper that holds the network
    score: int = 0


@dataclass(frozen=True)
class _Names:
    """The names in a network's state dict, and the layers that they belong to."""

    tensors: frozenset[str]
    layers: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module) -> "_Names":
        """The names of a module."""
        parts = [name.split(".") for name in model.state_dict()]
        layers = {".".join(path[:depth]) for path in parts for depth in range(1, len(path))}
        return cls(frozenset(map(".".join, parts)), frozenset(layers))

    def score(self, names: Iterable[str]) -> int:
        """How alike names are; an unknown name in a known layer counts: hooks may rename it."""
        return sum(
            2 * (name in self.tensors) + (name.rpartition(".")[0] in self.layers) for name in names
        )


def match(
    path: str, content: Any, arch: Arch, build: Callable[[Arch], nn.Module], key: str | None = None
) -> Match:
    """Build the network of a checkpoint and load its weights, wherever in the file they are.

    Args:
        path: The file, for messages.
        content: What the file holds.
        arch: The network, as the user names it.
        build: Builds it, with any weights.
        key: Where the weights are in the file; by default the first that fit, averages last.

    Raises:
        CheckpointError: Nothing in the file fits.
    """
    found = _find(content)
    if not found:
        keys = f" (it has {_listed(content)})" if isinstance(content, Mapping) and content else ""
        raise CheckpointError(f"{path} contains no state dict{keys}: save model.state_dict()")
    if key is not None:
        found = _under(found, key, path)
    ready = [build(arch)]
    fits: list[Match] = []
    problems: list[tuple[int, bool, CheckpointError]] = []
    for attempt in _attempts(found, _Names.of(ready[0]), arch):
        for reading in readings(arch, attempt.weights):
            model = ready.pop() if ready and reading == arch else build(reading)
            apart = len(set(model.state_dict()) ^ set(attempt.weights))
            try:
                ignored = load_into(model, attempt.weights, reading, path)
            except CheckpointError as error:
                problems.append((apart, reading != arch, error))
            else:
                more = (*attempt.outside, *ignored)
                fits.append(Match(reading, model, attempt.key, more, key is not None))
    if not fits and key is None and (parts := _parts_that_fit(found, build(arch))):
        if len(parts) > 1:
            raise CheckpointError(f"{path}: {_listed(parts)} fit {arch}: name one with --weights")
        _log.info(f"{path}: took what is at {_place(parts[0])}")
        return match(path, content, arch, build, parts[0])
    if not fits:
        closest = min(problems, key=lambda problem: problem[:2])[-1]
        others = f"; it has tensors at {_listed(found)}" if len(found) > 1 else ""
        raise CheckpointError(f"{closest}{others}") from closest
    return _chosen(path, fits)


def as_named_in(model: nn.Module, weights: Mapping[str, Any], arch: Arch) -> StateDict:
    """A state dict, such as torchvision publishes it, under the names that its network uses now."""
    found = state_dict(weights, getattr(weights, "_metadata", None))
    return _unwrapped("", found, _Names.of(model), arch).weights


def _chosen(path: str, fits: list[Match]) -> Match:
    """The first that fits, and notes on what else could have been meant."""
    first = fits[0]
    keys = list(dict.fromkeys(fit.key for fit in fits))
    archs = [fit.arch for fit in fits if fit.key == first.key]
    if len(keys) > 1:
        _log.info(
            f"{path}: {_listed(keys)} fit {first.arch}; using {_place(first.key)}, "
            "--weights KEY selects another"
        )
    if len(archs) > 1:
        others = " or ".join(f"--arch {_without(arch, first.arch)}" for arch in archs[1:])
        _log.info(
            f"{path}: opened as {first.arch}, as is most likely; if that is wrong, pass {others}"
        )
    if first.ignored:
        _log.info(
            f"{path}: ignored {len(first.ignored)} tensors that {first.arch} does not use, such "
            f"as {shown(first.ignored[0])}"
        )
    selected = first.selected or len(keys) > 1
    return Match(first.arch, first.model, first.key, first.ignored, selected)


def _without(arch: Arch, other: Arch) -> str:
    """An architecture, with the options that only `other` has spelled out as off."""
    return str(arch) + "".join(f",{key}=False" for key in other.options if key not in arch.options)


def _find(content: Any) -> dict[str, StateDict]:
    """Every dictionary with tensors in a checkpoint, by dotted path; the outermost first."""
    found: dict[str, StateDict] = {}
    queue, seen = deque([("", content)]), {id(content)}
    while queue:
        path, value = queue.popleft()
        if not isinstance(value, Mapping):
            continue
        entries = {k: v for k, v in value.items() if isinstance(k, str) and _is_state(k, v)}
        if any(isinstance(entry, torch.Tensor) for entry in entries.values()):
            found.setdefault(path, state_dict(entries, getattr(value, "_metadata", None)))
        for key, inner in value.items():
            if isinstance(inner, Mapping) and id(inner) not in seen:
                seen.add(id(inner))
                queue.append((f"{path}.{key}" if path else str(key), inner))
    return found


def _is_state(name: str, value: Any) -> bool:
    """Whether an entry of a dictionary is part of a network rather than about its training."""
    return isinstance(value, torch.Tensor) or name.endswith(_EXTRA_STATE)


def _under(found: dict[str, StateDict], key: str, path: str) -> dict[str, StateDict]:
    """The state dicts that the user's KEY leads to, or the part of one that it is a prefix of."""
    within = {k: v for k, v in found.items() if k == key or k.startswith(f"{key}.")}
    if within:
        return within
    for outer, weights in found.items():
        prefix = key.removeprefix(f"{outer}.") + "."
        if any(name.startswith(prefix) for name in weights):
            return {key: _renamed(weights, _below(prefix))}
    raise CheckpointError(f"{path} has no state dict at --weights {key}; it has {_listed(found)}")


def _parts_that_fit(found: dict[str, StateDict], model: nn.Module) -> list[str]:
    """Where in the state dicts a module of another name, as in Lightning's, has all the tensors."""
    wanted, fits = set(model.state_dict()), list[str]()
    for key, weights in found.items():
        below: dict[str, set[str]] = {}
        for name in weights:
            parts = name.split(".")
            for depth in range(1, len(parts)):
                below.setdefault(".".join(parts[:depth]), set()).add(".".join(parts[depth:]))
        parts_found = [prefix for prefix, names in below.items() if wanted <= names]
        fits += [f"{key}.{prefix}" if key else prefix for prefix in parts_found]
    return fits


def _attempts(found: dict[str, StateDict], names: _Names, arch: Arch) -> list[_Attempt]:
    """The state dicts whose names come close enough to be tried; averages last."""
    attempts = [_unwrapped(key, weights, names, arch) for key, weights in found.items()]
    best = max(attempt.score for attempt in attempts)
    likely = [attempt for attempt in attempts if 2 * attempt.score >= best]
    likely.sort(key=lambda attempt: "ema" in attempt.key.lower())
    return likely[:_MOST_ATTEMPTS]


def _unwrapped(key: str, weights: StateDict, names: _Names, arch: Arch) -> _Attempt:
    """The weights under the network's names: out of their wrappers, and without aliases."""
    # Of equals max takes the first, which changes the fewest names.
    unwrap = max(_unwrappings(weights), key=lambda way: names.score(_renamed(weights, way)))
    named = _renamed(weights, unwrap)
    for pattern, (old, new) in _ALIASES.items():
        if re.fullmatch(pattern, arch.name):
            named = _renamed(named, _known_as(old, new, names.tensors, frozenset(named)))
    outside = tuple(name for name in weights if unwrap(name) is None)
    return _Attempt(key, named, outside, names.score(named))


def _unwrappings(names: Iterable[str]) -> list[Rename]:
    """The ways to take a network out of its wrappers, from none to all."""
    prefixes = {""}
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            if parts[depth - 1] not in _WRAPPERS:
                break
            prefixes.add(".".join(parts[:depth]) + ".")
    return [*map(_below, sorted(prefixes, key=len)), _without_inner_wrappers]


def _below(prefix: str) -> Rename:
    """What names are called below a prefix; others are left out."""
    return lambda name: name[len(prefix) :] if name.startswith(prefix) else None


def _without_inner_wrappers(name: str) -> str:
    """A name without the wrappers of single layers, as in `features.module.0.weight`."""
    return ".".join(part for part in name.split(".") if part not in _INNER_WRAPPERS)


def _known_as(old: str, new: str, known: frozenset[str], given: frozenset[str]) -> Rename:
    """Other names for what a network does not know, where it knows them and nothing else has them.

    Modules have names as well, which end in a dot.
    """
    layers = {f"{name.rpartition('.')[0]}." for name in known}

    def rename(name: str) -> str:
        other = re.sub(old, new, name)
        fits = name not in known and other in (known | layers) and other not in given
        return other if fits else name

    return rename


def _renamed(weights: StateDict, rename: Rename) -> StateDict:
    """The same tensors and versions under other names, without those that get none."""
    tensors = {new: t for name, t in weights.items() if (new := rename(name)) is not None}
    if weights._metadata is None:
        return state_dict(tensors)
    # A version belongs to a module, and a module's name is how those of its parameters begin.
    versions = {}
    for name, version in weights._metadata.items():
        new = rename(f"{name}.") if name else rename("")
        if new is not None:
            versions[new.removesuffix(".")] = version
    return state_dict(tensors, versions)


def _place(key: str) -> str:
    """How to speak of a state dict in a file."""
    return shown(key) or "the outermost dictionary"


def _listed(keys: Iterable[Any], most: int = 8) -> str:
    """Keys of a file in a message, the first few of many."""
    names = [_place(str(key)) for key in keys]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
