"""The six laws of DESIGN.md, each a function that fails where a network breaks it."""

import copy
import itertools
from pathlib import Path

import numpy as np
import torch
from torch import nn

from legr_cli.channels import Units, apply
from legr_cli.channels.check import masked_output
from legr_cli.channels.inputs import Call
from legr_cli.channels.slicing import by_filter
from legr_cli.channels.switches import WithoutNoise, evaluating
from legr_cli.channels.trace import fetch_attr
from legr_cli.channels.units import Kept
from legr_cli.cost import Cost, count_flops, count_params
from legr_cli.cut import Blocks, arrange, cut
from legr_cli.deploy.export import export
from legr_cli.metrics.filters import collect_filters
from legr_cli.ranking import Ranking, Row, identity, importance
from legr_cli.settings import Align

SHARES = [round(0.1 * i, 1) for i in range(2, 9)]


def scores(units: Units, seed: int = 0) -> np.ndarray:
    """Importance by rows drawn at random around each layer's own scale, as a search would."""
    filters = collect_filters(units)
    rng = np.random.default_rng(seed)
    mean = np.bincount(filters.layer, filters.value) / np.bincount(filters.layer)
    scale = np.exp(rng.normal(0, 0.5, len(filters.names))) / mean
    pairs = zip(identity(filters).rows, scale, strict=True)
    rows = tuple(Row(row.name, row.filters, float(alpha)) for row, alpha in pairs)
    return importance(filters, Ranking(rows))


def ranked(units: Units, cost: Cost, align: Align | None = None) -> Blocks:
    return arrange(units, cost, scores(units), 0.1, align or Align())


def plan(units: Units, cost: Cost, share: float, align: Align | None = None) -> Kept:
    blocks = ranked(units, cost, align)
    return blocks.kept(cut(cost, blocks, cost.flops, share), cost)


def images(units: Units, model: nn.Module, count: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(count, *units.source.shapes, generator=generator).to(next(model.parameters()))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal but for rounding."""
    assert a.dtype == torch.float64
    assert a.shape == b.shape
    assert float(a.std()) > 0, "a network that always says the same proves nothing"
    return float((a - b).abs().max()) <= 1e-9 * float(a.abs().max())


def law1_dead_channels_change_nothing(units: Units, model: nn.Module, kept: Kept) -> None:
    """The channels that a plan removes are dead in the dense network: the output is the same."""
    dead = copy.deepcopy(model)
    with torch.no_grad():
        for layer in units.flow.layers.values():
            gone = torch.from_numpy(~units.keeps(kept, layer.out))
            weight, bias = _tensors_of(dead, layer.name, layer.bias)
            view = by_filter(weight, layer.axes)
            view[gone.reshape(layer.axes.groups, -1) if view.ndim > weight.ndim else gone] = 0
            if bias is not None:
                bias[gone] = 0
        for name, ids in units.flow.channelwise.items():
            module = dict(dead.named_modules()).get(name)
            gone = torch.from_numpy(~units.keeps(kept, ids))
            if name in dict(dead.named_parameters()):
                fetch_attr(dead, name)[gone] = 0
            if isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm) and module.affine:
                module.weight[gone] = 0
                module.bias[gone] = 0
        with evaluating(dead), WithoutNoise():
            x = images(units, model)
            assert same(dead(x), apply(units, kept)(x))


def _tensors_of(model: nn.Module, name: str, bias: str | None) -> tuple:
    """Weight and bias of a layer, be it a module or a pair of parameters."""
    modules = dict(model.named_modules())
    if name in modules:
        return modules[name].weight, modules[name].bias
    return fetch_attr(model, name), fetch_attr(model, bias) if bias else None


def law2_pruned_is_dense_silenced(units: Units, model: nn.Module, kept: Kept) -> None:
    x = images(units, model)
    with torch.no_grad(), WithoutNoise():
        assert same(masked_output(units, kept, Call((x,))), apply(units, kept)(x))


def law3_cost_is_fvcores(units: Units, cost: Cost, kept: Kept) -> None:
    smaller = apply(units, kept)
    counts = cost.counts(kept)
    assert count_flops(smaller, units.source.shapes) == cost.total(cost.flops, counts)
    assert count_params(smaller) == cost.total(cost.params, counts)


def law4_plans_nest(plans: list[Kept]) -> None:
    for smaller, larger in itertools.pairwise(plans):
        assert not (smaller & ~larger).any()


def law5_under_the_target_and_full(
    units: Units, cost: Cost, kept: Kept, share: float, within: float = 0.005
) -> None:
    """At or under the target, at most `within` of dense below it, and no room for the next unit."""
    dense = cost.total(cost.flops, cost.sizes)
    counts = cost.counts(kept)
    have = cost.total(cost.flops, counts)
    assert have <= share * dense
    assert have >= (share - within) * dense
    removed = np.flatnonzero(~kept)
    following = removed[np.argmax(scores(units)[removed])]
    counts[cost.group_of[following]] += 1
    assert cost.total(cost.flops, counts) > share * dense


def law6_onnx_agrees(units: Units, kept: Kept, folder: Path) -> None:
    exported = export(
        apply(units, kept).float(), folder / "net.onnx", input_shape=units.source.shapes
    )
    assert exported.difference < 1e-3  # deep networks add up rounding, by CPU: 2e-4 with AVX2
