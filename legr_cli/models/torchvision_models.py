"""torchvision's networks: their names, their builders, and what `weights=` changes in them."""

import functools
from collections.abc import Callable
from typing import Any

import torchvision
from torch import nn
from torchvision.ops import FrozenBatchNorm2d

_MODULES = {
    "classification": torchvision.models,
    "segmentation": torchvision.models.segmentation,
    "detection": torchvision.models.detection,
    "video": torchvision.models.video,
}
_INPUTS = {
    "inception_v3": (3, 299, 299),
    "ssd300_vgg16": (3, 300, 300),
    "ssdlite320_mobilenet_v3_large": (3, 320, 320),
    "fasterrcnn_mobilenet_v3_large_320_fpn": (3, 320, 320),
    **dict.fromkeys(("r3d_18", "mc3_18", "r2plus1d_18"), (3, 16, 112, 112)),
}
_TASK_INPUTS = {"video": (3, 16, 224, 224)}
# Auxiliary heads are not built: evaluation does not use them.
UNUSED_HEADS = {"inception_v3": ("AuxLogits.",), "googlenet": ("aux1.", "aux2.")}
# Options under which a network is what torchvision's builder makes of it with `weights=`;
# `NAME@WEIGHTS` where they hold for these weights only. `frozen_eps` is legr's own option: the
# backbone's norms are FrozenBatchNorm2d with this epsilon.
_OPTIONS_WITH_WEIGHTS: tuple[tuple[dict[str, Any], tuple[str, ...]], ...] = (
    ({"transform_input": True}, ("googlenet", "inception_v3")),
    (
        {"aux_loss": True},
        (
            *("fcn_resnet50", "fcn_resnet101", "deeplabv3_resnet50", "deeplabv3_resnet101"),
            "deeplabv3_mobilenet_v3_large",
        ),
    ),
    (
        {"frozen_eps": 0.0},
        (
            *("fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn"),
            "keypointrcnn_resnet50_fpn",
        ),
    ),
    (
        {"frozen_eps": 1e-5},
        (
            *("fasterrcnn_mobilenet_v3_large_fpn", "fasterrcnn_mobilenet_v3_large_320_fpn"),
            *("fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn@COCO_LEGACY"),
        ),
    ),
    ({"image_size": 384}, ("vit_b_16@IMAGENET1K_SWAG_E2E_V1",)),
    ({"image_size": 512}, ("vit_l_16@IMAGENET1K_SWAG_E2E_V1",)),
    ({"image_size": 518}, ("vit_h_14@IMAGENET1K_SWAG_E2E_V1",)),
)
_WITH_WEIGHTS = {name: options for options, names in _OPTIONS_WITH_WEIGHTS for name in names}


@functools.cache
def torchvision_names() -> dict[str, str]:
    """By name of a network, its task: classification, segmentation, detection or video."""
    return {
        name: task
        for task, module in _MODULES.items()
        for name in torchvision.models.list_models(module=module)
    }


def torchvision_input(name: str) -> tuple[int, ...] | None:
    """The input shape that a network was designed for, where it is not the usual one."""
    return _INPUTS.get(name) or _TASK_INPUTS.get(torchvision_names().get(name, ""))


def options_with_weights(name: str, weights: str = "") -> dict[str, Any]:
    """What torchvision's builder sets when it is given these weights, or most of its weights."""
    return _WITH_WEIGHTS.get(f"{name}@{weights}") or _WITH_WEIGHTS.get(name, {})


def torchvision_builder(name: str) -> Callable[..., nn.Module]:
    """The function that builds a network; it downloads nothing."""
    fixed: dict[str, Any] = {"weights": None}
    if torchvision_names()[name] in ("segmentation", "detection"):
        fixed["weights_backbone"] = None
    if name in UNUSED_HEADS:
        fixed |= {"aux_logits": False, "init_weights": False}
    builder = functools.partial(torchvision.models.get_model_builder(name), **fixed)
    freezes = "frozen_eps" in options_with_weights(name)
    return functools.partial(_build_frozen, builder) if freezes else builder


def _build_frozen(
    builder: Callable[..., nn.Module], frozen_eps: float = False, **options: Any
) -> nn.Module:
    """A detector whose backbone has frozen norms, unless `frozen_eps` is False."""
    model = builder(**options)
    if frozen_eps is not False:
        for module in list(model.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.BatchNorm2d):
                    setattr(module, name, FrozenBatchNorm2d(child.num_features, frozen_eps))
    return model
