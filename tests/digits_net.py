"""A small ConvNet for the digits, as a user would write one, and its training."""

import torch
from torch import nn

from legr_cli.data.batches import Serving, shuffled
from legr_cli.data.dataset import open_data
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


def tiny(num_classes: int = 10) -> nn.Module:
    """As little as there can be."""
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.ReLU(), *pool, nn.Linear(4, num_classes))


def frozen(num_classes: int = 10) -> nn.Module:
    """The same; its first filters are given and do not learn."""
    model = build(num_classes)
    model[0].weight.requires_grad_(False)
    return model


def headless(num_classes: int = 10) -> nn.Module:
    """Ten classes, whatever is asked for."""
    del num_classes
    return build(10)


class Odd(nn.Module):
    """A network that does something strange with its images or its answer."""

    def __init__(self, net: nn.Module, before: object = None, after: object = None) -> None:
        super().__init__()
        self.net, self.before, self.after = net, before, after

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.before is not None:
            images = self.before(self, images)
        logits = self.net(images)
        return logits if self.after is None else self.after(self, logits)


def tuple_in_training(num_classes: int = 10) -> nn.Module:
    """Two answers while it learns, as networks with a second head give."""
    return Odd(build(num_classes), after=lambda own, x: (x, x) if own.training else x)


def detached(num_classes: int = 10) -> nn.Module:
    """No gradient comes back."""
    return Odd(build(num_classes), after=lambda _, x: x.detach())


def parameterless(num_classes: int = 10) -> nn.Module:
    """Nothing to learn."""
    return nn.Sequential(nn.AdaptiveAvgPool2d((2, 5)), nn.Flatten(), nn.AvgPool1d(3))


def raising(num_classes: int = 10) -> nn.Module:
    """An error that torch does not know."""

    def fail(_: nn.Module, images: torch.Tensor) -> torch.Tensor:
        raise KeyError("boom")

    return Odd(build(num_classes), before=fail)


def with_extra_state(num_classes: int = 10) -> nn.Module:
    """More than tensors in its state."""

    class Extra(Odd):
        def get_extra_state(self) -> dict:
            return {"a": 1}

        def set_extra_state(self, state: dict) -> None:
            pass

    return Extra(build(num_classes))


def caching(num_classes: int = 10) -> nn.Module:
    """Keeps a tensor that it makes from the first images."""

    def scaled(own: nn.Module, images: torch.Tensor) -> torch.Tensor:
        if not hasattr(own, "ones"):
            own.ones = torch.ones_like(images[:1])
        return images * own.ones

    return Odd(build(num_classes), before=scaled)


def halved(num_classes: int = 10) -> nn.Module:
    """In half precision."""
    return build(num_classes).half()


def viewing(num_classes: int = 10) -> nn.Module:
    """Two buffers, one of them a part of the other."""
    model = build(num_classes)
    model.register_buffer("whole", torch.arange(4.0))
    model.register_buffer("part", model.whole[1:3])
    return model


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
