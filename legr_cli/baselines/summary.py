"""From the lines of a comparison to its table: means over seeds, and costs beside LeGR's."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from legr_cli.baselines.effort import Effort, read, total
from legr_cli.journal import Line, is_share

FORMAT, VERSION = "legr-comparison", 1


@dataclass(frozen=True)
class Point:
    """A method at a target, over all seeds."""

    share: float  # of the FLOPs, as it came out
    before: float
    accuracy: float
    deviation: float | None  # None: one seed says nothing of it
    seeds: int


@dataclass(frozen=True)
class MethodSummary:
    """A method over all targets."""

    method: str
    points: dict[str, Point]  # by target
    refused: dict[str, str]  # targets it did not reach, and why
    pruning: Effort  # of one seed, on average
    tuning: Effort
    times: dict[str, float | None] = field(default_factory=dict)  # costs over LeGR's


def summarize(lines: Iterable[Line]) -> list[MethodSummary]:
    """Of every method in the order of the lines."""
    by_method: dict[str, list[Line]] = {}
    for line in lines:
        by_method.setdefault(line["method"], []).append(line)
    found = [_standing(method, own) for method, own in by_method.items()]
    legr = next((summaries for summaries in found if summaries.method == "legr"), None)
    for summaries in found:
        summaries.times.update(_times(summaries, legr))
    return found


def _standing(method: str, lines: list[Line]) -> MethodSummary:
    """One method."""
    done = [line for line in lines if "error" not in line]
    seeds = max(1, len({line["seed"] for line in done}))
    targets = dict.fromkeys(line["target"] for line in done)
    return MethodSummary(
        method,
        {target: _point([line for line in done if line["target"] == target]) for target in targets},
        {line["target"]: line["error"] for line in lines if "error" in line},
        _mean(seeds, [read(line["pruning"]) for line in done]),
        _mean(seeds, [read(line["tuning"]) for line in done]),
    )


def _mean(seeds: int, parts: list[Effort]) -> Effort:
    """What one seed took."""
    whole = total(parts)
    return Effort(whole.seconds / seeds, whole.steps // seeds, whole.images // seeds)


def _point(lines: list[Line]) -> Point:
    """One target."""
    reached = [line["accuracy"] for line in lines]
    return Point(
        statistics.mean(line["flops"] / line["dense_flops"] for line in lines),
        statistics.mean(line["before"] for line in lines),
        statistics.mean(reached),
        statistics.stdev(reached) if len(reached) > 1 else None,
        len(reached),
    )


def _times(own: MethodSummary, legr: MethodSummary | None) -> dict[str, float | None]:
    """Seconds of pruning and of everything, over LeGR's."""
    if legr is None or not legr.pruning.seconds:
        return {"pruning": None, "all": None}
    both = own.pruning + own.tuning, legr.pruning + legr.tuning
    return {
        "pruning": own.pruning.seconds / legr.pruning.seconds,
        "all": both[0].seconds / both[1].seconds,
    }


def is_comparison(data: Line) -> bool:
    """Whether all that a report reads of a compare.json is there and makes sense."""
    rows, dense = data.get("rows"), data.get("dense")
    return (
        data.get("version") == VERSION
        and isinstance(data.get("arch"), str)
        and isinstance(dense, dict)
        and is_share(dense.get("accuracy"))
        and isinstance(rows, list)
        and all(isinstance(row, dict) and is_row(row) for row in rows)
    )


def is_row(row: Line) -> bool:
    """Whether a line tells of a network that was made, or why it was not."""
    words = all(isinstance(row.get(key), str) for key in ("method", "target"))
    named = words and type(row.get("seed")) is int and is_share(row.get("share"))
    if isinstance(row.get("error"), str):
        return named
    costs = all(_is_count(row.get(key)) and row[key] for key in ("flops", "dense_flops"))
    reached = all(is_share(row.get(key)) for key in ("before", "accuracy"))
    effort = (row.get(key) for key in ("pruning", "tuning"))
    return named and costs and reached and all(map(_is_spent, effort))


def _is_spent(value: object) -> bool:
    """Whether this is a cost."""
    keys = ("seconds", "steps", "images")
    return isinstance(value, dict) and all(_is_count(value.get(key)) for key in keys)


def _is_count(value: object) -> bool:
    """Whether this is a number from 0."""
    return isinstance(value, int | float) and 0 <= value < 1e30
