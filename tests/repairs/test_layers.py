"""The engine on tiny networks: what can be recovered is, in any batches, the same each time."""

from typing import Any

import laws
import nets
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from repairing import halved, pictures, repaired
from torch import Tensor, nn

from legr_cli.channels import apply, couple
from legr_cli.cost import price
from legr_cli.repairs import layers as engine
from legr_cli.repairs import lockstep
from legr_cli.repairs.closeness import divergences


class Doubles(nn.Module):
    """conv12, of which 5 are multiples of the others - relu - any layer of 11 - flatten - fc"""

    def __init__(self, layer: nn.Module, space: int = 2, last: bool = False) -> None:
        super().__init__()
        conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[space]
        self.stem, self.layer, self.last = conv(3, 12, 3, padding=1), layer, last
        self.head = nn.LazyLinear(nets.CLASSES)
        with torch.no_grad():
            factors = torch.rand(5) + 0.5
            for tensor in (self.stem.weight, self.stem.bias):
                tensor[7:] = tensor[:5] * factors.reshape(-1, *[1] * (tensor.ndim - 1))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = self.layer(x.movedim(1, -1) if self.last else x)
        return self.head(x.flatten(1))


class ByFunction(nn.Module):
    """A convolution of 12 channels on a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(11, 12, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel, stride=2)


EXACT: dict[str, tuple[Any, int, bool]] = {
    "conv": (lambda: nn.Conv2d(12, 11, 3), 2, False),
    "conv without bias": (lambda: nn.Conv2d(12, 11, 3, 2, bias=False), 2, False),
    "one dimension": (lambda: nn.Conv1d(12, 11, 3), 1, False),
    "three dimensions": (lambda: nn.Conv3d(12, 11, 2), 3, False),
    "transposed": (lambda: nn.ConvTranspose2d(12, 11, 3, 2, 1, 1), 2, False),
    "pads inside": (lambda: nets.SamePadding(12, 11, 3), 2, False),
    "circular": (lambda: nn.Conv2d(12, 11, 3, padding=1, padding_mode="circular"), 2, False),
    "by function": (ByFunction, 2, False),
    "linear": (lambda: nn.Linear(12, 11), 2, True),
    "depthwise, then pointwise": (
        lambda: nn.Sequential(nn.Conv2d(12, 12, 3, groups=12), nn.Conv2d(12, 11, 1)),
        2,
        False,
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(12, 11, 3, bias=False), nn.BatchNorm2d(11), nn.ReLU()),
        2,
        False,
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_what_the_kept_channels_can_say_is_recovered(name: str) -> None:
    """The removed channels are multiples of kept ones, so the output comes back."""
    torch.manual_seed(3)
    layer, space, last = EXACT[name]
    model = Doubles(layer(), space, last).eval()
    if name.startswith("depthwise"):  # the multiples must survive the depthwise layer
        with torch.no_grad():
            depthwise = model.layer[0]
            depthwise.weight[7:], depthwise.bias[7:] = depthwise.weight[:5], 0
            depthwise.bias[:5] = 0
    shape = (3, *([5] * space))
    images = torch.randn(60, *shape)
    model(images[:2])
    units = couple(nets.enliven(model), shape)
    kept = np.ones(units.count, bool)
    kept[units.unit_of(units.flow.layers["stem"].out)[7:]] = False
    cut = apply(units, kept)
    smaller, found = repaired(units, kept, cut, [images], ridge=1e-9)
    fresh = torch.randn(20, *shape)
    with torch.no_grad():
        expected = model(fresh)
        assert float((cut(fresh) - expected).abs().max()) > 0.02
        assert torch.allclose(smaller(fresh), expected, atol=1e-4)
    assert all(layer.reason is None for layer in found)


@pytest.mark.parametrize("name", nets.NETS)
def test_every_network_can_be_repaired(name: str) -> None:
    """No layer fails; on the pictures that it was fitted to, every network comes closer."""
    units, kept, cut = halved(name)
    images = pictures(40)
    smaller, found = repaired(units, kept, cut, [images[:32], images[32:]])
    before, after = divergences([cut, smaller], units.flow.traced, [images])
    assert after < before
    names = {*units.flow.layers, *units.flow.unsupported}
    assert {layer.name for layer in found} == names
    assert [layer.name for layer in found if layer.reason] == list(units.flow.unsupported)


@pytest.mark.parametrize("name", ["residual", "concat", "grouped", "twice", "in place", "norms"])
def test_streaming_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any batches, and values computed again instead of kept, give the same weights."""
    units = couple(nets.make(name), nets.INPUT)  # in double precision
    kept = laws.plan(units, price(units), 0.6)
    cut, images = apply(units, kept), pictures(12).double()
    whole, _ = repaired(units, kept, cut, [images])
    again, _ = repaired(units, kept, cut, [images])
    assert all(map(torch.equal, whole.parameters(), again.parameters()))
    monkeypatch.setattr(engine, "_CHUNK", 3000)
    parts, _ = repaired(units, kept, cut, list(images.split(5)))
    monkeypatch.setattr(lockstep, "MEMORY", 0)
    forgetful, _ = repaired(units, kept, cut, list(images.split(5)))
    for other in (parts, forgetful):
        for one, two in zip(whole.parameters(), other.parameters(), strict=True):
            assert torch.allclose(one, two, rtol=1e-7, atol=1e-9)


def test_shared_layers_get_one_solution_for_all_calls() -> None:
    units, kept, cut = halved("twice")
    _, found = repaired(units, kept, cut, [pictures(3), pictures(2)])
    rows = {layer.name: layer.rows for layer in found}
    assert rows["stem"] == 5 * 16 * 16
    assert rows["again"] == 2 * rows["stem"]


def test_nothing_wrong_means_nothing_changes() -> None:
    """Where all channels are kept, the weights are those of the dense network."""
    units, kept, _ = halved("residual")
    whole = apply(units, np.ones_like(kept))
    smaller, _ = repaired(units, np.ones_like(kept), whole, [pictures(20)])
    for one, two in zip(whole.parameters(), smaller.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-5)


class Tied(nn.Module):
    """conv13 - conv13 - conv13 with the same weights - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nets.conv(3, 13), nets.conv(13, 13), nets.conv(13, 13)
        self.two.weight, self.head = self.one.weight, nets.head(13)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.two(F.relu(self.one(F.relu(self.stem(x)))))))


def test_layers_with_tied_weights_are_left_and_named() -> None:
    torch.manual_seed(0)
    dense = nn.Sequential(nets.conv(3, 11), nn.ReLU(), nets.conv(11, 3), Tied())
    units = couple(dense.eval(), nets.INPUT)
    kept = laws.plan(units, price(units), 0.9)
    cut = apply(units, kept)
    smaller, found = repaired(units, kept, cut, [pictures(20)])
    left = {layer.name: layer.reason for layer in found if layer.reason}
    assert left["3.one"] == "it shares its weights with 3.two"
    assert left["3.two"] == "it shares its weights with 3.one"
    assert torch.equal(smaller.state_dict()["3.one.weight"], cut.state_dict()["3.one.weight"])
