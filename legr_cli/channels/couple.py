"""From a network to its units."""

from torch import nn

from legr_cli.channels.push import push
from legr_cli.channels.rewrite import rehearse
from legr_cli.channels.trace import trace
from legr_cli.channels.units import Units, number
from legr_cli.errors import ModelError


def couple(model: nn.Module, input_shape: tuple[int, ...]) -> Units:
    """Trace `model` and tie its channels into units; `model` is left as it was.

    Cutting is rehearsed on random plans; whatever stands in the way is pinned, and named.
    """
    flow = push(trace(model), input_shape)
    units = number(flow, input_shape)
    while trouble := rehearse(units):
        for value, reason in trouble:
            flow.pin(value, reason)
        units = number(flow, input_shape)
    if units.count == 0:
        reasons = sorted({pin.reason for pin in units.pins})
        raise ModelError(
            "no channel of this network can be removed: all are pinned by " + "; ".join(reasons[:3])
        )
    return units
