"""A part of a network that is run on what reaches it, such as the backbone of a detector."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from legr_cli.channels.inputs import Call, captured, submodule


class NetworkPart(nn.Module):
    """From images to the outputs of a part; only the part is trained.

    What comes after the part need not run, so networks come in whose final outputs change from
    image to image.
    """

    whole: nn.Module  # not registered: its other parameters belong to nobody here

    def __init__(self, whole: nn.Module, name: str) -> None:
        super().__init__()
        self.name, self.__dict__["whole"] = name, whole
        self.part = submodule(whole, name)

    def forward(self, images: Tensor) -> Any:
        """The part's outputs for these images."""
        return captured(self.whole, self.name, Call((images,))).run(self.part)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "NetworkPart":
        """Move or convert the whole network, which holds the part."""
        del recurse  # networks of one's own may define `_apply` without it, as YOLO does
        self.whole._apply(fn)
        return self


def part_or_whole(model: nn.Module, name: str) -> nn.Module:
    """A network, or the part of this name run on what reaches it."""
    return NetworkPart(model, name) if name else model


def whole_of(model: nn.Module) -> nn.Module:
    """The network that a part belongs to; any other network itself."""
    return model.whole if isinstance(model, NetworkPart) else model
