"""Several inputs, a part of a network in its place, and layers to leave alone."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import nets
import numpy as np
import onnxruntime
import pytest
import torch
from running import fails, legr
from torch import Tensor, nn

import legr_cli
from legr_cli.errors import ModelError, RankingError, SettingError

SHAPES = {"image": (3, 16, 16), "state": (5,)}
WORDS = ("--input", "image=3x16x16", "--input", "state=5")


class Policy(nn.Module):
    """Two inputs, and a structure of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nets.conv(3, 13), nn.BatchNorm2d(13), nn.ReLU(), nets.conv(13, 11)
        )
        self.feel, self.act = nn.Linear(5, 7), nn.Linear(18, 3)

    def forward(self, image: Tensor, state: Tensor) -> dict[str, Any]:
        seen, felt = self.look(image).relu().mean((2, 3)), self.feel(state).relu()
        return {"action": self.act(torch.cat([seen, felt], 1)), "hidden": None, "scale": 2.0}


class Mapped(Policy):
    """The same inputs in a dict."""

    def forward(self, batch: dict[str, Tensor]) -> Any:  # type: ignore[override]
        return super().forward(batch["image"], batch["state"])["action"]


@dataclasses.dataclass
class Batch:
    """The same inputs in a dataclass."""

    image: Tensor
    state: Tensor


class Structured(Policy):
    """Inputs and outputs in dataclasses."""

    def forward(self, batch: Batch) -> Any:  # type: ignore[override]
        return Batch(super().forward(batch.image, batch.state)["action"], batch.state)


class Detector(nn.Module):
    """A backbone, and code around it that depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nets.conv(3, 13), nn.ReLU(), nets.conv(13, 9), nn.ReLU())
        self.backbone.out_channels = 9
        self.head = nets.conv(9, 5)

    def forward(self, images: Tensor) -> list[Tensor]:
        features = self.head(self.backbone(images - images.mean()))
        assert self.backbone.out_channels == 9
        return [found[found > found.mean()] for found in features]


def policy() -> nn.Module:
    return nets.enliven(Policy())


def detector() -> nn.Module:
    torch.manual_seed(0)
    return Detector().eval()


def inputs(batch: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {k: torch.rand(batch, *shape, generator=generator) for k, shape in SHAPES.items()}


def test_two_inputs_from_python_to_a_file(tmp_path: Path) -> None:
    dense = policy()
    smaller = legr_cli.prune(dense, SHAPES, flops=0.6, align=1, arch=policy)
    assert 0 < smaller.get_submodule("look.0").out_channels < 13
    found = smaller(**inputs())
    assert found["action"].shape == (2, 3)
    assert (found["hidden"], found["scale"]) == (None, 2.0)
    legr_cli.save(smaller, tmp_path / "p.safetensors")
    again = legr_cli.load(tmp_path / "p.safetensors", arch=policy)
    assert torch.equal(again(**inputs())["action"], found["action"])
    everything = legr_cli.prune(dense, SHAPES, flops=1.0, align=1)
    assert torch.equal(everything(*inputs().values())["action"], dense(**inputs())["action"])


def test_inputs_in_one_structure() -> None:
    mapped = nets.enliven(Mapped())
    smaller = legr_cli.prune(mapped, SHAPES, flops=1.0, align=1)
    assert torch.equal(smaller(inputs()), mapped(inputs()))
    assert legr_cli.prune(mapped, SHAPES, flops=0.5, align=1)(inputs()).shape == (2, 3)
    structured = nets.enliven(Structured())
    smaller = legr_cli.prune(structured, SHAPES, flops=1.0, align=1)
    found, expected = smaller(Batch(**inputs())), structured(Batch(**inputs()))
    assert isinstance(found, Batch)
    assert torch.equal(found.image, expected.image)


def test_a_flat_vector() -> None:
    mlp = nets.enliven(nn.Sequential(nn.Linear(10, 23), nn.ReLU(), nn.Linear(23, 3)))
    assert legr_cli.prune(mlp, (10,), flops=0.5, align=1)(torch.rand(4, 10)).shape == (4, 3)


def test_two_inputs_in_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    legr("prune", "random:test_parts:policy", *WORDS, "--flops", 0.6, "--out", "p.safetensors")
    shown = json.loads(legr("inspect", "p.safetensors", "--arch", "test_parts:policy", "--json"))
    assert shown["input"] == {"image": [3, 16, 16], "state": [5]}
    legr("export", "p.safetensors", "--arch", "test_parts:policy", "--out", "p.onnx")
    session = onnxruntime.InferenceSession("p.onnx")
    assert [i.name for i in session.get_inputs()] == ["image", "state"]
    network = legr_cli.load("p.safetensors", arch=policy)
    feed = {name: value.numpy() for name, value in inputs(3).items()}
    expected = network(**inputs(3))["action"].detach().numpy()
    assert np.abs(session.run(None, feed)[0] - expected).max() < 1e-5


def test_a_part_of_a_network(tmp_path: Path) -> None:
    dense = detector()
    with pytest.raises(ModelError, match=r"test_parts\.py:\d+.*--module"):
        legr_cli.prune(dense, (3, 16, 16), flops=0.5)
    before = copy.deepcopy(dense.state_dict())
    summary = legr_cli.inspect(dense, (3, 16, 16), module="backbone")
    assert (summary.module, summary.whole_flops) == ("backbone", 16 * 16 * (351 + 1053 + 405))
    assert summary.flops == 16 * 16 * (351 + 1053)
    smaller = legr_cli.prune(
        dense, (3, 16, 16), flops=0.6, align=1, module="backbone", arch=detector
    )
    assert all(torch.equal(before[name], value) for name, value in dense.state_dict().items())
    assert smaller.get_submodule("backbone.0").out_channels < 13
    assert smaller.head.weight.shape == (5, 9, 3, 3)
    assert len(smaller(torch.rand(2, 3, 16, 16))) == 2
    legr_cli.save(smaller, tmp_path / "d.safetensors")
    again = legr_cli.load(tmp_path / "d.safetensors", arch=detector)
    images = torch.rand(1, 3, 16, 16)
    assert torch.equal(again(images)[0], smaller(images)[0])


def test_a_part_is_exported_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shell and Python write the same network; what reaches the part is its input."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    dense = detector()
    smaller = legr_cli.prune(
        dense, (3, 16, 16), flops=0.6, align=1, module="backbone", arch=detector
    )
    legr_cli.save(smaller, "d.safetensors")
    arch = ("--arch", "test_parts:detector")
    legr("export", "d.safetensors", *arch, "--module", "backbone", "--out", "shell.onnx")
    legr_cli.export(smaller, "python.onnx", module="backbone")
    images = torch.rand(2, 3, 16, 16)
    expected = smaller.get_submodule("backbone")(images).detach().numpy()
    for file in ("shell.onnx", "python.onnx"):
        session = onnxruntime.InferenceSession(file)
        found = session.run(None, {session.get_inputs()[0].name: images.numpy()})[0]
        assert np.abs(found - expected).max() < 1e-5
    message = fails("export", "d.safetensors", *arch, "--module", "neck", "--out", "n.onnx")
    assert "no such module; this network has backbone, head" in message
    assert not Path("n.onnx").exists()


def test_a_part_in_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args = ("random:test_parts:detector", "--input", "3x16x16")
    assert "--module" in fails("inspect", *args)
    assert "no such module; this network has backbone, head" in fails(
        "inspect", *args, "--module", "neck"
    )
    shown = json.loads(legr("inspect", *args, "--module", "backbone", "--json"))
    assert shown["module"] == "backbone"
    legr("prune", *args, "--module", "backbone", "--flops", 0.6, "--out", "d.safetensors")
    shown = json.loads(legr("inspect", "d.safetensors", "--arch", "test_parts:detector", "--json"))
    assert (shown["module"], shown["input"]) == ("backbone", [3, 16, 16])
    again = ("prune", "d.safetensors", "--arch", "test_parts:detector", "--flops", 0.9)
    assert "name the same part" in fails(*again, "--module", "head", "--out", "e.safetensors")
    assert not Path("e.safetensors").exists()


def test_rankings_know_their_part(tmp_path: Path) -> None:
    dense, rows = detector(), [{"alpha": 1.0, "kappa": 0.0}] * 2
    layers = [{"name": n, "filters": f, **r} for n, f, r in zip("02", (13, 9), rows, strict=True)]
    ranking = {"format": "legr-ranking", "version": 1, "module": "backbone", "layers": layers[:1]}
    (tmp_path / "r.json").write_text(json.dumps(ranking))
    given = {"flops": 0.6, "align": 1, "ranking": tmp_path / "r.json"}
    legr_cli.prune(dense, (3, 16, 16), module="backbone", **given)
    with pytest.raises(RankingError, match="--module backbone"):
        legr_cli.prune(dense.backbone, (3, 16, 16), **given)


def test_layers_to_leave_alone() -> None:
    dense = policy()
    kept = legr_cli.prune(dense, SHAPES, flops=0.5, align=1, keep=["look.0"])
    assert kept.get_submodule("look.0").out_channels == 13
    assert kept.get_submodule("look.3").out_channels < 11
    kept = legr_cli.prune(dense, SHAPES, flops=0.5, align=1, keep=["feel"], min_keep={"look": 0.6})
    assert kept.feel.out_features == 7
    assert kept.get_submodule("look.0").out_channels >= 8
    assert kept.get_submodule("look.3").out_channels >= 7
    free, bound = (
        legr_cli.inspect(dense, SHAPES, keep=k).lowest_flops_share for k in ([], ["look"])
    )
    assert free["1"] < bound["1"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"keep": ["nothing"]}, "matches no layer; this network has look.0"),
        ({"min_keep": {"look": 2.0}}, "from 0 to 1, got 2.0"),
        ({"module": "look.9"}, "no such module"),
    ],
)
def test_bad_parts(given: dict[str, Any], says: str) -> None:
    with pytest.raises(SettingError, match=says):
        legr_cli.prune(policy(), SHAPES, flops=0.5, **given)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({"image": (3, 16, 16)}, "also needs state; name each input"),
        ((3, 16, 16), "also needs state; name each input"),
        ({"image": (3, 16, 16), "speed": (5,)}, "forward takes image, state"),
        ({}, "a shape for each input"),
        ((3, 0, 16), "such as"),
    ],
)
def test_bad_inputs(shapes: Any, says: str) -> None:
    with pytest.raises((SettingError, ModelError), match=says):
        legr_cli.prune(policy(), shapes, flops=0.5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--input", "image=3x16x16", "--input", "5"), "name each"),
        (("--input", "image=3x16x16", "--input", "image=5"), "given twice"),
        (("--input", "image=3xx16"), "expected channels"),
    ],
)
def test_bad_inputs_in_the_shell(words: tuple[str, ...], says: str) -> None:
    assert says in fails("inspect", "random:test_parts:policy", *words)


def test_pictures_fill_one_input(tmp_path: Path) -> None:
    args = ("random:test_parts:policy", *WORDS, "--data", "digits")
    assert "several inputs" in fails("learn", *args, "--out", tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []


def test_a_part_keeps_what_others_read_of_it_in_copies_too() -> None:
    """As in YOLO, the network reads attributes of its parts; training works on a copy."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Conv2d(12, 5, 3))
            self.body.index = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)[:, self.body.index :]

    dense, images = Reader().eval(), torch.rand(24, 3, 9, 9)
    small = legr_cli.prune(dense, (3, 9, 9), flops=0.5, module="body", align=1)
    usable = legr_cli.repair(small, dense, images)
    for net in (small, usable):
        twice = copy.deepcopy(copy.deepcopy(net))
        assert torch.equal(twice(images), net(images))
    tuned = legr_cli.finetune(usable, images, teacher=dense, epochs=1, batch_size=8)
    assert tuned(images).shape == (24, 3, 5, 5)
