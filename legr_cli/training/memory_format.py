"""Choose the memory format that a network is trained and measured in, by trying it."""

import copy
from dataclasses import replace

import torch
from torch import nn

from legr_cli.channels.structures import tensors
from legr_cli.data.dataset import Data


def in_memory_format(model: nn.Module, data: Data) -> Data:
    """The data in the memory format that suits a network: channels last, unless that fails.

    Channels last is faster, but `x.view(len(x), -1)` after a convolution needs contiguous tensors.
    """
    shape = data.feed.shape
    if _runs(model, shape, torch.channels_last) or not _runs(model, shape, torch.contiguous_format):
        return data  # a network that always fails has another error
    return replace(data, feed=replace(data.feed, channels_last=False))


def _runs(model: nn.Module, shape: tuple[int, ...], memory_format: torch.memory_format) -> bool:
    """Whether a copy of a network runs forward and, in training, forward and backward."""
    try:
        trial = copy.deepcopy(model).to(memory_format=memory_format)  # type: ignore[call-overload]
        images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
        if images.ndim == 4:
            images = images.contiguous(memory_format=memory_format)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            trial.eval()(images)
            outputs = [out for out in tensors(trial.train()(images)) if out.requires_grad]
            if outputs:
                torch.stack([out.float().sum() for out in outputs]).sum().backward()
    except Exception:
        return False
    return True
