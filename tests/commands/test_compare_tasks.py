"""`legr compare` beyond classification: images without labels, and a score of the user's own."""

import json
from pathlib import Path

import digits_net
import pytest
import torch
from pictures import paint
from running import fails, legr, runner

import legr_cli
from legr_cli.cli import app
from legr_cli.models.card import read_card
from legr_cli.settings import Compare
from legr_cli.targets import Target
from legr_cli.training.recipes import settings_of

NET = ("--arch", "digits_net:build", "--input", "3x32x32")
SMALL = ("--candidates", 3, "--steps", 1, "--round-units", 12, "--round-steps", 1, "--epochs", 1)
SMALL = (*SMALL, "--flops", 0.5, "--align", 1, "--batch-size", 8)
SCORES = """
def words(outputs, targets):
    return "good"


def raises(outputs, targets):
    raise KeyError("boom")


def margin(outputs, targets):
    return (outputs - targets).mean()
"""


@pytest.fixture(scope="module")
def camera(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Forty pictures of noise; four of them are held out."""
    folder = tmp_path_factory.mktemp("camera")
    for i in range(40):
        paint(folder / f"{i:02}.png", seed=i)
    return f"images:{folder}"


def test_without_labels(camera: str, weights: Path, tmp_path: Path) -> None:
    """The dense network gives the targets, and evaluate comes to the same figures."""
    folder, dense = tmp_path / "v", str(weights)
    args = ("compare", dense, *NET, "--data", camera, *SMALL, "--methods", "legr,uniform,taylor")
    result = runner.invoke(app, [str(arg) for arg in (*args, "--out", folder)])
    assert result.exit_code == 0, result.output
    assert "agreement 100.00% on 4 images" in result.stderr
    assert "Agreement, %" in result.stderr
    assert "ccuracy" not in result.stderr
    found = json.loads((folder / "compare.json").read_text())
    assert (found["task"], found["score"], found["split"]) == (
        "closeness", "agreement", "validation"
    )  # fmt: skip
    assert found["settings"]["fitness"] == "repair"
    assert found["dense"]["figures"] == {"agreement": 1.0}
    assert [row["method"] for row in found["rows"]] == ["legr", "uniform", "taylor"]
    for row in found["rows"]:
        against = ("--against", dense, "--data", camera, *NET, "--json")
        scores = []
        for stage in ("pruned", "tuned"):
            file = folder / stage / Path(row["file"]).name
            [told] = json.loads(legr("evaluate", file, *against))["scores"]
            scores.append(told["figures"]["agreement"])
        assert scores == [row["before"], row["score"]]
        notes = read_card(folder / row["file"]).notes["training"]
        assert notes["validation"]["figures"]["agreement"] == row["score"]
        assert notes["teacher_sha256"] == found["weights_sha256"]
    seen = (folder / "compare.jsonl").read_bytes()
    legr(*args, "--out", folder, "--resume")
    assert (folder / "compare.jsonl").read_bytes() == seen
    page = tmp_path / "r.html"
    legr("report", folder, "--out", page)
    assert "Validation agreement by FLOPs: digits_net:build" in page.read_text()
    assert "validation agreement, %</button>" in page.read_text()
    assert "ccuracy" not in page.read_text()


def test_bad_scores(
    camera: str, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, and nothing is left."""
    (tmp_path / "scores_of_mine.py").write_text(SCORES)
    monkeypatch.syspath_prepend(tmp_path)
    args = ("compare", weights, *NET, *SMALL, "--methods", "uniform", "--out", tmp_path / "v")
    for score, message in {
        "words": "score must return one number, the mean over the batch, got str",
        "raises": "score scores_of_mine.raises failed: KeyError: 'boom'",
        "missing": "scores_of_mine:missing",
    }.items():
        for data in (camera, "digits"):
            line = fails(*args, "--data", data, "--score", f"scores_of_mine:{score}")
            assert message in line
            assert not (tmp_path / "v").exists()
    assert "--loss needs labels" in fails(
        *args, "--data", camera, "--loss", "scores_of_mine:margin"
    )
    legr(*args, "--data", camera, "--score", "scores_of_mine:margin")
    line = fails(*args, "--data", camera, "--resume")
    assert "was closeness, scores_of_mine.margin, is now closeness" in line


def test_a_score_of_ones_own_in_python(tmp_path: Path) -> None:
    """Rows carry it, by the name of the function; rounds of pruning train on the loss."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(40, 3, 32, 32, generator=generator)
    targets = torch.rand(40, 10, generator=generator)

    def error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs - targets).square().mean()

    def half_error(outputs: torch.Tensor, targets: torch.Tensor) -> float:
        return -error(outputs, targets).item() / 2

    settings = Compare(
        methods=("uniform", "fisher"),
        targets=(Target("flops", 0.9),),
        training=settings_of("quick", epochs=1),
        round_units=12,
        round_steps=1,
    )
    own = {"loss": error, "score": half_error, "settings": settings, "arch": digits_net.build}
    found = legr_cli.compare(digits_net.build(), (images, targets), tmp_path / "v", **own)
    assert found.score_name == "half_error"
    assert found.dense.value == pytest.approx(-found.dense.loss / 2)
    for row in found.rows:
        assert row.result is not None
        assert row.result.score < 0
    assert [summary.by_target["flops90"].score for summary in found.methods] == [
        row.result.score for row in found.rows
    ]
