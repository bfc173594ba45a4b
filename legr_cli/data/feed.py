"""How images are prepared for a network: size, resizing, augmentation and normalization."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from legr_cli.data.pixels import Fitting
from legr_cli.errors import DataError, SettingError
from legr_cli.models.registry import IMAGENET_STATISTICS
from legr_cli.settings import Pictures

STATISTICS = {  # per-channel mean and standard deviation of pixel values in [0, 1]
    "imagenet": IMAGENET_STATISTICS,
    "cifar10": {"mean": [0.4914, 0.4822, 0.4465], "std": [0.2470, 0.2435, 0.2616]},
    "cifar100": {"mean": [0.5071, 0.4865, 0.4409], "std": [0.2673, 0.2564, 0.2762]},
    "digits": {"mean": [0.305] * 3, "std": [0.376] * 3},
    "half": {"mean": [0.5] * 3, "std": [0.5] * 3},
    "none": {"mean": [0.0] * 3, "std": [1.0] * 3},
}


@dataclass(frozen=True)
class Feed:
    """How images are preprocessed for a network."""

    shape: tuple[int, ...]  # channels, height, width
    mean: tuple[float, ...]  # empty: the data is already normalized
    std: tuple[float, ...]
    flip: bool  # in training: whether to mirror half of the images
    random_crop: str = "padded"  # in training: one of `settings.RANDOM_CROPS`
    resize: str = "crop"  # one of `settings.RESIZES`
    crop: float = 1.0  # with "crop": side of the central crop, relative to the resized image's
    transform: str | None = None  # the user's own "module:function", which replaces all of this
    channels_last: bool = True  # memory format of batches; networks that use `view` need the other

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        if self.transform is not None:
            return f"{size} by {self.transform}"
        if not self.mean:
            return f"{size}, not normalized by legr"
        numbers = (",".join(f"{x:g}" for x in values) for values in (self.mean, self.std))
        return f"{size}, normalized by {':'.join(numbers)}"

    @property
    def statistics(self) -> dict[str, list[float]] | None:
        """Mean and std as stored in a network's file; None if the data is already normalized."""
        if not self.mean:
            return None
        return {"mean": list(self.mean), "std": list(self.std)}

    @property
    def pictures(self) -> Pictures:
        """How pictures become inputs, with no choice left open."""
        if self.transform is not None:
            return Pictures(transform=self.transform)
        crop = self.crop if self.resize == "crop" else None
        return Pictures(resize=self.resize, crop=crop, random_crop=self.random_crop, flip=self.flip)

    @property
    def fitting(self) -> Fitting:
        """How a picture is brought to the input size."""
        return Fitting((self.shape[2], self.shape[1]), self.resize, self.crop)

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of 4-dimensional batches, and of the network that takes them."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


def feed_for(shown: Feed, statistics: dict[str, Any] | None) -> Feed:
    """The same preprocessing with another network's statistics, if they are known."""
    if statistics is None or not shown.mean:
        return shown
    mean, std = mean_std(statistics, shown.shape[0])
    return replace(shown, mean=mean, std=std)


def mean_std(
    statistics: dict[str, Any], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation for as many channels (grayscale: the mean over all)."""
    parsed = _parsed(statistics)
    if parsed is None:
        raise DataError(
            f"the network's file has invalid normalization statistics ({statistics}): "
            "pass --normalize"
        )
    mean, std = parsed
    if channels == 1:
        return (sum(mean) / len(mean),), (sum(std) / len(std),)
    return (mean * channels, std * channels) if len(mean) == 1 else (mean, std)


def _parsed(statistics: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and standard deviation if valid (one or three of each, finite, std > 0), else None."""
    try:
        mean, std = (tuple(float(x) for x in statistics[key]) for key in ("mean", "std"))
    except (TypeError, KeyError, ValueError, OverflowError):
        return None
    valid = len(mean) == len(std) and len(mean) in (1, 3)
    return (mean, std) if valid and np.isfinite([*mean, *std]).all() and min(std) > 0 else None


def parse_statistics(text: str | None) -> dict[str, list[float]] | None:
    """Parse a name such as `imagenet`, or means and standard deviations `MEAN,…:STD,…`.

    None stays None.
    """
    if text is None:
        return None
    if text in STATISTICS:
        return STATISTICS[text]
    sides = [side.split(",") for side in text.split(":")]
    parsed = _parsed(dict(zip(("mean", "std"), sides, strict=True))) if len(sides) == 2 else None
    if parsed is not None:
        return {"mean": list(parsed[0]), "std": list(parsed[1])}
    raise SettingError(
        f"--normalize {text}: expected {', '.join(STATISTICS)}, or means and standard deviations "
        "such as 0.5,0.5,0.5:0.25,0.25,0.25"
    )
