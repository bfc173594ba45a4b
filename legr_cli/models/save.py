"""`legr_cli.save`: a module, trained by whatever loop, → a legr file."""

from collections.abc import Callable, Sequence
from os import PathLike

import torch
from torch import nn

from legr_cli.arguments import as_path
from legr_cli.channels.inputs import example
from legr_cli.channels.structures import tensors
from legr_cli.channels.switches import evaluating
from legr_cli.errors import LegrError, ModelError, OutputError, first_line
from legr_cli.files import require_folder, staged
from legr_cli.models.card import card_of, unwrap
from legr_cli.models.loading import like_saved
from legr_cli.models.network import Network, as_network, rebuild, write_network
from legr_cli.models.registry import Arch, as_arch, default_input
from legr_cli.shapes import Shapes, shapes_text

_TOLERANCE = 1e-4  # relative difference between two runs of the same network


def save(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    arch: str | Callable[..., nn.Module] | None = None,
    input_shape: Sequence[int] | Shapes | None = None,
) -> None:
    """Write a network to a `.safetensors` file that `legr_cli.load` and every command opens.

    The module is rebuilt from its card first and must match: the same tensors, and the same output
    on one image. The file replaces an older one whole, or nothing is written.

    Args:
        model: A module from `load`, `prune` or `finetune`, trained further or not; or a module of
            your own, with `arch`.
        path: The file to write; ends in `.safetensors`.
        arch: For a module of your own: `"module:factory"` or the factory function.
        input_shape: Shape of one image, where the module's card does not say.

    Raises:
        ModelError: The module has no card and no `arch`, or no longer fits them, for instance
            because a layer was replaced.
        OutputError: The file cannot be written.
        SettingError: An argument has the wrong type.

    Example:
        >>> legr_cli.save(tuned, "robot.safetensors")
    """
    target = as_path(path, "path")
    if target.suffix != ".safetensors" or target.is_dir():
        raise OutputError(f"{target}: name a file that ends in .safetensors")
    require_folder(target, "path")
    network = _described(unwrap(model), arch, input_shape)
    check_card(network)
    with staged() as files:
        write_network(network, files.file(target))


def _described(
    model: nn.Module,
    arch: str | Callable[..., nn.Module] | None,
    input_shape: Sequence[int] | Shapes | None,
) -> Network:
    """The module with its card, or with one made from `arch`."""
    card = card_of(model)
    if card is None and arch is None:
        raise ModelError(
            f"this {type(model).__name__} does not come from legr: pass arch='module:factory' or "
            "the function that builds it"
        )
    if card is None and input_shape is None and arch is not None:
        input_shape = default_input(as_arch(arch), model)
    return as_network(model, input_shape, arch)


def check_card(network: Network) -> None:
    """See that the card describes this very module.

    Raises:
        ModelError: Rebuilding it gives other tensors, or another output.
    """
    arch = network.arch
    try:
        rebuilt = rebuild(network.card)
    except LegrError as error:
        raise ModelError(f"{_unknown(arch)}: {error}") from error
    own, wanted = network.model.state_dict(), rebuilt.state_dict()
    for name in sorted(set(own) ^ set(wanted)):
        where = "the module" if name in own else arch
        raise ModelError(f"the module does not match {arch}: only {where} has '{name}'; {_ADVICE}")
    for name, tensor in own.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{tuple(tensor.shape)}, not {tuple(wanted[name].shape)}"
            raise ModelError(
                f"the module does not match {arch}: '{name}' has shape {shapes}; {_ADVICE}"
            )
    tensors = {name: tensor.detach().cpu() for name, tensor in own.items()}
    rebuilt.load_state_dict(like_saved(tensors, rebuilt), assign=True)
    _check_output(network, rebuilt)


_ADVICE = "was a layer replaced? Pass arch=, a factory that builds the module as it is now"


def _unknown(arch: Arch) -> str:
    """How to name an architecture that cannot be built."""
    return f"{arch} cannot be rebuilt; pass arch='module:factory' or the function that builds it"


def _check_output(network: Network, rebuilt: nn.Module) -> None:
    """The module and the one that its card describes must agree on one image."""
    own = network.model
    call = example(own, network.input_shape, batch=2)
    try:
        with evaluating(own), evaluating(rebuilt), torch.no_grad():
            expected = tensors(call.like(next(rebuilt.parameters())).run(rebuilt))
            found = tensors(call.run(own))
    except Exception as error:
        raise ModelError(
            f"the network fails on an input of {shapes_text(network.input_shape)}: "
            f"{first_line(error)}; pass input_shape"
        ) from error
    for a, b in zip(expected, found, strict=True):
        scale = max(float(a.abs().max()), 1e-30)
        if a.shape != b.shape or float((a - b.cpu()).abs().max()) > _TOLERANCE * scale:
            raise ModelError(
                f"the module's output differs from that of {network.arch} with the same weights; "
                f"{_ADVICE}"
            )
