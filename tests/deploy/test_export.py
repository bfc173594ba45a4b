"""Exported files compute what their networks compute, whatever goes in and comes out."""

import json
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from nets import Residual, enliven
from torch import nn
from torchvision.ops import DeformConv2d

import legr_cli
from legr_cli.channels.inputs import Call
from legr_cli.channels.structures import tensors
from legr_cli.commands.export_view import verification_note
from legr_cli.deploy.core import load
from legr_cli.deploy.verify import verified
from legr_cli.errors import LegrError

SHAPES = {"image": (3, 17, 19), "state": (4,)}


class Policy(nn.Module):
    """conv7 of an image and fc5 of a state - fc3"""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.head = nn.Conv2d(3, 7, 3), nn.Linear(4, 5), nn.Linear(12, 3)

    def forward(self, image: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        features = [F.relu(self.conv(image)).mean((2, 3)), F.relu(self.fc(state))]
        return self.head(torch.cat(features, 1))


class PolicyOfDict(Policy):
    """The same, of a dict; with None and a number in what comes out."""

    def forward(self, batch):
        action = super().forward(batch["image"], batch["state"])
        return {"action": action, "aux": None, "scale": 2.0, "both": (action * 2, [None])}


@dataclass
class Observation:
    """What a robot sees and knows."""

    image: torch.Tensor
    state: torch.Tensor


class PolicyOfDataclass(Policy):
    """The same, of a dataclass, to a dataclass."""

    def forward(self, seen: Observation):
        return Observation(super().forward(seen.image, seen.state), seen.state + 1)


class PolicyOfStars(Policy):
    """The same, of whatever it is given."""

    def forward(self, *args, **options):
        return super().forward(*args, **options)


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return enliven(kind())


def session(file):
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("kind", [Policy, PolicyOfDict, PolicyOfDataclass, PolicyOfStars])
@pytest.mark.parametrize("batch", [None, 1])
def test_several_inputs(kind, batch, tmp_path):
    model = made(kind)
    exported = legr_cli.export(model, tmp_path / "a.onnx", batch=batch, input_shape=SHAPES)
    assert exported.difference < 1e-5
    runtime = session(exported.file)
    assert [i.name for i in runtime.get_inputs()] == ["image", "state"]
    count = batch or 5
    image, state = torch.rand(count, 3, 17, 19), torch.rand(count, 4)
    calls = {
        Policy: (image, state),
        PolicyOfDict: ({"image": image, "state": state},),
        PolicyOfDataclass: (Observation(image, state),),
        PolicyOfStars: (image, state),
    }
    expected = tensors(model(*calls[kind]))
    actual = runtime.run(None, {"image": image.numpy(), "state": state.numpy()})
    assert len(actual) == len(expected) == {Policy: 1, PolicyOfStars: 1}.get(kind, 2)
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e.detach().numpy(), atol=1e-5)
    notes = json.loads(runtime.get_modelmeta().custom_metadata_map["legr"])
    assert notes["input"] == {"image": [3, 17, 19], "state": [4]}


@pytest.mark.parametrize("batch", [None, 1])
def test_one_input_of_any_arguments(batch, tmp_path):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Residual()

        def forward(self, *args):
            return self.inner(*args)

    smaller = legr_cli.prune(made(Wrapper), (3, 16, 16), flops=0.6, align=1)
    exported = legr_cli.export(smaller, tmp_path / "a.onnx", batch=batch)
    assert exported.difference < 1e-5
    assert [i.name for i in session(exported.file).get_inputs()] == ["images"]


def test_an_op_of_a_newer_opset_names_the_option(tmp_path):
    class Deformed(nn.Module):
        def __init__(self):
            super().__init__()
            self.offsets, self.conv = (
                nn.Conv2d(3, 18, 3, padding=1),
                DeformConv2d(3, 7, 3, padding=1),
            )

        def forward(self, x):
            return self.conv(x, self.offsets(x))

    model, file = made(Deformed), tmp_path / "a.onnx"
    with pytest.raises(LegrError, match="a newer --opset, up to 23, may have the op"):
        legr_cli.export(model, file, input_shape=(3, 16, 16))
    assert not file.exists()
    assert legr_cli.export(model, file, input_shape=(3, 16, 16), opset=19).difference < 1e-5


def test_the_core_feeds_several_inputs(tmp_path):
    exported = legr_cli.export(made(Policy), tmp_path / "a.onnx", input_shape=SHAPES)
    net = load("a", exported.file.read_bytes(), None, 1)
    assert net.facts["input"] == {"image": [1, 3, 17, 19], "state": [1, 4]}
    assert len(net.first_output()) == 3
    asked = {"image": [3, 9, 9], "state": [4]}
    with pytest.raises(Exception, match="a takes batchx3x17x19, not images of 3x9x9"):
        load("a", exported.file.read_bytes(), asked, 1)
    with pytest.raises(Exception, match="a has several inputs: pass --input NAME=SIZE for each"):
        load("a", exported.file.read_bytes(), [3, 17, 19], 1)


class PadPool(nn.Module):
    """conv7 - zeros around it - a pooling that ONNX Runtime merges them into - fc3"""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.conv, self.pad, self.pool = nn.Conv2d(3, 7, 3), nn.ZeroPad2d((1, 0, 1, 2)), pool
        self.head = nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.pad(self.conv(x))).mean((2, 3)))


@pytest.mark.parametrize("pool", [nn.AvgPool2d(1, 2), nn.AvgPool2d(3, 2), nn.MaxPool2d(3, 1)])
def test_padding_stays_before_a_pooling(pool, tmp_path):
    torch.manual_seed(0)
    model = PadPool(pool).eval()
    with torch.no_grad():
        model.conv.bias.sub_(9.0)  # all values are below the zeros around them
    exported = legr_cli.export(model, tmp_path / "a.onnx", batch=1, input_shape=(3, 20, 20))
    assert exported.difference < 1e-6
    merges = isinstance(pool, nn.AvgPool2d) and pool.kernel_size == 3
    kinds = [node.op_type for node in onnx.load(exported.file).graph.node]
    assert kinds.count("Max") == (0 if merges else 1)


class Noisy(nn.Module):
    """conv3 with noise, or with dropout, also in evaluation mode"""

    def __init__(self, dropout: bool) -> None:
        super().__init__()
        self.conv, self.dropout = nn.Conv2d(3, 3, 3), dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).mean((2, 3))
        return F.dropout(y, 0.5, True) if self.dropout else y + torch.randn(x.shape[0], 3)


@pytest.mark.parametrize("dropout", [False, True])
def test_networks_that_draw_random_numbers_are_not_compared(dropout, tmp_path):
    torch.manual_seed(0)
    exported = legr_cli.export(Noisy(dropout), tmp_path / "a.onnx", input_shape=(3, 8, 8))
    assert exported.difference is None
    assert verification_note([exported]) == (
        "ONNX opset 18: the network draws random numbers; its ONNX output was not compared"
    )
    session(exported.file)


class Sines(nn.Module):
    """Sines of large numbers, of which single precision keeps two digits"""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 13, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.conv(x) * 1e5)


def test_rounding_is_no_difference(tmp_path):
    torch.manual_seed(0)
    exported = legr_cli.export(Sines(), tmp_path / "a.onnx", input_shape=(3, 20, 20))
    assert 1e-3 < exported.difference < 1  # both are as far from double precision


def test_a_file_that_computes_something_else_is_refused(tmp_path):
    network, other = made(Policy), made(Policy).eval()
    torch.nn.init.ones_(other.head.bias)
    file = legr_cli.export(network, tmp_path / "a.onnx", input_shape=SHAPES, batch=2).file
    call = Call(kwargs={name: torch.rand(2, *shape) for name, shape in SHAPES.items()})
    with torch.no_grad():
        assert verified("net", network, call, tensors(call.run(network.eval())), file) < 1e-3
        with pytest.raises(LegrError, match="net has a different output in ONNX Runtime"):
            verified("net", other, call, tensors(call.run(other)), file)


def test_export_leaves_the_network_as_it_was(tmp_path):
    class Counts(Residual):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            self.seen = x
            return super().forward(x)

    model = made(Counts)
    before = set(vars(model))
    legr_cli.export(model, tmp_path / "a.onnx", input_shape=(3, 16, 16))
    assert set(vars(model)) == before


def test_a_failure_writes_nothing(tmp_path):
    class Broken(Policy):
        def forward(self, image, state):
            return super().forward(image, torch.cat([state, state], 1))

    with pytest.raises(LegrError, match="image=3x17x19, state=4"):
        legr_cli.export(Broken(), tmp_path / "a.onnx", input_shape=SHAPES)
    assert not list(tmp_path.iterdir())
