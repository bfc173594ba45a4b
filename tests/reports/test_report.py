"""`legr demo` and `legr report`: the whole story, and the page in a real browser."""

import json
import os
import re
import shlex
import shutil
import signal
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import torch
from PIL import Image
from running import ROOT, await_lines, fails, legr, spawn
from safetensors import safe_open
from safetensors.torch import save_file

from legr_cli.commands import demo as story
from legr_cli.cut import uniform_scores
from legr_cli.deploy import plan_timer
from legr_cli.models.network import open_network
from legr_cli.reports.charts import DataPoint, Plot, Series, heatmaps, plots
from legr_cli.reports.collect import collect
from legr_cli.reports.records import TEST_ACCURACY
from legr_cli.reports.svg import _ticks, plot_svg

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
BUDGETS = (30, 60)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo that was killed in its search, and went on with fewer budgets to tune."""
    out = tmp_path_factory.mktemp("told") / "demo"
    process = spawn("legr_cli", "demo", "--out", out)
    await_lines(out / "ranking.history.jsonl", 12)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story, "BUDGETS", BUDGETS)
        said = json.loads(legr("demo", "--out", out, "--json"))
    assert said["report"] == str(out / "report.html")
    assert len(said["networks"]) == 15
    return out


@pytest.mark.slow
def test_the_demo_goes_on_and_repeats_nothing(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story, "BUDGETS", BUDGETS)
    kept = [*told.glob("tuned/*.safetensors"), told / "dense.safetensors", told / "bench.json"]
    assert len(kept) == 6
    before = [path.stat().st_mtime_ns for path in kept]
    printed = legr("demo", "--out", told)
    assert [path.stat().st_mtime_ns for path in kept] == before
    assert printed.splitlines()[-1] == str(told / "report.html")
    assert "dense" in printed
    log = (told / "demo.log").read_text()
    assert "training is already complete" in log
    assert "candidates are in the history" in log


def test_the_demo_gives_what_it_promises(told: Path) -> None:
    facts = collect([told])
    by_label = {(net.method, net.file.name): net for net in facts.networks}
    dense = by_label["dense", "dense.safetensors"]
    assert dense.is_scored
    assert dense.at(TEST_ACCURACY).final > 0.93
    tuned = [net for net in facts.networks if net.is_scored and net.method != "dense"]
    assert sorted(net.method for net in tuned) == ["legr", "legr", "uniform", "uniform"]
    for net in tuned:
        scores = net.at(TEST_ACCURACY)
        assert scores.final > 0.85
        assert net.share < 0.61
        assert [latency.ratio > 0 for latency in net.latencies] == [True]
        steps = [command.split()[1] for command in net.commands]
        assert steps == ["finetune", "prune", "repair", "finetune"]
        assert scores.cut < scores.repaired
        assert scores.cut < scores.final
        assert net.commands[-1].endswith(str(net.file))
    [search] = facts.searches
    assert len(search.candidates) == 40


def test_bad_places_for_a_demo(told: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file: name a folder" in fails("demo", "--out", tmp_path / "file")
    assert "contains other files" in fails("demo", "--out", tmp_path)
    assert "does not exist" in fails("demo", "--out", tmp_path / "no" / "such")
    other = tmp_path / "other"
    other.mkdir()
    (other / "demo.log").write_text("")
    (other / "dense.safetensors").write_text("not a network")
    (other / "dense.epochs.jsonl").write_text("{}\n")
    assert "a step failed" in fails("demo", "--out", other)


class Links(HTMLParser):
    """What a page leads to and loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.nets: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        found = dict(attrs)
        self.links += [found["href"]] if tag == "a" else []
        self.loads += [found[key] for key in ("src", "srcset") if key in found]
        self.loads += [found["href"]] if tag == "link" else []
        self.nets += [found["data-net"]] if "data-net" in found else []


def test_the_page_is_whole(told: Path) -> None:
    text = (told / "report.html").read_text(encoding="utf-8")
    found = Links(text)
    assert found.loads == []
    assert not re.findall(r"https?://", text)
    assert len(found.links) == 15
    for link in found.links:
        assert (told / unquote(link)).is_file()
    for title in (
        "Accuracy by FLOPs",
        "Accuracy by latency on ",
        "Latency by FLOPs",
        "Search for ranking.json",
        "α by layer",
        "κ by layer",
        "Channels kept, by layer",
        "Networks",
        "Commands",
    ):
        assert f"<h2>{title}" in text
    assert "legr learn " in text
    assert "$" not in re.sub(r"<script>.*</script>", "", text, flags=re.S)
    assert set(found.nets) == {str(i) for i in range(15)}


def test_pictures(told: Path, tmp_path: Path) -> None:
    args = ("--png", tmp_path / "png", "--svg", tmp_path / "svg", "--animate", tmp_path / "s.gif")
    printed = legr("report", told, "--out", tmp_path / "r.html", *args).splitlines()
    assert len(printed) == 1 + 7 + 7 + 1
    for path in map(Path, printed):
        assert path.stat().st_size > 1000
    with Image.open(tmp_path / "s.gif") as moving:
        assert moving.n_frames > 20
    assert (tmp_path / "png" / "accuracy-flops.png").exists()
    assert (tmp_path / "svg" / "channels.svg").exists()


@pytest.mark.slow
def test_the_docs_commands(told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/reports.md and docs/latency.md as they stand there, on this small network."""
    for name, of in (("nets", "legr"), ("tuned", "tuned")):
        shutil.copytree(told / of, tmp_path / name)
    shutil.copytree(tmp_path / "nets", tmp_path / "results")
    for name in ("bench.json", "ranking.json", "ranking.history.jsonl"):
        for folder in (tmp_path, tmp_path / "results"):
            shutil.copy(told / name, folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_timer, "SECONDS", 0.1)
    docs = ROOT / "docs"
    text = "".join((docs / name).read_text() for name in ("reports.md", "latency.md"))
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) == 5
    few = {"bench": ["--seconds", "0.05"]}
    for line in lines:
        words = shlex.split(line.replace("torchvision:mobilenet_v2", "random:small_cifar"))[1:]
        found = [sorted(map(str, Path().glob(word))) if "*" in word else [word] for word in words]
        legr(*(word for part in found for word in part), *few.get(words[0], []))
    assert {"report.html", "search.gif", "bench.svg", "fast.safetensors", "figures"} <= {
        path.name for path in tmp_path.iterdir()
    }


def test_a_report_of_parts(told: Path, tmp_path: Path) -> None:
    """Whatever there is is shown, and no more."""
    out = tmp_path / "r.html"
    legr("report", told / "bench.json", "--out", out)
    assert "Latency by FLOPs" in out.read_text()
    assert "Search for" not in out.read_text()
    legr("report", told / "ranking.json", "--out", out)
    assert "α by layer" in out.read_text()
    assert "<table>" not in out.read_text()
    legr("report", told / "legr", "--out", out)
    assert "Channels kept" in out.read_text()
    assert "Accuracy by FLOPs" not in out.read_text()


def test_two_architectures_are_told_apart(tmp_path: Path) -> None:
    """Rows by architecture, a map of channels each, and the dense ones that were only timed."""
    for arch in ("small_cifar", "resnet20"):
        path = tmp_path / f"{arch}-half.safetensors"
        legr("prune", f"random:{arch}", "--flops", 0.5, "--out", path)
        args = (
            "--against",
            f"random:{arch}",
            "--seconds",
            0.05,
            "--out",
            tmp_path / f"{arch}.json",
        )
        legr("bench", path, *args)
    facts = collect([tmp_path])
    assert [net.label for net in facts.networks] == [
        "resnet20 dense",
        "resnet20 norm 50%",
        "small_cifar dense",
        "small_cifar norm 50%",
    ]
    assert all(net.latencies for net in facts.networks)
    assert [len(tiles.rows) for tiles in heatmaps(facts)] == [1, 1]
    legr("report", tmp_path, "--out", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "Channels kept of resnet20, by layer" in text
    assert "test accuracy, %</button>" not in text
    assert len(Links(text).links) == 2


def noted(path: Path, source: Path, **training: object) -> None:
    """A network file whose training notes say this."""
    with safe_open(source, "pt") as file:
        header = json.loads(file.metadata()["legr"])
    header["notes"]["training"] = training
    save_file({"x": torch.zeros(1)}, path, metadata={"legr": json.dumps(header)})


def line(**figures: float) -> dict:
    """What training records of a task other than classification."""
    named = {name.replace("_", " "): value for name, value in figures.items()}
    return {"score": -1.5, "figures": named, "loss": 1.0, "images": 4}


def test_each_score_has_its_own_axis(tmp_path: Path) -> None:
    """Mean IoU on test images, of b from legr evaluate, and a relative error on held-out ones."""
    cut = tmp_path / "nets" / "cut.safetensors"
    cut.parent.mkdir()
    legr("prune", "random:small_cifar", "--flops", 0.5, "--out", cut)
    segmenter = {"mean_IoU": 0.45, "pixel_accuracy": 0.8}
    noted(
        tmp_path / "nets" / "a.safetensors", cut, test=line(**segmenter), before=line(mean_IoU=0.2)
    )
    noted(tmp_path / "nets" / "b.safetensors", cut, validation=line(relative_error=1.25))
    rows = [
        {"file": str(cut.with_stem(name)), "score": 0.1, "figures": {"mean IoU": value}}
        for name, value in (("cut", 0.1), ("b", 0.375))
    ]
    scores = {"format": "legr-scores", "split": "test", "scores": rows}
    (tmp_path / "nets" / "scores.json").write_text(json.dumps(scores))
    drawn = {plot.key: plot for plot in plots(collect([tmp_path]))}
    assert list(drawn) == ["mean-iou-flops", "validation-relative-error-flops"]
    iou, error = drawn.values()
    assert (iou.title, iou.y) == ("Mean IoU by FLOPs", "test mean IoU, %")
    assert error.title == "Validation relative error by FLOPs"
    assert error.y == "validation relative error"
    drawn_points = [[point.y for point in plot.series[0].points] for plot in (iou, error)]
    assert drawn_points == [[45, 37.5], [1.25]]
    legr("report", tmp_path, "--out", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert re.findall("<button>([^<]*)</button>", text)[3:-1] == [
        "cut: test mean IoU, %",
        "test mean IoU, %",
        "before fine-tuning (validation): mean IoU, %",
        "validation relative error",
    ]
    assert "ccuracy" not in text


def test_the_best_candidate_may_have_the_smallest_figure(tmp_path: Path) -> None:
    """Errors of 0.5, 0.2 and 0.3; another candidate could not reach the target."""
    best = {"score": -0.04, "figures": {"relative error": 0.2}}
    ranking = {"format": "legr-ranking", "layers": [], "best": best, "history": "r.history.jsonl"}
    (tmp_path / "r.json").write_text(json.dumps(ranking))
    lines = [{"format": "legr-history"}]
    for number, error in enumerate((0.5, 0.2, 0.3)):
        figures = {"score": -error * error, "figures": {"relative error": error}}
        lines.append({"candidate": number, **figures})
    lines.append({"candidate": 3, "score": -1e30, "figures": {"score": -1e30}})
    (tmp_path / "r.history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    [plot] = plots(collect([tmp_path]))
    assert plot.y == "validation relative error"
    assert [[point.y for point in series.points] for series in plot.series] == [
        [0.5, 0.2, 0.3],
        [0.5, 0.2, 0.2],
    ]


def test_bad_reports(told: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "r.html")
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "x.txt").write_text("")
    (tmp_path / "x.safetensors").write_text("")
    (tmp_path / "broken.json").write_text('{"format": "legr-ranking", "layers": [{"name": 3}]}')
    for name, words in {
        "x.json": "x.json is not a network",
        "x.txt": "x.txt is not a network",
        "x.safetensors": "not a valid safetensors file",
        "broken.json": "broken.json is damaged",
        "missing": "does not exist",
    }.items():
        assert words in fails("report", tmp_path / name, *out)
    (tmp_path / "empty").mkdir()
    assert "no results of legr" in fails("report", tmp_path / "empty", *out)
    row = {"file": "x.safetensors", "score": 0.5, "figures": {"mean IoU": 0.5}}
    scores = {"format": "legr-scores", "split": "val", "scores": [row]}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    assert "there are only scores: also pass" in fails("report", tmp_path / "scores.json", *out)
    assert "ends in .html" in fails("report", told, "--out", tmp_path / "r.pdf")
    assert "ends in .gif" in fails("report", told, *out, "--animate", tmp_path / "s.mp4")
    assert "--animate needs a search" in fails(
        "report", told / "bench.json", *out, "--animate", tmp_path / "s.gif"
    )
    assert not (tmp_path / "r.html").exists()
    assert not (tmp_path / "s.gif").exists()


def test_names_cannot_break_the_page(told: Path, tmp_path: Path) -> None:
    folder = tmp_path / "nets"
    folder.mkdir()
    evil = folder / "<img src=x onerror=alert(1)>.safetensors"
    shutil.copy(next((told / "legr").iterdir()), evil)
    legr("report", folder, "--out", tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "<img" not in text
    assert (tmp_path / unquote(Links(text).links[0])).is_file()


def test_headers_may_say_anything(told: Path, tmp_path: Path) -> None:
    source = next((told / "legr").iterdir())
    with safe_open(source, "pt") as file:
        header = json.loads(file.metadata()["legr"])
    odd = {"flops": 3, "training": [], "commands": 5, "method": None, "dense_flops": "x"}
    for i, notes in enumerate(
        ({}, odd, {"dense_channels": {"conv1": -1}, "flops": {"after": 1e99}})
    ):
        path = tmp_path / f"{i}.safetensors"
        text = json.dumps({**header, "notes": notes})
        save_file({"x": torch.zeros(1)}, path, metadata={"legr": text})
    legr("report", tmp_path, "--out", tmp_path / "r.html", "--png", tmp_path / "png")
    assert len(Links((tmp_path / "r.html").read_text()).links) == 3


def test_what_is_drawn(told: Path) -> None:
    facts = collect([told])
    curve = next(plot for plot in plots(facts) if plot.key == "accuracy-flops")
    assert [series.name for series in curve.series] == ["legr", "uniform"]
    for series in curve.series:
        assert [point.x for point in series.points] == sorted(point.x for point in series.points)
        assert series.points[-1].x == 100
    [tiles] = heatmaps(facts)
    assert tiles.columns == ["conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "linear"]
    assert len(tiles.rows) == 14
    for label, number, shares in tiles.rows:
        kept = open_network(str(facts.networks[number].file)).kept
        assert shares[0] == len(kept["conv1"]) / 16, label


def test_ticks_are_round_and_reach_around() -> None:
    assert _ticks([0, 100]) == [0, 20, 40, 60, 80, 100]
    assert _ticks([0.03, 0.083]) == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert _ticks([7, 7])[0] < 7 < _ticks([7, 7])[-1]


def test_a_plot_places_its_points() -> None:
    """Axes from 0 to 100 on both sides: 52 … 428 across, 230 … 10 up."""
    points = [DataPoint(0, 0, "low"), DataPoint(100, 100, "<high>", 3)]
    plot = Plot("k", "t", "x", "y", [Series("a", points)])
    text = plot_svg(plot)
    assert '<circle class="s0" cx="52.0" cy="230.0" r="4">' in text
    assert '<circle class="s0" cx="428.0" cy="10.0" r="4" data-net="3" tabindex="0">' in text
    assert "&lt;high&gt;" in text


def test_uniform_scores_are_shares_of_each_group() -> None:
    """Two groups of 3 and 2 units: the best of each has 1, the worst 1/3 and 1/2."""
    importance = np.array([5.0, 900.0, 1.0, 800.0, 3.0])
    group_of = np.array([0, 1, 0, 1, 0])
    assert uniform_scores(importance, group_of).tolist() == pytest.approx([1, 1, 1 / 3, 0.5, 2 / 3])


def test_uniform_keeps_the_same_share_of_every_layer(tmp_path: Path) -> None:
    args = ("--flops", 0.36, "--align", 1, "--ranking", "uniform", "--json")
    found = json.loads(legr("prune", "random:resnet18", *args, "--out", tmp_path / "u.safetensors"))
    shares = [
        kept / of for name, (kept, of) in found["pruned"][0]["layers"].items() if name != "fc"
    ]
    assert 0.57 < min(shares) <= max(shares) < 0.60
    assert any(note.startswith("uniform: ") for note in found["notes"])


@pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and os.environ.get("LEGR_BOARDS") != "required",
    reason="no chromium and chromedriver on this machine",
)
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(width: int, told: Path, tmp_path: Path) -> None:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    quiet = "headless no-sandbox disable-gpu disable-quic no-first-run disable-sync"
    for word in f"{quiet} disable-background-networking disable-component-update".split():
        options.add_argument(f"--{word}")
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, Service(DRIVER))
    try:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        browser.get((told / "report.html").as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert browser.execute_script(OVERLAPS) == []
        picked = "return Array.from(document.querySelectorAll('tr.picked')).map(r => r.dataset.net)"
        click = "dispatchEvent(new MouseEvent('click', {bubbles: true}))"
        first = "document.querySelector('circle[data-net]')"
        browser.execute_script(f"{first}.{click}")
        assert browser.execute_script(picked) == [
            browser.execute_script(f"return {first}.dataset.net")
        ]
        rows = "Array.from(document.querySelectorAll('tbody tr'))"
        order = f"return {rows}.map(r => r.cells[1].dataset.value)"
        sort = f"document.querySelectorAll('th button')[1].{click}"
        for descending in (False, True):
            browser.execute_script(sort)
            values = [float(value) for value in browser.execute_script(order)]
            assert values == sorted(values, reverse=descending)
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    finally:
        browser.quit()


OVERLAPS = """
const found = [];
const apart = (a, b) => a.right <= b.left + 1 || a.bottom <= b.top + 1;
const over = (a, b) => !apart(a, b) && !apart(b, a);
const check = (elements) => {
  const boxes = elements.map((e) => [e.textContent.slice(0, 30), e.getBoundingClientRect()]);
  boxes.forEach(([name, box], i) => boxes.slice(i + 1).forEach(([other, next]) => {
    if (over(box, next)) found.push([name, other]);
  }));
};
check(Array.from(document.querySelectorAll("figure, section, header, footer")));
for (const svg of document.querySelectorAll("svg")) check(Array.from(svg.querySelectorAll("text")));
return found;
"""
