"""Importance and the budget cut, by numbers worked out by hand."""

import laws
import nets
import numpy as np
import pytest
import torch

from legr_cli.channels import Units, couple
from legr_cli.cost import price
from legr_cli.cut import arrange, cut, floor
from legr_cli.errors import BudgetError, RankingError, SettingError
from legr_cli.metrics.filters import collect_filters
from legr_cli.metrics.table import METRICS, Metric
from legr_cli.models.registry import Arch, build
from legr_cli.ranking import (
    Ranking,
    Row,
    affine,
    check_ranking,
    identity,
    importance,
    level,
    scored,
)
from legr_cli.settings import Align, parse_align
from legr_cli.shapes import parse_input
from legr_cli.targets import Target, parse_targets


def test_importance_is_the_sum_over_tied_filters() -> None:
    """stem and b are tied by the sum: 2·‖stem₃‖² + 5 + 3·‖b₃‖² + 7."""
    model = nets.make("residual")
    units = couple(model, nets.INPUT)
    filters = collect_filters(units)
    rows = {
        "stem": Row("stem", 13, 2.0, 5.0),
        "a": Row("a", 23, 1.0, 0.0),
        "b": Row("b", 13, 3.0, 7.0),
    }
    scores = importance(filters, Ranking(tuple(rows[name] for name in filters.names)))
    unit = units.unit_of(units.flow.layers["stem"].out)[3]
    norms = [float(model.get_submodule(n).weight[3].detach().square().sum()) for n in ("stem", "b")]
    assert scores[unit] == pytest.approx(2 * norms[0] + 5 + 3 * norms[1] + 7)
    alone = units.unit_of(units.flow.layers["a"].out)[4]
    assert scores[alone] == pytest.approx(float(model.a.weight[4].detach().square().sum()))


def test_rankings_name_their_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric is one entry of the table; rankings made with it say so, and unknown ones fail."""

    def largest(units: Units) -> dict[str, torch.Tensor]:
        layers = units.flow.layers.items()
        return {name: layer.weight.detach().abs().flatten(1).amax(1) for name, layer in layers}

    monkeypatch.setitem(METRICS, "largest", Metric("largest weight", largest))
    model = nets.make("plain")
    filters = collect_filters(couple(model, nets.INPUT), "largest")
    assert filters.value[0] == pytest.approx(
        float(next(model.parameters())[0].detach().abs().max())
    )
    genes = {"alpha": np.ones(len(filters.names)), "kappa": np.zeros(len(filters.names))}
    scores = np.ones(filters.units)
    for ranking in (identity(filters), affine(filters, genes), scored(filters, scores, "taylor")):
        assert ranking.metric == "largest"
        check_ranking(ranking, filters)
    monkeypatch.delitem(METRICS, "largest")
    with pytest.raises(RankingError, match="'largest': expected squared-norm"):
        check_ranking(ranking, filters)


@pytest.mark.parametrize("name", ["plain", "residual", "resnet20"])
def test_level_rows_bring_every_group_to_the_same_place(name: str) -> None:
    """A fifth of a group is below −1/2, three fifths below 1/2; in resnet20 groups share layers."""
    padded = name == "resnet20"
    model = made(name)
    units = couple(model, (3, 32, 32) if padded else nets.INPUT)
    filters, group_of = collect_filters(units), price(units).group_of
    genes = level(filters, group_of)
    scores = importance(filters, affine(filters, genes))
    for group in range(group_of.max() + 1):
        low, high = np.quantile(scores[group_of == group], (0.2, 0.6))
        assert (low + high) / 2 == pytest.approx(0, abs=1e-9)
        assert high - low == pytest.approx(1, abs=0.8 if padded else 1e-9)


def made(name: str) -> torch.nn.Module:
    return build(Arch("resnet20")) if name == "resnet20" else nets.make(name)


@pytest.mark.parametrize(("filters_alike", "value"), [(13, 0.1), (13, 1e-18), (10, 1e-20)])
def test_level_rows_of_filters_that_are_alike(filters_alike: int, value: float) -> None:
    model = nets.make("plain")
    with torch.no_grad():
        model.body[0].weight[:filters_alike] = value
    units = couple(model, nets.INPUT)
    genes = level(collect_filters(units), price(units).group_of)
    assert all(np.isfinite(numbers).all() for numbers in genes.values())
    assert (genes["alpha"] > 0).all()
    assert (genes["alpha"] < 1e6).all()


def test_without_a_ranking_only_norms_count() -> None:
    filters = collect_filters(couple(nets.make("plain"), nets.INPUT))
    assert np.array_equal(
        importance(filters, identity(filters)), filters.value[np.argsort(filters.unit)]
    )


def test_the_weakest_go_first_and_the_best_of_each_layer_stay() -> None:
    model = nets.make("plain")
    with torch.no_grad():
        for i in range(13):
            model.body[0].weight[i] = 0.01 * (i + 1)  # far below the other layer
    units = couple(model, nets.INPUT)
    cost = price(units)
    filters = collect_filters(units)
    blocks = arrange(units, cost, importance(filters, identity(filters)), 0.2, Align())
    lowest = floor(cost, blocks, cost.flops)
    kept = blocks.kept(cut(cost, blocks, cost.flops, lowest + 0.02), cost)
    first = np.flatnonzero(units.keeps(kept, units.flow.layers["body.0"].out))
    assert first.tolist() == [10, 11, 12]  # ⌈0.2 · 13⌉ = 3, the largest


def test_out_of_reach_names_the_lowest() -> None:
    units = couple(nets.make("plain"), nets.INPUT)
    cost = price(units)
    blocks = laws.ranked(units, cost)
    lowest = floor(cost, blocks, cost.flops)
    with pytest.raises(BudgetError, match=f"the lowest is {lowest:g};"):
        cut(cost, blocks, cost.flops, lowest - 0.005)
    cut(cost, blocks, cost.flops, lowest)


@pytest.mark.parametrize("name", ["concat", "residual", "shuffle view 5", "pad halves"])
def test_targets_nest_across_every_tenth_and_fill_the_budget(name: str) -> None:
    units = couple(nets.make(name), nets.INPUT)
    cost = price(units)
    rng = np.random.default_rng(0)
    lowest = floor(cost, laws.ranked(units, cost), cost.flops)
    shares = sorted([*rng.uniform(lowest, 1, 30), *(s for s in laws.SHARES if s >= lowest)])
    plans = {share: laws.plan(units, cost, share) for share in shares}
    for small in shares:
        for large in shares:
            if int(small * 10 + 1e-9) < int(large * 10 + 1e-9):
                assert not (plans[small] & ~plans[large]).any(), (small, large)
    for share, kept in plans.items():
        if not kept.all():
            laws.law5_under_the_target_and_full(units, cost, kept, share, within=1.0)


def test_a_full_budget_keeps_everything() -> None:
    units = couple(nets.make("concat"), nets.INPUT)
    assert laws.plan(units, price(units), 1.0).all()


def test_parameter_budgets() -> None:
    units = couple(nets.make("no norm"), nets.INPUT)
    cost = price(units)
    blocks = laws.ranked(units, cost)
    counts = cost.counts(blocks.kept(cut(cost, blocks, cost.params, 0.5), cost))
    share = cost.total(cost.params, counts) / cost.total(cost.params, cost.sizes)
    assert 0.45 < share <= 0.5


def test_blocks_of_grouped_channels_count_channels() -> None:
    """Units of 4 channels: a block of 16 channels is 4 units; narrow groups get smaller blocks."""
    align = parse_align("avx512")
    widths, channels = np.array([128, 64, 32, 16, 8, 3]), np.array([4, 1, 1, 1, 1, 1])
    assert align.blocks(widths, channels).tolist() == [4, 16, 8, 4, 2, 1]
    assert parse_align("6").blocks(widths, channels).tolist() == [3, 6, 6, 6, 6, 6]


def test_targets_are_read() -> None:
    shares = [t.value for t in parse_targets("flops", "0.2:0.8:0.1")]
    assert shares == [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    assert [t.label for t in parse_targets("params", "0.4,0.125")] == ["params40", "params12.5"]
    assert [t.value for t in parse_targets("flops", "0.5:0.5:0.1")] == [0.5]
    assert parse_input("3x96x128") == (3, 96, 128)
    with pytest.raises(SettingError):
        Target("flops", 1.01)
