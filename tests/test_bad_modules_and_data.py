"""Every public function against the same bad modules and data: one clear error, nothing written."""

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
from legr_cli.errors import DataError, LegrError, ModelError

Function = Callable[[Any, Any, Path], object]
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
}
DATA: dict[str, tuple[Callable[[], Any], str]] = {
    "a number": (lambda: 5, "int"),
    "one tensor": (lambda: batch()[0], "Tensor"),
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
    "negative labels": (lambda: (batch()[0], batch()[1] - 1), "label -1"),
    "labels that are no integers": (lambda: (batch()[0], torch.rand(40)), "float32"),
    "tensors without values": (
        lambda: (torch.zeros(40, *SHAPE, device="meta"), torch.zeros(40, device="meta")),
        "meta",
    ),
    "a dataset that fails": (lambda: DataLoader(Failing()), "lens cap"),
}


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
    "replaced layer": (replaced, r"\(9,\), it had \(4,\)"),
    "removed layer": (without_norm, "none, it had"),
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
