"""Rankings: α and κ for each layer, the importance of units, and ranking.json.

If α and κ were learned over a metric of images, each row also has the metric's value of every
filter, so that pruning needs no images. Methods that score every filter separately store a list of
scores per row instead. Such rankings are read, used and written like any other.
"""

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from legr_cli.channels.units import Units
from legr_cli.errors import RankingError, first_line
from legr_cli.metrics.filters import Filters, collect_filters, spread
from legr_cli.metrics.table import DEFAULT_METRIC, METRICS

FORMAT, VERSION = "legr-ranking", 1
LARGEST = 1e30  # limit of α and κ, so that no sum of importances overflows


@dataclass(frozen=True)
class Row:
    """A layer's scale α and shift κ, or a score for each of its filters."""

    name: str
    filters: int
    alpha: float = 1.0
    kappa: float = 0.0
    scores: tuple[float, ...] | None = None
    values: tuple[float, ...] | None = None  # of a metric of images, one for each filter

    def as_json(self) -> dict[str, Any]:
        """The object that ranking.json stores."""
        names = ("alpha", "kappa") if self.scores is None else ("scores",)
        stored = {key: getattr(self, key) for key in ("name", "filters", *names)}
        return stored if self.values is None else {**stored, "values": self.values}


@dataclass(frozen=True)
class Ranking:
    """One row for each layer with filters that can be removed, and notes on its origin."""

    rows: tuple[Row, ...]
    method: str = "legr"  # or "norm" (α = 1, κ = 0), "uniform" (the same share of every group), …
    notes: dict[str, Any] = field(default_factory=dict)
    metric: str = DEFAULT_METRIC  # key of the metric in METRICS that α scales and κ shifts


def identity(filters: Filters) -> Ranking:
    """The ranking by the plain metric: α = 1, κ = 0."""
    parts = np.split(filters.value, np.flatnonzero(np.diff(filters.layer)) + 1)
    of_images = METRICS[filters.metric].of_images is not None
    rows = (
        Row(name, len(part), values=tuple(part.tolist()) if of_images else None)
        for name, part in zip(filters.names, parts, strict=True)
    )
    return Ranking(tuple(rows), method="norm", metric=filters.metric)


def filters_of(ranking: Ranking, filters: Filters, units: Units) -> Filters:
    """The filters with the metric of a ranking, which has the values of a metric of images."""
    if ranking.metric == filters.metric or any(row.scores is not None for row in ranking.rows):
        return filters
    if METRICS[ranking.metric].of_images is None:
        return collect_filters(units, ranking.metric)
    values = np.concatenate([row.values or () for row in ranking.rows])
    return replace(filters, value=values, metric=ranking.metric)


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
        replace(row, scores=tuple(by_filter[filters.layer == i].tolist()), values=None)
        for i, row in enumerate(identity(filters).rows)
    )
    return Ranking(tuple(rows), method, metric=filters.metric)


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
    # κ: the mean of both quantiles becomes zero.
    return {
        "alpha": alpha,
        "kappa": solve_shifts(filters, group_of, -quantiles(alpha).mean(axis=1)),
    }


def solve_shifts(filters: Filters, group_of: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """κ of each layer that shifts the units of each group, by least squares."""
    count, groups = np.bincount(group_of), group_of[filters.unit]
    layers = np.zeros((len(count), len(filters.names)))  # filters of a unit, by layer
    np.add.at(layers, (groups, filters.layer), 1 / count[groups])
    kappa, *_ = np.linalg.lstsq(layers, shift, rcond=None)
    return kappa


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
    if METRICS[metric].of_images is not None and any(not (r.values or r.scores) for r in matched):
        raise RankingError(f"{path}: a row has no values of the metric {metric}")
    return Ranking(matched, str(notes.get("method", "legr")), notes, metric)


def _row(path: Path, entry: Any) -> Row:
    """Parse and check one entry of "layers"."""
    try:
        name, count, scores = entry["name"], entry["filters"], entry.get("scores")
        values = None if entry.get("values") is None else list(entry["values"])
        numbers = [entry["alpha"], entry["kappa"]] if scores is None else list(scores)
        numbers += values or []
    except (TypeError, KeyError, AttributeError):
        raise RankingError(f"{path}: a row needs name, filters, alpha and kappa: {entry}") from None
    are_numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers)
    if not isinstance(name, str) or not isinstance(count, int) or not are_numbers:
        raise RankingError(f"{path}: a row has values of the wrong type: {entry}")
    if not all(abs(x) <= LARGEST for x in numbers):
        what = "alpha, kappa or a value" if scores is None else "a score"
        raise RankingError(
            f"{path}: layer '{name}' has {what} that is not finite or over {LARGEST:g}"
        )
    for what, given in (("scores", scores), ("values", values)):
        if given is not None and len(given) != count:
            raise RankingError(
                f"{path}: layer '{name}' has {len(given)} {what} for {count} filters"
            )
    if scores is not None:
        return Row(name, count, scores=tuple(map(float, scores)))
    shown = None if values is None else tuple(map(float, values))
    return Row(name, count, float(numbers[0]), float(numbers[1]), values=shown)


def check_ranking(ranking: Ranking, filters: Filters) -> None:
    """Raise RankingError unless a ranking has a known metric and exactly the layers, in order."""
    if ranking.metric not in METRICS:
        raise RankingError(f"unknown metric {ranking.metric!r}: expected {', '.join(METRICS)}")
    rows = {row.name: row for row in ranking.rows}
    matched = _matched("the ranking", rows, identity(filters), ranking.notes.get("arch"))
    if matched != ranking.rows:
        raise RankingError("the ranking's rows are not in the order of the network's layers")
    of_images = METRICS[ranking.metric].of_images is not None
    if of_images and any(not r.scores and len(r.values or ()) != r.filters for r in matched):
        raise RankingError(f"a row has not one value of the metric {ranking.metric} per filter")


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
