"""A small ConvNet for the digits, as a user would write one, and its training."""

import torch
from torch import nn

from legr_cli.training.batches import Serving, shuffled
from legr_cli.training.data import open_data
from legr_cli.training.loop import Trainer, sgd, train


def build(num_classes: int = 10) -> nn.Module:
    """3x32x32 → conv 24 /2 → conv 32 /2 → conv 48 → mean → classes."""

    def block(into: int, out: int, stride: int) -> list[nn.Module]:
        conv = nn.Conv2d(into, out, 3, stride, 1, bias=False)
        return [conv, nn.BatchNorm2d(out), nn.ReLU()]

    return nn.Sequential(
        *block(3, 24, 2),
        *block(24, 32, 2),
        *block(32, 48, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, num_classes),
    )


def dropping(num_classes: int = 10) -> nn.Module:
    """The same, with dropout before its last layer."""
    *first, last = build(num_classes)
    return nn.Sequential(*first, nn.Dropout(0.2), last)


def normless(num_classes: int = 10) -> nn.Module:
    """The same without BatchNorm: its gradients do not depend on who else is in the batch."""
    return nn.Sequential(*(m for m in build(num_classes) if not isinstance(m, nn.BatchNorm2d)))


def trained() -> nn.Module:
    """The network after ten epochs: some 92 % of the held-out digits."""
    torch.manual_seed(0)
    model, device = build(), torch.device("cpu")
    data = open_data("digits", (3, 32, 32), seed=0)
    serving = Serving(data.feed, 64, device)
    generator = torch.Generator().manual_seed(0)
    for lr in (*[0.1] * 6, *[0.02] * 3, 0.005):
        train(Trainer(model, sgd(model, lr)), shuffled(data.train, serving, generator))
    return model
