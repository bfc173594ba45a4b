"""Which timm architectures can be pruned, and are the pruned networks correct?

    python benchmarks/timm_nets.py [NAME …]

prunes each at random. In double precision, it compares the pruned network with the dense one (its
own code, not the trace) in which the weights that read removed channels are zero, and the FLOPs of
the cost model with fvcore's count.
"""

import copy
import sys
import time
import warnings

import numpy as np
import timm
import torch
from torch import nn

from legr_cli.channels import Units, apply, couple
from legr_cli.cost import count_flops, price
from legr_cli.errors import LegrError

NAMES = (
    "resnet18 resnet18d resnetv2_50 resnetblur18 resnetaa34d seresnet18 ecaresnet26t "
    "skresnet18 resnest14d res2net50_14w_8s res2next50 resnext26ts gcresnet33ts "
    "lambda_resnet26t regnetx_002 regnety_002 regnetz_b16 efficientnet_b0 efficientnet_lite0 "
    "tf_efficientnet_b0 tf_efficientnetv2_b0 mobilenetv2_050 mobilenetv3_small_050 "
    "mobilenetv4_conv_small mobilenetv4_hybrid_medium mnasnet_small semnasnet_050 "
    "ghostnet_050 ghostnetv2_100 hrnet_w18_small dla34 vovnet39a ese_vovnet19b_slim repvgg_a0 "
    "repvit_m0_9 mobileone_s0 cspdarknet53 cspresnet50 darknet17 cs3darknet_s selecsls42 "
    "rexnet_100 hardcorenas_a xception41 legacy_xception inception_v3 dpn48b mixnet_s "
    "fbnetc_100 fbnetv3_b lcnet_035 tinynet_e densenet121 hgnet_tiny hgnetv2_b0 fasternet_t0 "
    "starnet_s1 gernet_s tresnet_m convmixer_768_32 convnext_atto convnextv2_atto "
    "poolformer_s12 inception_next_atto edgenext_xx_small nf_resnet26 resnetv2_50x1_bit "
    "mobilevit_xxs efficientvit_b0 "
)


def with_random_norms(model: nn.Module) -> nn.Module:
    """Randomize norms, so that a wrongly wired channel changes the output."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.weight, module.running_var):
                    tensor.uniform_(0.5, 1.5)
                for tensor in (module.bias, module.running_mean):
                    tensor.uniform_(-0.3, 0.3)
    return model.double().eval()


def silenced(model: nn.Module, units: Units, kept: np.ndarray) -> nn.Module:
    """Copy the dense network with zeros in the weights that read removed channels."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, layer in units.flow.layers.items():
            if layer.axes.into is not None:
                removed = torch.from_numpy(~units.keeps(kept, layer.into))
                model.get_submodule(name).weight.movedim(layer.axes.into, 0)[removed] = 0
    return model


def verdict(name: str) -> str:
    """Prune a network and describe the result in one line."""
    torch.manual_seed(0)
    model = with_random_norms(timm.create_model(name, num_classes=11))
    shape = (3, 128, 128)
    units = couple(model, shape)
    cost = price(units)
    kept = units.without_empty_tensors(np.random.default_rng(0).random(units.count) < 0.6)
    smaller = apply(units, kept)
    images = torch.rand(2, *shape).double()
    with torch.no_grad():
        expected, actual = silenced(model, units, kept)(images), smaller(images)
    difference = float((expected - actual).abs().max() / expected.abs().max())
    exact = count_flops(smaller, shape) == cost.total(cost.flops, cost.counts(kept))
    filters = sum(len(layer.out) for layer in units.flow.layers.values())
    free = sum(int((units.unit_of(layer.out) >= 0).sum()) for layer in units.flow.layers.values())
    result = "correct" if difference < 1e-6 and exact else "WRONG"
    return (
        f"{result}, {free / filters:.0%} of {filters} filters prunable, difference {difference:.0e}"
    )


def main() -> None:
    """Print a line for each network."""
    warnings.simplefilter("ignore")
    for name in sys.argv[1:] or NAMES.split():
        start = time.perf_counter()
        try:
            line = verdict(name)
        except LegrError as error:
            line = f"refused: {str(error)[:110]}"
        print(f"{name:26} {time.perf_counter() - start:4.0f} s  {line}", flush=True)


if __name__ == "__main__":
    main()
