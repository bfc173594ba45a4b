"""What a smaller network is to come down to: a share of the dense one's cost, or milliseconds."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from legr_cli.errors import SettingError


@dataclass(frozen=True)
class Target:
    """A share of the dense network's FLOPs, parameters or latency, or a latency in milliseconds."""

    what: str  # "flops", "params", "latency" or "latency_ms"
    value: float

    def __post_init__(self) -> None:
        number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        if self.what == "latency_ms":
            if not number or not 0 < self.value < math.inf:
                raise SettingError(f"--latency must be over 0 ms, got {self.value}")
        elif not number or not 0 < self.value <= 1:
            raise SettingError(
                f"--{self.what} must be over 0 and at most 1, got {self.value}: "
                "it is the share of the dense network to keep"
            )

    @property
    def timed(self) -> bool:
        """Whether it takes measurements to meet it."""
        return self.what in ("latency", "latency_ms")

    @property
    def label(self) -> str:
        """`flops40` or `latency12ms`, for file names."""
        if self.what == "latency_ms":
            return f"latency{self.value:.10g}ms"
        return f"{self.what}{self.value * 100:.10g}"

    def __str__(self) -> str:
        if self.what == "latency_ms":
            return f"latency {self.value:g} ms"
        return f"{self.what} {self.value:.1%}"


def parse_targets(what: str, text: str) -> list[Target]:
    """`0.4`, `0.3,0.5` or a range with its end included, `0.2:0.8:0.1`; a latency also `12ms`."""
    found = []
    for part in text.split(","):
        timed = what == "latency" and part.endswith("ms")
        try:
            numbers = [float(number) for number in part.removesuffix("ms" * timed).split(":")]
        except ValueError:
            more = ", or milliseconds such as 12ms" if what == "latency" else ""
            raise SettingError(
                f"--{what} {text}: expected a share such as 0.4 or a range such as 0.2:0.8:0.1"
                + more
            ) from None
        if timed and len(numbers) > 1:
            raise SettingError(f"--latency {text}: a range is of shares, not of milliseconds")
        kind = "latency_ms" if timed else what
        found += [Target(kind, share) for share in _expand(what, text, numbers)]
    return found


def _expand(what: str, text: str, numbers: list[float]) -> list[float]:
    """The shares of one number or one range."""
    if len(numbers) == 1:
        return numbers
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        raise SettingError(f"--{what} {text}: a range is FROM:TO:STEP, such as 0.2:0.8:0.1")
    start, stop, step = numbers
    if step <= 0 or stop < start or (stop - start) / step > 10_000:
        raise SettingError(f"--{what} {text}: a range goes up from FROM to TO by a positive STEP")
    count = int((stop - start) / step + 1e-9) + 1
    return [round(start + i * step, 10) for i in range(count)]


def falling(targets: Iterable[Target]) -> list[Target]:
    """From high to low."""
    return sorted(targets, key=lambda target: -target.value)


def percents(shares: Iterable[float]) -> str:
    """`20% and 40%`."""
    return " and ".join(f"{share:.0%}" for share in shares)
