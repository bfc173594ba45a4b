"""Rankings over metrics of images: each row carries the metric's values, so no data is needed."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import laws
import nets
import numpy as np
import pytest
import torch

import legr_cli
from legr_cli.errors import RankingError
from legr_cli.metrics.filters import collect_filters
from legr_cli.models.network import Network
from legr_cli.models.registry import Arch
from legr_cli.pruning import Analysis, analyze, plans, resolve_ranking
from legr_cli.ranking import (
    Ranking,
    affine,
    check_ranking,
    identity,
    importance,
    read_ranking,
    scored,
    write_ranking,
)
from legr_cli.settings import Align, Prune
from legr_cli.targets import Target

TARGETS = tuple(Target("flops", share) for share in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9))
CUT = Prune(targets=TARGETS, align=Align(), min_keep=0.05)


@pytest.fixture(scope="module")
def dense() -> torch.nn.Module:
    return nets.make("residual").float()


@pytest.fixture(scope="module")
def plain(dense: torch.nn.Module) -> Analysis:
    return analyze(Network(dense, Arch("tiny"), nets.INPUT))


@pytest.fixture(scope="module")
def measured(plain: Analysis) -> Analysis:
    """The analysis of a search: its filters are measured on images."""
    generator = torch.Generator().manual_seed(3)
    batches = [torch.randn(16, *nets.INPUT, generator=generator)]
    return replace(
        plain, filters=collect_filters(plain.units, "reconstruction", plain.cost, batches)
    )


@pytest.fixture(scope="module")
def ranking(measured: Analysis) -> Ranking:
    rng = np.random.default_rng(4)
    count = len(measured.filters.names)
    return affine(measured.filters, {"alpha": rng.random(count) + 0.5, "kappa": rng.random(count)})


def written(ranking: Ranking, folder: Path) -> Path:
    write_ranking(ranking, folder / "r.json")
    return folder / "r.json"


def test_it_is_written_and_read(plain: Analysis, ranking: Ranking, tmp_path: Path) -> None:
    path = written(ranking, tmp_path)
    found = read_ranking(path, plain.filters)
    assert found.rows == ranking.rows
    assert found.metric == "reconstruction"
    rows = json.loads(path.read_text())["layers"]
    assert [set(row) for row in rows] == [{"name", "filters", "alpha", "kappa", "values"}] * 3
    assert [len(row["values"]) for row in rows] == [row["filters"] for row in rows]


def test_plans_without_data_are_those_of_the_search(
    plain: Analysis, measured: Analysis, ranking: Ranking, tmp_path: Path
) -> None:
    """Other units than by squared norms, whose analysis knows nothing of the metric."""
    found = read_ranking(written(ranking, tmp_path), plain.filters)
    searched, offline = plans(measured, ranking, CUT), plans(plain, found, CUT)
    assert all(map(np.array_equal, searched, offline))
    by_norm = plans(plain, replace(found, metric="squared-norm"), CUT)
    assert not any(map(np.array_equal, offline, by_norm))
    laws.law4_plans_nest(offline)


def test_importance_is_alpha_times_the_values_plus_kappa(
    measured: Analysis, ranking: Ranking
) -> None:
    found = importance(measured.filters, ranking)
    rows = {row.name: row for row in ranking.rows}
    unit_of, layers = measured.units.unit_of, measured.units.flow.layers
    stem, b = rows["stem"], rows["b"]
    expected = stem.alpha * stem.values[3] + stem.kappa + b.alpha * b.values[3] + b.kappa
    assert found[unit_of(layers["stem"].out)[3]] == pytest.approx(expected)


def test_from_python_and_from_the_file_the_network_is_the_same(
    dense: torch.nn.Module, ranking: Ranking, tmp_path: Path
) -> None:
    path = written(ranking, tmp_path)
    for flops in (0.3, 0.7):
        one, two = (
            legr_cli.prune(dense, nets.INPUT, flops=flops, ranking=given, align=1)
            for given in (ranking, path)
        )
        first, second = one.state_dict(), two.state_dict()
        assert list(first) == list(second)
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_plain_values_are_alpha_1_kappa_0(measured: Analysis, plain: Analysis) -> None:
    found = identity(measured.filters)
    assert [row.values is not None for row in found.rows] == [True] * 3
    assert {(row.alpha, row.kappa) for row in found.rows} == {(1.0, 0.0)}
    assert [row.values for row in identity(plain.filters).rows] == [None] * 3


def test_scores_of_filters_need_no_values(
    plain: Analysis, measured: Analysis, tmp_path: Path
) -> None:
    """They are what counts, whatever the metric is."""
    scores = np.random.default_rng(0).random(plain.units.count)
    over = scored(measured.filters, scores, "taylor")
    assert [row.values for row in over.rows] == [None] * 3
    read = read_ranking(written(over, tmp_path), plain.filters)
    assert read.rows == over.rows
    expected = plans(plain, scored(plain.filters, scores, "taylor"), CUT)
    assert all(map(np.array_equal, plans(plain, read, CUT), expected))


def dropped(row: dict[str, Any]) -> None:
    del row["values"]


def set_to(value: object) -> Callable[[dict[str, Any]], None]:
    return lambda row: row.update(values=value)


def changed(place: int, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda row: row["values"].__setitem__(place, value)


BAD: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "one too few": (lambda row: row["values"].pop(), "'a' has 22 values for 23 filters"),
    "one too many": (lambda row: row["values"].append(0.5), "'a' has 24 values for 23 filters"),
    "none": (set_to([]), "'a' has 0 values for 23 filters"),
    "missing": (dropped, "a row has no values of the metric reconstruction"),
    "null": (set_to(None), "a row has no values of the metric reconstruction"),
    "not a number": (changed(4, float("nan")), "alpha, kappa or a value that is not finite"),
    "infinite": (changed(4, float("-inf")), "alpha, kappa or a value that is not finite"),
    "huge": (changed(4, 1e31), "alpha, kappa or a value that is not finite or over 1e"),
    "text": (changed(4, "1"), "a row has values of the wrong type"),
    "a truth": (changed(4, True), "a row has values of the wrong type"),
    "no list": (set_to(3.5), "a row needs name, filters, alpha and kappa"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_values_are_one_error(
    case: str, plain: Analysis, ranking: Ranking, tmp_path: Path
) -> None:
    change, message = BAD[case]
    path = written(ranking, tmp_path)
    data = json.loads(path.read_text())
    change(next(row for row in data["layers"] if row["name"] == "a"))
    path.write_text(json.dumps(data))
    with pytest.raises(RankingError) as caught:
        read_ranking(path, plain.filters)
    text = str(caught.value)
    assert message in text
    assert str(path) in text
    assert "\n" not in text


def test_a_metric_that_this_version_does_not_know(
    plain: Analysis, ranking: Ranking, tmp_path: Path
) -> None:
    path = written(ranking, tmp_path)
    path.write_text(path.read_text().replace('"reconstruction"', '"guessing"'))
    message = "unknown metric 'guessing'; this version of legr has squared-norm, folded-norm, "
    with pytest.raises(RankingError, match=message):
        read_ranking(path, plain.filters)


def test_a_ranking_in_python_is_checked_as_well(plain: Analysis, ranking: Ranking) -> None:
    check_ranking(ranking, plain.filters)
    first, *others = ranking.rows
    for values in (None, first.values[1:]):
        wrong = replace(ranking, rows=(replace(first, values=values), *others))
        with pytest.raises(RankingError, match="not one value of the metric reconstruction"):
            resolve_ranking(plain, wrong)
