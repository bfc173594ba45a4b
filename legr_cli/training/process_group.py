"""The processes that train one network together: one, or as many as `torchrun` started."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from legr_cli.errors import SettingError, TrainingError, first_line
from legr_cli.training.devices import choose, cores


@dataclass(frozen=True)
class ProcessGroup:
    """This process among its peers. Alone, it has nothing to tell them."""

    device: torch.device
    rank: int = 0
    size: int = 1
    here: int = 1  # of them on this machine

    @property
    def is_leader(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    @property
    def loaders(self) -> int:
        """Processes that may read images for this one."""
        return max(1, cores() // self.here)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on the CPU."""
        if self.size == 1:
            return values
        total = values.to(self.device)
        dist.all_reduce(total)
        return total.cpu()

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace numbers by their mean over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.size

    def follow(self, tensors: Iterable[Tensor]) -> None:
        """Take over what the leading process has."""
        if self.size > 1:
            for tensor in tensors:
                there = tensor.to(self.device)
                dist.broadcast(there, 0)
                tensor.copy_(there)

    def told(self, number: int) -> int:
        """A number that the leading process knows."""
        word = torch.tensor([number])
        self.follow([word])
        return int(word)

    @contextlib.contextmanager
    def leader_first(self) -> Iterator[None]:
        """Let the first process of each machine do something once; the others find it done."""
        if self.size > 1 and self.rank % self.here:
            dist.barrier()
        yield
        if self.size > 1 and self.rank % self.here == 0:
            dist.barrier()


@contextlib.contextmanager
def process_group(device: str) -> Iterator[ProcessGroup]:
    """This process's team: the environment says who is in it, as `torchrun` sets it."""
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        yield ProcessGroup(choose(device))
        return
    size, here = _number("WORLD_SIZE", 1, 10**6), _number("LOCAL_WORLD_SIZE", 1, 10**6)
    rank, local = _number("RANK", 0, size - 1), _number("LOCAL_RANK", 0, here - 1)
    chosen = choose(device, local)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    elif chosen.type == "mps" and size > 1:
        raise SettingError("--device mps: several processes cannot share an Apple GPU")
    try:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"the processes cannot reach each other ({first_line(error)}): start them with "
            "torchrun --nproc-per-node N -m legr_cli finetune …"
        ) from error
    try:
        yield ProcessGroup(chosen, rank, size, here)
    finally:
        dist.destroy_process_group()


def _number(name: str, least: int, most: int) -> int:
    """A number of the environment."""
    text = os.environ.get(name, str(least))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise SettingError(f"{name}={text} in the environment is not from {least} to {most}")
    return int(text)
