"""Latency targets: the search by measured latencies, and `legr prune --latency`."""

import json
from pathlib import Path

import numpy as np
import pytest
from running import fails, legr

from legr_cli.deploy import plan_timer
from legr_cli.errors import BudgetError, SettingError
from legr_cli.latency import TOLERANCE, Timing, fast_enough
from legr_cli.models.network import open_network
from legr_cli.targets import Target, parse_targets

UNITS = 200


def plan_at(share: float) -> np.ndarray:
    """A line of 200 units; a share keeps the first of them."""
    return np.arange(UNITS) < round(share * UNITS)


class Curve:
    """A clock whose latencies follow a formula; it notes which plans it was asked for."""

    def __init__(self, ratio: object, noise: float = 0.0) -> None:
        self.ratio, self.noise, self.timings = ratio, noise, {}
        self.rng = np.random.default_rng(0)

    def __call__(self, plan: np.ndarray) -> Timing:
        share = plan.sum() / UNITS
        if share not in self.timings:
            ratio = self.ratio(share) * (1 + self.noise * self.rng.uniform(-1, 1))
            self.timings[share] = Timing(8 * ratio, ratio, 8.0, "a curve")
        return self.timings[share]


@pytest.mark.parametrize(
    "ratio",
    [
        lambda share: share,
        lambda share: 0.2 + 0.8 * share,
        lambda share: share**3,
        lambda share: share**0.5,
        lambda share: np.ceil(share * 10) / 10,  # steps, as alignment makes them
    ],
)
@pytest.mark.parametrize("wanted", [0.3, 0.5, 0.75, 0.9])
def test_the_largest_plan_that_is_fast_enough(ratio: object, wanted: float) -> None:
    curve = Curve(ratio)
    kept = fast_enough(Target("latency", wanted), plan_at, 0.01, curve).sum() / UNITS
    assert ratio(kept) <= wanted
    assert ratio(kept) >= wanted * (1 - TOLERANCE) or ratio(kept + 0.01) > wanted
    assert len(curve.timings) <= 12


def test_milliseconds() -> None:
    curve = Curve(lambda share: share)
    kept = fast_enough(Target("latency_ms", 6.0), plan_at, 0.01, curve)
    assert 6.0 * (1 - TOLERANCE) <= 8 * kept.sum() / UNITS <= 6.0
    assert fast_enough(Target("latency_ms", 9.0), plan_at, 0.01, curve).all()


def test_noise_costs_little() -> None:
    """Latencies that are off by up to 1 %: what was measured meets the target all the same."""
    curve = Curve(lambda share: 0.1 + 0.9 * share, noise=0.01)
    kept = fast_enough(Target("latency", 0.5), plan_at, 0.01, curve)
    assert 0.5 * (1 - TOLERANCE) <= curve(kept).ratio <= 0.5
    assert len(curve.timings) <= 10


def test_what_cannot_be_reached_names_the_least() -> None:
    curve = Curve(lambda share: 0.2 + 0.8 * share)
    with pytest.raises(BudgetError, match=r"latency 25.0% .* is 0.28, at"):
        fast_enough(Target("latency", 0.25), plan_at, 0.1, curve)
    with pytest.raises(BudgetError, match=r"latency 2 ms .* is 2.24 ms"):
        fast_enough(Target("latency_ms", 2), plan_at, 0.1, curve)
    assert fast_enough(Target("latency", 0.28), plan_at, 0.1, curve).sum() == 20


def test_targets_are_parsed() -> None:
    [share, ms] = parse_targets("latency", "0.5,12.5ms")
    assert (share.what, share.value, share.label, str(share)) == (
        "latency",
        0.5,
        "latency50",
        "latency 50.0%",
    )
    assert (ms.what, ms.value, ms.label, str(ms)) == (
        "latency_ms",
        12.5,
        "latency12.5ms",
        "latency 12.5 ms",
    )
    assert len(parse_targets("latency", "0.2:0.8:0.1")) == 7
    for wrong in ("0ms", "-3ms", "nanms", "infms", "1:2:1ms", "12s", "ms", "1.5"):
        with pytest.raises(SettingError, match="--latency"):
            parse_targets("latency", wrong)
    with pytest.raises(SettingError, match="--flops 5ms: expected a share"):
        parse_targets("flops", "5ms")


@pytest.mark.slow
def test_prune_to_a_latency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both targets are met as measured, their plans nest, and the files say how fast they are."""
    monkeypatch.setattr(plan_timer, "SECONDS", 0.3)
    args = ("prune", "random:small_cifar", "--latency", "0.6,0.9", "--flops", 0.5, "--align", 1)
    found = json.loads(legr(*args, "--out", tmp_path / "nets", "--json"))
    flops, fast, slow = found["pruned"]
    assert "latency" not in flops
    assert fast["latency"]["ratio"] <= 0.6
    assert slow["latency"]["ratio"] <= 0.9
    assert fast["flops"] < slow["flops"]
    for row, name in ((fast, "latency60"), (slow, "latency90")):
        assert Path(row["file"]).name == f"small_cifar-{name}.safetensors"
        notes = open_network(row["file"]).notes
        assert notes["latency"] == row["latency"]
        assert notes["target"] == row["target"]
        assert row["latency"]["ms"] < row["latency"]["dense_ms"]
    networks = [open_network(row["file"]).kept for row in (fast, slow)]
    assert all(set(networks[0][name]) <= set(networks[1][name]) for name in networks[0])
    assert any("1 thread" in note for note in found["notes"])


def test_bad_latencies(tmp_path: Path) -> None:
    out = tmp_path / "x.safetensors"
    prune = ("prune", "random:small_cifar", "--out", out)
    assert "the lowest is " in fails(*prune, "--latency", "0.0001ms", "--align", 1)
    assert "--latency" in fails(*prune, "--flops", 0.5, "--ssh", "somewhere")
    assert "--onnx" in fails(*prune, "--flops", 0.5, "--batch", 1)
    assert "fast" in fails(*prune, "--latency", "fast")
    assert list(tmp_path.iterdir()) == []
