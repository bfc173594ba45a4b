"""The channel engine on tiny networks: every kind of wiring, every law."""

import operator
from pathlib import Path
from typing import NamedTuple

import laws
import nets
import numpy as np
import pytest
import torch
from torch import nn

from legr_cli.channels import apply, couple
from legr_cli.cost import count_flops, price
from legr_cli.cut import floor
from legr_cli.errors import BudgetError, ModelError
from legr_cli.settings import Align


@pytest.mark.parametrize("name", nets.NETS)
def test_laws(name: str) -> None:
    model = nets.make(name)
    units = couple(model, nets.INPUT)
    cost = price(units)
    rng = np.random.default_rng(3)
    for trial in range(3):
        kept = units.without_empty_tensors(rng.random(units.count) < (0.3, 0.5, 0.8)[trial])
        laws.law1_dead_channels_change_nothing(units, model, kept)
        laws.law2_pruned_is_dense_silenced(units, model, kept)
        laws.law3_cost_is_fvcores(units, cost, kept)
    blocks = laws.ranked(units, cost)
    shares = [s for s in laws.SHARES if s >= floor(cost, blocks, cost.flops)]
    plans = [laws.plan(units, cost, share) for share in shares]
    laws.law4_plans_nest(plans)
    for share, kept in zip(shares, plans, strict=True):
        if not kept.all():
            laws.law5_under_the_target_and_full(units, cost, kept, share, within=1.0)
            laws.law2_pruned_is_dense_silenced(units, model, kept)


@pytest.mark.parametrize("name", ["no norm", "pad halves", "shuffle view 5", "split", "cat zeros"])
def test_law6(name: str, tmp_path: Path) -> None:
    units = couple(nets.make(name), nets.INPUT)
    laws.law6_onnx_agrees(units, laws.plan(units, price(units), 0.5), tmp_path)


PINNED = {name: make.pinned for name, make in nets.NETS.items() if hasattr(make, "pinned")}


@pytest.mark.parametrize("name", PINNED)
def test_ops_without_a_rule_pin_and_are_named(name: str) -> None:
    units = couple(nets.make(name), nets.INPUT)
    found = {pin.layer: pin.reason for pin in units.pins}
    assert found.pop("head.2") == "the network's output"
    assert found == PINNED[name]


def test_what_ties_a_layer_into_one_unit_is_named() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.along, self.last = nets.conv(3, 13), nn.Conv1d(1, 1, 3), nets.head(13)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.stem(x))
            pooled = nn.functional.pad(x.mean((2, 3))[:, None], (1, 1))
            return self.last(x * self.along(pooled).sigmoid()[:, 0, :, None, None])

    units = couple(Attention(), nets.INPUT)
    assert [(tie.layer, tie.channels, tie.reason) for tie in units.tied] == [
        ("stem", 13, "Conv1d (along)")
    ]
    cost = price(units)
    with pytest.raises(BudgetError) as error:
        laws.plan(units, cost, 0.5)
    assert str(error.value).endswith(
        "; raise the target; 13 channels are tied into one unit by Conv1d (along)"
    )


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    ("norm", "way_out"),
    [
        ("utils.weight_norm", "remove_weight_norm"),
        ("utils.spectral_norm", "remove_spectral_norm"),
        ("utils.parametrizations.weight_norm", "remove_parametrizations"),
        ("utils.parametrizations.spectral_norm", "remove_parametrizations"),
    ],
)
def test_normed_weights_are_named_with_the_way_out(norm: str, way_out: str) -> None:
    model = nets.NoNorm()
    operator.attrgetter(norm)(nn)(model.conv2)
    [reason] = [pin.reason for pin in couple(model, nets.INPUT).pins if pin.layer == "conv1"]
    assert f"{way_out} first" in reason


def test_only_the_spread_channel_is_pinned() -> None:
    units = couple(nets.make("pinned by spreading"), nets.INPUT)
    assert [pin.channels for pin in units.pins if pin.layer == "stem"] == [1]
    assert len(set(units.unit_of(units.flow.layers["stem"].out).tolist()) - {-1}) == 13


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("plain", 13 + 23),
        ("residual", 13 + 23),
        ("depthwise", 13 + 23),
        ("grouped", 5 + 23),
        ("concat", 13 + 23 + 29),
        ("gate", 23 + 13 + 29),
        ("pad halves", 23 + 29),  # the 13 of the stem are among the 23
        ("cat x times 0", 13 + 29),  # 26 = two copies of 13
        ("pixel shuffle", 13 + 23 + 29),
        ("norms", 5 + 23 + 13),
        ("functional", 13 + 23),
        ("twice", 13 + 23),
        ("branches", 13 + 23),
        ("cat zeros", 23 + 29),
        ("two groups", 13 + 17 + 11),
        ("group shuffle 39", 13 + 13),
        ("split attention", 7 + 13 + 11 + 23),
        ("state", 13 + 13),
        ("recurrent", 13 + 17),
        ("in place on cat", 13 + 23 + 29),
    ],
)
def test_units_counted_by_hand(name: str, count: int) -> None:
    assert couple(nets.make(name), nets.INPUT).count == count


def test_cost_of_plain_by_hand() -> None:
    """conv 3→5 and 5→7 at 16×16, norms (2 an element), pool, fc 7→7."""
    units = couple(nets.make("plain"), nets.INPUT)
    cost = price(units)
    kept = np.zeros(units.count, bool)
    for name, count in (("body.0", 5), ("body.3", 7)):
        kept[units.unit_of(units.flow.layers[name].out)[:count]] = True
    pixels = 16 * 16
    expected = 9 * pixels * (3 * 5 + 5 * 7) + 2 * pixels * (5 + 7) + pixels * 7 + 7 * 7
    assert cost.total(cost.flops, cost.counts(kept)) == expected
    assert count_flops(apply(units, kept), nets.INPUT) == expected
    weights = 9 * (3 * 5 + 5 * 7) + 2 * (5 + 7) + 7 * 7 + 7
    assert cost.total(cost.params, cost.counts(kept)) == weights


def test_the_dense_network_is_not_touched() -> None:
    model = nets.make("residual").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    units = couple(model, nets.INPUT)
    smaller = apply(units, np.arange(units.count) % 2 == 0)
    assert all(module.training for module in model.modules())
    with torch.no_grad():
        for parameter in smaller.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_probing_subclasses_leaves_running_statistics() -> None:
    model = nets.make("subclassed").train()
    before = model.norm.running_mean.clone()
    couple(model, nets.INPUT)
    assert torch.equal(model.norm.running_mean, before)


def test_parameter_names_stay() -> None:
    model = nets.make("shuffle view 5")
    units = couple(model, nets.INPUT)
    smaller = apply(units, np.arange(units.count) % 3 != 0)
    assert smaller.state_dict().keys() == model.state_dict().keys()


def test_a_pruned_network_can_be_pruned_again() -> None:
    for name in ("pad halves", "shuffle view 5", "split"):
        model = nets.make(name)
        units = couple(model, nets.INPUT)
        once = apply(units, laws.plan(units, price(units), 0.7))
        again = couple(once, nets.INPUT)
        kept = laws.plan(again, price(again), 0.6)
        laws.law2_pruned_is_dense_silenced(again, once, kept)
        laws.law3_cost_is_fvcores(again, price(again), kept)


def test_a_pruned_network_trains() -> None:
    units = couple(nets.make("subclassed"), nets.INPUT)
    smaller = apply(units, laws.plan(units, price(units), 0.5)).train()
    smaller(torch.rand(4, *nets.INPUT).double()).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in smaller.parameters())


def test_functional_dropout_works_again_in_training() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nets.conv(3, 13), nets.head(13)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(nn.functional.dropout(self.conv(x), 0.5, training=self.training))

    units = couple(Dropping(), nets.INPUT)
    smaller = apply(units, np.ones(units.count, bool))
    x = torch.rand(1, *nets.INPUT)
    assert torch.equal(smaller(x), smaller(x))
    smaller.train()
    assert not torch.equal(smaller(x), smaller(x))


def test_structured_outputs() -> None:
    class Result(NamedTuple):
        logits: torch.Tensor
        width: int

    class Structured(nets.Plain):
        def forward(self, x: torch.Tensor) -> tuple:
            x = self.body(x)
            return Result(self.head(x), x.dim()), {"mean": x.mean((1, 2, 3))}

    model = nets.enliven(Structured().double())
    units = couple(model, nets.INPUT)
    assert {p.layer for p in units.pins} == {"body.3", "head.2"}  # the mean looks at all channels
    kept = np.arange(units.count) % 2 == 0
    laws.law3_cost_is_fvcores(units, price(units), kept)
    result, features = apply(units, kept)(torch.rand(2, *nets.INPUT).double())
    assert result.logits.shape == (2, nets.CLASSES)
    assert features["mean"].shape == (2,)


def test_code_that_tracing_does_not_see_is_an_error() -> None:
    class NumPy(nets.Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.body[0](x)
            return self.head(self.body[3](torch.from_numpy(x.numpy() + 1)))

    with pytest.raises(ModelError, match=r"test_channels\.py:\d+: .*numpy"):
        couple(nets.enliven(NumPy()), nets.INPUT)


def test_a_tensor_modified_under_another_name() -> None:
    class Aliased(nets.Plain):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.body[0](x)
            same = x
            x += 1
            return self.head(self.body[3](same))

    units = couple(nets.enliven(Aliased()).double(), nets.INPUT)
    kept = np.arange(units.count) % 3 > 0
    laws.law2_pruned_is_dense_silenced(units, units.flow.traced, kept)


def test_shared_weights_are_pinned() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.last = nets.conv(3, 13), nets.conv(3, 13), nets.conv(26, 23)
            self.b.weight = self.a.weight
            self.head = nets.head(23)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.last(torch.cat([self.a(x), self.b(x)], 1)))

    units = couple(Shared(), nets.INPUT)
    assert {p.layer: p.reason for p in units.pins}["a"] == "weights shared by a and b"
    assert units.count == 23


def test_control_flow_names_the_line() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nets.conv(3, 13)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:  # the line
                return self.conv(x)
            return x

    with pytest.raises(ModelError, match=r"test_channels\.py:\d+: if x\.sum\(\) > 0"):
        couple(Branches(), nets.INPUT)


def test_nothing_to_prune_says_why() -> None:
    with pytest.raises(ModelError, match="pinned by the network's output"):
        couple(nn.Sequential(nets.conv(3, 13)), nets.INPUT)


def test_wrong_input_size_names_the_option() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(5, 3))
    with pytest.raises(ModelError, match=r"does not run on an input of 3x17x17.*--input"):
        couple(flat, (3, 17, 17))


@pytest.mark.parametrize("block", [2, 4, 8])
def test_aligned_groups_are_multiples_and_nest(block: int) -> None:
    model = nets.make("concat")
    units = couple(model, nets.INPUT)
    cost = price(units)
    align = Align(str(block), block)
    lowest = floor(cost, laws.ranked(units, cost, align), cost.flops)
    plans = [laws.plan(units, cost, s, align) for s in laws.SHARES if s >= lowest]
    assert len(plans) >= 3
    laws.law4_plans_nest(plans)
    for kept in plans:
        for count, size in zip(cost.counts(kept), cost.sizes, strict=True):
            assert count % block == 0 or count == size
        laws.law2_pruned_is_dense_silenced(units, model, kept)
