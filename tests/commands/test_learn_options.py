"""`legr learn`: its defaults, what replaces them, and searches of a given time."""

import dataclasses
import json
from pathlib import Path

import digits_net
import nets
import pytest
import torch
from running import fails, legr, runner
from torch import Tensor, nn

import legr_cli
from legr_cli.cli import app
from legr_cli.errors import SettingError
from legr_cli.models.card import read_card
from legr_cli.progress import Message
from legr_cli.search.fitness import with_steps
from legr_cli.search.planning import planned_search
from legr_cli.settings import Search
from legr_cli.targets import parse_shares
from legr_cli.training.tasks import CLASSIFICATION

NET = ("--arch", "digits_net:build", "--input", "3x32x32", "--data", "digits")
QUICK = ("--batch-size", 16, "--steps", 1, "--val-images", 60)


def lines_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in out.with_suffix(".history.jsonl").read_text().splitlines()]


def test_shares_of_a_range() -> None:
    """Its ends and their geometric mean, √0.16 and √0.27 ≈ 0.52."""
    assert parse_shares("0.2:0.8", "flops") == (0.2, 0.4, 0.8)
    assert parse_shares("0.3:0.9", "flops") == (0.3, 0.52, 0.9)
    assert parse_shares("0.4", "flops") == (0.4,)
    assert parse_shares("0.5,0.3", "flops") == (0.5, 0.3)
    assert parse_shares("0.2:0.4:0.1", "flops") == (0.2, 0.3, 0.4)
    for text in ("0.8:0.2", "0.4:0.4"):
        with pytest.raises(SettingError, match=f"--flops {text}: a range goes up from FROM to TO"):
            parse_shares(text, "flops")
    for text in ("0.2:1.5", "0:0.5", "a:b", ":", "0.2:nan"):
        with pytest.raises(SettingError, match="--flops"):
            parse_shares(text, "flops")


def test_the_papers_algorithm() -> None:
    """Algorithm 1 as it was: every number of it."""
    [settings] = planned_search(CLASSIFICATION, "finetune", start="identity", steps=200)
    assert with_steps(settings) == Search(
        flops=(0.2,),
        candidates=400,
        population=64,
        sample=16,
        mutate=0.1,
        sigma=1.0,
        sigma_end=1.0,
        start="identity",
        explorer="evolution",
        metric="squared-norm",
        objective="mean",
        minutes=None,
        reject_above=0.0,
        fitness="finetune",
        steps=200,
        batch_size=128,
        lr=0.01,
        val_images=10_000,
        workers=1,
        seed=0,
    )
    assert with_steps(Search()) == with_steps(planned_search(CLASSIFICATION, "finetune")[0])


def test_the_paper_from_the_command_line(weights: Path, tmp_path: Path) -> None:
    """All settings but the number of candidates, which the population follows."""
    out = tmp_path / "r.json"
    args = ("--start", "identity", "--fitness", "finetune", "--steps", 1, "--candidates", 2)
    legr("learn", weights, *NET, *args, "--align", 1, "--min-keep", 0.05, "--out", out)
    stored = json.loads(out.read_text())["settings"]
    wanted = dataclasses.asdict(Search(start="identity", fitness="finetune", steps=1))
    wanted |= {"candidates": 2, "population": 2, "sample": 2, "flops": 0.2, "align": "1"}
    del wanted["min_keep_layers"]
    assert stored == {**wanted, "min_keep": 0.05}
    assert "values" not in json.loads(out.read_text())["layers"][0]


def test_the_defaults(weights: Path, tmp_path: Path) -> None:
    """Repair at 20 to 80 %: a surrogate over what cannot be reconstructed, by the log."""
    settings, fallback = planned_search(CLASSIFICATION, None)
    assert (settings.fitness, fallback.fitness) == ("repair", "finetune")
    assert fallback == Search()
    chosen = ("flops", "explorer", "metric", "objective", "candidates", "batch_size", "val_images")
    wanted = (0.2, 0.4, 0.8), "surrogate", "reconstruction", "log", 100, 64, 500
    assert tuple(getattr(settings, name) for name in chosen) == wanted
    out = tmp_path / "r.json"
    result = runner.invoke(app, [str(a) for a in (
        "learn", weights, *NET, *QUICK, "--candidates", 14, "--out", out
    )])  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "candidates are compared at 20%, 40% and 80% of the FLOPs" in result.stderr
    found = json.loads(out.read_text())
    assert found["metric"] == "reconstruction"
    assert [len(row["values"]) for row in found["layers"]] == [24, 32, 48]
    assert found["settings"]["explorer"] == "surrogate"
    header, *lines = lines_of(out)
    assert header["metric_values"] == {row["name"]: row["values"] for row in found["layers"]}
    assert len(lines) == 14
    assert found["best"]["divergences"] == lines[found["best"]["candidate"]]["divergences"]


def test_learned_on_images_and_pruned_without(weights: Path, tmp_path: Path) -> None:
    """The plan of the search, byte for byte the same from a file, and from Python."""
    out, net = tmp_path / "r.json", tmp_path / "net.safetensors"
    args = ("--candidates", 6, "--flops", 0.4, "--align", 1, "--metric", "taylor")
    legr("learn", weights, *NET, *QUICK, *args, "--out", out)
    found = json.loads(out.read_text())
    assert (found["metric"], found["settings"]["metric"]) == ("taylor", "taylor")
    prune = ("prune", weights, *NET[:4], "--ranking", out, "--flops", 0.4, "--align", 1)
    legr(*prune, "--out", net)
    card = read_card(net)
    assert card.notes["flops"]["after"] == found["best"]["flops"]
    dense = digits_net.build()
    dense.load_state_dict(torch.load(weights, weights_only=True))
    smaller = legr_cli.prune(dense.eval(), (3, 32, 32), flops=0.4, ranking=out, align=1)
    again = legr_cli.load(net, arch="digits_net:build")
    images = torch.rand(3, 3, 32, 32)
    assert torch.equal(smaller(images), again(images))
    damaged = out.read_text().replace('"taylor"', '"tailor"')
    out.write_text(damaged)
    assert "uses the unknown metric 'tailor'" in fails(*prune, "--out", tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    "args",
    [
        ("--explorer", "cmaes", "--metric", "folded-norm", "--objective", "mean"),
        ("--explorer", "random", "--metric", "squared-norm", "--objective", "score"),
        ("--explorer", "evolution", "--metric", "taylor", "--objective", "log"),
        ("--fitness", "bn", "--explorer", "surrogate", "--metric", "reconstruction"),
    ],
)
def test_any_of_them_together_and_resumed(args: tuple, weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    args = ("learn", weights, *NET, *QUICK, *args, "--candidates", 16, "--flops", "0.3,0.6")
    legr(*args, "--out", out)
    whole = json.loads(out.read_text())
    for name, value in zip(args[-10::2], args[-9::2], strict=True):
        if name in ("--explorer", "--metric", "--objective"):
            assert whole["settings"][name.strip("-")] == value
    history = out.with_suffix(".history.jsonl")
    content = history.read_bytes()
    history.write_bytes(content[: len(content) * 2 // 3])
    legr(*args, "--out", out, "--resume")
    again = json.loads(out.read_text())
    for key in ("layers", "best", "identity", "metric", "settings"):
        assert again[key] == whole[key]
    other = "taylor" if whole["metric"] != "taylor" else "folded-norm"
    line = fails(*args, "--metric", other, "--out", out, "--resume")
    assert f"--metric was {whole['metric']}, is now {other}" in line


def test_a_history_from_before_these_settings_goes_on(weights: Path, tmp_path: Path) -> None:
    """Then there was evolution over squared norms, by the mean; with another it is another."""
    out, history = tmp_path / "r.json", tmp_path / "r.history.jsonl"
    args = ("learn", weights, *NET, "--fitness", "bn", "--steps", 1, "--candidates", 4)
    legr(*args, "--out", out)
    rows = json.loads(out.read_text())["layers"]
    header, *lines = history.read_text().splitlines()
    old = json.loads(header)
    for name in ("explorer", "metric", "objective", "minutes", "reject_above"):
        del old["settings"][name]
    history.write_text("\n".join([json.dumps(old), *lines[:2], ""]))
    legr(*args, "--resume", "--out", out)
    assert json.loads(out.read_text())["layers"] == rows
    assert "--explorer was None, is now cmaes" in fails(
        *args, "--explorer", "cmaes", "--resume", "--out", out
    )


def test_minutes(weights: Path, tmp_path: Path) -> None:
    """As many as fit, by the first three; finished, it stays so, and killed, it ends so."""
    out, history = tmp_path / "r.json", tmp_path / "r.history.jsonl"
    args = ("learn", weights, *NET, *QUICK, "--flops", 0.4, "--explorer", "evolution")
    args = (*args, "--minutes", 0.01, "--align", 1, "--out", out)
    result = runner.invoke(app, [str(arg) for arg in args])
    assert result.exit_code == 0, result.output
    first, lines = json.loads(out.read_text()), lines_of(out)[1:]
    planned = lines[2]["planned"]
    assert [line["candidate"] for line in lines] == list(range(planned))
    seconds = [line["seconds"] for line in lines[:3] if "seconds" in line]
    assert planned == max(3, int(0.6 / (sum(seconds) / len(seconds))))
    if planned > 3:
        assert f"--minutes 0.01 allows {planned} candidates of" in result.stderr
    assert first["settings"]["minutes"] == 0.01
    whole = history.read_bytes()
    legr(*args, "--resume")
    assert history.read_bytes() == whole
    cut = b"".join(whole.splitlines(keepends=True)[:4])
    history.write_bytes(cut)
    out.unlink()
    legr(*args, "--resume")
    assert len(lines_of(out)) == 1 + planned
    assert json.loads(out.read_text())["layers"] == first["layers"]
    with pytest.raises(SettingError, match="--minutes decides how many"):
        planned_search(CLASSIFICATION, None, minutes=1.0, candidates=5)


class Doubled(nn.Conv2d):
    """A convolution whose output is not a plain product with its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def unrepairable() -> nn.Module:
    torch.manual_seed(0)
    layers = Doubled(3, 13, 3), nn.ReLU(), Doubled(13, 5, 3)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()


@pytest.mark.parametrize(("labels", "fitness"), [(True, "finetune"), (False, "none")])
def test_what_cannot_be_repaired_is_learned_otherwise(labels: bool, fitness: str) -> None:
    """And it is said; with the paper's settings."""
    images = torch.randn(60, *nets.INPUT, generator=torch.Generator().manual_seed(1))
    data = (images, torch.arange(60) % 5) if labels else images
    told: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, Message):
            told.append(str(event))

    found = legr_cli.learn(unrepairable(), data, flops=0.6, candidates=3, progress=listen)
    text = f"no layer of this network can be repaired: using --fitness {fitness}"
    assert [message for message in told if "repaired" in message] == [text]
    stored = found.notes["settings"]
    assert (stored["fitness"], stored["metric"]) == (fitness, "squared-norm")
    assert (stored["explorer"], stored["objective"]) == ("evolution", "mean")
    assert found.metric == "squared-norm"
    assert stored["flops"] == 0.6


def test_an_objective_of_divergences_needs_no_fitness_to_be_named(
    weights: Path, tmp_path: Path
) -> None:
    """Repair is the default, so --objective log alone is fine."""
    out = tmp_path / "r.json"
    args = ("--objective", "log", "--candidates", 3, "--flops", "0.3,0.6")
    legr("learn", weights, *NET, *QUICK, *args, "--out", out)
    assert json.loads(out.read_text())["settings"]["objective"] == "log"


def test_a_limit_of_rejection_needs_no_fitness_to_be_named(weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    args = ("--reject-above", 1.5, "--candidates", 3, "--flops", "0.3,0.6")
    legr("learn", weights, *NET, *QUICK, *args, "--out", out)
    assert json.loads(out.read_text())["settings"]["reject_above"] == 1.5
