"""`legr compare`, end to end, on the digits inside the package."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from digits_net import dropping, normless
from running import await_lines, fails, legr, runner, spawn

from legr_cli.baselines.methods import METHODS
from legr_cli.baselines.summary import ComparisonRow, summarize
from legr_cli.cli import app
from legr_cli.models.card import read_card
from legr_cli.reports.collect import collect
from legr_cli.training.devices import half_precision

NET = ("--arch", "digits_net:build", "--input", "3x32x32", "--data", "digits")
SMALL = ("--candidates", 4, "--fitness", "bn", "--steps", 1, "--round-units", 6)
SMALL = (*SMALL, "--round-steps", 1, "--trials", 2, "--trial-steps", 3, "--epochs", 1)
SMALL = (*SMALL, "--flops", "0.4,0.7", "--align", 1)


def compared(folder: Path) -> dict:
    """compare.json, without what differs between two runs."""
    data = json.loads((folder / "compare.json").read_text())
    for row in data["rows"]:
        for kind in ("pruning", "tuning"):
            assert row[kind].pop("seconds") >= 0
    del data["command"]
    return data


@pytest.fixture(scope="module")
def versus(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All methods, once."""
    folder = tmp_path_factory.mktemp("compare") / "versus"
    out = legr("compare", weights, *NET, *SMALL, "--methods", "all", "--out", folder)
    assert out == f"{folder / 'compare.json'}\n"
    return folder


@pytest.mark.slow
def test_every_method_meets_every_target(versus: Path) -> None:
    rows = compared(versus)["rows"]
    made = [(row["method"], row["target"]) for row in rows]
    assert made == [(m, t) for m in METHODS for t in ("flops70", "flops40")]
    for row in rows:
        assert row["share"] - 0.05 < row["flops"] / row["dense_flops"] <= row["share"]
        card = read_card(versus / row["file"])
        assert card.notes["method"] == row["method"]
        assert card.notes["flops"] == {"before": row["dense_flops"], "after": row["flops"]}
        assert card.notes["training"]["test"]["accuracy"] == row["accuracy"]
        assert "legr compare" in card.notes["commands"][-1]


def test_costs_are_counted(versus: Path) -> None:
    """Four candidates with a batch of 128 to adapt on and 142 images to measure on."""
    costs: dict[str, list[dict]] = {}
    for row in compared(versus)["rows"]:
        costs.setdefault(row["method"], []).append(row["pruning"])
    free = {"steps": 0, "images": 0}
    search = {"steps": 0, "images": 4 * (128 + 142)}
    assert costs["norm"] == costs["uniform"] == [free, free]
    assert costs["legr"] == costs["legr-ddpg"] == [search, free]
    assert costs["amc"] == [search, search]
    assert costs["morphnet"] == [{"steps": 6, "images": 6 * 128}] * 2
    for method in ("taylor", "fisher"):
        lines = (versus / f"rankings/{method}-seed0.rounds.jsonl").read_text().splitlines()[1:]
        assert sum(cost["steps"] for cost in costs[method]) == len(lines)
        assert all(cost["images"] == 128 * cost["steps"] for cost in costs[method])


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("norm", "uniform")])
def test_prune_takes_the_rankings(method: str, versus: Path, weights: Path, tmp_path: Path) -> None:
    """The same channels go; what stays are the dense network's own weights."""
    each = "-flops40" if METHODS[method].per_target else ""
    ranking = versus / f"rankings/{method}{each}-seed0.json"
    out = tmp_path / "net.safetensors"
    net = ("--arch", "digits_net:build", "--input", "3x32x32", "--align", 1)
    legr("prune", weights, *net, "--ranking", ranking, "--flops", 0.4, "--out", out)
    card = read_card(out)
    assert card.kept == read_card(versus / f"pruned/{method}-flops40-seed0.safetensors").kept
    assert card.notes["method"] == method


def test_the_page_shows_it(versus: Path, tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    legr("report", versus, "--out", page, "--png", tmp_path / "png")
    text = page.read_text(encoding="utf-8")
    assert "Accuracy by FLOPs: digits_net:build" in text
    assert "Cost of 2 networks of digits_net:build" in text
    assert text.count('class="s0"') > 3
    names = {path.name for path in (tmp_path / "png").iterdir()}
    assert names == {
        "compare-versus.png", "compare-before-versus.png", "cost-versus.png", "channels.png"
    }  # fmt: skip
    for damage in ('{"format": "legr-comparison"}', "[1]", "{"):
        bad = tmp_path / "bad" / "compare.json"
        bad.parent.mkdir(exist_ok=True)
        bad.write_text(damage)
        assert str(bad) in fails("report", bad, "--out", page)


@pytest.mark.slow
def test_killed_and_resumed_it_ends_the_same(versus: Path, weights: Path, tmp_path: Path) -> None:
    """Killed in the middle of a search, of rounds and of trials."""
    folder = tmp_path / "versus"
    args = ("legr_cli", "compare", weights, *NET, *SMALL, "--methods", "all", "--out", folder)
    moments = (
        folder / "rankings/amc-flops70-seed0.history.jsonl",
        folder / "rankings/fisher-seed0.rounds.jsonl",
        folder / "rankings/morphnet-flops40-seed0.rounds.jsonl",
    )
    for number, moment in enumerate(moments):
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # as in this process: the same sums
        process = spawn(*args, *(["--resume"] if number else []), env=one_thread)
        await_lines(moment, 2)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (folder / "compare.json").exists()
    assert "pass --resume" in fails(*args[1:])
    legr(*args[1:], "--resume")
    assert compared(folder) == compared(versus)
    changed = (*args[1:], "--resume", "--candidates", 5)
    assert "--candidates was 4, is now 5" in fails(*changed)
    seen = (folder / "compare.jsonl").read_bytes()
    legr(*args[1:], "--resume")
    assert (folder / "compare.jsonl").read_bytes() == seen


def test_force_waits_for_whoever_is_at_work(weights: Path, tmp_path: Path) -> None:
    """Nothing of theirs is touched; later it does begin anew."""
    folder = tmp_path / "v"
    args = ("compare", weights, *NET, *SMALL, "--methods", "uniform,legr", "--out", folder)
    process = spawn("legr_cli", *args, "--candidates", 4000)
    await_lines(folder / "rankings/legr-seed0.history.jsonl", 3)
    kept = sorted(folder.rglob("*.safetensors"))
    assert "another legr compare is writing" in fails(*args, "--force")
    assert kept == sorted(folder.rglob("*.safetensors")) != []
    process.kill()
    process.communicate()
    legr(*args, "--force")
    assert len(compared(folder)["rows"]) == 4


def test_damage_inside_a_comparison_costs_only_that(weights: Path, tmp_path: Path) -> None:
    """The message names the file to remove, and going on then works."""
    folder = tmp_path / "v"
    args = ("compare", weights, *NET, *SMALL, "--methods", "fisher", "--round-units", 1)
    args = (*args, "--flops", 0.5, "--out", folder)
    rounds = folder / "rankings/fisher-seed0.rounds.jsonl"
    process = spawn("legr_cli", *args)
    await_lines(rounds, 4)
    process.kill()
    process.communicate()
    state = folder / "rankings/fisher-seed0.state"
    state.write_bytes(b"damaged")
    line = fails(*args, "--resume")
    assert str(state) in line
    assert line.endswith("--resume")
    state.unlink()
    legr(*args, "--resume")
    assert len(compared(folder)["rows"]) == 1
    (folder / "tuned/fisher-flops50-seed0.safetensors").unlink()
    result = runner.invoke(app, [str(arg) for arg in (*args, "--resume")])
    assert "1 of these are no longer in" in result.stderr
    record = folder / "compare.jsonl"
    record.write_text(record.read_text().replace('"dense": {', '"dance": {'))
    assert f"{record} is not a legr-pieces file" in fails(*args, "--resume")


def test_more_units_a_round_than_there_are(weights: Path, tmp_path: Path) -> None:
    """A round ends when nothing more may go; every target above that is met."""
    args = ("--methods", "taylor", "--flops", "0.05,0.6", "--round-units", 1000)
    legr("compare", weights, *NET, *SMALL, *args, "--out", tmp_path / "v")
    assert ["error" in row for row in compared(tmp_path / "v")["rows"]] == [False, False]


def test_numbers_are_whole_in_a_narrow_terminal(versus: Path, weights: Path) -> None:
    args = ("compare", weights, *NET, *SMALL, "--methods", "all", "--out", versus, "--resume")
    env = {"COLUMNS": "40"}
    result = runner.invoke(app, [str(arg) for arg in args], env=env)
    assert "total, × legr" in result.stderr
    assert "1.08\N{NO-BREAK SPACE}k" in result.stderr  # 4 · (128 + 142) images


def test_dropout_is_drawn_from_the_seed(tmp_path: Path) -> None:
    """Methods that train on the way come to the same scores again."""
    torch.manual_seed(0)
    torch.save(dropping().state_dict(), tmp_path / "net.pth")
    net = ("--arch", "digits_net:dropping", "--input", "3x32x32", "--data", "digits")
    found = []
    for number in range(2):
        torch.manual_seed(number)
        out = tmp_path / str(number)
        methods = ("--methods", "taylor,morphnet", "--out", out)
        legr("compare", tmp_path / "net.pth", *net, *SMALL, *methods)
        found.append([(out / "rankings" / name).read_text() for name in (
            "taylor-seed0.json", "morphnet-flops40-seed0.json"
        )])  # fmt: skip
    assert found[0] == found[1]


def test_several_seeds(weights: Path, tmp_path: Path) -> None:
    """Other images are held out, and the mean is that of the rows."""
    folder = tmp_path / "v"
    args = ("--methods", "uniform,random", "--repeats", 2, "--seed", 3, "--workers", 2)
    legr("compare", weights, *NET, *SMALL, *args, "--out", folder)
    rows = compared(folder)["rows"]
    assert sorted({row["seed"] for row in rows}) == [3, 4]
    data = json.loads((folder / "compare.json").read_text())
    uniform, _ = summarize(map(ComparisonRow.from_line, data["rows"]))
    own = [row["accuracy"] for row in rows if (row["method"], row["share"]) == ("uniform", 0.7)]
    point = uniform.by_target["flops70"]
    assert point.score == pytest.approx(sum(own) / 2)
    assert point.deviation == pytest.approx(abs(own[0] - own[1]) / 2**0.5)
    assert uniform.relative_pruning is uniform.relative_total is None  # LeGR was not compared


def test_what_cannot_be_done_is_told(weights: Path, tmp_path: Path) -> None:
    """A network without BatchNorm, and a target that nothing reaches: the others go on."""
    bare = tmp_path / "bare.pth"
    torch.manual_seed(0)
    torch.save(normless().state_dict(), bare)
    net = ("--arch", "digits_net:normless", "--input", "3x32x32", "--data", "digits")
    small = (*SMALL, "--fitness", "none", "--flops", "0.001,0.7")
    args = ("compare", bare, *net, *small, "--methods", "morphnet,uniform")
    result = runner.invoke(app, [str(arg) for arg in (*args, "--out", tmp_path / "v")])
    assert result.exit_code == 0, result.output
    assert "– morphnet: needs BatchNorm" in result.stderr
    assert "– morphnet, uniform: 0.001 of the FLOPs cannot be reached: the lowest" in result.stderr
    rows = json.loads((tmp_path / "v" / "compare.json").read_text())["rows"]
    assert ["error" in row for row in rows] == [True, True, False, True]
    alone = (*args[:-1], "morphnet", "--out", tmp_path / "alone")
    assert "every method failed; morphnet: " in fails(*alone)
    bn = (*args, "--fitness", "bn", "--out", tmp_path / "bn")
    assert "this network has no BatchNorm" in fails(*bn)
    assert not (tmp_path / "bn").exists()


def test_seeds_compared_one_by_one_are_reported_as_one(weights: Path, tmp_path: Path) -> None:
    args = ("--methods", "uniform,norm", "--flops", 0.6, "--epochs", 1, "--align", 1)
    for name, more in (("both", ("--repeats", 2)), ("0", ()), ("1", ("--seed", 1))):
        legr("compare", weights, *NET, *args, *more, "--out", tmp_path / name)
    [whole] = collect([tmp_path / "both"]).comparisons
    [sums] = collect([tmp_path / "0", tmp_path / "1"]).comparisons
    points = [[own.by_target["flops60"] for own in found.summaries] for found in (whole, sums)]
    assert points[0] == points[1]
    assert points[0][0].seeds == 2
    assert len(sums.commands) == 2
    legr("report", tmp_path / "0", tmp_path / "1", "--out", tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text().count("legr compare ") == 2
    legr(
        "compare", weights, *NET, *args, "--seed", 1, "--normalize", "half", "--out", tmp_path / "h"
    )
    assert len(collect([tmp_path / "0", tmp_path / "h"]).comparisons) == 2
    assert len(collect([tmp_path / "0"]).networks) == len(
        collect([tmp_path / "0", tmp_path / "1"]).networks
    )
    twice = collect([tmp_path / "both", tmp_path / "1"]).comparisons  # the same seed: no new facts
    assert [len(found.rows) for found in twice] == [4, 2]


def test_in_half_precision_at_two_shares(weights: Path, tmp_path: Path) -> None:
    args = ("--methods", "legr", "--flops", 0.6, "--search-flops", "0.3,0.6", "--amp", "--json")
    small = ("--candidates", 2, "--fitness", "finetune", "--steps", 2, "--epochs", 1)
    small = (*small, "--sigma", 0.5)
    legr("compare", weights, *NET, *args, *small, "--out", tmp_path / "v")
    data = json.loads((tmp_path / "v" / "compare.json").read_text())
    assert data["settings"]["search_flops"] == [0.3, 0.6]
    ranking = json.loads((tmp_path / "v" / "rankings" / "legr-seed0.json").read_text())
    assert ranking["settings"]["flops"] == [0.3, 0.6]
    assert len(ranking["best"]["each"]) == 2
    assert ranking["settings"]["sigma"] == ranking["settings"]["sigma_end"] == 0.5
    assert data["rows"][0]["pruning"]["steps"] == 2 * 2 * 2
    half = half_precision(torch.device("cpu")) is not None
    assert data["settings"]["amp"] is ranking["settings"]["amp"] is half
    [made] = (tmp_path / "v" / "tuned").glob("*.safetensors")
    assert read_card(made).notes["training"]["settings"]["amp"] is half


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--methods", "legr,magic"), "--methods magic: expected all, or some of legr, norm, "),
        (("--methods", "legr,legr"), "--methods: the same method is given twice"),
        (("--methods", ""), "--methods : expected all"),
        (("--flops", "1.5"), "--flops must be over 0 and at most 1"),
        (("--flops", "0.4,0.4"), "the same target is given twice"),
        (("--search-flops", 0), "--search-flops must be over 0"),
        (("--search-flops", ""), "--search-flops : expected a share"),
        (("--round-steps", 0), "--round-steps must be at least 1"),
        (("--round-lr", "nan"), "--round-lr must be at least"),
        (("--trials", 0), "--trials must be at least 1"),
        (("--repeats", 0), "--repeats must be at least 1"),
        (("--candidates", 0), "--candidates must be at least 1"),
        (("--sigma", 0), "--sigma must be positive"),
        (("--recipe", "slow"), "--recipe slow: expected"),
        (("--resume", "--force"), "cannot be combined"),
    ],
)
def test_bad_input(args: tuple, message: str, weights: Path, tmp_path: Path) -> None:
    assert message in fails("compare", weights, *NET, *args, "--out", tmp_path / "v")
    assert not (tmp_path / "v").exists()


def test_bad_places(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name, message in (
        ("full", "contains other files"),
        ("file", "is a file"),
        ("none/v", "does not exist"),
    ):
        assert message in fails("compare", weights, *NET, "--out", tmp_path / name)
    assert (tmp_path / "full" / "mine.txt").read_text() == "x"
