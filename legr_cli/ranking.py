"""The ranking: (α, κ) for each layer, the importance that follows from it, and ranking.json.

Methods of the prior art that score every filter separately have a list of scores in their rows
instead; such a ranking is read, cut and written like any other.
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
DEFAULT_METRIC = "squared-norm"  # the paper's, and that of rankings that do not name theirs


@dataclass(frozen=True)
class Row:
    """A layer's scale α and shift κ; or a score for each of its filters, used instead."""

    name: str
    filters: int
    alpha: float = 1.0
    kappa: float = 0.0
    scores: tuple[float, ...] | None = None

    def as_json(self) -> dict[str, Any]:
        """As ranking.json has it."""
        own = ("alpha", "kappa") if self.scores is None else ("scores",)
        return {key: getattr(self, key) for key in ("name", "filters", *own)}


@dataclass(frozen=True)
class Ranking:
    """One row for each layer that has filters to rank, and how it was made."""

    rows: tuple[Row, ...]
    method: str = "legr"  # "norm": α = 1, κ = 0; "uniform": the same share of every group; …
    notes: dict[str, Any] = field(default_factory=dict)
    metric: str = DEFAULT_METRIC  # a key of METRICS: what α and κ scale and shift


@dataclass(frozen=True)
class Filters:
    """The filters that can be ranked: layer, unit and importance metric of each."""

    names: tuple[str, ...]
    layer: np.ndarray
    unit: np.ndarray
    value: np.ndarray  # of the metric
    units: int
    metric: str = DEFAULT_METRIC


def collect_filters(units: Units, metric: str = DEFAULT_METRIC) -> Filters:
    """The importance metric of every filter that belongs to a unit."""
    measure = METRICS[metric]
    names: list[str] = []
    layer, unit, value = [], [], []
    for found in units.flow.layers.values():
        of = units.unit_of(found.out)
        free = of >= 0
        if not free.any():
            continue
        weight = by_filter(found.weight.detach(), found.axes).reshape(len(found.out), -1)
        values = measure(weight.double()).cpu().numpy()
        if not np.isfinite(values).all():
            raise CheckpointError(f"layer '{found.name}' has weights that are not finite")
        layer.append(np.full(int(free.sum()), len(names)))
        names.append(found.name)
        unit.append(of[free])
        value.append(values[free])
    return Filters(
        tuple(names),
        np.concatenate(layer),
        np.concatenate(unit),
        np.concatenate(value),
        units.count,
        metric,
    )


def identity(filters: Filters) -> Ranking:
    """α = 1, κ = 0: plain squared norms, nothing learned."""
    counts = np.bincount(filters.layer, minlength=len(filters.names))
    rows = tuple(Row(n, int(c)) for n, c in zip(filters.names, counts, strict=True))
    return Ranking(rows, method="norm")


def affine(filters: Filters, genes: dict[str, np.ndarray]) -> Ranking:
    """A learned ranking: α and κ, one number per layer."""
    rows = zip(
        identity(filters).rows, genes["alpha"].tolist(), genes["kappa"].tolist(), strict=True
    )
    return Ranking(tuple(replace(row, alpha=a, kappa=k) for row, a, k in rows))


def scored(filters: Filters, scores: np.ndarray, method: str) -> Ranking:
    """A ranking by a score per unit, which all of its filters share."""
    each = scores[filters.unit]
    rows = (
        replace(row, scores=tuple(each[filters.layer == i].tolist()))
        for i, row in enumerate(identity(filters).rows)
    )
    return Ranking(tuple(rows), method)


def spread(filters: Filters) -> np.ndarray:
    """By layer, the standard deviation of its filters' importance metric."""
    return np.array([filters.value[filters.layer == i].std() for i in range(len(filters.names))])


ALIKE = 1e-3  # filters whose values differ by less count as equal
LEVEL = (0.2, 0.6)  # shares of the units removed at about 70 % and 20 % of the FLOPs


def level(filters: Filters, group_of: np.ndarray) -> dict[str, np.ndarray]:
    """α and κ that remove about the same share of every group of units, like uniform pruning.

    They align two quantiles of all groups, by least squares where groups share layers. Standard
    deviations would not do: a single large filter would make all others look equal.
    """
    count = np.bincount(group_of)
    wide = spread(filters)
    wide = np.where(wide > ALIKE, wide, 1.0)
    groups = group_of[filters.unit]

    def ends(alpha: np.ndarray) -> np.ndarray:
        sums = np.bincount(
            filters.unit, alpha[filters.layer] * filters.value, minlength=filters.units
        )
        return np.array([np.quantile(sums[group_of == g], LEVEL) for g in range(len(count))])

    reach = np.ptp(ends(1 / wide), axis=1)
    reach = np.where(reach > ALIKE, reach, 1.0)
    alpha = np.bincount(filters.layer) / np.bincount(filters.layer, reach[groups]) / wide
    layers = np.zeros((len(count), len(wide)))  # by group, how many filters of a layer a unit has
    np.add.at(layers, (groups, filters.layer), 1 / count[groups])
    kappa, *_ = np.linalg.lstsq(layers, -ends(alpha).mean(axis=1), rcond=None)
    return {"alpha": alpha, "kappa": kappa}


def importance(filters: Filters, ranking: Ranking) -> np.ndarray:
    """By unit: Σ over its filters of α·‖Θᵢ‖₂² + κ (paper, eq. 1), or its best score."""
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
    """Write ranking.json to a file that takes its place when complete."""
    layers = [row.as_json() for row in ranking.rows]
    about = {
        "format": FORMAT,
        "version": VERSION,
        "method": ranking.method,
        "metric": ranking.metric,
    }
    data = {**about, **ranking.notes, "layers": layers}
    temporary.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def read_ranking(path: Path, filters: Filters) -> Ranking:
    """Read ranking.json strictly: it must have exactly this network's layers, in finite numbers."""
    try:
        raw = path.read_bytes()
        data = json.loads(raw)
    except FileNotFoundError:
        raise RankingError(f"{path} does not exist: --ranking is a ranking.json") from None
    except (OSError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise RankingError(f"{path} is not readable JSON: {first_line(error)}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise RankingError(f'{path} is not a ranking: it has no "format": "{FORMAT}"')
    if data.get("version") != VERSION:
        raise RankingError(
            f"{path} is a ranking of version {data.get('version')!r}; this legr reads {VERSION}"
        )
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
        raise RankingError(f"{path} ranks by {metric!r}; this legr knows {', '.join(METRICS)}")
    notes = {key: value for key, value in data.items() if key not in ("layers", "metric")}
    notes["file_sha256"] = hashlib.sha256(raw).hexdigest()
    matched = _matched(path, rows, identity(filters), notes.get("arch"))
    return Ranking(matched, str(notes.get("method", "legr")), notes, metric)


def _row(path: Path, entry: Any) -> Row:
    """One entry of "layers", checked."""
    try:
        name, count, scores = entry["name"], entry["filters"], entry.get("scores")
        numbers = [entry["alpha"], entry["kappa"]] if scores is None else list(scores)
    except (TypeError, KeyError, AttributeError):
        raise RankingError(f"{path}: a row needs name, filters, alpha and kappa: {entry}") from None
    plain = all(isinstance(x, int | float) and not isinstance(x, bool) for x in numbers)
    if not isinstance(name, str) or not isinstance(count, int) or not plain:
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
    """Check that a ranking is one of this network."""
    rows = {row.name: row for row in ranking.rows}
    matched = _matched("the ranking", rows, identity(filters), ranking.notes.get("arch"))
    if matched != ranking.rows:
        raise RankingError("the ranking has the rows of this network in another order")


def _matched(path: Path | str, rows: dict[str, Row], wanted: Ranking, arch: Any) -> tuple[Row, ...]:
    """The rows in this network's order; every layer once and of the right size."""
    hint = f": it was learned on {arch}" if isinstance(arch, str) else ""
    for row in wanted.rows:
        if row.name not in rows:
            raise RankingError(
                f"{path} has no row for layer '{row.name}' ({row.filters} filters){hint}"
            )
        if rows[row.name].filters != row.filters:
            raise RankingError(
                f"{path} has {rows[row.name].filters} filters for layer '{row.name}', "
                f"this network has {row.filters}{hint}"
            )
    strange = sorted(set(rows) - {row.name for row in wanted.rows})
    if strange:
        raise RankingError(
            f"{path} has a row for '{strange[0]}', which this network does not have{hint}"
        )
    return tuple(rows[row.name] for row in wanted.rows)
