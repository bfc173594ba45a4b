"""Pruning targets: a share of the dense network's cost, or a latency in milliseconds."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from legr_cli.errors import SettingError


@dataclass(frozen=True)
class TargetKind:
    """What a kind of target limits; a cost is named like the field of `Cost` that computes it."""

    noun: str
    timed: bool = False  # reached by measuring plans, not by computing their cost
    is_share: bool = True  # of the dense network; else an absolute number
    in_ms: str | None = None  # the kind that limits the same in milliseconds


TARGETS = {
    "flops": TargetKind("FLOPs"),
    "params": TargetKind("parameters"),
    "latency": TargetKind("latency", timed=True, in_ms="latency_ms"),
    "latency_ms": TargetKind("latency", timed=True, is_share=False),
}


@dataclass(frozen=True)
class Target:
    """A share of the dense network's FLOPs, parameters or latency, or a latency in milliseconds."""

    what: str  # a key of TARGETS
    value: float

    def __post_init__(self) -> None:
        if self.what not in TARGETS:
            raise SettingError(f"a target must be {' or '.join(TARGETS)}, got {self.what}")
        check_value(self.what, self.value, self.what)

    @property
    def kind(self) -> TargetKind:
        """The entry of TARGETS."""
        return TARGETS[self.what]

    @property
    def label(self) -> str:
        """`flops40` or `latency12ms`, for file names."""
        if self.kind.is_share:
            return f"{self.what}{self.value * 100:.10g}"
        return f"{self.kind.noun}{self.value:.10g}ms"

    def __str__(self) -> str:
        if self.kind.is_share:
            return f"{self.what} {self.value:.1%}"
        return f"{self.kind.noun} {self.value:g} ms"


def check_value(what: str, value: object, option: str) -> None:
    """Check the value of a target that was given with this option."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if TARGETS[what].is_share:
        if not is_number or not 0 < value <= 1:  # type: ignore[operator]
            raise SettingError(
                f"--{option} must be over 0 and at most 1, got {value}: "
                "it is the share of the dense network to keep"
            )
    elif not is_number or not 0 < value < math.inf:  # type: ignore[operator]
        raise SettingError(f"--{TARGETS[what].noun} must be over 0 ms, got {value}")


def parse_targets(what: str, text: str, option: str = "") -> list[Target]:
    """`0.4`, `0.3,0.5` or a range that includes its end, `0.2:0.8:0.1`; a latency also `12ms`."""
    option, targets, absolute = option or what, [], TARGETS[what].in_ms
    for part in text.split(","):
        in_ms = absolute is not None and part.endswith("ms")
        try:
            numbers = [float(number) for number in part.removesuffix("ms" * in_ms).split(":")]
        except ValueError:
            more = ", or milliseconds such as 12ms" if absolute else ""
            raise SettingError(
                f"--{option} {text}: expected a share such as 0.4 or a range such as 0.2:0.8:0.1"
                + more
            ) from None
        if in_ms and len(numbers) > 1:
            raise SettingError(f"--{option} {text}: a range takes shares, not milliseconds")
        kind = absolute if absolute and in_ms else what
        for value in _expand(option, text, numbers):
            check_value(kind, value, option)
            targets.append(Target(kind, value))
    return targets


def parse_shares(text: str, option: str) -> tuple[float, ...]:
    """Shares of the FLOPs to compare at: `0.2`, `0.2,0.4`, or the range `0.2:0.8`."""
    ends = text.split(":")
    if len(ends) == 2:
        low, high = (parse_targets("flops", end, option)[0].value for end in ends)
        if low >= high:
            raise SettingError(f"--{option} {text}: a range goes up from FROM to TO")
        return spanning(low, high)
    return tuple(target.value for target in parse_targets("flops", text, option))


def spanning(low: float, high: float) -> tuple[float, ...]:
    """Both ends of a range and their geometric mean, so that one ranking serves all of it."""
    return tuple(dict.fromkeys((low, round(math.sqrt(low * high), 2), high)))


def _expand(option: str, text: str, numbers: list[float]) -> list[float]:
    """The values of one number or one range."""
    if len(numbers) == 1:
        return numbers
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        raise SettingError(f"--{option} {text}: a range is FROM:TO:STEP, such as 0.2:0.8:0.1")
    start, stop, step = numbers
    if step <= 0 or stop < start or (stop - start) / step > 10_000:
        raise SettingError(f"--{option} {text}: a range goes up from FROM to TO in positive STEPs")
    count = int((stop - start) / step + 1e-9) + 1
    return [round(start + i * step, 10) for i in range(count)]


def falling(targets: Iterable[Target]) -> list[Target]:
    """Targets from high to low."""
    return sorted(targets, key=lambda target: -target.value)


def percents(shares: Iterable[float]) -> str:
    """`20%, 40% and 80%`."""
    *first, last = (f"{share:.0%}" for share in shares)
    return f"{', '.join(first)} and {last}" if first else last
