"""Latency targets: find the largest plan of a ranking that is fast enough, by measuring.

For a given ranking, plans are ordered by their share of the FLOPs. Latency grows almost linearly
with it, so the search interpolates, and bisects every third step.
"""

from collections.abc import Callable
from dataclasses import dataclass

from legr_cli.channels.units import Kept
from legr_cli.errors import BudgetError
from legr_cli.targets import Target

TOLERANCE = 0.02  # stop when the latency is at most this share below the target
RESOLUTION = 0.004  # stop when the interval of FLOPs shares is smaller than this


@dataclass(frozen=True)
class Timing:
    """Latency of one image, measured in turns with the dense network."""

    ms: float
    ratio: float  # of `ms` to `dense_ms`, as the median over rounds
    dense_ms: float
    device: str

    def value_for(self, target: Target) -> float:
        """Return the quantity that the target limits: milliseconds or the ratio."""
        return self.ms if target.what == "latency_ms" else self.ratio


Clock = Callable[[Kept], Timing]  # measures a plan; cached, so asking again costs nothing


def fast_enough(
    target: Target, plan_at: Callable[[float], Kept], least: float, clock: Clock
) -> Kept:
    """Return the largest plan whose latency meets the target.

    `plan_at` makes the plan for a share of the FLOPs, of which `least` is the lowest possible.
    Raises BudgetError if even that plan is too slow.
    """
    high, best = 1.0, plan_at(1.0)
    slow = clock(best).value_for(target)  # latency at `high`; `fast` is the latency at `low`
    if slow <= target.value:
        return best
    low, fast, found = 0.0, 0.0, False
    for step in range(64):
        if high - max(low, least) <= RESOLUTION or fast >= target.value * (1 - TOLERANCE):
            break
        share = (low + high) / 2
        if step % 3 != 2:  # bisect every third step, in case interpolation never moves one end
            # aim at the middle of the tolerance, on the line through both ends
            aim = target.value * (1 - TOLERANCE / 2)
            share = low + (high - low) * (aim - fast) / (slow - fast)
        share = min(max(share, low + RESOLUTION / 2, least), high - RESOLUTION / 2)
        plan = plan_at(share)
        value = clock(plan).value_for(target)
        if value <= target.value:
            low, fast, best, found = share, value, plan, True
        else:
            high, slow = share, value
    if found:
        return best
    smallest = plan_at(least)
    value = clock(smallest).value_for(target)
    if value > target.value:
        lowest = f"{value:.3g} ms" if target.what == "latency_ms" else f"{value:.3g}"
        raise BudgetError(
            f"{target} cannot be reached: the lowest is {lowest}, at {least:g} of the FLOPs; raise "
            "the target, or lower --min-keep or --align"
        )
    return smallest
