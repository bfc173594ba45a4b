"""Run a network in evaluation mode, with a fixed seed or without its own noise."""

import contextlib
import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from legr_cli.channels.calls import RANDOM


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch `model` to evaluation mode without gradients, and restore its modes afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Undo what a run leaves behind in a network: counters, cached tensors, updated buffers."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    held = {id(v): v for _, attributes in before for v in attributes.values()}
    containers = [(v, copy.copy(v)) for v in held.values() if type(v) in (dict, list, set, deque)]
    tensors = [v for _, attributes in before for v in (*attributes.values(), *_buffers(attributes))]
    values = [
        (tensor, tensor._version, tensor.detach().clone())
        for tensor in {id(t): t for t in tensors if isinstance(t, torch.Tensor)}.values()
        if not (tensor.is_meta or tensor.is_inference())
    ]
    try:
        yield
    finally:
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)
        for container, contents in containers:
            container.clear()
            container.extend(contents) if isinstance(container, list | deque) else container.update(
                contents
            )
        with torch.no_grad():
            for tensor, version, value in values:
                if tensor._version != version:
                    tensor.copy_(value)


def _buffers(attributes: dict[str, Any]) -> list[Any]:
    """The buffers among a module's attributes."""
    return list(attributes.get("_buffers", {}).values())


@contextlib.contextmanager
def fixed_seed() -> Iterator[None]:
    """Fix the random state, for networks that draw random numbers even in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class WithoutNoise(TorchFunctionMode):
    """Networks that draw random numbers even in evaluation mode draw nothing in this block.

    A smaller network draws other numbers, so the two could not be compared.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if "dropout" in name:
            return kwargs["input"] if "input" in kwargs else args[0]
        result = func(*args, **kwargs)
        draws = name.rstrip("_").removesuffix("_like") in RANDOM
        return result.fill_(0.5) if draws else result
