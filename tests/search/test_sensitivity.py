"""`--start sensitivity`: each group alone is halved, and ranks by the divergence for each FLOP."""

import json
import math
from dataclasses import replace
from pathlib import Path

import nets
import numpy as np
import pytest
import torch
from running import fails, legr

from legr_cli.channels.units import Kept
from legr_cli.errors import SearchError
from legr_cli.metrics.filters import collect_filters
from legr_cli.models.network import Network
from legr_cli.models.registry import Arch
from legr_cli.pruning import Analysis, analyze
from legr_cli.ranking import affine, identity, importance
from legr_cli.search.sensitivity import measure, sensitive

NET = ("--arch", "digits_net:build", "--input", "3x32x32", "--data", "digits")
QUICK = ("--batch-size", 16, "--steps", 1, "--val-images", 60, "--candidates", 4, "--flops", 0.4)


@pytest.fixture(scope="module", params=["squared-norm", "reconstruction"])
def analysis(request: pytest.FixtureRequest) -> Analysis:
    """Two groups, of 13 and 23 units, each of one layer."""
    found = analyze(Network(nets.make("plain"), Arch("tiny"), nets.INPUT))
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(20, *nets.INPUT, generator=generator, dtype=torch.float64)
    measured = collect_filters(found.units, request.param, found.cost, [images])
    return replace(found, filters=measured)


def test_the_half_that_matters_least_is_removed_from_one_group_at_a_time(
    analysis: Analysis,
) -> None:
    """Of 13 units, 6 stay (round half to even), and of 23, 12."""
    seen: list[Kept] = []

    def note(kept: Kept) -> float:
        seen.append(kept.copy())
        return float(len(seen))

    assert measure(analysis, note) == [1.0, 2.0]
    group_of, scores = (
        analysis.cost.group_of,
        importance(analysis.filters, identity(analysis.filters)),
    )
    for group, kept in enumerate(seen):
        assert kept[group_of != group].all()
        own = group_of == group
        assert kept[own].sum() == {13: 6, 23: 12}[int(own.sum())]
        assert scores[own & ~kept].max() <= scores[own & kept].min()


def test_a_half_is_worth_its_divergence_for_each_flop(analysis: Analysis) -> None:
    """The importance of what was removed, summed, is in proportion to it."""
    divergences = [0.3, 0.02]
    genes = sensitive(analysis, divergences)
    plain = importance(analysis.filters, identity(analysis.filters))
    scores = importance(analysis.filters, affine(analysis.filters, genes))
    if analysis.filters.metric == "reconstruction":
        plain, scores = np.exp(plain), np.exp(scores)
    cost, worth = analysis.cost, []
    for group, divergence in enumerate(divergences):
        members = np.flatnonzero(cost.group_of == group)
        order = members[np.argsort(-plain[members], kind="stable")]
        removed = order[max(1, round(0.5 * len(members))) :]
        flops = cost.marginal(cost.flops, cost.sizes.astype(float))[group]
        worth.append(scores[removed].sum() * flops / divergence)
        inside = scores[members] / plain[members]  # within a group, the metric alone decides
        assert inside == pytest.approx(np.full(len(members), inside[0]))
    assert worth[0] == pytest.approx(worth[1])


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_outputs_that_are_no_numbers(value: float | None, analysis: Analysis) -> None:
    with pytest.raises(SearchError, match="--start sensitivity: outputs are NaN"):
        measure(analysis, lambda _: value)


def test_the_command(weights: Path, tmp_path: Path) -> None:
    """The second candidate is what the sensitivities suggest; resumed, they are not measured."""
    out, history = tmp_path / "r.json", tmp_path / "r.history.jsonl"
    args = ("learn", weights, *NET, *QUICK, "--start", "sensitivity", "--out", out)
    legr(*args)
    whole = history.read_bytes()
    header, *lines = (json.loads(line) for line in whole.splitlines())
    assert len(header["sensitivities"]) == 3
    assert set(lines[0]["alpha"]) == set(lines[1]["alpha"]) == {1.0}
    assert set(lines[0]["kappa"]) == {0.0}
    assert len(set(lines[1]["kappa"])) == 3
    rows = json.loads(out.read_text())["layers"]
    history.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]))
    legr(*args, "--resume")
    assert json.loads(out.read_text())["layers"] == rows
    assert history.read_bytes().splitlines()[0] == whole.splitlines()[0]
    wrong = fails(*args[:-1], tmp_path / "other.json", "--fitness", "bn")
    assert "--start sensitivity measures divergences: it needs --fitness repair" in wrong
    assert not (tmp_path / "other.json").exists()
    assert not (tmp_path / "other.history.jsonl").exists()
