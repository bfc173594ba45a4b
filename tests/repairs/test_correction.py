"""What a layer's output should be: sums take back errors, activations hide them."""

from typing import Any

import laws
import nets
import pytest
import torch
import torch.nn.functional as F
from repairing import halved, pictures, repaired
from torch import Tensor, fx, nn

import legr_cli
from legr_cli.channels import Units, apply, couple
from legr_cli.cost import price
from legr_cli.repairs.activations import visible
from legr_cli.repairs.closeness import divergences
from legr_cli.repairs.correction import plan
from legr_cli.repairs.lockstep import Lockstep, Stop


def values_at(units: Units, cut: fx.GraphModule, images: Tensor, layer: str) -> tuple:
    """Both networks run up to a layer."""
    both = Lockstep(units, cut, [images])
    node = next(n for n in both.pruned.nodes if n.target == layer)
    stop = Stop(both.dense.index[both.original[node]] + 1, both.pruned.index[node])
    [values] = both.visit(stop)
    return both, node, values


def test_a_residual_layer_takes_back_the_error_of_the_stream() -> None:
    """bn(b) + x: the target of b is its dense output plus the error of x over the norm's scale."""
    units, kept, cut = halved("residual")
    images = pictures(6)
    with torch.no_grad():
        cut.stem.weight.mul_(1.3)  # now the stream is wrong
        both, node, values = values_at(units, cut, images, "b")
        correction = plan(both, kept, node, values)
        assert correction is not None
        target = correction.target(both, kept, values)
        traced = units.flow.traced
        stays = torch.from_numpy(units.keeps(kept, units.flow.layers["b"].out))
        stream = traced.stem(images)
        own = traced.b(F.relu(traced.bn1(traced.a(stream))))[:, stays]
        error = stream[:, stays] - cut.stem(images)
        scale = cut.bn2.weight / (cut.bn2.running_var + cut.bn2.eps).sqrt()
    assert torch.allclose(target, own + error / scale[:, None, None], atol=1e-4)


class Blocks(nn.Module):
    """conv13 ─┬─ conv23 - bn - relu - conv13 - bn ─(+)─ relu, five times"""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nets.conv(3, 13)
        self.wide = nn.ModuleList(nets.conv(13, 23, bias=False) for _ in range(5))
        self.narrow = nn.ModuleList(nets.conv(23, 13, bias=False) for _ in range(5))
        self.norms = nn.ModuleList(nn.BatchNorm2d(w) for w in (23, 13) * 5)
        self.last = nets.conv(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i in range(5):
            y = F.relu(self.norms[2 * i](self.wide[i](x)))
            x = F.relu(self.norms[2 * i + 1](self.narrow[i](y)) + x)
        return self.last(x)


def test_the_residual_correction_pays() -> None:
    torch.manual_seed(0)
    units = couple(nets.enliven(Blocks()), nets.INPUT)
    kept = laws.plan(units, price(units), 0.5)
    cut, images = apply(units, kept), pictures(200)
    found = []
    for correct in (False, True):
        smaller, layers = repaired(units, kept, cut, [images[:100]], correct=correct)
        found += divergences([smaller], units.flow.traced, [images[100:]])
        corrects = [layer.name for layer in layers if layer.corrects]
        assert corrects == [f"narrow.{i}" for i in range(5) if correct]
    assert found[1] < 0.95 * found[0]


class Merges(nn.Module):
    """Sums and products that a layer can or cannot correct."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.gate = nets.conv(3, 13), nets.conv(3, 13)
        self.a, self.b, self.c = (nets.conv(13, 13) for _ in range(3))
        self.linear, self.low = nn.Linear(13, 13), nets.conv(13, 13, stride=2)
        self.scale = nn.Parameter(torch.rand(13, 1, 1) + 0.5)
        self.head = nets.head(13)

    def forward(self, x: Tensor) -> Tensor:
        gate, x = torch.sigmoid(self.gate(x)), self.stem(x)
        x = F.relu(self.a(x) + self.b(x) + x)  # a: the other sums are not known yet
        x = F.relu(self.c(x)) + x  # c: not affine
        y = self.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = F.relu(x + self.scale * y)
        x = gate * F.interpolate(self.low(x), scale_factor=2) + x
        return self.head(x)


def test_sums_through_permutations_scales_gates_and_upsampling() -> None:
    torch.manual_seed(0)
    units = couple(nets.enliven(Merges()), nets.INPUT)
    kept = laws.plan(units, price(units), 0.5)
    cut = apply(units, kept)
    _, found = repaired(units, kept, cut, [pictures(20)])
    assert [layer.name for layer in found if layer.corrects] == ["b", "linear", "low"]


ACTIVATIONS: dict[str, tuple[Any, list[float]]] = {
    # present value Ŝ and dense value S → the value to aim at
    "relu": (nn.ReLU(), [-1.0, -3.0, -1.0, 2.0, -3.0, 0.0, 1.0, 2.0, 2.0]),
    "relu6": (nn.ReLU6(), [7.0, 9.0, 7.0, 4.0, 9.0, 6.0, 1.0, -1.0, 0.0]),
    "leaky": (nn.LeakyReLU(0.1), [-1.0, -3.0, -3.0, 2.0, -3.0, -3.0, 1.0, 2.0, 2.0]),
}


class Activated(nn.Module):
    """conv13 - conv13 - bn - activation - conv13 - head"""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.stem, self.body = nets.conv(3, 13), nets.conv(13, 13, bias=False)
        self.norm, self.activation = nn.BatchNorm2d(13), activation
        self.last, self.head = nets.conv(13, 13), nets.head(13)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm(self.body(self.stem(x))))
        return self.head(self.last(x))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_hides_errors(name: str) -> None:
    """Of each error, the layer takes back what the activation lets through."""
    activation, numbers = ACTIVATIONS[name]
    units = couple(nets.enliven(Activated(activation).eval()), nets.INPUT)
    kept = laws.plan(units, price(units), 0.5)
    cut, images = apply(units, kept), pictures(6)
    both, node, values = values_at(units, cut, images, "body")
    correction = plan(both, kept, node, values)
    if name == "leaky":  # nowhere flat, and there is no sum
        assert correction is None
        return
    assert correction is not None
    assert correction.activation is not None
    assert not correction.sums
    for found, wanted, aim in zip(*[iter(numbers)] * 3, strict=True):
        present, dense = torch.tensor([found]), torch.tensor([wanted])
        step = visible(dense - present, present, activation)
        assert torch.equal(present + step, torch.tensor([aim]))


@pytest.mark.parametrize("name", ["relu", "relu6"])
def test_what_activations_hide_pays(name: str) -> None:
    """A layer that is fitted again is closer to the dense one behind its activation."""
    torch.manual_seed(1)
    units = couple(nets.enliven(Activated(ACTIVATIONS[name][0]).eval()), nets.INPUT)
    kept = laws.plan(units, price(units), 0.4)
    cut, images = apply(units, kept), pictures(60)
    stays = torch.from_numpy(units.keeps(kept, units.flow.layers["body"].out))
    errors = []
    with torch.no_grad():
        dense = activated(units.flow.traced, images)[:, stays]
        for refits in (0, 2):
            smaller, _ = repaired(units, kept, cut, [images], refits=refits)
            errors.append(float((activated(smaller, images) - dense).square().mean()))
    assert errors[1] < 0.98 * errors[0]


def activated(model: nn.Module, images: Tensor) -> Tensor:
    """The values behind the activation of `Activated`."""
    return model.activation(model.norm(model.body(model.stem(images))))


def test_behind_a_chunk() -> None:
    """conv - bn - chunk: one op gives two tensors, as in YOLO's blocks."""

    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 14, 3, padding=1), nn.BatchNorm2d(14)
            self.last = nn.Conv2d(7, 11, 1)
            self.head = nn.Linear(11, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = self.bn(self.conv(x)).chunk(2, 1)
            return self.head(self.last(torch.relu(a) + b).mean((2, 3)))

    torch.manual_seed(0)
    dense = Halves().eval()
    pictures = torch.rand(40, 3, 8, 8)
    small = legr_cli.prune(dense, (3, 8, 8), flops=0.6, align=1)
    usable = legr_cli.repair(small, dense, pictures)
    found = [legr_cli.evaluate(net, pictures, against=dense).loss for net in (small, usable)]
    assert found[1] < found[0]
