"""Networks whose code does what Python allows are recorded as they compute."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nets import enliven
from torch import nn

from legr_cli.channels import apply, couple
from legr_cli.channels.check import disagreement
from legr_cli.channels.switches import evaluating
from legr_cli.cost import count_flops, price
from legr_cli.errors import ModelError

SIZES = [(2, 3, 24, 24), (1, 3, 24, 24), (3, 3, 20, 28)]  # the recorded one, and others


class Net(nn.Module):
    """conv13 - what a test adds - conv17 - mean - fc5"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = nn.Conv2d(3, 13, 3, padding=1), nn.Conv2d(13, 17, 3, padding=1)
        self.fc = nn.Linear(17, 5)
        self.extra()

    def extra(self) -> None:
        """More layers."""

    def middle(self, x: torch.Tensor) -> torch.Tensor:
        """What a test adds."""
        return x

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(F.relu(self.last(self.middle(F.relu(self.stem(x))))).mean((2, 3)))


class LoopOverSize(Net):
    def middle(self, x):
        total = torch.zeros_like(x)
        for i in range(len(x.shape) - 1):
            total = total + x * (i + 1)
        return total


class PadToEven(Net):
    def middle(self, x):
        h, w = x.shape[-2:]
        return F.pad(x, (0, 8 - w % 8, 0, 8 - h % 8))


class HalfByInt(Net):
    def middle(self, x):
        h, w = x.shape[2:]
        return F.interpolate(x, size=(int(h * 0.5), math.ceil(w / 3)), mode="bilinear")


class ByFloat(Net):
    def middle(self, x):
        return F.interpolate(x, size=(round(float(x.shape[2]) / 2), x.size(3) // 2)) / float(
            x.size(2)
        )


class ByDivmod(Net):
    def middle(self, x):
        half, rest = divmod(x.shape[2], 7)
        return x[:, :, : half + rest] * abs(-x.shape[3]) / (x.shape[2] << 1)


class SizeAsTensor(Net):
    def middle(self, x):
        size = torch.tensor(x.shape[2:], dtype=x.dtype)
        return x / size[0] + size.prod() * 0.01


class LikeAnother(Net):
    def middle(self, x):
        small = F.max_pool2d(x, 2)
        return F.interpolate(small, size=x.shape[2:], mode="nearest") + x


class Grid(Net):
    def middle(self, x):
        h, w = x.shape[2:]
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        return x + (ys + xs).to(x) / 10


class OutArgument(Net):
    def middle(self, x):
        y = torch.empty_like(x)
        torch.mul(x, 2.0, out=y)
        return y + x


class ViewInPlace(Net):
    def middle(self, x):
        y = x.view(x.shape)
        y.mul_(3.0)
        return x + 1


class HalfInPlace(Net):
    def middle(self, x):
        x[:, :, ::2] += 1.0
        x[:, :, 0] = 0.5
        return x


class SliceAssigned(Net):
    def middle(self, x):
        out = torch.zeros_like(x)
        out[:, :, :-1] = x[:, :, 1:]
        out[:, :, -1] = x[:, :, -1]
        return out


class ChannelsAssigned(Net):
    def middle(self, x):
        out = torch.zeros_like(x)
        fold = x.shape[1] // 4
        out[:, :fold] = x[:, :fold] * 2
        out[:, fold:] = x[:, fold:]
        return out


class Data(Net):
    def middle(self, x):
        return x.data * 2 + x.detach()


class DataWritten(Net):
    def middle(self, x):
        x.data.mul_(2.0)
        return x + 1


class NoGradInside(Net):
    def middle(self, x):
        with torch.no_grad():
            y = x * 2
        with torch.inference_mode():
            z = x.clone()
        return y + z.clone()


class Generator(Net):
    def middle(self, x):
        return sum(part for part in (x * i for i in (1, 2, 3)))


class Comprehension(Net):
    def extra(self):
        self.parts = nn.ModuleList(nn.Conv2d(c, 6, 1) for c in (5, 5, 3))
        self.join = nn.Conv2d(18, 13, 1)

    def middle(self, x):
        pieces = torch.split(x, 5, 1)
        return self.join(torch.cat([f(p) for f, p in zip(self.parts, pieces, strict=True)], 1))


class StarArguments(Net):
    def extra(self):
        class Inner(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(13, 13, 1)

            def forward(self, *args, **options):
                return self.conv(args[0]) * options["scale"]

        self.inner = Inner()

    def middle(self, x):
        return self.inner(x, None, scale=2.0)


class DictsAndLists(Net):
    def extra(self):
        class Many(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = nn.Conv2d(13, 13, 1), nn.Conv2d(13, 13, 1)

            def forward(self, *, inputs):
                return {"both": [self.a(inputs[0]), (self.b(inputs[1]["x"]), None)], "n": 3}

        self.many = Many()

    def middle(self, x):
        result = self.many(inputs=[x, {"x": x}])
        first, (second, nothing) = result["both"]
        assert nothing is None
        return first + second * result["n"]


class MadeInForward(Net):
    def middle(self, x):
        return nn.Upsample(scale_factor=2)(nn.ReLU()(x - 0.1))


class SharedTwice(Net):
    def extra(self):
        self.again = nn.Conv2d(13, 13, 3, padding=1)

    def middle(self, x):
        return self.again(F.relu(self.again(x))) + x


class ParameterUsed(Net):
    def extra(self):
        self.scale = nn.Parameter(torch.rand(13, 1, 1))
        self.scales = nn.ParameterList([torch.rand(1, 13, 1, 1) for _ in range(2)])

    def middle(self, x):
        for scale in self.scales:
            x = x * scale
        return x * self.scale


class CountsCalls(Net):
    def extra(self):
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("largest", torch.zeros(()))
        self.count, self.seen = 0, []

    def middle(self, x):
        self.calls += 1
        self.largest = torch.maximum(self.largest, x.max())
        self.count += 1
        self.seen.append(x.shape)
        self.last_input = x
        return x


class CachedGrid(Net):
    """As detection heads do: a grid made for one picture size and kept for the next call."""

    def extra(self):
        self.grid, self.grid_size = None, None

    def middle(self, x):
        if self.grid_size != x.shape[2:]:
            self.grid = torch.linspace(0, 1, x.shape[3]).to(x).expand(1, 1, x.shape[2], x.shape[3])
            self.grid_size = x.shape[2:]
        return x + self.grid


class DropoutInside(Net):
    def extra(self):
        self.drop, self.same = nn.Dropout(0.5), nn.Identity()

    def middle(self, x):
        y = self.same(self.drop(x))
        return F.dropout(y, 0.3, self.training) + x


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s * (1 + x * (1 - s)))


class MemoryEfficientSwish(Net):
    def middle(self, x):
        return Swish.apply(x)


@torch.jit.script
def scripted_scale(x: torch.Tensor, by: float):
    if x.shape[0] > 100:
        return x
    y = x * by
    y += 1.0
    return torch.relu(y)


@torch.jit.script
def scripted_gate(x: torch.Tensor) -> torch.Tensor:
    return (x * torch.sigmoid(x)).add_(1.0)


class Scripted(Net):
    def middle(self, x):
        return scripted_scale(x, 2.0) + torch.jit.script(nn.ReLU())(x)


class Checkpointed(Net):
    def extra(self):
        self.block = nn.Conv2d(13, 13, 3, padding=1)

    def middle(self, x):
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)


class DtypeAndDevice(Net):
    def extra(self):
        self.register_buffer("table", torch.arange(13))

    def middle(self, x):
        mask = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
        y = x * mask * self.table.to(x.dtype).view(1, -1, 1, 1)
        return y.to(self.stem.weight.dtype).type_as(x).to(x.device)


class IntegerDtype(Net):
    def middle(self, x):
        steps = torch.zeros(x.shape[3], dtype=int) + 1
        return x * steps * np.ones(1, dtype=int).item()


class Asserts(Net):
    def middle(self, x):
        assert x.dim() == 4
        assert x.shape[1] == len(self.stem.weight)
        assert isinstance(x, torch.Tensor)
        assert torch.isfinite(x).all(), f"{x} is not finite"
        if x.requires_grad or not x.is_floating_point():
            raise TypeError
        return x


class ConditionThatHolds(Net):
    def middle(self, x):
        if (x >= 0).all():  # after a ReLU, always
            return x * 2
        return x


class ListOfTensors(Net):
    def middle(self, x):
        kept = []
        for i in range(3):
            kept.append(x * i)
            kept[0] = kept[0] + 1
        return torch.stack(kept).sum(0) + torch.cat(kept[1:], 0)[: x.shape[0]]


class Transposed(Net):
    def middle(self, x):
        b, c, h, w = x.size()
        y = x.permute(0, 2, 3, 1).reshape(b, h * w, c)
        return y.transpose(1, 2).contiguous().view(b, -1, h, w)


class Recursion(Net):
    def middle(self, x, depth=3):
        return x if depth == 0 else self.middle(x * 2, depth - 1) + x


class Hooks(Net):
    def extra(self):
        self.side = nn.Sequential(nn.Conv2d(13, 13, 1))
        self.side.register_forward_hook(lambda module, args, out: out * 2)
        self.side.register_forward_pre_hook(lambda module, args: (args[0] + 1,))

    def middle(self, x):
        return self.side(x)


class WhereMasked(Net):
    def middle(self, x):
        y = torch.where(x > 0.1, x, x * 0.5)
        return y.masked_fill(x < 0.05, 0.0)


class BufferSliced(Net):
    def extra(self):
        self.register_buffer("position", torch.rand(1, 1, 64, 64))

    def middle(self, x):
        return x + self.position[:, :, : x.shape[2], : x.shape[3]]


class Unflattened(Net):
    def extra(self):
        self.wide = nn.Conv2d(13, 39, 1)

    def middle(self, x):
        a, b, c = self.wide(x).unflatten(1, (3, 13)).unbind(1)
        return a * b.sigmoid() + c


class FlattenedByProduct(Net):
    def middle(self, x):
        n, _, h, w = x.shape
        return x.reshape(n, 13 * h * w).mul(2.0).reshape(n, 13, h, w)


class MaskAssigned(Net):
    def middle(self, x):
        x = x * 1.0
        x[x > 0.5] = 0.25
        x[x.sum((1, 2, 3)) < 0] = 0.0  # by image: has another rule
        return x


@functools.lru_cache
def halves(h: int, w: int) -> tuple[int, int]:
    return h // 2, w // 2


class CachedSizes(Net):
    def middle(self, x):
        return F.interpolate(x, size=halves(*x.shape[2:]))


class Powered(Net):
    def middle(self, x):
        return x**2 + 1.5 ** (-x)


class OutputSize(Net):
    def extra(self):
        self.down, self.up = nn.Conv2d(13, 11, 3, 2, 1), nn.ConvTranspose2d(11, 13, 3, 2, 1)

    def middle(self, x):
        return self.up(F.relu(self.down(x)), output_size=x.size()) + x


class SizeOfData(Net):
    def middle(self, x):
        n, c, h, w = x.data.size()
        return x.view(n, -1, h, w).mul(c / 13)


class InVain(Net):
    """A branch with ops in place whose result nobody reads."""

    def extra(self):
        self.side = nn.Sequential(nn.Conv2d(13, 11, 3), nn.ReLU(inplace=True), nn.Conv2d(11, 3, 1))

    def middle(self, x):
        self.side(x).add_(1.0).mean((2, 3))
        y = x.view(x.shape)
        y[:, :, 0].mul_(2.0)  # this, however, changes x
        return x


class ScriptedGate(Net):
    def middle(self, x):
        return scripted_gate(x)


class AllArguments(Net):
    def forward(self, *args, **options):
        return super().forward(*args, **options)


NETS = Net.__subclasses__()


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return enliven(kind().double())


def plan(units, seed=0):
    return units.without_empty_tensors(np.random.default_rng(seed).random(units.count) < 0.5)


def silenced(model, units, kept):
    """The dense network's own code with zeros in the weights that read removed channels."""
    dead = made(type(model))
    with torch.no_grad():
        for name, layer in units.flow.layers.items():
            gone = torch.from_numpy(~units.keeps(kept, layer.into))
            dead.get_submodule(name).weight.movedim(layer.axes.into, 0)[gone] = 0
    return dead


def image(size):
    return torch.rand(size, generator=torch.Generator().manual_seed(3)).double()


@pytest.mark.parametrize("kind", NETS, ids=lambda kind: kind.__name__)
def test_pruned_equals_the_networks_own_code_on_every_size(kind):
    model = made(kind)
    units = couple(model, SIZES[0][1:])
    assert {"last"} <= {
        n for n, la in units.flow.layers.items() if (units.unit_of(la.out) >= 0).any()
    }
    kept = plan(units)
    smaller = apply(units, kept)
    assert disagreement(units, kept, smaller, exact=True) < 1e-12
    for size in SIZES:
        x = image(size)
        with evaluating(model):
            expected = silenced(model, units, kept)(x.clone())
        assert float(expected.std()) > 1e-3
        torch.testing.assert_close(smaller(x.clone()), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("kind", NETS, ids=lambda kind: kind.__name__)
def test_the_network_is_left_as_it_was(kind):
    model = made(kind)
    model.train()
    with torch.no_grad():
        model(image((2, 3, 16, 16)))  # fills caches
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    attributes = {name: dict(vars(module)) for name, module in model.named_modules()}
    seen = len(getattr(model, "seen", ()))
    couple(model, (3, 24, 24))
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == attributes
    assert len(getattr(model, "seen", ())) == seen
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


REMOVABLE = [Unflattened, FlattenedByProduct, CachedSizes, ScriptedGate, Powered, OutputSize, Data]


@pytest.mark.parametrize("kind", REMOVABLE)
def test_all_channels_before_such_code_can_be_removed(kind):
    units = couple(made(kind), (3, 24, 24))
    assert {pin.reason for pin in units.pins} == {"the network's output"}


def test_pooling_of_frames_in_the_batch_costs_what_fvcore_counts():
    class Frames(Net):
        def forward(self, x):
            y = super().forward(x.flatten(0, 1))
            return y.view(*x.shape[:2], -1).mean(1)

        def middle(self, x):
            return F.interpolate(F.adaptive_avg_pool2d(x, 3), scale_factor=2)

    units = couple(made(Frames), (4, 3, 24, 24))
    cost, kept = price(units), plan(units)
    counted = count_flops(apply(units, kept), (4, 3, 24, 24))
    assert counted == cost.total(cost.flops, cost.counts(kept))


def test_what_is_computed_in_vain_costs_nothing_as_in_fvcore():
    units = couple(made(InVain), (3, 24, 24))
    assert not any(name.startswith("side") for name in units.flow.layers)
    cost, kept = price(units), plan(units)
    counted = count_flops(apply(units, kept), (3, 24, 24))
    assert counted == cost.total(cost.flops, cost.counts(kept))


def test_a_refusal_names_the_way_out_first():
    model = made(Net)
    model.stem, model.last = (
        nn.utils.parametrizations.weight_norm(x) for x in (model.stem, model.last)
    )
    with pytest.raises(
        ModelError, match=r"pinned by conv2d \(in \w+\), whose weight is parametrized"
    ):
        couple(model, (3, 24, 24))


def test_a_cache_of_an_earlier_run_is_computed_anew():
    model = made(CachedGrid)
    with evaluating(model):
        model(image((2, 3, 24, 24)))
    units = couple(model, (3, 24, 24))
    kept = plan(units)
    smaller, dead = apply(units, kept), silenced(model, units, kept)
    with evaluating(dead):
        for size in SIZES:
            torch.testing.assert_close(smaller(image(size)), dead(image(size)), rtol=0, atol=1e-11)


def test_training_mode_is_that_of_the_networks_own_code():
    model = made(DropoutInside)
    units = couple(model, (3, 24, 24))
    smaller = apply(units, np.ones(units.count, bool)).train()
    model.train()
    outputs = []
    for network in (model, smaller):
        torch.manual_seed(5)
        outputs.append(network(image((2, 3, 24, 24))))
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-12)
