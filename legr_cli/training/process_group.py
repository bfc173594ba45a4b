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
    """This process and its peers; with one process, collectives do nothing."""

    device: torch.device
    rank: int = 0
    size: int = 1
    local_size: int = 1  # number of processes on this machine

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0, the process that writes files and prints."""
        return self.rank == 0

    @property
    def loaders(self) -> int:
        """Number of DataLoader workers for this process."""
        return max(1, cores() // self.local_size)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on the CPU."""
        if self.size == 1:
            return values
        total = values.to(self.device)
        dist.all_reduce(total)
        return total.cpu()

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors, in place, by their mean over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.size

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors, in place, with those of rank 0."""
        if self.size > 1:
            for tensor in tensors:
                received = tensor.to(self.device)
                dist.broadcast(received, 0)
                tensor.copy_(received)

    def broadcast_int(self, number: int) -> int:
        """Return rank 0's value of `number`."""
        value = torch.tensor([number])
        self.broadcast([value])
        return int(value)

    @contextlib.contextmanager
    def leader_first(self) -> Iterator[None]:
        """Run the block in the first process of each machine, then in the others."""
        if self.size > 1 and self.rank % self.local_size:
            dist.barrier()
        yield
        if self.size > 1 and self.rank % self.local_size == 0:
            dist.barrier()


@contextlib.contextmanager
def process_group(device: str) -> Iterator[ProcessGroup]:
    """Join the process group that `torchrun`'s environment variables describe, if any."""
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        yield ProcessGroup(choose(device))
        return
    size = _env_int("WORLD_SIZE", 1, 10**6)
    local_size = _env_int("LOCAL_WORLD_SIZE", 1, 10**6)
    rank, local_rank = _env_int("RANK", 0, size - 1), _env_int("LOCAL_RANK", 0, local_size - 1)
    chosen = choose(device, local_rank)
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
        yield ProcessGroup(chosen, rank, size, local_size)
    finally:
        dist.destroy_process_group()


def _env_int(name: str, least: int, most: int) -> int:
    """Read an integer from an environment variable."""
    text = os.environ.get(name, str(least))
    if not text.isdecimal() or not least <= int(text) <= most:
        raise SettingError(f"environment variable {name}={text} must be from {least} to {most}")
    return int(text)
