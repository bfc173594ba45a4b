"""Tasks without labels, and other than classification: docs/tasks.md, and bad input."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from digits_net import build as digits_net
from pictures import pairs
from running import ROOT, fails, legr
from torch import Tensor, nn

import legr_cli
from legr_cli.data.batches import Serving, in_order
from legr_cli.data.dataset import open_data
from legr_cli.errors import LegrError

PAGE = (ROOT / "docs/tasks.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


@pytest.fixture
def street(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the page assumes: its modules, pictures with labels, and pictures without."""
    for block in blocks("python"):
        if named := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / named[1]).write_text(block)
    pairs(tmp_path / "street", {"train": 32, "test": 8})
    pairs(tmp_path / "more", {"train": 80})
    (tmp_path / "more/train").rename(tmp_path / "camera")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("street", "detector", "policy", "metrics", "two", "bad", "my_pictures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def scores(text: str) -> list[dict]:
    return json.loads(text)["scores"]


def run(section: str) -> list[str]:
    """Run the commands of a section; the last output of `legr evaluate`, if any, is JSON."""
    text = PAGE[PAGE.index(f"## {section}\n") :].partition("\n## ")[0]
    lines = [
        line for block in re.findall(r"```sh\n(.*?)```", text, re.S) for line in block.splitlines()
    ]
    assert lines
    outputs = []
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "legr"
        words += {"evaluate": ["--json"], "bench": ["--seconds", "0.1"]}.get(words[0], [])
        outputs.append(legr(*words))
    return outputs


@pytest.mark.slow
def test_a_segmenter_from_the_page(street: Path) -> None:
    *_, closeness, _, _, labelled = run("A segmenter")
    cut, repaired, tuned = (row["figures"]["pixel agreement"] for row in scores(closeness))
    assert cut < repaired
    assert tuned > 0.9
    assert json.loads(closeness)["split"] == "val"
    dense, cut_iou, tuned_iou = (row["figures"]["mean IoU"] for row in scores(labelled))
    assert dense > 0.6
    assert cut_iou < tuned_iou
    assert tuned_iou > 0.9 * dense
    notes = legr_cli.load("tuned.safetensors", arch="street:build")
    assert notes is not None
    [row] = scores(run("A score and a loss of your own")[0])
    assert list(row["figures"]) == ["red_pixels"]
    assert row["score"] == row["figures"]["red_pixels"] > 0.5


@pytest.mark.slow
def test_a_detectors_backbone_from_the_page(street: Path) -> None:
    import detector

    torch.manual_seed(0)
    net = detector.build().train()
    data = open_data("pairs:street", (3, 24, 32), seed=0, classes=3)
    serving = Serving(data.feed, 8, torch.device("cpu"), loaders=0)
    batches = [
        (x, (labels[:, 1::4, 1::4] == 1).float()) for x, labels in in_order(data.train, serving)
    ]
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for images, red in batches * 20:  # a detector of red squares
        loss = nn.functional.binary_cross_entropy_with_logits(
            net.head(net.backbone(images))[:, 0], red
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    torch.save(net.state_dict(), street / "detector.pth")
    *_, closeness, _ = run("A detector's backbone")
    repaired, tuned = (row["figures"]["relative error"] for row in scores(closeness))
    assert tuned <= repaired < 0.2
    assert (street / "backbone.onnx").exists()
    tuned_net = legr_cli.load("detector.safetensors", arch="detector:build")
    before, after = net.head.state_dict(), tuned_net.head.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)  # only the part was trained


@pytest.mark.slow
def test_a_policy_from_the_page(street: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [code] = [block for block in blocks("python") if not block.startswith("# ")]
    torch.manual_seed(0)  # the page builds its network from whatever comes
    exec(compile(code, "docs/tasks.md", "exec"), {})
    printed = capsys.readouterr().out.strip().splitlines()
    errors = [float(re.search(r"relative error': ([0-9.e-]+)", line)[1]) for line in printed]  # type: ignore[index]
    dense, cut, repaired, tuned = errors
    assert dense == 0
    assert cut > repaired >= tuned
    steering = [float(re.search(r"score': ([0-9.]+)", line)[1]) for line in printed]  # type: ignore[index]
    away = [abs(score - steering[0]) for score in steering]
    assert away[3] < away[1]  # the dense network is the teacher, for better or worse
    assert steering[0] > 0.5


def test_a_regressor_of_digits() -> None:
    """Two coordinates for each image, the ink's centre: no scores of classes."""
    from legr_cli.data.sources import find

    pixels = find("digits")[2].splits["train"].pixels[:400]  # type: ignore[union-attr]
    ink = torch.from_numpy(pixels).float() / 255
    grid = torch.linspace(-1, 1, 32)
    mass = ink.sum((1, 2, 3))
    x = (ink.sum((1, 2)) * grid).sum(1) / mass
    y = (ink.sum((1, 3)) * grid).sum(1) / mass
    centres = torch.stack([x, y], 1) * 10

    def error(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean()

    torch.manual_seed(0)
    net = digits_net(2)
    dense = legr_cli.finetune(
        net, (ink, centres), loss=error, recipe="quick", epochs=6, lr=0.01, batch_size=32
    )
    smaller = legr_cli.prune(
        dense,
        flops=0.15,  # repaired at 0.4, it is already as close as training brings it
        align=1,
        ranking=legr_cli.learn(dense, ink, flops=0.15, candidates=6, outputs="values"),
    )
    usable = legr_cli.repair(smaller, dense, ink, outputs="values")
    tuned = legr_cli.finetune(usable, ink, teacher=dense, epochs=12, batch_size=32)

    def measured(model: nn.Module) -> float:
        found = legr_cli.evaluate(model, ink, against=dense, outputs="values")
        assert list(found.figures) == ["relative error"]
        return found.figures["relative error"]

    cut, repaired, trained = map(measured, (smaller, usable, tuned))
    assert cut > repaired > trained
    assert list(legr_cli.evaluate(tuned, ink, against=dense).figures) == ["relative error"]  # noted
    assert list(legr_cli.evaluate(smaller, ink, against=dense).figures) == ["agreement"]


def test_the_same_from_the_shell_and_from_python(street: Path) -> None:
    legr(
        "finetune",
        "--arch",
        "street:build",
        "--classes",
        3,
        "--data",
        "pairs:street",
        "--recipe",
        "quick",
        "--epochs",
        1,
        "--batch-size",
        8,
        "--out",
        "dense.safetensors",
    )
    small = ("--arch", "street:build")
    legr("prune", "dense.safetensors", *small, "--flops", 0.5, "--out", "small.safetensors")
    [row] = scores(
        legr(
            "evaluate",
            "small.safetensors",
            *small,
            "--against",
            "dense.safetensors",
            "--data",
            "images:camera",
            "--json",
        )
    )
    dense = legr_cli.load("dense.safetensors", arch="street:build")
    pruned = legr_cli.load("small.safetensors", arch="street:build")
    found = legr_cli.evaluate(pruned, "images:camera", against=dense)
    assert found.figures == row["figures"]
    assert (found.split, found.images) == ("val", 8)
    assert found.score == row["score"] == -found.loss


BAD = {
    "finetune without a teacher": (
        "finetune small.safetensors --arch street:build --data images:camera --out x.safetensors",
        "these images have no labels: pass --teacher DENSE",
    ),
    "evaluate without a reference": (
        "evaluate small.safetensors --arch street:build --data images:camera",
        "these images have no labels: pass --against DENSE",
    ),
    "a loss without labels": (
        "finetune small.safetensors --arch street:build --data images:camera --teacher "
        "dense.safetensors --loss metrics:red_pixels --out x.safetensors",
        "--loss needs labels",
    ),
    "no pictures": (
        "learn dense.safetensors --arch street:build --data images:empty --out r.json",
        "empty has no images",
    ),
    "no such score": (
        "evaluate small.safetensors --arch street:build --data pairs:street "
        "--score metrics:nothing",
        "cannot import --score metrics:nothing",
    ),
    "a score that is no function": (
        "evaluate small.safetensors --arch street:build --data pairs:street --score bad:NUMBER",
        "--score bad:NUMBER is not callable",
    ),
    "a score that returns no number": (
        "evaluate small.safetensors --arch street:build --data pairs:street --score bad:words",
        "score must return one number",
    ),
    "a score that raises": (
        "evaluate small.safetensors --arch street:build --data pairs:street --score bad:raises",
        "score bad.raises failed: KeyError",
    ),
    "a score that changes": (
        "evaluate small.safetensors --arch street:build --data pairs:street --score bad:dice",
        "gives another number for the same outputs and targets each time",
    ),
    "a score that is infinite": (
        "evaluate small.safetensors --arch street:build --data pairs:street --score bad:infinite",
        "infinite gives inf: a score must be a finite number",
    ),
    "classes out of range": (
        "evaluate two.safetensors --arch two:build --data pairs:street",
        "has class 2, but the network has 2 classes: pass --ignore-index 2",
    ),
    "a teacher of another structure": (
        "finetune small.safetensors --arch street:build --data images:camera --teacher "
        "two.safetensors --teacher-arch two:build --out x.safetensors",
        "different shapes",
    ),
    "outputs": (
        "evaluate small.safetensors --arch street:build --data images:camera --against "
        "dense.safetensors --outputs numbers",
        "--outputs must be classes or values, got numbers",
    ),
    "a classifier's data for a segmenter": (
        "evaluate small.safetensors --arch street:build --data digits",
        "for label pictures pass pairs:DIR",
    ),
    "a new head for a segmenter": (
        "finetune small.safetensors --arch street:build --data pairs:street --new-head --out "
        "x.safetensors",
        "--new-head is for classifiers",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, street: Path) -> None:
    import street as module

    (street / "empty").mkdir()
    (street / "bad.py").write_text(
        "NUMBER = 3\ndef words(outputs, targets): return 'good'\n"
        "def raises(outputs, targets): return {}['x']\n"
        "def dice(outputs, targets): return __import__('random').random()\n"
        "def infinite(outputs, targets): return float('inf')\n"
    )
    (street / "two.py").write_text("import street\ndef build(): return street.build(2)\n")
    for name, arch in (("dense", "street:build"), ("two", "two:build")):
        net = module.build(2 if name == "two" else 3)
        pruned = legr_cli.prune(net, (3, 24, 32), flops=0.9, arch=arch)
        legr_cli.save(pruned, f"{name}.safetensors")
    command, message = BAD[case]
    assert message in fails(*shlex.split(command.replace("small.", "dense.")))
    assert not Path("x.safetensors").exists()
    assert not Path("r.json").exists()


def test_a_task_that_changes_is_not_resumed(street: Path) -> None:
    import street as module

    images = torch.rand(24, 3, 24, 32)
    labels = torch.randint(3, (24, 24, 32))
    dense = module.build()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)

    def other(outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * nn.functional.cross_entropy(outputs, targets)

    options = {"fitness": "none", "flops": 0.8, "out": street / "r.json"}

    def stop(event: object) -> None:
        if "candidate 2/" in str(event):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        legr_cli.learn(dense, (images, labels), loss=loss, candidates=4, progress=stop, **options)
    with pytest.raises(LegrError, match="the task"):
        legr_cli.learn(dense, (images, labels), loss=other, candidates=4, resume=True, **options)


TRANSFORM = """
import torch
from torchvision.transforms import v2

def half(image):
    return v2.functional.pil_to_tensor(image).float() / 255 - 0.5

def small(image):
    return half(image)[:, :10]

def words(image):
    return "picture"

def fails(image):
    raise ValueError("no such picture")
"""


def test_a_transform_of_ones_own(street: Path) -> None:
    """What it makes is what the network sees: the same as --normalize half, and noted in files."""
    import street as module

    (street / "my_pictures.py").write_text(TRANSFORM)
    net = module.build()
    dense = legr_cli.prune(net, (3, 24, 32), flops=0.99, arch="street:build")
    legr_cli.save(dense, "dense.safetensors")
    small = legr_cli.prune(net, (3, 24, 32), flops=0.5, arch="street:build")
    legr_cli.save(small, "small.safetensors")
    arch = ("--arch", "street:build")
    against = ("evaluate", "small.safetensors", *arch, "--against", "dense.safetensors", "--json")
    given = (*against, "--data", "images:camera")
    [own] = scores(legr(*given, "--transform", "my_pictures:half"))
    [usual] = scores(legr(*given, "--normalize", "0.5,0.5,0.5:1,1,1"))
    assert own["score"] == pytest.approx(usual["score"], rel=1e-4)
    tune = ("finetune", "small.safetensors", *arch, "--teacher", "dense.safetensors")
    tune = (*tune, "--data", "images:camera", "--epochs", 1, "--batch-size", 8)
    legr(*tune, "--transform", "my_pictures:half", "--out", "tuned.safetensors")
    again = [word.replace("small.", "tuned.") for word in given]
    assert "pass --transform my_pictures:half (legr imports nothing" in fails(*again)
    assert scores(legr(*again, "--transform", "my_pictures:half"))[0]["score"] > own["score"] - 1
    for name, message in {
        "my_pictures:small": "my_pictures:small returns 3x10x32 for",
        "my_pictures:words": "my_pictures:words must return a floating-point tensor, got str",
        "my_pictures:fails": "ValueError: no such picture",
        "my_pictures:nothing": "cannot import --transform my_pictures:nothing",
    }.items():
        assert message in fails(*given, "--transform", name)
    both = (*given, "--transform", "my_pictures:half")
    assert "remove --resize" in fails(*both, "--resize", "squash")
    assert "remove --normalize" in fails(*both, "--normalize", "half")
    assert "needs image files" in fails(
        *against, "--data", "digits", "--transform", "my_pictures:half"
    )
