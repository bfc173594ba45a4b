"""Rankings: α and κ for each layer, the importance of units, and ranking.json.

Methods that score every filter separately store a list of scores per row instead. Such rankings are
read, used and written like any other.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from legr_cli.channels.slicing import by_filter
from legr_cli.channels.units import Units
from legr_cli.errors import CheckpointError, RankingError, first_line

FORMAT, VERSION = "legr-ranking", 1
LARGEST = 1e30  # limit of α and κ, so that no sum of importances overflows


def _squared_norm(weight: Tensor) -> Tensor:
    """‖Θᵢ‖₂² of each row."""
    return weight.square().sum(1)


# Importance metrics: weights of a layer, one filter per row → one number per filter.
METRICS: dict[str, Callable[[Tensor], Tensor]] = {"squared-norm": _squared_norm}
DEFAULT_METRIC = "squared-norm"  # the paper's; also for ranking files without a metric


@dataclass(frozen=True)
class Row:
    """A layer's scale α and shift κ, or a score for each of its filters."""

    name: str
    filters: int
    alpha: float = 1.0
    kappa: float = 0.0
    scores: tuple[float, ...] | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that ranking.json stores."""
        values = ("alpha", "kappa") if self.scores is None else ("scores",)
        return {key: getattr(self, key) for key in ("name", "filters", *values)}


@dataclass(frozen=True)
class Ranking:
    """One row for each layer with filters that can be removed, and notes on its origin."""

    rows: tuple[Row, ...]
    method: str = "legr"  # or "norm" (α = 1, κ = 0), "uniform" (the same share of every group), …
    notes: dict[str, Any] = field(default_factory=dict)
    metric: str = DEFAULT_METRIC  # key of the metric in METRICS that α scales and κ shifts


@dataclass(frozen=True)
class Filters:
    """The filters that can be removed: layer, unit and importance metric of each."""

    names: tuple[str, ...]
    layer: np.ndarray
    unit: np.ndarray
    value: np.ndarray  # of the importance metric
    units: int
    metric: str = DEFAULT_METRIC


def collect_filters(units: Units, metric: str = DEFAULT_METRIC) -> Filters:
    """Compute the importance metric of every filter that belongs to a unit."""
    measure = METRICS[metric]
    names: list[str] = []
    layer, unit, value = [], [], []
    for module in units.flow.layers.values():
        unit_of = units.unit_of(module.out)
        removable = unit_of >= 0
        if not removable.any():
            continue
        weight = by_filter(module.weight.detach(), module.axes).reshape(len(module.out), -1)
        values = measure(weight.double()).cpu().numpy()
        if not np.isfinite(values).all():
            raise CheckpointError(
                f"layer '{module.name}' has NaN or infinite weights: use another checkpoint"
            )
        layer.append(np.full(int(removable.sum()), len(names)))
        names.append(module.name)
        unit.append(unit_of[removable])
        value.append(values[removable])
    return Filters(
        tuple(names),
        np.concatenate(layer),
        np.concatenate(unit),
        np.concatenate(value),
        units.count,
        metric,
    )


def identity(filters: Filters) -> Ranking:
    """The ranking by the plain metric: α = 1, κ = 0."""
    counts = np.bincount(filters.layer, minlength=len(filters.names))
    rows = tuple(Row(n, int(c)) for n, c in zip(filters.names, counts, strict=True))
    return Ranking(rows, method="norm", metric=filters.metric)


def affine(filters: Filters, genes: dict[str, np.ndarray]) -> Ranking:
    """A learned ranking: α and κ, one number per layer."""
    rows = zip(
        identity(filters).rows, genes["alpha"].tolist(), genes["kappa"].tolist(), strict=True
    )
    learned = tuple(replace(row, alpha=a, kappa=k) for row, a, k in rows)
    return Ranking(learned, metric=filters.metric)


def scored(filters: Filters, scores: np.ndarray, method: str) -> Ranking:
    """A ranking by scores of units; every filter gets the score of its unit."""
    by_filter = scores[filters.unit]
    rows = (
        replace(row, scores=tuple(by_filter[filters.layer == i].tolist()))
        for i, row in enumerate(identity(filters).rows)
    )
    return Ranking(tuple(rows), method, metric=filters.metric)


def spread(filters: Filters) -> np.ndarray:
    """Standard deviation of the importance metric in each layer."""
    return np.array([filters.value[filters.layer == i].std() for i in range(len(filters.names))])


MIN_SPREAD = 1e-3  # smaller spreads count as zero
QUANTILES = (0.2, 0.6)  # shares of the units removed at about 70 % and 20 % of the FLOPs


def level(filters: Filters, group_of: np.ndarray) -> dict[str, np.ndarray]:
    """α and κ that remove about the same share of every group of units, like uniform pruning.

    They align two quantiles of all groups, by least squares where groups share layers. Standard
    deviations would not be robust: one large filter would make all others look equal.
    """
    count = np.bincount(group_of)
    deviation = spread(filters)
    deviation = np.where(deviation > MIN_SPREAD, deviation, 1.0)
    groups = group_of[filters.unit]

    def quantiles(alpha: np.ndarray) -> np.ndarray:
        sums = np.bincount(
            filters.unit, alpha[filters.layer] * filters.value, minlength=filters.units
        )
        return np.array([np.quantile(sums[group_of == g], QUANTILES) for g in range(len(count))])

    # α: the distance between both quantiles becomes one, on average over the groups of a layer.
    distance = np.ptp(quantiles(1 / deviation), axis=1)
    distance = np.where(distance > MIN_SPREAD, distance, 1.0)
    alpha = np.bincount(filters.layer) / np.bincount(filters.layer, distance[groups]) / deviation
    # κ: the mean of both quantiles becomes zero; `layers` counts a unit's filters by layer.
    layers = np.zeros((len(count), len(deviation)))
    np.add.at(layers, (groups, filters.layer), 1 / count[groups])
    kappa, *_ = np.linalg.lstsq(layers, -quantiles(alpha).mean(axis=1), rcond=None)
    return {"alpha": alpha, "kappa": kappa}


def importance(filters: Filters, ranking: Ranking) -> np.ndarray:
    """Importance of each unit: Σ over its filters of α·‖Θᵢ‖₂² + κ (paper, eq. 1), or its score."""
    if any(row.scores is not None for row in ranking.rows):
        best = np.full(filters.units, -np.inf)
        np.maximum.at(
            best, filters.unit, np.concatenate([row.scores or () for row in ranking.rows])
        )
        return best
    alpha = np.array([row.alpha for row in ranking.rows])
    kappa = np.array([row.kappa for row in ranking.rows])
    score = alpha[filters.layer] * filters.value + kappa[filters.layer]
    return np.bincount(filters.unit, score, minlength=filters.units)


def write_ranking(ranking: Ranking, temporary: Path) -> None:
    """Write ranking.json to a temporary file, which replaces it when complete."""
    layers = [row.as_json() for row in ranking.rows]
    header = {
        "format": FORMAT,
        "version": VERSION,
        "method": ranking.method,
        "metric": ranking.metric,
    }
    data = {**header, **ranking.notes, "layers": layers}
    temporary.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_ranking(path: Path, filters: Filters, module: str = "") -> Ranking:
    """Read a ranking.json; raise RankingError unless it has valid rows for exactly these layers.

    `module` is the part of the network that the layers are in.
    """
    try:
        raw = path.read_bytes()
        data = json.loads(raw)
    except FileNotFoundError:
        raise RankingError(f"{path} does not exist: pass a ranking.json") from None
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise RankingError(f"{path} is not valid JSON: {first_line(error)}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise RankingError(f'{path} is not a ranking: it has no "format": "{FORMAT}"')
    if data.get("version") != VERSION:
        raise RankingError(
            f"{path} has version {data.get('version')!r} of the ranking format; this version of "
            f"legr reads {VERSION}"
        )
    if (learned_on := data.get("module", "")) != module:
        part = f"the part '{learned_on}' of a network" if learned_on else "a whole network"
        advice = f"pass --module {learned_on}" if learned_on else "leave --module out"
        raise RankingError(f"{path} was learned on {part}: {advice}")
    if not isinstance(data.get("layers"), list):
        raise RankingError(f'{path} has no list of "layers"')
    rows = {}
    for entry in data["layers"]:
        row = _row(path, entry)
        if row.name in rows:
            raise RankingError(f"{path} has two rows for layer '{row.name}'")
        rows[row.name] = row
    if len({row.scores is None for row in rows.values()}) > 1:
        raise RankingError(f"{path}: some rows have scores, others alpha and kappa")
    metric = data.get("metric", DEFAULT_METRIC)
    if metric not in METRICS:
        raise RankingError(
            f"{path} uses the unknown metric {metric!r}; this version of legr has "
            f"{', '.join(METRICS)}"
        )
    notes = {key: value for key, value in data.items() if key not in ("layers", "metric")}
    notes["file_sha256"] = hashlib.sha256(raw).hexdigest()
    matched = _matched(path, rows, identity(filters), notes.get("arch"))
    return Ranking(matched, str(notes.get("method", "legr")), notes, metric)


def _row(path: Path, entry: Any) -> Row:
    """Parse and check one entry of "layers"."""
    try:
        name, count, scores = entry["name"], entry["filters"], entry.get("scores")
        numbers = [entry["alpha"], entry["kappa"]] if scores is None else list(scores)
    except (TypeError, KeyError, AttributeError):
        raise RankingError(f"{path}: a row needs name, filters, alpha and kappa: {entry}") from None
    are_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers)
    if not isinstance(name, str) or not isinstance(count, int) or not are_numbers:
        raise RankingError(f"{path}: a row has values of the wrong type: {entry}")
    if not all(abs(x) <= LARGEST for x in numbers):
        what = "alpha or kappa" if scores is None else "a score"
        raise RankingError(
            f"{path}: layer '{name}' has {what} that is not finite or over {LARGEST:g}"
        )
    if scores is None:
        return Row(name, count, float(numbers[0]), float(numbers[1]))
    if len(scores) != count:
        raise RankingError(f"{path}: layer '{name}' has {len(scores)} scores for {count} filters")
    return Row(name, count, scores=tuple(map(float, scores)))


def check_ranking(ranking: Ranking, filters: Filters) -> None:
    """Raise RankingError unless a ranking has a known metric and exactly the layers, in order."""
    if ranking.metric not in METRICS:
        raise RankingError(f"unknown metric {ranking.metric!r}: expected {', '.join(METRICS)}")
    rows = {row.name: row for row in ranking.rows}
    matched = _matched("the ranking", rows, identity(filters), ranking.notes.get("arch"))
    if matched != ranking.rows:
        raise RankingError("the ranking's rows are not in the order of the network's layers")


def _matched(
    path: Path | str, rows: dict[str, Row], expected: Ranking, arch: Any
) -> tuple[Row, ...]:
    """Sort the rows in the network's order; raise if layers are missing, unexpected or differ."""
    hint = f": it was learned on {arch}" if isinstance(arch, str) else ""
    for row in expected.rows:
        if row.name not in rows:
            raise RankingError(
                f"{path} has no row for layer '{row.name}' ({row.filters} filters){hint}"
            )
        if rows[row.name].filters != row.filters:
            raise RankingError(
                f"{path} has {rows[row.name].filters} filters for layer '{row.name}', "
                f"this network has {row.filters}{hint}"
            )
    unexpected = sorted(set(rows) - {row.name for row in expected.rows})
    if unexpected:
        raise RankingError(
            f"{path} has a row for '{unexpected[0]}', which this network does not have{hint}"
        )
    return tuple(rows[row.name] for row in expected.rows)
