"""The channel engine: trace a network, group its channels into units, remove units."""

from legr_cli.channels.couple import couple
from legr_cli.channels.surgery import apply
from legr_cli.channels.units import Units

__all__ = ["Units", "apply", "couple"]
