"""Summarize a comparison by method: means over seeds, and cost relative to LeGR."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from legr_cli.baselines.effort import Effort, total
from legr_cli.journal import Line, is_accuracy, is_scored
from legr_cli.training.scores import ACCURACY, score_in

FORMAT, VERSION = "legr-comparison", 1


@dataclass(frozen=True)
class TunedResult:
    """Cost and score of a network that was pruned and fine-tuned."""

    flops: int
    dense_flops: int
    before: float  # score before fine-tuning, on the test images if there are any
    score: float  # after fine-tuning
    pruning: Effort
    tuning: Effort
    cut: float | None = None  # score before a repair; None: the network was not repaired


@dataclass(frozen=True)
class ComparisonRow:
    """One method at one target with one seed: a result, or the reason there is none."""

    method: str
    target: str  # a label such as "flops40"
    seed: int
    result: TunedResult | None = None
    error: str = ""

    @classmethod
    def from_line(cls, line: Line) -> "ComparisonRow":
        """Read a line that `is_row` accepts."""
        key = line["method"], line["target"], line["seed"]
        if "error" in line:
            return cls(*key, error=line["error"])
        numbers = line["flops"], line["dense_flops"], line["before"], score_in(line)
        pruning, tuning = (Effort.from_line(line[name]) for name in ("pruning", "tuning"))
        return cls(*key, TunedResult(*numbers, pruning, tuning, line.get("cut")))


@dataclass(frozen=True)
class TargetSummary:
    """A method at one target, averaged over seeds."""

    share: float  # achieved share of the dense FLOPs
    before: float
    score: float
    deviation: float | None  # standard deviation of the score; None with one seed
    seeds: int
    cut: float | None = None  # before a repair


@dataclass(frozen=True)
class MethodSummary:
    """A method at all targets. Efforts are for all targets, averaged over seeds."""

    method: str
    by_target: dict[str, TargetSummary]
    failures: dict[str, str]  # the reason, by target not reached
    pruning: Effort
    tuning: Effort
    relative_pruning: float | None = None  # seconds of pruning over LeGR's
    relative_total: float | None = None  # seconds of pruning and tuning over LeGR's

    @property
    def total_seconds(self) -> float:
        """Pruning and tuning."""
        return (self.pruning + self.tuning).seconds


def summarize(rows: Iterable[ComparisonRow]) -> list[MethodSummary]:
    """A summary of each method, in order of appearance."""
    by_method: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        by_method.setdefault(row.method, []).append(row)
    summaries = [_method_summary(method, own) for method, own in by_method.items()]
    legr = next((summary for summary in summaries if summary.method == "legr"), None)
    if legr is None or not legr.pruning.seconds:
        return summaries
    return [
        replace(
            summary,
            relative_pruning=summary.pruning.seconds / legr.pruning.seconds,
            relative_total=summary.total_seconds / legr.total_seconds,
        )
        for summary in summaries
    ]


def _method_summary(method: str, rows: list[ComparisonRow]) -> MethodSummary:
    """One method, without its cost relative to LeGR."""
    results = [row.result for row in rows if row.result is not None]
    seeds = max(1, len({row.seed for row in rows if row.result is not None}))
    by_target: dict[str, list[TunedResult]] = {}
    for row in rows:
        if row.result is not None:
            by_target.setdefault(row.target, []).append(row.result)
    return MethodSummary(
        method,
        {target: _target_summary(own) for target, own in by_target.items()},
        {row.target: row.error for row in rows if row.result is None},
        _per_seed([result.pruning for result in results], seeds),
        _per_seed([result.tuning for result in results], seeds),
    )


def _per_seed(efforts: list[Effort], seeds: int) -> Effort:
    """The average effort of a seed."""
    whole = total(efforts)
    return Effort(whole.seconds / seeds, whole.steps // seeds, whole.images // seeds)


def _target_summary(results: list[TunedResult]) -> TargetSummary:
    """One target."""
    scores = [result.score for result in results]
    cuts = [result.cut for result in results if result.cut is not None]
    return TargetSummary(
        statistics.mean(result.flops / result.dense_flops for result in results),
        statistics.mean(result.before for result in results),
        statistics.mean(scores),
        statistics.stdev(scores) if len(scores) > 1 else None,
        len(scores),
        statistics.mean(cuts) if cuts else None,
    )


def is_comparison(data: Line) -> bool:
    """Whether a compare.json has everything that a report reads from it, with valid values."""
    rows, dense = data.get("rows"), data.get("dense")
    return (
        data.get("format") == FORMAT
        and data.get("version") == VERSION
        and isinstance(data.get("arch"), str)
        and isinstance(dense, dict)
        and is_scored(dense)
        and isinstance(data.get("score", ACCURACY), str)
        and data.get("split", "test") in ("test", "validation")
        and isinstance(rows, list)
        and all(isinstance(row, dict) and is_row(row) for row in rows)
    )


def is_row(row: Line) -> bool:
    """Whether a line describes a network that was made, or says why it was not."""
    words = all(isinstance(row.get(key), str) for key in ("method", "target"))
    named = words and type(row.get("seed")) is int and is_accuracy(row.get("share"))
    if "error" in row:
        return named and isinstance(row["error"], str)
    costs = all(_is_count(row.get(key)) and row[key] for key in ("flops", "dense_flops"))
    scores = is_accuracy(row.get("before")) and is_accuracy(row.get("cut", 0.0)) and is_scored(row)
    efforts = (row.get(key) for key in ("pruning", "tuning"))
    return named and costs and scores and all(map(_is_effort, efforts))


def _is_effort(value: object) -> bool:
    """Whether `Effort.from_line` can read this."""
    keys = ("seconds", "steps", "images")
    return isinstance(value, dict) and all(_is_count(value.get(key)) for key in keys)


def _is_count(value: object) -> bool:
    """Whether this is a finite number of at least 0."""
    return isinstance(value, int | float) and 0 <= value < 1e30
