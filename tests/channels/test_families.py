"""The laws on every family that legr names: breadth at a small resolution."""

from pathlib import Path

import laws
import nets
import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models import VGG

from legr_cli.channels import Units, couple
from legr_cli.cost import Cost, price
from legr_cli.cut import floor
from legr_cli.models.network import WithoutMemory
from legr_cli.models.registry import Arch, build, parse_arch
from legr_cli.settings import parse_align

FAMILIES = {
    **dict.fromkeys(["resnet18", "resnet34", "resnet50", "resnet101"], 64),
    **dict.fromkeys(["resnext50_32x4d", "wide_resnet50_2"], 64),
    **dict.fromkeys(["vgg11", "vgg13", "vgg16", "vgg19"], 32),
    **dict.fromkeys(["vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn"], 32),
    **dict.fromkeys(["mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"], 64),
    **dict.fromkeys(["mnasnet1_0", "efficientnet_b0", "efficientnet_v2_s"], 64),
    **dict.fromkeys(["regnet_x_400mf", "regnet_y_400mf", "densenet121", "googlenet"], 64),
    **dict.fromkeys(["squeezenet1_1", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "alexnet"], 64),
    **dict.fromkeys(["convnext_tiny"], 64),
    "inception_v3": 96,
    **dict.fromkeys(["resnet20", "resnet32", "resnet44", "resnet56", "resnet110"], 32),
    **dict.fromkeys(["resnet20,pad=after", "vgg13_cifar", "mobilenet_v2_cifar"], 32),
}


NO_NEW_OPS = {  # another network exports all of their ops already: the exporter is slow
    *("resnet34", "resnet101", "wide_resnet50_2", "resnet32", "resnet44", "resnet56", "resnet110"),
    *("vgg11", "vgg13", "vgg16", "vgg19", "vgg11_bn", "vgg13_bn", "vgg19_bn"),
    *("resnext50_32x4d", "regnet_x_400mf", "mnasnet1_0", "mobilenet_v3_large"),
    "shufflenet_v2_x0_5",
}


def make(name: str) -> nn.Module:
    """A family's network with quick random weights: uniform, of variance 2 / inputs."""
    with WithoutMemory():
        model = build(parse_arch(name, 11))
        if isinstance(model, VGG):  # a classifier of 120 million weights takes a minute
            model.classifier = nn.Sequential(
                *(nn.Linear(512 * 49, 251), nn.ReLU(), nn.Dropout(), nn.Linear(251, 241)),
                *(nn.ReLU(), nn.Dropout(), nn.Linear(241, 11)),
            )
    model = model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.ndim > 1:
                bound = (6 / tensor[0].numel()) ** 0.5
                tensor.uniform_(-bound, bound, generator=generator)
            else:
                tensor.fill_(0)
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
    return nets.enliven(model)


def studied(name: str) -> tuple[nn.Module, Units, Cost]:
    model = make(name)
    units = couple(model, (3, FAMILIES[name], FAMILIES[name]))
    return model, units, price(units)


@pytest.mark.parametrize("name", FAMILIES)
def test_laws(name: str, tmp_path: Path) -> None:
    model, units, cost = studied(name)
    blocks = laws.ranked(units, cost)
    shares = [s for s in laws.SHARES if s >= floor(cost, blocks, cost.flops)]
    assert shares == laws.SHARES or name == "convnext_tiny"
    plans = [laws.plan(units, cost, share) for share in shares]
    laws.law4_plans_nest(plans)
    for share, kept in zip(shares, plans, strict=True):
        laws.law5_under_the_target_and_full(units, cost, kept, share)
    for kept in (plans[0], plans[-1]):
        laws.law3_cost_is_fvcores(units, cost, kept)
    middle = plans[len(plans) // 2]
    if name not in NO_NEW_OPS:
        laws.law6_onnx_agrees(units, middle, tmp_path)
    model.double()
    laws.law1_dead_channels_change_nothing(units, model, middle)
    laws.law2_pruned_is_dense_silenced(units, model, middle)


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "shufflenet_v2_x1_0", "resnet20"])
def test_aligned_laws(name: str) -> None:
    model, units, cost = studied(name)
    align = parse_align("avx512")
    lowest = floor(cost, laws.ranked(units, cost, align), cost.flops)
    shares = [s for s in laws.SHARES if s >= lowest]
    plans = [laws.plan(units, cost, share, align) for share in shares]
    laws.law4_plans_nest(plans)
    step = np.minimum(align.blocks(cost.channels * cost.sizes, cost.channels), cost.sizes)
    dense = cost.total(cost.flops, cost.sizes)
    for share, kept in zip(shares, plans, strict=True):
        counts = cost.counts(kept)
        assert cost.total(cost.flops, counts) <= share * dense
        assert ((counts % step == 0) | (counts == cost.sizes)).all()
    laws.law3_cost_is_fvcores(units, cost, plans[0])
    model.double()
    laws.law2_pruned_is_dense_silenced(units, model, plans[0])


GOLDEN = {  # FLOPs by fvcore and parameters, of the dense networks at their own resolution
    "resnet20": (
        9 * (3 * 16 * 1024 + 6 * 16 * 16 * 1024)  # the first convolution, the first stage
        + 9 * (16 * 32 * 256 + 5 * 32 * 32 * 256 + 32 * 64 * 64 + 5 * 64 * 64 * 64)
        + 2 * (7 * 16 * 1024 + 6 * 32 * 256 + 6 * 64 * 64)  # norms: 2 an element
        + (64 * 64 + 64 * 10),  # pooling, linear
        269_722,
    ),
    "resnet56": (126_554_752, 853_018),
    "mobilenet_v2": (314_193_216, 3_504_872),
    "resnet18": (1_819_065_856, 11_689_512),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_figures(name: str) -> None:
    from legr_cli.models.network import open_network
    from legr_cli.pruning import analyze

    analysis = analyze(open_network(f"random:{name}"))
    assert (analysis.flops, analysis.params) == GOLDEN[name]


@pytest.mark.parametrize(
    "name", ["resnet18", "efficientnet_b0", "tf_efficientnet_b0", "resnetv2_50"]
)
def test_timm(name: str) -> None:
    """Norm-plus-activation blocks, same-padding convolutions and standardised weights."""
    pytest.importorskip("timm")
    model = nets.enliven(build(Arch(f"timm:{name}", {}, 11)))
    units = couple(model, (3, 64, 64))
    cost = price(units)
    share = max(0.5, floor(cost, laws.ranked(units, cost), cost.flops))
    kept = laws.plan(units, cost, share)
    laws.law3_cost_is_fvcores(units, cost, kept)
    model.double()
    laws.law2_pruned_is_dense_silenced(units, model, kept)
