"""Plans as files hold them: the output channels that each layer keeps."""

import numpy as np

from legr_cli.channels import Units
from legr_cli.channels.units import Kept
from legr_cli.errors import CheckpointError
from legr_cli.models.card import Channels


def kept_channels(units: Units, kept: Kept, before: Channels | None = None) -> Channels:
    """The output channels that each layer keeps, numbered as in the network that was never cut."""
    found = {}
    for name, layer in units.flow.layers.items():
        own = np.flatnonzero(units.keeps(kept, layer.out))
        if before is not None and name in before:
            own = np.asarray(before[name])[own]  # numbers of this network → of the dense one
        found[name] = [int(channel) for channel in own]
    return found


def kept_units(units: Units, channels: Channels) -> Kept:
    """The plan that keeps exactly these output channels.

    Layers that are not in it are kept whole: earlier versions had no rule for them.

    Raises:
        CheckpointError: no plan does: the channels belong to another network, or contradict
            each other.
    """
    layers = units.flow.layers
    unmatched = sorted(set(channels) - set(layers))
    if unmatched or not channels:
        raise CheckpointError(f"kept channels and layers do not match at '{[*unmatched, ''][0]}'")
    whole = {name: list(range(len(layer.out))) for name, layer in layers.items()}
    channels = {**whole, **channels}
    kept = np.ones(units.count, bool)
    for name, layer in layers.items():
        stays = np.zeros(len(layer.out), bool)
        if not channels[name] or channels[name][0] < 0 or channels[name][-1] >= len(stays):
            raise CheckpointError(f"kept channels of layer '{name}' are not in 0…{len(stays) - 1}")
        stays[channels[name]] = True
        unit = units.unit_of(layer.out)
        kept[unit[~stays & (unit >= 0)]] = False  # -1: pinned, belongs to no unit
    for name, layer in layers.items():
        if np.flatnonzero(units.keeps(kept, layer.out)).tolist() != channels[name]:
            raise CheckpointError(
                f"kept channels of layer '{name}' contradict those of layers tied to it"
            )
    return kept
