"""Latency against FLOPs: networks as points of a plot, and the line fitted through them."""

from collections.abc import Sequence
from dataclasses import dataclass

from legr_cli.deploy.board import Facts


@dataclass(frozen=True)
class Point:
    """FLOPs and latency of a network, relative to the baseline."""

    name: str
    flops: float
    latency: float

    @property
    def slope(self) -> float | None:
        """Share of the latency saved per share of the FLOPs saved; None if none were saved."""
        return (1 - self.latency) / (1 - self.flops) if self.flops < 1 else None


def points(measurement: Facts) -> dict[str, Point]:
    """A point for each network whose FLOPs are known, by name; none if the baseline's are not."""
    rows = {row["name"]: row for row in measurement["models"]}
    baseline = rows.get(measurement.get("against"), measurement["models"][0]).get("flops")
    if not baseline:
        return {}
    return {
        name: Point(name, row["flops"] / baseline, row["ratio"])
        for name, row in rows.items()
        if row.get("flops")
    }


def fitted_slope(networks: Sequence[Point]) -> tuple[float, float] | None:
    """Slope and intercept of latency over FLOPs, by least squares.

    None for fewer than three points, or if their FLOPs hardly differ.
    """
    shares = [point.flops for point in networks]
    if len(networks) < 3 or max(shares) - min(shares) < 0.01:
        return None
    mean_x = sum(shares) / len(shares)
    mean_y = sum(point.latency for point in networks) / len(networks)
    # slope = covariance(x, y) / variance(x); the line passes through the mean of the points
    covariance = sum((p.flops - mean_x) * (p.latency - mean_y) for p in networks)
    slope = covariance / sum((x - mean_x) ** 2 for x in shares)
    return slope, mean_y - slope * mean_x
