"""The networks that `doors.py` opens: a name, how to build it, and the size of a picture.

Names are `COLLECTION:NETWORK`; weights are random, and nothing is downloaded.
"""

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

_PROBES = Path(os.environ.get("LEGR_PROBES") or Path(__file__).parents[2] / "shared" / "probes")
_PYTORCHCV = """
    bam_resnet18 bninception cbam_resnet18 cgnet_cityscapes channelnet dabnet_cityscapes
    darknet_tiny darts densenet40_k12_bc_cifar10 diapreresnet20_cifar10 diaresnet20_cifar10
    dicenet_wd5 diracnet18v2 dla46xc dpn68b drnc26 edanet_cityscapes efficientnet_b0b
    enet_cityscapes erfnet_cityscapes espnetv2_wd2 esnet_cityscapes fastscnn_cityscapes fbnet_cb
    fdmobilenet_wd4 fishnet99 fpenet_cityscapes fractalnet_cifar10 ghostnet hardnet39ds
    hrnet_w18_small_v1 ibn_resnet50 igcv3_wd4 inceptionresnetv1 irevnet301 lednet_cityscapes
    linknet_cityscapes lwopenpose2d_mobilenet_cmupan_coco menet108_8x1_g3 mixnet_s mnasnet_small
    mobilenet_wd4 mobilenetv3_small_w7d20 msdnet22_cifar10 nin_cifar10 octresnet10_ad2 peleenet
    pnasnet5large preresnet20_cifar10 proxylessnas_mobile pyramidnet110_a48_cifar10 regnetx002
    regnety002 resattnet56 resnesta18 resnestabc14 revnet38 rir_cifar10 ror3_56_cifar10 scnet50
    segnet_cityscapes selecsls42 senet16 seresnet10 shakeshakeresnet20_2x16d_cifar10 sharesnet18
    shufflenet_g1_wd4 shufflenet_g3_wd4 shufflenetv2_wd2 shufflenetv2b_wd2
    simplepose_mobile_mobilenet_w1_coco sinet_cityscapes sknet50 sparsenet121 sqnet_cityscapes
    sqnxt23_w1 squeezenet_v1_1 superpointnet unet_cityscapes visemenet20 vovnet27s xception
    xdensenet40_2_k24_bc_cifar10 centernet_resnet18_coco alphapose_fastseresnet101b_coco
    lffd20x5s320v2_widerface quartznet5x5_en_ls wrn40_8_cifar10 tresnet_m
"""
_DECODERS = (
    "Unet UnetPlusPlus MAnet Linknet FPN PSPNet DeepLabV3 DeepLabV3Plus PAN UPerNet Segformer"
)
_SEGMENTATION = "fcn_resnet50 deeplabv3_mobilenet_v3_large lraspp_mobilenet_v3_large"
_VIDEO = "r3d_18 mc3_18 r2plus1d_18 s3d"
_DETECTION = (
    "fasterrcnn_mobilenet_v3_large_320_fpn fasterrcnn_resnet50_fpn_v2 retinanet_resnet50_fpn "
    "fcos_resnet50_fpn ssdlite320_mobilenet_v3_large ssd300_vgg16 maskrcnn_resnet50_fpn "
    "keypointrcnn_resnet50_fpn"
)
_YOLO = (
    "yolov3-tiny yolov5n yolov8n yolov8n-cls yolov8n-seg yolov8n-pose yolov8n-obb yolo11n "
    "yolo11n-cls yolo11n-seg yolov9t yolov10n yolo12n"
)


@dataclass(frozen=True)
class Door:
    """A network, and how it is opened."""

    build: Callable[[], nn.Module]
    sizes: tuple[tuple[int, ...], ...]  # of one picture
    module: str = ""


def doors() -> dict[str, Door]:
    """All networks whose collections are installed, by name."""
    table: dict[str, Door] = {}
    table |= {f"torchvision:{n}": _torchvision("segmentation", n) for n in _SEGMENTATION.split()}
    table |= {f"torchvision:{n}": _torchvision("video", n) for n in _VIDEO.split()}
    table |= {f"torchvision:{n}": _torchvision("detection", n) for n in _DETECTION.split()}
    if importlib.util.find_spec("segmentation_models_pytorch"):
        table |= {f"smp:{name}": _smp(name) for name in _DECODERS.split()}
    if importlib.util.find_spec("ultralytics"):
        table |= {f"ultralytics:{name}": _yolo(name) for name in _YOLO.split()}
    if importlib.util.find_spec("monai"):
        table |= {f"monai:{name}": _monai(name) for name in _monai_networks()}
    if importlib.util.find_spec("pretrainedmodels"):
        names = "bninception cafferesnet101 fbresnet152 nasnetamobile polynet se_resnet50"
        table |= {f"pretrainedmodels:{name}": _pretrained(name) for name in names.split()}
    if importlib.util.find_spec("pytorchcv"):
        table |= {f"pytorchcv:{name}": _pytorchcv(name) for name in _PYTORCHCV.split()}
    return table | _probes()


def _squares(*sides: int) -> tuple[tuple[int, ...], ...]:
    """A square picture and one of another, uneven size."""
    return tuple(
        (3, side, side) if i == 0 else (3, side, side + 32) for i, side in enumerate(sides)
    )


def _torchvision(task: str, name: str) -> Door:
    """A network of torchvision; of detectors the backbone."""
    sizes = {
        "segmentation": _squares(64, 96),
        "video": ((3, 16, 64, 64), (3, 16, 64, 96)),
        "detection": _squares(128, 160),
    }[task]
    sizes = ((3, 16, 224, 224),) if name == "s3d" else sizes  # its last pooling takes no less

    def build() -> nn.Module:
        import torchvision

        factory = getattr(getattr(torchvision.models, task), name)
        options = {} if task == "video" else {"weights_backbone": None}
        network: nn.Module = factory(weights=None, **options)
        return network

    return Door(build, sizes, "backbone" if task == "detection" else "")


def _smp(name: str) -> Door:
    """A decoder of segmentation-models-pytorch on a small encoder."""

    def build() -> nn.Module:
        import segmentation_models_pytorch as smp

        network: nn.Module = getattr(smp, name)("resnet18", encoder_weights=None, classes=5)
        return network

    return Door(build, _squares(128, 160))


def _yolo(name: str) -> Door:
    """A network of Ultralytics, as its yaml file describes it."""

    def build() -> nn.Module:
        from ultralytics import YOLO

        network: nn.Module = YOLO(f"{name}.yaml").model
        return network

    return Door(build, _squares(64, 96))


def _monai_networks() -> dict[str, tuple[str, dict[str, object]]]:
    """Networks of MONAI for flat pictures, with small widths."""
    common = {"spatial_dims": 2, "in_channels": 3, "out_channels": 4}
    return {
        "UNet": ("UNet", {**common, "channels": (8, 16, 24), "strides": (2, 2)}),
        "AttentionUnet": ("AttentionUnet", {**common, "channels": (8, 16, 24), "strides": (2, 2)}),
        "BasicUNet": ("BasicUNet", common),
        "BasicUNetPlusPlus": ("BasicUNetPlusPlus", common),
        "SegResNet": ("SegResNet", {**common, "init_filters": 16}),
        "DynUNet": (
            "DynUNet",
            {
                **common,
                "kernel_size": (3, 3, 3),
                "strides": (1, 2, 2),
                "upsample_kernel_size": (2, 2),
            },
        ),
        "SEResNet50": ("SEResNet50", {"spatial_dims": 2, "in_channels": 3, "num_classes": 4}),
        "DenseNet121": ("DenseNet121", common),
        "FlexibleUNet": (
            "FlexibleUNet",
            {"in_channels": 3, "out_channels": 4, "backbone": "efficientnet-b0"},
        ),
    }


def _monai(name: str) -> Door:
    """A network of MONAI."""

    def build() -> nn.Module:
        import monai.networks.nets as nets

        kind, options = _monai_networks()[name]
        network: nn.Module = getattr(nets, kind)(**options)
        return network

    return Door(build, _squares(64, 96))


def _pretrained(name: str) -> Door:
    """A network of pretrainedmodels, without its weights."""

    def build() -> nn.Module:
        import pretrainedmodels

        classes = 1001 if name == "nasnetamobile" else 1000
        network: nn.Module = pretrainedmodels.__dict__[name](num_classes=classes, pretrained=None)
        return network

    return Door(build, _squares(331 if name == "polynet" else 224))


def _pytorchcv(name: str) -> Door:
    """A network of pytorchcv for the size that it was designed for, or another where it allows."""
    if name.endswith("_cifar10"):
        sizes: tuple[tuple[int, ...], ...] = ((3, 32, 32),)
    elif name.endswith("_cityscapes"):
        sizes = _squares(128, 192)
    elif name.startswith("quartznet"):
        sizes = ((64, 96), (64, 128))
    elif name == "superpointnet":
        sizes = ((1, 64, 64), (1, 64, 96))
    elif name in ("inceptionresnetv1", "pnasnet5large"):
        sizes = ((3, 331, 331),)
    else:
        sizes = ((3, 224, 224),)

    def build() -> nn.Module:
        from pytorchcv.model_provider import get_model

        options = {"in_size": sizes[0][1:]} if name.endswith("_cityscapes") else {}
        network: nn.Module = get_model(name, pretrained=False, **options)
        return network

    return Door(build, sizes)


def _probes() -> dict[str, Door]:
    """The small networks beside this project, each with what is refused somewhere."""
    table: dict[str, Door] = {}
    if not _PROBES.is_dir():
        return table
    sys.path.insert(0, os.fspath(_PROBES))
    for file in ("nets_probe", "nets_probe2"):
        probe = importlib.import_module(file)
        for name, (factory, size) in probe.NETS.items():
            build = getattr(probe, factory.partition(":")[2])
            shape = tuple(map(int, size.split("x")))
            table[f"probes:{name}"] = Door(build, (shape,))
    return table


def enliven(model: nn.Module, run: Callable[[], object]) -> nn.Module:
    """Random norms with the statistics of a run, so that no activation vanishes on the way."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    model.eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.GroupNorm) and module.affine:
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.3, 0.3)
        momenta = [norm.momentum for norm in norms]
        for norm in norms:
            norm.train()
            norm.momentum = 1.0
        run()
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
            if norm.running_var is not None:
                norm.running_var.clamp_(min=0.01)
    return model.eval()
