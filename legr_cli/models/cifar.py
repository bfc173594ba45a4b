"""Networks for CIFAR: the paper's ResNets (option A), VGG-13 and MobileNetV2, and a small one."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models import MobileNetV2

from legr_cli.errors import ModelError

PADDINGS = ("halves", "after")


class Block(nn.Module):
    """Two 3×3 convolutions and a parameter-free shortcut (option A).

    Where the width doubles, the shortcut subsamples by two and pads the channels with zeros:
    half before and half after (`pad="halves"`), or all after (`"after"`). Public implementations
    differ in this.
    """

    def __init__(self, in_channels: int, out: int, stride: int, pad: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.stride = stride
        before = (out - in_channels) // 2 if pad == "halves" else 0
        self.padding = (
            (0, 0, 0, 0, before, out - in_channels - before) if out != in_channels else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.padding is not None:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], self.padding)
        return F.relu(y + x)


class CifarResNet(nn.Module):
    """ResNet-(6n+2) for 32×32 images, with the parameter names of the common public checkpoints."""

    def __init__(self, depth: int, num_classes: int = 10, pad: str = "halves") -> None:
        super().__init__()
        if pad not in PADDINGS:
            raise ModelError(f"pad must be one of {', '.join(PADDINGS)}, got {pad!r}")
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks = (depth - 2) // 6
        self.layer1 = _stage(16, 16, blocks, 1, pad)
        self.layer2 = _stage(16, 32, blocks, 2, pad)
        self.layer3 = _stage(32, 64, blocks, 2, pad)
        self.linear = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def _stage(in_channels: int, out: int, blocks: int, stride: int, pad: str) -> nn.Sequential:
    """The blocks at one resolution; the first may downsample."""
    first = Block(in_channels, out, stride, pad)
    return nn.Sequential(first, *(Block(out, out, 1, pad) for _ in range(blocks - 1)))


class CifarVgg(nn.Module):
    """VGG for 32×32 images: convolutions with BatchNorm, max pooling and one linear layer.

    `widths` lists the convolutions' output channels; None is a 2×2 max pooling.
    """

    def __init__(self, widths: tuple[int | None, ...], num_classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        in_channels = 3
        for width in widths:
            if width is None:
                layers.append(nn.MaxPool2d(2))
            else:
                conv = nn.Conv2d(in_channels, width, 3, padding=1)
                layers += [conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                in_channels = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(in_channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


def vgg13_cifar(num_classes: int = 10) -> nn.Module:
    """VGG-13 for CIFAR."""
    widths = (64, 64, None, 128, 128, None, 256, 256, None, 512, 512, None, 512, 512, None)
    return CifarVgg(widths, num_classes)


def small_cifar(num_classes: int = 10) -> nn.Module:
    """Six convolutions, 10 MFLOPs: small enough for experiments on any machine."""
    layers: dict[str, nn.Module] = {}
    in_channels = 3
    for number, width in enumerate((16, 32, 32, 64, 64, 64), 1):
        if width == 2 * in_channels:  # halve the resolution where the width doubles
            layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"conv{number}"] = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        layers[f"norm{number}"] = nn.BatchNorm2d(width)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        in_channels = width
    layers |= {"mean": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten()}
    return nn.Sequential(OrderedDict(layers, linear=nn.Linear(in_channels, num_classes)))


def mobilenet_v2_cifar(num_classes: int = 10) -> nn.Module:
    """MobileNetV2 for CIFAR: torchvision's, without its first two downsampling steps."""
    settings = [  # expansion, channels, repeats, stride
        *([1, 16, 1, 1], [6, 24, 2, 1], [6, 32, 3, 2], [6, 64, 4, 2]),
        *([6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]),
    ]
    model = MobileNetV2(num_classes=num_classes, inverted_residual_setting=settings)
    first = model.features[0][0]  # type: ignore[index]
    assert isinstance(first, nn.Conv2d)
    first.stride = (1, 1)
    return model
