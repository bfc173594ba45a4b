"""Importance metrics: formulas by hand and by brute force, what must not matter, every network."""

import copy
from collections.abc import Sequence

import nets
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from legr_cli.channels import Units, couple
from legr_cli.cost import Cost, price
from legr_cli.errors import CheckpointError
from legr_cli.metrics import reconstruction as module
from legr_cli.metrics.filters import collect_filters
from legr_cli.metrics.norms import folded_norm, squared_norm
from legr_cli.metrics.reconstruction import reconstruction
from legr_cli.metrics.sharing import shared_out
from legr_cli.metrics.taylor import PROJECTIONS, taylor

IMAGES = (reconstruction, taylor)


def images(count: int = 30, shape: Sequence[int] = nets.INPUT, seed: int = 5) -> list[Tensor]:
    """Two batches in double precision."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    return list(drawn.split(count - count // 3))


def scores_of(values: dict[str, Tensor], units: Units, cost: Cost) -> np.ndarray:
    """log score of each unit but for a constant: the sum over its filters, and √FLOPs taken out."""
    sums = np.zeros(units.count)
    for name, each in values.items():
        unit = units.unit_of(units.flow.layers[name].out)
        np.add.at(sums, unit[unit >= 0], each.numpy()[unit >= 0])
    flops = cost.marginal(cost.flops, cost.sizes.astype(float))[cost.group_of]
    return sums + np.log(flops) / 2


def measured(metric, model: nn.Module, shape: Sequence[int] = nets.INPUT) -> tuple:
    """log scores by unit, and the units."""
    units = couple(model, tuple(shape))
    cost = price(units)
    return scores_of(metric(units, cost, images(shape=shape)), units, cost), units


def units_of(units: Units, layer: str) -> np.ndarray:
    return units.unit_of(units.flow.layers[layer].out)


def test_norms_by_hand() -> None:
    """Two filters, (3, 4) and (1, 2): 25 and 5. γ/σ is 2/2 and 3/0.5: 25·1 and 5·36."""
    model = nn.Sequential(
        nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2, eps=0.0), nn.Conv2d(2, 3, 1, bias=False)
    )
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([[3.0, 4.0], [1.0, 2.0]]).reshape(2, 2, 1, 1)
        model[1].weight[:] = torch.tensor([2.0, 3.0])
        model[1].running_var[:] = torch.tensor([4.0, 0.25])
        model[2].weight[:] = 2.0
    units = couple(model.eval(), (2, 4, 4))
    plain, folded = squared_norm(units), folded_norm(units)
    assert plain["0"].tolist() == [25, 5]
    assert folded["0"].tolist() == pytest.approx([25, 180])
    assert plain["2"].tolist() == folded["2"].tolist() == [8, 8, 8]  # no norm behind it


def test_a_norm_without_scale_or_statistics_folds_what_it_has() -> None:
    """Without γ it is 1/σ; a norm that computes its own statistics is not folded."""
    kinds = (nn.BatchNorm2d(2, affine=False, eps=0.0), nn.BatchNorm2d(2, track_running_stats=False))
    folded = []
    for norm in kinds:
        model = nn.Sequential(nn.Conv2d(2, 2, 1), norm, nn.Conv2d(2, 3, 1)).eval()
        with torch.no_grad():
            model[0].weight[:] = 1.0
            if norm.running_var is not None:
                norm.running_var[:] = torch.tensor([4.0, 0.25])
        folded.append(folded_norm(couple(model, (2, 4, 4)))["0"].tolist())
    assert folded[0] == pytest.approx([0.5, 8.0])
    assert folded[1] == [2.0, 2.0]


def dense_layers(hidden: int = 6) -> nn.Module:
    """3x2x2 → flatten → hidden → relu → 4."""
    torch.manual_seed(2)
    layers = nn.Flatten(), nn.Linear(12, hidden), nn.ReLU(), nn.Linear(hidden, 4)
    return nn.Sequential(*layers).double().eval()


def error_without(inputs: Tensor, outputs: Tensor, kept: Sequence[int]) -> float:
    """The least mean squared error, summed over outputs, of a linear fit from some inputs."""
    rows = torch.cat([inputs[:, list(kept)], torch.ones(len(inputs), 1).double()], 1)
    fitted = rows @ torch.linalg.lstsq(rows, outputs).solution
    return float((outputs - fitted).square().sum() / len(inputs))


def test_a_unit_costs_what_the_others_cannot_refit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest unit goes, the others are refitted by least squares, and so on to the last."""
    monkeypatch.setattr(module, "RIDGE", 1e-12)
    model, shape = dense_layers(), (3, 2, 2)
    found, units = measured(reconstruction, model, shape)
    with torch.no_grad():
        hidden = model[:3](torch.cat(images(shape=shape)))
        outputs = model[3](hidden)
    left, expected = list(range(6)), np.zeros(6)
    while left:
        before = error_without(hidden, outputs, left)
        rest = [[other for other in left if other != one] for one in left]
        costs = [error_without(hidden, outputs, others) - before for others in rest]
        expected[left.pop(int(np.argmin(costs)))] = max(min(costs), expected.max())
    by_channel = found[units_of(units, "1")]
    expected = np.log(expected)
    assert by_channel - by_channel.mean() == pytest.approx(expected - expected.mean(), abs=1e-6)


def test_dead_channels_are_last() -> None:
    model = nets.make("plain")
    with torch.no_grad():
        for parameter in (model.body[1].weight, model.body[1].bias):
            parameter[[4, 7]] = 0
        model.body[3].weight[:, 7] *= 100  # read with large weights, and yet nothing
    for metric in IMAGES:
        found, units = measured(metric, model)
        order = units_of(units, "body.0")[np.argsort(found[units_of(units, "body.0")])]
        assert set(order[:2]) == set(units_of(units, "body.0")[[4, 7]]), metric
        assert found[order[1]] < found[order[2]] - 3, metric


def test_one_of_two_copies_is_nearly_free() -> None:
    """While the other is left. Norms see nothing of it."""
    model = nets.make("plain")
    conv, norm, reader = model.body[0], model.body[1], model.body[3]
    with torch.no_grad():
        tensors = (norm.weight, norm.bias, norm.running_mean, norm.running_var, conv.weight)
        for tensor in (*tensors, *([] if conv.bias is None else [conv.bias])):
            tensor[9] = tensor[2]
        reader.weight[:, 9] *= 1.5  # they are read with different weights
    found, units = measured(reconstruction, model)
    own = found[units_of(units, "body.0")]
    cheap, dear = sorted(own[[2, 9]])
    others = np.delete(own, [2, 9])
    assert cheap < others.min()
    assert cheap < np.median(others) - 1.5
    assert dear > others.min()
    norms = squared_norm(units)["body.0"]
    assert norms[2] == norms[9]


@pytest.mark.parametrize("metric", [reconstruction, taylor, folded_norm])
def test_the_scale_of_a_filter_before_its_norm_does_not_matter(metric) -> None:
    """γ/σ takes it back, so the network is the same; plain norms differ."""
    model = nets.make("plain")
    other = copy.deepcopy(model)
    with torch.no_grad():
        for conv, norm, filters in ((0, 1, [3, 8]), (3, 4, [0, 11, 20])):
            for index, factor in zip(filters, (3.0, 0.2, 7.0), strict=False):
                layer, bn = other.body[conv], other.body[norm]
                layer.weight[index] *= factor
                if layer.bias is not None:
                    layer.bias[index] *= factor
                bn.running_mean[index] *= factor
                var = bn.running_var[index]
                bn.running_var[index] = factor**2 * (var + bn.eps) - bn.eps
    if metric is folded_norm:
        found = [metric(couple(m, nets.INPUT)) for m in (model, other)]
        pairs = [(found[0][f"body.{i}"], found[1][f"body.{i}"]) for i in (0, 3)]
        assert all(torch.allclose(one, two, rtol=1e-9) for one, two in pairs)
        return
    one, two = (measured(metric, m)[0] for m in (model, other))
    assert two == pytest.approx(one, abs=1e-6)


def test_taylor_by_hand() -> None:
    """a = w·x of each channel, p = Σ noise · v · mean(a): (Σ (a − ā) · noise·v/4)² of an image."""
    model = nn.Sequential(
        nn.Conv2d(1, 2, 1, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2, 3, bias=False),
    ).double()
    first, second = torch.tensor([2.0, -0.5]).double(), torch.arange(1.0, 7).reshape(3, 2).double()
    with torch.no_grad():
        model[0].weight[:] = first.reshape(2, 1, 1, 1)
        model[3].weight[:] = second
    batch = images(6, (1, 2, 2))[0]
    units = couple(model.eval(), (1, 2, 2))
    cost = price(units)
    found = scores_of(taylor(units, cost, [batch]), units, cost)
    generator, expected = torch.Generator().manual_seed(0), torch.zeros(2).double()
    values = first.reshape(2, 1) * batch.reshape(4, 1, 4)
    centred = (values - values.mean((0, 2), keepdim=True)).mean(2)
    for _ in range(PROJECTIONS):
        noise = torch.randn(4, 3, generator=generator).double()
        expected += (centred * (noise @ second)).square().sum(0)
    one, two = found[units_of(units, "0")]
    assert one - two == pytest.approx(float((expected[0] / expected[1]).log()))


def test_a_channel_that_no_output_depends_on_is_last() -> None:
    """Although it is as large as others; reconstruction agrees."""
    model = nets.make("plain")
    with torch.no_grad():
        model.body[3].weight[:, 6] = 0
    for metric in IMAGES:
        found, units = measured(metric, model)
        own = found[units_of(units, "body.0")]
        assert own.argmin() == 6, metric
        assert own[6] < np.delete(own, 6).min() - 3, metric


def test_a_score_is_shared_out_and_sums_back() -> None:
    """Stem and b are one group, so each of its units has two filters; each gets half."""
    units = couple(nets.make("residual"), nets.INPUT)
    cost = price(units)
    scores = np.random.default_rng(0).random(units.count) + 0.1
    values = shared_out(units, cost, scores)
    sums = np.zeros(units.count)
    for name, each in values.items():
        unit = units_of(units, name)
        np.add.at(sums, unit[unit >= 0], each.numpy()[unit >= 0])
    one_less = (cost.sizes - np.eye(len(cost.sizes))[group] for group in range(len(cost.sizes)))
    dense = cost.total(cost.flops, cost.sizes)
    flops = np.array([dense - cost.total(cost.flops, counts) for counts in one_less])
    expected = np.log(scores / np.sqrt(flops[cost.group_of]))
    assert sums == pytest.approx(expected - expected.mean())
    assert sums.mean() == pytest.approx(0)
    tied = units_of(units, "stem")
    assert np.array_equal(tied, units_of(units, "b"))
    assert torch.equal(values["stem"], values["b"])


def test_scores_of_zero_are_finite_and_last() -> None:
    units = couple(nets.make("plain"), nets.INPUT)
    cost = price(units)
    scores = np.ones(units.count)
    scores[units_of(units, "body.0")[3]] = 0
    assert float(shared_out(units, cost, scores)["body.0"].argmin()) == 3
    zeros = shared_out(units, cost, np.zeros(units.count))
    assert all(torch.isfinite(values).all() for values in zeros.values())


@pytest.mark.parametrize("name", nets.NETS)
def test_every_network_is_measured(name: str) -> None:
    """Grouped, transposed, shared, functional, recurrent: one finite number for each filter."""
    units = couple(nets.make(name), nets.INPUT)
    cost, batches = price(units), images(12)
    for metric in ("folded-norm", "reconstruction", "taylor"):
        filters = collect_filters(units, metric, cost, batches)
        assert len(filters.value) == len(filters.unit) == len(filters.layer)
        assert set(filters.unit.tolist()) == set(range(units.count))
        assert np.isfinite(filters.value).all()
        again = collect_filters(units, metric, cost, batches)
        assert np.array_equal(filters.value, again.value)


class Doubled(nn.Conv2d):
    """A convolution whose output is not a plain product with its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def test_units_that_no_layer_reads_are_ranked_by_norm() -> None:
    torch.manual_seed(0)
    layers = Doubled(3, 13, 3), nn.ReLU(), Doubled(13, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    found, units = measured(reconstruction, nn.Sequential(*layers).double().eval())
    own = units_of(units, "0")
    norms = squared_norm(units)["0"].log().numpy()
    assert found[own] - found[own].mean() == pytest.approx(norms - norms.mean())


class Pinned(nn.Module):
    """cat(image, conv13) - conv5: the last layer reads channels that always stay."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = nets.conv(3, 13), nets.conv(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([x, torch.relu(self.stem(x))], 1)).mean((2, 3))


def test_a_layer_that_also_reads_the_image_still_counts() -> None:
    """What it never reads is free, however large its weights are."""
    torch.manual_seed(0)
    model = Pinned().double().eval()
    with torch.no_grad():
        model.last.weight[:, 3 + 7] = 0
        model.stem.weight[7] *= 3
    found, units = measured(reconstruction, model)
    assert found[units_of(units, "stem")].argmin() == 7


@pytest.mark.parametrize("metric", ["reconstruction", "taylor"])
def test_images_that_are_no_numbers_are_one_error(metric: str) -> None:
    units = couple(nets.make("plain"), nets.INPUT)
    batches = images(6)
    batches[0][0, 0, 3, 3] = float("nan")
    with pytest.raises(CheckpointError, match=r"NaN or infinite (outputs|values) on these images"):
        collect_filters(units, metric, price(units), batches)


@pytest.mark.parametrize("metric", IMAGES)
def test_a_network_is_left_as_it_was(metric) -> None:
    """Weights, statistics, mode and gradients."""
    model = nets.make("norms").train()
    before = copy.deepcopy(model.state_dict())
    units = couple(model, nets.INPUT)
    metric(units, price(units), images(12))
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_split_into_batches_does_not_matter() -> None:
    """As long as all positions are sampled."""
    units = couple(nets.make("residual"), nets.INPUT)
    cost, drawn = price(units), torch.cat(images(12))
    one, two = (reconstruction(units, cost, drawn.split(size)) for size in (12, 5))
    assert all(torch.allclose(one[name], two[name], atol=1e-9) for name in one)


def test_many_inputs_count_as_uncorrelated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then each unit costs its variance times its squared weights."""
    monkeypatch.setattr(module, "LARGEST", 5)
    model, shape = dense_layers(), (3, 2, 2)
    found, units = measured(reconstruction, model, shape)
    with torch.no_grad():
        variance = model[:3](torch.cat(images(shape=shape))).var(0, correction=0)
        expected = (variance * model[3].weight.square().sum(0)).log().numpy()
    own = found[units_of(units, "1")]
    assert own - own.mean() == pytest.approx(expected - expected.mean())


def test_wide_groups_are_taken_apart_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps of one in STEPS, a score never falls as units go; fewer steps, the same extremes."""
    model, shape = dense_layers(hidden=70), (3, 2, 2)
    with torch.no_grad():
        model[3].weight[:, 5] = 0
        model[3].weight[:, 9] *= 30
    for steps in (64, 8):
        monkeypatch.setattr(module, "STEPS", steps)
        found, units = measured(reconstruction, model, shape)
        own = found[units_of(units, "1")]
        assert (own.argmin(), own.argmax()) == (5, 9)
        assert len(set(own.tolist())) == 70  # scores of a step differ, so that the order is kept
