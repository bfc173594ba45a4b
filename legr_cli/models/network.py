"""Anything that names a network → the network: files, torchvision, random weights, modules."""

import contextlib
import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from legr_cli.channels import apply, couple
from legr_cli.channels.inputs import submodule
from legr_cli.errors import CheckpointError, LegrError, ModelError, SettingError
from legr_cli.models.card import (
    KEY,
    Card,
    Channels,
    attach_card,
    card_of,
    check_shapes,
    outputs_of,
    parse_card,
    unwrap,
)
from legr_cli.models.checkpoints import Tensors, read_content, write_weights
from legr_cli.models.kept import kept_units
from legr_cli.models.loading import like_saved, load_into
from legr_cli.models.registry import (
    Arch,
    as_arch,
    build,
    default_input,
    default_statistics,
    with_weights,
)
from legr_cli.models.state_dicts import as_named_in, match
from legr_cli.models.torchvision_models import torchvision_names
from legr_cli.shapes import Shapes, shapes_text
from legr_cli.shapes import check_shapes as check_input

_LARGEST_NETWORK = 10**10  # parameters


@dataclass(frozen=True)
class Network:
    """A module and its card."""

    model: nn.Module
    arch: Arch
    input_shape: Shapes
    kept: Channels | None = None  # None: nothing was removed
    notes: dict[str, Any] = field(default_factory=dict)  # provenance, statistics, class names
    module: str = ""  # the part of the network that may be pruned; "": all of it

    @property
    def outputs(self) -> str | None:
        """What outputs of images × numbers are, `values` or unknown."""
        return outputs_of(self.notes, self.module)

    @property
    def card(self) -> Card:
        """All but the module."""
        return Card(self.arch, self.input_shape, self.kept, self.notes, self.module)

    def carried(self) -> nn.Module:
        """The module, carrying its card."""
        return attach_card(self.model, self.card)

    def copied(self) -> "Network":
        """The same network with its own copy of the module, on the CPU in float32."""
        return replace(self, model=own_copy(self.model))


def open_network(
    spec: str,
    arch: str | Callable[..., nn.Module] | None = None,
    classes: int | None = None,
    input_shape: Shapes | None = None,
    seed: int = 0,
    usual: Arch | None = None,
    weights: str | None = None,
    module: str | None = None,
) -> Network:
    """Open `torchvision:NAME[@WEIGHTS]`, `random:NAME`, a public checkpoint or a legr file.

    `usual` is the architecture to assume where neither `arch` nor the file names one; `seed`
    draws random weights; `weights` says where in a checkpoint the weights are; `module` names the
    part of the network that may be pruned.
    """
    if module == "":
        raise SettingError("--module is empty: name a part of the network, or leave it out")
    network = _opened(spec, arch, classes, input_shape, seed, usual, weights)
    return part_of(network, module or "")


def _opened(
    spec: str,
    arch: str | Callable[..., nn.Module] | None,
    classes: int | None,
    input_shape: Shapes | None,
    seed: int,
    usual: Arch | None,
    weights: str | None,
) -> Network:
    """Open a network as a whole, or the part of it that its file names."""
    given = None if arch is None else as_arch(arch, classes)
    if weights is not None and spec.startswith(("random:", "torchvision:")):
        raise CheckpointError(f"--weights {weights} needs a checkpoint file, and {spec} is not one")
    if spec.startswith("random:"):
        return _fresh(as_arch(spec.removeprefix("random:"), classes), input_shape, seed)
    if spec.startswith("torchvision:"):
        return _torchvision(spec.removeprefix("torchvision:"), input_shape)
    content, header = read_content(Path(spec))
    if KEY in header:
        if weights is not None:
            raise CheckpointError(f"{spec} holds one network: leave --weights out")
        network = _saved(spec, content, header[KEY], given, usual)
        for option, asked, is_so in (
            ("--input", input_shape, network.input_shape),
            ("--classes", classes, network.arch.classes),
        ):
            if asked not in (None, is_so):
                own = is_so if isinstance(is_so, int | None) else shapes_text(is_so)
                raise CheckpointError(f"{spec} has its own {option} ({own}): leave {option} out")
        return network
    given = given or usual
    if given is None:
        raise CheckpointError(f"{spec} does not record its architecture: pass --arch")
    found = match(spec, content, given, build, weights)
    network = _around(found.model, found.arch, input_shape)
    if not found.selected:
        return network
    return replace(network, notes={**network.notes, "weights": found.key})


def as_network(
    model: Any,
    input_shape: Sequence[int] | Shapes | None = None,
    arch: str | Callable[..., nn.Module] | None = None,
) -> Network:
    """The network of a module: what its card says of it, or what the caller does.

    A module without a card needs `input_shape`; `arch` is needed only to write it to a file or to
    send it to other processes.
    """
    model = unwrap(model)
    card = card_of(model)
    shape = None if input_shape is None else check_input(input_shape)
    if card is None:
        if shape is None:
            raise SettingError("pass input_shape, the shape of one image, such as (3, 224, 224)")
        return Network(model, as_arch(arch) if arch else Arch(type(model).__name__), shape)
    if arch is None or card.kept is not None:  # kept channels are those of the card's layers
        check_shapes(model)
    if arch is not None:
        card = replace(card, arch=as_arch(arch, card.arch.classes))
    return Network(model, card.arch, shape or card.input_shape, card.kept, card.notes, card.module)


def part_of(network: Network, module: str) -> Network:
    """The same network, of which only the module of this name may be pruned."""
    if not module or module == network.module:
        return network
    if network.kept is not None:
        raise ModelError(
            f"--module {module}: {f'only {network.module}' if network.module else 'all'} of this "
            "network was pruned before; name the same part"
        )
    submodule(network.model, module)
    return replace(network, module=module)


def own_copy(model: nn.Module) -> nn.Module:
    """A copy on the CPU in float32, which may be changed; it carries the same card."""
    return copy.deepcopy(model).cpu().float()


def on_cpu(model: nn.Module) -> nn.Module:
    """The module itself if it is on the CPU, else a copy there with the same card."""
    tensors = (*model.parameters(), *model.buffers())
    return model if all(t.device.type == "cpu" for t in tensors) else copy.deepcopy(model).cpu()


def in_single_precision(model: nn.Module) -> nn.Module:
    """The module itself if it is float32 on the CPU, else such a copy with the same card."""
    tensors = [*model.parameters(), *model.buffers()]
    single = all(t.dtype == torch.float32 for t in tensors if t.is_floating_point())
    return model if single and all(t.device.type == "cpu" for t in tensors) else own_copy(model)


def _fresh(arch: Arch, input_shape: Shapes | None, seed: int = 0) -> Network:
    """A network with the random weights its code gives it."""
    return _around(build(arch, seed), arch, input_shape)


def _around(model: nn.Module, arch: Arch, input_shape: Shapes | None) -> Network:
    """A network of a dense module, with what its architecture implies."""
    statistics = default_statistics(arch)
    notes = {"statistics": statistics} if statistics else {}
    return Network(model, arch, input_shape or default_input(arch, model), None, notes)


def with_new_head(network: Network, classes: int, seed: int = 0) -> Network:
    """The same network with a randomly initialised last layer for another number of classes."""
    if network.kept is not None:
        raise ModelError("--new-head needs a dense network: replace the head before pruning")
    arch = replace(network.arch, classes=classes)
    model, weights = build(arch, seed).float(), network.model.state_dict()
    own, more = model.state_dict(), build(replace(arch, classes=classes + 1)).state_dict()
    head = {n for n in own if n not in more or own[n].shape != more[n].shape}
    if len({name.rpartition(".")[0] for name in head}) != 1:
        raise ModelError(f"--new-head: {arch} has no last layer that depends on num_classes alone")
    tensors = {n: own[n] if n in head else weights[n] for n in own if n in weights}
    load_into(model, like_saved(tensors, model), arch, "it")
    return replace(network, model=model, arch=arch)


def _torchvision(text: str, input_shape: Shapes | None) -> Network:
    """A network with torchvision's own weights, from its cache or the network."""
    import torchvision

    name, _, weights = text.partition("@")
    if name not in torchvision_names():
        raise ModelError(f"torchvision has no network {name!r}")
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
    network = _fresh(with_weights(Arch(name), chosen.name), input_shape)
    tensors = as_named_in(network.model, found, network.arch)
    load_into(network.model, tensors, network.arch, f"torchvision:{text}")
    names = chosen.meta.get("categories")
    return replace(network, notes={**network.notes, "class_names": names}) if names else network


def _saved(
    spec: str, weights: Tensors, header: str, given: Arch | None, usual: Arch | None
) -> Network:
    """A network that legr wrote: built empty, cut as its card says, then filled."""
    card = parse_card(spec, header)
    arch = card.arch
    if arch.own:
        factory = given if given is not None and given.own else usual
        if factory is None or (factory is not given and factory.name != arch.name):
            raise CheckpointError(
                f"{spec} was made from your own factory: pass it again as --arch {arch.name} "
                "(legr never imports code because a file says so)"
            )
        arch = replace(arch, name=factory.name, factory=factory.factory)  # it may have moved
    elif given is not None and given.name != arch.name:
        raise CheckpointError(f"{spec} holds {arch.name}, not {given.name}: leave --arch out")
    try:
        model = rebuild(replace(card, arch=arch))
        load_into(model, like_saved(weights, model), arch, spec)
    except LegrError as error:
        raise CheckpointError(f"{spec} cannot be opened: {error}") from error
    return Network(model.eval(), arch, card.input_shape, card.kept, card.notes, card.module)


def rebuild(card: Card) -> nn.Module:
    """The module that a card describes, cut as it says; its weights are not set."""
    model = _skeleton(card.arch)
    if card.kept is None:
        return model
    units = couple(model, card.input_shape, card.module)
    return apply(units, kept_units(units, card.kept))


class WithoutMemory(TorchFunctionMode):
    """Tensors that modules allocate for their weights in this block get no memory."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (torch.empty, torch.zeros, torch.ones):
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def _skeleton(arch: Arch) -> nn.Module:
    """The dense network; without memory for weights where its code is known to allow it."""
    if ":" in arch.name:
        return build(arch)
    with WithoutMemory():
        model = build(arch)
    if sum(tensor.numel() for tensor in model.state_dict().values()) > _LARGEST_NETWORK:
        raise ModelError(f"{arch} has more than {_LARGEST_NETWORK:.0e} parameters")
    return model


def write_network(network: Network, temporary: Path) -> None:
    """Write a network to a file that takes its place when complete."""
    write_weights(network.model.state_dict(), {KEY: network.card.header()}, temporary)
