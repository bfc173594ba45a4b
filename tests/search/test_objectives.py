"""What candidates are ranked by: numbers worked out by hand."""

import math

import pytest

from legr_cli.errors import SettingError
from legr_cli.search.evolution import Fitness
from legr_cli.search.lines import fitness_of
from legr_cli.search.objectives import OBJECTIVES, check_objective, divergences_in, excess
from legr_cli.settings import Search

LINE = {"accuracy": 0.7, "loss": 2.0, "divergence": 0.25, "divergences": [0.4, 0.1]}


def test_by_hand() -> None:
    """log counts 0.02 more, so that what is near 0 is equally good."""
    assert OBJECTIVES["mean"]([0.4, 0.1], LINE) == -0.25
    assert OBJECTIVES["score"]([0.4, 0.1], LINE) == 0.7
    expected = -(math.log(0.42) + math.log(0.12)) / 2
    assert OBJECTIVES["log"]([0.4, 0.1], LINE) == pytest.approx(expected)
    for name, score in (("mean", -0.25), ("score", 0.7), ("log", expected)):
        settings = Search(fitness="repair", flops=(0.2, 0.4), objective=name)
        assert fitness_of(LINE, settings) == Fitness(pytest.approx(score), -2.0)


def test_equal_relative_gains_count_alike_by_log_alone() -> None:
    """8 → 7.2 and 0.8 → 0.72 are a tenth each; the mean sees the former only."""
    start, low, high = [8.0, 0.8], [7.2, 0.8], [8.0, 0.72]
    gains = {
        name: [OBJECTIVES[name](d, LINE) - OBJECTIVES[name](start, LINE) for d in (low, high)]
        for name in ("log", "mean")
    }
    assert gains["log"][0] == pytest.approx(gains["log"][1], rel=0.03)
    assert gains["mean"] == pytest.approx([0.4, 0.04])
    traded = [8.0 * 1.05, 0.8 * 0.85]  # worse where there is much, better where there is little
    assert OBJECTIVES["log"](traded, LINE) > OBJECTIVES["log"](start, LINE)
    assert OBJECTIVES["mean"](traded, LINE) < OBJECTIVES["mean"](start, LINE)


def test_divergences_of_a_line() -> None:
    """One share has no list; what is no number is infinite; candidates may not be compared."""
    assert divergences_in(LINE) == [0.4, 0.1]
    assert divergences_in({"divergence": 0.3}) == [0.3]
    assert divergences_in({"divergence": None, "divergences": [0.4, None]}) == [0.4, math.inf]
    assert divergences_in({"accuracy": 0.7, "loss": 2.0}) is None


def test_excess_by_hand() -> None:
    """A geometric mean over the shares that both have, with 0.02 added to each."""
    assert excess([0.4], [0.2, 0.1, 0.05]) == pytest.approx(0.42 / 0.22)
    assert excess([0.4, 0.1], [0.2, 0.1, 0.05]) == pytest.approx(math.sqrt(0.42 / 0.22))
    assert excess([0.002], [0.001]) == pytest.approx(22 / 21)
    assert excess([0.2, 0.1], [0.2, 0.1]) == pytest.approx(1)
    assert excess([0.0], [0.0, 0.3]) == pytest.approx(1)
    assert excess([math.inf], [0.2]) == math.exp(100)
    assert not excess([0.4], [math.inf]) > 1  # whatever it is, it is no worse than that


def test_bad_objectives() -> None:
    for name, by_divergence in (("log", True), ("mean", False), ("score", False)):
        check_objective(name, by_divergence)
    with pytest.raises(SettingError, match="--objective sum: expected mean, log, score"):
        check_objective("sum", True)
    with pytest.raises(SettingError, match=r"--objective log compares divergences.*use mean"):
        check_objective("log", False)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_divergence_that_is_no_number_ranks_last(objective: str) -> None:
    settings = Search(fitness="repair", flops=(0.2, 0.4), objective=objective)
    lost = {**LINE, "divergence": None, "divergences": [0.4, None]}
    assert fitness_of(lost, settings) == Fitness(-math.inf, -2.0)
    assert fitness_of(lost, settings) < fitness_of(LINE, settings)
