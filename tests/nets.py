"""Tiny networks, each with its diagram; odd widths, so that no wrong product passes by luck."""

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

INPUT = (3, 16, 16)
CLASSES = 7


def conv(into: int, out: int, k: int = 3, **options: object) -> nn.Conv2d:
    return nn.Conv2d(into, out, k, padding=k // 2, **options)


def head(width: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


class Plain(nn.Module):
    """conv13 - bn - relu - conv23 - bn - relu - pool - fc"""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(conv(3, 13, bias=False), nn.BatchNorm2d(13), nn.ReLU()),
            *(conv(13, 23, bias=False), nn.BatchNorm2d(23), nn.ReLU()),
        )
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class NoNorm(nn.Module):
    """conv13 - relu - maxpool - conv29 - relu - flatten 29·4·4 by a constant - fc31 - relu - fc"""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(3, 13), conv(13, 29)
        self.fc1, self.fc2 = nn.Linear(29 * 16, 31), nn.Linear(31, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.view(-1, 29 * 4 * 4))))


class Residual(nn.Module):
    """conv13 ─┬─ conv23 - bn - relu - conv13 - bn ─(+)─ relu - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = conv(3, 13), conv(13, 23), conv(23, 13)
        self.bn1, self.bn2 = nn.BatchNorm2d(23), nn.BatchNorm2d(13)
        self.head = head(13)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.bn2(self.b(F.relu(self.bn1(self.a(x)))))
        y += x
        return self.head(F.relu(y))


class Depthwise(nn.Module):
    """conv13 - depthwise ×1 - bn - depthwise ×2 (26) - relu6 - conv23 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 13)
        self.dw1, self.bn = conv(13, 13, groups=13, bias=False), nn.BatchNorm2d(13)
        self.dw2, self.point = conv(13, 26, groups=13), conv(26, 23, 1)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dw2(F.relu6(self.bn(self.dw1(self.stem(x)))))
        return self.head(self.point(F.relu6(x)))


class Grouped(nn.Module):
    """conv15 - grouped conv in 5 groups (3 → 7 each, 35) - bn - relu - conv23 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.grouped = conv(3, 15), conv(15, 35, groups=5)
        self.bn, self.last = nn.BatchNorm2d(35), conv(35, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.last(F.relu(self.bn(self.grouped(F.relu(self.stem(x))))))))


class Concat(nn.Module):
    """conv13 ─┬──────────┐
    └─ conv23 ─ cat(36) - bn - relu - conv29 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branch = conv(3, 13), conv(13, 23)
        self.bn, self.last = nn.BatchNorm2d(36), conv(36, 29)
        self.head = head(29)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        x = torch.cat([x, self.branch(x)], 1)
        return self.head(F.relu(self.last(F.relu(self.bn(x)))))


class Gate(nn.Module):
    """conv23 ─┬─ mean - fc13 - relu - fc23 - sigmoid ─(×)─ conv29 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(3, 23), conv(23, 29)
        self.squeeze, self.excite = nn.Linear(23, 13), nn.Linear(13, 23)
        self.head = head(29)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        return self.head(F.relu(self.last(x * gate[:, :, None, None])))


class Padded(nn.Module):
    """conv13 ─┬─ conv23 stride 2 ─(+)─ head;  the shortcut: every second pixel, padded 13 → 23"""

    def __init__(self, before: int, after: int, how: str = "pad") -> None:
        super().__init__()
        self.stem, self.main = conv(3, 13), conv(13, 13 + before + after, stride=2)
        self.last = conv(13 + before + after, 29)
        self.before, self.after, self.how = before, after, how
        self.head = head(29)

    def shortcut(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, :, ::2, ::2]
        if self.how == "pad":
            return F.pad(x, (0, 0, 0, 0, self.before, self.after))
        if self.how == "zeros":
            n, _, h, w = x.shape
            zeros = torch.zeros(n, self.after, h, w, dtype=x.dtype)
            return torch.cat([x, zeros], 1)
        return torch.cat([x, x.mul(0)], 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        return self.head(F.relu(self.last(F.relu(self.main(x) + self.shortcut(x)))))


class Split(nn.Module):
    """conv31 - in three uneven parts (chunk) - conv13 on the first, cat with the rest - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.last = conv(3, 31), conv(11, 13), conv(33, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c = F.relu(self.stem(x)).chunk(3, 1)
        return self.head(F.relu(self.last(torch.cat([self.first(a), c, b], 1))))


class Slices(nn.Module):
    """conv29 - x[:, ::2] through conv13, x[:, 20:] through conv23, cat - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.even, self.tail = conv(3, 29), conv(15, 13), conv(9, 23)
        self.last = conv(36, 13)
        self.head = head(13)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        x = torch.cat([self.even(x[:, ::2]), self.tail(x[:, 20:])], 1)
        return self.head(F.relu(self.last(x)))


class Shuffle(nn.Module):
    """conv30 - shuffle in `groups` - split in halves - conv13 on one - cat - head"""

    def __init__(self, groups: int, how: str) -> None:
        super().__init__()
        self.stem, self.side, self.last = conv(3, 30), conv(15, 13), conv(28, 23)
        self.groups, self.how = groups, how
        self.shuffle = nn.ChannelShuffle(groups)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        if self.how == "view":
            n, c, h, w = x.size()
            x = x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).contiguous()
            x = x.view(n, -1, h, w)
        elif self.how == "function":
            x = F.channel_shuffle(x, self.groups)
        else:
            x = self.shuffle(x)
        a, b = torch.split(x, 15, 1)
        return self.head(F.relu(self.last(torch.cat([a, self.side(b)], 1))))


class PixelShuffle(nn.Module):
    """conv52 - pixel shuffle ×2 (13) - relu - conv23 - pixel unshuffle (92) - conv29 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.up = conv(3, 52), nn.PixelShuffle(2)
        self.middle, self.down, self.last = conv(13, 23), nn.PixelUnshuffle(2), conv(92, 29)
        self.head = head(29)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(F.relu(self.middle(F.relu(self.up(self.stem(x))))))
        return self.head(F.relu(self.last(x)))


class Norms(nn.Module):
    """conv35 - group norm in 5 - prelu - conv23 - instance norm - transposed conv13 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 35, 3, padding="same"), nn.GroupNorm(5, 35), nn.PReLU(35)),
            *(conv(35, 23), nn.InstanceNorm2d(23, affine=True), nn.PReLU()),
            *(nn.ConvTranspose2d(23, 13, 2, stride=2), nn.ReLU(), nn.Upsample(scale_factor=2)),
        )
        self.head = head(13)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class ChannelsLast(nn.Module):
    """conv13 ─┬─ to NHWC - fc29 - gelu - fc13 - to NCHW - × a parameter ─(+)─ conv23 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide, self.narrow = conv(3, 13), nn.Linear(13, 29), nn.Linear(29, 13)
        self.scale = nn.Parameter(torch.rand(13, 1, 1) + 0.5)
        self.last = conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.narrow(F.gelu(self.wide(x.permute(0, 2, 3, 1)))).permute(0, 3, 1, 2)
        return self.head(F.relu(self.last(x + self.scale * y)))


class Functional(nn.Module):
    """a convolution (13) and a linear layer (23) by function on parameters, then head"""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.offset = (
            nn.Parameter(torch.randn(13, 3, 3, 3)),
            nn.Parameter(torch.randn(13)),
        )
        self.matrix = nn.Parameter(torch.randn(23, 13))
        self.last = nn.Linear(23, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.conv2d(x, self.kernel, self.offset, padding=1)).mean((2, 3))
        return self.last(F.relu(F.linear(x, self.matrix)))


class Twice(nn.Module):
    """conv13 - the same conv13→13 twice - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.again, self.last = conv(3, 13), conv(13, 13), conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.again(F.relu(self.again(x))))
        return self.head(F.relu(self.last(x)))


class Frozen(nn.Module):
    """conv13 - a norm written out with buffers, as detection networks do - conv23 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(3, 13, bias=False), conv(13, 23)
        self.register_buffer("weight", torch.rand(13) + 0.5)
        self.register_buffer("running_var", torch.rand(13) + 0.5)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = (
            self.weight.reshape(1, -1, 1, 1)
            * (self.running_var.reshape(1, -1, 1, 1) + 1e-5).rsqrt()
        )
        return self.head(F.relu(self.last(F.relu(self.stem(x) * scale))))


class SamePadding(nn.Conv2d):
    """A convolution that pads as TensorFlow does: obeys the rules of its base."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, 2, 0, 1, self.groups)


class NormAndRelu(nn.BatchNorm2d):
    """A norm with its activation: obeys the rules of its base."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(super().forward(x))


class Subclassed(nn.Module):
    """same-padding conv13 - norm+relu - same-padding depthwise conv13 - conv23 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = SamePadding(3, 13, 3), NormAndRelu(13)
        self.depth, self.last = SamePadding(13, 13, 3, groups=13), conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.last(self.depth(self.norm(self.stem(x))))))


class Standardised(nn.Conv2d):
    """A convolution that standardises each filter: what a filter does depends on all its inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, w, self.bias, padding=1)


class PinnedByStandardised(nn.Module):
    """conv13 - weight-standardised conv23 - conv29 - head: 13 and 23 are pinned"""

    pinned: ClassVar = dict.fromkeys(
        ("stem", "odd"), "Standardised (odd), whose forward treats channels unlike that of Conv2d"
    )

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.odd, self.last = conv(3, 13), Standardised(13, 23, 3), conv(23, 29)
        self.head = head(29)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.last(F.relu(self.odd(F.relu(self.stem(x)))))))


class PinnedByLayerNorm(nn.Module):
    """conv13 - layer norm over channels - conv23 - head: 13 is pinned"""

    pinned: ClassVar = {"stem": "LayerNorm (norm)"}

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.last = conv(3, 13), nn.LayerNorm(13), conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head(F.relu(self.last(x)))


class PinnedByAttention(nn.Module):
    """conv13 - softmax(q·k)·v over positions - conv23 - head: 13 is pinned by matmul"""

    pinned: ClassVar = {"stem": "matmul"}

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(3, 13, stride=4), conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        flat = x.flatten(2)
        weights = torch.matmul(flat.transpose(1, 2), flat).softmax(-1)
        y = torch.matmul(flat, weights).view(x.shape)
        return self.head(F.relu(self.last(y)))


class PinnedByAttentionReshaped(nn.Module):
    """conv13 - conv13 - attention ─ reshaped to the shape of the first conv13 - head"""

    pinned: ClassVar = {"b": "matmul"}

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = conv(3, 13, stride=4), conv(13, 13), conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        flat = self.b(x).flatten(2)
        y = torch.matmul(flat, torch.matmul(flat.transpose(1, 2), flat).softmax(-1))
        n, c, h, w = x.shape
        return self.head(F.relu(self.last(y.reshape(n, c, h, w))))


class PinnedByMean(nn.Module):
    """conv13 ─┬─ mean over channels - conv1 - sigmoid ─(×)─ conv23 - head: 13 is pinned by mean"""

    pinned: ClassVar = {"stem": "mean", "map": "mul, which spreads it over all channels"}

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.map, self.last = conv(3, 13), conv(1, 1, 7), conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x * torch.sigmoid(self.map(x.mean(1, keepdim=True)))
        return self.head(F.relu(self.last(x)))


class PinnedBySpreading(nn.Module):
    """conv14 - channel 0 gates the other 13 - conv23 - head: channel 0 is pinned, 13 are not"""

    pinned: ClassVar = {"stem": "mul, which spreads it over all channels"}

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(3, 14), conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(F.relu(self.last(x[:, 1:] * torch.sigmoid(x[:, :1]))))


class PinnedByWidth(nn.Module):
    """conv13 divided by its own number of channels - conv23 - head: 13 is pinned by the division"""

    pinned: ClassVar = {"stem": "div"}

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(3, 13), conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return self.head(F.relu(self.last(x / x.size(1))))


class Blur(nn.Module):
    """conv13 - a fixed kernel for each channel: a buffer, by function - conv23 - head"""

    def __init__(self, dynamic: bool) -> None:
        super().__init__()
        self.stem, self.last, self.dynamic = conv(3, 13), conv(13, 23), dynamic
        self.register_buffer("kernel", torch.rand(13, 1, 3, 3))
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        groups = x.shape[1] if self.dynamic else 13
        x = F.conv2d(F.pad(x, (1, 1, 1, 1), "reflect"), self.kernel, stride=2, groups=groups)
        return self.head(F.relu(self.last(x)))


class Numbers(nn.Module):
    """conv13 × a learnable number, × whole numbers for each channel, GeM pooling - fc"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(3, 13), nn.Linear(13, CLASSES)
        self.scale, self.power = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor([3.0]))
        self.register_buffer("whole", torch.arange(20, 33).reshape(1, 13, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x) * self.scale * self.whole
        x = x.abs().pow(self.power).mean((2, 3)).pow(1.0 / self.power)
        return self.last(x)


class InPlace(nn.Module):
    """conv13 - relu in place, its result unused - conv23 - += - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = conv(3, 13), conv(13, 23), conv(13, 23)
        self.act, self.head = nn.ReLU(inplace=True), head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        self.act(x)
        y = self.a(x)
        y.add_(self.b(x)).clamp_(-0.5, 0.5)
        F.relu(y, inplace=True)
        return self.head(y)


class InPlaceOnCat(nn.Module):
    """conv13 ─┬─ cat(x, conv23) - relu in place - conv29 ─ cat with x again (42) - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.side, self.last = conv(3, 13), conv(13, 23), conv(36, 29)
        self.act, self.head = nn.ReLU(inplace=True), head(42)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = self.last(self.act(torch.cat([x, self.side(x)], 1)))
        return self.head(torch.cat([y, x], 1))


class Keywords(nn.Module):
    """conv13 - norm - conv23 - mean - fc, every call by keyword, and an option of forward"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.last = conv(3, 13), nn.BatchNorm2d(13), conv(13, 23)
        self.fc = nn.Linear(23, CLASSES)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        x = self.last(input=F.relu(input=self.norm(input=self.stem(input=x)))) * scale
        return self.fc(input=torch.mean(input=x, dim=(2, 3)))


class Parts(nn.Module):
    """conv26 - list(chunk) - conv13 on the last part, appended - cat(39) - conv23 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.side, self.last = conv(3, 26), conv(13, 13), conv(39, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(F.relu(self.stem(x)).chunk(2, 1))
        parts.append(self.side(parts[-1]))
        return self.head(F.relu(self.last(torch.cat(parts, 1))))


class Branches(nn.Module):
    """conv13 and conv13, stacked - softmax over the two from fc26 - weighted sum - conv23 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.fc = conv(3, 13), conv(3, 13, 5), nn.Linear(13, 26)
        self.last, self.head = conv(13, 23), head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        both = torch.stack([self.a(x), self.b(x)], 1)
        weights = self.fc(both.sum(1).mean((2, 3))).view(-1, 2, 13).softmax(1)
        return self.head(F.relu(self.last((both * weights[:, :, :, None, None]).sum(1))))


class SharedNorm(nn.Module):
    """conv13 - norm - conv13 - a norm with the same numbers - conv23 - head: both 13 are pinned"""

    pinned: ClassVar = dict.fromkeys(("stem", "middle"), "weights shared by norm1 and norm2")

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle, self.last = conv(3, 13), conv(13, 13), conv(13, 23)
        self.norm1, self.norm2 = nn.BatchNorm2d(13), nn.BatchNorm2d(13)
        self.norm2.weight, self.norm2.bias = self.norm1.weight, self.norm1.bias
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm2(self.middle(F.relu(self.norm1(self.stem(x))))))
        return self.head(F.relu(self.last(x)))


class PinnedByHooks(nn.Module):
    """conv13 - conv23 whose output a hook flips - conv29 - head: 13 and 23 are pinned"""

    pinned: ClassVar = {
        "stem": "Conv2d (odd), which has hooks",
        "odd": "Conv2d (odd), which has hooks",
    }

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.odd, self.last = conv(3, 13), conv(13, 23), conv(23, 29)
        self.odd.register_forward_hook(lambda *call: call[-1].flip(1))
        self.head = head(29)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.last(F.relu(self.odd(self.stem(x))))))


class PinnedByView(nn.Module):
    """conv13, every second channel changed in place through a view - conv23 - head: 13 is pinned"""

    pinned: ClassVar = {"stem": "relu_"}

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(3, 13), conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x[:, ::2].relu_()
        return self.head(F.relu(self.last(x)))


class PinnedByMax(nn.Module):
    """conv13 ─┬─ max over channels (a pair comes out) - conv1 ─(×)─ conv23 - head: 13 is pinned"""

    pinned: ClassVar = {"stem": "max", "map": "mul, which spreads it over all channels"}

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.map, self.last = conv(3, 13), conv(1, 1), conv(13, 23)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x * torch.sigmoid(self.map(torch.max(x, 1, keepdim=True)[0]))
        return self.head(F.relu(self.last(x)))


class TwoGroups(nn.Module):
    """conv26 - conv34 in two groups (13 → 17 each) - relu - conv22 in two (17 → 11) - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b = conv(3, 26), conv(26, 34, groups=2), conv(34, 22, groups=2)
        self.head = head(22)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.b(F.relu(self.a(F.relu(self.stem(x)))))))


class GroupShuffle(nn.Module):
    """conv39 - grouped conv - shuffle - depthwise - grouped conv ─(+)─ head, all in 3 groups"""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.stem, self.groups = conv(3, width), groups
        self.a, self.c = (conv(width, width, 1, groups=groups) for _ in range(2))
        self.b, self.head = conv(width, width, groups=width), head(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        y = F.channel_shuffle(F.relu(self.a(x)), self.groups)
        return self.head(F.relu(x + self.c(self.b(y))))


class SplitAttention(nn.Module):
    """conv13 - conv26 in two groups, summed with softmax weights from fc11 - conv23 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.two = conv(3, 14), conv(14, 26, groups=2)
        self.squeeze, self.excite = nn.Linear(13, 11), nn.Linear(11, 26)
        self.last, self.head = conv(13, 23), head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, _, h, w = x.shape
        both = F.relu(self.two(F.relu(self.stem(x)))).view(n, 2, 13, h, w)
        weights = self.excite(F.relu(self.squeeze(both.sum(1).mean((2, 3))))).view(n, 2, 13, 1, 1)
        return self.head(F.relu(self.last((both * weights.softmax(1)).sum(1))))


class TransposedGroups(nn.Module):
    """conv15 - transposed conv in 5 groups (3 → 7) - transposed depthwise ×2 (70) - conv5 - head"""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.stem = conv(3, 3 * groups)
        self.up = nn.ConvTranspose2d(3 * groups, 7 * groups, 6, stride=2, groups=groups)
        self.dw = nn.ConvTranspose2d(7 * groups, 14 * groups, 5, groups=7 * groups)
        self.last, self.head = conv(14 * groups, 5, 1), head(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.last(self.dw(F.relu(self.up(F.relu(self.stem(x))))))))


class Step(nn.Module):
    """conv13 - what `step` does to it - conv23 - head"""

    def __init__(self, step: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.stem, self.last, self.step = conv(3, 13), conv(13, 23), step
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.last(self.step(F.relu(self.stem(x))))))


def masked(x: torch.Tensor) -> torch.Tensor:
    """Comparisons that choose between tensors of the same channels."""
    x = torch.where(x > x.mean((2, 3), keepdim=True), x, 0.5 * x)
    return x.masked_fill((x < 0.1) | ~(x <= 2), 0.0)


def peaks(x: torch.Tensor) -> torch.Tensor:
    """Values and indices along a dimension of space, and statistics of space."""
    flat = x.flatten(2)
    strong = flat.topk(5, -1).values.sum(-1) + torch.max(flat, 2)[0] - flat.std(2)
    strong = strong * flat.sort(-1, descending=True)[0][..., 0] / (1 + flat.norm(dim=-1))
    strong = strong + torch.maximum(strong, flat.median(-1)[0]) * torch.norm(x, 2, (2, 3))
    return x * strong[:, :, None, None] * (flat.argmax(2) > 7).to(x)[:, :, None, None]


def noisy(x: torch.Tensor) -> torch.Tensor:
    """Noise and ranges, of a fixed width or that of x."""
    scale = torch.arange(1, 14, dtype=x.dtype).reshape(1, 13, 1, 1)
    x = x * scale * torch.rand(x.size(0), 13, 1, 1, dtype=x.dtype)
    return x * (torch.ones(13, dtype=x.dtype)[:, None, None] + torch.rand_like(x))


def warped(x: torch.Tensor) -> torch.Tensor:
    """Sampled along a tilted grid."""
    tilt = torch.tensor([[[1, 0.2, 0], [-0.1, 0.8, 0.1]]], dtype=x.dtype)
    grid = F.affine_grid(tilt.expand(x.size(0), -1, -1), [x.size(0), 1, 11, 9], False)
    return F.grid_sample(x, grid, align_corners=False)


def assigning(x: torch.Tensor) -> torch.Tensor:
    """Values assigned to a part of space, for all channels."""
    y = torch.zeros_like(x)
    y[:, :, 1:] = x[:, :, :-1]
    y[..., :2] = 0.5 * x[..., 3:5]
    return y


class State(nn.Module):
    """conv13 ─┬─ conv13 of cat with a state of zeros of a fixed width, three times ─ head"""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.stem, self.update, self.how = conv(3, 13), conv(26, 13), how
        self.head = head(13)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        state = torch.zeros(x.size(0), 13, x.size(2), x.size(3)).to(x)
        if self.how == "new_zeros":
            state = x.new_zeros(x.size(0), 13, *x.shape[2:])
        for _ in range(3):
            state = F.relu(self.update(torch.cat([x, state], 1)))
        return self.head(state)


class Unpool(nn.Module):
    """conv13 - max pool with indices - conv13 - max unpool, twice (module, function) - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle, self.last = conv(3, 13), conv(13, 13), conv(13, 23)
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        self.head = head(23)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem(x))
        y, indices = self.pool(x)
        y = self.unpool(F.relu(self.middle(y)), indices)
        y, indices = F.max_pool2d(y, 2, return_indices=True)
        return self.head(F.relu(self.last(F.max_unpool2d(y, indices, 2))))


class FunctionalNorms(nn.Module):
    """conv13 - batch norm - prelu - instance norm, by function on parameters - conv23 - head"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last, self.head = conv(3, 13), conv(13, 23), head(23)
        self.scale, self.shift, self.slope = (nn.Parameter(torch.rand(13) + 0.5) for _ in range(3))
        self.register_buffer("mean", torch.rand(13) - 0.5)
        self.register_buffer("var", torch.rand(13) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.batch_norm(self.stem(x), self.mean, self.var, self.scale, self.shift)
        x = F.instance_norm(F.prelu(x, self.slope), weight=self.scale)
        return self.head(F.relu(self.last(x)))


class Recurrent(nn.Module):
    """conv13 - rows as a sequence - GRU11, both ways - LSTM cell 5 on the last step - fc"""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle = conv(3, 13), nn.Linear(22, 17)
        self.gru = nn.GRU(13, 11, 2, bidirectional=True, batch_first=True)
        self.cell, self.fc = nn.LSTMCell(17, 5), nn.Linear(5, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = F.relu(self.stem(x)).mean(3).transpose(1, 2)
        state = F.relu(self.middle(self.gru(steps)[0][:, -1]))
        return self.fc(self.cell(state)[0])


NETS: dict[str, Callable[[], nn.Module]] = {
    "plain": Plain,
    "no norm": NoNorm,
    "residual": Residual,
    "depthwise": Depthwise,
    "grouped": Grouped,
    "concat": Concat,
    "gate": Gate,
    "pad halves": lambda: Padded(5, 5),
    "pad uneven": lambda: Padded(3, 7),
    "pad after": lambda: Padded(0, 10),
    "cat zeros": lambda: Padded(0, 10, "zeros"),
    "cat x times 0": lambda: Padded(0, 13, "mul"),
    "split": Split,
    "slices": Slices,
    "shuffle view 2": lambda: Shuffle(2, "view"),
    "shuffle view 5": lambda: Shuffle(5, "view"),
    "shuffle function": lambda: Shuffle(3, "function"),
    "shuffle module": lambda: Shuffle(6, "module"),
    "pixel shuffle": PixelShuffle,
    "norms": Norms,
    "channels last": ChannelsLast,
    "functional": Functional,
    "twice": Twice,
    "frozen": Frozen,
    "subclassed": Subclassed,
    "blur": lambda: Blur(False),
    "blur by shape": lambda: Blur(True),
    "numbers": Numbers,
    "in place": InPlace,
    "in place on cat": InPlaceOnCat,
    "keywords": Keywords,
    "parts": Parts,
    "branches": Branches,
    "shared norm": SharedNorm,
    "two groups": TwoGroups,
    "group shuffle 39": lambda: GroupShuffle(39, 3),
    "group shuffle 36": lambda: GroupShuffle(36, 3),
    "group shuffle 44": lambda: GroupShuffle(44, 4),
    "group shuffle 40": lambda: GroupShuffle(40, 4),
    "split attention": SplitAttention,
    "transposed groups": lambda: TransposedGroups(5),
    "transposed in two groups": lambda: TransposedGroups(2),
    "masked": lambda: Step(masked),
    "peaks": lambda: Step(peaks),
    "noisy": lambda: Step(noisy),
    "warped": lambda: Step(warped),
    "assigning": lambda: Step(assigning),
    "state": lambda: State("zeros"),
    "state like": lambda: State("new_zeros"),
    "unpool": Unpool,
    "functional norms": FunctionalNorms,
    "recurrent": Recurrent,
    "pinned by hooks": PinnedByHooks,
    "pinned by view": PinnedByView,
    "pinned by max": PinnedByMax,
    "pinned by standardised": PinnedByStandardised,
    "pinned by layer norm": PinnedByLayerNorm,
    "pinned by attention": PinnedByAttention,
    "pinned by attention, reshaped": PinnedByAttentionReshaped,
    "pinned by mean": PinnedByMean,
    "pinned by spreading": PinnedBySpreading,
    "pinned by width": PinnedByWidth,
}


def make(name: str) -> nn.Module:
    """A tiny network with lively weights, in double precision."""
    torch.manual_seed(0)
    return enliven(NETS[name]().double())


def enliven(model: nn.Module) -> nn.Module:
    """Random norms, so that a channel wired wrongly shows."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.GroupNorm):
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.5, 0.5, generator=generator)
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.uniform_(-0.2, 0.2, generator=generator)
                module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model.eval()
