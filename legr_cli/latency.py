"""Latency targets: the largest plan of a ranking that is fast enough, found by measuring.

With the ranking fixed, plans form a line from the smallest to the dense network, by their share of
the FLOPs. Latency rises along it, nearly evenly, so the line is searched by interpolation, and by
halves where that does not help.
"""

from collections.abc import Callable
from dataclasses import dataclass

from legr_cli.channels.units import Kept
from legr_cli.errors import BudgetError
from legr_cli.targets import Target

CLOSE = 0.02  # so far under a target is near enough to stop
FINE = 0.004  # shares of FLOPs that differ by less are not told apart


@dataclass(frozen=True)
class Timing:
    """How long one image takes, measured in turns with the dense network."""

    ms: float
    ratio: float  # to the dense network
    dense_ms: float
    device: str

    def of(self, target: Target) -> float:
        """What the target limits."""
        return self.ms if target.what == "latency_ms" else self.ratio


Clock = Callable[[Kept], Timing]  # measures a plan once, and knows it from then on


def fast_enough(
    target: Target, plan_at: Callable[[float], Kept], least: float, clock: Clock
) -> Kept:
    """The largest plan whose latency meets the target; `least` is the lowest share of FLOPs."""
    high, best = 1.0, plan_at(1.0)
    slow = clock(best).of(target)  # of the dense network itself
    if slow <= target.value:
        return best
    low, fast, found = 0.0, 0.0, False
    for step in range(64):
        if high - max(low, least) <= FINE or fast >= target.value * (1 - CLOSE):
            break
        share = (low + high) / 2
        if step % 3 != 2:  # every third step halves, lest one end never moves
            share = low + (high - low) * (target.value * (1 - CLOSE / 2) - fast) / (slow - fast)
        share = min(max(share, low + FINE / 2, least), high - FINE / 2)
        plan = plan_at(share)
        value = clock(plan).of(target)
        if value <= target.value:
            low, fast, best, found = share, value, plan, True
        else:
            high, slow = share, value
    if found:
        return best
    smallest = plan_at(least)
    value = clock(smallest).of(target)
    if value > target.value:
        unit = f"{value:.3g} ms" if target.what == "latency_ms" else f"{value:.3g}"
        raise BudgetError(
            f"{target} cannot be reached: the least is {unit}, at {least:g} of the FLOPs; ask for "
            "that or more, or lower --min-keep or --align"
        )
    return smallest
