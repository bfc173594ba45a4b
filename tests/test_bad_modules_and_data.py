"""Every public function against the same bad modules and data: one clear error, nothing written."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nets
import pytest
import torch
from test_python import SHAPE, Failing, batch, build, replaced
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import legr_cli
from legr_cli.errors import CheckpointError, DataError, LegrError, ModelError, SettingError

Function = Callable[[Any, Any, Path], object]


def late_label() -> DataLoader[Any]:
    images, labels = batch()
    labels[-1] = 9
    return DataLoader(TensorDataset(images, labels))


WITH_DATA: dict[str, Function] = {
    "learn": lambda model, data, out: legr_cli.learn(
        model, data, flops=0.6, fitness="bn", candidates=2, out=out / "ranking.json"
    ),
    "finetune": lambda model, data, out: legr_cli.finetune(
        model, data, epochs=1, batch_size=8, out=out / "tuned.safetensors"
    ),
    "evaluate": lambda model, data, _: legr_cli.evaluate(model, data),
    "compare": lambda model, data, out: legr_cli.compare(
        model, data, out / "versus", methods=["norm"], flops=[0.6], epochs=1, arch=build
    ),
}
WITHOUT_DATA: dict[str, Function] = {
    "prune": lambda model, _, __: legr_cli.prune(model, SHAPE, flops=0.5),
    "inspect": lambda model, _, __: legr_cli.inspect(model, SHAPE),
    "save": lambda model, _, out: legr_cli.save(
        model, out / "net.safetensors", arch=build, input_shape=SHAPE
    ),
    "export": lambda model, _, out: legr_cli.export(model, out / "net.onnx", input_shape=SHAPE),
    "bench": lambda model, _, __: legr_cli.bench([model], input_shape=SHAPE),
    "repair": lambda model, data, _: legr_cli.repair(model, build(), data),
    "repair with": lambda model, data, _: legr_cli.repair(
        legr_cli.prune(build(), SHAPE, flops=0.5), model, data
    ),
}
DATA: dict[str, tuple[Callable[[], Any], str]] = {
    "a number": (lambda: 5, "int"),
    "words": (lambda: [(batch()[0], "cat")], "pairs of tensors"),
    "an empty list": (list, "empty"),
    "an empty loader": (
        lambda: DataLoader(TensorDataset(torch.zeros(0, *SHAPE), torch.zeros(0))),
        "empty",
    ),
    "a spent iterator": (lambda: iter([]), "empty"),
    "shapes that change": (
        lambda: [batch(), (torch.rand(4, 3, 8, 8), torch.zeros(4).long())],
        "3x8x8",
    ),
    "labels out of range": (lambda: batch(40, 7), "out of range"),
    "labels out of range at the end of a dataset": (late_label, "label 9 is out of range"),
    "negative labels": (lambda: (batch()[0], batch()[1] - 1), "label -1"),
    "labels that are no integers": (lambda: (batch()[0], torch.rand(40)), "float32"),
    "images that are not finite": (lambda: (batch()[0] / 0, batch()[1]), "NaN or infinite"),
    "tensors without values": (
        lambda: (torch.zeros(40, *SHAPE, device="meta"), torch.zeros(40, device="meta")),
        "meta",
    ),
    "a dataset that fails": (lambda: DataLoader(Failing()), "lens cap"),
}


def scripted(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, but still in use
        return torch.jit.script(model)


def no_module(model: nn.Module) -> dict[str, Any]:
    return model.state_dict()


def without_values(model: nn.Module) -> nn.Module:
    return model.to("meta")


def without_norm(model: nn.Module) -> nn.Module:
    smaller = legr_cli.prune(model, SHAPE, flops=0.6, arch=build)
    name = next(n for n, m in smaller.named_modules() if isinstance(m, nn.BatchNorm2d))
    setattr(smaller, name, nn.Identity())
    return smaller


MODULES: dict[str, tuple[Callable[[nn.Module], Any], str]] = {
    "no module": (no_module, "OrderedDict"),
    "meta device": (without_values, "meta"),
    "lazy module": (lambda _: nn.Sequential(nn.LazyConv2d(4, 3)), "has no shape yet"),
    "TorchScript": (scripted, "TorchScript"),
    "replaced layer": (replaced, r"changed from \(4,\) to \(9,\)"),
    "removed layer": (without_norm, "to nothing"),
}


@pytest.fixture
def dense() -> nn.Module:
    return nets.enliven(build())


def refused(error: type[LegrError], words: str, call: Callable[[], object], out: Path) -> None:
    """A call that must fail with one line, and leave nothing behind."""
    with pytest.raises(error, match=words) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1
    assert not list(out.iterdir())


@pytest.mark.parametrize(
    "data",
    [name for name in DATA if "labels" not in name and name != "words"],
)
def test_bad_pictures_to_repair_with(data: str, dense: nn.Module, tmp_path: Path) -> None:
    make, words = DATA[data]
    smaller = legr_cli.prune(dense, SHAPE, flops=0.5)
    refused(DataError, words, lambda: legr_cli.repair(smaller, dense, make()), tmp_path)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("function", WITH_DATA)
def test_bad_data(function: str, data: str, dense: nn.Module, tmp_path: Path) -> None:
    make, words = DATA[data]
    refused(DataError, words, lambda: WITH_DATA[function](dense, make(), tmp_path), tmp_path)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("function", [*WITH_DATA, *WITHOUT_DATA])
def test_bad_modules(function: str, module: str, dense: nn.Module, tmp_path: Path) -> None:
    change, words = MODULES[module]
    bad, call = change(dense), {**WITH_DATA, **WITHOUT_DATA}[function]
    refused(ModelError, words, lambda: call(bad, batch(), tmp_path), tmp_path)


def test_a_layer_of_a_dense_network_may_be_replaced_with_its_factory(tmp_path: Path) -> None:
    """`arch` describes the module as it is now; without it, the old card would be wrong."""
    legr_cli.save(nets.enliven(build()), tmp_path / "a.safetensors", arch=build, input_shape=SHAPE)
    model = legr_cli.load(tmp_path / "a.safetensors", arch=build)
    model[8] = nn.Linear(23, 9)
    with pytest.raises(ModelError, match="no longer fits its card"):
        legr_cli.evaluate(model, batch())
    legr_cli.save(model, tmp_path / "b.safetensors", arch=build_nine)
    again = legr_cli.load(tmp_path / "b.safetensors", arch=build_nine)
    assert torch.equal(again(batch(2)[0]), model(batch(2)[0]))


def test_a_factory_may_have_moved(dense: nn.Module, tmp_path: Path) -> None:
    smaller = legr_cli.prune(dense, SHAPE, flops=0.6, arch=build)
    legr_cli.save(smaller, tmp_path / "a.safetensors")
    again = legr_cli.load(tmp_path / "a.safetensors", arch=lambda: build())
    assert torch.equal(again(batch(2)[0]), smaller(batch(2)[0]))
    with pytest.raises(CheckpointError, match="cannot be opened"):
        legr_cli.load(tmp_path / "a.safetensors", arch=build_nine)


def build_nine() -> nn.Module:
    return build(9)


@pytest.mark.parametrize("count", [1, 3])
def test_a_last_batch_of_one_image_is_measured(count: int, dense: nn.Module) -> None:
    images, labels = batch(count)
    loader = DataLoader(TensorDataset(images, labels))
    whole = legr_cli.evaluate(dense, (images, labels))
    parts = legr_cli.evaluate(dense, loader, batch_size=2)
    assert parts.images == whole.images == count
    assert parts.loss == pytest.approx(whole.loss)


ARGUMENTS: dict[str, tuple[Callable[[nn.Module, Path], object], str]] = {
    "load: a number": (lambda model, _: legr_cli.load(5), "path must be a path, got 5"),  # type: ignore[arg-type]
    "load: a module": (lambda model, _: legr_cli.load(model), "got Sequential"),  # type: ignore[arg-type]
    "load: classes": (lambda model, _: legr_cli.load("random:resnet20", classes="ten"), "'ten'"),  # type: ignore[arg-type]
    "load: seed": (lambda model, _: legr_cli.load("random:resnet20", seed="x"), "seed"),  # type: ignore[arg-type]
    "save: a number": (lambda model, _: legr_cli.save(model, 5, arch=build), "got 5"),  # type: ignore[arg-type]
    "inspect: keep": (lambda model, _: legr_cli.inspect(model, SHAPE, keep="0"), "keep must be"),
    "inspect: min_keep": (
        lambda model, _: legr_cli.inspect(model, SHAPE, min_keep="a"),  # type: ignore[arg-type]
        "--min-keep",
    ),
    "learn: candidates": (
        lambda model, _: legr_cli.learn(model, batch(), candidates="ten"),  # type: ignore[arg-type]
        "--candidates must be a whole number, got 'ten'",
    ),
    "learn: seed": (
        lambda model, _: legr_cli.learn(model, batch(), seed=0.5),  # type: ignore[arg-type]
        "--seed must be a whole number, got 0.5",
    ),
    "learn: settings": (
        lambda model, _: legr_cli.learn(model, batch(), settings=5),  # type: ignore[arg-type]
        "settings must be a Search",
    ),
    "learn: progress": (
        lambda model, _: legr_cli.learn(model, batch(), progress=5),  # type: ignore[arg-type]
        "progress must be a function",
    ),
    "learn: out": (lambda model, _: legr_cli.learn(model, batch(), out=5), "out must be a path"),  # type: ignore[arg-type]
    "finetune: epochs": (
        lambda model, _: legr_cli.finetune(model, batch(), epochs="x"),  # type: ignore[arg-type]
        "--epochs must be a whole number",
    ),
    "finetune: lr": (
        lambda model, _: legr_cli.finetune(model, batch(), lr="x"),  # type: ignore[arg-type]
        "--lr must be a number",
    ),
    "evaluate: batch_size": (
        lambda model, _: legr_cli.evaluate(model, batch(), batch_size="x"),  # type: ignore[arg-type]
        "--batch-size must be a whole number",
    ),
    "bench: a module": (lambda model, _: legr_cli.bench(model), "models must be a list"),  # type: ignore[arg-type]
    "bench: ssh": (lambda model, _: legr_cli.bench([model], ssh=5), "ssh must be a str"),  # type: ignore[arg-type]
    "compare: no methods": (
        lambda model, out: legr_cli.compare(model, batch(), out / "versus", methods=[]),
        "no method",
    ),
    "compare: one string": (
        lambda model, out: legr_cli.compare(model, batch(), out / "versus", methods="norm"),
        "methods must be a list",
    ),
    "report: a number": (lambda _, out: legr_cli.report([5], out / "a.html"), "got 5"),  # type: ignore[list-item]
    "report: none": (lambda _, out: legr_cli.report(None, out / "a.html"), "paths must be"),  # type: ignore[arg-type]
    "repair: images": (
        lambda model, _: legr_cli.repair(model, model, batch(), images="x"),  # type: ignore[arg-type]
        "--images must be a whole number",
    ),
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_arguments_of_the_wrong_type(argument: str, dense: nn.Module, tmp_path: Path) -> None:
    call, words = ARGUMENTS[argument]
    refused(SettingError, words, lambda: call(dense, tmp_path), tmp_path)
