"""`legr_cli.load`: a file or a name → a module that carries its card."""

from collections.abc import Callable, Sequence
from os import PathLike

from torch import nn

from legr_cli.arguments import as_path, check_number
from legr_cli.models.network import open_network
from legr_cli.shapes import Shapes, check_shapes


def load(
    path: str | PathLike[str],
    arch: str | Callable[..., nn.Module] | None = None,
    *,
    classes: int | None = None,
    input_shape: Sequence[int] | Shapes | None = None,
    seed: int = 0,
    weights: str | None = None,
) -> nn.Module:
    """Open a network: a legr file, a checkpoint, `torchvision:NAME[@WEIGHTS]` or `random:NAME`.

    Args:
        path: The file, or the name of a network.
        arch: The architecture of a checkpoint: a name such as `"resnet56"`, `"timm:NAME"` or
            `"module:factory"`, or the factory function itself. A legr file knows its own, but one
            that was made from your factory needs the factory again, under whatever name it has now:
            no file makes legr import code.
        classes: Number of outputs, if it differs from the architecture's default.
        input_shape: Shape of one image, such as `(3, 96, 96)`; by default the architecture's own.
        seed: Draws the weights of `random:NAME`.
        weights: Key of the weights in a checkpoint with several state dicts, such as
            `"state_dict_ema"`; dots separate nested keys. By default the first that fits, averages
            (`ema`) last; the card's `notes["weights"]` record which.

    Returns:
        The module in evaluation mode. It carries its card, so `legr_cli.save` can write it back.

    Raises:
        CheckpointError: The file is missing, damaged, unsafe or holds another network.
        ModelError: The architecture is unknown or cannot be built.
        SettingError: An argument has the wrong type.

    Example:
        >>> dense = legr_cli.load("resnet56.th", arch="resnet56")
    """
    shape = None if input_shape is None else check_shapes(input_shape)
    name = path if isinstance(path, str) else str(as_path(path, "path"))
    check_number(seed, "seed", whole=True)
    return open_network(name, arch, classes, shape, seed, weights=weights).carried()
