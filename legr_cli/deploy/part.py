"""A part of a network, such as the backbone of a detector, as a network of its own."""

from dataclasses import replace

from legr_cli.channels.inputs import Source
from legr_cli.errors import ModelError
from legr_cli.models.network import Network


def part_of(network: Network, module: str) -> Network:
    """The module of this name; its input is what reaches it when the network runs on one image."""
    source = Source(network.model, network.input_shape, module)
    call = source.call(batch=1)
    if len(call.tensors) != 1 or call.kwargs or len(call.args) != 1:
        raise ModelError(
            f"--module {module}: it takes more than one tensor, so it cannot be exported alone; "
            "name a module inside it"
        )
    shape = tuple(call.tensors[0].shape[1:])
    return replace(network, model=source.part, input_shape=shape, kept=None, module="")
