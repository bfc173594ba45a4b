"""`legr compare --repair N --teacher`: every network is repaired and taught by the dense one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from digits_net import trained
from running import fails, legr
from torch import nn

import legr_cli
from legr_cli.baselines.methods import search_of
from legr_cli.errors import SettingError
from legr_cli.models.card import read_card
from legr_cli.settings import Compare, Search
from legr_cli.targets import Target
from legr_cli.training.recipes import settings_of

NET = ("--arch", "digits_net:build", "--input", "3x32x32", "--data", "digits")
SMALL = ("--flops", "0.3,0.6", "--align", 1, "--epochs", 1, "--methods", "norm,uniform")


def compared(folder: Path) -> dict:
    return json.loads((folder / "compare.json").read_text())


@pytest.fixture(scope="module")
def versus(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "versus"
    args = ("--repair", 64, "--teacher", "--out", folder)
    assert legr("compare", weights, *NET, *SMALL, *args) == f"{folder / 'compare.json'}\n"
    return folder


def test_networks_are_scored_as_cut_as_repaired_and_as_trained(versus: Path, weights: Path) -> None:
    """What legr repair makes of the file in pruned/ has the score before fine-tuning."""
    found = compared(versus)
    assert (found["settings"]["repair"], found["settings"]["teacher"]) == (64, True)
    assert found["settings"]["recipe"] == "repaired"
    rows = found["rows"]
    made = [(row["method"], row["target"]) for row in rows]
    assert made == [(m, t) for m in ("norm", "uniform") for t in ("flops60", "flops30")]
    for row in rows:
        assert row["repair_seconds"] >= 0
        assert row["cut"] < row["before"]
        notes = read_card(versus / row["file"]).notes
        assert notes["training"]["settings"]["recipe"] == "repaired"
        assert notes["training"]["teacher_sha256"] == found["weights_sha256"]
        assert notes["repaired"]
    [row] = [row for row in rows if (row["method"], row["target"]) == ("norm", "flops30")]
    pruned = versus / "pruned" / Path(row["file"]).name
    again = versus.parent / "again.safetensors"
    arch = ("--arch", "digits_net:build", "--data", "digits")
    dense = ("--dense", weights)
    legr("repair", pruned, *arch, *dense, "--images", 64, "--out", again)
    for file, key in ((pruned, "cut"), (again, "before"), (versus / row["file"], "accuracy")):
        [told] = json.loads(legr("evaluate", file, *arch, "--json"))["scores"]
        assert told["accuracy"] == row[key], key


def test_resumed_it_is_the_same(versus: Path, weights: Path, tmp_path: Path) -> None:
    """From the first of its four networks; another number of images is another comparison."""
    folder = tmp_path / "v"
    args = ("compare", weights, *NET, *SMALL, "--teacher", "--out", folder)
    legr(*args, "--repair", 64)
    journal = folder / "compare.jsonl"
    whole = journal.read_bytes()
    legr(*args, "--repair", 64, "--resume")
    assert journal.read_bytes() == whole
    journal.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    legr(*args, "--repair", 64, "--resume")
    clocks = ("repair_seconds", "pruning", "tuning")
    rows = [
        [{k: v for k, v in row.items() if k not in clocks} for row in compared(f)["rows"]]
        for f in (folder, versus)
    ]
    assert rows[0] == rows[1]
    line = fails(*args, "--repair", 32, "--resume")
    assert "--repair was 64, is now 32" in line
    line = fails(*args[:-3], *args[-2:], "--repair", 64, "--resume")
    assert "--teacher was True, is now False" in line


@pytest.mark.parametrize(
    ("args", "recipe"),
    [
        (("--repair", 64, "--teacher"), "repaired"),
        (("--repair", 64), "quick"),
        (("--teacher",), "quick"),
        ((), "quick"),
        (("--repair", 64, "--teacher", "--recipe", "quick"), "quick"),
    ],
)
def test_the_recipe_follows(args: tuple, recipe: str, weights: Path, tmp_path: Path) -> None:
    """Unless it is given; without --repair, rows have no score as cut."""
    small = ("--flops", 0.6, "--align", 1, "--methods", "uniform", "--epochs", 1)
    legr("compare", weights, *NET, *small, *args, "--out", tmp_path / "v")
    found = compared(tmp_path / "v")
    assert found["settings"]["recipe"] == recipe
    [row] = found["rows"]
    assert ("cut" in row, "repair_seconds" in row) == (("--repair" in args),) * 2
    notes = read_card(tmp_path / "v" / row["file"]).notes
    teacher = found["weights_sha256"] if "--teacher" in args else None
    assert notes["training"]["teacher_sha256"] == teacher


def test_a_comparison_from_before_goes_on(weights: Path, tmp_path: Path) -> None:
    """Then there was no --repair and no --teacher."""
    folder = tmp_path / "v"
    args = ("compare", weights, *NET, *SMALL, "--out", folder)
    legr(*args)
    journal = folder / "compare.jsonl"
    header, *lines = journal.read_text().splitlines()
    old = json.loads(header)
    for name in ("repair", "teacher"):
        del old["settings"][name]
    journal.write_text("\n".join([json.dumps(old), *lines, ""]))
    legr(*args, "--resume")
    assert "--repair was None, is now 64" in fails(*args, "--repair", 64, "--resume")


def test_too_few_images(weights: Path, tmp_path: Path) -> None:
    args = ("compare", weights, *NET, *SMALL, "--out", tmp_path / "v")
    for count, message in (
        (1, "--repair must be at least 2 images, or 0 for no repair, got 1"),
        (-1, "--repair must be at least 0, got -1"),
    ):
        assert message in fails(*args, "--repair", count)
        assert not (tmp_path / "v").exists()


def settings_of_compare(**given: object) -> Compare:
    targets = tuple(Target("flops", share) for share in (0.3, 0.6))
    training = settings_of("quick", epochs=1)
    return Compare(methods=("legr",), targets=targets, training=training, **given)


def test_searches_of_a_comparison() -> None:
    """LeGR's is that of legr learn; the others keep the paper's metric, and nothing is rejected."""
    settings = settings_of_compare(fitness="repair")
    own, other = (search_of(settings, (0.3, 0.6), 0, explorer) for explorer in (None, "random"))
    assert (own.metric, own.explorer, own.objective) == ("reconstruction", "surrogate", "log")
    assert (own.candidates, own.reject_above > 1) == (100, True)
    assert (other.metric, other.explorer, other.reject_above) == ("squared-norm", "random", 0.0)
    paper = search_of(settings_of_compare(fitness="finetune"), (0.3,), 0)
    assert (paper.metric, paper.explorer, paper.candidates) == ("squared-norm", "evolution", 400)
    assert paper.val_images == Search.val_images


def test_the_default_fitness_is_repair(weights: Path, tmp_path: Path) -> None:
    """A search serves what --flops spans; its ranking carries the metric's values."""
    args = ("--methods", "legr", "--flops", "0.3,0.6", "--align", 1, "--epochs", 1)
    small = ("--candidates", 4, "--steps", 1, "--val-images", 60, "--batch-size", 32)
    legr("compare", weights, *NET, *args, *small, "--out", tmp_path / "v")
    found = compared(tmp_path / "v")
    assert (found["settings"]["fitness"], found["settings"]["candidates"]) == ("repair", 4)
    path = tmp_path / "v" / "rankings" / "legr-seed0.json"
    ranking = json.loads(path.read_text())
    assert ranking["metric"] == "reconstruction"
    assert ranking["settings"]["flops"] == [0.3, 0.42, 0.6]
    out = tmp_path / "net.safetensors"
    prune = ("prune", weights, *NET[:4], "--align", 1, "--flops", 0.3, "--ranking", path)
    legr(*prune, "--out", out)
    pruned = tmp_path / "v" / "pruned" / "legr-flops30-seed0.safetensors"
    assert read_card(out).kept == read_card(pruned).kept
    history = (tmp_path / "v" / "rankings" / "legr-seed0.history.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in history[1:]]
    measured = sum(line.get("measured", 3) for line in lines if "seconds" in line)
    effort = found["rows"][0]["pruning"]
    assert (effort["steps"], effort["images"]) == (0, measured * (32 + 60))


def test_from_python(tmp_path: Path) -> None:
    model: nn.Module = trained()
    settings = settings_of_compare(repair=32, teacher=True)
    with pytest.raises(SettingError, match="--repair must be at least 2 images"):
        settings_of_compare(repair=1)
    settings = replace(settings, methods=("uniform",))
    found = legr_cli.compare(
        model, "digits", tmp_path / "v", settings=settings, input_shape=(3, 32, 32)
    )
    assert found.settings.repair == 32
    assert [row["before"] > row["cut"] for row in found.facts["rows"]] == [True, True]
