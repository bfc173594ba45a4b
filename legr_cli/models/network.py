"""CHECKPOINT → network, and pruned networks in and out of .safetensors files."""

import contextlib
import io
import itertools
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from legr_cli.channels import Units, apply, couple
from legr_cli.channels.units import Kept
from legr_cli.errors import CheckpointError, LegrError, ModelError
from legr_cli.models.checkpoints import StateDict, fill, read_header, read_weights, write_weights
from legr_cli.models.registry import (
    Arch,
    build,
    default_input,
    default_statistics,
    parse_arch,
    torchvision_names,
)

FORMAT, VERSION = "legr-model", 1
_KEY = "legr"  # of the header's notes
_LARGEST_SIDE, _LARGEST_NETWORK = 8192, 10**10

Channels = dict[str, list[int]]  # by layer: its output channels, numbered as in the dense network


@dataclass(frozen=True)
class Network:
    """A network and all that is known of it."""

    model: nn.Module
    arch: Arch
    input_shape: tuple[int, ...]
    kept: Channels | None = None  # None: nothing was removed
    notes: dict[str, Any] = field(default_factory=dict)  # provenance, statistics


def open_network(
    spec: str,
    arch: str | None = None,
    classes: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    seed: int = 0,
    usual: Arch | None = None,
) -> Network:
    """Open `torchvision:NAME[@WEIGHTS]`, `random:NAME`, a public checkpoint or a file of legr's.

    `usual` is the architecture where neither `arch` nor the file says, `seed` that of random
    weights.
    """
    given = parse_arch(arch, classes) if arch is not None else None
    if spec.startswith("random:"):
        return _fresh(parse_arch(spec.removeprefix("random:"), classes), input_shape, seed)
    if spec.startswith("torchvision:"):
        return _torchvision(spec.removeprefix("torchvision:"), input_shape)
    weights, header = read_weights(Path(spec))
    if _KEY in header:
        network = _saved(spec, weights, header[_KEY], given, usual)
        for option, asked, is_so in (
            ("--input", input_shape, network.input_shape),
            ("--classes", classes, network.arch.classes),
        ):
            if asked not in (None, is_so):
                own = "x".join(map(str, is_so)) if isinstance(is_so, tuple) else is_so
                raise CheckpointError(f"{spec} has its own {option} ({own}): leave {option} out")
        return network
    given = given or usual
    if given is None:
        raise CheckpointError(f"{spec} does not say which network it is of: pass --arch")
    network = _fresh(given, input_shape)
    fill(network.model, weights, given, spec)
    return network


def _fresh(arch: Arch, input_shape: tuple[int, ...] | None, seed: int = 0) -> Network:
    """A network with its random weights."""
    model = build(arch, seed)
    statistics = default_statistics(arch)
    notes = {"statistics": statistics} if statistics else {}
    return Network(model, arch, input_shape or default_input(arch, model), None, notes)


def with_new_head(network: Network, classes: int, seed: int = 0) -> Network:
    """The same network with a last layer for other classes, which has random weights."""
    if network.kept is not None:
        raise ModelError("--new-head is for dense networks: give it one before it is pruned")
    arch = replace(network.arch, classes=classes)
    model, weights = build(arch, seed).float(), network.model.state_dict()
    own, more = model.state_dict(), build(replace(arch, classes=classes + 1)).state_dict()
    head = {n for n in own if n not in more or own[n].shape != more[n].shape}
    if len({name.rpartition(".")[0] for name in head}) != 1:
        raise ModelError(f"--new-head: {arch} has no last layer that depends on num_classes alone")
    fill(model, {n: own[n] if n in head else weights[n] for n in own if n in weights}, arch, "it")
    return replace(network, model=model, arch=arch)


def _torchvision(text: str, input_shape: tuple[int, ...] | None) -> Network:
    """A network with torchvision's own weights, from its cache or the network."""
    import torchvision

    name, _, weights = text.partition("@")
    if name not in torchvision_names():
        raise ModelError(f"torchvision has no classification network {name!r}")
    network = _fresh(Arch(name), input_shape)
    try:
        known = torchvision.models.get_model_weights(name)
        chosen = known[weights] if weights else known.DEFAULT  # type: ignore[misc,attr-defined]
    except KeyError:
        names = ", ".join(w.name for w in known)
        raise CheckpointError(f"{name} has no weights {weights!r}; it has {names}") from None
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = chosen.get_state_dict(progress=False, check_hash=True)
    except Exception as error:
        raise CheckpointError(
            f"the weights of torchvision:{name} cannot be fetched ({error}); download "
            f"{chosen.url} elsewhere and pass the file with --arch {name}"
        ) from error
    fill(network.model, found, network.arch, f"torchvision:{text}")
    return network


def _saved(
    spec: str, weights: StateDict, header: str, given: Arch | None, usual: Arch | None
) -> Network:
    """A network that legr wrote: built empty, cut as the header says, then filled."""
    card = _card(spec, header)
    arch = card.arch
    if arch.own:
        if arch.name not in (known.name for known in (given, usual) if known is not None):
            raise CheckpointError(
                f"{spec} was made from your own factory: pass it again as --arch {arch.name} "
                "(legr never imports code because a file says so)"
            )
    elif given is not None and given.name != arch.name:
        raise CheckpointError(f"{spec} holds {arch.name}, not {given.name}: leave --arch out")
    try:
        model = _skeleton(arch)
        if card.kept is not None:
            units = couple(model, card.input_shape)
            model = apply(units, kept_units(units, card.kept))
        fill(model, weights, arch, spec)
    except LegrError as error:
        raise CheckpointError(f"{spec} cannot be opened: {error}") from error
    return Network(model.eval(), arch, card.input_shape, card.kept, card.notes)


class WithoutMemory(TorchFunctionMode):
    """Weights made in this block have shapes and no memory; other numbers are as ever."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.empty, torch.zeros, torch.ones):
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _skeleton(arch: Arch) -> nn.Module:
    """The dense network; where its code is known to allow it, without memory for weights."""
    if ":" in arch.name:
        return build(arch)
    with WithoutMemory():
        model = build(arch)
    if sum(tensor.numel() for tensor in model.state_dict().values()) > _LARGEST_NETWORK:
        raise ModelError(f"{arch} is larger than any network legr is made for")
    return model


@dataclass(frozen=True)
class Card:
    """What the header of a file says of its network."""

    arch: Arch
    input_shape: tuple[int, ...]
    kept: Channels | None
    notes: dict[str, Any]


def _card(spec: str, header: str) -> Card:
    """The header's notes, every value checked before it is used."""
    try:
        data = json.loads(header)
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise CheckpointError(
                f"{spec} is of format {data['format']} {data['version']}; this legr reads "
                f"{FORMAT} {VERSION}"
            )
        arch = Arch(data["arch"], dict(data["options"]), data["classes"])
        shape = tuple(data["input"])
        kept, notes = data["kept"], data.get("notes") or {}
        sound = (
            isinstance(notes, dict)
            and isinstance(arch.name, str)
            and isinstance(arch.classes, int | None)
            and 2 <= len(shape) <= 4
            and all(type(side) is int and 1 <= side <= _LARGEST_SIDE for side in shape)
            and (kept is None or all(_is_list_of_channels(line) for line in kept.values()))
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{spec} has a damaged header: {error!r}") from error
    if not sound:
        raise CheckpointError(f"{spec} has a damaged header: a value of the wrong kind")
    return Card(arch, shape, kept, notes)


def with_command(notes: dict[str, Any], command: str) -> dict[str, Any]:
    """Notes to which a command has been added: all that led to a network, in order."""
    before = notes.get("commands")
    return {**notes, "commands": [*(before if isinstance(before, list) else []), command]}


def read_card(path: Path) -> Card:
    """What a file of legr's says of its network; its weights are not read."""
    header = read_header(path)
    if _KEY not in header:
        raise CheckpointError(f"{path} is no network that legr wrote")
    return _card(str(path), header[_KEY])


def read_notes(path: Path) -> dict[str, Any]:
    """What the header of a file of legr's notes; nothing for others."""
    header = read_header(path)
    return dict(_card(str(path), header[_KEY]).notes) if _KEY in header else {}


def _is_list_of_channels(line: Any) -> bool:
    """Whether these are whole numbers, each once and in order."""
    return (
        isinstance(line, list)
        and all(type(channel) is int for channel in line)
        and all(a < b for a, b in itertools.pairwise(line))
    )


def kept_channels(units: Units, kept: Kept, before: Channels | None = None) -> Channels:
    """By layer the output channels that stay, numbered as in the network that was never cut."""
    found = {}
    for name, layer in units.flow.layers.items():
        own = np.flatnonzero(units.keeps(kept, layer.out))
        if before is not None and name in before:
            own = np.asarray(before[name])[own]
        found[name] = [int(channel) for channel in own]
    return found


def kept_units(units: Units, channels: Channels) -> Kept:
    """The plan that leaves exactly these output channels; an error if none does."""
    layers = units.flow.layers
    strange = sorted(set(channels) ^ set(layers))
    if strange:
        raise CheckpointError(f"kept channels and layers do not match at '{strange[0]}'")
    kept = np.ones(units.count, bool)
    for name, layer in layers.items():
        stays = np.zeros(len(layer.out), bool)
        if not channels[name] or channels[name][0] < 0 or channels[name][-1] >= len(stays):
            raise CheckpointError(f"kept channels of layer '{name}' are not in 0…{len(stays) - 1}")
        stays[channels[name]] = True
        of = units.of(layer.out)
        kept[of[~stays & (of >= 0)]] = False
    for name, layer in layers.items():
        if np.flatnonzero(units.keeps(kept, layer.out)).tolist() != channels[name]:
            raise CheckpointError(f"kept channels of layer '{name}' contradict those of its peers")
    return kept


def write_network(network: Network, temporary: Path) -> None:
    """Write a network to a file that takes its place when complete."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "arch": network.arch.name,
        "options": network.arch.options,
        "classes": network.arch.classes,
        "input": list(network.input_shape),
        "kept": network.kept,
        "notes": network.notes,
    }
    write_weights(network.model.state_dict(), {_KEY: json.dumps(header)}, temporary)
