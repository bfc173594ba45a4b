"""legr: small, fast ConvNets for every FLOP target from one learned ranking.

From Python: `load` a network that legr wrote, `prune` one of your own, catch `LegrError`.
"""

from typing import TYPE_CHECKING

from legr_cli.errors import LegrError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from torch import nn

__version__ = "0.1.0"
__all__ = ["LegrError", "__version__", "load", "prune"]


def load(path: "str | PathLike[str]", arch: str | None = None) -> "nn.Module":
    """The network in a file that legr wrote, or in a checkpoint of `arch`, in evaluation mode.

    A file made from your own `module:factory` needs that name again as `arch`.
    """
    from legr_cli.models.network import open_network

    return open_network(str(path), arch).model


def prune(
    model: "nn.Module",
    input_shape: "Sequence[int]",
    *,
    flops: float | None = None,
    params: float | None = None,
    align: str = "auto",
    min_keep: float = 0.1,
    ranking: "str | PathLike[str] | None" = None,
) -> "nn.Module":
    """A new network with at most this share of `model`'s FLOPs or parameters.

    `model` is left as it was; `input_shape` is that of one image, such as (3, 224, 224).
    """
    from legr_cli import pruning

    return pruning.prune(model, tuple(input_shape), flops, params, align, min_keep, ranking)
