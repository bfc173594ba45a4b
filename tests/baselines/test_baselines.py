"""The prior art: every formula with numbers worked out by hand, and dead filters go first."""

import math
from dataclasses import replace
from pathlib import Path

import digits_net
import numpy as np
import pytest
import torch
from torch import nn

from legr_cli.baselines import taylor
from legr_cli.baselines.context import MethodContext
from legr_cli.baselines.fisher import fisher
from legr_cli.baselines.methods import METHODS
from legr_cli.baselines.morphnet import flops_penalty, next_lambda, unit_gammas
from legr_cli.baselines.probe import GatedNetwork
from legr_cli.channels import couple
from legr_cli.data.dataset import open_data
from legr_cli.models.network import Network
from legr_cli.models.registry import Arch
from legr_cli.pruning import Analysis, analyze, plans
from legr_cli.ranking import importance
from legr_cli.search.amc import RatioExplorer, first_layers, most_units, ranking_of
from legr_cli.search.ddpg import (
    BASELINE_DECAY,
    TAU,
    Agent,
    soft_update,
    td_target,
    truncated_normal,
)
from legr_cli.search.episodes import layer_features
from legr_cli.search.legr_ddpg import genes_from
from legr_cli.settings import Align, Compare, Prune, Search
from legr_cli.targets import Target
from legr_cli.training.recipes import settings_of


def probed() -> tuple[list[torch.Tensor], GatedNetwork]:
    """x → (2x, −x) → y = 1·2x + 3·(−x) = −x, loss ½y²; the images are x = 1 and x = 2."""
    model = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.Flatten(), nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model[0].weight[:] = torch.tensor([2.0, -1.0]).reshape(2, 1, 1, 1)
        model[2].weight[:] = torch.tensor([[1.0, 3.0]])
    found = GatedNetwork(couple(model, (1, 1, 1))).train()
    loss = found(torch.tensor([1.0, 2.0]).reshape(2, 1, 1, 1)).square().mean() / 2
    loss.backward()
    return found.gradients(), found


def test_gradients_of_gates() -> None:
    """∂/∂gate = y · v · z: x = 1 gives −1·1·2 and −1·3·−1; x = 2 gives −2·1·4 and −2·3·−2."""
    gradients, found = probed()
    assert [units.tolist() for units in found.gate_units] == [[-1], [0, 1]]
    assert gradients[1].tolist() == [[-2, 3], [-8, 12]]
    assert gradients[0].tolist() == [[1], [4]]  # of the image itself: y²


def test_outputs_may_have_any_structure() -> None:
    """x → (x, −x) → y = 2·x + 1·x; ∂(y²/2)/∂gate is y·2x and y·x: of x = 2 and x = 1."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 2, 1, bias=False)
            self.last = nn.Conv2d(2, 1, 1, bias=False)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            y = self.last(self.first(x))
            return {"y": y, "all": y.sum()}

    model = Named()
    with torch.no_grad():
        model.first.weight[:] = torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1)
        model.last.weight[:] = torch.tensor([2.0, -1.0]).reshape(1, 2, 1, 1)
    found = GatedNetwork(couple(model, (1, 1, 1))).train()
    outputs = found(torch.tensor([2.0, 1.0]).reshape(2, 1, 1, 1))
    assert outputs["all"].item() == 9
    (outputs["y"].square().mean() / 2).backward()
    assert found.gradients()[1].tolist() == [[24, 12], [6, 3]]


def test_taylor_by_hand() -> None:
    """Means of |gradient| are 5 and 7.5, the length of that is √81.25."""
    gradients, found = probed()
    total = taylor.accumulate(gradients, found.gate_units, 2)
    assert total.tolist() == [5, 10, 15]
    scores = taylor.score(total.numpy() / 2, found.gate_units, np.ones(2))
    assert scores == pytest.approx([5 / math.sqrt(81.25), 7.5 / math.sqrt(81.25)])


def test_fisher_by_hand() -> None:
    """½ · mean of squares: (4 + 64)/4 = 17 and (9 + 144)/4 = 38.25.

    With FLOPs of 0.2 and 0.6, λ = 27.625 / 0.4 = 69.0625 and the second is worth less than none.
    """
    gradients, found = probed()
    plain, priced = fisher(0.0), fisher(1.0)
    mean = plain.accumulate(gradients, found.gate_units, 2).numpy() / 2
    assert plain.score(mean, found.gate_units, np.ones(2)).tolist() == [17, 38.25]
    scores = priced.score(mean, found.gate_units, np.array([0.2, 0.6]))
    assert scores == pytest.approx([17 - 13.8125, 38.25 - 41.4375])


def test_a_units_mask_is_one_for_all_that_read_it() -> None:
    """y = 2·(v₁ + v₂)·x read by two layers: the gradient is of the sum, then it is squared."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 2, 1, bias=False)
            self.left, self.right = (nn.Linear(2, 1, bias=False) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x).flatten(1)
            return self.left(x) + self.right(x)

    model = Twice()
    with torch.no_grad():
        model.first.weight[:] = 2
        model.left.weight[:] = torch.tensor([[1.0, 0.0]])
        model.right.weight[:] = torch.tensor([[-1.0, 0.5]])
    found = GatedNetwork(couple(model, (1, 1, 1))).train()
    found(torch.ones(1, 1, 1, 1)).sum().backward()  # y = 1, ∂y/∂mask = 2·(1 − 1), 2·½
    total = fisher(0.0).accumulate(found.gradients(), found.gate_units, 2)
    assert total.tolist() == [0, 1]


def chain() -> Analysis:
    """3x1x1 → conv 5 → BN → conv 7 → BN → linear 4: 15 + 10 + 35 + 14 + 28 FLOPs."""
    layers = [nn.Conv2d(3, 5, 1, bias=False), nn.BatchNorm2d(5)]
    layers += [nn.Conv2d(5, 7, 1, bias=False), nn.BatchNorm2d(7)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(7, 4, bias=False)).eval()
    return analyze(Network(model, Arch("chain"), (3, 1, 1)))


def test_morphnet_by_hand() -> None:
    """Alive are 3 of 5 and 7 of 7: a unit of the first layer costs 3 + 2 + 7, of the second
    3 + 2 + 4, of all 102. The gradient is the price, with the sign of γ."""
    analysis = chain()
    assert analysis.flops == 102
    first, second = analysis.network.model[1], analysis.network.model[3]
    with torch.no_grad():
        first.weight[:] = torch.tensor([0.5, -2.0, 0.001, 1.0, -0.004])
        second.weight[:] = 0.25
    value = flops_penalty(analysis)
    expected = (12 * 3.505 + 9 * 7 * 0.25) / 102
    assert value.item() == pytest.approx(expected)
    value.backward()
    assert (first.weight.grad * 102).tolist() == pytest.approx([12, -12, 12, 12, -12])
    assert (second.weight.grad * 102).tolist() == pytest.approx([9] * 7)


def test_of_channels_in_one_unit_the_largest_gamma_counts() -> None:
    """Two norms read the same three channels; the last layer's have none."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = (nn.Conv2d(3, 3, 1) for _ in range(2))
            self.a, self.b = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
            self.bare, self.last = nn.Conv2d(3, 2, 1), nn.Conv2d(2, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.bare(self.a(self.one(x)) + self.b(self.two(x))))

    model = Sum().eval()
    with torch.no_grad():
        model.a.weight[:] = torch.tensor([0.1, -0.7, 0.0])
        model.b.weight[:] = torch.tensor([-0.3, 0.2, 0.0])
    found = unit_gammas(couple(model, (3, 2, 2)))
    assert sorted(found.tolist()) == pytest.approx([-1, -1, 0, 0.3, 0.7])


def test_the_next_lambda() -> None:
    """First what is given; four times more or less; then between the two sides."""
    much, little = {"lambda": 2.0, "flops": 80}, {"lambda": 8.0, "flops": 20}
    assert next_lambda([], 50, 3.0) == 3
    assert next_lambda([much], 50, 3.0) == 8
    assert next_lambda([little], 50, 3.0) == 2
    assert next_lambda([much, little], 50, 3.0) == 4


def test_a_layer_as_the_agent_sees_it() -> None:
    """Conv 3 → 6 /2 on 8x8, conv 6 → 12 on 4x4, both of 3x3; mean; linear 12 → 5.

    FLOPs: 27·6·16 = 2592, 54·12·16 = 10368, 192 for the mean, 60.
    """
    layers = [nn.Conv2d(3, 6, 3, 2, 1, bias=False), nn.Conv2d(6, 12, 3, 1, 1, bias=False)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5, bias=False)]
    analysis = analyze(Network(nn.Sequential(*layers, *head).eval(), Arch("x"), (3, 8, 8)))
    assert analysis.flops == 2592 + 10368 + 192 + 60
    assert first_layers(analysis) == ["0", "1"]
    table = layer_features(analysis, ["0", "1", "4"])
    share = np.array([2592, 10368, 60]) / analysis.flops
    assert table[0] == pytest.approx([0, 6 / 12, 3 / 12, 1, 1, 1, 1, share[0], share[1] + share[2]])
    assert table[1] == pytest.approx([0.5, 1, 6 / 12, 0.5, 0.5, 0.5, 1, share[1], share[2]])
    assert table[2] == pytest.approx([1, 5 / 12, 1, 1 / 8, 1 / 8, 0.5, 1 / 3, share[2], 0])


def test_amc_is_bound_by_the_budget() -> None:
    """With 2 and 3 of the chain's units left for the others, 60 FLOPs allow
    n: 3n + 2n + 3n + 6 + 12 ≤ 60, so 5; and then m: 25 + 5m + 2m + 4m ≤ 60, so 3."""
    analysis = chain()
    assert most_units(analysis.cost, np.array([2, 3]), 0, 60) == 5
    assert most_units(analysis.cost, np.array([5, 3]), 1, 60) == 3
    assert most_units(analysis.cost, np.array([5, 1]), 1, 20) == 0


def test_amcs_ratios_meet_the_target() -> None:
    """Whatever the agent says; and what a ratio says is what stays."""
    analysis = chain()
    walker = RatioExplorer(analysis, Search(flops=(0.6,), candidates=40))
    for number in range(40):
        ratio = walker.genes(number)["ratio"]
        counts = (ratio * analysis.cost.sizes + 1e-9).astype(int)
        assert analysis.cost.total(analysis.cost.flops, counts) <= 0.6 * analysis.flops
        states = [state for state, _ in walker.episodes[number]]
        assert [len(state) for state in states] == [11, 11]
        assert states[0][[8, 10]].tolist() == [0, 1]  # nothing is reduced, nothing came before
        assert states[1][10] == ratio[0]
        reduced = (
            1 - analysis.cost.total(analysis.cost.flops, np.array([counts[0], 7])) / analysis.flops
        )
        assert states[1][8] == pytest.approx(reduced)
    places = np.array([0.2, 0.4, 0.6, 0.8, 1.0, *np.arange(1, 8) / 7])
    ranking = ranking_of(analysis, places, {"ratio": np.array([0.4, 1.0])})
    scores = importance(analysis.filters, ranking)
    assert (scores[:5] > 1e-9).tolist() == [False, False, False, True, True]
    assert (scores[5:] > 1e-9).all()


def test_ddpg_by_hand() -> None:
    """Targets follow by a hundredth; the last step has no future; nothing is discounted."""
    slow, fast = nn.Linear(1, 1), nn.Linear(1, 1)
    with torch.no_grad():
        slow.weight[:], fast.weight[:], slow.bias[:], fast.bias[:] = 1.0, 3.0, 0.0, -1.0
    soft_update(slow, fast)
    assert TAU == 0.01
    assert slow.weight.item() == pytest.approx(1.02)
    assert slow.bias.item() == pytest.approx(-0.01)
    found = td_target(
        torch.tensor([0.9, 0.9]), 0.5, torch.tensor([2.0, 7.0]), torch.tensor([0.0, 1.0])
    )
    assert found.tolist() == pytest.approx([2.4, 0.4])


def test_an_agent_learns_what_is_good() -> None:
    """One step an episode, the reward is highest at 0.8: its actions come to be near that."""
    rng = np.random.default_rng(0)
    agent, state = Agent(3, 1, 200, rng), np.array([0.2, 0.5, 1.0])
    assert agent.warm_up == 50
    actions = []
    for episode in range(200):
        action = agent.act(state, episode)
        actions.append(float(action[0]))
        agent.learn([(state, action)], 1 - abs(action[0] - 0.8))
    assert np.std(actions[:50]) == pytest.approx(math.sqrt(1 / 12), abs=0.05)
    assert np.mean(actions[-20:]) == pytest.approx(0.8, abs=0.12)


def test_the_baseline_is_a_moving_average() -> None:
    agent = Agent(1, 1, 400, np.random.default_rng(0))
    for reward in (1.0, 0.0):
        agent.learn([(np.zeros(1), np.zeros(1))], reward)
    assert agent.baseline == pytest.approx(BASELINE_DECAY)


def test_truncated_normal() -> None:
    """Half of a bell at 0 with deviation ½, cut at 1: the mean of that is 0.361."""
    rng = np.random.default_rng(0)
    draws = [truncated_normal(0.0, 0.5, rng) for _ in range(4000)]
    assert min(draws) >= 0
    assert max(draws) <= 1
    density = math.exp(-(2**2) / 2) / math.sqrt(2 * math.pi)
    within = 0.5 * (1 + math.erf(2 / math.sqrt(2))) - 0.5
    mean = 0.5 * (1 / math.sqrt(2 * math.pi) - density) / within
    assert np.mean(draws) == pytest.approx(mean, abs=0.01)
    assert truncated_normal(1.0, 0.0, rng) == pytest.approx(1, abs=1e-4)


def test_actions_to_alpha_and_kappa() -> None:
    """½ is the identity, 1 is e² and two deviations."""
    found = genes_from(np.array([[0.5, 0.5], [1.0, 0.0]]), 1.0, np.array([3.0, 4.0]))
    assert found["alpha"] == pytest.approx([1, math.e**2])
    assert found["kappa"] == pytest.approx([0, -8])


@pytest.fixture
def planted(tmp_path: Path) -> MethodContext:
    """A network for the digits in whose second layer every other filter is dead."""
    torch.manual_seed(0)
    model = digits_net.build().eval()
    conv, norm, dead = model[3], model[4], np.arange(0, 32, 2)
    with torch.no_grad():
        for tensor in (conv.weight, norm.weight, norm.bias):
            tensor[dead] = 0
    analysis = analyze(Network(model, Arch("digits_net:build"), (3, 32, 32)))
    data = open_data("digits", (3, 32, 32), seed=0)
    settings = Compare(
        methods=tuple(METHODS),
        targets=(Target("flops", 0.8), Target("flops", 0.3)),
        training=settings_of("quick", epochs=1),
        candidates=4,
        fitness="bn",
        steps=1,
        batch_size=64,
        round_units=4,
        round_steps=1,
        round_lr=0.01,
        trials=2,
        trial_steps=4,
        fisher_weight=0.5,
    )
    return MethodContext(
        analysis, data, settings, 0, "cpu", tmp_path, {"accuracy": 0.1}, lambda _: None
    )


@pytest.mark.parametrize("method", METHODS)
def test_dead_filters_go_first(method: str, planted: MethodContext) -> None:
    """In that layer no other filter goes before all dead ones are gone; and some of it do go."""
    targets = list(planted.settings.targets)
    layer = planted.analysis.units.flow.layers["3"]
    removed = 0
    for level in METHODS[method].run(planted, targets, set(targets)):
        cut = Prune(targets=(level.target,), align=Align(), min_keep=0.1)
        [kept] = plans(level.analysis, level.ranking, cut)
        cost = planted.analysis.cost
        assert (
            cost.total(cost.flops, cost.counts(kept)) <= level.target.value * planted.analysis.flops
        )
        gone = np.flatnonzero(~planted.analysis.units.keeps(kept, layer.out))
        dead = gone % 2 == 0
        assert dead.all() or dead.sum() == 16
        removed = max(removed, len(gone))
    assert removed >= 4


def test_methods_leave_the_network_alone(planted: MethodContext) -> None:
    """They train copies; Taylor's is what is cut, of MorphNet's only the structure is used."""
    before = {n: t.clone() for n, t in planted.analysis.network.model.state_dict().items()}
    target = Target("flops", 0.8)
    for method in ("taylor", "morphnet"):
        [level] = METHODS[method].run(planted, [target], {target})
        after = level.analysis.network.model.state_dict()
        changed = any(not torch.equal(before[name], after[name]) for name in before)
        assert changed == (method == "taylor")
        assert level.effort.images == 64 * level.effort.steps > 0
    for name, tensor in planted.analysis.network.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_gradual_pruning_goes_by_blocks(planted: MethodContext, tmp_path: Path) -> None:
    """Aligned by 8, widths of 24, 32 and 48 stay multiples of 8 all the way."""
    context = replace(
        planted, settings=replace(planted.settings, align=Align("8", 8), round_units=1)
    )
    targets = [Target("flops", share) for share in (0.9, 0.7, 0.5, 0.3)]
    shares = []
    for level in METHODS["fisher"].run(context, targets, set(targets)):
        [found] = plans(level.analysis, level.ranking, context.prune_settings(level.target))
        assert not (planted.analysis.cost.counts(found) % 8).any()
        shares.append(level.target.value)
    assert shares == [0.9, 0.7, 0.5, 0.3]
    lines = (tmp_path / "fisher-seed0.rounds.jsonl").read_text().splitlines()
    assert not (tmp_path / "fisher-seed0.state").exists()
    assert len(lines) > 4
