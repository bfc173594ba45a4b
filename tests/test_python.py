"""The public functions: docs/python.md line by line, and bad input."""

import copy
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nets
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import legr_cli
from legr_cli.errors import DataError, LegrError, ModelError, OutputError, SettingError
from legr_cli.progress import Event, Progress
from legr_cli.settings import Search

ROOT = Path(__file__).parents[1]
SHAPE = (3, 32, 32)


def build(num_classes: int = 4) -> nn.Module:
    """A classifier with odd widths."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 13, 3, 2, 1), nn.BatchNorm2d(13), nn.ReLU()]
    layers += [nn.Conv2d(13, 23, 3, 2, 1), nn.BatchNorm2d(23), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(23, num_classes))


def batch(count: int = 40, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = torch.rand(count, *SHAPE, generator=generator)
    return images, torch.arange(count) % classes


@pytest.fixture
def dense() -> nn.Module:
    return nets.enliven(build())


@pytest.mark.slow
def test_docs_python_runs_line_by_line(tmp_path: Path) -> None:
    """Every python block of the page, in order, in one process."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)
    own, *rest = blocks
    assert own.startswith("# robot.py")
    (tmp_path / "robot.py").write_text(own)
    (tmp_path / "flow.py").write_text("\n".join(rest))
    run = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:robot", "flow.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    accuracy = float(run.stdout.splitlines()[0])
    assert accuracy > 0.5  # chance is 0.25
    assert "candidate 20/20" in run.stdout
    names = {"robot.safetensors", "dense.safetensors", "robot.onnx", "ranking.json", "report.html"}
    assert names <= {path.name for path in tmp_path.iterdir()}
    assert "--align" in run.stdout or "out of reach" in run.stdout or "lowest" in run.stdout


def test_nothing_edits_its_input(dense: nn.Module) -> None:
    dense.train()
    before = copy.deepcopy(dense.state_dict())
    data = batch()
    ranking = legr_cli.learn(dense, data, flops=0.6, fitness="bn", candidates=4)
    legr_cli.prune(dense, SHAPE, flops=0.6, ranking=ranking)
    legr_cli.finetune(dense, data, epochs=1, batch_size=8)
    legr_cli.evaluate(dense, data, recalibrate=True)
    assert dense.training
    assert all(torch.equal(before[name], tensor) for name, tensor in dense.state_dict().items())


def test_one_answer_for_loader_tensors_and_batches(dense: nn.Module) -> None:
    images, labels = batch()
    loader = DataLoader(TensorDataset(images, labels), batch_size=7)
    forms: list[Any] = [
        (images, labels),
        loader,
        [(images[:9], labels[:9]), (images[9:], labels[9:])],
    ]
    found = [legr_cli.learn(dense, form, flops=0.6, fitness="none", candidates=6) for form in forms]
    assert found[0].rows == found[1].rows == found[2].rows
    scores = [legr_cli.evaluate(dense, form) for form in forms]
    assert scores[0] == scores[1] == scores[2]
    assert scores[0].images == 40


def test_tensors_of_any_layout_are_the_same_data(dense: nn.Module) -> None:
    """Every second image of a larger tensor, and a copy of them, give one ranking."""
    images, labels = torch.rand(80, 3, 32, 32), torch.arange(80) % 4
    strided = images[::2], labels[::2]
    copied = tuple(part.clone(memory_format=torch.contiguous_format) for part in strided)
    found = [
        legr_cli.learn(dense, data, flops=0.5, fitness="none", candidates=2)
        for data in (strided, copied)
    ]
    assert found[0].notes["data"] == found[1].notes["data"]
    assert found[0].rows == found[1].rows


def test_progress_is_reported_and_results_are_seeded(dense: nn.Module) -> None:
    events: list[Event] = []
    data, options = batch(), {"epochs": 2, "batch_size": 8, "seed": 5}
    one = legr_cli.finetune(dense, data, progress=events.append, **options)
    two = legr_cli.finetune(dense, data, **options)
    ends = [e for e in events if isinstance(e, Progress) and e.milestone]
    assert [(e.done, e.total) for e in ends] == [(4, 8), (8, 8)]  # 36 images: 4 batches of 8
    pairs = zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_run_is_resumed_to_the_same_answer(dense: nn.Module, tmp_path: Path) -> None:
    data = batch()

    def stop(event: Event) -> None:
        if isinstance(event, Progress) and event.done == 3:
            raise KeyboardInterrupt

    settings = Search(candidates=8, population=4, sample=2, fitness="none", flops=(0.6,))
    with pytest.raises(KeyboardInterrupt):
        legr_cli.learn(dense, data, settings=settings, out=tmp_path / "r.json", progress=stop)
    assert not (tmp_path / "r.json").exists()
    again = legr_cli.learn(dense, data, settings=settings, out=tmp_path / "r.json", resume=True)
    assert again.rows == legr_cli.learn(dense, data, settings=settings).rows


def test_own_score_and_loss_decide(dense: nn.Module) -> None:
    """A regression: targets are not labels, and the network with the least error is kept."""
    images, labels = batch()
    targets = torch.stack([labels * 0.25, labels * 0.5, labels * 0.75, labels * 1.0], 1)

    def loss(outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return (outputs - wanted).square().mean()

    data = (images, targets)
    before = legr_cli.evaluate(dense, data, loss=loss)
    assert before.score == pytest.approx(-before.loss)
    assert before.figures == {"score": before.score}
    assert before.accuracy is before.top5 is None
    tuned = legr_cli.finetune(dense, data, loss=loss, epochs=3, batch_size=8, lr=0.01)
    assert legr_cli.evaluate(tuned, data, loss=loss).loss < before.loss
    ranking = legr_cli.learn(dense, data, loss=loss, flops=0.6, fitness="finetune", candidates=2)
    assert ranking.notes["best"]["score"] <= 0
    with pytest.raises(ModelError, match="one number"):
        legr_cli.evaluate(dense, data, loss=loss, score=lambda outputs, _: outputs)


def test_a_card_survives_copies_and_training(dense: nn.Module, tmp_path: Path) -> None:
    smaller = legr_cli.prune(dense, SHAPE, flops=0.6, arch=build)
    trained = copy.deepcopy(smaller).train()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(0.9)
    legr_cli.save(trained, tmp_path / "net.safetensors")
    again = legr_cli.load(tmp_path / "net.safetensors", arch=build)
    images = batch(4)[0]
    assert torch.equal(again(images), trained.eval()(images))
    assert trained.eval()(images).ne(smaller(images)).any()


def test_a_module_of_ones_own_is_checked_against_its_factory(
    dense: nn.Module, tmp_path: Path
) -> None:
    out = tmp_path / "net.safetensors"
    with pytest.raises(ModelError, match="arch"):
        legr_cli.save(dense, out)
    with pytest.raises(ModelError, match=r"8\.weight"):
        legr_cli.save(build(num_classes=7), out, arch=build, input_shape=SHAPE)
    assert not list(tmp_path.iterdir())
    legr_cli.save(dense, out, arch=build, input_shape=SHAPE)
    assert torch.equal(legr_cli.load(out, arch=build)(batch(2)[0]), dense.eval()(batch(2)[0]))


def replaced(model: nn.Module) -> nn.Module:
    smaller = legr_cli.prune(model, SHAPE, flops=0.6, arch=build)
    name = next(n for n, m in smaller.named_modules() if isinstance(m, nn.Linear))
    setattr(smaller, name, nn.Linear(smaller.get_submodule(name).in_features, 9))
    return smaller


Call = Callable[[nn.Module, Path], object]
BAD: dict[str, tuple[type[LegrError], str, Call]] = {
    "no module": (ModelError, "str", lambda _, out: legr_cli.save("x", out)),  # type: ignore[arg-type]
    "no data": (DataError, "int", lambda m, out: legr_cli.learn(m, 5, out=out, input_shape=SHAPE)),
    "empty list": (DataError, "empty", lambda m, out: legr_cli.finetune(m, [], out=out)),
    "empty loader": (
        DataError,
        "empty",
        lambda m, out: legr_cli.finetune(
            m, DataLoader(TensorDataset(torch.zeros(0, *SHAPE), torch.zeros(0))), out=out
        ),
    ),
    "no pairs": (
        DataError,
        "pairs",
        lambda m, out: legr_cli.finetune(m, [(batch()[0], "cat")], out=out),
    ),
    "shapes change": (
        DataError,
        "3x8x8",
        lambda m, out: legr_cli.finetune(
            m, [batch(), (torch.rand(4, 3, 8, 8), torch.zeros(4).long())], out=out
        ),
    ),
    "labels out of range": (
        DataError,
        "label [456] is out of range",
        lambda m, out: legr_cli.finetune(m, batch(40, 7), out=out),
    ),
    "labels are numbers": (
        DataError,
        "float32",
        lambda m, out: legr_cli.finetune(m, (batch()[0], torch.rand(40)), out=out),
    ),
    "bytes": (
        DataError,
        "uint8",
        lambda m, _: legr_cli.evaluate(
            m, (torch.zeros(4, *SHAPE, dtype=torch.uint8), torch.zeros(4))
        ),
    ),
    "meta device": (
        ModelError,
        "meta",
        lambda m, _: legr_cli.prune(m.to("meta"), SHAPE, flops=0.5),
    ),
    "no shape": (SettingError, "input_shape", lambda m, _: legr_cli.prune(m, flops=0.5)),
    "two targets": (
        SettingError,
        "one of",
        lambda m, _: legr_cli.prune(m, SHAPE, flops=1, params=1),
    ),
    "odd ranking": (
        SettingError,
        "ranking",
        lambda m, _: legr_cli.prune(m, SHAPE, flops=0.5, ranking=3),  # type: ignore[arg-type]
    ),
    "replaced layer": (ModelError, "9", lambda m, out: legr_cli.save(replaced(m), out)),
    "odd fitness": (
        SettingError,
        "finetune or bn or repair or none",
        lambda m, _: legr_cli.learn(m, batch(), fitness="hope"),
    ),
    "no file to resume": (
        OutputError,
        "out",
        lambda m, _: legr_cli.finetune(m, batch(), resume=True),
    ),
    "wrong suffix": (OutputError, "onnx", lambda m, out: legr_cli.export(m, f"{out}.txt")),
    "failing dataset": (
        DataError,
        "lens cap",
        lambda m, _: legr_cli.evaluate(m, DataLoader(Failing())),
    ),
}


class Failing(torch.utils.data.Dataset[Any]):
    """A dataset that cannot be read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> Any:
        raise OSError("lens cap on")


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_error_and_writes_nothing(
    name: str, dense: nn.Module, tmp_path: Path
) -> None:
    error, words, call = BAD[name]
    out = tmp_path / ("net.json" if name == "no data" else "net.safetensors")
    with pytest.raises(error, match=words) as caught:
        call(dense, out)
    assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())
