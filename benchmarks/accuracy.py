"""Top-1 accuracy of a checkpoint on a folder of images, one folder a class.

`python benchmarks/accuracy.py resnet56-cifar10.th resnet56 cifar10/test` (ImageNet statistics).
"""

import sys
from pathlib import Path

import torch
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import legr_cli
from legr_cli.models.registry import IMAGENET_STATISTICS


def main(checkpoint: str, arch: str, folder: str) -> None:
    """Print the share of images whose class is right."""
    steps = [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(**IMAGENET_STATISTICS),
    ]
    images = ImageFolder(folder, v2.Compose(steps))
    loader = torch.utils.data.DataLoader(images, 500, num_workers=2)
    model = legr_cli.load(checkpoint, arch or None)
    with torch.no_grad():
        right = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    print(f"{Path(checkpoint).name}: {right / len(images):.2%} of {len(images)} images")


if __name__ == "__main__":
    main(*sys.argv[1:])
